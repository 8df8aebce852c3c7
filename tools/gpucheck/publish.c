/* publish has a kernel compute what tensors.py then looks at on the same GPU: element i is 3 i + 1, as int.
 *
 *   tendril run --publish NAME --publish-kind cuda -- publish N     into a buffer of N elements, read back whole
 *   tendril run -- publish N ID                                     into the unsealed object of that id
 */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <tendril/cl_tendril_store.h>

#define CHECK(e) do { cl_int s_ = (e); if (s_ != CL_SUCCESS) { \
	fprintf(stderr, "publish: %s: %d\n", #e, s_); exit(1); } } while (0)

static const char *source = "kernel void f(global int *p) { size_t i = get_global_id(0); p[i] = 3 * (int)i + 1; }";

int main(int argc, char **argv)
{
	cl_platform_id platform;
	cl_device_id device;
	cl_int code;
	if (argc < 2 || argc > 3)
		return 2;
	size_t n = strtoul(argv[1], NULL, 10);
	CHECK(clGetPlatformIDs(1, &platform, NULL));
	CHECK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
	cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
	CHECK(code);
	cl_command_queue queue = clCreateCommandQueue(context, device, 0, &code);
	CHECK(code);
	cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &code);
	CHECK(code);
	CHECK(clBuildProgram(program, 1, &device, "", NULL, NULL));
	cl_kernel kernel = clCreateKernel(program, "f", &code);
	CHECK(code);
	cl_mem out;
	if (argc == 3) {
		cl_uchar id[16];
		for (int i = 0; i < 16; i++)
			if (sscanf(argv[2] + 2 * i, "%2hhx", &id[i]) != 1)
				return 2;
		clCreateBufferFromObjectTENDRIL_fn open_object = (clCreateBufferFromObjectTENDRIL_fn)
			clGetExtensionFunctionAddressForPlatform(platform, "clCreateBufferFromObjectTENDRIL");
		if (!open_object)
			return 3;
		out = open_object(context, id, NULL, &code);
	} else {
		out = clCreateBuffer(context, CL_MEM_READ_WRITE, n * sizeof(int), NULL, &code);
	}
	CHECK(code);
	CHECK(clSetKernelArg(kernel, 0, sizeof out, &out));
	CHECK(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &n, NULL, 0, NULL, NULL));
	CHECK(clFinish(queue));
	if (argc == 2) {
		int *host = malloc(n * sizeof(int));
		CHECK(clEnqueueReadBuffer(queue, out, CL_TRUE, 0, n * sizeof(int), host, 0, NULL, NULL));
		printf("%d %d\n", host[0], host[n - 1]);
	}
	CHECK(clReleaseMemObject(out));
	return 0;
}
