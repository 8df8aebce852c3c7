// Programs from binaries: each kind of binary, and what is none, for each list of devices, and what every call makes of
// such a program in each of its states.
#define _GNU_SOURCE
#include "dt.h"

static const char *source = "int twice(int x) { return 2 * x; }\nkernel void k(global int *a, int b) { a[get_global_id(0)] += twice(b); }\n";
static const char *user = "int twice(int x);\nkernel void uses(global int *a) { a[get_global_id(0)] = twice(21); }\n";

static cl_device_id part; // of the device; not in the context
static cl_context with_part;

typedef struct { const char *name; unsigned char *bytes; size_t n; } binary;

static binary binary_of(const char *name, cl_program p) {
    size_t n[2] = {0};
    unsigned char *bytes[2] = {NULL, NULL}; // of a context's two devices the first
    must(clGetProgramInfo(p, CL_PROGRAM_BINARY_SIZES, sizeof n, n, NULL), "clGetProgramInfo");
    bytes[0] = malloc(n[0] + 1);
    must(clGetProgramInfo(p, CL_PROGRAM_BINARIES, sizeof bytes, bytes, NULL), "clGetProgramInfo");
    binary b = {name, bytes[0], n[0]};
    return b;
}

static cl_program from_source(const char *text) {
    cl_program p = clCreateProgramWithSource(context, 1, &text, NULL, &err);
    must(err, "clCreateProgramWithSource");
    return p;
}

// state says what a program tells of itself.
static void state(const char *label, cl_program p) {
    cl_build_status s = 99;
    cl_program_binary_type t = 99;
    size_t kernels = 99, names = 99, log = 99, size[2] = {0}, text = 99, il = 99;
    char options[256] = "-";
    cl_int e[6];
    e[0] = clGetProgramBuildInfo(p, device, CL_PROGRAM_BUILD_STATUS, sizeof s, &s, NULL);
    e[1] = clGetProgramBuildInfo(p, device, CL_PROGRAM_BINARY_TYPE, sizeof t, &t, NULL);
    e[2] = clGetProgramInfo(p, CL_PROGRAM_NUM_KERNELS, sizeof kernels, &kernels, NULL);
    e[3] = clGetProgramInfo(p, CL_PROGRAM_KERNEL_NAMES, 0, NULL, &names);
    clGetProgramBuildInfo(p, device, CL_PROGRAM_BUILD_LOG, 0, NULL, &log);
    clGetProgramBuildInfo(p, device, CL_PROGRAM_BUILD_OPTIONS, sizeof options, options, NULL);
    e[4] = clGetProgramInfo(p, CL_PROGRAM_BINARY_SIZES, sizeof size, size, NULL);
    e[5] = clGetProgramInfo(p, CL_PROGRAM_SOURCE, 0, NULL, &text);
    clGetProgramInfo(p, CL_PROGRAM_IL, 0, NULL, &il);
    SAY(L("%s status", label), "%s %d", dt_name(e[0]), s);
    SAY(L("%s type", label), "%s %u", dt_name(e[1]), t);
    SAY(L("%s kernels", label), "%s %zu", dt_name(e[2]), e[2] ? 0 : kernels);
    SAY(L("%s names", label), "%s %zu", dt_name(e[3]), e[3] ? 0 : names);
    SAY(L("%s options", label), "%s", options);
    SAY(L("%s binary", label), "%s %s", dt_name(e[4]), size[0] || size[1] ? "some" : "none");
    SAY(L("%s source", label), "%s %zu, il %zu", dt_name(e[5]), text, il);
}

static void kernel_of(const char *label, cl_program p, const char *name) {
    cl_kernel k;
    cl_uint n = 99;
    MAKE(L("%s %s", label, name), k, clCreateKernel(p, name, &err));
    ERR(L("%s %s, all kernels", label, name), clCreateKernelsInProgram(p, 0, NULL, &n));
    if (!k) return;
    int v[8] = {0}, three = 3;
    size_t g = 8;
    cl_mem m = buffer(CL_MEM_COPY_HOST_PTR, sizeof v, v);
    clSetKernelArg(k, 0, sizeof m, &m);
    if (name[0] == 'k') clSetKernelArg(k, 1, sizeof three, &three);
    ERR(L("%s %s, launch", label, name), clEnqueueNDRangeKernel(queue, k, 1, NULL, &g, NULL, 0, NULL, NULL));
    clEnqueueReadBuffer(queue, m, CL_TRUE, 0, sizeof v, v, 0, NULL, NULL);
    SAY(L("%s %s, result", label, name), "%d", v[7]);
    ERR(L("%s %s, build with a kernel", label, name), clBuildProgram(p, 0, NULL, "", NULL, NULL));
    ERR(L("%s %s, compile with a kernel", label, name), clCompileProgram(p, 0, NULL, "", 0, NULL, NULL, NULL, NULL));
    clReleaseMemObject(m), clReleaseKernel(k);
}

static cl_program load(const binary *b) {
    const unsigned char *bytes = b->bytes;
    return clCreateProgramWithBinary(context, 1, &device, &b->n, &bytes, NULL, &err);
}

