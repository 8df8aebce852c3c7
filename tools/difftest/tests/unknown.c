// Arguments of kernels of which the driver gives no information: a program built without -cl-kernel-arg-info, and its binary.
#include "dt.h"

static const char *source =
    "typedef struct { int a, b; } pair; typedef struct { float v[6]; } six;\n"
    "kernel void plain(global int *g, constant int *c, local int *l, int i, ulong u, float2 f, char3 t, double16 d, pair p, six x, global const int *r)\n"
    "{ int k = get_global_id(0); l[k & 3] = c[k] + i + (int)u + (int)f.y + t.z + (int)d.sf + p.b + (int)x.v[5]; barrier(1); g[k] = l[k & 3] + r[k]; }\n"
    "kernel void drawn(read_only image2d_t im, sampler_t s, write_only image2d_t to, ulong u)\n"
    "{ write_imagef(to, (int2)(0, 0), read_imagef(im, s, (int2)(0, 0)) + u); }\n";

static int natively;

static void try(const char *origin, cl_program p, const char *name, cl_uint arguments) {
    cl_kernel k = clCreateKernel(p, name, &err);
    must(err, "clCreateKernel");
    cl_image_format format = {CL_RGBA, CL_UNORM_INT8};
    cl_image_desc flat = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 4, .image_height = 4};
    cl_mem b = buffer(CL_MEM_READ_WRITE, 64, NULL), im = clCreateImage(context, CL_MEM_READ_WRITE, &format, &flat, NULL, &err);
    cl_sampler s = clCreateSampler(context, CL_FALSE, CL_ADDRESS_CLAMP, CL_FILTER_NEAREST, &err);
    uintptr_t odd = 0x1234, wild = 0x123456789000, ones = ~(uintptr_t)0;
    unsigned char zeros[256] = {0};
    static uintptr_t block[512]; // what lies here is no object
    uintptr_t inside = (uintptr_t)block;
    struct { const char *name; size_t size; const void *value; int follows; } tries[] = {
        {"nothing of 4", 4, NULL, 0}, {"nothing of 8", 8, NULL, 0}, {"zeros of 1", 1, zeros, 0}, {"zeros of 2", 2, zeros, 0},
        {"zeros of 4", 4, zeros, 0}, {"zeros of 8", 8, zeros, 0}, {"zeros of 12", 12, zeros, 0}, {"zeros of 24", 24, zeros, 0}, {"zeros of 128", 128, zeros, 0},
        {"buffer", 8, &b, 0}, {"image", 8, &im, 0}, {"sampler", 8, &s, 0},
        {"odd number", 8, &odd, 1}, {"wild number", 8, &wild, 1}, {"ones", 8, &ones, 1}, {"memory", 8, &inside, 1}, {"kernel", 8, &k, 1}, {"queue", 8, &queue, 1},
    };
    for (cl_uint a = 0; a < arguments; a++) {
        char type[64] = "";
        cl_int e = clGetKernelArgInfo(k, a, CL_KERNEL_ARG_TYPE_NAME, sizeof type, type, NULL);
        SAY(L("%s %s %u info", origin, name, a), "%s", dt_name(e));
        for (size_t t = 0; t < sizeof tries / sizeof *tries; t++) {
            int object = strcmp(name, "plain") == 0 ? a < 2 || a == 10 : a < 3;
            const char *label = L("%s %s %u %s", origin, name, a, tries[t].name);
            if (natively && object && tries[t].follows) SAY(label, "skipped"); // the driver would follow it
            else ERR(label, clSetKernelArg(k, a, tries[t].size, tries[t].value));
        }
    }
}

int main(void) {
    setup(0);
    char name[128] = "";
    clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof name, name, NULL);
    natively = strncmp(name, "Tendril", 7) != 0;
    cl_program p = build(source, "");
    try("source", p, "plain", 11);
    try("source", p, "drawn", 4);
    size_t length = 0;
    must(clGetProgramInfo(p, CL_PROGRAM_BINARY_SIZES, sizeof length, &length, NULL), "binary size");
    unsigned char *binary = malloc(length);
    must(clGetProgramInfo(p, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL), "binary");
    cl_program again = clCreateProgramWithBinary(context, 1, &device, &length, (const unsigned char **)&binary, NULL, &err);
    must(err, "clCreateProgramWithBinary");
    must(clBuildProgram(again, 1, &device, "", NULL, NULL), "build of a binary");
    try("binary", again, "plain", 11);
    free(binary);
    ERR("finish", clFinish(queue));
    return 0;
}
