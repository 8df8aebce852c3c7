// Programs: sources, options, errors, logs, binaries; what they say of themselves.
#include "dt.h"
#include <pthread.h>

static const char *good =
    "#ifndef K\n#define K 3\n#endif\n"
    "kernel void add(global int *a, int b) { a[get_global_id(0)] += b * K; }\n"
    "kernel __attribute__((reqd_work_group_size(8, 1, 1))) void fixed(global const float *restrict in, local float *tmp, constant float *c, global float *out) {\n"
    "  int l = get_local_id(0); tmp[l] = in[get_global_id(0)] * c[0]; barrier(CLK_LOCAL_MEM_FENCE); out[get_global_id(0)] = tmp[7 - l]; }\n"
    "kernel __attribute__((vec_type_hint(float4))) void hinted(global volatile float4 *p, const uint n) { if (n) p[0] = (float4)(n); }\n";
static const char *broken = "kernel void add(global int *a) { a[0] = nothing_of_this_name; }\n";

static void text(const char *label, cl_program p, cl_program_build_info what) {
    char s[8192] = "";
    size_t n = 0;
    cl_int e = clGetProgramBuildInfo(p, device, what, sizeof s, s, &n);
    SAY(label, "%s size %zu %s", dt_name(e), n, what == CL_PROGRAM_BUILD_OPTIONS ? s : "");
}

static void status(const char *label, cl_program p) {
    cl_build_status s = 99;
    cl_int e = clGetProgramBuildInfo(p, device, CL_PROGRAM_BUILD_STATUS, sizeof s, &s, NULL);
    cl_program_binary_type t = 99;
    clGetProgramBuildInfo(p, device, CL_PROGRAM_BINARY_TYPE, sizeof t, &t, NULL);
    SAY(label, "%s status %d binary type %u", dt_name(e), s, t);
}

static void creation(void) {
    cl_program p;
    const char *two[2] = {"kernel void a(global int *x) {", " *x = 1; }"}, *holes[2] = {"a", NULL};
    size_t lengths[2] = {0, 10};
    MAKE("source null context", p, clCreateProgramWithSource(NULL, 1, &good, NULL, &err));
    MAKE("source count 0", p, clCreateProgramWithSource(context, 0, &good, NULL, &err));
    MAKE("source null string", p, clCreateProgramWithSource(context, 2, holes, NULL, &err));
    MAKE("source two parts", p, clCreateProgramWithSource(context, 2, two, lengths, &err));
    ERR("source two parts build", clBuildProgram(p, 0, NULL, NULL, NULL, NULL));
    char src[256] = "";
    size_t n = 0;
    ERR("source back", clGetProgramInfo(p, CL_PROGRAM_SOURCE, sizeof src, src, &n));
    SAY("source back text", "%zu '%s'", n, src);
    ERR("release", clReleaseProgram(p));
    ERR("release null", clReleaseProgram(NULL));
    ERR("retain null", clRetainProgram(NULL));
    const unsigned char junk[] = "this is no binary";
    const unsigned char *bin = junk;
    size_t len = sizeof junk, zero = 0;
    cl_int st = 7;
    MAKE("binary junk", p, clCreateProgramWithBinary(context, 1, &device, &len, &bin, &st, &err));
    SAY("binary junk status", "%s", dt_name(st));
    MAKE("binary length 0", p, clCreateProgramWithBinary(context, 1, &device, &zero, &bin, &st, &err));
    MAKE("binary no devices", p, clCreateProgramWithBinary(context, 0, &device, &len, &bin, &st, &err));
    MAKE("binary null devices", p, clCreateProgramWithBinary(context, 1, NULL, &len, &bin, &st, &err));
    MAKE("binary null context", p, clCreateProgramWithBinary(NULL, 1, &device, &len, &bin, &st, &err));
}

