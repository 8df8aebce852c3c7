// Platforms, devices, contexts, queues: creation, wrong arguments, facts, reference counts.
#include "dt.h"

static void CL_CALLBACK notify(const char *text, const void *info, size_t n, void *data) { (void)text; (void)info; (void)n; (void)data; }

static void platforms(void) {
    cl_uint n = 0;
    size_t z = 0;
    char s[4096];
    ERR("platforms nothing", clGetPlatformIDs(0, NULL, NULL));
    ERR("platforms 0 entries", clGetPlatformIDs(0, &platform, NULL));
    ERR("platforms count", clGetPlatformIDs(0, NULL, &n));
    SAY("platforms", "%u", n);
    static const cl_uint what[] = {CL_PLATFORM_PROFILE, CL_PLATFORM_VERSION, CL_PLATFORM_NAME, CL_PLATFORM_VENDOR, CL_PLATFORM_EXTENSIONS, CL_PLATFORM_HOST_TIMER_RESOLUTION, CL_PLATFORM_NUMERIC_VERSION};
    for (size_t i = 0; i < sizeof what / sizeof *what; i++) {
        memset(s, 0, sizeof s);
        cl_int e = clGetPlatformInfo(platform, what[i], sizeof s, s, &z);
        SAY(L("platform %x", what[i]), "%s %zu %s", dt_name(e), z, what[i] <= CL_PLATFORM_EXTENSIONS ? s : "");
    }
    ERR("platform unknown", clGetPlatformInfo(platform, 0x1111, sizeof s, s, NULL));
    ERR("platform small", clGetPlatformInfo(platform, CL_PLATFORM_NAME, 1, s, NULL));
    ERR("devices of null platform type 0", clGetDeviceIDs(platform, 0, 1, &device, NULL));
    ERR("devices unknown type", clGetDeviceIDs(platform, (cl_device_type)1 << 20, 1, &device, NULL));
    ERR("devices nothing", clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, NULL, NULL));
    ERR("devices 0 entries", clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, &device, NULL));
    cl_device_type types[] = {CL_DEVICE_TYPE_DEFAULT, CL_DEVICE_TYPE_CPU, CL_DEVICE_TYPE_GPU, CL_DEVICE_TYPE_ACCELERATOR, CL_DEVICE_TYPE_CUSTOM, CL_DEVICE_TYPE_ALL, CL_DEVICE_TYPE_CPU | CL_DEVICE_TYPE_GPU};
    for (int i = 0; i < 7; i++) {
        n = 77;
        cl_int e = clGetDeviceIDs(platform, types[i], 0, NULL, &n);
        SAY(L("devices of type %llx", (unsigned long long)types[i]), "%s %u", dt_name(e), e ? 0 : n);
    }
}

static void devices(void) {
    static const cl_uint masked[] = {0};
    (void)masked;
    char big[16384];
    for (cl_uint p = 0x1000; p <= 0x1077; p++) {
        size_t n = 0;
        memset(big, 0, sizeof big);
        if (p == CL_DEVICE_PLATFORM || p == CL_DEVICE_PARENT_DEVICE || p == CL_DEVICE_REFERENCE_COUNT) continue; // handles, and a count of ours
        cl_int e = clGetDeviceInfo(device, p, sizeof big, big, &n);
        int text = p == CL_DEVICE_NAME || p == CL_DEVICE_VENDOR || p == CL_DRIVER_VERSION || p == CL_DEVICE_PROFILE || p == CL_DEVICE_VERSION || p == CL_DEVICE_EXTENSIONS || p == CL_DEVICE_OPENCL_C_VERSION || p == CL_DEVICE_BUILT_IN_KERNELS || p == CL_DEVICE_IL_VERSION;
        if (e) SAY(L("device %x", p), "%s", dt_name(e));
        else if (text) SAY(L("device %x", p), "%zu '%s'", n, big);
        else if (p == CL_DEVICE_GLOBAL_MEM_SIZE) SAY("device memory", "%zu", n); // PoCL: by what is free when it starts
        else if (n <= 8) { uint64_t v = 0; memcpy(&v, big, n); SAY(L("device %x", p), "%zu %llx", n, (unsigned long long)v); }
        else SAY(L("device %x", p), "%zu #%016llx", n, (unsigned long long)dt_hash(big, n));
    }
    cl_platform_id of = NULL;
    cl_device_id parent = (cl_device_id)1;
    size_t s;
    clGetDeviceInfo(device, CL_DEVICE_PLATFORM, sizeof of, &of, NULL);
    clGetDeviceInfo(device, CL_DEVICE_PARENT_DEVICE, sizeof parent, &parent, NULL);
    SAY("device facts", "platform %s parent %s", of == platform ? "ours" : "other", parent ? "some" : "none");
    ERR("device info null", clGetDeviceInfo(NULL, CL_DEVICE_NAME, sizeof big, big, NULL));
    ERR("device info unknown", clGetDeviceInfo(device, 0x9999, sizeof big, big, NULL));
    ERR("device info small", clGetDeviceInfo(device, CL_DEVICE_NAME, 1, big, NULL));
    ERR("device info size only", clGetDeviceInfo(device, CL_DEVICE_MAX_WORK_ITEM_SIZES, 0, NULL, &s));
    SAY("device info size is", "%zu", s);
    ERR("retain root device", clRetainDevice(device));
    ERR("release root device", clReleaseDevice(device));
}

