// Sub-devices, argument by argument: every way of partitioning of a device, of a part and of a part's part, with every
// kind of room for the answer; contexts, queues, programs and kernels of each, with devices that are right, not the
// context's, twice there or none; who holds what.
#include "dt.h"

#define MAX 64
typedef cl_device_partition_property property;

static const struct { const char *name; property list[12]; } ways[] = {
    {"equally 1", {CL_DEVICE_PARTITION_EQUALLY, 1, 0}},
    {"equally 2", {CL_DEVICE_PARTITION_EQUALLY, 2, 0}},
    {"equally 3", {CL_DEVICE_PARTITION_EQUALLY, 3, 0}},
    {"equally 0", {CL_DEVICE_PARTITION_EQUALLY, 0, 0}},
    {"equally -1", {CL_DEVICE_PARTITION_EQUALLY, -1, 0}},
    {"equally 1<<32", {CL_DEVICE_PARTITION_EQUALLY, (property)1 << 32, 0}},
    {"equally twice", {CL_DEVICE_PARTITION_EQUALLY, 1, CL_DEVICE_PARTITION_EQUALLY, 1, 0}},
    {"counts of nothing", {CL_DEVICE_PARTITION_BY_COUNTS, CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0}},
    {"counts 1", {CL_DEVICE_PARTITION_BY_COUNTS, 1, CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0}},
    {"counts 2", {CL_DEVICE_PARTITION_BY_COUNTS, 2, CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0}},
    {"counts 1 1", {CL_DEVICE_PARTITION_BY_COUNTS, 1, 1, CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0}},
    {"counts 1 1 1", {CL_DEVICE_PARTITION_BY_COUNTS, 1, 1, 1, CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0}},
    {"counts 1 2", {CL_DEVICE_PARTITION_BY_COUNTS, 1, 2, CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0}},
    {"counts 3", {CL_DEVICE_PARTITION_BY_COUNTS, 3, CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0}},
    {"counts -1", {CL_DEVICE_PARTITION_BY_COUNTS, -1, CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0}},
    {"domain numa", {CL_DEVICE_PARTITION_BY_AFFINITY_DOMAIN, CL_DEVICE_AFFINITY_DOMAIN_NUMA, 0}},
    {"domain L1", {CL_DEVICE_PARTITION_BY_AFFINITY_DOMAIN, CL_DEVICE_AFFINITY_DOMAIN_L1_CACHE, 0}},
    {"domain next", {CL_DEVICE_PARTITION_BY_AFFINITY_DOMAIN, CL_DEVICE_AFFINITY_DOMAIN_NEXT_PARTITIONABLE, 0}},
    {"domain 0", {CL_DEVICE_PARTITION_BY_AFFINITY_DOMAIN, 0, 0}},
    {"unknown", {0x1234, 1, 0}},
    {"nothing", {0}},
};
#define WAYS (sizeof ways / sizeof *ways)

static const char *keep(const char *s) { return strdup(s); }

static void release(cl_uint n, cl_device_id *d) {
    for (cl_uint i = 0; i < n; i++) clReleaseDevice(d[i]);
}

