// A stencil in three dimensions, as lattice programs do it: a short kernel for every step, and a checksum of the field.
// It computes in whole numbers, so that every way of dividing the work gives the same bits: on one queue, on two queues
// by events, in two domains with halos through the program's memory, with maps, and in shared virtual memory.
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *source =
    "kernel void advance(global const uint *a, global uint *b, uint n, uint from, uint to) {\n"
    "  uint x = get_global_id(0), y = get_global_id(1), z = from + get_global_id(2);\n"
    "  if (z >= to) return;\n"
    "  uint w = n, p = n * n, i = z * p + y * w + x;\n"
    "  uint l = y * w + (x + n - 1) % n + z * p, r = y * w + (x + 1) % n + z * p;\n"
    "  uint d = (y + n - 1) % n * w + x + z * p, u = (y + 1) % n * w + x + z * p;\n"
    "  b[i] = a[i] * 3u + a[l] + a[r] * 5u + a[d] * 7u + a[u] * 11u + a[i - p] * 13u + a[i + p] * 17u + (a[i] >> 9);\n"
    "}\n"
    // The slices 0 and to are copies of the last and the first one inside: the field is a ring.
    "kernel void wrap(global uint *b, uint n, uint slices) {\n"
    "  uint i = get_global_id(0), p = n * n;\n"
    "  b[i] = b[slices * p + i]; b[(slices + 1) * p + i] = b[p + i];\n"
    "}\n";

static cl_int err;
static void must(cl_int e, const char *what) {
    if (e) {
        printf("stencil failed: %s %d\n", what, e);
        exit(1);
    }
}

typedef struct { // a domain: slices 1 to n of its own, 0 and n+1 its neighbours'
    cl_command_queue q;
    cl_mem f[2];
    uint32_t *svm[2];
    cl_kernel step, wrap;
    cl_uint n, slices;
} domain;

static cl_context context;
static cl_device_id devices[2];
static cl_program program;

static size_t bytes(const domain *d) { return (size_t)d->n * d->n * (d->slices + 2) * 4; }
static size_t slice(const domain *d) { return (size_t)d->n * d->n * 4; }

static void arg(domain *d, cl_kernel k, cl_uint i, int which) {
    if (d->svm[0]) must(clSetKernelArgSVMPointer(k, i, d->svm[which]), "argument");
    else must(clSetKernelArg(k, i, sizeof(cl_mem), &d->f[which]), "argument");
}

// step computes slices [from, to) of the next field.
static void step(domain *d, int at, cl_command_queue q, cl_uint from, cl_uint to, cl_uint waits, const cl_event *list, cl_event *e) {
    size_t g[3] = {d->n, d->n, to - from};
    arg(d, d->step, 0, at), arg(d, d->step, 1, 1 - at);
    must(clSetKernelArg(d->step, 2, 4, &d->n), "argument"), must(clSetKernelArg(d->step, 3, 4, &from), "argument");
    must(clSetKernelArg(d->step, 4, 4, &to), "argument");
    must(clEnqueueNDRangeKernel(q, d->step, 3, NULL, g, NULL, waits, list, e), "step");
}

static void wrap(domain *d, int at, cl_uint waits, const cl_event *list, cl_event *e) {
    size_t g = (size_t)d->n * d->n;
    arg(d, d->wrap, 0, at);
    must(clSetKernelArg(d->wrap, 1, 4, &d->n), "argument"), must(clSetKernelArg(d->wrap, 2, 4, &d->slices), "argument");
    must(clEnqueueNDRangeKernel(d->q, d->wrap, 1, NULL, &g, NULL, waits, list, e), "wrap");
}

static uint32_t first(uint64_t i) { return (uint32_t)(i * 2654435761u ^ i >> 7); }

// make makes a domain of the field's slices from z on.
static domain make(cl_device_id on, cl_uint n, cl_uint z, cl_uint slices, cl_uint all, cl_mem_flags flags, int svm) {
    domain d = {.n = n, .slices = slices};
    d.q = clCreateCommandQueueWithProperties(context, on, NULL, &err), must(err, "queue");
    d.step = clCreateKernel(program, "advance", &err), must(err, "kernel");
    d.wrap = clCreateKernel(program, "wrap", &err), must(err, "kernel");
    uint32_t *field = malloc(bytes(&d));
    size_t p = (size_t)n * n;
    for (cl_uint s = 0; s < slices + 2; s++)
        for (size_t i = 0; i < p; i++) field[s * p + i] = first(((z + s + all - 1) % all) * p + i);
    for (int i = 0; i < 2; i++) {
        if (svm) {
            d.svm[i] = clSVMAlloc(context, CL_MEM_READ_WRITE, bytes(&d), 0);
            must(d.svm[i] ? CL_SUCCESS : CL_OUT_OF_RESOURCES, "clSVMAlloc");
            must(clEnqueueSVMMap(d.q, CL_TRUE, CL_MAP_WRITE_INVALIDATE_REGION, d.svm[i], bytes(&d), 0, NULL, NULL), "map");
            memcpy(d.svm[i], field, bytes(&d));
            must(clEnqueueSVMUnmap(d.q, d.svm[i], 0, NULL, NULL), "unmap");
            continue;
        }
        d.f[i] = clCreateBuffer(context, flags, bytes(&d), NULL, &err), must(err, "buffer");
        must(clEnqueueWriteBuffer(d.q, d.f[i], CL_TRUE, 0, bytes(&d), field, 0, NULL, NULL), "write");
    }
    free(field);
    return d;
}

