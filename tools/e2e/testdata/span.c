/* span SEED OPS: one context over all devices of the first platform, queues on each in turn, and random commands that
 * are ordered by their events alone. Every result is compared with what the same commands do in host memory, so that the
 * output does not depend on how many devices there are, or where. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFERS = 4, QUEUES = 4, WORDS = 40000, ALIGN = 1024 };

static const char *factor = "#define FACTOR 2654435761u\n";
static const char *parts[] = {
	"#include \"factor.h\"\n"
	"__kernel void mix_(__global const uint *a, __global uint *b, uint k) { size_t i = get_global_id(0); b[i] = (b[i] * FACTOR + a[i]) ^ k; }\n",
	"__kernel void iota(__global uint *b, uint k) { b[get_global_id(0)] = get_global_id(0) * k; }\n",
};

static cl_context context;
static cl_command_queue queues[QUEUES];
static cl_kernel mix_, iota;
static cl_mem buffers[BUFFERS];
static cl_event last[BUFFERS]; /* of the last command that used the buffer */
static cl_uint *shadow[BUFFERS], *own;
static unsigned long long state;

static void check(cl_int code, const char *what, int line)
{
	if (code != CL_SUCCESS) {
		printf("%s: %d (line %d)\n", what, code, line);
		exit(1);
	}
}
#define CHECK(call) check(call, #call, __LINE__)

/* One program of parts that are compiled by themselves, one with an embedded header, and linked. */
static cl_program assemble(void)
{
	cl_int code;
	cl_program header = clCreateProgramWithSource(context, 1, &factor, NULL, &code), objects[2];
	CHECK(code);
	const char *name = "factor.h";
	for (int i = 0; i < 2; i++) {
		objects[i] = clCreateProgramWithSource(context, 1, &parts[i], NULL, &code);
		CHECK(code);
		CHECK(clCompileProgram(objects[i], 0, NULL, "", 1, &header, &name, NULL, NULL));
	}
	cl_program program = clLinkProgram(context, 0, NULL, "", 2, objects, NULL, NULL, &code);
	CHECK(code);
	for (int i = 0; i < 2; i++)
		CHECK(clReleaseProgram(objects[i]));
	CHECK(clReleaseProgram(header));
	return program;
}

static unsigned next(unsigned n)
{
	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return (unsigned)(state >> 33) % n;
}

static void compare(const cl_uint *got, const cl_uint *want, size_t n, const char *what, int op)
{
	for (size_t i = 0; i < n; i++)
		if (got[i] != want[i]) {
			printf("op %d, %s: word %zu of %zu is %08x, not %08x\n", op, what, i, n, got[i], want[i]);
			exit(1);
		}
}

/* waits gathers the last events of the buffers a and b (b < 0: none). */
static cl_uint waits(cl_event *list, int a, int b)
{
	cl_uint n = 0;
	if (last[a])
		list[n++] = last[a];
	if (b >= 0 && b != a && last[b])
		list[n++] = last[b];
	return n;
}

static void used(int b, cl_event e)
{
	CHECK(clRetainEvent(e));
	if (last[b])
		CHECK(clReleaseEvent(last[b]));
	last[b] = e;
}

