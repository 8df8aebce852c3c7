// A program that waits: threads of one context enqueue short things, let a random while pass, and wait for their end in every way that there is;
// events end before, while and after somebody looks. What is under test is that nobody waits for ever; of a wait of a minute it says what it is.
//
//     wakes SEED ROUNDS [THREADS]
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { QUEUES = 4, BYTES = 1 << 20, MOST_THREADS = 8, SECONDS = 60 };

static cl_context context;
static cl_command_queue queues[QUEUES];
static cl_program program;

static const char *source = "kernel void spend(global uint *a, uint n) { uint x = a[0]; for (uint i = 0; i < n; i++) x = x * 1664525u + 1013904223u; a[1] = x; }\n";

typedef struct {
    uint64_t drawn;
    cl_kernel kernel;
    cl_mem data;
    char *host;
    volatile const char *doing;
    volatile unsigned round;
    volatile time_t since;
    pthread_mutex_t mu;
    pthread_cond_t cv;
    int calls;
} thread;

static thread threads[MOST_THREADS];
static unsigned rounds;

static void check(cl_int e, const char *what) {
    if (e) {
        printf("failed %s %d\n", what, e);
        exit(1);
    }
}

static uint32_t draw(thread *t, uint32_t below) {
    t->drawn = t->drawn * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(t->drawn >> 33) % below;
}

// pause_ is as long as anybody polls, sleeps, or is behind: nothing, some µs, up to 20 ms.
static void pause_(thread *t) {
    static const uint32_t most[] = {0, 1, 60, 250, 1000, 5000, 20000};
    uint32_t us = most[draw(t, 7)];
    if (us) usleep(draw(t, us));
}

static cl_command_queue any(thread *t) { return queues[draw(t, QUEUES)]; }

static cl_event kernel_(thread *t, cl_command_queue q, cl_uint n, const cl_event *list) {
    static const uint32_t most[] = {1, 100, 10000, 1000000};
    cl_uint work = draw(t, most[draw(t, 4)]) + 1;
    size_t one = 1;
    cl_event e;
    check(clSetKernelArg(t->kernel, 0, sizeof(cl_mem), &t->data), "argument");
    check(clSetKernelArg(t->kernel, 1, sizeof work, &work), "argument");
    check(clEnqueueNDRangeKernel(q, t->kernel, 1, NULL, &one, NULL, n, list, &e), "kernel");
    return e;
}

// command is one of any kind that waits for a list.
static cl_event command(thread *t, cl_uint n, const cl_event *list) {
    static const uint32_t most[] = {4, 4096, 65536, BYTES};
    size_t size = draw(t, most[draw(t, 4)]) + 1;
    cl_command_queue q = any(t);
    cl_event e = NULL;
    cl_int s = 0;
    void *p;
    switch (draw(t, 8)) {
    case 0: t->doing = "write"; check(clEnqueueWriteBuffer(q, t->data, CL_FALSE, 0, size, t->host, n, list, &e), "write"); break;
    case 1: t->doing = "read"; check(clEnqueueReadBuffer(q, t->data, CL_FALSE, 0, size, t->host, n, list, &e), "read"); break;
    case 2: t->doing = "marker"; check(clEnqueueMarkerWithWaitList(q, n, list, &e), "marker"); break;
    case 3: t->doing = "barrier"; check(clEnqueueBarrierWithWaitList(q, n, list, &e), "barrier"); break;
    case 4:
        t->doing = "map";
        p = clEnqueueMapBuffer(q, t->data, CL_FALSE, CL_MAP_READ | CL_MAP_WRITE, 0, size, n, list, &e, &s);
        check(s, "map");
        check(clEnqueueUnmapMemObject(q, t->data, p, 1, &e, NULL), "unmap");
        break;
    default: t->doing = "kernel"; e = kernel_(t, q, n, list);
    }
    return e;
}

static void CL_CALLBACK called(cl_event e, cl_int status, void *arg) {
    thread *t = arg;
    (void)e;
    (void)status;
    pthread_mutex_lock(&t->mu);
    t->calls++;
    pthread_cond_signal(&t->cv);
    pthread_mutex_unlock(&t->mu);
}