// facts says what a part tells of itself; of is what it was made of.
static void facts(const char *label, cl_device_id d, cl_device_id of, cl_device_id root) {
    static const cl_device_info same[] = {CL_DEVICE_TYPE, CL_DEVICE_VENDOR_ID, CL_DEVICE_MAX_WORK_GROUP_SIZE, CL_DEVICE_MAX_WORK_ITEM_SIZES,
        CL_DEVICE_NAME, CL_DEVICE_VENDOR, CL_DEVICE_VERSION, CL_DEVICE_EXTENSIONS, CL_DEVICE_GLOBAL_MEM_SIZE, CL_DEVICE_MAX_MEM_ALLOC_SIZE,
        CL_DEVICE_LOCAL_MEM_SIZE, CL_DEVICE_IMAGE_SUPPORT, CL_DEVICE_QUEUE_ON_HOST_PROPERTIES, CL_DEVICE_PARTITION_PROPERTIES,
        CL_DEVICE_PARTITION_AFFINITY_DOMAIN, CL_DEVICE_BUILT_IN_KERNELS, CL_DEVICE_SVM_CAPABILITIES, CL_DEVICE_MEM_BASE_ADDR_ALIGN,
        CL_DEVICE_GLOBAL_MEM_CACHE_SIZE, CL_DEVICE_HOST_UNIFIED_MEMORY, CL_DEVICE_MAX_NUM_SUB_GROUPS, CL_DEVICE_AVAILABLE, CL_DEVICE_PLATFORM};
    char a[4096], b[4096];
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        size_t n = 0, m = 0;
        cl_int e = clGetDeviceInfo(d, same[i], sizeof a, a, &n), f = clGetDeviceInfo(root, same[i], sizeof b, b, &m);
        if (e != f || n != m || memcmp(a, b, n)) SAY(L("%s info %x", label, same[i]), "%s %zu, of the whole %s %zu", dt_name(e), n, dt_name(f), m);
    }
    cl_uint units = 99, max = 99, refs = 99;
    property type[12] = {0};
    size_t n = 0;
    cl_device_id up = NULL;
    clGetDeviceInfo(d, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units, NULL);
    clGetDeviceInfo(d, CL_DEVICE_PARTITION_MAX_SUB_DEVICES, sizeof max, &max, NULL);
    clGetDeviceInfo(d, CL_DEVICE_REFERENCE_COUNT, sizeof refs, &refs, NULL);
    clGetDeviceInfo(d, CL_DEVICE_PARENT_DEVICE, sizeof up, &up, NULL);
    cl_int e = clGetDeviceInfo(d, CL_DEVICE_PARTITION_TYPE, sizeof type, type, &n);
    SAY(label, "units %u, parts %u, refs %u, parent %s; %s %zu %016llx", units, max, refs, up == of ? "right" : up ? "wrong" : "none",
        dt_name(e), n, (unsigned long long)dt_hash(type, n));
    ERR(L("%s type, no room", label), clGetDeviceInfo(d, CL_DEVICE_PARTITION_TYPE, 1, type, NULL));
    ERR(L("%s parent, no room", label), clGetDeviceInfo(d, CL_DEVICE_PARENT_DEVICE, 1, &up, NULL));
    ERR(L("%s info unknown", label), clGetDeviceInfo(d, 0x7fff, sizeof up, &up, NULL));
}

// divide tries every way of a device, with every kind of room.
static void divide(const char *of, cl_device_id whole, int depth) {
    for (size_t w = 0; w < WAYS; w++) {
        const char *id = keep(L("%s, %s", of, ways[w].name));
        cl_device_id out[MAX] = {0};
        cl_uint n = 99;
        cl_int e = clCreateSubDevices(whole, ways[w].list, 0, NULL, &n);
        SAY(L("%s, count", id), "%s %u", dt_name(e), n);
        n = 99;
        e = clCreateSubDevices(whole, ways[w].list, MAX, out, &n);
        SAY(id, "%s %u", dt_name(e), n);
        if (e) continue;
        cl_uint made = n;
        for (cl_uint i = 0; i < made; i++) facts(L("%s, part %u", id, i), out[i], whole, device);
        ERR(L("%s, into nothing", id), clCreateSubDevices(whole, ways[w].list, 0, NULL, NULL));
        ERR(L("%s, room of none", id), clCreateSubDevices(whole, ways[w].list, 0, out + made, &n));
        if (made > 1) {
            cl_device_id few[MAX] = {0};
            n = 99;
            e = clCreateSubDevices(whole, ways[w].list, made - 1, few, &n);
            SAY(L("%s, too little room", id), "%s, %s", dt_name(e), few[0] ? "made" : "none made");
        }
        cl_device_id again[MAX] = {0};
        e = clCreateSubDevices(whole, ways[w].list, made, again, NULL);
        SAY(L("%s, uncounted", id), "%s, %s", dt_name(e), again[0] == out[0] ? "the same" : "others");
        if (!e) release(made, again);
        for (cl_uint i = 0; i < made && depth < 2; i++)
            if (i == 0 || i == made - 1) divide(keep(L("%s, part %u", id, i)), out[i], depth + 1);
        release(made, out);
    }
}