// sum folds a domain's own slices into a checksum, and lets the domain go.
static uint64_t sum(domain *d, int at, uint64_t h) {
    uint32_t *field = malloc(bytes(d));
    if (d->svm[0]) must(clEnqueueSVMMemcpy(d->q, CL_TRUE, field, d->svm[at], bytes(d), 0, NULL, NULL), "read");
    else must(clEnqueueReadBuffer(d->q, d->f[at], CL_TRUE, 0, bytes(d), field, 0, NULL, NULL), "read");
    size_t p = (size_t)d->n * d->n;
    for (size_t i = p; i < p * (d->slices + 1); i++) h = (h ^ field[i]) * 1099511628211u;
    for (int i = 0; i < 2; i++) {
        if (d->svm[0]) clSVMFree(context, d->svm[i]);
        else clReleaseMemObject(d->f[i]);
    }
    free(field), clReleaseKernel(d->step), clReleaseKernel(d->wrap), clReleaseCommandQueue(d->q);
    return h;
}

enum { Seed = 1 };

static uint64_t one(cl_uint n, cl_uint steps, cl_mem_flags flags, int svm, int finish) {
    domain d = make(devices[0], n, 0, n, n, flags, svm);
    for (cl_uint t = 0; t < steps; t++) {
        step(&d, t & 1, d.q, 1, n + 1, 0, NULL, NULL);
        wrap(&d, 1 - (t & 1), 0, NULL, NULL);
        if (finish) must(clFinish(d.q), "finish");
    }
    return sum(&d, steps & 1, Seed);
}

// two_queues has halves of each step on two queues, ordered by events.
static uint64_t two_queues(cl_uint n, cl_uint steps) {
    domain d = make(devices[0], n, 0, n, n, 0, 0);
    cl_command_queue q = clCreateCommandQueueWithProperties(context, devices[1], NULL, &err);
    must(err, "queue");
    cl_event done = NULL;
    for (cl_uint t = 0; t < steps; t++) {
        cl_event half[2];
        step(&d, t & 1, d.q, 1, n / 2, done != NULL, done ? &done : NULL, &half[0]);
        step(&d, t & 1, q, n / 2, n + 1, done != NULL, done ? &done : NULL, &half[1]);
        must(clFlush(q), "flush"), must(clFlush(d.q), "flush");
        if (done) clReleaseEvent(done);
        wrap(&d, 1 - (t & 1), 2, half, &done);
        must(clFlush(d.q), "flush");
        clReleaseEvent(half[0]), clReleaseEvent(half[1]);
    }
    must(clWaitForEvents(1, &done), "wait");
    clReleaseEvent(done), clReleaseCommandQueue(q);
    return sum(&d, steps & 1, Seed);
}