static void builds(void) {
    cl_program p = clCreateProgramWithSource(context, 1, &good, NULL, &err);
    must(err, "source");
    cl_kernel k;
    status("before the build", p);
    text("log before the build", p, CL_PROGRAM_BUILD_LOG);
    text("options before the build", p, CL_PROGRAM_BUILD_OPTIONS);
    MAKE("kernel before the build", k, clCreateKernel(p, "add", &err));
    size_t n = 99;
    ERR("number of kernels before the build", clGetProgramInfo(p, CL_PROGRAM_NUM_KERNELS, sizeof n, &n, NULL));
    ERR("build null", clBuildProgram(NULL, 0, NULL, NULL, NULL, NULL));
    ERR("build count without devices", clBuildProgram(p, 1, NULL, NULL, NULL, NULL));
    ERR("build devices without count", clBuildProgram(p, 0, &device, NULL, NULL, NULL));
    ERR("build user data without callback", clBuildProgram(p, 1, &device, "", NULL, p));
    ERR("build unknown option", clBuildProgram(p, 1, &device, "-no-such-option", NULL, NULL));
    static const char *options[] = {NULL, "", "-DK=5", "-D K=7", "-cl-fast-relaxed-math", "-cl-opt-disable", "-w", "-cl-std=CL1.2", "-cl-std=CL2.0", "-cl-std=CL9.9",
        "-cl-kernel-arg-info", "-cl-mad-enable -cl-no-signed-zeros -cl-finite-math-only", "-cl-denorms-are-zero", "-I /nonexistent", "-Werror", "-g"};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        const char *o = options[i] ? options[i] : "(null)";
        cl_program q = clCreateProgramWithSource(context, 1, &good, NULL, &err);
        cl_int e = clBuildProgram(q, 1, &device, options[i], NULL, NULL);
        SAY(L("build with '%s'", o), "%s", dt_name(e));
        status(L("build with '%s', status", o), q);
        text(L("build with '%s', options", o), q, CL_PROGRAM_BUILD_OPTIONS);
        clReleaseProgram(q);
    }
    ERR("build", clBuildProgram(p, 1, &device, "-cl-kernel-arg-info", NULL, NULL));
    ERR("build again", clBuildProgram(p, 1, &device, "-DK=4 -cl-kernel-arg-info", NULL, NULL));
    ERR("number of kernels", clGetProgramInfo(p, CL_PROGRAM_NUM_KERNELS, sizeof n, &n, NULL));
    SAY("number of kernels is", "%zu", n);
    char names[256] = "";
    ERR("names of kernels", clGetProgramInfo(p, CL_PROGRAM_KERNEL_NAMES, sizeof names, names, &n));
    SAY("names of kernels are", "%zu '%s'", n, names);
    MAKE("kernel unknown", k, clCreateKernel(p, "nobody", &err));
    MAKE("kernel null name", k, clCreateKernel(p, NULL, &err));
    MAKE("kernel null program", k, clCreateKernel(NULL, "add", &err));
    MAKE("kernel", k, clCreateKernel(p, "add", &err));
    ERR("build while a kernel is attached", clBuildProgram(p, 1, &device, "", NULL, NULL));
    clReleaseKernel(k);
    cl_kernel many[8] = {0};
    cl_uint count = 99;
    ERR("kernels in program, count", clCreateKernelsInProgram(p, 0, NULL, &count));
    SAY("kernels in program are", "%u", count);
    ERR("kernels in program, too few", clCreateKernelsInProgram(p, 1, many, NULL));
    ERR("kernels in program", clCreateKernelsInProgram(p, 8, many, &count));
    for (cl_uint i = 0; i < count && i < 8; i++) clReleaseKernel(many[i]);
    cl_uint devices = 99;
    cl_device_id d = NULL;
    cl_context c = NULL;
    clGetProgramInfo(p, CL_PROGRAM_NUM_DEVICES, sizeof devices, &devices, NULL);
    clGetProgramInfo(p, CL_PROGRAM_DEVICES, sizeof d, &d, NULL);
    clGetProgramInfo(p, CL_PROGRAM_CONTEXT, sizeof c, &c, NULL);
    SAY("program facts", "devices %u %s context %s", devices, d == device ? "ours" : "other", c == context ? "ours" : "other");
    ERR("program info unknown", clGetProgramInfo(p, 0x9999, 0, NULL, NULL));
    ERR("program info null", clGetProgramInfo(NULL, CL_PROGRAM_NUM_DEVICES, sizeof devices, &devices, NULL));
    ERR("program info small", clGetProgramInfo(p, CL_PROGRAM_CONTEXT, 4, &c, NULL));
    ERR("build info unknown", clGetProgramBuildInfo(p, device, 0x9999, 0, NULL, NULL));
    ERR("build info null device", clGetProgramBuildInfo(p, NULL, CL_PROGRAM_BUILD_STATUS, sizeof n, &n, NULL));
    clReleaseProgram(p);

    p = clCreateProgramWithSource(context, 1, &broken, NULL, &err);
    ERR("broken build", clBuildProgram(p, 1, &device, "", NULL, NULL));
    status("broken status", p);
    char log[8192] = "";
    clGetProgramBuildInfo(p, device, CL_PROGRAM_BUILD_LOG, sizeof log, log, NULL);
    SAY("broken log names the fault", "%s", strstr(log, "nothing_of_this_name") ? "yes" : "no");
    MAKE("broken kernel", k, clCreateKernel(p, "add", &err));
    clReleaseProgram(p);
}