// The devices that what follows is tried with: name, and which are of the context.
enum { WHOLE, FIRST, SECOND, DEEP, NONE, KINDS };
static const char *names[KINDS] = {"whole", "first", "second", "deep", "none"};
static cl_device_id dev[KINDS];

static const char *source = "kernel void k(global int *a, int b) { a[get_global_id(0)] += b; }\n"
                            "kernel void l(local int *a, global int *b) { a[get_local_id(0)] = 1; b[get_global_id(0)] = a[0]; }\n";

static const char *listed(unsigned mask) {
    static char ring[4][64];
    static int at;
    char *s = ring[at = (at + 1) % 4];
    *s = 0;
    for (int i = 0; i < KINDS; i++)
        if (mask >> i & 1) strcat(s, *s ? "+" : ""), strcat(s, names[i]);
    return s;
}

static unsigned within; // the context's devices

// on names a device as one of the context's or as another.
static const char *on(int i) {
    static char ring[8][16];
    static int at;
    char *s = ring[at = (at + 1) % 8];
    snprintf(s, sizeof ring[0], "%s%s", within >> i & 1 ? "" : "other ", names[i]);
    return s;
}

static cl_uint pick(unsigned mask, cl_device_id *out) {
    cl_uint n = 0;
    for (int i = 0; i < KINDS; i++)
        if (mask >> i & 1) out[n++] = dev[i];
    return n;
}

static void queues(const char *id, cl_context c) {
    static const cl_queue_properties lists[][6] = {
        {0}, {CL_QUEUE_PROPERTIES, 0, 0}, {CL_QUEUE_PROPERTIES, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE | CL_QUEUE_PROFILING_ENABLE, 0},
        {CL_QUEUE_PROPERTIES, 1 << 20, 0}, {0x9999, 1, 0}};
    for (int i = 0; i < KINDS; i++) {
        for (size_t l = 0; l < (within >> i & 1 ? sizeof lists / sizeof *lists : 1); l++) {
            cl_command_queue q;
            MAKE(L("%s, queue on %s, %zu", id, on(i), l), q, clCreateCommandQueueWithProperties(c, dev[i], lists[l], &err));
            if (!q) continue;
            cl_device_id of = NULL;
            cl_context in = NULL;
            clGetCommandQueueInfo(q, CL_QUEUE_DEVICE, sizeof of, &of, NULL);
            clGetCommandQueueInfo(q, CL_QUEUE_CONTEXT, sizeof in, &in, NULL);
            SAY(L("%s, queue on %s, %zu, of", id, on(i), l), "%s %s", of == dev[i] ? "right" : "wrong", in == c ? "right" : "wrong");
            ERR(L("%s, queue on %s, %zu, finish", id, on(i), l), clFinish(q));
            clReleaseCommandQueue(q);
        }
        if (!(within >> i & 1)) continue;
        cl_command_queue q;
        MAKE(L("%s, old queue on %s", id, on(i)), q, clCreateCommandQueue(c, dev[i], 1 << 9, &err));
        if (q) clReleaseCommandQueue(q);
        ERR(L("%s, default queue on %s", id, on(i)), clSetDefaultDeviceCommandQueue(c, dev[i], NULL));
    }
}

