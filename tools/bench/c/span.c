// span measures one context over two devices, of two nodes where it is run so: it reads a test's name a line on standard
// input and prints two numbers a line, the second being how often it did it. push: bytes per second that a buffer of 128 MiB (or as many as its argument says)
// takes from where it was filled to the other device. chain: ns a step, of kernels that alternate between the devices, each behind the one before, on
// one small buffer. events: the same without a buffer in common. Results are checked.
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"

#define CHECK(e) do { cl_int s_ = (e); if (s_ != CL_SUCCESS) { \
	fprintf(stderr, "span: %s: %d\n", #e, s_); exit(1); } } while (0)

enum { CHAIN = 100, ROUNDS = 5 };
static size_t bulk_bytes = 128ul << 20;

static cl_context context;
static cl_command_queue queue[2];
static cl_kernel add;
static cl_mem bulk, counter, own[2];

static void finish(void)
{
	for (int i = 0; i < 2; i++)
		CHECK(clFinish(queue[i]));
}

static double push(void)
{
	double best = 0;
	for (cl_uint r = 0; r < ROUNDS; r++) {
		cl_uint pattern = 0x1234567 + r, got[2];
		CHECK(clEnqueueFillBuffer(queue[0], bulk, &pattern, sizeof pattern, 0, bulk_bytes, 0, NULL, NULL));
		finish();
		double start = now();
		CHECK(clEnqueueMigrateMemObjects(queue[1], 1, &bulk, 0, 0, NULL, NULL));
		finish();
		double rate = bulk_bytes / (now() - start) * 1e9;
		if (rate > best)
			best = rate;
		CHECK(clEnqueueReadBuffer(queue[1], bulk, CL_TRUE, 0, 4, &got[0], 0, NULL, NULL));
		CHECK(clEnqueueReadBuffer(queue[1], bulk, CL_TRUE, bulk_bytes - 4, 4, &got[1], 0, NULL, NULL));
		if (got[0] != pattern || got[1] != pattern) {
			fprintf(stderr, "span: %x and %x came, not %x\n", got[0], got[1], pattern);
			exit(1);
		}
	}
	return best;
}

static double chain(int share)
{
	size_t one = 1;
	double best = 1e18;
	for (int r = 0; r < ROUNDS; r++) {
		cl_int zero = 0, got[2] = {0, 0};
		for (int i = 0; i < 2; i++)
			CHECK(clEnqueueWriteBuffer(queue[i], share ? counter : own[i], CL_TRUE, 0, 4, &zero, 0, NULL, NULL));
		finish();
		cl_event before = NULL;
		double start = now();
		for (int i = 0; i < CHAIN; i++) {
			cl_event e;
			CHECK(clSetKernelArg(add, 0, sizeof(cl_mem), share ? &counter : &own[i % 2]));
			CHECK(clEnqueueNDRangeKernel(queue[i % 2], add, 1, NULL, &one, NULL, before != NULL, before ? &before : NULL, &e));
			if (before)
				CHECK(clReleaseEvent(before));
			before = e;
		}
		for (int i = 0; i < 2; i++)
			CHECK(clFlush(queue[i]));
		CHECK(clWaitForEvents(1, &before));
		double took = (now() - start) / CHAIN;
		CHECK(clReleaseEvent(before));
		if (took < best)
			best = took;
		for (int i = 0; i < 2; i++)
			CHECK(clEnqueueReadBuffer(queue[i], share ? counter : own[i], CL_TRUE, 0, 4, &got[i], 0, NULL, NULL));
		if (share ? got[1] != CHAIN : got[0] + got[1] != CHAIN) {
			fprintf(stderr, "span: the chain came to %d and %d\n", got[0], got[1]);
			exit(1);
		}
	}
	return best;
}

int main(int argc, char **argv)
{
	if (argc > 1)
		bulk_bytes = strtoul(argv[1], NULL, 10) << 20;
	cl_platform_id platform;
	cl_device_id devices[2];
	cl_uint n;
	cl_int code;
	CHECK(clGetPlatformIDs(1, &platform, NULL));
	CHECK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 2, devices, &n));
	if (n < 2)
		devices[1] = devices[0];
	context = clCreateContext(NULL, n < 2 ? 1 : 2, devices, NULL, NULL, &code);
	CHECK(code);
	for (int i = 0; i < 2; i++) {
		queue[i] = clCreateCommandQueue(context, devices[i], 0, &code);
		CHECK(code);
		own[i] = clCreateBuffer(context, CL_MEM_READ_WRITE, 4, NULL, &code);
		CHECK(code);
	}
	bulk = clCreateBuffer(context, CL_MEM_READ_WRITE, bulk_bytes, NULL, &code);
	CHECK(code);
	counter = clCreateBuffer(context, CL_MEM_READ_WRITE, 4, NULL, &code);
	CHECK(code);
	const char *source = "kernel void add(global int *v) { v[0]++; }";
	cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &code);
	CHECK(code);
	CHECK(clBuildProgram(program, 0, NULL, "", NULL, NULL));
	add = clCreateKernel(program, "add", &code);
	CHECK(code);
	printf("ready %u\n", n);
	fflush(stdout);
	char line[64];
	while (fgets(line, sizeof line, stdin)) {
		line[strcspn(line, "\n")] = 0;
		double v = !strcmp(line, "push") ? push() : !strcmp(line, "chain") ? chain(1) : !strcmp(line, "events") ? chain(0) : -1;
		printf("%.0f %d\n", v, ROUNDS);
		fflush(stdout);
	}
	return 0;
}
