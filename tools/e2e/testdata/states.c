// A program that end-to-end tests bring into each state in which a fault can strike: one command a line on standard input, one answer a
// line, "NAME STATUS", and before it "in NAME" where the call is about to be made that a fault is to find.
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static cl_device_id device;
static cl_context context;
static cl_command_queue queue, other; // other: to know that what queue was given has arrived
static cl_program program;
static cl_mem data; // BYTES of them
static size_t bytes;
static uint32_t *host;
static cl_int err;

enum { WRONG = 12345 };

static const char *source =
    "kernel void work(global uint *a, uint n) { uint x = a[0]; for (uint i = 0; i < n; i++) x = x * 1664525u + 1013904223u; a[1] = x; }\n"
    "kernel void spin(global uint *a) { while (*(volatile global uint *)a != 77) ; }\n";

static void check(cl_int e, const char *what) {
    if (e) {
        printf("failed %s %d\n", what, e);
        exit(1);
    }
}

static uint32_t at(size_t i, unsigned seed) { return (uint32_t)(i * 2654435761u + seed * 40503u); }

static void open_session(size_t mib) {
    cl_platform_id platform;
    check(clGetPlatformIDs(1, &platform, NULL), "platforms");
    check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL), "devices");
    context = clCreateContext(NULL, 1, &device, NULL, NULL, &err);
    check(err, "context");
    queue = clCreateCommandQueue(context, device, 0, &err);
    check(err, "queue");
    other = clCreateCommandQueue(context, device, 0, &err);
    check(err, "queue");
    program = clCreateProgramWithSource(context, 1, &source, NULL, &err);
    check(err, "program");
    check(clBuildProgram(program, 1, &device, "", NULL, NULL), "build");
    bytes = mib << 20;
    host = realloc(host, bytes);
    data = clCreateBuffer(context, CL_MEM_READ_WRITE, bytes, NULL, &err);
    check(err, "buffer");
    memset(host, 0, bytes);
    check(clEnqueueWriteBuffer(queue, data, CL_TRUE, 0, bytes, host, 0, NULL, NULL), "write");
}

static cl_int differs(const uint32_t *p, unsigned seed) {
    for (size_t i = 0; i < bytes / 4; i++)
        if (p[i] != at(i, seed)) return WRONG;
    return 0;
}

static cl_int do_write(unsigned seed, cl_uint n, const cl_event *wait) {
    for (size_t i = 0; i < bytes / 4; i++) host[i] = at(i, seed);
    return clEnqueueWriteBuffer(queue, data, CL_TRUE, 0, bytes, host, n, wait, NULL);
}

static cl_int do_read(unsigned seed, cl_uint n, const cl_event *wait) {
    memset(host, 0, bytes);
    cl_int e = clEnqueueReadBuffer(queue, data, CL_TRUE, 0, bytes, host, n, wait, NULL);
    return e ? e : differs(host, seed);
}

static cl_int do_map(unsigned seed, cl_uint n, const cl_event *wait) {
    cl_int e;
    uint32_t *p = clEnqueueMapBuffer(queue, data, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, bytes, n, wait, NULL, &e);
    if (e) return e;
    cl_int found = differs(p, seed);
    e = clEnqueueUnmapMemObject(queue, data, p, 0, NULL, NULL);
    if (!e) e = clFinish(queue);
    return e ? e : found;
}

static cl_kernel worker(const char *name, cl_uint n) {
    cl_kernel k = clCreateKernel(program, name, &err);
    if (!k) return NULL;
    clSetKernelArg(k, 0, sizeof data, &data);
    if (!strcmp(name, "work")) clSetKernelArg(k, 1, sizeof n, &n);
    return k;
}

static const size_t one = 1;

// worked says whether the kernel's result, from a[0] = first, is what it must be.
static cl_int worked(uint32_t first, cl_uint n) {
    uint32_t got = 0, x = first;
    cl_int e = clEnqueueReadBuffer(queue, data, CL_TRUE, 4, 4, &got, 0, NULL, NULL);
    for (cl_uint i = 0; i < n; i++) x = x * 1664525u + 1013904223u;
    return e ? e : got == x ? 0 : WRONG;
}

// do_kernel runs one that takes a while: n steps.
static cl_int do_kernel(cl_uint n, unsigned seed) {
    uint32_t first = seed * 7 + 1;
    cl_int e = clEnqueueWriteBuffer(queue, data, CL_TRUE, 0, 4, &first, 0, NULL, NULL);
    cl_kernel k = worker("work", n);
    if (!k) return err;
    if (!e) e = clEnqueueNDRangeKernel(queue, k, 1, NULL, &one, NULL, 0, NULL, NULL);
    clReleaseKernel(k);
    if (!e) e = clFinish(queue);
    return e ? e : worked(first, n);
}

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t told = PTHREAD_COND_INITIALIZER;
static int calls;
static cl_int call_status;

static void CL_CALLBACK ended(cl_event e, cl_int status, void *user) {
    (void)e; (void)user;
    pthread_mutex_lock(&mu);
    calls++;
    call_status = status;
    pthread_cond_signal(&told);
    pthread_mutex_unlock(&mu);
}