// kernels asks each device of a kernel and launches it there.
static void kernels(const char *id, cl_context c, cl_program p) {
    cl_kernel k, l;
    MAKE(L("%s, kernel", id), k, clCreateKernel(p, "k", &err));
    MAKE(L("%s, local kernel", id), l, clCreateKernel(p, "l", &err));
    cl_mem m = clCreateBuffer(c, 0, 256, NULL, &err);
    for (int i = 0; i < KINDS; i++) {
        static const cl_kernel_work_group_info what[] = {CL_KERNEL_WORK_GROUP_SIZE, CL_KERNEL_COMPILE_WORK_GROUP_SIZE, CL_KERNEL_LOCAL_MEM_SIZE,
            CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE, CL_KERNEL_PRIVATE_MEM_SIZE, CL_KERNEL_GLOBAL_WORK_SIZE, 0x7777};
        size_t v[3], n;
        if (!(within >> i & 1)) {
            ERR(L("%s, work-group on %s", id, on(i)), clGetKernelWorkGroupInfo(k, dev[i], what[0], sizeof v, v, &n));
            continue;
        }
        for (size_t w = 0; k && w < sizeof what / sizeof *what; w++) {
            v[0] = 77, n = 0;
            cl_int e = clGetKernelWorkGroupInfo(k, dev[i], what[w], sizeof v, v, &n);
            SAY(L("%s, work-group %x on %s", id, what[w], on(i)), "%s %zu", dt_name(e), e ? 0 : n);
        }
        size_t items = 8;
        n = 0;
        if (k) {
            cl_int e = clGetKernelSubGroupInfo(k, dev[i], CL_KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE, sizeof items, &items, sizeof v, v, &n);
            SAY(L("%s, sub-group on %s", id, on(i)), "%s %zu", dt_name(e), e ? 0 : n);
        }
        cl_command_queue q = clCreateCommandQueue(c, dev[i], 0, &err);
        if (err) continue;
        int zero = 0, three = 3, got[64] = {9};
        size_t g = 64, w = 8;
        must(clEnqueueFillBuffer(q, m, &zero, sizeof zero, 0, 256, 0, NULL, NULL), "fill");
        if (k) {
            clSetKernelArg(k, 0, sizeof m, &m), clSetKernelArg(k, 1, sizeof three, &three);
            ERR(L("%s, launch on %s", id, on(i)), clEnqueueNDRangeKernel(q, k, 1, NULL, &g, &w, 0, NULL, NULL));
            w = 7;
            ERR(L("%s, launch of 7 on %s", id, on(i)), clEnqueueNDRangeKernel(q, k, 1, NULL, &g, &w, 0, NULL, NULL));
            w = 1 << 20;
            ERR(L("%s, launch of too many on %s", id, on(i)), clEnqueueNDRangeKernel(q, k, 1, NULL, &w, &w, 0, NULL, NULL));
            ERR(L("%s, task on %s", id, on(i)), clEnqueueTask(q, k, 0, NULL, NULL));
        }
        if (l) {
            w = 8;
            clSetKernelArg(l, 0, 32, NULL), clSetKernelArg(l, 1, sizeof m, &m);
            if (!k) ERR(L("%s, local launch on %s", id, on(i)), clEnqueueNDRangeKernel(q, l, 1, NULL, &g, &w, 0, NULL, NULL));
        }
        cl_int e = clEnqueueReadBuffer(q, m, CL_TRUE, 0, 256, got, 0, NULL, NULL);
        SAY(L("%s, result on %s", id, on(i)), "%s %d %d %d", dt_name(e), got[0], got[1], got[63]);
        clReleaseCommandQueue(q);
    }
    clReleaseMemObject(m);
    if (k) clReleaseKernel(k);
    if (l) clReleaseKernel(l);
    DETACHED(p);
}

