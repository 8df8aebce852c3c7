// Kernels that read, write and sample images of every dimension through every sampler; what clSetKernelArg says.
#include "dt.h"

enum { W = 13, H = 9, D = 5, N = 4096 };

static const char *src =
    "kernel void put1(write_only image1d_t m, uint k) { int x = get_global_id(0); write_imageui(m, x, (uint4)(x + k, x * 3, k, 9)); }\n"
    "kernel void put1a(write_only image1d_array_t m, uint k) { int2 p = (int2)(get_global_id(0), get_global_id(1)); write_imageui(m, p, (uint4)(p.x + k, p.y, k, 7)); }\n"
    "kernel void put2(write_only image2d_t m, uint k) { int2 p = (int2)(get_global_id(0), get_global_id(1)); write_imageui(m, p, (uint4)(p.x + k, p.y, p.x * p.y, k)); }\n"
    "kernel void put2a(write_only image2d_array_t m, uint k) { int4 p = (int4)(get_global_id(0), get_global_id(1), get_global_id(2), 0); write_imageui(m, p, (uint4)(p.x + k, p.y, p.z, k)); }\n"
    "#pragma OPENCL EXTENSION cl_khr_3d_image_writes : enable\n"
    "kernel void put3(write_only image3d_t m, uint k) { int4 p = (int4)(get_global_id(0), get_global_id(1), get_global_id(2), 0); write_imageui(m, p, (uint4)(p.x + k, p.y, p.z, k)); }\n"
    "kernel void put1b(write_only image1d_buffer_t m, uint k) { int x = get_global_id(0); write_imageui(m, x, (uint4)(x + k, x * 5, k, 1)); }\n"
    "kernel void get1(read_only image1d_t m, global uint4 *o) { int x = get_global_id(0); o[x] = read_imageui(m, x); }\n"
    "kernel void get1a(read_only image1d_array_t m, global uint4 *o) { int2 p = (int2)(get_global_id(0), get_global_id(1)); o[p.x + p.y * get_global_size(0)] = read_imageui(m, p); }\n"
    "kernel void get2(read_only image2d_t m, global uint4 *o) { int2 p = (int2)(get_global_id(0), get_global_id(1)); o[p.x + p.y * get_global_size(0)] = read_imageui(m, p); }\n"
    "kernel void get2a(read_only image2d_array_t m, global uint4 *o) { int4 p = (int4)(get_global_id(0), get_global_id(1), get_global_id(2), 0); o[p.x + get_global_size(0) * (p.y + p.z * get_global_size(1))] = read_imageui(m, p); }\n"
    "kernel void get3(read_only image3d_t m, global uint4 *o) { int4 p = (int4)(get_global_id(0), get_global_id(1), get_global_id(2), 0); o[p.x + get_global_size(0) * (p.y + p.z * get_global_size(1))] = read_imageui(m, p); }\n"
    "kernel void get1b(read_only image1d_buffer_t m, global uint4 *o) { int x = get_global_id(0); o[x] = read_imageui(m, x); }\n"
    "kernel void sample2(read_only image2d_t m, sampler_t s, global float4 *o, float2 scale, float2 shift) { int2 p = (int2)(get_global_id(0), get_global_id(1));\n"
    "  o[p.x + p.y * get_global_size(0)] = read_imagef(m, s, (float2)(p.x, p.y) * scale + shift); }\n"
    "kernel void sample3(read_only image3d_t m, sampler_t s, global float4 *o, float2 scale, float2 shift) { int4 p = (int4)(get_global_id(0), get_global_id(1), get_global_id(2), 0);\n"
    "  o[p.x + get_global_size(0) * (p.y + p.z * get_global_size(1))] = read_imagef(m, s, (float4)(p.x * scale.x, p.y * scale.y, p.z * scale.x, 0) + shift.x); }\n"
    "constant sampler_t fixed = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP_TO_EDGE | CLK_FILTER_NEAREST;\n"
    "kernel void blur(read_only image2d_t a, write_only image2d_t b) { int2 p = (int2)(get_global_id(0), get_global_id(1)); uint4 v = 0;\n"
    "  for (int y = -1; y < 2; y++) for (int x = -1; x < 2; x++) v += read_imageui(a, fixed, p + (int2)(x, y)); write_imageui(b, p, v / 9); }\n"
    "kernel void sizes(read_only image2d_t a, read_only image3d_t b, read_only image2d_array_t c, global int *o) {\n"
    "  o[0] = get_image_width(a); o[1] = get_image_height(a); o[2] = get_image_depth(b); o[3] = get_image_array_size(c); o[4] = get_image_channel_order(a) == CLK_RGBA;\n"
    "  o[5] = get_image_channel_data_type(a) == CLK_UNSIGNED_INT8; }\n"
    "kernel void plain(global uint *a, local uint *l, uint v) { a[0] = v; }\n";