// await_call waits for the callback, which comes once.
static cl_int await_call(void) {
    pthread_mutex_lock(&mu);
    while (!calls) pthread_cond_wait(&told, &mu);
    cl_int s = call_status;
    pthread_mutex_unlock(&mu);
    usleep(50000);
    pthread_mutex_lock(&mu);
    if (calls != 1) s = WRONG;
    pthread_mutex_unlock(&mu);
    return s;
}

static cl_int do_callback(cl_uint n, unsigned seed) {
    uint32_t first = seed * 11 + 3;
    cl_event e = NULL;
    calls = 0;
    cl_int s = clEnqueueWriteBuffer(queue, data, CL_TRUE, 0, 4, &first, 0, NULL, NULL);
    cl_kernel k = worker("work", n);
    if (!k) return err;
    if (!s) s = clEnqueueNDRangeKernel(queue, k, 1, NULL, &one, NULL, 0, NULL, &e);
    clReleaseKernel(k);
    if (!s) s = clSetEventCallback(e, CL_COMPLETE, ended, NULL);
    if (!s) s = clFlush(queue);
    if (!s) s = await_call();
    if (e) clReleaseEvent(e);
    return s ? s : worked(first, n);
}

// do_build builds 2^n statements, which no cache has.
static cl_int do_build(unsigned n, unsigned seed) {
    char text[4096];
    int len = sprintf(text, "#define M0 a[%u] += a[1];\n", 2 + seed % 1000000);
    for (unsigned i = 1; i <= n; i++) len += sprintf(text + len, "#define M%u M%u M%u\n", i, i - 1, i - 1);
    sprintf(text + len, "kernel void many(global uint *a) { M%u }\n", n);
    const char *parts = text;
    cl_program p = clCreateProgramWithSource(context, 1, &parts, NULL, &err);
    if (err) return err;
    cl_int e = clBuildProgram(p, 1, &device, "", NULL, NULL);
    clReleaseProgram(p);
    return e;
}

// stuck goes into a state that ends by nothing but a fault: commands wait for a user event that nobody sets, or for a kernel or a build that does
// not end. What was enqueued has arrived at the worker when it says so.
static cl_int stuck(const char *state) {
    cl_event gate = clCreateUserEvent(context, &err);
    if (err) return err;
    cl_event e = NULL;
    cl_kernel k = NULL;
    cl_int s = 0;
    calls = 0;
    if (!strcmp(state, "kernel") || !strcmp(state, "finish") || !strcmp(state, "callback")) {
        if (!(k = worker(strcmp(state, "finish") ? "spin" : "work", 10))) return err;
        s = clEnqueueNDRangeKernel(queue, k, 1, NULL, &one, NULL, strcmp(state, "finish") ? 0 : 1, strcmp(state, "finish") ? NULL : &gate, &e);
        if (!s) s = clFlush(queue);
    }
    if (!s && !strcmp(state, "callback")) s = clSetEventCallback(e, CL_COMPLETE, ended, NULL);
    uint32_t word;
    if (!s && strcmp(state, "kernel") && strcmp(state, "callback")) // one device may have one thread for all
        s = clEnqueueReadBuffer(other, data, CL_TRUE, 0, 4, &word, 0, NULL, NULL);
    if (s) return s;
    printf("in %s\n", state);
    if (!strcmp(state, "write")) s = do_write(1, 1, &gate);
    else if (!strcmp(state, "read")) s = do_read(1, 1, &gate);
    else if (!strcmp(state, "map")) s = do_map(1, 1, &gate);
    else if (!strcmp(state, "build")) s = do_build(28, 1);
    else if (!strcmp(state, "callback")) s = await_call();
    else s = clFinish(queue);
    if (e) { // it has failed, too: an event never stays behind
        cl_int status = 1;
        cl_int asked = clGetEventInfo(e, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL);
        if (!asked && status >= 0) {
            fprintf(stderr, "%s: the call says %d, its event %d\n", state, s, status);
            s = WRONG;
        }
    }
    return s;
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    char line[256], word[64], state[64];
    while (fgets(line, sizeof line, stdin)) {
        unsigned long a = 0, b = 0;
        cl_int e;
        state[0] = 0;
        if (sscanf(line, "%63s", word) < 1) continue;
        if (!strcmp(word, "stuck")) sscanf(line, "%*s %63s", state);
        else sscanf(line, "%*s %lu %lu", &a, &b);
        if (!strcmp(word, "open")) { open_session(a); e = 0; }
        else if (!strcmp(word, "write")) e = do_write(a, 0, NULL);
        else if (!strcmp(word, "read")) e = do_read(a, 0, NULL);
        else if (!strcmp(word, "map")) e = do_map(a, 0, NULL);
        else if (!strcmp(word, "build")) e = do_build(a, b);
        else if (!strcmp(word, "kernel")) e = do_kernel(a, b);
        else if (!strcmp(word, "callback")) e = do_callback(a, b);
        else if (!strcmp(word, "stuck")) e = stuck(state);
        else if (!strcmp(word, "quit")) break;
        else e = WRONG;
        printf("%s %d\n", word, e);
    }
    return 0;
}
