/* killed SURVIVOR: one context over two devices of two nodes, random commands on both that use each other's results, until one of them
 * fails. Then every kind of call is made on the device that is gone, which must fail, and on the one whose number is given, which must
 * work: in the same context and in a new one. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>

enum { WORDS = 50000, BUFFERS = 4 };

static const char *source = "__kernel void add(__global const uint *a, __global uint *b, uint k) { size_t i = get_global_id(0); b[i] = b[i] * 3 + a[i] + k; }\n";
static cl_device_id devices[2];
static cl_context context;
static cl_command_queue queues[2];
static cl_kernel add;
static cl_mem buffers[BUFFERS];
static cl_uint words[WORDS];

static void must(cl_int code, const char *what)
{
	if (code != CL_SUCCESS) {
		printf("%s: %d\n", what, code);
		exit(1);
	}
}

static cl_program built(cl_context c, cl_uint n, cl_device_id *of)
{
	cl_int code;
	cl_program p = clCreateProgramWithSource(c, 1, &source, NULL, &code);
	must(code, "clCreateProgramWithSource");
	must(clBuildProgram(p, n, of, "-cl-kernel-arg-info", NULL, NULL), "clBuildProgram");
	return p;
}

/* step gives the code of a random command, or of its wait. */
static cl_int step(unsigned r)
{
	cl_command_queue q = queues[r & 1];
	cl_mem a = buffers[r >> 1 & 3], b = buffers[r >> 3 & 3];
	size_t n = WORDS;
	cl_uint k = r;
	cl_int code = CL_SUCCESS;
	if (a == b)
		b = buffers[((r >> 3) + 1) & 3];
	switch (r >> 5 & 7) {
	case 0:
		return clEnqueueWriteBuffer(q, a, r >> 8 & 1, 0, sizeof words, words, 0, NULL, NULL);
	case 1:
		return clEnqueueReadBuffer(q, a, CL_TRUE, 0, sizeof words, words, 0, NULL, NULL);
	case 2:
		return clEnqueueCopyBuffer(q, a, b, 0, 0, sizeof words, 0, NULL, NULL);
	case 3: {
		void *at = clEnqueueMapBuffer(q, a, CL_TRUE, CL_MAP_READ, 0, sizeof words, 0, NULL, NULL, &code);
		return code ? code : clEnqueueUnmapMemObject(q, a, at, 0, NULL, NULL);
	}
	case 4:
		return clFinish(q);
	}
	clSetKernelArg(add, 0, sizeof a, &a);
	clSetKernelArg(add, 1, sizeof b, &b);
	clSetKernelArg(add, 2, sizeof k, &k);
	return clEnqueueNDRangeKernel(q, add, 1, NULL, &n, NULL, 0, NULL, NULL);
}

/* works says whether a device works on a buffer of its own in a context. */
static int works(cl_context c, cl_command_queue q, cl_kernel k)
{
	cl_int code;
	cl_uint one = 1, got[64] = {0};
	size_t n = 64;
	cl_mem a = clCreateBuffer(c, CL_MEM_READ_WRITE, sizeof got, NULL, &code), b = clCreateBuffer(c, CL_MEM_READ_WRITE, sizeof got, NULL, &code);
	clEnqueueFillBuffer(q, a, &one, 4, 0, sizeof got, 0, NULL, NULL);
	clEnqueueFillBuffer(q, b, &one, 4, 0, sizeof got, 0, NULL, NULL);
	clSetKernelArg(k, 0, sizeof a, &a);
	clSetKernelArg(k, 1, sizeof b, &b);
	clSetKernelArg(k, 2, sizeof one, &one);
	code = clEnqueueNDRangeKernel(q, k, 1, NULL, &n, NULL, 0, NULL, NULL);
	if (code == CL_SUCCESS)
		code = clEnqueueReadBuffer(q, b, CL_TRUE, 0, sizeof got, got, 0, NULL, NULL);
	if (code != CL_SUCCESS || got[0] != 5 || got[63] != 5)
		printf("code %d, %u %u\n", code, got[0], got[63]);
	clReleaseMemObject(a);
	clReleaseMemObject(b);
	return code == CL_SUCCESS && got[0] == 5 && got[63] == 5;
}

int main(int argc, char **argv)
{
	int survivor = argc > 1 && argv[1][0] == '1', gone = !survivor;
	cl_platform_id platform;
	cl_int code;
	unsigned r = 12345;
	must(clGetPlatformIDs(1, &platform, NULL), "clGetPlatformIDs");
	must(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 2, devices, NULL), "clGetDeviceIDs");
	context = clCreateContext(NULL, 2, devices, NULL, NULL, &code);
	must(code, "clCreateContext");
	add = clCreateKernel(built(context, 2, devices), "add", &code);
	must(code, "clCreateKernel");
	for (int i = 0; i < 2; i++)
		queues[i] = clCreateCommandQueue(context, devices[i], 0, &code);
	for (int i = 0; i < BUFFERS; i++) {
		buffers[i] = clCreateBuffer(context, CL_MEM_READ_WRITE, sizeof words, NULL, &code);
		must(clEnqueueWriteBuffer(queues[i & 1], buffers[i], CL_TRUE, 0, sizeof words, words, 0, NULL, NULL), "clEnqueueWriteBuffer");
	}
	for (int i = 0; i < 300; i++)
		must(step(r = r * 1664525 + 1013904223), "a command before anything is killed");
	must(clFinish(queues[0]), "clFinish");
	must(clFinish(queues[1]), "clFinish");
	puts("ready");
	fflush(stdout);
	do
		code = step((r = r * 1664525 + 1013904223) >> 8);
	while (code == CL_SUCCESS);
	for (int i = 0; i < 100; i++) /* whatever they say, they return */
		step((r = r * 1664525 + 1013904223) >> 8);
	clFinish(queues[survivor]);
	if (clEnqueueReadBuffer(queues[gone], buffers[0], CL_TRUE, 0, sizeof words, words, 0, NULL, NULL) == CL_SUCCESS)
		puts("a read of a device that is gone succeeds");
	if (clFinish(queues[gone]) == CL_SUCCESS && clEnqueueMarkerWithWaitList(queues[gone], 0, NULL, NULL) == CL_SUCCESS)
		puts("a queue of a device that is gone goes on");
	puts(works(context, queues[survivor], add) ? "the other works" : "the other does NOT work");
	cl_context alone = clCreateContext(NULL, 1, &devices[survivor], NULL, NULL, &code);
	cl_command_queue q = clCreateCommandQueue(alone, devices[survivor], 0, &code);
	cl_program p = built(alone, 1, &devices[survivor]);
	cl_kernel k = clCreateKernel(p, "add", &code);
	puts(works(alone, q, k) ? "alone too" : "alone NOT");
	for (int i = 0; i < BUFFERS; i++)
		clReleaseMemObject(buffers[i]);
	for (int i = 0; i < 2; i++)
		clReleaseCommandQueue(queues[i]);
	clReleaseKernel(add);
	clReleaseContext(context);
	puts("released");
	return 0;
}
