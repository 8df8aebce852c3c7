// Shared virtual memory: allocations, their commands, pointers between them, buffers over them. A device of another
// machine has the coarse grain alone.
#include "dt.h"

static const char *source =
    "typedef struct node { global struct node *next; global struct node *left, *right; ulong value; } node;\n"
    "kernel void walk(global node *n, global ulong *out) {\n"
    "  ulong sum = 0, length = 0;\n"
    "  for (; n; n = n->next) { sum = sum * 31 + n->value; n->value ^= 0x5555; length++; }\n"
    "  out[0] = sum; out[1] = length;\n"
    "}\n"
    // A search tree in the pool, built by the device: the program follows the device's pointers.
    "kernel void tree(global node *pool, global ulong *root, uint n) {\n"
    "  global node *top = 0;\n"
    "  for (uint i = 0; i < n; i++) {\n"
    "    global node *x = pool + i;\n"
    "    x->left = 0; x->right = 0; x->next = 0; x->value = (i * 2654435761u) % 1000003;\n"
    "    if (!top) { top = x; continue; }\n"
    "    for (global node *at = top;;) {\n"
    "      if (x->value < at->value) { if (!at->left) { at->left = x; break; } at = at->left; }\n"
    "      else { if (!at->right) { at->right = x; break; } at = at->right; }\n"
    "    }\n"
    "  }\n"
    "  *root = (ulong)top;\n"
    "}\n"
    "kernel void add(global uint *p, uint n) { p[get_global_id(0)] += n; }\n"
    "kernel void count(global volatile uint *p) { for (int i = 0; i < 100; i++) atomic_inc(p + (get_global_id(0) & 3)); }\n"
    "kernel void plain(uint n, local uint *l, global uint *p) { if (get_global_id(0) == 0) { l[0] = n; p[0] = l[0]; } }\n";

typedef struct node {
    struct node *next, *left, *right;
    cl_ulong value;
} node;

static cl_kernel walk, tree, add, count, plain;
static cl_device_svm_capabilities caps;
static cl_device_id other; // the context's first, where it has several; else the same

static void *alloc(size_t n) {
    void *p = clSVMAlloc(context, CL_MEM_READ_WRITE, n, 0);
    if (!p) must(CL_MEM_OBJECT_ALLOCATION_FAILURE, "clSVMAlloc");
    return p;
}

static void map(cl_map_flags flags, void *p, size_t n) { must(clEnqueueSVMMap(queue, CL_TRUE, flags, p, n, 0, NULL, NULL), "map"); }
static void unmap(void *p) { must(clEnqueueSVMUnmap(queue, p, 0, NULL, NULL), "unmap"); }
static void run(cl_kernel k, size_t n) { must(clEnqueueNDRangeKernel(queue, k, 1, NULL, &n, NULL, 0, NULL, NULL), "launch"); }

static void allocations(void) {
    static const struct { cl_svm_mem_flags flags; size_t size; cl_uint align; } list[] = {
        {0, 1, 0}, {CL_MEM_READ_WRITE, 4096, 0}, {CL_MEM_READ_ONLY, 100, 1}, {CL_MEM_WRITE_ONLY, 1 << 20, 64}, {0, 0, 0},
        {0, 64, 3}, {0, 64, 256}, {CL_MEM_READ_WRITE | CL_MEM_READ_ONLY, 64, 0}, {CL_MEM_SVM_ATOMICS, 64, 0},
        {0, (size_t)1 << 50, 0}, {0, 64, 128},
    };
    for (unsigned i = 0; i < sizeof list / sizeof *list; i++) {
        char *p = clSVMAlloc(context, list[i].flags, list[i].size, list[i].align);
        SAY(L("alloc %u", i), "%s%s", p ? "there" : "none", p && list[i].align && (uintptr_t)p % list[i].align ? " misaligned" : "");
        clSVMFree(context, p);
    }
    clSVMFree(context, NULL);
    SAY("alloc without a context", "%s", clSVMAlloc(NULL, 0, 64, 0) ? "there" : "none");
    // Many, of all sizes, none over another.
    enum { N = 500 };
    static unsigned char *all[N];
    static size_t size[N];
    unsigned bad = 0;
    for (int i = 0; i < N; i++) {
        size[i] = 1 + (size_t)i * i * 7 % (i % 50 ? 5000 : 700000);
        all[i] = alloc(size[i]);
        map(CL_MAP_WRITE_INVALIDATE_REGION, all[i], size[i]);
        memset(all[i], i, size[i]);
        unmap(all[i]);
        if (i % 3 == 2) clFinish(queue), clSVMFree(context, all[i - 1]), all[i - 1] = NULL;
    }
    for (int i = 0; i < N; i++) {
        if (!all[i]) continue;
        map(CL_MAP_READ, all[i], size[i]);
        for (size_t j = 0; j < size[i]; j++) bad += all[i][j] != (unsigned char)i;
        unmap(all[i]);
    }
    clFinish(queue);
    for (int i = 0; i < N; i++) clSVMFree(context, all[i]);
    SAY("bytes of others in 500 allocations", "%u", bad);
}

