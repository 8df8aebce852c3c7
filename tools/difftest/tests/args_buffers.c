// Every wrong argument in turn: buffers, sub-buffers, transfers.
#include "dt.h"

static void create(void) {
    char host[64] = {0};
    cl_mem m;
    MAKE("create null context", m, clCreateBuffer(NULL, 0, 64, NULL, &err));
    MAKE("create size 0", m, clCreateBuffer(context, 0, 0, NULL, &err));
    cl_ulong max = 0;
    clGetDeviceInfo(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof max, &max, NULL);
    MAKE("create above max alloc", m, clCreateBuffer(context, 0, (size_t)max + 1, NULL, &err));
    MAKE("create SIZE_MAX", m, clCreateBuffer(context, 0, ~(size_t)0, NULL, &err));
    static const struct { cl_mem_flags f; int ptr; const char *n; } flags[] = {
        {0, 0, "0"}, {0, 1, "0+ptr"}, {CL_MEM_READ_ONLY, 0, "RO"}, {CL_MEM_WRITE_ONLY, 0, "WO"}, {CL_MEM_READ_WRITE, 0, "RW"},
        {CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY, 0, "RO|WO"}, {CL_MEM_READ_WRITE | CL_MEM_READ_ONLY, 0, "RW|RO"},
        {CL_MEM_READ_WRITE | CL_MEM_WRITE_ONLY, 0, "RW|WO"}, {CL_MEM_USE_HOST_PTR, 0, "USE"}, {CL_MEM_USE_HOST_PTR, 1, "USE+ptr"},
        {CL_MEM_COPY_HOST_PTR, 0, "COPY"}, {CL_MEM_COPY_HOST_PTR, 1, "COPY+ptr"}, {CL_MEM_ALLOC_HOST_PTR, 0, "ALLOC"},
        {CL_MEM_ALLOC_HOST_PTR, 1, "ALLOC+ptr"}, {CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR, 1, "ALLOC|COPY+ptr"},
        {CL_MEM_ALLOC_HOST_PTR | CL_MEM_USE_HOST_PTR, 1, "ALLOC|USE+ptr"}, {CL_MEM_USE_HOST_PTR | CL_MEM_COPY_HOST_PTR, 1, "USE|COPY+ptr"},
        {CL_MEM_HOST_READ_ONLY, 0, "HRO"}, {CL_MEM_HOST_WRITE_ONLY, 0, "HWO"}, {CL_MEM_HOST_NO_ACCESS, 0, "HNO"},
        {CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_WRITE_ONLY, 0, "HRO|HWO"}, {CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS, 0, "HRO|HNO"},
        {CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_NO_ACCESS, 0, "HWO|HNO"}, {(cl_mem_flags)1 << 40, 0, "1<<40"}, {1 << 6, 0, "1<<6"},
    };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        MAKE(L("create flags %s", flags[i].n), m, clCreateBuffer(context, flags[i].f, 64, flags[i].ptr ? host : NULL, &err));
        if (m) {
            cl_mem_flags got = 0;
            ERR(L("create flags %s info", flags[i].n), clGetMemObjectInfo(m, CL_MEM_FLAGS, sizeof got, &got, NULL));
            SAY(L("create flags %s reported", flags[i].n), "%llx", (unsigned long long)got);
            ERR(L("create flags %s release", flags[i].n), clReleaseMemObject(m));
        }
    }
    SAY("create no errcode", "%s", clCreateBuffer(context, 0, 0, NULL, NULL) ? "object" : "none");
}

