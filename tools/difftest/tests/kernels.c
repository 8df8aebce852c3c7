// Kernel arguments of every kind, and launches with right and wrong shapes.
#include "dt.h"

static const char *src =
    "typedef struct { int a; float b; char c; double d; short e[3]; } S;\n"
    "kernel void scalars(global ulong *o, char c, uchar uc, short s, ushort us, int i, uint ui, long l, ulong ul, float f) {\n"
    "  o[0] = c; o[1] = uc; o[2] = s; o[3] = us; o[4] = i; o[5] = ui; o[6] = l; o[7] = ul; o[8] = as_uint(f); }\n"
    "kernel void vectors(global float *o, char2 a, uchar4 b, short8 c, int3 d, float4 e, float16 f, long2 g) {\n"
    "  o[0] = a.y; o[1] = b.w; o[2] = c.s7; o[3] = d.z; o[4] = e.w; o[5] = f.sf; o[6] = g.y; }\n"
    "kernel void structs(global float *o, S s) { o[0] = s.a; o[1] = s.b; o[2] = s.c; o[3] = s.d; o[4] = s.e[2]; }\n"
    "kernel void locals(global int *o, local int *t, int n, local int *u) { int l = get_local_id(0); t[l] = l * n; u[l] = t[l] + 1; barrier(CLK_LOCAL_MEM_FENCE);\n"
    "  o[get_global_id(0)] = t[get_local_size(0) - 1 - l] + u[l]; }\n"
    "kernel void nulls(global int *maybe, global int *o) { *o = maybe == 0 ? 1 : *maybe; }\n"
    "kernel void constants(constant int *c, global int *o) { o[get_global_id(0)] = c[get_global_id(0)] * 3; }\n"
    "kernel void ids(global uint *o) { uint i = get_global_id(0) - get_global_offset(0) + get_global_size(0) * (get_global_id(1) - get_global_offset(1)\n"
    "  + get_global_size(1) * (get_global_id(2) - get_global_offset(2)));\n"
    "  o[i] = get_global_id(0) + 31 * get_global_id(1) + 977 * get_global_id(2) + 7 * get_local_id(0) + 3 * get_group_id(0) + get_work_dim() + 5 * get_num_groups(0); }\n"
    "kernel __attribute__((reqd_work_group_size(4, 2, 1))) void fixed(global int *o) { o[get_global_id(0)] = 1; }\n"
    "kernel void noargs(void) {}\n"
    "kernel void statics(global int *o) { local int s[64]; s[get_local_id(0)] = get_local_id(0); barrier(CLK_LOCAL_MEM_FENCE); o[get_global_id(0)] = s[0]; }\n";

static cl_program program;
static unsigned char out[65536];

static cl_kernel make(const char *name) {
    cl_kernel k = clCreateKernel(program, name, &err);
    must(err, name);
    return k;
}

static void run(const char *label, cl_kernel k, cl_mem o, size_t g, size_t l, size_t n) {
    memset(out, 0, n);
    must(clEnqueueWriteBuffer(queue, o, CL_TRUE, 0, n, out, 0, NULL, NULL), "clear");
    ERR(label, clEnqueueNDRangeKernel(queue, k, 1, NULL, &g, l ? &l : NULL, 0, NULL, NULL));
    cl_int e = clEnqueueReadBuffer(queue, o, CL_TRUE, 0, n, out, 0, NULL, NULL);
    SAY(L("%s result", label), "%s %016llx", dt_name(e), (unsigned long long)dt_hash(out, n));
}

