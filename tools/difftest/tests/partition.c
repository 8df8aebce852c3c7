// Sub-devices and what runs on them; built-in kernels; programs in an intermediate language.
#include "dt.h"

static void facts(const char *label, cl_device_id d, cl_device_id parent) {
    cl_uint units = 99, refs = 99, max = 99;
    cl_device_id up = (cl_device_id)&up;
    cl_device_partition_property kind[8] = {0};
    size_t n = 99;
    cl_platform_id p = NULL;
    clGetDeviceInfo(d, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units, NULL);
    clGetDeviceInfo(d, CL_DEVICE_REFERENCE_COUNT, sizeof refs, &refs, NULL);
    clGetDeviceInfo(d, CL_DEVICE_PARTITION_MAX_SUB_DEVICES, sizeof max, &max, NULL);
    clGetDeviceInfo(d, CL_DEVICE_PARENT_DEVICE, sizeof up, &up, NULL);
    clGetDeviceInfo(d, CL_DEVICE_PLATFORM, sizeof p, &p, NULL);
    cl_int e = clGetDeviceInfo(d, CL_DEVICE_PARTITION_TYPE, sizeof kind, kind, &n);
    SAY(label, "units %u refs %u max %u parent %s platform %s; %s %zu %lx %lx", units, refs, max, up == parent ? "right" : up ? "other" : "none",
        p == platform ? "ours" : "other", dt_name(e), n, (long)kind[0], (long)kind[1]);
}

static void wrong(void) {
    cl_device_partition_property equally[] = {CL_DEVICE_PARTITION_EQUALLY, 1, 0}, zero[] = {CL_DEVICE_PARTITION_EQUALLY, 0, 0}, many[] = {CL_DEVICE_PARTITION_EQUALLY, 1000, 0},
        none[] = {0}, other[] = {0x7777, 1, 0}, counts[] = {CL_DEVICE_PARTITION_BY_COUNTS, 1000, CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0},
        affinity[] = {CL_DEVICE_PARTITION_BY_AFFINITY_DOMAIN, CL_DEVICE_AFFINITY_DOMAIN_NUMA, 0};
    cl_device_id out[16];
    cl_uint n = 99;
    ERR("null device", clCreateSubDevices(NULL, equally, 16, out, &n));
    ERR("null properties", clCreateSubDevices(device, NULL, 16, out, &n));
    ERR("no room", clCreateSubDevices(device, equally, 0, out, &n));
    ERR("by 0", clCreateSubDevices(device, zero, 16, out, &n));
    ERR("by 1000", clCreateSubDevices(device, many, 16, out, &n));
    ERR("no property", clCreateSubDevices(device, none, 16, out, &n));
    ERR("unknown property", clCreateSubDevices(device, other, 16, out, &n));
    ERR("counts too large", clCreateSubDevices(device, counts, 16, out, &n));
    ERR("affinity", clCreateSubDevices(device, affinity, 16, out, &n));
    ERR("retain null", clRetainDevice(NULL));
    ERR("release null", clReleaseDevice(NULL));
}

static void use(const char *name, cl_uint n, cl_device_id *devices) {
    char label[64]; // name may be of L's ring
    snprintf(label, sizeof label, "%s", name);
    cl_context c;
    MAKE(L("%s context", label), c, clCreateContext(NULL, n, devices, NULL, NULL, &err));
    if (!c) return;
    cl_uint have = 0;
    clGetContextInfo(c, CL_CONTEXT_NUM_DEVICES, sizeof have, &have, NULL);
    SAY(L("%s context devices", label), "%u", have);
    cl_program p = clCreateProgramWithSource(c, 1, (const char *[]){"kernel void k(global int *a, int b) { size_t i = get_global_id(0); a[i] += b; }"}, NULL, &err);
    ERR(L("%s build", label), clBuildProgram(p, 0, NULL, NULL, NULL, NULL));
    cl_kernel k;
    MAKE(L("%s kernel", label), k, clCreateKernel(p, "k", &err));
    int v[64] = {0};
    cl_mem m = clCreateBuffer(c, 0, sizeof v, NULL, &err);
    SAY(L("%s buffer", label), "%s", dt_name(err));
    size_t g = 64;
    for (cl_uint i = 0; i < n; i++) {
        cl_command_queue q;
        MAKE(L("%s queue %u", label, i), q, clCreateCommandQueueWithProperties(c, devices[i], NULL, &err));
        if (!q) continue;
        cl_device_id of = NULL;
        clGetCommandQueueInfo(q, CL_QUEUE_DEVICE, sizeof of, &of, NULL);
        SAY(L("%s queue %u device", label, i), "%s", of == devices[i] ? "right" : "wrong");
        int b = i + 1;
        if (i == 0) clEnqueueWriteBuffer(q, m, CL_TRUE, 0, sizeof v, v, 0, NULL, NULL);
        clSetKernelArg(k, 0, sizeof m, &m);
        clSetKernelArg(k, 1, sizeof b, &b);
        ERR(L("%s launch %u", label, i), clEnqueueNDRangeKernel(q, k, 1, NULL, &g, NULL, 0, NULL, NULL));
        ERR(L("%s migrate %u", label, i), clEnqueueMigrateMemObjects(q, 1, &m, 0, 0, NULL, NULL));
        clEnqueueReadBuffer(q, m, CL_TRUE, 0, sizeof v, v, 0, NULL, NULL);
        SAY(L("%s result %u", label, i), "%d %d", v[0], v[63]);
        size_t size = 0;
        ERR(L("%s work-group info %u", label, i), clGetKernelWorkGroupInfo(k, devices[i], CL_KERNEL_WORK_GROUP_SIZE, sizeof size, &size, NULL));
        clReleaseCommandQueue(q);
    }
    if (k) clReleaseKernel(k);
    clReleaseProgram(p); clReleaseMemObject(m); clReleaseContext(c);
}