static void contexts(void) {
    cl_context c;
    cl_context_properties good[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)platform, 0}, twice[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)platform, CL_CONTEXT_PLATFORM, (cl_context_properties)platform, 0},
        unknown[] = {0x7777, 1, 0}, null[] = {CL_CONTEXT_PLATFORM, 0, 0}, empty[] = {0}, sync[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)platform, CL_CONTEXT_INTEROP_USER_SYNC, 1, 0};
    cl_device_id two[2] = {device, device}, hole[2] = {device, NULL};
    MAKE("context no devices", c, clCreateContext(NULL, 0, NULL, NULL, NULL, &err));
    MAKE("context null devices", c, clCreateContext(NULL, 1, NULL, NULL, NULL, &err));
    MAKE("context data without callback", c, clCreateContext(NULL, 1, &device, NULL, &err, &err));
    MAKE("context unknown property", c, clCreateContext(unknown, 1, &device, NULL, NULL, &err));
    MAKE("context null platform", c, clCreateContext(null, 1, &device, NULL, NULL, &err));
    MAKE("context hole in the devices", c, clCreateContext(NULL, 2, hole, NULL, NULL, &err));
    MAKE("context same device twice", c, clCreateContext(NULL, 2, two, NULL, NULL, &err));
    cl_uint n = 0;
    if (c) { clGetContextInfo(c, CL_CONTEXT_NUM_DEVICES, sizeof n, &n, NULL); SAY("context same device twice has", "%u", n); clReleaseContext(c); }
    MAKE("context property twice", c, clCreateContext(twice, 1, &device, NULL, NULL, &err));
    if (c) clReleaseContext(c);
    MAKE("context interop", c, clCreateContext(sync, 1, &device, NULL, NULL, &err));
    if (c) clReleaseContext(c);
    MAKE("context empty properties", c, clCreateContext(empty, 1, &device, NULL, NULL, &err));
    if (c) clReleaseContext(c);
    MAKE("context from type", c, clCreateContextFromType(good, CL_DEVICE_TYPE_ALL, NULL, NULL, &err));
    if (c) clReleaseContext(c);
    MAKE("context from type gpu", c, clCreateContextFromType(good, CL_DEVICE_TYPE_ACCELERATOR, NULL, NULL, &err));
    MAKE("context from type 0", c, clCreateContextFromType(good, 0, NULL, NULL, &err));
    MAKE("context with callback", c, clCreateContext(good, 1, &device, notify, &n, &err));
    size_t z = 0;
    cl_device_id d = NULL;
    cl_context_properties back[8] = {0};
    ERR("context devices", clGetContextInfo(c, CL_CONTEXT_DEVICES, sizeof d, &d, &z));
    SAY("context devices are", "%zu %s", z, d == device ? "ours" : "other");
    ERR("context properties", clGetContextInfo(c, CL_CONTEXT_PROPERTIES, sizeof back, back, &z));
    SAY("context properties are", "%zu %s", z, z == sizeof good && !memcmp(back, good, z) ? "ours" : "other");
    ERR("context info unknown", clGetContextInfo(c, 0x9999, sizeof z, &z, NULL));
    ERR("context info small", clGetContextInfo(c, CL_CONTEXT_NUM_DEVICES, 2, &z, NULL));
    ERR("context info null", clGetContextInfo(NULL, CL_CONTEXT_NUM_DEVICES, sizeof z, &z, NULL));
    REFS("context refs", c, Context, CONTEXT);
    ERR("context retain", clRetainContext(c));
    REFS("context refs after retain", c, Context, CONTEXT);
    ERR("context release", clReleaseContext(c));
    REFS("context refs after release", c, Context, CONTEXT);
    ERR("context last release", clReleaseContext(c));
    ERR("context retain null", clRetainContext(NULL));
    ERR("context release null", clReleaseContext(NULL));
    size_t fmt = 7;
    (void)fmt;
}