// A list whose nodes lie in allocations of their own.
static void lists(void) {
    enum { N = 100 };
    void *all[N];
    cl_ulong *out = alloc(16), got[2];
    for (int i = 0; i < N; i++) all[i] = alloc(i % 10 ? sizeof(node) : 3 << 20);
    for (int i = 0; i < N; i++) {
        node *x = all[i];
        map(CL_MAP_WRITE, x, sizeof *x);
        x->next = i + 1 < N ? all[i + 1] : NULL;
        x->value = (cl_ulong)i * 1234567 + 1;
        unmap(x);
    }
    ERR("list arg 0", clSetKernelArgSVMPointer(walk, 0, all[0]));
    ERR("list arg 1", clSetKernelArgSVMPointer(walk, 1, out));
    ERR("list reach", clSetKernelExecInfo(walk, CL_KERNEL_EXEC_INFO_SVM_PTRS, sizeof all, all));
    for (int round = 0; round < 3; round++) {
        cl_kernel k = round == 1 ? clCloneKernel(walk, &err) : walk;
        run(k, 1);
        ERR(L("list %d read", round), clEnqueueSVMMemcpy(queue, CL_TRUE, got, out, sizeof got, 0, NULL, NULL));
        SAY(L("list %d", round), "%016llx %llu", (unsigned long long)got[0], (unsigned long long)got[1]);
        if (k != walk) clReleaseKernel(k);
    }
    node *x = all[50];
    map(CL_MAP_READ, x, sizeof *x);
    SAY("list node 50", "%llu", (unsigned long long)x->value);
    unmap(x);
    must(clSetKernelArgSVMPointer(walk, 0, all[N - 2]), "arg");
    run(walk, 1);
    clEnqueueSVMMemcpy(queue, CL_TRUE, got, out, sizeof got, 0, NULL, NULL);
    SAY("list end", "%016llx %llu", (unsigned long long)got[0], (unsigned long long)got[1]);
    must(clSetKernelArgSVMPointer(walk, 0, NULL), "arg");
    run(walk, 1);
    clEnqueueSVMMemcpy(queue, CL_TRUE, got, out, sizeof got, 0, NULL, NULL);
    SAY("list of nothing", "%016llx %llu", (unsigned long long)got[0], (unsigned long long)got[1]);
    clFinish(queue);
    for (int i = 0; i < N; i++) clSVMFree(context, all[i]);
    clSVMFree(context, out);
}

static unsigned depth(const node *n, cl_ulong *hash) {
    if (!n) return 0;
    unsigned l = depth(n->left, hash);
    *hash = *hash * 1099511628211u + n->value;
    unsigned r = depth(n->right, hash);
    return 1 + (l > r ? l : r);
}

static void trees(void) {
    cl_uint n = 5000;
    node *pool = alloc(n * sizeof *pool);
    void **root = alloc(8);
    must(clSetKernelArgSVMPointer(tree, 0, pool), "arg"), must(clSetKernelArgSVMPointer(tree, 1, root), "arg");
    must(clSetKernelArg(tree, 2, sizeof n, &n), "arg");
    run(tree, 1);
    map(CL_MAP_READ, pool, n * sizeof *pool), map(CL_MAP_READ, root, 8);
    cl_ulong hash = 0;
    unsigned deep = depth(*root, &hash);
    SAY("tree", "%s, depth %u, %016llx", *root == pool ? "at the pool" : "elsewhere", deep, (unsigned long long)hash);
    unmap(pool), unmap(root);
    clFinish(queue);
    clSVMFree(context, pool), clSVMFree(context, root);
}

static cl_command_type kind(cl_event e) {
    cl_command_type t = 0;
    clGetEventInfo(e, CL_EVENT_COMMAND_TYPE, sizeof t, &t, NULL);
    return t;
}