static void sub(void) {
    cl_uint bits = 0;
    clGetDeviceInfo(device, CL_DEVICE_MEM_BASE_ADDR_ALIGN, sizeof bits, &bits, NULL);
    size_t align = bits / 8;
    cl_mem root = buffer(CL_MEM_READ_WRITE, align * 8, NULL), ro = buffer(CL_MEM_READ_ONLY, align * 8, NULL), wo = buffer(CL_MEM_WRITE_ONLY, align * 8, NULL);
    cl_mem hro = buffer(CL_MEM_HOST_READ_ONLY, align * 8, NULL), hno = buffer(CL_MEM_HOST_NO_ACCESS, align * 8, NULL);
    cl_mem s;
    cl_buffer_region r = {align, align * 2};
    MAKE("sub null parent", s, clCreateSubBuffer(NULL, 0, CL_BUFFER_CREATE_TYPE_REGION, &r, &err));
    MAKE("sub wrong type", s, clCreateSubBuffer(root, 0, 0x1234, &r, &err));
    MAKE("sub null region", s, clCreateSubBuffer(root, 0, CL_BUFFER_CREATE_TYPE_REGION, NULL, &err));
    static const struct { cl_mem_flags f; const char *n; } flags[] = {
        {0, "0"}, {CL_MEM_READ_ONLY, "RO"}, {CL_MEM_WRITE_ONLY, "WO"}, {CL_MEM_READ_WRITE, "RW"}, {CL_MEM_USE_HOST_PTR, "USE"},
        {CL_MEM_ALLOC_HOST_PTR, "ALLOC"}, {CL_MEM_COPY_HOST_PTR, "COPY"}, {CL_MEM_HOST_READ_ONLY, "HRO"}, {CL_MEM_HOST_WRITE_ONLY, "HWO"}, {CL_MEM_HOST_NO_ACCESS, "HNO"},
        {CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY, "RO|WO"},
    };
    struct { cl_mem m; const char *n; } parents[] = {{root, "RW"}, {ro, "RO"}, {wo, "WO"}, {hro, "HRO"}, {hno, "HNO"}};
    for (size_t p = 0; p < 5; p++)
        for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
            MAKE(L("sub of %s flags %s", parents[p].n, flags[i].n), s, clCreateSubBuffer(parents[p].m, flags[i].f, CL_BUFFER_CREATE_TYPE_REGION, &r, &err));
            if (s) {
                cl_mem_flags got = 0;
                clGetMemObjectInfo(s, CL_MEM_FLAGS, sizeof got, &got, NULL);
                SAY(L("sub of %s flags %s reported", parents[p].n, flags[i].n), "%llx", (unsigned long long)got);
                clReleaseMemObject(s);
            }
        }
    struct { size_t o, n; const char *w; } regions[] = {
        {0, align * 8, "whole"}, {0, align * 8 + 1, "too long"}, {align * 8, 1, "at the end"}, {align, 0, "empty"}, {1, 8, "misaligned"},
        {align / 2, 8, "half aligned"}, {align * 7, align + 1, "over the end"}, {~(size_t)0 - align + 1, align * 2, "wraps"}, {align * 7, align, "last"},
    };
    for (size_t i = 0; i < sizeof regions / sizeof *regions; i++) {
        cl_buffer_region q = {regions[i].o, regions[i].n};
        MAKE(L("sub region %s", regions[i].w), s, clCreateSubBuffer(root, 0, CL_BUFFER_CREATE_TYPE_REGION, &q, &err));
        if (s) clReleaseMemObject(s);
    }
    s = clCreateSubBuffer(root, 0, CL_BUFFER_CREATE_TYPE_REGION, &r, &err);
    must(err, "clCreateSubBuffer");
    cl_mem ss;
    cl_buffer_region q = {0, align};
    MAKE("sub of sub", ss, clCreateSubBuffer(s, 0, CL_BUFFER_CREATE_TYPE_REGION, &q, &err));
    size_t off = 99, size = 99;
    cl_mem parent = NULL;
    ERR("sub offset info", clGetMemObjectInfo(s, CL_MEM_OFFSET, sizeof off, &off, NULL));
    ERR("sub size info", clGetMemObjectInfo(s, CL_MEM_SIZE, sizeof size, &size, NULL));
    ERR("sub parent info", clGetMemObjectInfo(s, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof parent, &parent, NULL));
    SAY("sub facts", "offset %zu size %zu parent %s", off, size, parent == root ? "root" : "other");
    SAY("sub parent's refs", "%u", refs_mem(root));
    clReleaseMemObject(s);
    SAY("sub parent's refs after", "%u", refs_mem(root));
    clReleaseMemObject(root); clReleaseMemObject(ro); clReleaseMemObject(wo); clReleaseMemObject(hro); clReleaseMemObject(hno);
}