static cl_program program;
static int pocl;
static const cl_image_format rgba8 = {CL_RGBA, CL_UNSIGNED_INT8};

static const struct { cl_mem_object_type type; const char *put, *get; size_t e[3]; } kinds[] = {
    {CL_MEM_OBJECT_IMAGE1D, "put1", "get1", {W, 1, 1}}, {CL_MEM_OBJECT_IMAGE1D_ARRAY, "put1a", "get1a", {W, H, 1}},
    {CL_MEM_OBJECT_IMAGE2D, "put2", "get2", {W, H, 1}}, {CL_MEM_OBJECT_IMAGE2D_ARRAY, "put2a", "get2a", {W, H, D}},
    {CL_MEM_OBJECT_IMAGE3D, "put3", "get3", {W, H, D}}, {CL_MEM_OBJECT_IMAGE1D_BUFFER, "put1b", "get1b", {W, 1, 1}},
};

static cl_mem image(cl_mem_object_type type, const size_t *e, cl_image_format f, cl_mem_flags flags, cl_mem under, void *p) {
    cl_image_desc d = {.image_type = type, .image_width = e[0], .buffer = under};
    if (type == CL_MEM_OBJECT_IMAGE2D || type == CL_MEM_OBJECT_IMAGE2D_ARRAY || type == CL_MEM_OBJECT_IMAGE3D) d.image_height = e[1];
    if (type == CL_MEM_OBJECT_IMAGE3D) d.image_depth = e[2];
    if (type == CL_MEM_OBJECT_IMAGE1D_ARRAY) d.image_array_size = e[1];
    if (type == CL_MEM_OBJECT_IMAGE2D_ARRAY) d.image_array_size = e[2];
    cl_mem m = clCreateImage(context, flags, &f, &d, p, &err);
    must(err, "clCreateImage");
    return m;
}

static cl_kernel kernel(const char *name) {
    cl_kernel k = clCreateKernel(program, name, &err);
    must(err, name);
    return k;
}

static void run(cl_kernel k, const size_t *e) { must(clEnqueueNDRangeKernel(queue, k, 3, NULL, e, NULL, 0, NULL, NULL), "launch"); }

// round_trip writes an image by a kernel, reads it by another and by the host.
static void round_trip(int own) {
    static unsigned char host[W * H * D * 4], got[W * H * D * 4];
    static cl_uint out[W * H * D * 4];
    for (int i = 0; i < 6; i++) {
        if (kinds[i].type == CL_MEM_OBJECT_IMAGE1D_BUFFER && (own || pocl)) continue; // PoCL 3.1 ends with SIGSEGV
        const size_t *e = kinds[i].e;
        size_t n = e[0] * e[1] * e[2], zero[3] = {0};
        fill(host, sizeof host, 3);
        cl_mem under = kinds[i].type == CL_MEM_OBJECT_IMAGE1D_BUFFER ? buffer(CL_MEM_READ_WRITE, W * 4, NULL) : NULL;
        cl_mem m = image(kinds[i].type, e, rgba8, own ? CL_MEM_USE_HOST_PTR : 0, under, own ? host : NULL);
        cl_mem o = buffer(CL_MEM_READ_WRITE, sizeof out, NULL);
        cl_kernel put = kernel(kinds[i].put), get = kernel(kinds[i].get);
        cl_uint k = 5 + i;
        ERR(L("%d %s arg image", own, kinds[i].put), clSetKernelArg(put, 0, sizeof m, &m));
        clSetKernelArg(put, 1, sizeof k, &k);
        ERR(L("%d %s arg image", own, kinds[i].get), clSetKernelArg(get, 0, sizeof m, &m));
        clSetKernelArg(get, 1, sizeof o, &o);
        if (own) { // before anything was written: what the program passed
            run(get, e);
            must(clEnqueueReadBuffer(queue, o, CL_TRUE, 0, n * 16, out, 0, NULL, NULL), "read");
            int same = 1;
            for (size_t j = 0; j < n * 4; j++) same &= out[j] == host[j];
            SAY(L("%d %s first contents", own, kinds[i].get), "%d", same);
        }
        run(put, e);
        run(get, e);
        must(clEnqueueReadBuffer(queue, o, CL_TRUE, 0, n * 16, out, 0, NULL, NULL), "read");
        HASH(L("%d %s by kernel", own, kinds[i].get), out, n * 16);
        must(clEnqueueReadImage(queue, m, CL_TRUE, zero, e, 0, 0, got, 0, NULL, NULL), "read image");
        HASH(L("%d %s by host", own, kinds[i].get), got, n * 4);
        if (own) {
            clFinish(queue);
            HASH(L("%d %s own memory", own, kinds[i].get), host, n * 4);
            host[0] += 1;
        }
        if (under) {
            must(clEnqueueReadBuffer(queue, under, CL_TRUE, 0, W * 4, got, 0, NULL, NULL), "read");
            HASH(L("%d %s the buffer", own, kinds[i].get), got, W * 4);
            clReleaseMemObject(under);
        }
        clReleaseKernel(put); clReleaseKernel(get); clReleaseMemObject(m); clReleaseMemObject(o);
    }
}

