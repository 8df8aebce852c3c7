// Mapping: flags, offsets, counts, contents; the program's own memory.
#include "dt.h"

static unsigned char pattern[4096], got[4096];

static void contents(const char *label, cl_mem m, size_t n) {
    memset(got, 0xEE, sizeof got);
    cl_int e = clEnqueueReadBuffer(queue, m, CL_TRUE, 0, n, got, 0, NULL, NULL);
    SAY(label, "%s %016llx", dt_name(e), (unsigned long long)dt_hash(got, n));
}

static void errors(cl_mem m) {
    void *p;
    cl_event none = NULL;
    MAKE("map null queue", p, clEnqueueMapBuffer(NULL, m, CL_TRUE, CL_MAP_READ, 0, 64, 0, NULL, NULL, &err));
    MAKE("map null buffer", p, clEnqueueMapBuffer(queue, NULL, CL_TRUE, CL_MAP_READ, 0, 64, 0, NULL, NULL, &err));
    MAKE("map size 0", p, clEnqueueMapBuffer(queue, m, CL_TRUE, CL_MAP_READ, 0, 0, 0, NULL, NULL, &err));
    MAKE("map over", p, clEnqueueMapBuffer(queue, m, CL_TRUE, CL_MAP_READ, 1, 4096, 0, NULL, NULL, &err));
    MAKE("map wraps", p, clEnqueueMapBuffer(queue, m, CL_TRUE, CL_MAP_READ, ~(size_t)0, 2, 0, NULL, NULL, &err));
    static const cl_map_flags flags[] = {0x100, CL_MAP_READ | CL_MAP_WRITE_INVALIDATE_REGION, CL_MAP_WRITE | CL_MAP_WRITE_INVALIDATE_REGION};
    // On a buffer of their own: PoCL, which takes them, now and then forgets to count such an unmap.
    cl_mem other = clCreateBuffer(context, CL_MEM_READ_WRITE, 4096, NULL, NULL);
    for (int i = 0; i < 3; i++) {
        MAKE(L("map flags %llx", (unsigned long long)flags[i]), p, clEnqueueMapBuffer(queue, other, CL_TRUE, flags[i], 0, 64, 0, NULL, NULL, &err));
        if (p) clEnqueueUnmapMemObject(queue, other, p, 0, NULL, NULL);
    }
    clFinish(queue);
    clReleaseMemObject(other);
    MAKE("map wait list", p, clEnqueueMapBuffer(queue, m, CL_TRUE, CL_MAP_READ, 0, 64, 1, NULL, NULL, &err));
    MAKE("map wait list null event", p, clEnqueueMapBuffer(queue, m, CL_TRUE, CL_MAP_READ, 0, 64, 1, &none, NULL, &err));
    SAY("map count after errors", "%u", maps_mem(m));
    ERR("unmap null queue", clEnqueueUnmapMemObject(NULL, m, pattern, 0, NULL, NULL));
    ERR("unmap null buffer", clEnqueueUnmapMemObject(queue, NULL, pattern, 0, NULL, NULL));
    ERR("unmap null pointer", clEnqueueUnmapMemObject(queue, m, NULL, 0, NULL, NULL));
    ERR("unmap foreign pointer", clEnqueueUnmapMemObject(queue, m, pattern, 0, NULL, NULL));
}

static void through(const char *kind, cl_mem m, unsigned char *own) {
    size_t n = 4096;
    must(clEnqueueWriteBuffer(queue, m, CL_TRUE, 0, n, pattern, 0, NULL, NULL), "write");
    for (int blocking = 0; blocking < 2; blocking++) {
        cl_event ev = NULL;
        unsigned char *p;
        MAKE(L("%s map read %d", kind, blocking), p, clEnqueueMapBuffer(queue, m, blocking, CL_MAP_READ, 100, 1000, 0, NULL, &ev, &err));
        if (!p) continue;
        if (!blocking) must(clWaitForEvents(1, &ev), "wait");
        HASH(L("%s map read %d bytes", kind, blocking), p, 1000);
        SAY(L("%s map read %d count", kind, blocking), "%u", maps_mem(m));
        if (own) SAY(L("%s map read %d place", kind, blocking), "%s", p == own + 100 ? "host_ptr + offset" : "elsewhere");
        clReleaseEvent(ev);
        ERR(L("%s unmap %d", kind, blocking), clEnqueueUnmapMemObject(queue, m, p, 0, NULL, NULL));
        clFinish(queue);
        UNMAPPED(m);
        SAY(L("%s unmap %d count", kind, blocking), "%u", maps_mem(m));
    }
    unsigned char *a, *b;
    MAKE(L("%s map write", kind), a, clEnqueueMapBuffer(queue, m, CL_TRUE, CL_MAP_WRITE, 0, 256, 0, NULL, NULL, &err));
    MAKE(L("%s map write second", kind), b, clEnqueueMapBuffer(queue, m, CL_TRUE, CL_MAP_WRITE, 512, 256, 0, NULL, NULL, &err));
    SAY(L("%s two maps count", kind), "%u", maps_mem(m));
    if (a && b) {
        memset(a, 0x11, 256);
        memset(b, 0x22, 256);
        ERR(L("%s unmap b", kind), clEnqueueUnmapMemObject(queue, m, b, 0, NULL, NULL));
        ERR(L("%s unmap a", kind), clEnqueueUnmapMemObject(queue, m, a, 0, NULL, NULL));
    }
    clFinish(queue);
    UNMAPPED(m);
    SAY(L("%s no map count", kind), "%u", maps_mem(m));
    contents(L("%s after map write", kind), m, n);
    MAKE(L("%s map rw", kind), a, clEnqueueMapBuffer(queue, m, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 64, 128, 0, NULL, NULL, &err));
    if (a) {
        for (int i = 0; i < 128; i++) a[i] ^= 0x55;
        ERR(L("%s unmap rw", kind), clEnqueueUnmapMemObject(queue, m, a, 0, NULL, NULL));
    }
    MAKE(L("%s map invalidate", kind), a, clEnqueueMapBuffer(queue, m, CL_TRUE, CL_MAP_WRITE_INVALIDATE_REGION, 1024, 64, 0, NULL, NULL, &err));
    if (a) {
        memset(a, 0x77, 64);
        ERR(L("%s unmap invalidate", kind), clEnqueueUnmapMemObject(queue, m, a, 0, NULL, NULL));
    }
    contents(L("%s after all maps", kind), m, n);
    MAKE(L("%s map once more", kind), a, clEnqueueMapBuffer(queue, m, CL_TRUE, CL_MAP_READ, 0, n, 0, NULL, NULL, &err));
    if (a) {
        ERR(L("%s unmap once", kind), clEnqueueUnmapMemObject(queue, m, a, 0, NULL, NULL));
        clFinish(queue);
        ERR(L("%s unmap twice", kind), clEnqueueUnmapMemObject(queue, m, a, 0, NULL, NULL));
    }
}