static void queues(void) {
    cl_command_queue q;
    cl_command_queue_properties p;
    MAKE("queue null context", q, clCreateCommandQueue(NULL, device, 0, &err));
    MAKE("queue null device", q, clCreateCommandQueue(context, NULL, 0, &err));
    MAKE("queue properties 1<<30", q, clCreateCommandQueue(context, device, 1 << 30, &err));
    static const struct { cl_command_queue_properties p; const char *n; } props[] = {{0, "0"}, {CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, "ooo"}, {CL_QUEUE_PROFILING_ENABLE, "prof"}, {CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE | CL_QUEUE_PROFILING_ENABLE, "ooo|prof"}};  // on-device queues: PoCL aborts the program
    for (int i = 0; i < 4; i++) {
        MAKE(L("queue %s", props[i].n), q, clCreateCommandQueue(context, device, props[i].p, &err));
        if (q) { clGetCommandQueueInfo(q, CL_QUEUE_PROPERTIES, sizeof p, &p, NULL); SAY(L("queue %s reported", props[i].n), "%llx", (unsigned long long)p); clReleaseCommandQueue(q); }
        cl_queue_properties list[] = {CL_QUEUE_PROPERTIES, props[i].p, 0};
        MAKE(L("queue with properties %s", props[i].n), q, clCreateCommandQueueWithProperties(context, device, list, &err));
        if (q) {
            cl_queue_properties back[8] = {0};
            size_t z = 0;
            cl_int e = clGetCommandQueueInfo(q, CL_QUEUE_PROPERTIES_ARRAY, sizeof back, back, &z);
            SAY(L("queue with properties %s array", props[i].n), "%s %zu", dt_name(e), z);
            clReleaseCommandQueue(q);
        }
    }
    cl_queue_properties unknown[] = {0x7777, 1, 0}, size[] = {CL_QUEUE_SIZE, 1024, 0}, priority[] = {0x1096, 2, 0};
    MAKE("queue with unknown property", q, clCreateCommandQueueWithProperties(context, device, unknown, &err));
    MAKE("queue with size on host", q, clCreateCommandQueueWithProperties(context, device, size, &err));
    MAKE("queue with priority", q, clCreateCommandQueueWithProperties(context, device, priority, &err));
    if (q) clReleaseCommandQueue(q);
    MAKE("queue without properties", q, clCreateCommandQueueWithProperties(context, device, NULL, &err));
    cl_context c = NULL;
    cl_device_id d = NULL;
    cl_uint n = 0;
    clGetCommandQueueInfo(q, CL_QUEUE_CONTEXT, sizeof c, &c, NULL);
    clGetCommandQueueInfo(q, CL_QUEUE_DEVICE, sizeof d, &d, NULL);
    SAY("queue facts", "context %s device %s", c == context ? "ours" : "other", d == device ? "ours" : "other");
    ERR("queue size info", clGetCommandQueueInfo(q, CL_QUEUE_SIZE, sizeof n, &n, NULL));
    ERR("queue device default", clGetCommandQueueInfo(q, CL_QUEUE_DEVICE_DEFAULT, sizeof d, &d, NULL));
    ERR("queue info unknown", clGetCommandQueueInfo(q, 0x9999, sizeof n, &n, NULL));
    ERR("queue info small", clGetCommandQueueInfo(q, CL_QUEUE_CONTEXT, 2, &n, NULL));
    ERR("queue info null", clGetCommandQueueInfo(NULL, CL_QUEUE_CONTEXT, sizeof c, &c, NULL));
    REFS("queue refs", q, CommandQueue, QUEUE);
    ERR("queue retain", clRetainCommandQueue(q));
    REFS("queue refs after retain", q, CommandQueue, QUEUE);
    ERR("queue release", clReleaseCommandQueue(q));
    ERR("queue last release", clReleaseCommandQueue(q));
    ERR("queue retain null", clRetainCommandQueue(NULL));
    ERR("queue release null", clReleaseCommandQueue(NULL));
}

static void counts(void) {
    REFS("context with a queue", context, Context, CONTEXT);
    cl_mem m = buffer(0, 64, NULL);
    SAY("buffer refs", "%u", refs_mem(m));
    ERR("buffer retain", clRetainMemObject(m));
    SAY("buffer refs after retain", "%u", refs_mem(m));
    ERR("buffer release", clReleaseMemObject(m));
    const char *src = "kernel void k(global int *a) { *a = 1; }";
    cl_program p = build(src, "");
    REFS("program refs", p, Program, PROGRAM);
    cl_kernel k = clCreateKernel(p, "k", &err);
    REFS("kernel refs", k, Kernel, KERNEL);
    ERR("program released before its kernel", clReleaseProgram(p));
    clSetKernelArg(k, 0, sizeof m, &m);
    size_t one = 1;
    ERR("launch then", clEnqueueNDRangeKernel(queue, k, 1, NULL, &one, NULL, 0, NULL, NULL));
    ERR("kernel released in flight", clReleaseKernel(k));
    int v = 0;
    ERR("read then", clEnqueueReadBuffer(queue, m, CL_TRUE, 0, 4, &v, 0, NULL, NULL));
    SAY("read then gives", "%d", v);
    ERR("context released before its buffer and queue", clReleaseContext(context));
    ERR("buffer read after that", clEnqueueReadBuffer(queue, m, CL_TRUE, 0, 4, &v, 0, NULL, NULL));
    ERR("queue released before its buffer", clReleaseCommandQueue(queue));
    ERR("buffer last release", clReleaseMemObject(m));
    ERR("unload compiler", clUnloadCompiler());
    ERR("unload platform compiler", clUnloadPlatformCompiler(platform));
}

int main(void) {
    setup(0);
    platforms();
    devices();
    contexts();
    queues();
    counts();
    return 0;
}
