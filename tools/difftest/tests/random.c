// Random programs: the same seed gives the same commands, natively and forwarded. Buffers of
// every kind and their sub-buffers; three queues, one of them out of order; gates that open late.
// Accesses to one root buffer are ordered by events, so that results do not depend on timing.
#include "dt.h"

enum { ROOTS = 5, VIEWS = 12, QUEUES = 3, OPS = 60, SEEDS = 120, GATES = 4, READS = 64 };

static const char *src =
    "kernel void add(global uchar *a, uint n, uint k) { uint i = get_global_id(0); if (i < n) a[i] += (uchar)(k + i); }\n"
    "kernel void blend(global const uchar *a, global uchar *b, uint n, uint m) { uint i = get_global_id(0); if (i < n) b[i] = b[i] * 3 + a[(i * 7) % m]; }\n"
    "kernel void turn(global uchar *a, uint n, local uchar *t) { uint l = get_local_id(0), g = get_group_id(0) * get_local_size(0), s = get_local_size(0);\n"
    "  t[l] = g + l < n ? a[g + l] : 0; barrier(CLK_LOCAL_MEM_FENCE); if (g + s <= n) a[g + l] = t[s - 1 - l]; }\n";

static unsigned state;
static unsigned rnd(unsigned n) { state = state * 1664525u + 1013904223u; return (state >> 8) % n; }

static struct view { cl_mem m; int root; size_t size, off; } views[VIEWS];
static struct root { cl_mem m; unsigned char *own; cl_event last; size_t size; int kind; } roots[ROOTS];
static cl_command_queue queues[QUEUES];
static cl_event gates[GATES];
static int nviews, open_gates, ngates;
static cl_kernel add, mix, turn;
static struct { unsigned char *p; size_t n; } reads[READS];
static int nreads;
static unsigned trouble;

static int verbose, step;

// note adds what was seen to the seed's sum; a third argument of the program shows each on a line of its own.
static void note(const char *what, unsigned v) {
    trouble = trouble * 31 + v;
    if (verbose) SAY(L("step %d %s", ++step, what), "%08x", v);
}

static void ok(cl_int e) { note("code", (unsigned)-e); }

static void open_all(void) {
    while (open_gates < ngates) ok(clSetUserEventStatus(gates[open_gates++], CL_COMPLETE));
}

// waits builds the wait list of a command on one or two roots.
static cl_uint waits(cl_event *list, int a, int b) {
    cl_uint n = 0;
    if (roots[a].last) list[n++] = roots[a].last;
    if (b >= 0 && b != a && roots[b].last) list[n++] = roots[b].last;
    if (rnd(12) == 0 && ngates < GATES) {
        gates[ngates] = clCreateUserEvent(context, &err);
        ok(err);
        list[n++] = gates[ngates++];
    }
    return n;
}

static void touched(cl_event e, int a, int b) {
    clRetainEvent(e);
    if (roots[a].last) clReleaseEvent(roots[a].last);
    roots[a].last = e;
    if (b >= 0 && b != a) {
        clRetainEvent(e);
        if (roots[b].last) clReleaseEvent(roots[b].last);
        roots[b].last = e;
    }
    clReleaseEvent(e);
}

static void range(struct view *v, size_t *off, size_t *n) {
    *off = rnd((unsigned)v->size);
    *n = 1 + rnd((unsigned)(v->size - *off));
}

static void make(void) {
    static const cl_mem_flags kinds[] = {0, CL_MEM_ALLOC_HOST_PTR, CL_MEM_USE_HOST_PTR, CL_MEM_COPY_HOST_PTR, CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR};
    nviews = nreads = ngates = open_gates = 0;
    for (int i = 0; i < ROOTS; i++) {
        struct root *r = &roots[i];
        r->kind = (int)rnd(5);
        r->size = rnd(3) ? 64 + rnd(8000) : rnd(4) ? 60000 + rnd(200000) : (2 << 20) + rnd(1 << 20);
        r->own = aligned_alloc(4096, (r->size + 4095) / 4096 * 4096);
        r->last = NULL;
        fill(r->own, r->size, rnd(1000));
        r->m = buffer(CL_MEM_READ_WRITE | kinds[r->kind], r->size, r->kind >= 2 ? r->own : NULL);
        if (r->kind < 2) ok(clEnqueueWriteBuffer(queues[0], r->m, CL_TRUE, 0, r->size, r->own, 0, NULL, NULL));
        views[nviews++] = (struct view){r->m, i, r->size, 0};
    }
    cl_uint bits;
    clGetDeviceInfo(device, CL_DEVICE_MEM_BASE_ADDR_ALIGN, sizeof bits, &bits, NULL);
    while (nviews < VIEWS) {
        int i = (int)rnd(ROOTS);
        size_t align = bits / 8, slots = roots[i].size / align;
        if (slots < 2) { nviews++; views[nviews - 1] = views[i]; continue; }
        cl_buffer_region g = {rnd((unsigned)slots) * align, 0};
        g.size = 1 + rnd((unsigned)(roots[i].size - g.origin));
        cl_mem s = clCreateSubBuffer(roots[i].m, 0, CL_BUFFER_CREATE_TYPE_REGION, &g, &err);
        must(err, "sub-buffer");
        views[nviews++] = (struct view){s, i, g.size, g.origin};
    }
}