static void samplers(void) {
    static const struct { cl_uint order, type; const char *name; } formats[] = {
        {CL_RGBA, CL_UNORM_INT8, "unorm8"}, {CL_RGBA, CL_FLOAT, "float"}, {CL_RGBA, CL_SNORM_INT16, "snorm16"}, {CL_A, CL_UNORM_INT8, "A unorm8"}, {CL_BGRA, CL_UNORM_INT8, "BGRA"}};
    static const cl_uint modes[] = {CL_ADDRESS_NONE, CL_ADDRESS_CLAMP_TO_EDGE, CL_ADDRESS_CLAMP, CL_ADDRESS_REPEAT, CL_ADDRESS_MIRRORED_REPEAT};
    static float out[N * 4];
    static unsigned char pixels[W * H * D * 16];
    size_t e[3] = {W, H, D}, e2[3] = {W, H, 1}, zero[3] = {0}, g[3] = {24, 20, 1}, g3[3] = {12, 10, 6};
    for (int f = 0; f < 5; f++) {
        cl_image_format format = {formats[f].order, formats[f].type};
        cl_mem m2 = image(CL_MEM_OBJECT_IMAGE2D, e2, format, CL_MEM_READ_ONLY, NULL, NULL), m3 = image(CL_MEM_OBJECT_IMAGE3D, e, format, CL_MEM_READ_ONLY, NULL, NULL);
        cl_mem o = buffer(CL_MEM_WRITE_ONLY, sizeof out, NULL);
        fill(pixels, sizeof pixels, 11);
        if (formats[f].type == CL_FLOAT) for (int i = 0; i < W * H * D * 4; i++) ((float *)pixels)[i] = (float)(i % 97) / 8;
        must(clEnqueueWriteImage(queue, m2, CL_TRUE, zero, e2, 0, 0, pixels, 0, NULL, NULL), "write");
        must(clEnqueueWriteImage(queue, m3, CL_TRUE, zero, e, 0, 0, pixels, 0, NULL, NULL), "write");
        for (int normal = 0; normal < 2; normal++)
            for (int mode = 0; mode < (normal ? 5 : 3); mode++)
                for (cl_uint filter = CL_FILTER_NEAREST; filter <= CL_FILTER_LINEAR; filter++) {
                    cl_sampler s = clCreateSampler(context, normal, modes[mode], filter, &err);
                    must(err, "sampler");
                    // Coordinates go beyond the edges, except where the mode leaves that undefined.
                    cl_float2 scale = {{normal ? 1.0f / 16 : 0.75f, normal ? 1.0f / 16 : 0.75f}}, shift = {{normal ? -0.25f : -3.5f, normal ? -0.25f : -3.5f}};
                    if (mode == 0) scale = (cl_float2){{normal ? 1.0f / 64 : 0.3f, normal ? 1.0f / 64 : 0.3f}}, shift = (cl_float2){{normal ? 0.3f : 1.5f, normal ? 0.3f : 1.5f}};
                    for (int three = 0; three < 2; three++) {
                        cl_kernel k = kernel(three ? "sample3" : "sample2");
                        clSetKernelArg(k, 0, sizeof m2, three ? &m3 : &m2);
                        clSetKernelArg(k, 2, sizeof o, &o);
                        clSetKernelArg(k, 3, sizeof scale, &scale);
                        clSetKernelArg(k, 4, sizeof shift, &shift);
                        const char *n = L("%s %s sampler %d %x %x", formats[f].name, three ? "3d" : "2d", normal, modes[mode], filter);
                        cl_int set = clSetKernelArg(k, 1, sizeof s, &s);
                        memset(out, 0, sizeof out);
                        must(clEnqueueWriteBuffer(queue, o, CL_TRUE, 0, sizeof out, out, 0, NULL, NULL), "clear");
                        run(k, three ? g3 : g);
                        must(clEnqueueReadBuffer(queue, o, CL_TRUE, 0, sizeof out, out, 0, NULL, NULL), "read");
                        SAY(n, "%s %016llx", dt_name(set), (unsigned long long)dt_hash(out, sizeof out));
                        clReleaseKernel(k);
                    }
                    clReleaseSampler(s);
                }
        clReleaseMemObject(m2); clReleaseMemObject(m3); clReleaseMemObject(o);
    }
}

