// The times of reads, writes and maps in a queue that profiles, whoever carries them out.
#include "dt.h"

enum { MOST = 1 << 20 };

static const char *src = "kernel void busy(global int *p) { for (int i = 0; i < 50000; i++) p[0] += i * p[1]; }\n";

static char host[MOST];

static void times(const char *label, cl_event e) {
    cl_ulong t[4] = {0};
    for (int k = 0; k < 4; k++) clGetEventProfilingInfo(e, CL_PROFILING_COMMAND_QUEUED + k, sizeof t[k], &t[k], NULL);
    SAY(label, "%s, %s", t[0] ? "set" : "zero", t[0] <= t[1] && t[1] <= t[2] && t[2] <= t[3] ? "in order" : "out of order");
    clReleaseEvent(e);
}

// later has a command wait for a user event: it was queued before what the device did meanwhile, and started after it.
static void later(const char *label, cl_mem b, size_t size, int write) {
    cl_event gate = clCreateUserEvent(context, &err), e, mark;
    cl_ulong queued = 0, started = 0, between = 0;
    cl_command_queue other = clCreateCommandQueue(context, device, CL_QUEUE_PROFILING_ENABLE, &err);
    if (write) clEnqueueWriteBuffer(queue, b, CL_FALSE, 0, size, host, 1, &gate, &e);
    else clEnqueueReadBuffer(queue, b, CL_FALSE, 0, size, host, 1, &gate, &e);
    clFlush(queue);
    clEnqueueMarkerWithWaitList(other, 0, NULL, &mark);
    clFinish(other);
    clSetUserEventStatus(gate, CL_COMPLETE);
    clFinish(queue);
    clGetEventProfilingInfo(mark, CL_PROFILING_COMMAND_END, sizeof between, &between, NULL);
    clGetEventProfilingInfo(e, CL_PROFILING_COMMAND_QUEUED, sizeof queued, &queued, NULL);
    clGetEventProfilingInfo(e, CL_PROFILING_COMMAND_START, sizeof started, &started, NULL);
    SAY(label, "queued %s, started %s", queued <= between ? "before" : "after", started >= between ? "after" : "before");
    times(L("%s times", label), e);
    clReleaseEvent(mark);
    clReleaseEvent(gate);
    clReleaseCommandQueue(other);
}

int main(void) {
    setup(CL_QUEUE_PROFILING_ENABLE);
    cl_kernel k = clCreateKernel(build(src, ""), "busy", &err);
    cl_mem b = buffer(0, MOST, NULL);
    static const size_t sizes[] = {4, 16384, 65536, MOST};
    size_t one = 1;
    cl_event e;
    clSetKernelArg(k, 0, sizeof b, &b);
    for (int i = 0; i < 4; i++)
        for (int blocking = 0; blocking < 2; blocking++)
            for (int busy = 0; busy < 2; busy++) {
                if (busy) clEnqueueNDRangeKernel(queue, k, 1, NULL, &one, NULL, 0, NULL, NULL);
                clEnqueueReadBuffer(queue, b, blocking, 0, sizes[i], host, 0, NULL, &e);
                clFinish(queue);
                times(L("read %zu blocking %d busy %d", sizes[i], blocking, busy), e);
                if (busy) clEnqueueNDRangeKernel(queue, k, 1, NULL, &one, NULL, 0, NULL, NULL);
                clEnqueueWriteBuffer(queue, b, blocking, 0, sizes[i], host, 0, NULL, &e);
                clFinish(queue);
                times(L("write %zu blocking %d busy %d", sizes[i], blocking, busy), e);
            }
    for (int i = 0; i < 4; i++)
        for (int write = 0; write < 2; write++) later(L("later %s %zu", write ? "write" : "read", sizes[i]), b, sizes[i], write);
    void *m = clEnqueueMapBuffer(queue, b, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, MOST, 0, NULL, &e, &err);
    clFinish(queue);
    times("map", e);
    clEnqueueUnmapMemObject(queue, b, m, 0, NULL, &e);
    clFinish(queue);
    times("unmap", e);
    return 0;
}
