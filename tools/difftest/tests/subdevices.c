// Programs and sub-devices: for whom a program was made, built and asked, in every combination of a device, a part of
// it and a part of that part; from source, binaries, in parts and linked.
#define _GNU_SOURCE
#include "dt.h"

#define DEVICES 3 // the device, a part of it, and a part of that if there is one, else another part
static cl_device_id dev[DEVICES];
static const char *names = "PSO";
static const char *source = "kernel void k(global int *a, int b) { size_t i = get_global_id(0); a[i] += b; }\n"
                            "kernel __attribute__((reqd_work_group_size(8, 1, 1))) void fixed(global int *a, int b) { a[get_global_id(0)] -= b; }\n";

// set names the devices of a mask, in their order.
static const char *set(unsigned mask) {
    static char ring[4][8];
    static int at;
    char *s = ring[at = (at + 1) % 4];
    size_t n = 0;
    for (int i = 0; i < DEVICES; i++)
        if (mask >> i & 1) s[n++] = names[i];
    s[n] = 0;
    return s;
}

static cl_uint list(unsigned mask, cl_device_id *out) {
    cl_uint n = 0;
    for (int i = 0; i < DEVICES; i++)
        if (mask >> i & 1) out[n++] = dev[i];
    return n;
}

// state says what the program tells of itself.
static void state(const char *label, cl_program p, unsigned of) {
    size_t sizes[8] = {0}, n = 99, kernels = 99;
    cl_uint devices = 99;
    cl_device_id got[8] = {0};
    cl_int e = clGetProgramInfo(p, CL_PROGRAM_NUM_DEVICES, sizeof devices, &devices, NULL);
    clGetProgramInfo(p, CL_PROGRAM_DEVICES, sizeof got, got, &n);
    size_t known = 0;
    for (size_t i = 0; i < n / sizeof *got && i < 8; i++)
        for (int j = 0; j < DEVICES; j++) known += got[i] == dev[j];
    SAY(L("%s devices", label), "%s %s", dt_name(e), known == devices && devices ? "ours" : "others");
    e = clGetProgramInfo(p, CL_PROGRAM_BINARY_SIZES, sizeof sizes, sizes, &n);
    size_t have = 0;
    for (size_t i = 0; i < n / sizeof *sizes && i < 8; i++) have += sizes[i] != 0;
    SAY(L("%s binaries", label), "%s %s", dt_name(e), e ? "" : have == devices ? "all" : have ? "some" : "none");
    e = clGetProgramInfo(p, CL_PROGRAM_NUM_KERNELS, sizeof kernels, &kernels, NULL);
    SAY(L("%s kernels", label), "%s %zu", dt_name(e), e ? 0 : kernels);
    for (int i = 0; i < DEVICES; i++) {
        if (!(of >> i & 1)) continue;
        cl_build_status s = 99;
        cl_program_binary_type t = 99;
        e = clGetProgramBuildInfo(p, dev[i], CL_PROGRAM_BUILD_STATUS, sizeof s, &s, NULL);
        clGetProgramBuildInfo(p, dev[i], CL_PROGRAM_BINARY_TYPE, sizeof t, &t, NULL);
        SAY(L("%s on %c", label, names[i]), "%s status %d type %d", dt_name(e), s, t);
    }
}

// name makes a label that stays.
static const char *name(const char *format, ...) __attribute__((format(printf, 1, 2)));
static const char *name(const char *format, ...) {
    char *s = NULL;
    va_list a;
    va_start(a, format);
    if (vasprintf(&s, format, a) < 0) exit(3);
    va_end(a);
    return s;
}

// launches runs both kernels on every device of the context.
static void launches(const char *label, cl_context c, cl_program p, unsigned devices) {
    for (int which = 0; which < 2; which++) {
        cl_kernel k;
        const char *id = name("%s %s", label, which ? "fixed" : "k");
        MAKE(L("%s made", id), k, clCreateKernel(p, which ? "fixed" : "k", &err));
        if (!k) continue;
        cl_mem m = clCreateBuffer(c, 0, 64 * sizeof(int), NULL, &err);
        int zero = 0, b = 3, v[64];
        clSetKernelArg(k, 0, sizeof m, &m);
        clSetKernelArg(k, 1, sizeof b, &b);
        for (int i = 0; i < DEVICES; i++) {
            if (!(devices >> i & 1)) continue;
            size_t size = 99, w[3] = {9, 9, 9}, g = 64, l = 8;
            cl_int e = clGetKernelWorkGroupInfo(k, dev[i], CL_KERNEL_WORK_GROUP_SIZE, sizeof size, &size, NULL);
            SAY(L("%s info %c", id, names[i]), "%s %zu", dt_name(e), e ? 0 : size);
            e = clGetKernelWorkGroupInfo(k, dev[i], CL_KERNEL_COMPILE_WORK_GROUP_SIZE, sizeof w, w, NULL);
            SAY(L("%s compile size %c", id, names[i]), "%s %zu", dt_name(e), e ? 0 : w[0]);
            cl_command_queue q = clCreateCommandQueue(c, dev[i], 0, &err);
            must(err, "clCreateCommandQueue");
            clEnqueueFillBuffer(q, m, &zero, sizeof zero, 0, sizeof v, 0, NULL, NULL);
            ERR(L("%s launch %c", id, names[i]), clEnqueueNDRangeKernel(q, k, 1, NULL, &g, &l, 0, NULL, NULL));
            l = 4;
            ERR(L("%s launch of 4 %c", id, names[i]), clEnqueueNDRangeKernel(q, k, 1, NULL, &g, &l, 0, NULL, NULL));
            e = clEnqueueReadBuffer(q, m, CL_TRUE, 0, sizeof v, v, 0, NULL, NULL);
            SAY(L("%s result %c", id, names[i]), "%s %d %d", dt_name(e), v[0], v[63]);
            clReleaseCommandQueue(q);
        }
        size_t size = 99;
        cl_int e = clGetKernelWorkGroupInfo(k, NULL, CL_KERNEL_WORK_GROUP_SIZE, sizeof size, &size, NULL);
        SAY(L("%s info of none", id), "%s %zu", dt_name(e), e ? 0 : size);
        clReleaseKernel(k), clReleaseMemObject(m);
    }
}

