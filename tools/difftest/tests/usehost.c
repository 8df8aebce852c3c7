// CL_MEM_USE_HOST_PTR: what a program sees in its own memory, at which point.
#include "dt.h"
#include <sys/mman.h>

static const char *src =
    "kernel void twice(global int *a) { int i = get_global_id(0); a[i] = 2 * a[i] + 1; }\n"
    "kernel void sum(global const int *a, global int *out, int n) { int s = 0; for (int i = 0; i < n; i++) s += a[i]; *out = s; }\n";

// The program's memory around a release: what a command left is there after a synchronisation that it came before, on any queue, and nothing
// is written there once the buffer is released, when the program has other uses for it, or none.
enum { Rounds = 300, Size = 128 << 10, Words = Size / 4, Other = 512 << 10 };

static int wrong(const int *own, int round) {
    for (int i = 0; i < Words; i++)
        if (own[i] != 2 * (i + round) + 1) return 1;
    return 0;
}

static int touched(const unsigned char *own) {
    for (int i = 0; i < Size; i++)
        if (own[i] != 0xC5) return 1;
    return 0;
}

static void released(cl_kernel twice) {
    cl_device_id all[2]; // the first one is another than queue's in a context that spans
    clGetContextInfo(context, CL_CONTEXT_DEVICES, sizeof all, all, NULL);
    cl_command_queue elsewhere = clCreateCommandQueue(context, all[0], 0, &err);
    char *out = malloc(Other);
    cl_mem other = buffer(0, Other, NULL);
    int stale = 0, finished = 0, late = 0;
    unsigned char *before = NULL;
    for (int round = 0; round < Rounds; round++) {
        int *own = mmap(NULL, Size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (int i = 0; i < Words; i++) own[i] = i + round;
        cl_mem m = buffer(CL_MEM_USE_HOST_PTR, Size, own);
        clSetKernelArg(twice, 0, sizeof m, &m);
        size_t g = Words, n = round % 3 ? Other : 4096;
        cl_event ev = NULL;
        must(clEnqueueNDRangeKernel(queue, twice, 1, NULL, &g, NULL, 0, NULL, round % 5 ? NULL : &ev), "launch");
        must(clEnqueueReadBuffer(ev ? elsewhere : queue, other, CL_TRUE, 0, n, out, !!ev, ev ? &ev : NULL, NULL), "read");
        stale += wrong(own, round);
        if (round % 2) clFinish(ev ? elsewhere : queue);
        finished += wrong(own, round);
        must(clReleaseMemObject(m), "release");
        if (ev) clReleaseEvent(ev);
        memset(own, 0xC5, Size);
        if (before) late += touched(before);
        if (before) munmap(before, Size);
        before = (unsigned char *)own;
        if (round % 4) continue;
        munmap(own, Size);
        before = NULL;
    }
    clFinish(queue);
    SAY("stale after a blocking read", "%d of %d", stale, Rounds);
    SAY("stale after a finish", "%d of %d", finished, Rounds);
    SAY("written after the release", "%d of %d", late + (before && touched(before)), Rounds);
}

static void destroyed(cl_mem m, void *at) { *(volatile int *)at = 1; }

// A release while a command that writes the memory waits for the program: without a destructor callback the memory is the program's at once.
static void gated(cl_kernel twice) {
    int *own = mmap(NULL, Size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static int over;
    for (int i = 0; i < Words; i++) own[i] = i;
    cl_mem m = buffer(CL_MEM_USE_HOST_PTR, Size, own);
    clSetMemObjectDestructorCallback(m, destroyed, &over);
    clSetKernelArg(twice, 0, sizeof m, &m);
    cl_event gate = clCreateUserEvent(context, &err);
    size_t g = Words;
    must(clEnqueueNDRangeKernel(queue, twice, 1, NULL, &g, NULL, 1, &gate, NULL), "launch");
    cl_int status = clReleaseMemObject(m);
    SAY("release behind a user event", "%s, %s", dt_name(status), over ? "destroyed" : "kept");
    clSetUserEventStatus(gate, CL_COMPLETE);
    clFinish(queue);
    AWAIT(*(volatile int *)&over);
    SAY("results when it is destroyed", "%s, %s", over ? "destroyed" : "kept", wrong(own, 0) ? "stale" : "there");
}

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
    released(twice);
    gated(twice);
    return 0;
}