static void binaries(void) {
    cl_program p = build(good, "-DK=5"), q;
    size_t n = 0;
    must(clGetProgramInfo(p, CL_PROGRAM_BINARY_SIZES, sizeof n, &n, NULL), "binary size");
    SAY("binary size", "%s", n ? "some" : "none");
    unsigned char *bin = malloc(n);
    ERR("binary", clGetProgramInfo(p, CL_PROGRAM_BINARIES, sizeof bin, &bin, NULL));
    cl_int st = 7;
    const unsigned char *in = bin;
    MAKE("from binary", q, clCreateProgramWithBinary(context, 1, &device, &n, &in, &st, &err));
    SAY("from binary status", "%s", dt_name(st));
    status("from binary before its build", q);
    ERR("from binary build", clBuildProgram(q, 1, &device, NULL, NULL, NULL));
    int v[4] = {1, 2, 3, 4}, b = 2;
    size_t g = 4;
    cl_mem m = buffer(CL_MEM_COPY_HOST_PTR, sizeof v, v);
    cl_kernel k = clCreateKernel(q, "add", &err);
    SAY("from binary kernel", "%s", dt_name(err));
    clSetKernelArg(k, 0, sizeof m, &m);
    clSetKernelArg(k, 1, sizeof b, &b);
    ERR("from binary launch", clEnqueueNDRangeKernel(queue, k, 1, NULL, &g, NULL, 0, NULL, NULL));
    clEnqueueReadBuffer(queue, m, CL_TRUE, 0, sizeof v, v, 0, NULL, NULL);
    SAY("from binary result", "%d %d %d %d", v[0], v[1], v[2], v[3]);
    char src[64] = "x";
    ERR("from binary source", clGetProgramInfo(q, CL_PROGRAM_SOURCE, sizeof src, src, &n));
    SAY("from binary source text", "%zu '%s'", n, src);
    clReleaseKernel(k); clReleaseProgram(q); clReleaseProgram(p); clReleaseMemObject(m);
}

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cv = PTHREAD_COND_INITIALIZER;
static int called;
static void CL_CALLBACK built(cl_program p, void *data) {
    pthread_mutex_lock(&mu);
    called += *(int *)data;
    pthread_cond_signal(&cv);
    pthread_mutex_unlock(&mu);
}

static void callbacks(void) {
    int five = 5, seven = 7;
    cl_program p = clCreateProgramWithSource(context, 1, &good, NULL, &err), q = clCreateProgramWithSource(context, 1, &broken, NULL, &err);
    ERR("build with callback", clBuildProgram(p, 1, &device, "", built, &five));
    pthread_mutex_lock(&mu);
    while (called < 5) pthread_cond_wait(&cv, &mu);
    pthread_mutex_unlock(&mu);
    status("build with callback, status", p);
    clBuildProgram(q, 1, &device, "", built, &seven);
    pthread_mutex_lock(&mu);
    while (called < 12) pthread_cond_wait(&cv, &mu);
    pthread_mutex_unlock(&mu);
    status("broken build with callback, status", q);
    clReleaseProgram(p); clReleaseProgram(q);
}