// programs builds, compiles and links for every set of devices, also of others than the context's. PoCL ends with SIGSEGV
// at a NULL among them.
static void programs(const char *id, cl_context c) {
    for (unsigned to = 0; to < 1u << NONE; to++) {
        cl_device_id list[KINDS], twice[KINDS * 2];
        cl_uint n = pick(to, list);
        if (to & ~within && n > 2) continue; // others: alone, and beside one
        if (dev[DEEP] == dev[SECOND] && to >> DEEP & 1) continue; // "for each twice" has it
        const char *at = keep(L("%s, for %s%s", id, to & ~within ? "others " : "", to ? listed(to) : "all"));
        cl_program p = clCreateProgramWithSource(c, 1, &source, NULL, &err);
        must(err, "clCreateProgramWithSource");
        cl_int e = clBuildProgram(p, n, n ? list : NULL, "", NULL, NULL);
        ERR(L("%s, build", at), e);
        for (int i = 0; i < KINDS; i++) {
            cl_build_status s = 99;
            size_t size = 0;
            cl_int f = clGetProgramBuildInfo(p, dev[i], CL_PROGRAM_BUILD_STATUS, sizeof s, &s, NULL);
            clGetProgramBuildInfo(p, dev[i], CL_PROGRAM_BUILD_OPTIONS, 0, NULL, &size);
            SAY(L("%s, build on %s", at, on(i)), "%s %d", dt_name(f), f ? 0 : s);
        }
        if (!e && !(to & ~within) && n < 2) kernels(at, c, p);
        if (n) {
            memcpy(twice, list, n * sizeof *list), memcpy(twice + n, list, n * sizeof *list);
            ERR(L("%s, build for each twice", at), clBuildProgram(p, 2 * n, twice, "", NULL, NULL));
            ERR(L("%s, build for a count alone", at), clBuildProgram(p, n, NULL, "", NULL, NULL));
            ERR(L("%s, build for a list alone", at), clBuildProgram(p, 0, list, "", NULL, NULL));
        }
        clReleaseProgram(p);
        p = clCreateProgramWithSource(c, 1, &source, NULL, &err);
        ERR(L("%s, compile", at), clCompileProgram(p, n, n ? list : NULL, "", 0, NULL, NULL, NULL, NULL));
        cl_program whole;
        MAKE(L("%s, link", at), whole, clLinkProgram(c, n, n ? list : NULL, "", 1, &p, NULL, NULL, &err));
        if (whole) clReleaseProgram(whole);
        clReleaseProgram(p);
        for (int times = 1; times <= (n ? 2 : 1); times++) {
            cl_program names;
            const cl_device_id *of = times == 1 ? list : twice;
            MAKE(L("%s, built-in, %d times", at, times), names, clCreateProgramWithBuiltInKernels(c, n * times, of, "pocl.add.i8", &err));
            if (names) clReleaseProgram(names);
        }
    }
}

static cl_uint refs_device(cl_device_id d) {
    cl_uint n = 99;
    clGetDeviceInfo(d, CL_DEVICE_REFERENCE_COUNT, sizeof n, &n, NULL);
    return n;
}

static void contexts(void) {
    for (unsigned in = 1; in < 1u << KINDS; in++) {
        if (dev[DEEP] == dev[SECOND] && in >> DEEP & 1) continue; // "each twice" has it
        cl_device_id list[KINDS], twice[KINDS * 2], got[KINDS] = {0};
        cl_uint n = pick(in, list), refs[KINDS], have = 99;
        for (int i = 0; i < KINDS; i++) refs[i] = i < NONE ? refs_device(dev[i]) : 0;
        const char *id = keep(L("context of %s", listed(in)));
        cl_context c;
        within = in;
        MAKE(id, c, clCreateContext(NULL, n, list, NULL, NULL, &err));
        memcpy(twice, list, n * sizeof *list), memcpy(twice + n, list, n * sizeof *list);
        if (!c) continue;
        size_t size = 0;
        cl_int e = clGetContextInfo(c, CL_CONTEXT_DEVICES, sizeof got, got, &size);
        clGetContextInfo(c, CL_CONTEXT_NUM_DEVICES, sizeof have, &have, NULL);
        SAY(L("%s, devices", id), "%s %zu %u %s", dt_name(e), size, have, memcmp(got, list, n * sizeof *list) ? "others" : "right");
        for (int i = FIRST; i < NONE; i++) SAY(L("%s, holds %s", id, names[i]), "%d", (int)(refs_device(dev[i]) - refs[i]));
        queues(id, c);
        if (n < 3) programs(id, c);
        ERR(L("%s, release", id), clReleaseContext(c));
        for (int i = FIRST; i < NONE; i++) SAY(L("%s, held %s", id, names[i]), "%d", (int)(refs_device(dev[i]) - refs[i]));
        cl_context both;
        MAKE(L("%s, each twice", id), both, clCreateContext(NULL, 2 * n, twice, NULL, NULL, &err));
        if (both) clReleaseContext(both);
    }
    cl_context c;
    cl_context_properties ours[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)platform, 0};
    MAKE("context of a part, the platform named", c, clCreateContext(ours, 1, &dev[FIRST], NULL, NULL, &err));
    if (c) clReleaseContext(c);
    MAKE("context of no devices", c, clCreateContext(ours, 0, &dev[FIRST], NULL, NULL, &err));
    MAKE("context of a count alone", c, clCreateContext(ours, 1, NULL, NULL, NULL, &err));
}