static void kinds(cl_mem o) {
    cl_kernel k = make("scalars");
    cl_char c = -5; cl_uchar uc = 250; cl_short s = -300; cl_ushort us = 60000; cl_int i = -70000; cl_uint ui = 4000000000u;
    cl_long l = -5000000000; cl_ulong ul = 18000000000000000000u; cl_float f = 1.5f;
    const void *v[] = {&o, &c, &uc, &s, &us, &i, &ui, &l, &ul, &f};
    size_t n[] = {sizeof o, 1, 1, 2, 2, 4, 4, 8, 8, 4};
    for (cl_uint a = 0; a < 10; a++) ERR(L("scalars arg %u", a), clSetKernelArg(k, a, n[a], v[a]));
    run("scalars", k, o, 1, 0, 72);
    i = 12; // the value at clSetKernelArg counts, not that at the launch
    run("scalars again", k, o, 1, 0, 72);
    clReleaseKernel(k);
    k = make("vectors");
    cl_char2 a2 = {{1, 2}}; cl_uchar4 b4 = {{3, 4, 5, 6}}; cl_short8 c8 = {{1, 2, 3, 4, 5, 6, 7, 8}}; cl_int3 d3 = {{9, 10, 11}};
    cl_float4 e4 = {{1, 2, 3, 4.25f}}; cl_float16 f16; cl_long2 g2 = {{7, 8}};
    for (int x = 0; x < 16; x++) f16.s[x] = (float)x;
    clSetKernelArg(k, 0, sizeof o, &o);
    ERR("vectors char2", clSetKernelArg(k, 1, sizeof a2, &a2));
    ERR("vectors uchar4", clSetKernelArg(k, 2, sizeof b4, &b4));
    ERR("vectors short8", clSetKernelArg(k, 3, sizeof c8, &c8));
    ERR("vectors int3", clSetKernelArg(k, 4, sizeof d3, &d3));
    ERR("vectors int3 as 12", clSetKernelArg(k, 4, 12, &d3));
    ERR("vectors int3 again", clSetKernelArg(k, 4, sizeof d3, &d3));
    ERR("vectors float4", clSetKernelArg(k, 5, sizeof e4, &e4));
    ERR("vectors float16", clSetKernelArg(k, 6, sizeof f16, &f16));
    ERR("vectors long2", clSetKernelArg(k, 7, sizeof g2, &g2));
    run("vectors", k, o, 1, 0, 28);
    clReleaseKernel(k);
    k = make("structs");
    struct { int a; float b; char c; double d; short e[3]; } st = {1, 2.5f, 'x', 4.125, {5, 6, 7}};
    clSetKernelArg(k, 0, sizeof o, &o);
    ERR("structs arg", clSetKernelArg(k, 1, sizeof st, &st));
    run("structs", k, o, 1, 0, 20);
    clReleaseKernel(k);
    k = make("locals");
    cl_int three = 3;
    clSetKernelArg(k, 0, sizeof o, &o);
    ERR("local", clSetKernelArg(k, 1, 64 * 4, NULL));
    clSetKernelArg(k, 2, sizeof three, &three);
    clSetKernelArg(k, 3, 64 * 4, NULL);
    run("locals", k, o, 256, 64, 1024);
    ERR("local with a value", clSetKernelArg(k, 1, 16, &three));
    ERR("local size 0", clSetKernelArg(k, 1, 0, NULL));
    ERR("local beyond the device", clSetKernelArg(k, 1, (size_t)1 << 40, NULL));
    clReleaseKernel(k);
    k = make("nulls");
    cl_mem null = NULL;
    ERR("set null mem by value", clSetKernelArg(k, 0, sizeof null, &null));
    clSetKernelArg(k, 1, sizeof o, &o);
    run("null mem by value", k, o, 1, 0, 4);
    ERR("set null mem by pointer", clSetKernelArg(k, 0, sizeof null, NULL));
    run("null mem by pointer", k, o, 1, 0, 4);
    clReleaseKernel(k);
    k = make("constants");
    cl_int cs[16];
    for (int x = 0; x < 16; x++) cs[x] = x * x;
    cl_mem cb = buffer(CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, sizeof cs, cs);
    clSetKernelArg(k, 0, sizeof cb, &cb);
    clSetKernelArg(k, 1, sizeof o, &o);
    run("constants", k, o, 16, 0, 64);
    // An argument's buffer may be released once the kernel is enqueued... and after it was set.
    clEnqueueNDRangeKernel(queue, k, 1, NULL, (size_t[]){16}, NULL, 0, NULL, NULL);
    ERR("release an argument in flight", clReleaseMemObject(cb));
    ERR("finish", clFinish(queue));
    clReleaseKernel(k);
}