int main(void) {
    setup(0);
    fill(pattern, sizeof pattern, 5);
    unsigned char *own = aligned_alloc(4096, 4096);
    memcpy(own, pattern, 4096);
    cl_mem plain = buffer(0, 4096, NULL), alloc = buffer(CL_MEM_ALLOC_HOST_PTR, 4096, NULL), use = buffer(CL_MEM_USE_HOST_PTR, 4096, own);
    cl_mem copy = buffer(CL_MEM_COPY_HOST_PTR, 4096, own), both = buffer(CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR, 4096, own);
    contents("use starts as", use, 4096);
    contents("copy starts as", copy, 4096);
    contents("alloc+copy starts as", both, 4096);
    void *hp = NULL;
    clGetMemObjectInfo(use, CL_MEM_HOST_PTR, sizeof hp, &hp, NULL);
    SAY("use's host_ptr", "%s", hp == own ? "ours" : hp ? "another" : "null");
    clGetMemObjectInfo(copy, CL_MEM_HOST_PTR, sizeof hp, &hp, NULL);
    SAY("copy's host_ptr", "%s", hp == own ? "ours" : hp ? "another" : "null");
    errors(plain);
    through("plain", plain, NULL);
    through("alloc", alloc, NULL);
    through("use", use, own);
    through("copy", copy, NULL);
    cl_buffer_region r = {1024, 1024};
    cl_mem sub = clCreateSubBuffer(use, 0, CL_BUFFER_CREATE_TYPE_REGION, &r, &err);
    must(err, "sub");
    clGetMemObjectInfo(sub, CL_MEM_HOST_PTR, sizeof hp, &hp, NULL);
    SAY("sub of use's host_ptr", "%s", hp == own + 1024 ? "host_ptr + origin" : hp ? "another" : "null");
    unsigned char *p = clEnqueueMapBuffer(queue, sub, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 16, 32, 0, NULL, NULL, &err);
    SAY("sub of use mapped", "%s at %s", dt_name(err), p == own + 1024 + 16 ? "host_ptr + origin + offset" : "another place");
    memset(p, 0x99, 32);
    clEnqueueUnmapMemObject(queue, sub, p, 0, NULL, NULL);
    contents("use after its sub was mapped", use, 4096);
    clReleaseMemObject(sub);

    // A mapping that waits for a user event, and one whose event fails.
    cl_event gate = clCreateUserEvent(context, &err), done;
    p = clEnqueueMapBuffer(queue, plain, CL_FALSE, CL_MAP_WRITE, 0, 64, 1, &gate, &done, &err);
    SAY("gated map", "%s", dt_name(err));
    cl_int status = 99;
    clGetEventInfo(done, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL);
    SAY("gated map waits", "%s", status > CL_COMPLETE ? "yes" : "no");
    clSetUserEventStatus(gate, CL_COMPLETE);
    ERR("gated map done", clWaitForEvents(1, &done));
    memset(p, 0x31, 64);
    clEnqueueUnmapMemObject(queue, plain, p, 0, NULL, NULL);
    contents("after the gated map", plain, 4096);
    clReleaseEvent(gate); clReleaseEvent(done);

    // A buffer that is released while mapped, and a pattern written by a kernel into mapped ALLOC memory.
    p = clEnqueueMapBuffer(queue, copy, CL_TRUE, CL_MAP_READ, 0, 64, 0, NULL, NULL, &err);
    ERR("release while mapped", clReleaseMemObject(copy));
    HASH("still readable", p, 64);
    clReleaseMemObject(plain); clReleaseMemObject(alloc); clReleaseMemObject(use); clReleaseMemObject(both);
    return 0;
}
