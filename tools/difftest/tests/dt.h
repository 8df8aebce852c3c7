// The harness of the differential tests: every line is "label: result" with a
// label that occurs once, so that the runner can match the lines of two runs.
// Nothing that differs from run to run (pointers, times) is ever printed.
#ifndef DT_H
#define DT_H
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_0_APIS
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#define CL_USE_DEPRECATED_OPENCL_2_0_APIS
#define CL_USE_DEPRECATED_OPENCL_2_1_APIS
#define CL_USE_DEPRECATED_OPENCL_2_2_APIS
#include <CL/cl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *dt_name(cl_int e) {
    static const struct { cl_int code; const char *name; } all[] = {
        {0, "SUCCESS"}, {-1, "DEVICE_NOT_FOUND"}, {-2, "DEVICE_NOT_AVAILABLE"}, {-3, "COMPILER_NOT_AVAILABLE"},
        {-4, "MEM_OBJECT_ALLOCATION_FAILURE"}, {-5, "OUT_OF_RESOURCES"}, {-6, "OUT_OF_HOST_MEMORY"},
        {-7, "PROFILING_INFO_NOT_AVAILABLE"}, {-8, "MEM_COPY_OVERLAP"}, {-9, "IMAGE_FORMAT_MISMATCH"},
        {-10, "IMAGE_FORMAT_NOT_SUPPORTED"}, {-11, "BUILD_PROGRAM_FAILURE"}, {-12, "MAP_FAILURE"},
        {-13, "MISALIGNED_SUB_BUFFER_OFFSET"}, {-14, "EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST"},
        {-15, "COMPILE_PROGRAM_FAILURE"}, {-16, "LINKER_NOT_AVAILABLE"}, {-17, "LINK_PROGRAM_FAILURE"},
        {-18, "DEVICE_PARTITION_FAILED"}, {-19, "KERNEL_ARG_INFO_NOT_AVAILABLE"}, {-30, "INVALID_VALUE"},
        {-31, "INVALID_DEVICE_TYPE"}, {-32, "INVALID_PLATFORM"}, {-33, "INVALID_DEVICE"}, {-34, "INVALID_CONTEXT"},
        {-35, "INVALID_QUEUE_PROPERTIES"}, {-36, "INVALID_COMMAND_QUEUE"}, {-37, "INVALID_HOST_PTR"},
        {-38, "INVALID_MEM_OBJECT"}, {-39, "INVALID_IMAGE_FORMAT_DESCRIPTOR"}, {-40, "INVALID_IMAGE_SIZE"},
        {-41, "INVALID_SAMPLER"}, {-42, "INVALID_BINARY"}, {-43, "INVALID_BUILD_OPTIONS"}, {-44, "INVALID_PROGRAM"},
        {-45, "INVALID_PROGRAM_EXECUTABLE"}, {-46, "INVALID_KERNEL_NAME"}, {-47, "INVALID_KERNEL_DEFINITION"},
        {-48, "INVALID_KERNEL"}, {-49, "INVALID_ARG_INDEX"}, {-50, "INVALID_ARG_VALUE"}, {-51, "INVALID_ARG_SIZE"},
        {-52, "INVALID_KERNEL_ARGS"}, {-53, "INVALID_WORK_DIMENSION"}, {-54, "INVALID_WORK_GROUP_SIZE"},
        {-55, "INVALID_WORK_ITEM_SIZE"}, {-56, "INVALID_GLOBAL_OFFSET"}, {-57, "INVALID_EVENT_WAIT_LIST"},
        {-58, "INVALID_EVENT"}, {-59, "INVALID_OPERATION"}, {-60, "INVALID_GL_OBJECT"}, {-61, "INVALID_BUFFER_SIZE"},
        {-62, "INVALID_MIP_LEVEL"}, {-63, "INVALID_GLOBAL_WORK_SIZE"}, {-64, "INVALID_PROPERTY"},
        {-65, "INVALID_IMAGE_DESCRIPTOR"}, {-66, "INVALID_COMPILER_OPTIONS"}, {-67, "INVALID_LINKER_OPTIONS"},
        {-68, "INVALID_DEVICE_PARTITION_COUNT"}, {-69, "INVALID_PIPE_SIZE"}, {-70, "INVALID_DEVICE_QUEUE"},
        {-71, "INVALID_SPEC_ID"}, {-72, "MAX_SIZE_RESTRICTION_EXCEEDED"}, {-1001, "PLATFORM_NOT_FOUND_KHR"},
    };
    static char other[32];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].code == e) return all[i].name;
    snprintf(other, sizeof other, "error %d", e);
    return other;
}