static void commands(size_t size) {
    unsigned char *a = alloc(size), *b = alloc(size), *host = malloc(size), *back = malloc(size);
    cl_event e[8];
    fill(host, size, 7);
    ERR(L("in %zu", size), clEnqueueSVMMemcpy(queue, CL_FALSE, a, host, size, 0, NULL, &e[0]));
    ERR(L("across %zu", size), clEnqueueSVMMemcpy(queue, CL_FALSE, b, a, size, 1, &e[0], &e[1]));
    cl_uint pattern = 0xC0FFEE;
    ERR(L("fill %zu", size), clEnqueueSVMMemFill(queue, b + 16, &pattern, 4, size / 2 / 16 * 16, 1, &e[1], &e[2]));
    cl_uint n = 3;
    must(clSetKernelArgSVMPointer(add, 0, b + 64), "arg"), must(clSetKernelArg(add, 1, 4, &n), "arg");
    size_t items = size / 4 - 16;
    ERR(L("launch %zu", size), clEnqueueNDRangeKernel(queue, add, 1, NULL, &items, NULL, 1, &e[2], &e[3]));
    ERR(L("out %zu", size), clEnqueueSVMMemcpy(queue, CL_TRUE, back, b, size, 1, &e[3], &e[4]));
    HASH(L("bytes %zu", size), back, size);
    ERR(L("map %zu", size), clEnqueueSVMMap(queue, CL_FALSE, CL_MAP_READ | CL_MAP_WRITE, b + 32, size - 40, 0, NULL, &e[5]));
    must(clWaitForEvents(1, &e[5]), "wait");
    SAY(L("mapped %zu", size), "%d", memcmp(b + 32, back + 32, size - 40));
    for (size_t i = 32; i < size - 8; i += 97) b[i] ^= 0xFF, back[i] ^= 0xFF;
    ERR(L("unmap %zu", size), clEnqueueSVMUnmap(queue, b + 32, 0, NULL, &e[6]));
    memset(host, 0, size);
    ERR(L("out again %zu", size), clEnqueueSVMMemcpy(queue, CL_TRUE, host, b, size, 0, NULL, NULL));
    SAY(L("written by the map %zu", size), "%d", memcmp(host, back, size));
    ERR(L("host to host %zu", size), clEnqueueSVMMemcpy(queue, CL_TRUE, back, host, size, 0, NULL, &e[7]));
    SAY(L("copied %zu", size), "%d", memcmp(host, back, size));
    for (int i = 0; i < 8; i++) {
        cl_int s = 99;
        clWaitForEvents(1, &e[i]);
        clGetEventInfo(e[i], CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof s, &s, NULL);
        SAY(L("event %d %zu", i, size), "%x %d", kind(e[i]), s);
        clReleaseEvent(e[i]);
    }
    const void *both[] = {a, b + 1};
    ERR(L("migrate %zu", size), clEnqueueSVMMigrateMem(queue, 2, both, NULL, 0, 0, NULL, &e[0]));
    SAY(L("migrated %zu", size), "%x", kind(e[0]));
    clReleaseEvent(e[0]);
    clFinish(queue);
    clSVMFree(context, a), clSVMFree(context, b);
    free(host), free(back);
}

