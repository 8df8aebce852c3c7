// traced launches kernels, moves bytes, says "done", reads a line, and then ends; with the argument "crash", by a
// segmentation fault. Two threads enqueue, each on its own queue.
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(e) do { cl_int s_ = (e); if (s_ != CL_SUCCESS) { fprintf(stderr, "traced: %s: %d\n", #e, s_); exit(1); } } while (0)

enum { LAUNCHES = 200, BYTES = 1 << 20 };

static cl_context context;
static cl_device_id device;
static cl_program program;
static char *host;

static void *work(void *name)
{
	cl_int code;
	cl_command_queue queue = clCreateCommandQueue(context, device, 0, &code);
	CHECK(code);
	cl_kernel kernel = clCreateKernel(program, name, &code);
	CHECK(code);
	cl_mem buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, BYTES, NULL, &code);
	CHECK(code);
	CHECK(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
	CHECK(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, BYTES, host, 0, NULL, NULL));
	for (int i = 0; i < LAUNCHES; i++) {
		size_t n = 64;
		CHECK(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &n, NULL, 0, NULL, NULL));
	}
	CHECK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, BYTES, host, 0, NULL, NULL));
	CHECK(clFinish(queue));
	return NULL;
}

int main(int argc, char **argv)
{
	static const char *source = "kernel void left(global int *v) { v[get_global_id(0)] += 1; }\n"
				    "kernel void right(global int *v) { v[get_global_id(0)] += 2; }\n";
	cl_platform_id platform;
	cl_int code;
	pthread_t threads[2];
	char line[16];

	CHECK(clGetPlatformIDs(1, &platform, NULL));
	CHECK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
	context = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
	CHECK(code);
	program = clCreateProgramWithSource(context, 1, &source, NULL, &code);
	CHECK(code);
	CHECK(clBuildProgram(program, 1, &device, "", NULL, NULL));
	host = calloc(1, BYTES);
	pthread_create(&threads[0], NULL, work, "left");
	pthread_create(&threads[1], NULL, work, "right");
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	puts("done");
	fflush(stdout);
	if (fgets(line, sizeof line, stdin) == NULL)
		return 3;
	if (argc > 1 && strcmp(argv[1], "crash") == 0)
		*(volatile int *)8 = 1;
	return 0;
}