static uint64_t dt_hash(const void *p, size_t n) { // FNV-1a
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < n; i++) h = (h ^ ((const unsigned char *)p)[i]) * 1099511628211u;
    return h;
}

// SAY prints one line at once: what was said before a crash is seen.
#define SAY(label, ...) (printf("%s: ", label), printf(__VA_ARGS__), putchar('\n'), fflush(stdout))
#define ERR(label, call) ((void)SAY(label, "%s", dt_name(call)))
// MAKE evaluates an expression that sets err and says err and whether an object came.
#define MAKE(label, var, call) do { err = 12345; var = call; SAY(label, "%s%s", dt_name(err), var ? " object" : ""); } while (0)
#define HASH(label, p, n) SAY(label, "%016llx", (unsigned long long)dt_hash(p, n))

// label formats a label with numbers in it; eight may be in use at a time.
static const char *L(const char *format, ...) {
    static char ring[8][160];
    static int at;
    char *s = ring[at = (at + 1) % 8];
    va_list a;
    va_start(a, format);
    vsnprintf(s, sizeof ring[0], format, a);
    va_end(a);
    return s;
}

// AWAIT looks until a state is there that another thread or process makes, for four minutes at least: that ends a hang
// and nothing else, and what is said then comes before the runner's own limit.
#define AWAIT(there) do { for (int i_ = 0; i_ < 240000 && !(there); i_++) usleep(1000); } while (0)

static cl_platform_id platform;
static cl_device_id device;
static cl_context context;
static cl_command_queue queue;
static cl_int err;

static void must(cl_int e, const char *what) {
    if (e) {
        SAY("setup", "%s failed with %s", what, dt_name(e));
        exit(3);
    }
}

static void setup(cl_command_queue_properties props) {
    must(clGetPlatformIDs(1, &platform, NULL), "clGetPlatformIDs");
    cl_device_id all[2];
    cl_uint n = getenv("DT_SPAN") ? 2 : 1; // then the first has new objects' contents, and the last all queues
    must(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, n, all, NULL), "clGetDeviceIDs");
    device = all[n - 1];
    context = clCreateContext(NULL, n, all, NULL, NULL, &err);
    must(err, "clCreateContext");
    queue = clCreateCommandQueue(context, device, props, &err);
    must(err, "clCreateCommandQueue");
}

static cl_program build(const char *source, const char *options) {
    cl_program p = clCreateProgramWithSource(context, 1, &source, NULL, &err);
    must(err, "clCreateProgramWithSource");
    cl_int e = clBuildProgram(p, 1, &device, options, NULL, NULL);
    if (e) {
        char log[8192] = "";
        clGetProgramBuildInfo(p, device, CL_PROGRAM_BUILD_LOG, sizeof log, log, NULL);
        fprintf(stderr, "%s\n", log);
    }
    must(e, "clBuildProgram");
    return p;
}

static cl_mem buffer(cl_mem_flags flags, size_t n, void *p) {
    cl_mem m = clCreateBuffer(context, flags, n, p, &err);
    must(err, "clCreateBuffer");
    return m;
}

static void fill(void *p, size_t n, unsigned seed) {
    unsigned char *b = p;
    for (size_t i = 0; i < n; i++) b[i] = (unsigned char)((seed = seed * 1103515245u + 12345u) >> 16);
}

static cl_uint refs_mem(cl_mem m) {
    cl_uint n = 999;
    clGetMemObjectInfo(m, CL_MEM_REFERENCE_COUNT, sizeof n, &n, NULL);
    return n;
}

static cl_uint maps_mem(cl_mem m) {
    cl_uint n = 999;
    clGetMemObjectInfo(m, CL_MEM_MAP_COUNT, sizeof n, &n, NULL);
    return n;
}
// UNMAPPED waits until all maps of memory are gone: PoCL counts down a moment after the command's end.
#define UNMAPPED(m) AWAIT(maps_mem(m) == 0)

static cl_uint refs_program(cl_program p) {
    cl_uint n = 999;
    clGetProgramInfo(p, CL_PROGRAM_REFERENCE_COUNT, sizeof n, &n, NULL);
    return n;
}
// DETACHED waits until a program has no kernels: PoCL lets go of the kernel of a launch a moment after the command's end,
// and builds no program before.
#define DETACHED(p) AWAIT(refs_program(p) == 1)

#define REFS(label, obj, Kind, KIND) do { cl_uint n_ = 999; cl_int e_ = clGet##Kind##Info(obj, CL_##KIND##_REFERENCE_COUNT, sizeof n_, &n_, NULL); SAY(label, "%s %u", dt_name(e_), n_); } while (0)

#endif