// A buffer over an allocation is the same memory.
static void buffers(void) {
    enum { N = 65536 };
    cl_uint *a = alloc(N * 4), *back = malloc(N * 4), n = 5, zero = 0;
    must(clEnqueueSVMMemFill(queue, a, &zero, 4, N * 4, 0, NULL, NULL), "fill");
    cl_mem m = buffer(CL_MEM_USE_HOST_PTR, N * 2, a + 128);
    cl_bool uses = 99;
    clGetMemObjectInfo(m, CL_MEM_USES_SVM_POINTER, sizeof uses, &uses, NULL);
    void *host = NULL;
    clGetMemObjectInfo(m, CL_MEM_HOST_PTR, sizeof host, &host, NULL);
    size_t at = 99;
    clGetMemObjectInfo(m, CL_MEM_OFFSET, sizeof at, &at, NULL);
    cl_mem of = m;
    clGetMemObjectInfo(m, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof of, &of, NULL);
    SAY("over", "uses %u, host %d, offset %zu, of %s", uses, host == a + 128, at, of ? "another" : "none");
    for (cl_uint i = 0; i < N; i++) back[i] = i;
    ERR("over write", clEnqueueWriteBuffer(queue, m, CL_TRUE, 0, N * 2, back, 0, NULL, NULL));
    must(clSetKernelArgSVMPointer(add, 0, a), "arg"), must(clSetKernelArg(add, 1, 4, &n), "arg");
    run(add, N);
    must(clEnqueueReadBuffer(queue, m, CL_TRUE, 0, N * 2, back, 0, NULL, NULL), "read");
    HASH("over read", back, N * 2);
    cl_buffer_region region = {8192, 4096};
    cl_mem sub = clCreateSubBuffer(m, 0, CL_BUFFER_CREATE_TYPE_REGION, &region, &err);
    ERR("over sub", err);
    if (sub) {
        clGetMemObjectInfo(sub, CL_MEM_OFFSET, sizeof at, &at, NULL);
        clGetMemObjectInfo(sub, CL_MEM_USES_SVM_POINTER, sizeof uses, &uses, NULL);
        SAY("over sub offset", "%zu, uses %u", at, uses);
        must(clEnqueueFillBuffer(queue, sub, &n, 4, 0, 4096, 0, NULL, NULL), "fill");
        clFinish(queue);
        clReleaseMemObject(sub);
    }
    cl_uint *shown = clEnqueueMapBuffer(queue, m, CL_TRUE, CL_MAP_WRITE, 4096, 4096, 0, NULL, NULL, &err);
    SAY("over map", "%s %d", dt_name(err), shown == a + 128 + 1024);
    if (shown) {
        for (int i = 0; i < 1024; i++) shown[i] = 77 + i;
        clEnqueueUnmapMemObject(queue, m, shown, 0, NULL, NULL);
    }
    must(clEnqueueSVMMemcpy(queue, CL_TRUE, back, a, N * 4, 0, NULL, NULL), "memcpy");
    HASH("over all", back, N * 4);
    clReleaseMemObject(m);
    clFinish(queue);
    clSVMFree(context, a), free(back);
}

static volatile int freed;
static void CL_CALLBACK on_free(cl_command_queue q, cl_uint n, void *list[], void *data) {
    (void)q;
    for (cl_uint i = 0; i < n; i++) clSVMFree(context, list[i]);
    freed += (int)n * *(int *)data;
}

static void frees(void) {
    int ten = 10;
    void *list[3] = {alloc(64), alloc(1 << 20), alloc(4096)};
    cl_event gate = clCreateUserEvent(context, &err), e;
    ERR("free with a callback", clEnqueueSVMFree(queue, 3, list, on_free, &ten, 1, &gate, &e));
    SAY("freed before its turn", "%d", freed);
    clSetUserEventStatus(gate, CL_COMPLETE);
    clWaitForEvents(1, &e);
    AWAIT(freed);
    SAY("freed", "%d %x", freed, kind(e));
    clReleaseEvent(e), clReleaseEvent(gate);
    void *other[1] = {alloc(100)};
    ERR("free", clEnqueueSVMFree(queue, 1, other, NULL, NULL, 0, NULL, NULL));
    ERR("finish", clFinish(queue));
}

static void wrong(void) {
    unsigned char *a = alloc(4096), host[64] = {0};
    cl_uint one = 1;
    ERR("map nothing", clEnqueueSVMMap(queue, CL_TRUE, CL_MAP_READ, a, 0, 0, NULL, NULL));
    ERR("map null", clEnqueueSVMMap(queue, CL_TRUE, CL_MAP_READ, NULL, 4, 0, NULL, NULL));
    ERR("map flags", clEnqueueSVMMap(queue, CL_TRUE, 1 << 9, a, 4, 0, NULL, NULL));
    ERR("unmap null", clEnqueueSVMUnmap(queue, NULL, 0, NULL, NULL));
    ERR("copy to null", clEnqueueSVMMemcpy(queue, CL_TRUE, NULL, a, 4, 0, NULL, NULL));
    ERR("copy of null", clEnqueueSVMMemcpy(queue, CL_TRUE, a, NULL, 4, 0, NULL, NULL));
    ERR("copy overlaps", clEnqueueSVMMemcpy(queue, CL_TRUE, a, a + 32, 64, 0, NULL, NULL));
    ERR("copy waits for nothing", clEnqueueSVMMemcpy(queue, CL_TRUE, a, host, 64, 1, NULL, NULL));
    ERR("copy without a queue", clEnqueueSVMMemcpy(NULL, CL_TRUE, a, host, 64, 0, NULL, NULL));
    ERR("fill null", clEnqueueSVMMemFill(queue, NULL, &one, 4, 64, 0, NULL, NULL));
    ERR("fill by three", clEnqueueSVMMemFill(queue, a, &one, 3, 63, 0, NULL, NULL));
    ERR("fill a part of a pattern", clEnqueueSVMMemFill(queue, a, &one, 4, 63, 0, NULL, NULL));
    ERR("fill misaligned", clEnqueueSVMMemFill(queue, a + 2, &one, 4, 64, 0, NULL, NULL));
    ERR("arg index", clSetKernelArgSVMPointer(add, 9, a));
    ERR("arg kernel", clSetKernelArgSVMPointer(NULL, 0, a));
    ERR("reach of nobody", clSetKernelExecInfo(NULL, CL_KERNEL_EXEC_INFO_SVM_PTRS, 8, &a));
    ERR("reach null", clSetKernelExecInfo(add, CL_KERNEL_EXEC_INFO_SVM_PTRS, 8, NULL));
    ERR("free nothing", clEnqueueSVMFree(queue, 0, NULL, NULL, NULL, 0, NULL, NULL));
    ERR("migrate nothing", clEnqueueSVMMigrateMem(queue, 0, NULL, NULL, 0, 0, NULL, NULL));
    ERR("migrate flags", clEnqueueSVMMigrateMem(queue, 1, (const void **)&a, NULL, 1 << 9, 0, NULL, NULL));
    clFinish(queue);
    clSVMFree(context, a);
}

