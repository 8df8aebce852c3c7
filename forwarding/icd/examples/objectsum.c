/* objectsum adds up the bytes of an object of Tendril's store on an OpenCL device, without reading it itself.
 *
 *   cc -o objectsum objectsum.c -lOpenCL                    (cl_tendril_store.h: PREFIX/include/tendril)
 *   tendril put big.bin && tendril run -- ./objectsum big.bin
 *   tendril put --server gpu7 big.bin && tendril run --server gpu7 -- ./objectsum big.bin
 *
 * The last line's bytes cross the network once, for any number of runs.
 */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tendril/cl_tendril_store.h>

#define CHECK(e) do { cl_int s_ = (e); if (s_ != CL_SUCCESS) { \
	fprintf(stderr, "objectsum: %s: %d\n", #e, s_); exit(1); } } while (0)

enum { ITEMS = 1024 };

static const char *source =
	"kernel void sum(global const uchar *in, ulong n, global ulong *out) {\n"
	"  ulong s = 0;\n"
	"  for (ulong i = get_global_id(0); i < n; i += get_global_size(0)) s += in[i];\n"
	"  out[get_global_id(0)] = s;\n"
	"}\n";

int main(int argc, char **argv)
{
	cl_platform_id platform;
	cl_device_id device;
	cl_int code;
	char extensions[4096] = "";
	if (argc != 2) {
		fprintf(stderr, "usage: objectsum NAME\n");
		return 2;
	}
	CHECK(clGetPlatformIDs(1, &platform, NULL));
	CHECK(clGetPlatformInfo(platform, CL_PLATFORM_EXTENSIONS, sizeof extensions, extensions, NULL));
	if (strstr(extensions, "cl_tendril_store") == NULL) {
		fprintf(stderr, "objectsum: this platform has no cl_tendril_store: run it with tendril run\n");
		return 1;
	}
	clCreateBufferFromObjectTENDRIL_fn open_object = (clCreateBufferFromObjectTENDRIL_fn)
		clGetExtensionFunctionAddressForPlatform(platform, "clCreateBufferFromObjectTENDRIL");
	CHECK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
	cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
	CHECK(code);
	cl_command_queue queue = clCreateCommandQueue(context, device, 0, &code);
	CHECK(code);
	cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &code);
	CHECK(code);
	CHECK(clBuildProgram(program, 1, &device, "", NULL, NULL));
	cl_kernel kernel = clCreateKernel(program, "sum", &code);
	CHECK(code);

	cl_mem in = open_object(context, NULL, argv[1], &code);
	CHECK(code);
	size_t bytes;
	CHECK(clGetMemObjectInfo(in, CL_MEM_SIZE, sizeof bytes, &bytes, NULL));

	cl_ulong part[ITEMS], n = bytes, sum = 0;
	cl_mem out = clCreateBuffer(context, CL_MEM_WRITE_ONLY, sizeof part, NULL, &code);
	CHECK(code);
	CHECK(clSetKernelArg(kernel, 0, sizeof in, &in));
	CHECK(clSetKernelArg(kernel, 1, sizeof n, &n));
	CHECK(clSetKernelArg(kernel, 2, sizeof out, &out));
	size_t items = ITEMS;
	CHECK(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, NULL, 0, NULL, NULL));
	CHECK(clEnqueueReadBuffer(queue, out, CL_TRUE, 0, sizeof part, part, 0, NULL, NULL));
	for (int i = 0; i < ITEMS; i++)
		sum += part[i];
	printf("%zu bytes, sum %" PRIu64 "\n", bytes, (uint64_t)sum);
	CHECK(clReleaseMemObject(in));
	CHECK(clReleaseMemObject(out));
	CHECK(clReleaseKernel(kernel));
	CHECK(clReleaseProgram(program));
	CHECK(clReleaseCommandQueue(queue));
	CHECK(clReleaseContext(context));
	return 0;
}
