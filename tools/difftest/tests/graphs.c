// Command buffers (cl_khr_command_buffer 0.9.0): recording, replaying, every argument wrong in turn. The functions are had
// by name, and their types spelled out here: the extension's header is provisional.
#include "dt.h"

typedef void *graph;
typedef cl_uint point;
#define POINTS cl_uint, const point *, point *, void *
static graph (*create)(cl_uint, const cl_command_queue *, const cl_properties *, cl_int *);
static cl_int (*finalize)(graph), (*retain)(graph), (*release)(graph);
static cl_int (*info)(graph, cl_uint, size_t, void *, size_t *);
static cl_int (*replay)(cl_uint, cl_command_queue *, graph, cl_uint, const cl_event *, cl_event *);
static cl_int (*barrier)(graph, cl_command_queue, POINTS);
static cl_int (*copy)(graph, cl_command_queue, cl_mem, cl_mem, size_t, size_t, size_t, POINTS);
static cl_int (*copy_rect)(graph, cl_command_queue, cl_mem, cl_mem, const size_t *, const size_t *, const size_t *, size_t, size_t, size_t, size_t, POINTS);
static cl_int (*fill_with)(graph, cl_command_queue, cl_mem, const void *, size_t, size_t, size_t, POINTS);
static cl_int (*launch)(graph, cl_command_queue, const cl_properties *, cl_kernel, cl_uint, const size_t *, const size_t *, const size_t *, POINTS);
static cl_int (*image_fill)(graph, cl_command_queue, cl_mem, const void *, const size_t *, const size_t *, POINTS);
static cl_int (*image_to_buffer)(graph, cl_command_queue, cl_mem, cl_mem, const size_t *, const size_t *, size_t, POINTS);

static int native; // PoCL 3.1, which does not survive some of this
#define UNSAFE(label, call) do { if (native) SAY(label, "skipped"); else ERR(label, call); } while (0)

enum { STATE = 0x1297, REFS = 0x1296, QUEUES = 0x1294, NUM = 0x1295, PROPS = 0x1298, FLAGS = 0x1293 };

// EXECUTABLE waits until a command buffer may be replayed: PoCL's is pending a moment longer than its event and clFinish.
#define EXECUTABLE(g) do { cl_uint state_ = 99; AWAIT((info(g, STATE, sizeof state_, &state_, NULL), state_ == 1)); } while (0)

static void load(void) {
    cl_platform_id p = NULL;
    clGetDeviceInfo(device, CL_DEVICE_PLATFORM, sizeof p, &p, NULL);
    struct { const char *name; void **to; } all[] = {
        {"clCreateCommandBufferKHR", (void **)&create}, {"clFinalizeCommandBufferKHR", (void **)&finalize}, {"clRetainCommandBufferKHR", (void **)&retain},
        {"clReleaseCommandBufferKHR", (void **)&release}, {"clGetCommandBufferInfoKHR", (void **)&info}, {"clEnqueueCommandBufferKHR", (void **)&replay},
        {"clCommandBarrierWithWaitListKHR", (void **)&barrier}, {"clCommandCopyBufferKHR", (void **)&copy}, {"clCommandCopyBufferRectKHR", (void **)&copy_rect},
        {"clCommandFillBufferKHR", (void **)&fill_with}, {"clCommandNDRangeKernelKHR", (void **)&launch}, {"clCommandFillImageKHR", (void **)&image_fill},
        {"clCommandCopyImageToBufferKHR", (void **)&image_to_buffer},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        *all[i].to = clGetExtensionFunctionAddressForPlatform(p, all[i].name);
        SAY(L("function %s", all[i].name), "%s", *all[i].to ? "there" : "missing");
        if (!*all[i].to) exit(0);
    }
}

static void about(const char *label, graph g) {
    cl_uint state = 99, refs = 99, num = 99;
    cl_command_queue q = NULL;
    size_t n = 99;
    info(g, STATE, sizeof state, &state, NULL);
    info(g, REFS, sizeof refs, &refs, NULL);
    info(g, NUM, sizeof num, &num, NULL);
    info(g, QUEUES, sizeof q, &q, NULL);
    cl_int e = info(g, PROPS, 0, NULL, &n);
    SAY(label, "state %u refs %u queues %u %s; %s %zu", state, refs, num, q == queue ? "ours" : "other", dt_name(e), n);
}

static const char *src = "kernel void add(global int *a, int by) { a[get_global_id(0)] += by; }\n"
                         "kernel void twice(global const int *a, global int *b) { size_t i = get_global_id(0); b[i] = 2 * a[i]; }\n";