// The fine grain: no map, and atomics of both sides at once. Where there is none, the same with maps, one after another.
static void *fine_alloc(cl_svm_mem_flags atomics, size_t n) {
    int can = (caps & CL_DEVICE_SVM_FINE_GRAIN_BUFFER) != 0 && (!atomics || caps & CL_DEVICE_SVM_ATOMICS);
    void *p = clSVMAlloc(context, can ? CL_MEM_SVM_FINE_GRAIN_BUFFER | atomics : 0, n, 0);
    if (!p) must(CL_MEM_OBJECT_ALLOCATION_FAILURE, "clSVMAlloc");
    return p;
}

static void fine(void) {
    enum { N = 4096, Items = 1000 };
    int coarse = !(caps & CL_DEVICE_SVM_FINE_GRAIN_BUFFER);
    cl_uint *p = fine_alloc(0, N * 4), n = 9, bad = 0;
    if (coarse) map(CL_MAP_WRITE, p, N * 4);
    for (cl_uint i = 0; i < N; i++) p[i] = i;
    if (coarse) unmap(p);
    must(clSetKernelArgSVMPointer(add, 0, p), "arg"), must(clSetKernelArg(add, 1, 4, &n), "arg");
    run(add, N);
    clFinish(queue);
    if (coarse) map(CL_MAP_READ, p, N * 4);
    for (cl_uint i = 0; i < N; i++) bad += p[i] != i + 9;
    SAY("fine", "%u wrong", bad);
    clSVMFree(context, p);
    coarse = !(caps & CL_DEVICE_SVM_ATOMICS);
    p = fine_alloc(CL_MEM_SVM_ATOMICS, 16);
    if (coarse) map(CL_MAP_WRITE, p, 16);
    memset(p, 0, 16);
    if (coarse) unmap(p);
    must(clSetKernelArgSVMPointer(count, 0, p), "arg");
    run(count, Items);
    clFlush(queue);
    if (coarse) map(CL_MAP_READ | CL_MAP_WRITE, p, 16);
    for (int i = 0; i < 40000; i++) __atomic_fetch_add(p + (i & 3), 1, __ATOMIC_SEQ_CST);
    clFinish(queue);
    SAY("atomics", "%u %u %u %u", p[0], p[1], p[2], p[3]);
    clSVMFree(context, p);
}

// Random commands on two queues, compared with a model in plain memory.
static unsigned seed = 12345;
static unsigned rnd(unsigned n) { return (seed = seed * 1103515245u + 12345u) >> 8 & 0x7FFFFF ? (seed >> 8) % n : 0; }

