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
    void *m = clEnqueueMapBuffer(queue, b, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, MOST, 0, NULL, &e, &err);
    clFinish(queue);
    times("map", e);
    clEnqueueUnmapMemObject(queue, b, m, 0, NULL, &e);
    clFinish(queue);
    times("unmap", e);
    return 0;
}