// lives takes a program from a binary through every order of two of these calls.
static void lives(const binary *b, cl_program library) {
    static const char *const calls[] = {"nothing", "build", "build with options", "build wrong", "compile", "link", "link with a library", "link as a library"};
    enum { CALLS = sizeof calls / sizeof *calls };
    for (int i = 0; i < CALLS; i++)
        for (int j = 0; j < CALLS; j++) {
            if ((!i && j) || (i > 0 && i < 4 && j > 0 && j < 3)) continue; // PoCL 3.1 ends with the program at a second build
            cl_program p = load(b), made = NULL;
            if (!p) return;
            for (int step = 0; step < 2; step++) {
                int call = step ? j : i;
                char *id;
                if (asprintf(&id, "%s: %s%s%s", b->name, calls[i], step ? ", then " : "", step ? calls[j] : "") < 0) exit(3);
                for (char *c = id; *c; c++) *c = *c == ':' ? ' ' : *c;
                cl_program all[2] = {p, library};
                if (made) clReleaseProgram(made);
                made = NULL, err = CL_SUCCESS;
                switch (call) {
                case 1: err = clBuildProgram(p, 0, NULL, NULL, NULL, NULL); break;
                case 2: err = clBuildProgram(p, 1, &device, "-cl-mad-enable", NULL, NULL); break;
                case 3: err = clBuildProgram(p, 1, &device, "-no-such-option", NULL, NULL); break;
                case 4: err = clCompileProgram(p, 0, NULL, "", 0, NULL, NULL, NULL, NULL); break;
                case 5: made = clLinkProgram(context, 0, NULL, "", 1, all, NULL, NULL, &err); break;
                case 6: made = clLinkProgram(context, 0, NULL, "", 2, all, NULL, NULL, &err); break;
                case 7: made = clLinkProgram(context, 0, NULL, "-create-library", 1, all, NULL, NULL, &err); break;
                }
                if (step || j == 0) {
                    SAY(id, "%s%s", dt_name(err), made ? " object" : "");
                    state(id, p);
                    if (made) state(L("%s, linked", id), made), kernel_of(L("%s, linked", id), made, strstr(b->name, "user") ? "uses" : "k");
                    kernel_of(id, p, strstr(b->name, "user") ? "uses" : "k");
                }
                free(id);
            }
            if (made) clReleaseProgram(made);
            clReleaseProgram(p);
        }
}

static const unsigned char junk[64] = "this is no program"; // PoCL 3.1 ends with the program where half of one is given

// lists creates programs from a binary with every list of devices, lengths and binaries.
static void lists(const binary *b) {
    static const char *const devices[] = {"device", "part", "both", "twice", "null device"}, *const what[] = {"whole", "length 0", "null", "junk"};
    for (int of = 0; of < 2; of++)
        for (int d = 0; d < 5; d++)
            for (int w = 0; w < 4; w++)
                for (int v = 0; v < 4; v++) {
                    if (d != 2 && d != 3 && v) continue;
                    cl_device_id to[2] = {d == 1 ? part : d == 4 ? NULL : device, d == 2 ? part : device};
                    int kind[2] = {w, v};
                    const unsigned char *bytes[2];
                    size_t n[2];
                    for (int i = 0; i < 2; i++) {
                        bytes[i] = kind[i] == 2 ? NULL : kind[i] == 3 ? junk : b->bytes;
                        n[i] = kind[i] == 1 ? 0 : kind[i] == 3 ? sizeof junk : b->n;
                    }
                    cl_int st[2] = {77, 77};
                    cl_program p = clCreateProgramWithBinary(of ? with_part : context, d == 2 || d == 3 ? 2 : 1, to, n, bytes, st, &err);
                    SAY(L("%s for %s%s, %s, %s", b->name, devices[d], of ? " with its part" : "", what[w], what[v]), "%s%s", dt_name(err), p ? " object" : "");
                    SAY(L("%s for %s%s, %s, %s, verdicts", b->name, devices[d], of ? " with its part" : "", what[w], what[v]), "%d %d", st[0], st[1]);
                    if (p) clReleaseProgram(p);
                }
}

int main(void) {
    setup(0);
    cl_device_partition_property one[] = {CL_DEVICE_PARTITION_BY_COUNTS, 1, CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0};
    must(clCreateSubDevices(device, one, 1, &part, NULL), "clCreateSubDevices");
    cl_device_id both[] = {device, part};
    with_part = clCreateContext(NULL, 2, both, NULL, NULL, &err);
    must(err, "clCreateContext");
    cl_program built = from_source(source), compiled = from_source(source), uses = from_source(user);
    must(clBuildProgram(built, 0, NULL, "", NULL, NULL), "clBuildProgram");
    must(clCompileProgram(compiled, 0, NULL, "", 0, NULL, NULL, NULL, NULL), "clCompileProgram");
    must(clCompileProgram(uses, 0, NULL, "", 0, NULL, NULL, NULL, NULL), "clCompileProgram");
    cl_program library = clLinkProgram(context, 0, NULL, "-create-library", 1, &compiled, NULL, NULL, &err);
    must(err, "clLinkProgram");
    binary all[] = {binary_of("executable", built), binary_of("object", compiled), binary_of("library", library), binary_of("user", uses)};
    for (int i = 0; i < 4; i++) {
        if (i < 3) lists(&all[i]);
        lives(&all[i], i == 3 ? library : uses);
    }
    return 0;
}