static void wrong(cl_mem o) {
    cl_kernel k = make("scalars"), v = make("structs"), l = make("locals");
    cl_int i = 1;
    cl_mem ro = buffer(CL_MEM_READ_ONLY, 64, NULL);
    ERR("arg null kernel", clSetKernelArg(NULL, 0, sizeof o, &o));
    ERR("arg index too high", clSetKernelArg(k, 10, sizeof i, &i));
    ERR("arg index 1000", clSetKernelArg(k, 1000, sizeof i, &i));
    ERR("arg scalar null", clSetKernelArg(k, 5, sizeof i, NULL));
    for (size_t n = 0; n < 10; n++) ERR(L("arg int of size %zu", n), clSetKernelArg(k, 5, n, "0123456789"));
    ERR("arg char of size 4", clSetKernelArg(k, 1, 4, &i));
    ERR("arg mem of size 4", clSetKernelArg(k, 0, 4, &o));
    ERR("arg mem of size 16", clSetKernelArg(k, 0, 16, "0123456789abcdef"));
    ERR("arg struct too small", clSetKernelArg(v, 1, 16, "0123456789abcdef"));
    ERR("arg struct too large", clSetKernelArg(v, 1, 64, "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"));
    ERR("arg read-only buffer", clSetKernelArg(k, 0, sizeof ro, &ro));
    size_t one = 1;
    ERR("launch without arguments", clEnqueueNDRangeKernel(queue, l, 1, NULL, &one, NULL, 0, NULL, NULL));
    clSetKernelArg(l, 0, sizeof o, &o);
    ERR("launch with one argument", clEnqueueNDRangeKernel(queue, l, 1, NULL, &one, NULL, 0, NULL, NULL));
    ERR("clone", clRetainKernel(v));
    REFS("kernel refs", v, Kernel, KERNEL);
    ERR("release kernel", clReleaseKernel(v));
    ERR("retain null kernel", clRetainKernel(NULL));
    ERR("release null kernel", clReleaseKernel(NULL));
    clReleaseKernel(k); clReleaseKernel(v); clReleaseKernel(l); clReleaseMemObject(ro);
}

