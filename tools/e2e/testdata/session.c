// An OpenCL program that end-to-end tests steer through its standard input: one
// command a line, one answer a line.
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 1 << 16 };
static cl_platform_id platform;
static cl_device_id device;
static cl_context context;
static cl_command_queue queue;
static cl_program program;
static cl_mem data;
static cl_int err;
static volatile int context_errors;

static const char *source =
    "kernel void add(global uint *a, uint n) { a[get_global_id(0)] += n; }\n"
    "kernel void stray(global uint *a, ulong far) { a[far] = 1; }\n"
    "kernel void at(ulong address, uint value) { *(global uint *)address = value; }\n"
    "kernel void scan(global uint *a, ulong from, ulong to) { for (ulong i = from; i < to; i += 1024) a[i] = 0xDEADBEEF; }\n"
    "kernel void div(global uint *a, ulong by) { a[0] = (int)a[1] / (int)by; }\n"
    "kernel void hog(global uint *a, ulong n) { volatile uint big[1 << 28]; for (ulong i = 0; i < n; i++) big[i & ((1 << 28) - 1)] = i; a[0] = big[n / 2]; }\n"
    "kernel void spin(global uint *a) { while (*(volatile global uint *)a != 77) ; }\n";

static void CL_CALLBACK notify(const char *text, const void *info, size_t n, void *user) {
    (void)text; (void)info; (void)n; (void)user;
    context_errors++;
}

static void check(cl_int e, const char *what) {
    if (e) {
        printf("failed %s %d\n", what, e);
        exit(1);
    }
}

static void open_session(void) {
    check(clGetPlatformIDs(1, &platform, NULL), "platforms");
    check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL), "devices");
    context = clCreateContext(NULL, 1, &device, notify, NULL, &err);
    check(err, "context");
    queue = clCreateCommandQueue(context, device, 0, &err);
    check(err, "queue");
    program = clCreateProgramWithSource(context, 1, &source, NULL, &err);
    check(err, "program");
    check(clBuildProgram(program, 1, &device, "", NULL, NULL), "build");
    uint32_t *host = malloc(N * 4);
    for (int i = 0; i < N; i++) host[i] = i * 2654435761u;
    data = clCreateBuffer(context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, N * 4, host, &err);
    check(err, "buffer");
    free(host);
    cl_kernel k = clCreateKernel(program, "add", &err);
    check(err, "kernel");
    cl_uint zero = 0;
    size_t n = N;
    check(clSetKernelArg(k, 0, sizeof data, &data), "arg");
    check(clSetKernelArg(k, 1, sizeof zero, &zero), "arg");
    check(clEnqueueNDRangeKernel(queue, k, 1, NULL, &n, NULL, 0, NULL, NULL), "launch");
    check(clFinish(queue), "finish");
    clReleaseKernel(k);
}

// launch runs a kernel with one 64-bit argument after the buffer, or one alone.
static cl_int launch(const char *name, int with_buffer, uint64_t a, uint64_t b) {
    cl_kernel k = clCreateKernel(program, name, &err);
    if (err) return err;
    cl_uint at = 0;
    if (with_buffer) clSetKernelArg(k, at++, sizeof data, &data);
    if (!strcmp(name, "at")) {
        cl_uint v = (cl_uint)b;
        clSetKernelArg(k, at++, 8, &a);
        clSetKernelArg(k, at++, 4, &v);
    } else if (!strcmp(name, "scan")) {
        clSetKernelArg(k, at++, 8, &a);
        clSetKernelArg(k, at++, 8, &b);
    } else if (!strcmp(name, "add")) {
        cl_uint v = (cl_uint)a;
        clSetKernelArg(k, at++, 4, &v);
    } else if (strcmp(name, "spin")) { // stray, div, hog
        clSetKernelArg(k, at++, 8, &a);
    }
    size_t n = strcmp(name, "add") ? 1 : N;
    cl_int e = clEnqueueNDRangeKernel(queue, k, 1, NULL, &n, NULL, 0, NULL, NULL);
    if (!e && strcmp(name, "spin")) e = clFinish(queue);
    if (!e) clFlush(queue);
    clReleaseKernel(k);
    return e;
}

// verify reads the buffer back and compares it with what it must be after plus was added.
static void verify(cl_uint plus) {
    static uint32_t host[N];
    cl_int e = clEnqueueReadBuffer(queue, data, CL_TRUE, 0, sizeof host, host, 0, NULL, NULL);
    if (e) {
        printf("read %d\n", e);
        return;
    }
    for (int i = 0; i < N; i++)
        if (host[i] != i * 2654435761u + plus) {
            printf("wrong at %d\n", i);
            return;
        }
    printf("good\n");
}

// large builds a program whose source is so many MiB of comments before a kernel.
static cl_int large(size_t mib) {
    size_t n = mib << 20;
    static const char tail[] = "kernel void last(global uint *a) { a[0] = 7; }\n";
    char *text = malloc(n + sizeof tail);
    for (size_t i = 0; i < n; i += 64) {
        memset(text + i, 'x', 64);
        text[i] = text[i + 1] = '/';
        text[i + 63] = '\n';
    }
    memcpy(text + n, tail, sizeof tail);
    const char *parts = text;
    cl_program p = clCreateProgramWithSource(context, 1, &parts, NULL, &err);
    if (!err) err = clBuildProgram(p, 1, &device, "", NULL, NULL);
    free(text);
    size_t bytes = 0;
    if (!err) err = clGetProgramInfo(p, CL_PROGRAM_SOURCE, 0, NULL, &bytes);
    if (!err && bytes != n + sizeof tail) err = 1;
    cl_int was = err;
    cl_kernel k = was ? NULL : clCreateKernel(p, "last", &was);
    if (k) clReleaseKernel(k);
    if (p) clReleaseProgram(p);
    return was;
}