static void arguments(void) {
    size_t e[3] = {W, H, D}, e2[3] = {W, H, 1};
    cl_mem m2 = image(CL_MEM_OBJECT_IMAGE2D, e2, rgba8, 0, NULL, NULL), m3 = image(CL_MEM_OBJECT_IMAGE3D, e, rgba8, 0, NULL, NULL);
    cl_mem ro = image(CL_MEM_OBJECT_IMAGE2D, e2, rgba8, CL_MEM_READ_ONLY, NULL, NULL), wo = image(CL_MEM_OBJECT_IMAGE2D, e2, rgba8, CL_MEM_WRITE_ONLY, NULL, NULL);
    cl_mem b = buffer(CL_MEM_READ_WRITE, 64, NULL), nothing = NULL;
    cl_sampler s = clCreateSampler(context, 1, CL_ADDRESS_CLAMP, CL_FILTER_NEAREST, &err), none = NULL;
    cl_kernel get = kernel("get2"), put = kernel("put2"), sample = kernel("sample2"), plain = kernel("plain");
    cl_uint v = 7;
    ERR("image size 4", clSetKernelArg(get, 0, 4, &m2));
    ERR("image size 16", clSetKernelArg(get, 0, 16, &m2));
    ERR("image value null", clSetKernelArg(get, 0, sizeof m2, NULL));
    ERR("image handle null", clSetKernelArg(get, 0, sizeof m2, &nothing));
    ERR("image is a buffer", clSetKernelArg(get, 0, sizeof b, &b));
    ERR("image is WO", clSetKernelArg(get, 0, sizeof wo, &wo));
    ERR("image is RO", clSetKernelArg(get, 0, sizeof ro, &ro));
    ERR("target is RO", clSetKernelArg(put, 0, sizeof ro, &ro));
    ERR("target is WO", clSetKernelArg(put, 0, sizeof wo, &wo));
    ERR("image is 3D", clSetKernelArg(get, 0, sizeof m3, &m3));
    ERR("buffer is an image", clSetKernelArg(plain, 0, sizeof m2, &m2));
    ERR("buffer is a sampler", clSetKernelArg(plain, 0, sizeof s, &s));
    ERR("sampler good", clSetKernelArg(sample, 1, sizeof s, &s));
    ERR("sampler size 4", clSetKernelArg(sample, 1, 4, &s));
    ERR("sampler value null", clSetKernelArg(sample, 1, sizeof s, NULL));
    ERR("sampler handle null", clSetKernelArg(sample, 1, sizeof none, &none));
    ERR("value", clSetKernelArg(plain, 2, sizeof v, &v));
    cl_kernel_arg_access_qualifier access;
    for (int i = 0; i < 2; i++) {
        cl_int e1 = clGetKernelArgInfo(i ? put : get, 0, CL_KERNEL_ARG_ACCESS_QUALIFIER, sizeof access, &access, NULL);
        SAY(L("access %d", i), "%s %x", dt_name(e1), e1 ? 0 : access);
        char name[64] = "";
        e1 = clGetKernelArgInfo(i ? put : sample, i ? 0 : 1, CL_KERNEL_ARG_TYPE_NAME, sizeof name, name, NULL);
        SAY(L("type %d", i), "%s %s", dt_name(e1), name);
    }
    size_t g[3] = {W, H, 1};
    cl_kernel unset = kernel("sample2");
    ERR("launch without arguments", clEnqueueNDRangeKernel(queue, unset, 2, NULL, g, NULL, 0, NULL, NULL));
    clReleaseKernel(unset); clReleaseKernel(get); clReleaseKernel(put); clReleaseKernel(sample); clReleaseKernel(plain);
    clReleaseMemObject(m2); clReleaseMemObject(m3); clReleaseMemObject(ro); clReleaseMemObject(wo); clReleaseMemObject(b);
    clReleaseSampler(s);
}