static void transfers(void) {
    char host[256] = {0};
    cl_mem m = buffer(0, 64, NULL), m2 = buffer(0, 64, NULL);
    cl_event none = NULL, ev;
    ERR("read null queue", clEnqueueReadBuffer(NULL, m, CL_TRUE, 0, 64, host, 0, NULL, NULL));
    ERR("read null buffer", clEnqueueReadBuffer(queue, NULL, CL_TRUE, 0, 64, host, 0, NULL, NULL));
    ERR("read null ptr", clEnqueueReadBuffer(queue, m, CL_TRUE, 0, 64, NULL, 0, NULL, NULL));
    ERR("read size 0", clEnqueueReadBuffer(queue, m, CL_TRUE, 0, 0, host, 0, NULL, NULL));
    ERR("read over end", clEnqueueReadBuffer(queue, m, CL_TRUE, 1, 64, host, 0, NULL, NULL));
    ERR("read at end", clEnqueueReadBuffer(queue, m, CL_TRUE, 64, 1, host, 0, NULL, NULL));
    ERR("read wraps", clEnqueueReadBuffer(queue, m, CL_TRUE, ~(size_t)0, 2, host, 0, NULL, NULL));
    ERR("read wait null count 1", clEnqueueReadBuffer(queue, m, CL_TRUE, 0, 64, host, 1, NULL, NULL));
    ERR("read wait ptr count 0", clEnqueueReadBuffer(queue, m, CL_TRUE, 0, 64, host, 0, &none, NULL));
    ERR("read wait null event", clEnqueueReadBuffer(queue, m, CL_TRUE, 0, 64, host, 1, &none, NULL));
    ERR("read good", clEnqueueReadBuffer(queue, m, CL_TRUE, 0, 64, host, 0, NULL, &ev));
    ERR("read good release", clReleaseEvent(ev));
    ERR("write null queue", clEnqueueWriteBuffer(NULL, m, CL_TRUE, 0, 64, host, 0, NULL, NULL));
    ERR("write null buffer", clEnqueueWriteBuffer(queue, NULL, CL_TRUE, 0, 64, host, 0, NULL, NULL));
    ERR("write null ptr", clEnqueueWriteBuffer(queue, m, CL_TRUE, 0, 64, NULL, 0, NULL, NULL));
    ERR("write size 0", clEnqueueWriteBuffer(queue, m, CL_TRUE, 0, 0, host, 0, NULL, NULL));
    ERR("write over end", clEnqueueWriteBuffer(queue, m, CL_TRUE, 60, 5, host, 0, NULL, NULL));
    ERR("write wraps", clEnqueueWriteBuffer(queue, m, CL_TRUE, 8, ~(size_t)0 - 4, host, 0, NULL, NULL));
    ERR("write wait null count 1", clEnqueueWriteBuffer(queue, m, CL_TRUE, 0, 64, host, 1, NULL, NULL));
    ERR("copy null queue", clEnqueueCopyBuffer(NULL, m, m2, 0, 0, 64, 0, NULL, NULL));
    ERR("copy null src", clEnqueueCopyBuffer(queue, NULL, m2, 0, 0, 64, 0, NULL, NULL));
    ERR("copy null dst", clEnqueueCopyBuffer(queue, m, NULL, 0, 0, 64, 0, NULL, NULL));
    ERR("copy size 0", clEnqueueCopyBuffer(queue, m, m2, 0, 0, 0, 0, NULL, NULL));
    ERR("copy src over", clEnqueueCopyBuffer(queue, m, m2, 1, 0, 64, 0, NULL, NULL));
    ERR("copy dst over", clEnqueueCopyBuffer(queue, m, m2, 0, 1, 64, 0, NULL, NULL));
    ERR("copy overlap", clEnqueueCopyBuffer(queue, m, m, 0, 8, 16, 0, NULL, NULL));
    ERR("copy touching", clEnqueueCopyBuffer(queue, m, m, 0, 16, 16, 0, NULL, NULL));
    ERR("copy onto itself", clEnqueueCopyBuffer(queue, m, m, 0, 0, 16, 0, NULL, NULL));
    ERR("fill null queue", clEnqueueFillBuffer(NULL, m, host, 4, 0, 64, 0, NULL, NULL));
    ERR("fill null buffer", clEnqueueFillBuffer(queue, NULL, host, 4, 0, 64, 0, NULL, NULL));
    ERR("fill null pattern", clEnqueueFillBuffer(queue, m, NULL, 4, 0, 64, 0, NULL, NULL));
    for (size_t n = 0; n <= 9; n++) ERR(L("fill pattern size %zu", n), clEnqueueFillBuffer(queue, m, host, n, 0, 0x40, 0, NULL, NULL));
    ERR("fill pattern 128", clEnqueueFillBuffer(queue, m, host, 128, 0, 0, 0, NULL, NULL));
    ERR("fill pattern 256", clEnqueueFillBuffer(queue, m, host, 256, 0, 0, 0, NULL, NULL));
    ERR("fill size 0", clEnqueueFillBuffer(queue, m, host, 4, 0, 0, 0, NULL, NULL));
    ERR("fill odd size", clEnqueueFillBuffer(queue, m, host, 4, 0, 6, 0, NULL, NULL));
    ERR("fill odd offset", clEnqueueFillBuffer(queue, m, host, 4, 2, 8, 0, NULL, NULL));
    ERR("fill over", clEnqueueFillBuffer(queue, m, host, 4, 4, 64, 0, NULL, NULL));
    ERR("migrate null queue", clEnqueueMigrateMemObjects(NULL, 1, &m, 0, 0, NULL, NULL));
    ERR("migrate none", clEnqueueMigrateMemObjects(queue, 0, NULL, 0, 0, NULL, NULL));
    ERR("migrate null list", clEnqueueMigrateMemObjects(queue, 1, NULL, 0, 0, NULL, NULL));
    ERR("migrate flags", clEnqueueMigrateMemObjects(queue, 1, &m, 1 << 10, 0, NULL, NULL));
    ERR("migrate good", clEnqueueMigrateMemObjects(queue, 1, &m, CL_MIGRATE_MEM_OBJECT_HOST, 0, NULL, NULL));
    ERR("migrate undefined", clEnqueueMigrateMemObjects(queue, 1, &m, CL_MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED, 0, NULL, NULL));
    cl_mem_flags access[] = {CL_MEM_HOST_READ_ONLY, CL_MEM_HOST_WRITE_ONLY, CL_MEM_HOST_NO_ACCESS};
    for (int i = 0; i < 3; i++) {
        cl_mem h = buffer(access[i], 64, NULL);
        size_t o[3] = {0}, r[3] = {8, 2, 1};
        ERR(L("access %d read", i), clEnqueueReadBuffer(queue, h, CL_TRUE, 0, 64, host, 0, NULL, NULL));
        ERR(L("access %d write", i), clEnqueueWriteBuffer(queue, h, CL_TRUE, 0, 64, host, 0, NULL, NULL));
        ERR(L("access %d read rect", i), clEnqueueReadBufferRect(queue, h, CL_TRUE, o, o, r, 0, 0, 0, 0, host, 0, NULL, NULL));
        ERR(L("access %d write rect", i), clEnqueueWriteBufferRect(queue, h, CL_TRUE, o, o, r, 0, 0, 0, 0, host, 0, NULL, NULL));
        cl_map_flags mf[] = {CL_MAP_READ, CL_MAP_WRITE, CL_MAP_WRITE_INVALIDATE_REGION, CL_MAP_READ | CL_MAP_WRITE};
        for (int k = 0; k < 4; k++) {
            void *p;
            MAKE(L("access %d map %d", i, k), p, clEnqueueMapBuffer(queue, h, CL_TRUE, mf[k], 0, 64, 0, NULL, NULL, &err));
            if (p) clEnqueueUnmapMemObject(queue, h, p, 0, NULL, NULL);
        }
        clFinish(queue);
        clReleaseMemObject(h);
    }
    cl_context other = clCreateContext(NULL, 1, &device, NULL, NULL, &err);
    must(err, "second context");
    cl_mem foreign = clCreateBuffer(other, 0, 64, NULL, &err);
    cl_event alien = clCreateUserEvent(other, &err);
    ERR("read of another context's buffer", clEnqueueReadBuffer(queue, foreign, CL_TRUE, 0, 64, host, 0, NULL, NULL));
    ERR("write of another context's buffer", clEnqueueWriteBuffer(queue, foreign, CL_TRUE, 0, 64, host, 0, NULL, NULL));
    ERR("copy to another context's buffer", clEnqueueCopyBuffer(queue, m, foreign, 0, 0, 64, 0, NULL, NULL));
    ERR("fill of another context's buffer", clEnqueueFillBuffer(queue, foreign, host, 4, 0, 64, 0, NULL, NULL));
    ERR("wait for another context's event", clEnqueueReadBuffer(queue, m, CL_FALSE, 0, 64, host, 1, &alien, NULL));
    clSetUserEventStatus(alien, CL_COMPLETE);
    clReleaseEvent(alien); clReleaseMemObject(foreign); clReleaseContext(other);
    ERR("finish", clFinish(queue));
    clReleaseMemObject(m); clReleaseMemObject(m2);
}