// binaries makes a program for some devices from what another was built to, and builds it for some.
static void binaries(const char *label, cl_context c, cl_program p, unsigned devices) {
    size_t sizes[8] = {0}, n = 0;
    unsigned char *bytes[8] = {0};
    const unsigned char *of[8];
    if (clGetProgramInfo(p, CL_PROGRAM_BINARY_SIZES, sizeof sizes, sizes, &n)) return;
    n /= sizeof *sizes;
    size_t any = n;
    for (size_t i = 0; i < n; i++) {
        bytes[i] = malloc(sizes[i] + 1);
        if (sizes[i] && any == n) any = i;
    }
    ERR(L("%s bytes", label), clGetProgramInfo(p, CL_PROGRAM_BINARIES, sizeof bytes, bytes, NULL));
    if (any == n) return;
    for (unsigned from = 1; from < 1u << DEVICES; from++) {
        if (from & ~devices) continue;
        cl_device_id to[DEVICES];
        size_t lengths[DEVICES];
        cl_int st[DEVICES] = {7, 7, 7};
        cl_uint m = list(from, to);
        for (cl_uint i = 0; i < m; i++) of[i] = bytes[any], lengths[i] = sizes[any];
        const char *id = name("%s from %s", label, set(from));
        cl_program q;
        MAKE(L("%s", id), q, clCreateProgramWithBinary(c, m, to, lengths, of, st, &err));
        SAY(L("%s verdicts", id), "%s", st[0] ? "bad" : "good");
        if (!q) continue;
        state(name("%s unbuilt", id), q, from);
        cl_kernel k;
        MAKE(L("%s kernel unbuilt", id), k, clCreateKernel(q, "k", &err));
        if (k) clReleaseKernel(k);
        ERR(L("%s build", id), clBuildProgram(q, 0, NULL, "", NULL, NULL));
        state(name("%s built", id), q, from);
        launches(id, c, q, devices);
        clReleaseProgram(q);
    }
    for (size_t i = 0; i < n; i++) free(bytes[i]);
}

static void one(unsigned devices, unsigned target) {
    cl_device_id in[DEVICES], to[DEVICES];
    cl_uint n = list(devices, in), m = list(target, to);
    const char *id = name("%s for %s", set(devices), target ? set(target) : "all");
    cl_context c = clCreateContext(NULL, n, in, NULL, NULL, &err);
    must(err, "clCreateContext");
    cl_program p = clCreateProgramWithSource(c, 1, &source, NULL, &err);
    must(err, "clCreateProgramWithSource");
    cl_int e = clBuildProgram(p, m, m ? to : NULL, "", NULL, NULL);
    ERR(L("%s build", id), e);
    state(id, p, devices);
    launches(id, c, p, devices);
    if (!e && !target) binaries(id, c, p, devices);
    clReleaseProgram(p);
    p = clCreateProgramWithSource(c, 1, &source, NULL, &err);
    ERR(L("%s compile", id), clCompileProgram(p, m, m ? to : NULL, "", 0, NULL, NULL, NULL, NULL));
    state(name("%s compiled", id), p, devices);
    cl_program linked;
    MAKE(L("%s link", id), linked, clLinkProgram(c, m, m ? to : NULL, "", 1, &p, NULL, NULL, &err));
    if (linked) {
        state(name("%s linked", id), linked, devices);
        launches(name("%s linked", id), c, linked, devices);
        clReleaseProgram(linked);
    }
    clReleaseProgram(p);
    clReleaseContext(c);
}

int main(void) {
    setup(0);
    dev[0] = device;
    cl_device_partition_property counts[] = {CL_DEVICE_PARTITION_BY_COUNTS, 1, CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0},
        equally[] = {CL_DEVICE_PARTITION_EQUALLY, 1, 0};
    must(clCreateSubDevices(device, counts, 1, &dev[1], NULL), "clCreateSubDevices");
    if (clCreateSubDevices(dev[1], equally, 1, &dev[2], NULL)) {
        cl_device_id more[64];
        must(clCreateSubDevices(device, equally, 64, more, NULL), "clCreateSubDevices");
        dev[2] = more[0];
    }
    for (unsigned devices = 1; devices < 1u << DEVICES; devices++)
        for (unsigned target = 0; target <= devices; target++)
            if (!(target & ~devices)) one(devices, target);
    return 0;
}