static void shapes(cl_mem o) {
    cl_kernel k = make("ids"), f = make("fixed"), n = make("noargs");
    clSetKernelArg(k, 0, sizeof o, &o);
    clSetKernelArg(f, 0, sizeof o, &o);
    struct { cl_uint d; size_t off[3], g[3], l[3]; int hasoff, haslocal; const char *w; } cases[] = {
        {1, {0}, {64, 1, 1}, {0}, 0, 0, "1d"}, {1, {0}, {64, 1, 1}, {16}, 0, 1, "1d by 16"}, {1, {100}, {64, 1, 1}, {16}, 1, 1, "1d offset"},
        {2, {0}, {16, 8, 1}, {4, 2}, 0, 1, "2d"}, {2, {3, 5}, {16, 8, 1}, {16, 1}, 1, 1, "2d offset"}, {3, {0}, {8, 4, 2}, {2, 2, 2}, 0, 1, "3d"},
        {3, {1, 2, 3}, {8, 4, 2}, {0}, 1, 0, "3d offset"}, {1, {0}, {60, 1, 1}, {16}, 0, 1, "not divisible"}, {1, {0}, {7, 1, 1}, {7}, 0, 1, "7 by 7"},
        {1, {0}, {0, 1, 1}, {0}, 0, 0, "global 0"}, {2, {0}, {4, 0, 1}, {0}, 0, 0, "global 4x0"}, {1, {0}, {64, 1, 1}, {0}, 0, 1, "local 0"},
        {0, {0}, {64, 1, 1}, {0}, 0, 0, "dimension 0"}, {4, {0}, {64, 1, 1}, {0}, 0, 0, "dimension 4"}, {1, {0}, {8192, 1, 1}, {8192}, 0, 1, "group of 8192"},
        {1, {0}, {4096, 1, 1}, {4096}, 0, 1, "group of 4096"}, {2, {0}, {128, 128, 1}, {128, 128}, 0, 1, "group of 128x128"}, {1, {0}, {64, 1, 1}, {128}, 0, 1, "group larger than global"},
        {1, {~(size_t)0}, {64, 1, 1}, {0}, 1, 0, "offset wraps"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memset(out, 0, 4096);
        clEnqueueWriteBuffer(queue, o, CL_TRUE, 0, 4096, out, 0, NULL, NULL);
        for (int again = 0; again < 2; again++) // the second launch takes another way: the first asked the driver
            ERR(L("shape %s, %d", cases[i].w, again), clEnqueueNDRangeKernel(queue, k, cases[i].d, cases[i].hasoff ? cases[i].off : NULL, cases[i].g, cases[i].haslocal ? cases[i].l : NULL, 0, NULL, NULL));
        cl_int e = clEnqueueReadBuffer(queue, o, CL_TRUE, 0, 4096, out, 0, NULL, NULL);
        if (cases[i].haslocal) SAY(L("shape %s result", cases[i].w), "%s %016llx", dt_name(e), (unsigned long long)dt_hash(out, 4096));
    }
    size_t g[3] = {8, 8, 1}, right[3] = {4, 2, 1}, wrongl[3] = {2, 4, 1};
    for (int again = 0; again < 2; again++) {
        ERR(L("fixed right, %d", again), clEnqueueNDRangeKernel(queue, f, 2, NULL, g, right, 0, NULL, NULL));
        ERR(L("fixed wrong, %d", again), clEnqueueNDRangeKernel(queue, f, 2, NULL, g, wrongl, 0, NULL, NULL));
        ERR(L("fixed none, %d", again), clEnqueueNDRangeKernel(queue, f, 2, NULL, g, NULL, 0, NULL, NULL));
    }
    ERR("null queue", clEnqueueNDRangeKernel(NULL, k, 1, NULL, g, NULL, 0, NULL, NULL));
    ERR("noargs", clEnqueueNDRangeKernel(queue, n, 1, NULL, g, NULL, 0, NULL, NULL));
    ERR("task", clEnqueueTask(queue, n, 0, NULL, NULL));
    cl_kernel l = make("locals");
    cl_int one = 1;
    cl_ulong local = 0;
    clGetDeviceInfo(device, CL_DEVICE_LOCAL_MEM_SIZE, sizeof local, &local, NULL);
    clSetKernelArg(l, 0, sizeof o, &o);
    clSetKernelArg(l, 2, sizeof one, &one);
    clSetKernelArg(l, 3, 256, NULL);
    size_t sixteen = 16;
    for (int i = 0; i < 2; i++) {
        ERR(L("all local memory set, %d", i), clSetKernelArg(l, 1, (size_t)local, NULL));
        ERR(L("all local memory launch, %d", i), clEnqueueNDRangeKernel(queue, l, 1, NULL, &sixteen, &sixteen, 0, NULL, NULL));
        clSetKernelArg(l, 1, 256, NULL);
        ERR(L("little local memory launch, %d", i), clEnqueueNDRangeKernel(queue, l, 1, NULL, &sixteen, &sixteen, 0, NULL, NULL));
    }
    ERR("native kernel", clEnqueueNativeKernel(queue, NULL, NULL, 0, 0, NULL, NULL, 0, NULL, NULL));
    ERR("finish shapes", clFinish(queue));
    cl_kernel c = clCloneKernel(l, &err);
    SAY("clone kernel", "%s%s", dt_name(err), c ? " object" : "");
    if (c) {
        ERR("clone launch", clEnqueueNDRangeKernel(queue, c, 1, NULL, &sixteen, &sixteen, 0, NULL, NULL));
        clReleaseKernel(c);
    }
    clFinish(queue);
}

int main(void) {
    setup(0);
    program = build(src, "");
    cl_mem o = buffer(0, sizeof out, NULL);
    kinds(o);
    wrong(o);
    shapes(o);
    ERR("last finish", clFinish(queue));
    return 0;
}