static void pipeline(void) {
    size_t e[3] = {64, 48, 1}, zero[3] = {0};
    static unsigned char px[64 * 48 * 4];
    cl_mem a = image(CL_MEM_OBJECT_IMAGE2D, e, rgba8, 0, NULL, NULL), b = image(CL_MEM_OBJECT_IMAGE2D, e, rgba8, 0, NULL, NULL);
    cl_kernel k = kernel("blur");
    fill(px, sizeof px, 5);
    must(clEnqueueWriteImage(queue, a, CL_FALSE, zero, e, 0, 0, px, 0, NULL, NULL), "write");
    for (int i = 0; i < 10; i++) {
        clSetKernelArg(k, 0, sizeof a, i % 2 ? &b : &a);
        clSetKernelArg(k, 1, sizeof a, i % 2 ? &a : &b);
        run(k, e);
    }
    static unsigned char out[sizeof px];
    must(clEnqueueReadImage(queue, a, CL_TRUE, zero, e, 0, 0, out, 0, NULL, NULL), "read");
    HASH("ten blurs", out, sizeof out);
    clReleaseKernel(k);
    cl_mem c = image(CL_MEM_OBJECT_IMAGE3D, (size_t[]){W, H, D}, rgba8, 0, NULL, NULL), d = image(CL_MEM_OBJECT_IMAGE2D_ARRAY, (size_t[]){W, H, D}, rgba8, 0, NULL, NULL);
    cl_mem o = buffer(0, 64, NULL);
    int said[6] = {0};
    k = kernel("sizes");
    clSetKernelArg(k, 0, sizeof a, &a); clSetKernelArg(k, 1, sizeof c, &c); clSetKernelArg(k, 2, sizeof d, &d); clSetKernelArg(k, 3, sizeof o, &o);
    run(k, (size_t[]){1, 1, 1});
    must(clEnqueueReadBuffer(queue, o, CL_TRUE, 0, sizeof said, said, 0, NULL, NULL), "read");
    SAY("sizes", "%d %d %d %d %d %d", said[0], said[1], said[2], said[3], said[4], said[5]);
    clReleaseKernel(k);
    clReleaseMemObject(a); clReleaseMemObject(b); clReleaseMemObject(c); clReleaseMemObject(d); clReleaseMemObject(o);
}

// binary runs the same from a binary, which has no argument information.
static void binary(void) {
    size_t size = 0;
    must(clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, NULL), "sizes");
    unsigned char *bytes = malloc(size);
    must(clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof bytes, &bytes, NULL), "binaries");
    cl_program source = program;
    program = clCreateProgramWithBinary(context, 1, &device, &size, (const unsigned char **)&bytes, NULL, &err);
    must(err, "clCreateProgramWithBinary");
    must(clBuildProgram(program, 1, &device, NULL, NULL, NULL), "build");
    size_t e[3] = {W, H, 1}, zero[3] = {0};
    static float out[N];
    static unsigned char px[W * H * 4];
    cl_mem m = image(CL_MEM_OBJECT_IMAGE2D, e, (cl_image_format){CL_RGBA, CL_UNORM_INT8}, 0, NULL, NULL), o = buffer(0, sizeof out, NULL);
    cl_sampler s = clCreateSampler(context, 0, CL_ADDRESS_CLAMP_TO_EDGE, CL_FILTER_LINEAR, &err);
    fill(px, sizeof px, 5);
    must(clEnqueueWriteImage(queue, m, CL_TRUE, zero, e, 0, 0, px, 0, NULL, NULL), "write");
    cl_kernel k = kernel("sample2");
    cl_float2 scale = {{0.5f, 0.5f}}, shift = {{1, 1}};
    ERR("binary image", clSetKernelArg(k, 0, sizeof m, &m));
    ERR("binary sampler", clSetKernelArg(k, 1, sizeof s, &s));
    clSetKernelArg(k, 2, sizeof o, &o); clSetKernelArg(k, 3, sizeof scale, &scale); clSetKernelArg(k, 4, sizeof shift, &shift);
    run(k, e);
    must(clEnqueueReadBuffer(queue, o, CL_TRUE, 0, W * H * 16, out, 0, NULL, NULL), "read");
    HASH("binary sampled", out, W * H * 16);
    clReleaseKernel(k); clReleaseSampler(s); clReleaseMemObject(m); clReleaseMemObject(o); clReleaseProgram(program);
    program = source;
    free(bytes);
}

int main(void) {
    setup(0);
    char name[128] = "";
    clGetDeviceInfo(device, CL_DEVICE_VERSION, sizeof name, name, NULL);
    pocl = strstr(name, "PoCL") != NULL;
    program = build(src, "-cl-kernel-arg-info");
    round_trip(0);
    round_trip(1);
    samplers();
    arguments();
    pipeline();
    binary();
    clReleaseProgram(program);
    ERR("finish", clFinish(queue));
    return 0;
}