// beside uses sub-devices with another device: that of another node where there are two, else their own.
static void beside(const char *name, cl_uint n, cl_device_id *sub) {
    cl_device_id other, list[66], got[66] = {0};
    must(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &other, NULL), "clGetDeviceIDs");
    list[0] = sub[0], list[1] = other;
    for (cl_uint j = 1; j < n; j++) list[1 + j] = sub[j];
    use(L("%s beside", name), n + 1, list);
    // The context keeps what the program lets go of.
    cl_device_partition_property one[] = {CL_DEVICE_PARTITION_BY_COUNTS, 1, CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0};
    must(clCreateSubDevices(device, one, 1, list, NULL), "clCreateSubDevices");
    cl_context c = clCreateContext(NULL, 2, list, NULL, NULL, &err);
    must(err, "clCreateContext");
    ERR(L("%s beside, kept", name), clReleaseDevice(list[0]));
    cl_int e = clGetContextInfo(c, CL_CONTEXT_DEVICES, sizeof got, got, NULL);
    SAY(L("%s beside, kept devices", name), "%s %s %s", dt_name(e), got[0] == list[0] ? "right" : "wrong", got[1] == list[1] ? "right" : "wrong");
    cl_mem m = clCreateBuffer(c, 0, 1 << 20, NULL, &err);
    cl_uint pattern = 0, v[2] = {0};
    for (int i = 0; i < 6; i++) { // a range at each in turn
        cl_command_queue q = clCreateCommandQueue(c, list[i % 2], 0, &err);
        must(err, "clCreateCommandQueue");
        pattern = i + 1;
        must(clEnqueueFillBuffer(q, m, &pattern, 4, (size_t)i << 16, 1 << 16, 0, NULL, NULL), "fill");
        must(clEnqueueReadBuffer(q, m, CL_TRUE, i ? ((size_t)i << 16) - 4 : 0, 8, v, 0, NULL, NULL), "read");
        SAY(L("%s beside, kept %d", name, i), "%u %u", v[0], v[1]);
        clReleaseCommandQueue(q);
    }
    clReleaseMemObject(m);
    ERR(L("%s beside, kept context", name), clReleaseContext(c));
}

static void divide(void) {
    cl_device_partition_property equally[] = {CL_DEVICE_PARTITION_EQUALLY, 1, 0}, counts[] = {CL_DEVICE_PARTITION_BY_COUNTS, 1, 1, CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0},
        one[] = {CL_DEVICE_PARTITION_BY_COUNTS, 1, CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0};
    struct { const char *name; cl_device_partition_property *list; } all[] = {{"equally", equally}, {"counts", counts}, {"one", one}};
    facts("root", device, NULL);
    for (int i = 0; i < 3; i++) {
        cl_device_id sub[64] = {0};
        cl_uint n = 99;
        ERR(L("%s count", all[i].name), clCreateSubDevices(device, all[i].list, 0, NULL, &n));
        SAY(L("%s are", all[i].name), "%u", n);
        ERR(L("%s made", all[i].name), clCreateSubDevices(device, all[i].list, 64, sub, &n));
        SAY(L("%s made are", all[i].name), "%u", n);
        if (n > 64) continue;
        if (n > 1) {
            cl_device_id few[1];
            ERR(L("%s in too little room", all[i].name), clCreateSubDevices(device, all[i].list, 1, few, NULL));
        }
        for (cl_uint j = 0; j < n; j++) facts(L("%s %u", all[i].name, j), sub[j], device);
        ERR(L("%s divided again", all[i].name), clCreateSubDevices(sub[0], equally, 0, NULL, NULL));
        ERR(L("%s retain", all[i].name), clRetainDevice(sub[0]));
        facts(L("%s retained", all[i].name), sub[0], device);
        ERR(L("%s release", all[i].name), clReleaseDevice(sub[0]));
        use(all[i].name, n, sub);
        use(L("%s first", all[i].name), 1, sub);
        beside(all[i].name, n, sub);
        for (cl_uint j = 0; j < n; j++) ERR(L("%s release %u", all[i].name, j), clReleaseDevice(sub[j]));
    }
}

