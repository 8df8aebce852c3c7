// moved writes 8 MiB of text to a device and reads it back, twice, says "moved", and ends with its standard input.
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(e) do { cl_int s_ = (e); if (s_ != CL_SUCCESS) { fprintf(stderr, "moved: %s: %d\n", #e, s_); exit(1); } } while (0)

enum { BYTES = 8 << 20, TIMES = 2 };

int main(void)
{
	cl_platform_id platform;
	cl_device_id device;
	cl_int code;
	char *sent = malloc(BYTES), *came = malloc(BYTES);
	for (size_t at = 0, i = 0; at < BYTES; i++)
		at += snprintf(sent + at, BYTES - at, "station %zu: temperature %zu, pressure %zu\n", i % 37, i * i % 311, 1000 + i % 29);
	CHECK(clGetPlatformIDs(1, &platform, NULL));
	CHECK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
	cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
	CHECK(code);
	cl_command_queue queue = clCreateCommandQueue(context, device, 0, &code);
	CHECK(code);
	cl_mem buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, BYTES, NULL, &code);
	CHECK(code);
	for (int i = 0; i < TIMES; i++) {
		CHECK(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, BYTES, sent, 0, NULL, NULL));
		memset(came, 0, BYTES);
		CHECK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, BYTES, came, 0, NULL, NULL));
		if (memcmp(sent, came, BYTES) != 0) {
			puts("wrong");
			return 1;
		}
	}
	puts("moved");
	fflush(stdout);
	while (getchar() != EOF)
		;
	return 0;
}