// two_domains has halos go through the program's memory at every step, by reads and writes or by maps.
static uint64_t two_domains(cl_uint n, cl_uint steps, int maps) {
    domain d[2] = {make(devices[0], n, 0, n / 2, n, 0, 0), make(devices[1], n, n / 2, n - n / 2, n, 0, 0)};
    uint32_t *halo[2][2];
    for (int i = 0; i < 4; i++) halo[i / 2][i % 2] = malloc(slice(&d[0]));
    for (cl_uint t = 0; t < steps; t++) {
        int to = 1 - (t & 1);
        for (int i = 0; i < 2; i++) {
            step(&d[i], t & 1, d[i].q, 1, d[i].slices + 1, 0, NULL, NULL);
            if (maps) continue;
            must(clEnqueueReadBuffer(d[i].q, d[i].f[to], CL_FALSE, slice(&d[i]), slice(&d[i]), halo[i][0], 0, NULL, NULL), "read");
            must(clEnqueueReadBuffer(d[i].q, d[i].f[to], CL_FALSE, slice(&d[i]) * d[i].slices, slice(&d[i]), halo[i][1], 0, NULL, NULL), "read");
        }
        for (int i = 0; i < 2; i++) must(clFinish(d[i].q), "finish");
        for (int i = 0; i < 2; i++) {
            domain *x = &d[i], *y = &d[1 - i];
            size_t low = 0, high = slice(x) * (x->slices + 1), own[2] = {slice(y) * y->slices, slice(y)};
            if (!maps) {
                must(clEnqueueWriteBuffer(x->q, x->f[to], CL_FALSE, low, slice(x), halo[1 - i][1], 0, NULL, NULL), "write");
                must(clEnqueueWriteBuffer(x->q, x->f[to], CL_FALSE, high, slice(x), halo[1 - i][0], 0, NULL, NULL), "write");
                continue;
            }
            for (int side = 0; side < 2; side++) {
                void *from = clEnqueueMapBuffer(y->q, y->f[to], CL_TRUE, CL_MAP_READ, own[side], slice(y), 0, NULL, NULL, &err);
                must(err, "map");
                void *at = clEnqueueMapBuffer(x->q, x->f[to], CL_TRUE, CL_MAP_WRITE_INVALIDATE_REGION, side ? high : low, slice(x), 0, NULL, NULL, &err);
                must(err, "map");
                memcpy(at, from, slice(x));
                must(clEnqueueUnmapMemObject(y->q, y->f[to], from, 0, NULL, NULL), "unmap");
                must(clEnqueueUnmapMemObject(x->q, x->f[to], at, 0, NULL, NULL), "unmap");
            }
        }
        if (!maps)
            for (int i = 0; i < 2; i++) must(clFinish(d[i].q), "finish"); // the halos are read anew
    }
    uint64_t h = sum(&d[0], steps & 1, Seed);
    for (int i = 0; i < 4; i++) free(halo[i / 2][i % 2]);
    return sum(&d[1], steps & 1, h);
}

// plain is what all must say.
static uint64_t plain(cl_uint n, cl_uint steps) {
    size_t p = (size_t)n * n, all = p * n;
    uint32_t *a = malloc(all * 4), *b = malloc(all * 4), *swap;
    for (size_t i = 0; i < all; i++) a[i] = first(i);
    for (cl_uint t = 0; t < steps; t++, swap = a, a = b, b = swap)
        for (size_t z = 0; z < n; z++)
            for (size_t y = 0; y < n; y++)
                for (size_t x = 0; x < n; x++) {
                    size_t i = z * p + y * n + x, row = z * p + y * n, col = z * p + x;
                    b[i] = a[i] * 3u + a[row + (x + n - 1) % n] + a[row + (x + 1) % n] * 5u + a[col + (y + n - 1) % n * n] * 7u +
                           a[col + (y + 1) % n * n] * 11u + a[(z + n - 1) % n * p + y * n + x] * 13u + a[(z + 1) % n * p + y * n + x] * 17u + (a[i] >> 9);
                }
    uint64_t h = Seed;
    for (size_t i = 0; i < all; i++) h = (h ^ a[i]) * 1099511628211u;
    free(a), free(b);
    return h;
}

static void say(const char *way, cl_uint n, uint64_t h, uint64_t want) {
    printf("stencil %u %s: %016llx%s\n", n, way, (unsigned long long)h, h == want ? "" : " WRONG");
    fflush(stdout);
}

int main(int argc, char **argv) {
    cl_uint steps = argc > 1 ? (cl_uint)atoi(argv[1]) : 50, sizes[] = {16, 33, 64};
    cl_platform_id platform;
    cl_uint n = 0;
    must(clGetPlatformIDs(1, &platform, NULL), "platform");
    must(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 2, devices, &n), "devices");
    if (n < 2) devices[1] = devices[0], n = 1;
    if (n > 2) n = 2;
    context = clCreateContext(NULL, n, devices, NULL, NULL, &err), must(err, "context");
    program = clCreateProgramWithSource(context, 1, &source, NULL, &err), must(err, "program");
    must(clBuildProgram(program, 0, NULL, "", NULL, NULL), "build");
    cl_device_svm_capabilities svm = 0;
    clGetDeviceInfo(devices[0], CL_DEVICE_SVM_CAPABILITIES, sizeof svm, &svm, NULL);
    for (int i = 0; i < 3; i++) {
        cl_uint size = sizes[i];
        uint64_t want = plain(size, steps);
        say("plain", size, want, want);
        say("one queue", size, one(size, steps, 0, 0, 0), want);
        say("a finish each step", size, one(size, steps, 0, 0, 1), want);
        say("memory of the host", size, one(size, steps, CL_MEM_ALLOC_HOST_PTR, 0, 0), want);
        say("two queues", size, two_queues(size, steps), want);
        say("two domains", size, two_domains(size, steps, 0), want);
        say("two domains by maps", size, two_domains(size, steps, 1), want);
        if (svm) say("shared virtual memory", size, one(size, steps, 0, 1, 0), want);
    }
    clReleaseProgram(program), clReleaseContext(context);
    return 0;
}