static void kernels(void) {
    cl_program p = build(good, "-cl-kernel-arg-info");
    static const char *names[] = {"add", "fixed", "hinted"};
    for (int i = 0; i < 3; i++) {
        cl_kernel k = clCreateKernel(p, names[i], &err);
        char s[256] = "";
        size_t n = 0, w[3] = {9, 9, 9};
        cl_uint args = 99;
        cl_program of = NULL;
        cl_context c = NULL;
        cl_ulong l = 99;
        clGetKernelInfo(k, CL_KERNEL_FUNCTION_NAME, sizeof s, s, &n);
        clGetKernelInfo(k, CL_KERNEL_NUM_ARGS, sizeof args, &args, NULL);
        clGetKernelInfo(k, CL_KERNEL_PROGRAM, sizeof of, &of, NULL);
        clGetKernelInfo(k, CL_KERNEL_CONTEXT, sizeof c, &c, NULL);
        SAY(L("kernel %s", names[i]), "%zu '%s' args %u program %s context %s", n, s, args, of == p ? "ours" : "other", c == context ? "ours" : "other");
        s[0] = 0;
        ERR(L("kernel %s attributes", names[i]), clGetKernelInfo(k, CL_KERNEL_ATTRIBUTES, sizeof s, s, &n));
        SAY(L("kernel %s attributes text", names[i]), "%zu '%s'", n, s);
        for (cl_uint a = 0; a <= args; a++) {
            cl_kernel_arg_address_qualifier aq = 0;
            cl_kernel_arg_access_qualifier cq = 0;
            cl_kernel_arg_type_qualifier tq = 0;
            char tn[64] = "", an[64] = "";
            cl_int e = clGetKernelArgInfo(k, a, CL_KERNEL_ARG_ADDRESS_QUALIFIER, sizeof aq, &aq, NULL);
            clGetKernelArgInfo(k, a, CL_KERNEL_ARG_ACCESS_QUALIFIER, sizeof cq, &cq, NULL);
            clGetKernelArgInfo(k, a, CL_KERNEL_ARG_TYPE_QUALIFIER, sizeof tq, &tq, NULL);
            clGetKernelArgInfo(k, a, CL_KERNEL_ARG_TYPE_NAME, sizeof tn, tn, NULL);
            clGetKernelArgInfo(k, a, CL_KERNEL_ARG_NAME, sizeof an, an, NULL);
            SAY(L("kernel %s arg %u", names[i], a), "%s address %x access %x type %llx '%s' '%s'", dt_name(e), aq, cq, (unsigned long long)tq, tn, an);
        }
        ERR(L("kernel %s work-group size", names[i]), clGetKernelWorkGroupInfo(k, device, CL_KERNEL_WORK_GROUP_SIZE, sizeof n, &n, NULL));
        SAY(L("kernel %s work-group size is", names[i]), "%zu", n);
        ERR(L("kernel %s compile size", names[i]), clGetKernelWorkGroupInfo(k, device, CL_KERNEL_COMPILE_WORK_GROUP_SIZE, sizeof w, w, NULL));
        SAY(L("kernel %s compile size is", names[i]), "%zu %zu %zu", w[0], w[1], w[2]);
        ERR(L("kernel %s local memory", names[i]), clGetKernelWorkGroupInfo(k, device, CL_KERNEL_LOCAL_MEM_SIZE, sizeof l, &l, NULL));
        SAY(L("kernel %s local memory is", names[i]), "%llu", (unsigned long long)l);
        ERR(L("kernel %s multiple", names[i]), clGetKernelWorkGroupInfo(k, NULL, CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE, sizeof n, &n, NULL));
        SAY(L("kernel %s multiple is", names[i]), "%zu", n);
        ERR(L("kernel %s private memory", names[i]), clGetKernelWorkGroupInfo(k, device, CL_KERNEL_PRIVATE_MEM_SIZE, sizeof l, &l, NULL));
        ERR(L("kernel %s global size", names[i]), clGetKernelWorkGroupInfo(k, device, CL_KERNEL_GLOBAL_WORK_SIZE, sizeof w, w, NULL));
        ERR(L("kernel %s unknown", names[i]), clGetKernelWorkGroupInfo(k, device, 0x9999, sizeof w, w, NULL));
        ERR(L("kernel %s info unknown", names[i]), clGetKernelInfo(k, 0x9999, sizeof w, w, NULL));
        ERR(L("kernel %s small", names[i]), clGetKernelWorkGroupInfo(k, device, CL_KERNEL_WORK_GROUP_SIZE, 2, &n, NULL));
        ERR(L("kernel %s arg info unknown", names[i]), clGetKernelArgInfo(k, 0, 0x9999, sizeof w, w, NULL));
        REFS(L("kernel %s refs", names[i]), k, Kernel, KERNEL);
        clReleaseKernel(k);
    }
    ERR("kernel info null", clGetKernelInfo(NULL, CL_KERNEL_NUM_ARGS, 0, NULL, NULL));
    cl_program plain = build(good, "");
    cl_kernel k = clCreateKernel(plain, "add", &err);
    char tn[64];
    ERR("arg info without -cl-kernel-arg-info", clGetKernelArgInfo(k, 0, CL_KERNEL_ARG_TYPE_NAME, sizeof tn, tn, NULL));
}