static void CL_CALLBACK built(cl_program p, void *data) { (void)p; (void)data; }

// compile begins a build that is not over for very long: 2^28 statements made by macros.
static cl_int compile(void) {
    char text[4096];
    int n = sprintf(text, "#define M0 a[0] += a[1];\n");
    for (int i = 1; i <= 28; i++) n += sprintf(text + n, "#define M%d M%d M%d\n", i, i - 1, i - 1);
    sprintf(text + n, "kernel void endless(global uint *a) { M28 }\n");
    const char *parts = text;
    cl_program p = clCreateProgramWithSource(context, 1, &parts, NULL, &err);
    return err ? err : clBuildProgram(p, 1, &device, "", built, NULL);
}

// altstack gives the thread a signal stack of the program's own, or takes it away, as CPython's faulthandler does at its start and end.
static int altstack(int on) {
    static char own[1 << 16];
    stack_t s = {.ss_sp = own, .ss_size = sizeof own, .ss_flags = on ? 0 : SS_DISABLE};
    return sigaltstack(&s, NULL);
}

// copies keeps the calling thread inside the library: blocking writes and reads of so many MiB, each well above what Go runs without a pause.
static cl_int copies(size_t mib) {
    size_t n = mib << 20;
    char *host = malloc(n);
    cl_mem m = clCreateBuffer(context, CL_MEM_READ_WRITE, n, NULL, &err);
    for (int i = 0; i < 5 && !err; i++) {
        memset(host, i, n);
        err = clEnqueueWriteBuffer(queue, m, CL_TRUE, 0, n, host, 0, NULL, NULL);
        if (!err) err = clEnqueueReadBuffer(queue, m, CL_TRUE, 0, n, host, 0, NULL, NULL);
        if (!err && (host[0] != i || host[n - 1] != i)) err = 1;
    }
    if (m) clReleaseMemObject(m);
    free(host);
    return err;
}

static void in_a_child(void) {
    pid_t child = fork();
    if (child == 0) {
        cl_int e = clFinish(queue); // (the loader itself answers clGetPlatformIDs from what it knows)
        cl_mem m = clCreateBuffer(context, 0, 64, NULL, &err);
        _exit(e != 0 && m == NULL && err != 0 ? 7 : 8);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    printf("child %s %d\n", WIFEXITED(status) ? "exited" : "died", WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    char line[256], word[64];
    unsigned long long a = 0, b = 0;
    cl_uint plus = 0;
    while (fgets(line, sizeof line, stdin)) {
        a = b = 0;
        if (sscanf(line, "%63s %llu %llu", word, &a, &b) < 1) continue;
        if (!strcmp(word, "open")) { open_session(); printf("ready %d\n", (int)getpid()); }
        else if (!strcmp(word, "verify")) verify(plus);
        else if (!strcmp(word, "add")) { cl_int e = launch("add", 1, a, 0); if (!e) plus += (cl_uint)a; printf("add %d\n", e); }
        else if (!strcmp(word, "stray")) printf("stray %d\n", launch("stray", 1, a, 0));
        else if (!strcmp(word, "div")) printf("div %d\n", launch("div", 1, a, 0));
        else if (!strcmp(word, "hog")) printf("hog %d\n", launch("hog", 1, a, 0));
        else if (!strcmp(word, "at")) printf("at %d\n", launch("at", 0, a, b));
        else if (!strcmp(word, "scan")) printf("scan %d\n", launch("scan", 1, a, b));
        else if (!strcmp(word, "spin")) printf("spin %d\n", launch("spin", 1, 0, 0));
        else if (!strcmp(word, "errors")) {
            for (int i = 0; i < 24000 && !context_errors; i++) usleep(10000); // the callback comes on a thread of its own
            printf("errors %s\n", context_errors ? "told" : "none");
        }
        else if (!strcmp(word, "large")) printf("large %d\n", large(a));
        else if (!strcmp(word, "compile")) printf("compile %d\n", compile());
        else if (!strcmp(word, "fork")) in_a_child();
        else if (!strcmp(word, "linger")) { // a child that holds every descriptor and outlives its parent
            pid_t c = fork();
            if (c == 0) { sleep((unsigned)a); _exit(0); }
            printf("linger %d\n", (int)c);
        }
        else if (!strcmp(word, "buffer")) {
            cl_mem m = clCreateBuffer(context, CL_MEM_READ_WRITE, a, NULL, &err);
            printf("buffer %d %s\n", err, m ? "object" : "none");
        }
        else if (!strcmp(word, "buffers")) { // a many of b bytes, kept
            for (; a && !err; a--) clCreateBuffer(context, CL_MEM_READ_WRITE, b, NULL, &err);
            printf("buffers %d\n", err);
        }
        else if (!strcmp(word, "altstack")) printf("altstack %d\n", altstack((int)a));
        else if (!strcmp(word, "copies")) printf("copies %d\n", copies(a));
        else if (!strcmp(word, "again")) { // a new context after the old one's worker died
            context_errors = 0;
            open_session();
            plus = 0;
            printf("again\n");
        }
        else if (!strcmp(word, "quit")) break;
        else printf("what?\n");
    }
    return 0;
}