static void step(int op)
{
	static cl_uint scratch[WORDS];
	cl_command_queue q = queues[next(QUEUES)];
	int a = next(BUFFERS), b = next(BUFFERS);
	size_t off = next(WORDS - 1), n = 1 + next(WORDS - off);
	cl_uint k = next(1u << 30);
	cl_event list[2], e = NULL, gate = NULL;
	cl_event *l = list;
	cl_uint count = waits(list, a, -1);
	if (!count)
		l = NULL;
	switch (next(10)) {
	case 0: { /* a kernel over the whole buffers */
		if (a == b)
			return;
		count = waits(list, a, b);
		size_t global = WORDS;
		CHECK(clSetKernelArg(mix_, 0, sizeof(cl_mem), &buffers[a]));
		CHECK(clSetKernelArg(mix_, 1, sizeof(cl_mem), &buffers[b]));
		CHECK(clSetKernelArg(mix_, 2, sizeof k, &k));
		CHECK(clEnqueueNDRangeKernel(q, mix_, 1, NULL, &global, NULL, count, count ? list : NULL, &e));
		for (size_t i = 0; i < WORDS; i++)
			shadow[b][i] = (shadow[b][i] * 2654435761u + shadow[a][i]) ^ k;
		used(b, e);
		break;
	}
	case 1: { /* a kernel over a part of one */
		cl_int code;
		cl_buffer_region region = {off * 4 / ALIGN * ALIGN, 0};
		region.size = WORDS * 4 - region.origin;
		cl_mem sub = clCreateSubBuffer(buffers[a], 0, CL_BUFFER_CREATE_TYPE_REGION, &region, &code);
		CHECK(code);
		size_t global = region.size / 4 < n ? region.size / 4 : n;
		CHECK(clSetKernelArg(iota, 0, sizeof sub, &sub));
		CHECK(clSetKernelArg(iota, 1, sizeof k, &k));
		CHECK(clEnqueueNDRangeKernel(q, iota, 1, NULL, &global, NULL, count, l, &e));
		for (size_t i = 0; i < global; i++)
			shadow[a][region.origin / 4 + i] = (cl_uint)i * k;
		CHECK(clReleaseMemObject(sub));
		break;
	}
	case 2: /* a write, blocking or not */
		for (size_t i = 0; i < n; i++)
			shadow[a][off + i] = scratch[i] = k + (cl_uint)i;
		CHECK(clEnqueueWriteBuffer(q, buffers[a], next(2), off * 4, n * 4, shadow[a] + off, count, l, &e));
		CHECK(clWaitForEvents(1, &e));
		break;
	case 3: /* a blocking read */
		CHECK(clEnqueueReadBuffer(q, buffers[a], CL_TRUE, off * 4, n * 4, scratch, count, l, &e));
		compare(scratch, shadow[a] + off, n, "read", op);
		break;
	case 4: /* a read that the program waits for */
		CHECK(clEnqueueReadBuffer(q, buffers[a], CL_FALSE, off * 4, n * 4, scratch, count, l, &e));
		CHECK(clFlush(q));
		CHECK(clWaitForEvents(1, &e));
		compare(scratch, shadow[a] + off, n, "read and wait", op);
		break;
	case 5: /* a copy, of one buffer to another */
		if (a == b)
			return;
		count = waits(list, a, b);
		CHECK(clEnqueueCopyBuffer(q, buffers[a], buffers[b], off * 4, (WORDS - off - n) * 4, n * 4, count, count ? list : NULL, &e));
		memmove(shadow[b] + (WORDS - off - n), shadow[a] + off, n * 4);
		used(b, e);
		break;
	case 6: /* a fill, held back by the program */
		gate = clCreateUserEvent(context, NULL);
		if (count)
			CHECK(clEnqueueMarkerWithWaitList(q, count, list, NULL));
		list[count++] = gate;
		CHECK(clEnqueueFillBuffer(q, buffers[a], &k, sizeof k, off * 4, n * 4, count, list, &e));
		for (size_t i = 0; i < n; i++)
			shadow[a][off + i] = k;
		CHECK(clSetUserEventStatus(gate, CL_COMPLETE));
		CHECK(clReleaseEvent(gate));
		break;
	case 7: { /* a map to read or to write */
		cl_int code;
		int writes = next(2);
		cl_uint *at = clEnqueueMapBuffer(q, buffers[a], CL_TRUE, writes ? CL_MAP_READ | CL_MAP_WRITE : CL_MAP_READ, off * 4, n * 4, count, l, NULL, &code);
		CHECK(code);
		compare(at, shadow[a] + off, n, "map", op);
		for (size_t i = 0; writes && i < n; i++)
			shadow[a][off + i] = at[i] = at[i] * 3 + k;
		CHECK(clEnqueueUnmapMemObject(next(4) ? q : queues[next(QUEUES)], buffers[a], at, 0, NULL, &e));
		break;
	}
	case 8: /* a rectangle */
		if (WORDS / 100 * 100 != WORDS)
			return;
		size_t buffer_origin[3] = {next(50) * 4, next(200), 0}, host_origin[3] = {0, 0, 0}, region[3] = {(1 + next(50)) * 4, 1 + next(200), 1};
		CHECK(clEnqueueReadBufferRect(q, buffers[a], CL_TRUE, buffer_origin, host_origin, region, 400, 0, 400, 0, scratch, count, l, &e));
		for (size_t y = 0; y < region[1]; y++)
			compare(scratch + y * 100, shadow[a] + (buffer_origin[1] + y) * 100 + buffer_origin[0] / 4, region[0] / 4, "rectangle", op);
		break;
	case 9:
		CHECK(clEnqueueMigrateMemObjects(q, 1, &buffers[a], 0, count, l, &e));
		break;
	}
	used(a, e);
	CHECK(clReleaseEvent(e));
	if (next(40) == 0)
		CHECK(clFinish(q));
}