static void wrong(cl_kernel k, cl_mem a, cl_mem b) {
    cl_properties twice[] = {FLAGS, 0, FLAGS, 0, 0}, unknown[] = {0x7777, 0, 0}, value[] = {FLAGS, 1 << 30, 0};
    cl_command_queue none = NULL, two[] = {queue, queue};
    graph g;
    MAKE("create no queues", g, create(0, NULL, NULL, &err));
    if (native) SAY("create null queue", "skipped");
    else MAKE("create null queue", g, create(1, &none, NULL, &err));
    MAKE("create null queues", g, create(1, NULL, NULL, &err));
    MAKE("create two queues", g, create(2, two, NULL, &err));
    MAKE("create flags twice", g, create(1, &queue, twice, &err));
    MAKE("create unknown property", g, create(1, &queue, unknown, &err));
    MAKE("create unknown flag", g, create(1, &queue, value, &err));
    ERR("finalize null", finalize(NULL));
    ERR("retain null", retain(NULL));
    ERR("release null", release(NULL));
    ERR("info null", info(NULL, STATE, 0, NULL, NULL));
    ERR("replay null", replay(0, NULL, NULL, 0, NULL, NULL));
    MAKE("create", g, create(1, &queue, NULL, &err));
    if (!g) return;
    about("new", g);
    ERR("info unknown", info(g, 0x7777, 0, NULL, NULL));
    ERR("info small", info(g, STATE, 1, &(cl_uint){0}, NULL));
    ERR("replay while recording", replay(0, NULL, g, 0, NULL, NULL));
    point p = 0, bad = 77;
    size_t global = 16, zero3[3] = {0}, region[3] = {4, 2, 1}, huge[3] = {4000, 2, 1};
    char byte = 1;
    ERR("copy null graph", copy(NULL, NULL, a, b, 0, 0, 4, 0, NULL, NULL, NULL));
    ERR("copy with a queue", copy(g, queue, a, b, 0, 0, 4, 0, NULL, NULL, NULL));
    ERR("copy null source", copy(g, NULL, NULL, b, 0, 0, 4, 0, NULL, NULL, NULL));
    ERR("copy null target", copy(g, NULL, a, NULL, 0, 0, 4, 0, NULL, NULL, NULL));
    ERR("copy beyond", copy(g, NULL, a, b, 60, 0, 8, 0, NULL, NULL, NULL));
    ERR("copy overlap", copy(g, NULL, a, a, 0, 4, 8, 0, NULL, NULL, NULL));
    ERR("copy unknown point", copy(g, NULL, a, b, 0, 0, 4, 1, &bad, NULL, NULL));
    ERR("copy points without list", copy(g, NULL, a, b, 0, 0, 4, 1, NULL, NULL, NULL));
    ERR("copy list without points", copy(g, NULL, a, b, 0, 0, 4, 0, &p, NULL, NULL));
    void *handle;
    ERR("copy mutable", copy(g, NULL, a, b, 0, 0, 4, 0, NULL, NULL, &handle));
    ERR("rect beyond", copy_rect(g, NULL, a, b, zero3, zero3, huge, 0, 0, 0, 0, 0, NULL, NULL, NULL));
    ERR("rect null origin", copy_rect(g, NULL, a, b, NULL, zero3, region, 0, 0, 0, 0, 0, NULL, NULL, NULL));
    ERR("fill null", fill_with(g, NULL, NULL, &byte, 1, 0, 4, 0, NULL, NULL, NULL));
    ERR("fill null pattern", fill_with(g, NULL, a, NULL, 1, 0, 4, 0, NULL, NULL, NULL));
    ERR("fill pattern 3", fill_with(g, NULL, a, &byte, 3, 0, 6, 0, NULL, NULL, NULL));
    ERR("fill beyond", fill_with(g, NULL, a, &byte, 1, 0, 65, 0, NULL, NULL, NULL));
    UNSAFE("launch null", launch(g, NULL, NULL, NULL, 1, NULL, &global, NULL, 0, NULL, NULL, NULL));
    UNSAFE("launch no dimension", launch(g, NULL, NULL, k, 0, NULL, &global, NULL, 0, NULL, NULL, NULL));
    UNSAFE("launch without arguments", launch(g, NULL, NULL, k, 1, NULL, &global, NULL, 0, NULL, NULL, NULL));
    ERR("barrier null", barrier(NULL, NULL, 0, NULL, NULL, NULL));
    ERR("barrier", barrier(g, NULL, 0, NULL, &p, NULL));
    ERR("finalize", finalize(g));
    ERR("finalize again", finalize(g));
    about("final", g);
    ERR("copy after finalize", copy(g, NULL, a, b, 0, 0, 4, 0, NULL, NULL, NULL));
    ERR("replay wait list", replay(0, NULL, g, 1, NULL, NULL));
    ERR("replay null queues", replay(1, NULL, g, 0, NULL, NULL));
    ERR("retain", retain(g));
    about("retained", g);
    ERR("release", release(g));
    ERR("release last", release(g));
}