static void built_in(void) {
    char names[4096] = "";
    size_t n = 0;
    ERR("built-in kernels", clGetDeviceInfo(device, CL_DEVICE_BUILT_IN_KERNELS, sizeof names, names, &n));
    SAY("built-in kernels are", "%zu %s", n, names);
    cl_program p;
    MAKE("built-in null context", p, clCreateProgramWithBuiltInKernels(NULL, 1, &device, names, &err));
    MAKE("built-in no devices", p, clCreateProgramWithBuiltInKernels(context, 0, NULL, names, &err));
    MAKE("built-in null names", p, clCreateProgramWithBuiltInKernels(context, 1, &device, NULL, &err));
    MAKE("built-in nobody", p, clCreateProgramWithBuiltInKernels(context, 1, &device, "nobody.of.this.name", &err));
    if (!strstr(names, "pocl.add.i8")) return;
    MAKE("built-in", p, clCreateProgramWithBuiltInKernels(context, 1, &device, "pocl.add.i8", &err));
    cl_kernel k;
    MAKE("built-in other kernel", k, clCreateKernel(p, "nobody", &err));
    ERR("built-in build", clBuildProgram(p, 1, &device, "", NULL, NULL));
    MAKE("built-in kernel", k, clCreateKernel(p, "pocl.add.i8", &err));
    if (!k) return;
    char name[64] = "";
    cl_uint args = 0;
    clGetKernelInfo(k, CL_KERNEL_FUNCTION_NAME, sizeof name, name, NULL);
    clGetKernelInfo(k, CL_KERNEL_NUM_ARGS, sizeof args, &args, NULL);
    SAY("built-in kernel is", "%s args %u", name, args);
    for (cl_uint a = 0; a < args; a++) {
        cl_kernel_arg_address_qualifier aq = 0;
        char tn[64] = "", an[64] = "";
        cl_int e = clGetKernelArgInfo(k, a, CL_KERNEL_ARG_ADDRESS_QUALIFIER, sizeof aq, &aq, NULL);
        clGetKernelArgInfo(k, a, CL_KERNEL_ARG_TYPE_NAME, sizeof tn, tn, NULL);
        clGetKernelArgInfo(k, a, CL_KERNEL_ARG_NAME, sizeof an, an, NULL);
        SAY(L("built-in arg %u", a), "%s %x '%s' '%s'", dt_name(e), aq, tn, an);
    }
    size_t w[3] = {9, 9, 9};
    ERR("built-in global size", clGetKernelWorkGroupInfo(k, device, CL_KERNEL_GLOBAL_WORK_SIZE, sizeof w, w, NULL));
    char x[32], y[32], z[32] = "";
    for (int i = 0; i < 32; i++) x[i] = i, y[i] = 2 * i;
    cl_mem a = buffer(CL_MEM_COPY_HOST_PTR, 32, x), b = buffer(CL_MEM_COPY_HOST_PTR, 32, y), c = buffer(0, 32, NULL);
    size_t g = 32;
    ERR("built-in arg a", clSetKernelArg(k, 0, sizeof a, &a));
    ERR("built-in arg b", clSetKernelArg(k, 1, sizeof b, &b));
    ERR("built-in arg c", clSetKernelArg(k, 2, sizeof c, &c));
    ERR("built-in launch", clEnqueueNDRangeKernel(queue, k, 1, NULL, &g, NULL, 0, NULL, NULL));
    ERR("built-in finish", clFinish(queue));
    clEnqueueReadBuffer(queue, c, CL_TRUE, 0, 32, z, 0, NULL, NULL);
    HASH("built-in result", z, 32);
    clReleaseKernel(k); clReleaseProgram(p); clReleaseMemObject(a); clReleaseMemObject(b); clReleaseMemObject(c);
}

static void languages(void) {
    char il[256] = "";
    clGetDeviceInfo(device, CL_DEVICE_IL_VERSION, sizeof il, il, NULL);
    SAY("il version", "'%s'", il);
    unsigned words[] = {0x07230203, 0x00010000, 0, 1, 0};
    cl_program p;
    MAKE("il null context", p, clCreateProgramWithIL(NULL, words, sizeof words, &err));
    MAKE("il", p, clCreateProgramWithIL(context, words, sizeof words, &err));
    cl_program s = build("kernel void k() {}", "");
    int v = 1;
    ERR("constant null", clSetProgramSpecializationConstant(NULL, 1, sizeof v, &v));
    ERR("constant of a source", clSetProgramSpecializationConstant(s, 1, sizeof v, &v));
    clReleaseProgram(s);
    cl_ulong d = 0, h = 0;
    ERR("timers", clGetDeviceAndHostTimer(device, &d, &h));
    ERR("timers null", clGetDeviceAndHostTimer(NULL, &d, &h));
    ERR("timer", clGetHostTimer(device, &h));
}

int main(void) {
    setup(0);
    wrong();
    divide();
    built_in();
    languages();
    return 0;
}