int main(int argc, char **argv)
{
	int ops = argc > 2 ? atoi(argv[2]) : 200;
	state = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	cl_platform_id platform;
	cl_device_id devices[16];
	cl_uint n;
	cl_int code;
	CHECK(clGetPlatformIDs(1, &platform, NULL));
	CHECK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 16, devices, &n));
	cl_context_properties properties[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)platform, 0};
	context = clCreateContext(properties, n, devices, NULL, NULL, &code);
	CHECK(code);
	fprintf(stderr, "%u devices\n", n);
	for (int i = 0; i < QUEUES; i++) {
		queues[i] = clCreateCommandQueue(context, devices[i % n], i < QUEUES / 2 ? 0 : CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
		if (code == CL_INVALID_QUEUE_PROPERTIES)
			queues[i] = clCreateCommandQueue(context, devices[i % n], 0, &code);
		CHECK(code);
	}
	cl_program program = assemble();
	mix_ = clCreateKernel(program, "mix_", &code);
	CHECK(code);
	iota = clCreateKernel(program, "iota", &code);
	CHECK(code);
	own = aligned_alloc(4096, (WORDS * 4 + 4095) / 4096 * 4096);
	for (int i = 0; i < BUFFERS; i++) {
		shadow[i] = malloc(WORDS * 4);
		for (size_t j = 0; j < WORDS; j++)
			shadow[i][j] = next(1u << 30);
		if (i == 0)
			memcpy(own, shadow[i], WORDS * 4);
		buffers[i] = clCreateBuffer(context, CL_MEM_READ_WRITE | (i == 0 ? CL_MEM_USE_HOST_PTR : CL_MEM_COPY_HOST_PTR), WORDS * 4, i == 0 ? own : shadow[i], &code);
		CHECK(code);
	}
	for (int op = 0; op < ops; op++)
		step(op);
	unsigned long long sum = 0;
	for (int i = 0; i < BUFFERS; i++) {
		if (last[i]) {
			CHECK(clWaitForEvents(1, &last[i]));
			CHECK(clReleaseEvent(last[i]));
		}
		cl_uint *got = malloc(WORDS * 4);
		CHECK(clEnqueueReadBuffer(queues[i], buffers[i], CL_TRUE, 0, WORDS * 4, got, 0, NULL, NULL));
		compare(got, shadow[i], WORDS, "the end", ops);
		for (size_t j = 0; j < WORDS; j++)
			sum = sum * 31 + got[j];
		free(got);
		CHECK(clReleaseMemObject(buffers[i]));
	}
	for (int i = 0; i < QUEUES; i++)
		CHECK(clReleaseCommandQueue(queues[i]));
	CHECK(clReleaseKernel(mix_));
	CHECK(clReleaseKernel(iota));
	CHECK(clReleaseProgram(program));
	CHECK(clReleaseContext(context));
	printf("%d commands, %016llx\n", ops, sum);
	return 0;
}
