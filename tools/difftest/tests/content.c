// Content sizes (cl_pocl_content_size): what means something arrives, on another device and at the host, however much that is. A driver
// without the extension brings all bytes, which is the same to what is looked at here. In a context over two devices the
// first one's results are used on the last.
#include "dt.h"

typedef cl_int(CL_API_CALL *set_content)(cl_mem buffer, cl_mem size);
static set_content set_size;

enum { N = 4 << 20 };
static const char *source =
    "__kernel void make(__global uchar *out, __global ulong *count, uint seed, ulong n) {\n"
    "  size_t i = get_global_id(0);\n"
    "  if (i < n) out[i] = (uchar)(i * 31 + (i >> 8) + seed);\n"
    "  if (i == 0) *count = n;\n"
    "}\n"
    "__kernel void invert(__global const uchar *in, __global uchar *out, __global const ulong *count) {\n"
    "  size_t i = get_global_id(0);\n"
    "  if (i < *count) out[i] = ~in[i];\n"
    "}\n"
    "__kernel void flip(__global uchar *io, ulong n) { size_t i = get_global_id(0); if (i < n) io[i] ^= 0x55; }\n";

static cl_command_queue queues[2]; // of the first device, of the last
static cl_kernel make, invert, flip;
static unsigned char *host;

static void content(const char *label, cl_mem b, cl_mem count) {
    if (set_size)
        ERR(label, set_size(b, count));
    else
        SAY(label, "SUCCESS");
}

static void launch(cl_command_queue q, cl_kernel k, const char *what) {
    size_t n = N;
    must(clEnqueueNDRangeKernel(q, k, 1, NULL, &n, NULL, 0, NULL, NULL), what);
}

static void made(cl_command_queue q, cl_mem out, cl_mem count, unsigned seed, cl_ulong n) {
    cl_uint s = seed;
    clSetKernelArg(make, 0, sizeof out, &out), clSetKernelArg(make, 1, sizeof count, &count);
    clSetKernelArg(make, 2, sizeof s, &s), clSetKernelArg(make, 3, sizeof n, &n);
    launch(q, make, "make");
}

static void inverted(cl_command_queue q, cl_mem in, cl_mem out, cl_mem count) {
    clSetKernelArg(invert, 0, sizeof in, &in), clSetKernelArg(invert, 1, sizeof out, &out), clSetKernelArg(invert, 2, sizeof count, &count);
    launch(q, invert, "invert");
}

static void shows(const char *label, cl_command_queue q, cl_mem b, size_t n) {
    memset(host, 0xEE, N);
    cl_int e = clEnqueueReadBuffer(q, b, CL_TRUE, 0, N, host, 0, NULL, NULL);
    SAY(label, "%s %016llx", dt_name(e), (unsigned long long)dt_hash(host, n));
}

// lengths are of results that one device makes and the other uses: none, some, all, and more than there are.
static void lengths(cl_mem a, cl_mem b, cl_mem count) {
    static const cl_ulong list[] = {100000, 0, 1, 70000, 65536, N, 4096, 300000};
    for (unsigned i = 0; i < sizeof list / sizeof *list; i++) {
        cl_command_queue from = queues[i % 2], to = queues[1 - i % 2];
        cl_event done;
        made(from, a, count, i, list[i]);
        must(clEnqueueMarkerWithWaitList(from, 0, NULL, &done), "marker");
        must(clEnqueueBarrierWithWaitList(to, 1, &done, NULL), "barrier");
        inverted(to, a, b, count);
        clReleaseEvent(done);
        shows(L("length %u at the other", i), to, b, list[i]);
        shows(L("length %u where it was made", i), from, a, list[i]);
        shows(L("length %u of the result here", i), from, b, list[i]);
    }
    made(queues[0], a, count, 99, N);
    cl_ulong more = 1ull << 60;
    must(clEnqueueWriteBuffer(queues[0], count, CL_TRUE, 0, sizeof more, &more, 0, NULL, NULL), "write");
    inverted(queues[1], a, b, count);
    shows("more than there are", queues[1], b, N);
}

// few are small results, each made at one device and used on the other.
static void few(cl_mem a, cl_mem b, cl_mem count) {
    for (unsigned i = 0; i < 8; i++) {
        made(queues[0], a, count, i, 10000 * i);
        clFinish(queues[0]);
        inverted(queues[1], a, b, count);
        shows(L("few %u", i), queues[1], b, 10000 * i);
    }
}