// Kernels whose names are long, made by a macro, or left out.
static void names(void) {
    static const int lengths[] = {1, 255, 256, 300, 512, 1000};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        char name[1001], text[1200];
        memset(name, 'n', sizeof name), name[lengths[i]] = 0;
        snprintf(text, sizeof text, "kernel void %s(global int *p) { p[0] = 7; }", name);
        cl_program p = build(text, "");
        cl_kernel k;
        MAKE(L("name of %d", lengths[i]), k, clCreateKernel(p, name, &err));
        if (k) clReleaseKernel(k); // PoCL launches no kernel whose name is longer than a file's
        clReleaseProgram(p);
    }
    cl_program p = build("#define MAKE(n) kernel void made_##n(global int *p) { p[0] = n; }\nMAKE(1) MAKE(2)\n"
                         "#if 0\nkernel void left_out() {}\n#endif\nkernel void plain() {} // kernel void comment() {}\n", "");
    static const char *const all[] = {"made_1", "made_2", "left_out", "plain", "comment", "MAKE", "made_"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        cl_kernel k;
        MAKE(L("kernel named %s", all[i]), k, clCreateKernel(p, all[i], &err));
        if (k) clReleaseKernel(k);
    }
    size_t n = 99;
    cl_int e = clGetProgramInfo(p, CL_PROGRAM_NUM_KERNELS, sizeof n, &n, NULL);
    SAY("kernels named", "%s %zu", dt_name(e), n);
    cl_kernel made[8];
    cl_uint count = 99;
    ERR("kernels named, all", clCreateKernelsInProgram(p, 8, made, &count));
    SAY("kernels named, all are", "%u", count);
}

// A binary of more than a megabyte, and back.
static void large(void) {
    enum { N = 1 << 18 };
    char *s = malloc(N * 12 + 200), *w = s;
    w += sprintf(w, "constant uint t[%d] = {", N);
    unsigned x = 1;
    for (int i = 0; i < N; i++) w += sprintf(w, "%u,", x = x * 1664525u + 1013904223u);
    sprintf(w, "};\nkernel void pick(global uint *v) { size_t i = get_global_id(0); v[i] = t[i * 1021 %% %d]; }\n", N);
    cl_program p = build(s, "");
    size_t n = 0;
    ERR("large binary size", clGetProgramInfo(p, CL_PROGRAM_BINARY_SIZES, sizeof n, &n, NULL));
    SAY("large binary", "%s", n > 1 << 20 ? "more than 1 MiB" : "small");
    unsigned char *b = calloc(1, n ? n : 1);
    ERR("large binary bytes", clGetProgramInfo(p, CL_PROGRAM_BINARIES, sizeof b, &b, NULL));
    cl_program q;
    MAKE("large binary program", q, clCreateProgramWithBinary(context, 1, &device, &n, (const unsigned char **)&b, NULL, &err));
    ERR("large binary build", clBuildProgram(q, 1, &device, "", NULL, NULL));
    cl_kernel k;
    MAKE("large binary kernel", k, clCreateKernel(q, "pick", &err));
    cl_uint out[256] = {0};
    cl_mem m = buffer(0, sizeof out, NULL);
    size_t g = 256;
    clSetKernelArg(k, 0, sizeof m, &m);
    ERR("large binary runs", clEnqueueNDRangeKernel(queue, k, 1, NULL, &g, NULL, 0, NULL, NULL));
    clEnqueueReadBuffer(queue, m, CL_TRUE, 0, sizeof out, out, 0, NULL, NULL);
    HASH("large binary picks", out, sizeof out);
    free(b);
    free(s);
}

int main(void) {
    setup(0);
    creation();
    builds();
    binaries();
    callbacks();
    kernels();
    names();
    large();
    return 0;
}