static void call_back(thread *t, cl_event e) {
    static const cl_int levels[] = {CL_COMPLETE, CL_COMPLETE, CL_RUNNING, CL_SUBMITTED};
    cl_int level = levels[draw(t, 4)];
    t->calls = 0;
    t->doing = level == CL_COMPLETE ? "callback of the end" : "callback of an earlier status";
    check(clSetEventCallback(e, level, called, t), "callback");
    pthread_mutex_lock(&t->mu);
    while (!t->calls) pthread_cond_wait(&t->cv, &t->mu);
    pthread_mutex_unlock(&t->mu);
}

static cl_int status_of(cl_event e) {
    cl_int status = 0;
    check(clGetEventInfo(e, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL), "status");
    return status;
}

// await_ waits for the end of an event that is a queue's.
static void await_(thread *t, cl_event e) {
    cl_command_queue q;
    uint32_t word;
    check(clGetEventInfo(e, CL_EVENT_COMMAND_QUEUE, sizeof q, &q, NULL), "queue of an event");
    if (draw(t, 2)) check(clFlush(q), "flush");
    pause_(t);
    switch (draw(t, 7)) {
    case 0: t->doing = "clFinish"; check(clFinish(q), "finish"); break;
    case 1: check(clFlush(q), "flush"); call_back(t, e); break;
    case 2:
        check(clFlush(q), "flush");
        t->doing = "status";
        while (status_of(e) > 0) pause_(t);
        break;
    case 3: t->doing = "blocking read"; check(clEnqueueReadBuffer(any(t), t->data, CL_TRUE, 0, 4, &word, 1, &e, NULL), "blocking read"); break;
    case 4: t->doing = "blocking write"; check(clEnqueueWriteBuffer(any(t), t->data, CL_TRUE, 8, 4, &word, 1, &e, NULL), "blocking write"); break;
    case 5: {
        cl_event two[2] = {e, command(t, 1, &e)};
        pause_(t);
        t->doing = "clWaitForEvents of two";
        check(clWaitForEvents(2, two), "wait for two");
        clReleaseEvent(two[1]);
        break;
    }
    default: t->doing = "clWaitForEvents"; check(clWaitForEvents(1, &e), "wait");
    }
}

static cl_event handed; // from one thread to the next
static pthread_mutex_t handing = PTHREAD_MUTEX_INITIALIZER;

typedef struct {
    cl_event gate;
    uint32_t us;
    cl_int status;
} opening;

static void *opener(void *arg) {
    opening *o = arg;
    if (o->us) usleep(o->us);
    check(clSetUserEventStatus(o->gate, o->status), "user event");
    clReleaseEvent(o->gate);
    free(o);
    return NULL;
}

// gated has commands wait for a user event that another thread ends meanwhile.
static void gated(thread *t) {
    static const uint32_t most[] = {1, 60, 500, 5000};
    cl_int s;
    cl_event g = clCreateUserEvent(context, &s);
    check(s, "user event");
    cl_event first = NULL;
    int before = draw(t, 2);
    if (before) first = command(t, 1, &g);
    opening *o = malloc(sizeof *o);
    *o = (opening){g, draw(t, most[draw(t, 4)]), CL_COMPLETE};
    clRetainEvent(g);
    pthread_t id;
    if (pthread_create(&id, NULL, opener, o)) check(-1, "thread");
    pause_(t);
    cl_event second = command(t, 1, before && draw(t, 2) ? &first : &g);
    if (draw(t, 2)) {
        t->doing = "clWaitForEvents of a user event";
        check(clWaitForEvents(1, &g), "wait for a user event");
    }
    await_(t, second);
    if (first) {
        t->doing = "clWaitForEvents of the first";
        check(clWaitForEvents(1, &first), "wait");
        clReleaseEvent(first);
    }
    clReleaseEvent(second);
    clReleaseEvent(g);
    t->doing = "join";
    pthread_join(id, NULL);
}