static void use(const char *name, cl_command_queue q, cl_kernel add, cl_kernel twice, cl_mem a, cl_mem b, cl_mem c) {
    char label[32];
    snprintf(label, sizeof label, "%s", name);
    int v[16], zero = 0, by = 3;
    size_t global = 16, local = 4;
    point p[4];
    cl_event e = NULL;
    graph g = create(1, &q, NULL, &err);
    ERR(L("%s create", label), err);
    ERR(L("%s fill", label), fill_with(g, NULL, a, &zero, sizeof zero, 0, 64, 0, NULL, &p[0], NULL));
    clSetKernelArg(add, 0, sizeof a, &a);
    clSetKernelArg(add, 1, sizeof by, &by);
    ERR(L("%s launch", label), launch(g, NULL, NULL, add, 1, NULL, &global, &local, 1, p, &p[1], NULL));
    by = 100; // recorded as it was
    clSetKernelArg(add, 1, sizeof by, &by);
    ERR(L("%s copy", label), copy(g, NULL, a, b, 0, 0, 64, 1, &p[1], &p[2], NULL));
    ERR(L("%s barrier", label), barrier(g, NULL, 0, NULL, NULL, NULL));
    clSetKernelArg(twice, 0, sizeof b, &b);
    clSetKernelArg(twice, 1, sizeof c, &c);
    ERR(L("%s launch again", label), launch(g, NULL, NULL, twice, 1, NULL, &global, NULL, 1, &p[2], &p[3], NULL));
    ERR(L("%s finalize", label), finalize(g));
    for (int i = 0; i < 3; i++) {
        ERR(L("%s replay %d", label, i), replay(0, NULL, g, 0, NULL, &e));
        ERR(L("%s wait %d", label, i), clWaitForEvents(1, &e));
        cl_command_type type = 0;
        cl_int how = 99;
        clGetEventInfo(e, CL_EVENT_COMMAND_TYPE, sizeof type, &type, NULL);
        clGetEventInfo(e, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof how, &how, NULL);
        SAY(L("%s event %d", label, i), "%x %d", type, how);
        clReleaseEvent(e);
        clEnqueueReadBuffer(q, c, CL_TRUE, 0, sizeof v, v, 0, NULL, NULL);
        SAY(L("%s result %d", label, i), "%d %d", v[0], v[15]);
        EXECUTABLE(g);
    }
    // The kernel's own arguments are as the program left them.
    clEnqueueNDRangeKernel(q, add, 1, NULL, &global, NULL, 0, NULL, NULL);
    clFinish(q);
    clEnqueueReadBuffer(q, a, CL_TRUE, 0, sizeof v, v, 0, NULL, NULL);
    SAY(L("%s launched besides", label), "%d %d", v[0], v[15]);
    cl_event gate = clCreateUserEvent(context, &err);
    ERR(L("%s replay behind a gate", label), replay(1, &q, g, 1, &gate, &e));
    cl_uint state = 99;
    info(g, STATE, sizeof state, &state, NULL);
    SAY(L("%s state behind a gate", label), "%u", state);
    ERR(L("%s replay while pending", label), replay(0, NULL, g, 0, NULL, NULL));
    clSetUserEventStatus(gate, CL_COMPLETE);
    ERR(L("%s wait behind a gate", label), clWaitForEvents(1, &e));
    EXECUTABLE(g);
    info(g, STATE, sizeof state, &state, NULL);
    SAY(L("%s state in the end", label), "%u", state);
    clEnqueueReadBuffer(q, c, CL_TRUE, 0, sizeof v, v, 0, NULL, NULL);
    SAY(L("%s result behind a gate", label), "%d %d", v[0], v[15]);
    clReleaseEvent(gate);
    clReleaseEvent(e);
    if (!native) { // PoCL goes on as if nothing had failed
        gate = clCreateUserEvent(context, &err);
        clEnqueueFillBuffer(q, c, &zero, sizeof zero, 0, 64, 0, NULL, NULL);
        clFinish(q);
        replay(1, &q, g, 1, &gate, &e);
        clSetUserEventStatus(gate, -7);
        int how = 99, waited = clWaitForEvents(1, &e);
        clGetEventInfo(e, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof how, &how, NULL);
        clEnqueueReadBuffer(q, c, CL_TRUE, 0, sizeof v, v, 0, NULL, NULL);
        clReleaseEvent(gate);
        clReleaseEvent(e);
        if (waited != -14 || how != -14 || v[0] != 0 || v[15] != 0) SAY(L("%s behind a failed gate", label), "%d %d %d", waited, how, v[0]);
    }
    ERR(L("%s release", label), release(g));
}

