// CL_MEM_USE_HOST_PTR: what a program sees in its own memory, at which point.
#include "dt.h"

static const char *src =
    "kernel void twice(global int *a) { int i = get_global_id(0); a[i] = 2 * a[i] + 1; }\n"
    "kernel void sum(global const int *a, global int *out, int n) { int s = 0; for (int i = 0; i < n; i++) s += a[i]; *out = s; }\n";

int main(void) {
    setup(0);
    enum { N = 1024 };
    int *own = aligned_alloc(4096, N * sizeof(int)), out = 0, n = N;
    for (int i = 0; i < N; i++) own[i] = i;
    cl_mem m = buffer(CL_MEM_USE_HOST_PTR, N * sizeof(int), own), o = buffer(0, sizeof(int), NULL);
    cl_program p = build(src, "");
    cl_kernel twice = clCreateKernel(p, "twice", &err), sum = clCreateKernel(p, "sum", &err);
    size_t g = N, one = 1;
    clSetKernelArg(twice, 0, sizeof m, &m);
    clSetKernelArg(sum, 0, sizeof m, &m);
    clSetKernelArg(sum, 1, sizeof o, &o);
    clSetKernelArg(sum, 2, sizeof n, &n);
    ERR("launch", clEnqueueNDRangeKernel(queue, twice, 1, NULL, &g, NULL, 0, NULL, NULL));
    int *q = clEnqueueMapBuffer(queue, m, CL_TRUE, CL_MAP_READ, 0, N * sizeof(int), 0, NULL, NULL, &err);
    SAY("mapped", "%s at %s", dt_name(err), q == own ? "host_ptr" : "another place");
    HASH("after a map", own, N * sizeof(int));
    clEnqueueUnmapMemObject(queue, m, q, 0, NULL, NULL);
    clEnqueueNDRangeKernel(queue, twice, 1, NULL, &g, NULL, 0, NULL, NULL);
    ERR("finish", clFinish(queue));
    HASH("after finish alone", own, N * sizeof(int));
    for (int i = 0; i < N; i++) own[i] = 7 * i; // no map: what many programs do on CPU devices
    clEnqueueNDRangeKernel(queue, sum, 1, NULL, &one, NULL, 0, NULL, NULL);
    clEnqueueReadBuffer(queue, o, CL_TRUE, 0, sizeof out, &out, 0, NULL, NULL);
    SAY("sum of what the host wrote without a map", "%d", out);
    cl_event ev;
    clEnqueueNDRangeKernel(queue, twice, 1, NULL, &g, NULL, 0, NULL, &ev);
    ERR("wait", clWaitForEvents(1, &ev));
    HASH("after waiting for an event", own, N * sizeof(int));
    clReleaseEvent(ev);
    clEnqueueNDRangeKernel(queue, twice, 1, NULL, &g, NULL, 0, NULL, NULL);
    int r[N];
    clEnqueueReadBuffer(queue, m, CL_TRUE, 0, sizeof r, r, 0, NULL, NULL);
    HASH("read into another place", r, sizeof r);
    ERR("read onto itself", clEnqueueReadBuffer(queue, m, CL_TRUE, 0, sizeof r, own, 0, NULL, NULL));
    HASH("after a read onto itself", own, sizeof r);
    q = clEnqueueMapBuffer(queue, m, CL_TRUE, CL_MAP_WRITE_INVALIDATE_REGION, 0, N * sizeof(int), 0, NULL, NULL, &err);
    for (int i = 0; i < N; i++) q[i] = i % 10;
    clEnqueueUnmapMemObject(queue, m, q, 0, NULL, NULL);
    clEnqueueNDRangeKernel(queue, sum, 1, NULL, &one, NULL, 0, NULL, NULL);
    clEnqueueReadBuffer(queue, o, CL_TRUE, 0, sizeof out, &out, 0, NULL, NULL);
    SAY("sum of what was mapped", "%d", out);
    cl_mem other = buffer(CL_MEM_COPY_HOST_PTR, sizeof r, r);
    ERR("copy into it", clEnqueueCopyBuffer(queue, other, m, 0, 0, sizeof r, 0, NULL, NULL));
    clFinish(queue);
    HASH("after a copy into it", own, sizeof r);
    int three = 3;
    ERR("fill it", clEnqueueFillBuffer(queue, m, &three, sizeof three, 16, 160, 0, NULL, NULL));
    clFinish(queue);
    HASH("after a fill", own, sizeof r);
    cl_buffer_region reg = {2048, 1024};
    cl_mem sub = clCreateSubBuffer(m, 0, CL_BUFFER_CREATE_TYPE_REGION, &reg, &err);
    size_t half = 256;
    clSetKernelArg(twice, 0, sizeof sub, &sub);
    ERR("launch on its sub-buffer", clEnqueueNDRangeKernel(queue, twice, 1, NULL, &half, NULL, 0, NULL, NULL));
    clFinish(queue);
    HASH("after a kernel on its sub-buffer", own, sizeof r);
    // Unaligned memory of the program's own.
    char *raw = malloc(4096 + 64);
    memset(raw, 1, 4096 + 64);
    cl_mem odd = clCreateBuffer(context, CL_MEM_USE_HOST_PTR, 1024, raw + 4, &err);
    SAY("misaligned host_ptr", "%s", dt_name(err));
    if (odd) {
        size_t c = 256;
        clSetKernelArg(twice, 0, sizeof odd, &odd);
        clEnqueueNDRangeKernel(queue, twice, 1, NULL, &c, NULL, 0, NULL, NULL);
        clEnqueueReadBuffer(queue, odd, CL_TRUE, 0, 1024, r, 0, NULL, NULL);
        HASH("misaligned result", r, 1024);
        q = clEnqueueMapBuffer(queue, odd, CL_TRUE, CL_MAP_READ, 0, 1024, 0, NULL, NULL, &err);
        SAY("misaligned mapped at", "%s", (char *)q == raw + 4 ? "host_ptr" : "another place");
        HASH("misaligned guards", raw + 4 + 1024, 64);
    }
    return 0;
}