// growing counts more of bytes that nobody writes anew, or may have written.
static void growing(cl_mem a, cl_mem b, cl_mem count) {
    made(queues[0], a, count, 7, N);
    clFinish(queues[0]);
    for (cl_ulong n = 1000; n <= N; n *= 16) {
        must(clEnqueueWriteBuffer(queues[n % 3 % 2], count, CL_TRUE, 0, sizeof n, &n, 0, NULL, NULL), "write");
        inverted(queues[1], a, b, count);
        shows(L("grown to %llu", (unsigned long long)n), queues[1], b, n);
    }
    content("content ended", a, NULL);
    cl_ulong all = N;
    clSetKernelArg(flip, 0, sizeof a, &a), clSetKernelArg(flip, 1, sizeof all, &all);
    launch(queues[1], flip, "flip");
    shows("all of it at the other", queues[1], a, N);
    shows("all of it", queues[0], a, N);
}

// parts has a sub-buffer with a size of its own, and a size in the middle of a buffer.
static void parts(cl_mem whole, cl_mem b) {
    cl_buffer_region at = {1 << 20, 1 << 20}, where = {4096, 256};
    cl_mem sizes = buffer(CL_MEM_READ_WRITE, 8192, NULL);
    cl_mem sub = clCreateSubBuffer(whole, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &at, &err);
    must(err, "clCreateSubBuffer");
    cl_mem count = clCreateSubBuffer(sizes, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &where, &err);
    must(err, "clCreateSubBuffer");
    content("content of a part", sub, count);
    made(queues[0], sub, count, 5, 40000);
    clFinish(queues[0]);
    inverted(queues[1], sub, b, count);
    shows("a part", queues[1], b, 40000);
    memset(host, 0, N);
    ERR("map a part", (clEnqueueMapBuffer(queues[1], sub, CL_TRUE, CL_MAP_READ, 0, at.size, 0, NULL, NULL, &err), err));
    clReleaseMemObject(count);
    made(queues[0], sub, sizes, 6, at.size);
    clFinish(queues[0]);
    inverted(queues[1], sub, b, sizes);
    shows("a part, uncounted", queues[1], b, at.size);
    clReleaseMemObject(sub), clReleaseMemObject(sizes);
}

// busy: a number that a command behind a user event will write holds nobody up.
static void busy(cl_mem a, cl_mem b, cl_mem count) {
    cl_mem plain = buffer(CL_MEM_READ_WRITE, 8, NULL);
    cl_command_queue free_queue = clCreateCommandQueue(context, device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &err);
    must(err, "clCreateCommandQueue");
    cl_ulong n = N, less = 10;
    content("content again", a, count);
    made(queues[0], a, count, 11, N);
    clFinish(queues[0]);
    must(clEnqueueWriteBuffer(queues[0], plain, CL_TRUE, 0, sizeof n, &n, 0, NULL, NULL), "write");
    cl_event gate = clCreateUserEvent(context, &err);
    must(clEnqueueWriteBuffer(free_queue, count, CL_FALSE, 0, sizeof less, &less, 1, &gate, NULL), "gated write");
    inverted(queues[1], a, b, plain);
    shows("beside a gated number", queues[1], b, N);
    clSetUserEventStatus(gate, CL_COMPLETE);
    clFinish(free_queue);
    inverted(queues[1], a, b, count);
    shows("behind it", queues[1], b, 10);
    clReleaseEvent(gate), clReleaseCommandQueue(free_queue), clReleaseMemObject(plain);
}

int main(int argc, char **argv) {
    setup(0);
    if (!getenv("DT_WHOLE")) // what is said is the same without
        set_size = (set_content)clGetExtensionFunctionAddressForPlatform(platform, "clSetContentSizeBufferPoCL");
    host = malloc(N);
    cl_device_id all[2];
    size_t bytes;
    must(clGetContextInfo(context, CL_CONTEXT_DEVICES, sizeof all, all, &bytes), "clGetContextInfo");
    for (int i = 0; i < 2; i++) {
        queues[i] = clCreateCommandQueue(context, all[i * (bytes / sizeof *all - 1)], 0, &err);
        must(err, "clCreateCommandQueue");
    }
    cl_program p = clCreateProgramWithSource(context, 1, &source, NULL, &err);
    must(clBuildProgram(p, 0, NULL, "-cl-kernel-arg-info", NULL, NULL), "clBuildProgram");
    make = clCreateKernel(p, "make", &err), must(err, "clCreateKernel");
    invert = clCreateKernel(p, "invert", &err), must(err, "clCreateKernel");
    flip = clCreateKernel(p, "flip", &err), must(err, "clCreateKernel");
    cl_mem a = buffer(CL_MEM_READ_WRITE, N, NULL), b = buffer(CL_MEM_READ_WRITE, N, NULL), count = buffer(CL_MEM_READ_WRITE, 8, NULL);
    content("content", a, count), content("content of the result", b, count);
    few(a, b, count);
    if (argc > 1) // what goes between the devices is counted
        return 0;
    lengths(a, b, count);
    content("content of the result ended", b, NULL);
    growing(a, b, count);
    parts(a, b);
    busy(a, b, count);
    return 0;
}