static void simultaneous(cl_kernel add, cl_mem a) {
    cl_properties flags[] = {FLAGS, 1, 0};
    int v[16] = {0}, by = 1;
    size_t global = 16;
    graph g = create(1, &queue, flags, &err);
    ERR("many create", err);
    about("many", g);
    clEnqueueWriteBuffer(queue, a, CL_TRUE, 0, sizeof v, v, 0, NULL, NULL);
    clSetKernelArg(add, 0, sizeof a, &a);
    clSetKernelArg(add, 1, sizeof by, &by);
    for (int i = 0; i < 10; i++) launch(g, NULL, NULL, add, 1, NULL, &global, NULL, 0, NULL, NULL, NULL);
    ERR("many finalize", finalize(g));
    int bad = 0;
    for (int i = 0; i < 100; i++) bad += replay(0, NULL, g, 0, NULL, NULL) != CL_SUCCESS;
    SAY("many refused", "%d", bad);
    ERR("many finish", clFinish(queue));
    clEnqueueReadBuffer(queue, a, CL_TRUE, 0, sizeof v, v, 0, NULL, NULL);
    SAY("many result", "%d %d", v[0], v[15]);
    ERR("many release", release(g));
}

// The program's own memory, read without map or read after clFinish; pushed and fetched around each replay.
static void own_memory(cl_kernel add) {
    int *own = aligned_alloc(4096, 4096), by = 5;
    for (int i = 0; i < 16; i++) own[i] = i;
    cl_mem m = buffer(CL_MEM_USE_HOST_PTR, 64, own);
    size_t global = 16;
    graph g = create(1, &queue, NULL, &err);
    clSetKernelArg(add, 0, sizeof m, &m);
    clSetKernelArg(add, 1, sizeof by, &by);
    ERR("own launch", launch(g, NULL, NULL, add, 1, NULL, &global, NULL, 0, NULL, NULL, NULL));
    finalize(g);
    for (int i = 0; i < 2; i++) {
        ERR(L("own replay %d", i), replay(0, NULL, g, 0, NULL, NULL));
        clFinish(queue);
        EXECUTABLE(g);
        SAY(L("own memory %d", i), "%d %d", own[0], own[15]);
        own[0] = 1000;
    }
    release(g);
    clReleaseMemObject(m);
    free(own);
}

static void with_images(cl_mem b) {
    cl_image_format f = {CL_RGBA, CL_UNSIGNED_INT8};
    cl_image_desc d = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 4, .image_height = 4};
    cl_mem im = clCreateImage(context, 0, &f, &d, NULL, &err);
    ERR("image", err);
    if (!im) return;
    cl_uint color[4] = {1, 2, 3, 4};
    size_t origin[3] = {0}, region[3] = {4, 4, 1};
    unsigned char v[64];
    graph g = create(1, &queue, NULL, &err);
    ERR("image fill", image_fill(g, NULL, im, color, origin, region, 0, NULL, NULL, NULL));
    ERR("image fill null", image_fill(g, NULL, NULL, color, origin, region, 0, NULL, NULL, NULL));
    ERR("image to buffer", image_to_buffer(g, NULL, im, b, origin, region, 0, 0, NULL, NULL, NULL));
    ERR("image finalize", finalize(g));
    ERR("image replay", replay(0, NULL, g, 0, NULL, NULL));
    clFinish(queue);
    clEnqueueReadBuffer(queue, b, CL_TRUE, 0, sizeof v, v, 0, NULL, NULL);
    HASH("image result", v, sizeof v);
    release(g);
    clReleaseMemObject(im);
}

int main(void) {
    setup(0);
    char name[128] = "";
    clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof name, name, NULL);
    native = strncmp(name, "Portable Computing Language", 27) == 0;
    load();
    cl_program p = build(src, "");
    cl_kernel add = clCreateKernel(p, "add", &err), twice = clCreateKernel(p, "twice", &err);
    cl_mem a = buffer(0, 64, NULL), b = buffer(0, 64, NULL), c = buffer(0, 64, NULL);
    wrong(add, a, b);
    use("in order", queue, add, twice, a, b, c);
    cl_command_queue any = clCreateCommandQueue(context, device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &err);
    ERR("out of order queue", err);
    if (any) use("out of order", any, add, twice, a, b, c);
    simultaneous(add, a);
    own_memory(add);
    with_images(b);
    return 0;
}
