// replay records a command buffer (cl_khr_command_buffer), replays it, and checks what it left: for devices whose own
// driver has no command buffers, so that there is nothing native to compare with.
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(e) do { cl_int s_ = (e); if (s_ != CL_SUCCESS) { fprintf(stderr, "replay: %s: %d\n", #e, s_); exit(1); } } while (0)

enum { WORDS = 1 << 20, REPLAYS = 10 };

// The extension's functions are had by name; its header is provisional.
typedef void *graph;
typedef graph (*create_fn)(cl_uint, const cl_command_queue *, const cl_ulong *, cl_int *);
typedef cl_int (*one_fn)(graph);
typedef cl_int (*replay_fn)(cl_uint, cl_command_queue *, graph, cl_uint, const cl_event *, cl_event *);
typedef cl_int (*copy_fn)(graph, cl_command_queue, cl_mem, cl_mem, size_t, size_t, size_t, cl_uint, const cl_uint *, cl_uint *, void *);
typedef cl_int (*launch_fn)(graph, cl_command_queue, const cl_ulong *, cl_kernel, cl_uint, const size_t *, const size_t *, const size_t *, cl_uint, const cl_uint *, cl_uint *, void *);

static cl_platform_id platform;

static void *named(const char *name)
{
	void *f = clGetExtensionFunctionAddressForPlatform(platform, name);
	if (!f) {
		fprintf(stderr, "replay: no %s\n", name);
		exit(1);
	}
	return f;
}

int main(void)
{
	static const char *source = "kernel void add(global int *p) { p[get_global_id(0)] += 3; }\n";
	static int out[WORDS];
	cl_device_id device;
	cl_int err, zero = 0;
	size_t items = WORDS;
	CHECK(clGetPlatformIDs(1, &platform, NULL));
	CHECK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
	cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &err);
	CHECK(err);
	cl_command_queue queue = clCreateCommandQueue(context, device, 0, &err);
	CHECK(err);
	cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &err);
	CHECK(err);
	CHECK(clBuildProgram(program, 1, &device, "", NULL, NULL));
	cl_kernel add = clCreateKernel(program, "add", &err);
	CHECK(err);
	cl_mem a = clCreateBuffer(context, CL_MEM_READ_WRITE, sizeof out, NULL, &err);
	CHECK(err);
	cl_mem b = clCreateBuffer(context, CL_MEM_READ_WRITE, sizeof out, NULL, &err);
	CHECK(err);
	CHECK(clSetKernelArg(add, 0, sizeof a, &a));
	CHECK(clEnqueueFillBuffer(queue, a, &zero, sizeof zero, 0, sizeof out, 0, NULL, NULL));
	graph g = ((create_fn)named("clCreateCommandBufferKHR"))(1, &queue, NULL, &err);
	CHECK(err);
	CHECK(((launch_fn)named("clCommandNDRangeKernelKHR"))(g, NULL, NULL, add, 1, NULL, &items, NULL, 0, NULL, NULL, NULL));
	CHECK(((copy_fn)named("clCommandCopyBufferKHR"))(g, NULL, a, b, 0, 0, sizeof out, 0, NULL, NULL, NULL));
	CHECK(((one_fn)named("clFinalizeCommandBufferKHR"))(g));
	for (int i = 0; i < REPLAYS; i++) {
		CHECK(((replay_fn)named("clEnqueueCommandBufferKHR"))(0, NULL, g, 0, NULL, NULL));
		CHECK(clFinish(queue)); // a replay at a time
	}
	CHECK(clEnqueueReadBuffer(queue, b, CL_TRUE, 0, sizeof out, out, 0, NULL, NULL));
	CHECK(((one_fn)named("clReleaseCommandBufferKHR"))(g));
	for (int i = 0; i < WORDS; i++)
		if (out[i] != 3 * REPLAYS) {
			fprintf(stderr, "replay: word %d is %d, not %d\n", i, out[i], 3 * REPLAYS);
			return 1;
		}
	puts("ten replays, a kernel and a copy each: good");
	return 0;
}