static void model(void) {
    enum { M = 6, Rounds = 400 };
    static const size_t size[M] = {64, 4096, 100000, 300000, 1 << 20, 3 << 20};
    unsigned char *a[M], *is[M], *host = malloc(3 << 20);
    cl_command_queue q[2] = {queue, clCreateCommandQueue(context, other, 0, &err)};
    cl_event last = NULL;
    unsigned bad = 0;
    for (int i = 0; i < M; i++) {
        a[i] = alloc(size[i]), is[i] = calloc(1, size[i]);
        must(clEnqueueSVMMemFill(queue, a[i], is[i], 1, size[i], 0, NULL, NULL), "fill");
    }
    clFinish(queue);
    for (int round = 0; round < Rounds; round++) {
        int i = (int)rnd(M), j = (int)rnd(M), at = (int)rnd(2);
        size_t off = rnd((unsigned)size[i] / 4) * 4, n = 4 + rnd((unsigned)(size[i] - off) / 4) * 4;
        if (off + n > size[i]) n = size[i] - off;
        cl_event e = NULL;
        cl_uint waits = last != NULL, v = rnd(1000);
        const cl_event *list = last ? &last : NULL;
        switch (rnd(6)) {
        case 0:
            fill(host, n, v);
            must(clEnqueueSVMMemcpy(q[at], CL_TRUE, a[i] + off, host, n, waits, list, &e), "in");
            memcpy(is[i] + off, host, n);
            break;
        case 1:
            must(clEnqueueSVMMemFill(q[at], a[i] + off, &v, 4, n, waits, list, &e), "fill");
            for (size_t k = 0; k < n; k += 4) memcpy(is[i] + off + k, &v, 4);
            break;
        case 2:
            if (i == j) continue;
            if (n > size[j]) n = size[j];
            must(clEnqueueSVMMemcpy(q[at], CL_FALSE, a[j] + size[j] - n, a[i] + off, n, waits, list, &e), "across");
            memcpy(is[j] + size[j] - n, is[i] + off, n);
            break;
        case 3: {
            size_t items = n / 4;
            must(clSetKernelArgSVMPointer(add, 0, a[i] + off), "arg"), must(clSetKernelArg(add, 1, 4, &v), "arg");
            must(clEnqueueNDRangeKernel(q[at], add, 1, NULL, &items, NULL, waits, list, &e), "launch");
            for (size_t k = 0; k < items; k++) {
                cl_uint x;
                memcpy(&x, is[i] + off + 4 * k, 4), x += v, memcpy(is[i] + off + 4 * k, &x, 4);
            }
            break;
        }
        case 4:
            must(clEnqueueSVMMemcpy(q[at], CL_TRUE, host, a[i] + off, n, waits, list, &e), "out");
            bad += memcmp(host, is[i] + off, n) != 0;
            break;
        default:
            must(clEnqueueSVMMap(q[at], CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, a[i] + off, n, waits, list, NULL), "map");
            bad += memcmp(a[i] + off, is[i] + off, n) != 0;
            fill(a[i] + off, n, v), fill(is[i] + off, n, v);
            must(clEnqueueSVMUnmap(q[at], a[i] + off, 0, NULL, &e), "unmap");
        }
        if (last) clReleaseEvent(last);
        last = e;
    }
    clFinish(q[0]), clFinish(q[1]);
    for (int i = 0; i < M; i++) {
        must(clEnqueueSVMMemcpy(queue, CL_TRUE, host, a[i], size[i], 0, NULL, NULL), "out");
        bad += memcmp(host, is[i], size[i]) != 0;
        HASH(L("model %d", i), host, size[i]);
        clSVMFree(context, a[i]), free(is[i]);
    }
    SAY("model", "%u wrong", bad);
    clReleaseEvent(last), clReleaseCommandQueue(q[1]), free(host);
}

int main(void) {
    setup(0);
    clGetDeviceInfo(device, CL_DEVICE_SVM_CAPABILITIES, sizeof caps, &caps, NULL);
    SAY("coarse", "%d", (caps & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER) != 0);
    cl_device_id all[2] = {device, NULL};
    clGetContextInfo(context, CL_CONTEXT_DEVICES, sizeof all, all, NULL);
    other = all[0];
    cl_program p = clCreateProgramWithSource(context, 1, &source, NULL, &err);
    must(clBuildProgram(p, 0, NULL, "-cl-std=CL1.2", NULL, NULL), "clBuildProgram");
    walk = clCreateKernel(p, "walk", &err), tree = clCreateKernel(p, "tree", &err), add = clCreateKernel(p, "add", &err);
    count = clCreateKernel(p, "count", &err), plain = clCreateKernel(p, "plain", &err);
    allocations();
    lists();
    trees();
    commands(256);
    commands(100000);
    commands(5 << 20);
    buffers();
    frees();
    wrong();
    fine();
    model();
    return 0;
}