static void one(void) {
    struct view *v = &views[rnd(VIEWS)], *w = &views[rnd(VIEWS)];
    cl_command_queue q = queues[rnd(QUEUES)];
    cl_event list[4], e = NULL;
    size_t off, n, off2, n2;
    cl_uint k = rnd(1000);
    range(v, &off, &n);
    range(w, &off2, &n2);
    unsigned what = rnd(12);
    if (verbose) note(L("op %u view %d+%zu,%zu and %d+%zu,%zu queue %d", what, v->root, v->off, v->size, w->root, w->off, w->size, q == queues[2] ? 2 : q == queues[1]), 0);
    switch (what) {
    case 0: case 1: { // write, at times blocking
        unsigned char *p = malloc(n);
        fill(p, n, k);
        int blocking = rnd(2) || nreads >= READS;
        if (blocking) open_all();
        cl_uint c = waits(list, v->root, -1);
        if (blocking) open_all();
        ok(clEnqueueWriteBuffer(q, v->m, blocking, off, n, p, c, c ? list : NULL, &e));
        if (blocking) free(p);
        else { reads[nreads].p = p; reads[nreads++].n = 0; } // kept until the end
        touched(e, v->root, -1);
        break;
    }
    case 2: case 3: { // read
        if (nreads >= READS) break;
        unsigned char *p = calloc(1, n);
        int blocking = (int)rnd(2);
        cl_uint c = waits(list, v->root, -1);
        if (blocking) open_all();
        ok(clEnqueueReadBuffer(q, v->m, blocking, off, n, p, c, c ? list : NULL, &e));
        reads[nreads].p = p;
        reads[nreads++].n = n;
        touched(e, v->root, -1);
        break;
    }
    case 4: { // copy between two roots
        if (v->root == w->root) break;
        size_t m = n < n2 ? n : n2;
        cl_uint c = waits(list, v->root, w->root);
        ok(clEnqueueCopyBuffer(q, v->m, w->m, off, off2, m, c, c ? list : NULL, &e));
        touched(e, v->root, w->root);
        break;
    }
    case 5: { // fill
        size_t size = (size_t)1 << rnd(5);
        unsigned char pattern[16];
        fill(pattern, sizeof pattern, k);
        off = off / size * size;
        if (off + size > v->size) break;
        n = (v->size - off) / size * size;
        cl_uint c = waits(list, v->root, -1);
        ok(clEnqueueFillBuffer(q, v->m, pattern, size, off, n, c, c ? list : NULL, &e));
        touched(e, v->root, -1);
        break;
    }
    case 6: case 7: { // kernel on one buffer
        cl_uint u = (cl_uint)v->size;
        size_t l = 64, g = (v->size + 63) / 64 * 64; // always the same: PoCL builds a kernel for each local size
        clSetKernelArg(add, 0, sizeof v->m, &v->m);
        clSetKernelArg(add, 1, 4, &u);
        clSetKernelArg(add, 2, 4, &k);
        cl_uint c = waits(list, v->root, -1);
        ok(clEnqueueNDRangeKernel(q, add, 1, NULL, &g, &l, c, c ? list : NULL, &e));
        touched(e, v->root, -1);
        break;
    }
    case 8: { // kernel on two
        if (v->root == w->root) break;
        cl_uint u = (cl_uint)w->size, m = (cl_uint)v->size;
        size_t l = 64, g = (w->size + 63) / 64 * 64;
        clSetKernelArg(mix, 0, sizeof v->m, &v->m);
        clSetKernelArg(mix, 1, sizeof w->m, &w->m);
        clSetKernelArg(mix, 2, 4, &u);
        clSetKernelArg(mix, 3, 4, &m);
        cl_uint c = waits(list, v->root, w->root);
        ok(clEnqueueNDRangeKernel(q, mix, 1, NULL, &g, &l, c, c ? list : NULL, &e));
        touched(e, v->root, w->root);
        break;
    }
    case 9: { // kernel with local memory
        cl_uint u = (cl_uint)v->size;
        size_t l = rnd(2) ? 64 : 16, g = (v->size + l - 1) / l * l;
        clSetKernelArg(turn, 0, sizeof v->m, &v->m);
        clSetKernelArg(turn, 1, 4, &u);
        clSetKernelArg(turn, 2, l, NULL);
        cl_uint c = waits(list, v->root, -1);
        ok(clEnqueueNDRangeKernel(q, turn, 1, NULL, &g, &l, c, c ? list : NULL, &e));
        touched(e, v->root, -1);
        break;
    }
    case 10: { // map, look or change, unmap
        static const cl_map_flags how[] = {CL_MAP_READ, CL_MAP_WRITE, CL_MAP_READ | CL_MAP_WRITE, CL_MAP_WRITE_INVALIDATE_REGION};
        int f = (int)rnd(4), blocking = (int)rnd(2);
        cl_uint c = waits(list, v->root, -1);
        open_all();
        unsigned char *p = clEnqueueMapBuffer(q, v->m, blocking, how[f], off, n, c, c ? list : NULL, &e, &err);
        ok(err);
        if (!p) break;
        if (!blocking) ok(clWaitForEvents(1, &e));
        touched(e, v->root, -1);
        if (how[f] & CL_MAP_READ) note(L("map of %d view off %zu, kind %d flags %d blocking %d off %zu n %zu list %u ooo %d", v->root, v->off, roots[v->root].kind, f, blocking, off, n, c, q == queues[2]), (unsigned)dt_hash(p, n));
        if (how[f] & CL_MAP_WRITE) for (size_t i = 0; i < n; i += 3) p[i] ^= (unsigned char)k;
        if (f == 3) fill(p, n, k);
        ok(clEnqueueUnmapMemObject(q, v->m, p, 1, &roots[v->root].last, &e));
        touched(e, v->root, -1);
        break;
    }
    case 11: { // rectangles, markers, barriers, flushes
        size_t row = 1 + rnd(40), rows = 1 + rnd(8), pitch = row + rnd(20), o[3] = {rnd(4), rnd(3), 0}, z[3] = {0, 0, 0}, r[3] = {row, rows, 1};
        if (rnd(3) == 0) {
            ok(rnd(2) ? clEnqueueMarkerWithWaitList(q, 0, NULL, NULL) : clEnqueueBarrierWithWaitList(q, 0, NULL, NULL));
            ok(clFlush(q));
            break;
        }
        if (pitch < o[0] + row || (o[1] + rows) * pitch + o[0] > v->size || nreads >= READS) break;
        unsigned char *p = calloc(pitch, rows + 1);
        fill(p, pitch * (rows + 1), k);
        int blocking = (int)rnd(2), in = (int)rnd(2);
        cl_uint c = waits(list, v->root, -1);
        if (blocking) open_all();
        if (in) ok(clEnqueueWriteBufferRect(q, v->m, blocking, o, z, r, pitch, 0, pitch, 0, p, c, c ? list : NULL, &e));
        else ok(clEnqueueReadBufferRect(q, v->m, blocking, o, z, r, pitch, 0, pitch, 0, p, c, c ? list : NULL, &e));
        reads[nreads].p = p;
        reads[nreads++].n = pitch * (rows + 1);
        touched(e, v->root, -1);
        break;
    }
    }
}

