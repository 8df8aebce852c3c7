// Threads: a queue each, one context; gates opened by another thread; objects made and dropped all the time.
#include "dt.h"
#include <pthread.h>

enum { THREADS = 6, ROUNDS = 120, N = 1000 };
static const char *src = "kernel void axpy(global uint *a, uint k) { uint i = get_global_id(0); a[i] = a[i] * 5 + k + i; }\n";
static cl_program program;
static uint64_t hashes[THREADS];
static cl_int worst[THREADS];
static cl_event relay[THREADS][ROUNDS]; // relay[t][r] is opened by thread t, waited for by thread t+1

static void *work(void *arg) {
    long t = (long)arg;
    cl_int e = 0;
    cl_command_queue q = clCreateCommandQueue(context, device, 0, &e);
    worst[t] |= e;
    cl_kernel k = clCreateKernel(program, "axpy", &e);
    worst[t] |= e;
    static unsigned data[THREADS][N];
    unsigned *d = data[t];
    for (int i = 0; i < N; i++) d[i] = (unsigned)(i * (t + 1));
    cl_mem m = clCreateBuffer(context, CL_MEM_COPY_HOST_PTR, sizeof data[t], d, &e);
    worst[t] |= e;
    size_t g = N;
    for (cl_uint r = 0; r < ROUNDS; r++) {
        cl_event done;
        worst[t] |= clSetKernelArg(k, 0, sizeof m, &m);
        worst[t] |= clSetKernelArg(k, 1, sizeof r, &r);
        worst[t] |= clEnqueueNDRangeKernel(q, k, 1, NULL, &g, NULL, t > 0 ? 1 : 0, t > 0 ? &relay[t - 1][r] : NULL, &done);
        worst[t] |= clFlush(q);
        if (r % 3 == 0) {
            cl_mem extra = clCreateBuffer(context, 0, 100 + r * 50, NULL, &e);
            worst[t] |= e | clEnqueueWriteBuffer(q, extra, r % 2, 0, 100, d, 0, NULL, NULL) | clReleaseMemObject(extra);
        }
        worst[t] |= clSetUserEventStatus(relay[t][r], CL_COMPLETE);
        if (r % 4 == 0) worst[t] |= clWaitForEvents(1, &done);
        worst[t] |= clReleaseEvent(done);
        if (r % 10 == 0) {
            worst[t] |= clEnqueueReadBuffer(q, m, CL_TRUE, 0, sizeof data[t], d, 0, NULL, NULL);
            hashes[t] = hashes[t] * 31 + dt_hash(d, sizeof data[t]);
        }
    }
    worst[t] |= clFinish(q);
    worst[t] |= clEnqueueReadBuffer(q, m, CL_TRUE, 0, sizeof data[t], d, 0, NULL, NULL);
    hashes[t] = hashes[t] * 31 + dt_hash(d, sizeof data[t]);
    worst[t] |= clReleaseMemObject(m) | clReleaseKernel(k) | clReleaseCommandQueue(q);
    return NULL;
}

int main(void) {
    setup(0);
    program = build(src, "");
    pthread_t th[THREADS];
    for (int t = 0; t < THREADS; t++)
        for (int r = 0; r < ROUNDS; r++) {
            relay[t][r] = clCreateUserEvent(context, &err);
            must(err, "user event");
        }
    for (long t = 0; t < THREADS; t++) pthread_create(&th[t], NULL, work, (void *)t);
    for (int t = 0; t < THREADS; t++) pthread_join(th[t], NULL);
    for (int t = 0; t < THREADS; t++) SAY(L("thread %d", t), "%s %016llx", dt_name(worst[t]), (unsigned long long)hashes[t]);
    cl_int last = 0;
    for (int t = 0; t < THREADS; t++)
        for (int r = 0; r < ROUNDS; r++) last |= clReleaseEvent(relay[t][r]);
    ERR("release of the gates", last);
    ERR("release of the context", clReleaseProgram(program) | clReleaseCommandQueue(queue) | clReleaseContext(context));
    return 0;
}