// holds: a part goes with its last user, also where the program lets go of it first.
static void holds(void) {
    cl_device_id part, deep = NULL;
    cl_uint n;
    property one[] = {CL_DEVICE_PARTITION_BY_COUNTS, 1, CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0};
    must(clCreateSubDevices(device, one, 1, &part, NULL), "clCreateSubDevices");
    if (clCreateSubDevices(part, ways[0].list, 1, &deep, &n) == CL_SUCCESS) {
        SAY("a part with a part", "refs %u", refs_device(part));
        ERR("release of the part first", clReleaseDevice(deep));
    }
    ERR("retain", clRetainDevice(part));
    SAY("retained", "%u", refs_device(part));
    ERR("release", clReleaseDevice(part));
    SAY("released", "%u", refs_device(part));
    cl_context c = clCreateContext(NULL, 1, &part, NULL, NULL, &err);
    must(err, "clCreateContext");
    cl_command_queue q = clCreateCommandQueue(c, part, 0, &err);
    must(err, "clCreateCommandQueue");
    char name[64] = "";
    clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof name, name, NULL);
    int early = strstr(name, "Tendril") != NULL; // PoCL 3.1's contexts hold no parts: it would use what is freed
    if (early) must(clReleaseDevice(part), "clReleaseDevice");
    cl_program p = clCreateProgramWithSource(c, 1, &source, NULL, &err);
    ERR("build of what a context holds", clBuildProgram(p, 0, NULL, "", NULL, NULL));
    cl_mem m = clCreateBuffer(c, 0, 256, NULL, &err);
    int v = 5, got = 0;
    ERR("release of the context first", clReleaseContext(c));
    ERR("fill after it", clEnqueueFillBuffer(q, m, &v, 4, 0, 256, 0, NULL, NULL));
    ERR("read after it", clEnqueueReadBuffer(q, m, CL_TRUE, 252, 4, &got, 0, NULL, NULL));
    SAY("value after it", "%d", got);
    clReleaseMemObject(m), clReleaseProgram(p);
    ERR("queue last", clReleaseCommandQueue(q));
    if (!early) must(clReleaseDevice(part), "clReleaseDevice");
    for (int i = 0; i < 3; i++) ERR(L("release of the whole %d", i), clReleaseDevice(device));
    ERR("retain of the whole", clRetainDevice(device));
    SAY("the whole's references", "%u", refs_device(device));
}

int main(void) {
    setup(0);
    divide("whole", device, 0);
    dev[WHOLE] = device;
    cl_device_id two[MAX];
    must(clCreateSubDevices(device, ways[0].list, MAX, two, NULL), "clCreateSubDevices");
    dev[FIRST] = two[0], dev[SECOND] = two[1];
    if (clCreateSubDevices(two[0], ways[0].list, 1, &dev[DEEP], NULL)) dev[DEEP] = two[1];
    contexts();
    holds();
    return 0;
}