static void finish(unsigned seed) {
    open_all();
    for (int i = 0; i < QUEUES; i++) ok(clFinish(queues[i]));
    uint64_t h = 0;
    for (int i = 0; i < nreads; i++) {
        if (reads[i].n) h = h * 31 + dt_hash(reads[i].p, reads[i].n);
        free(reads[i].p);
    }
    SAY(L("seed %u reads", seed), "%016llx codes %08x", (unsigned long long)h, trouble);
    for (int i = 0; i < ROOTS; i++) {
        struct root *r = &roots[i];
        unsigned char *p = malloc(r->size);
        cl_int s = 99;
        if (r->last) clGetEventInfo(r->last, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof s, &s, NULL);
        must(clEnqueueReadBuffer(queues[i % QUEUES], r->m, CL_TRUE, 0, r->size, p, 0, NULL, NULL), "last read");
        SAY(L("seed %u buffer %d", seed, i), "kind %d size %zu %016llx event %d", r->kind, r->size, (unsigned long long)dt_hash(p, r->size), r->last ? s : 0);
        if (r->kind == 2) SAY(L("seed %u own memory %d", seed, i), "%s", memcmp(p, r->own, r->size) ? "differs from the buffer" : "is the buffer's");
        free(p);
        if (r->last) clReleaseEvent(r->last);
    }
    for (int i = ROOTS; i < nviews; i++) if (views[i].m != roots[views[i].root].m) clReleaseMemObject(views[i].m);
    for (int i = 0; i < ROOTS; i++) { clReleaseMemObject(roots[i].m); free(roots[i].own); }
    for (int i = 0; i < ngates; i++) clReleaseEvent(gates[i]);
}

int main(int argc, char **argv) {
    unsigned first = argc > 1 ? (unsigned)atoi(argv[1]) : 1, last = argc > 2 ? (unsigned)atoi(argv[2]) : SEEDS;
    verbose = argc > 3;
    setup(0);
    cl_program p = build(src, "");
    add = clCreateKernel(p, "add", &err); must(err, "add");
    mix = clCreateKernel(p, "blend", &err); must(err, "mix");
    turn = clCreateKernel(p, "turn", &err); must(err, "turn");
    queues[0] = queue;
    queues[1] = clCreateCommandQueue(context, device, 0, &err); must(err, "queue");
    queues[2] = clCreateCommandQueue(context, device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &err); must(err, "queue");
    for (unsigned seed = first; seed <= last; seed++) {
        state = seed * 2654435761u;
        trouble = 0;
        make();
        for (int i = 0; i < OPS; i++) one();
        finish(seed);
    }
    return 0;
}