// shared waits for an event of another thread's.
static void shared(thread *t) {
    cl_event other, own = command(t, 0, NULL);
    check(clFlush(queues[0]) || clFlush(queues[1]) || clFlush(queues[2]) || clFlush(queues[3]), "flush");
    pthread_mutex_lock(&handing);
    other = handed;
    handed = own;
    pthread_mutex_unlock(&handing);
    if (!other) return;
    if (draw(t, 2)) {
        cl_event e = command(t, 1, &other);
        await_(t, e);
        clReleaseEvent(e);
    } else
        await_(t, other);
    clReleaseEvent(other);
}

static void *run(void *arg) {
    thread *t = arg;
    for (t->round = 0; t->round < rounds; t->round++) {
        t->since = time(NULL);
        switch (draw(t, 4)) {
        case 0: gated(t); break;
        case 1: shared(t); break;
        default: {
            cl_event e = command(t, 0, NULL);
            for (uint32_t n = draw(t, 4); n; n--) { // a chain, whose links are let go of
                cl_event next = command(t, 1, &e);
                clReleaseEvent(e);
                e = next;
            }
            await_(t, e);
            if (draw(t, 3) == 0) {
                pause_(t);
                call_back(t, e); // it has ended
            }
            clReleaseEvent(e);
        }
        }
    }
    t->doing = NULL;
    return NULL;
}

// guard says so where a thread does not go on; whoever runs the program looks where it is.
static void *guard(void *arg) {
    for (;; sleep(1))
        for (unsigned i = 0; i < MOST_THREADS; i++) {
            thread *t = &threads[i];
            const char *doing = (const char *)t->doing;
            if (doing && time(NULL) - t->since > SECONDS) {
                printf("thread %u waits in round %u: %s\n", i, t->round, doing);
                fflush(stdout);
                return NULL;
            }
        }
    return arg; // never
}

int main(int argc, char **argv) {
    unsigned seed = argc > 1 ? atoi(argv[1]) : 1, n = argc > 3 ? atoi(argv[3]) : 3;
    rounds = argc > 2 ? atoi(argv[2]) : 100;
    cl_platform_id platform;
    cl_device_id devices[8];
    cl_uint count;
    cl_int s;
    check(clGetPlatformIDs(1, &platform, NULL), "platforms");
    check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 8, devices, &count), "devices");
    context = clCreateContext(NULL, count, devices, NULL, NULL, &s);
    check(s, "context");
    for (unsigned i = 0; i < QUEUES; i++) {
        queues[i] = clCreateCommandQueue(context, devices[i % count], i == 3 ? CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE : 0, &s);
        check(s, "queue");
    }
    program = clCreateProgramWithSource(context, 1, &source, NULL, &s);
    check(s, "program");
    check(clBuildProgram(program, count, devices, "", NULL, NULL), "build");
    pthread_t ids[MOST_THREADS], watch;
    if (n > MOST_THREADS) n = MOST_THREADS;
    for (unsigned i = 0; i < n; i++) {
        thread *t = &threads[i];
        t->drawn = seed * 1000003u + i;
        t->since = time(NULL);
        t->host = calloc(1, BYTES);
        t->kernel = clCreateKernel(program, "spend", &s);
        check(s, "kernel");
        t->data = clCreateBuffer(context, CL_MEM_READ_WRITE, BYTES, NULL, &s);
        check(s, "buffer");
        pthread_mutex_init(&t->mu, NULL);
        pthread_cond_init(&t->cv, NULL);
    }
    if (pthread_create(&watch, NULL, guard, NULL)) check(-1, "thread");
    for (unsigned i = 0; i < n; i++)
        if (pthread_create(&ids[i], NULL, run, &threads[i])) check(-1, "thread");
    for (unsigned i = 0; i < n; i++) pthread_join(ids[i], NULL);
    for (unsigned i = 0; i < QUEUES; i++) check(clFinish(queues[i]), "finish");
    printf("done %u\n", n * rounds);
    return 0;
}
