/* spanned NAME: one context over all devices of the first platform; every device copies an object of the store into a
 * buffer that the host may not touch, and the next device sums that buffer. The sum of device i is published as sumI. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <tendril/cl_tendril_store.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX = 8 };
static const char *source =
	"__kernel void copy(__global const uchar *o, __global uchar *t) { t[get_global_id(0)] = o[get_global_id(0)]; }\n"
	"__kernel void sum(__global const uchar *t, uint n, __global ulong *s) { ulong a = 0; for (uint i = 0; i < n; i++) a += t[i]; *s = a; }\n";

static void check(cl_int code, const char *what)
{
	if (code != CL_SUCCESS) {
		printf("%s: %d\n", what, code);
		exit(1);
	}
}
#define CHECK(call) check(call, #call)

int main(int argc, char **argv)
{
	cl_platform_id platform;
	cl_device_id devices[MAX];
	cl_command_queue queues[MAX];
	cl_uint n;
	cl_int code;
	if (argc != 2)
		return 2;
	CHECK(clGetPlatformIDs(1, &platform, NULL));
	CHECK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, MAX, devices, &n));
	cl_context context = clCreateContext(NULL, n, devices, NULL, NULL, &code);
	CHECK(code);
	clCreateBufferFromObjectTENDRIL_fn open =
		(clCreateBufferFromObjectTENDRIL_fn)clGetExtensionFunctionAddressForPlatform(platform, "clCreateBufferFromObjectTENDRIL");
	clPublishBufferTENDRIL_fn publish = (clPublishBufferTENDRIL_fn)clGetExtensionFunctionAddressForPlatform(platform, "clPublishBufferTENDRIL");
	cl_mem object = open(context, NULL, argv[1], &code);
	check(code, "open the object");
	size_t bytes;
	CHECK(clGetMemObjectInfo(object, CL_MEM_SIZE, sizeof bytes, &bytes, NULL));
	cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &code);
	CHECK(code);
	CHECK(clBuildProgram(program, 0, NULL, "", NULL, NULL));
	cl_kernel copy = clCreateKernel(program, "copy", &code), sum = clCreateKernel(program, "sum", &code);
	for (cl_uint i = 0; i < n; i++) {
		queues[i] = clCreateCommandQueue(context, devices[i], 0, &code);
		CHECK(code);
	}
	for (cl_uint i = 0; i < n; i++) {
		cl_mem hidden = clCreateBuffer(context, CL_MEM_HOST_NO_ACCESS, bytes, NULL, &code), out = clCreateBuffer(context, 0, 8, NULL, &code);
		cl_uint count = (cl_uint)bytes;
		cl_ulong total = 0;
		cl_event copied;
		size_t one = 1;
		CHECK(clSetKernelArg(copy, 0, sizeof object, &object));
		CHECK(clSetKernelArg(copy, 1, sizeof hidden, &hidden));
		CHECK(clEnqueueNDRangeKernel(queues[i], copy, 1, NULL, &bytes, NULL, 0, NULL, &copied));
		CHECK(clSetKernelArg(sum, 0, sizeof hidden, &hidden));
		CHECK(clSetKernelArg(sum, 1, sizeof count, &count));
		CHECK(clSetKernelArg(sum, 2, sizeof out, &out));
		cl_command_queue other = queues[(i + 1) % n];
		CHECK(clEnqueueNDRangeKernel(other, sum, 1, NULL, &one, NULL, 1, &copied, NULL));
		CHECK(clEnqueueReadBuffer(other, out, CL_TRUE, 0, 8, &total, 0, NULL, NULL));
		if (clEnqueueReadBuffer(other, hidden, CL_TRUE, 0, 8, &total, 0, NULL, NULL) != CL_INVALID_OPERATION)
			printf("the host read what it may not\n");
		if (clEnqueueWriteBuffer(other, object, CL_TRUE, 0, 8, &total, 0, NULL, NULL) != CL_INVALID_OPERATION)
			printf("the host wrote into an object\n");
		char name[16];
		cl_uchar id[16];
		snprintf(name, sizeof name, "sum%u", i);
		check(publish(out, name, id), "publish");
		printf("device %u: %zu bytes, sum %llu\n", i, bytes, (unsigned long long)total);
		clReleaseMemObject(hidden);
		clReleaseMemObject(out);
		clReleaseEvent(copied);
	}
	return 0;
}