static void info(void) {
    cl_mem m = buffer(CL_MEM_READ_ONLY, 64, NULL);
    size_t n = 0, v = 0;
    char big[64];
    ERR("info null", clGetMemObjectInfo(NULL, CL_MEM_SIZE, sizeof v, &v, NULL));
    ERR("info unknown", clGetMemObjectInfo(m, 0x9999, sizeof v, &v, NULL));
    ERR("info small", clGetMemObjectInfo(m, CL_MEM_SIZE, 4, &v, NULL));
    ERR("info size only", clGetMemObjectInfo(m, CL_MEM_SIZE, 0, NULL, &n));
    SAY("info size", "%zu", n);
    ERR("info nothing", clGetMemObjectInfo(m, CL_MEM_SIZE, 0, NULL, NULL));
    static const cl_uint all[] = {CL_MEM_TYPE, CL_MEM_FLAGS, CL_MEM_SIZE, CL_MEM_MAP_COUNT, CL_MEM_REFERENCE_COUNT, CL_MEM_OFFSET, CL_MEM_USES_SVM_POINTER, CL_MEM_HOST_PTR, CL_MEM_ASSOCIATED_MEMOBJECT};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        memset(big, 0, sizeof big);
        n = 0;
        cl_int e = clGetMemObjectInfo(m, all[i], sizeof big, big, &n);
        SAY(L("info %x", all[i]), "%s size %zu value %016llx", dt_name(e), n, (unsigned long long)dt_hash(big, n < 64 ? n : 64));
    }
    ERR("info properties", clGetMemObjectInfo(m, CL_MEM_PROPERTIES, sizeof big, big, &n));
    SAY("info properties size", "%zu", n);
    size_t s;
    ERR("image info of a buffer", clGetImageInfo(m, CL_IMAGE_WIDTH, sizeof s, &s, NULL));
    ERR("retain null", clRetainMemObject(NULL));
    ERR("release null", clReleaseMemObject(NULL));
    ERR("destructor null", clSetMemObjectDestructorCallback(m, NULL, NULL));
    ERR("destructor of null", clSetMemObjectDestructorCallback(NULL, NULL, NULL));
    ERR("release", clReleaseMemObject(m));
}

int main(void) {
    setup(0);
    create();
    sub();
    transfers();
    info();
    ERR("release queue", clReleaseCommandQueue(queue));
    ERR("release context", clReleaseContext(context));
    return 0;
}
