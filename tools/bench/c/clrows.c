// clrows measures what programs do besides the shortest calls (clbench): kernels of any length, waits by polling,
// transfers that are not waited for, a stencil, images. It is asked as clbench is: a test's name a line on standard
// input, a line with two numbers back: ns a step, or bytes per second; and how many steps that took. A third number is
// the processor time of this process, in seconds for each second. The first line it prints is the device's name.
//
// Kernels of a length are calibrated once: "loops" answers how many turns of a loop take 1 ms; "use N" has another
// process take the same, so that both run the same kernel.
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "bench.h"

#define CHECK(e) do { cl_int s_ = (e); if (s_ != CL_SUCCESS) { \
	fprintf(stderr, "clrows: %s: %d\n", #e, s_); exit(1); } } while (0)

enum { MIB = 1 << 20, LARGE = 512 * MIB };

static cl_platform_id platform;
static cl_device_id device;
static cl_context context;
static cl_command_queue queue, disordered;
static cl_program program;
static char name[256];
static double argument; // behind the test's name
static int steps;       // of the test that runs

static cl_kernel kernel(const char *of)
{
	cl_int err;
	cl_kernel k = clCreateKernel(program, of, &err);
	CHECK(err);
	return k;
}

static cl_mem buffer(size_t n)
{
	cl_int err;
	cl_mem m = clCreateBuffer(context, CL_MEM_READ_WRITE, n, NULL, &err);
	CHECK(err);
	return m;
}

static void launch(cl_command_queue q, cl_kernel k, size_t items, const cl_event *wait, cl_event *done)
{
	CHECK(clEnqueueNDRangeKernel(q, k, 1, NULL, &items, NULL, wait != NULL, wait, done));
}

static cl_kernel nothing(void)
{
	static cl_kernel k;
	return k ? k : (k = kernel("empty"));
}

// A kernel that turns as often as it is told.
static double loops;

static cl_kernel turning(double ms)
{
	static cl_kernel k;
	static cl_mem out;
	if (!k) {
		k = kernel("turn");
		out = buffer(4);
		CHECK(clSetKernelArg(k, 0, sizeof out, &out));
	}
	cl_uint n = loops * ms;
	CHECK(clSetKernelArg(k, 1, sizeof n, &n));
	return k;
}

static double turn(double ms)
{
	cl_kernel k = turning(ms);
	double start = now();
	launch(queue, k, 1, NULL, NULL);
	CHECK(clFinish(queue));
	return now() - start;
}

static double calibrate(void)
{
	loops = 1000;
	while (turn(1) < 50e6) // 50 ms
		loops *= 2;
	double best = turn(1);
	for (int i = 0; i < 4; i++) {
		double took = turn(1);
		best = took < best ? took : best;
	}
	return loops = loops / best * 1e6;
}

static double use(void) { return loops = argument; }

// length is a kernel of so many µs and a finish, again and again for half a second.
static double length(void)
{
	cl_kernel k = turning(argument / 1e3);
	const int n = steps = 0.5e6 / argument < 20 ? 20 : 0.5e6 / argument > 2000 ? 2000 : 0.5e6 / argument;
	double start = now();
	for (int i = 0; i < n; i++) {
		launch(queue, k, 1, NULL, NULL);
		CHECK(clFinish(queue));
	}
	return (now() - start) / n;
}

// polled waits for an empty kernel by asking for its state.
static double polled(void)
{
	const int n = steps = 500;
	double start = now();
	for (int i = 0; i < n; i++) {
		cl_event e;
		cl_int state = CL_QUEUED;
		launch(queue, nothing(), 1, NULL, &e);
		CHECK(clFlush(queue));
		while (state > CL_COMPLETE)
			CHECK(clGetEventInfo(e, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL));
		CHECK(state);
		CHECK(clReleaseEvent(e));
	}
	return (now() - start) / n;
}

static char *memory(size_t n)
{
	static char *host;
	if (!host && !(host = malloc(LARGE)))
		die("malloc");
	static size_t made;
	unsigned r = 1;
	for (; made < n; made += 4) {
		r = r * 1103515245 + 12345;
		memcpy(host + made, &r, 4);
	}
	return host;
}

// apart is COUNT transfers of SIZE bytes that nobody waits for, and a finish: the time for all.
static double apart(int writes, int count, size_t size)
{
	static cl_mem to;
	char *host = memory(16 * MIB);
	if (!to)
		to = buffer(16 * MIB);
	const int n = steps = 10;
	double start = now();
	for (int r = 0; r < n; r++) {
		for (int i = 0; i < count; i++) {
			if (writes)
				CHECK(clEnqueueWriteBuffer(queue, to, CL_FALSE, i * size, size, host + i * size, 0, NULL, NULL));
			else
				CHECK(clEnqueueReadBuffer(queue, to, CL_FALSE, i * size, size, host + i * size, 0, NULL, NULL));
		}
		CHECK(clFinish(queue));
	}
	return (now() - start) / n;
}

static double writes_large(void) { return apart(1, 16, MIB); }
static double reads_large(void) { return apart(0, 16, MIB); }
static double writes_small(void) { return apart(1, 1000, 64) / 1000; }

// disorder is 100 kernels in an out-of-order queue, each behind the event of the one before.
static double disorder(void)
{
	enum { CHAIN = 100 };
	const int n = steps = 30;
	cl_event e[CHAIN];
	double start = now();
	for (int r = 0; r < n; r++) {
		for (int i = 0; i < CHAIN; i++)
			launch(disordered, nothing(), 1, i > 0 ? &e[i - 1] : NULL, &e[i]);
		CHECK(clFinish(disordered));
		for (int i = 0; i < CHAIN; i++)
			CHECK(clReleaseEvent(e[i]));
	}
	return (now() - start) / n / CHAIN;
}

// there_and_back writes, runs a kernel and reads, each call blocking.
static double there_and_back(size_t size, int n)
{
	static cl_mem to;
	static cl_kernel add;
	char *host = memory(2 * MIB);
	if (!to) {
		to = buffer(MIB);
		add = kernel("add");
		CHECK(clSetKernelArg(add, 0, sizeof to, &to));
	}
	steps = n;
	double start = now();
	for (int i = 0; i < n; i++) {
		CHECK(clEnqueueWriteBuffer(queue, to, CL_TRUE, 0, size, host, 0, NULL, NULL));
		launch(queue, add, size / 4, NULL, NULL);
		CHECK(clEnqueueReadBuffer(queue, to, CL_TRUE, 0, size, host + MIB, 0, NULL, NULL));
	}
	return (now() - start) / n;
}

static double little_trip(void) { return there_and_back(4096, 500); }
static double middle_trip(void) { return there_and_back(MIB, 100); }

static cl_mem whole(void)
{
	static cl_mem m;
	if (!m) {
		m = buffer(LARGE);
		CHECK(clEnqueueWriteBuffer(queue, m, CL_TRUE, 0, MIB, memory(MIB), 0, NULL, NULL));
	}
	return m;
}

static double read_one(void)
{
	const int n = steps = 100;
	cl_mem m = whole();
	char *host = memory(MIB);
	double start = now();
	for (int i = 0; i < n; i++)
		CHECK(clEnqueueReadBuffer(queue, m, CL_TRUE, 0, MIB, host, 0, NULL, NULL));
	return (now() - start) / n;
}

static double maps(size_t size, int n)
{
	cl_mem m = whole();
	steps = n;
	double start = now();
	for (int i = 0; i < n; i++) {
		cl_int err;
		void *p = clEnqueueMapBuffer(queue, m, CL_TRUE, CL_MAP_READ, 0, size, 0, NULL, NULL, &err);
		CHECK(err);
		CHECK(clEnqueueUnmapMemObject(queue, m, p, 0, NULL, NULL));
	}
	CHECK(clFinish(queue));
	return (now() - start) / n;
}

static double map_one(void) { return maps(MIB, 100); }
static double map_large(void) { return maps(LARGE, 2); }

// stream is STREAM's four kernels on arrays of 1 MiB, a finish behind each: bytes per second.
static double stream(void)
{
	static cl_mem a[3];
	static cl_kernel k[4];
	static const char *names[4] = {"copy", "scale", "sum", "triad"};
	const int n = steps = 200;
	if (!a[0])
		for (int i = 0; i < 3; i++)
			a[i] = buffer(MIB);
	for (int i = 0; i < 4; i++) {
		if (k[i])
			continue;
		k[i] = kernel(names[i]);
		for (int j = 0; j < 3; j++)
			CHECK(clSetKernelArg(k[i], j, sizeof a[j], &a[j]));
	}
	double start = now();
	for (int r = 0; r < n; r++)
		for (int i = 0; i < 4; i++) {
			launch(queue, k[i], MIB / 4, NULL, NULL);
			CHECK(clFinish(queue));
		}
	return 10.0 * MIB * n / (now() - start) * 1e9; // 2 + 2 + 3 + 3 arrays
}

// pictures makes images of 64 × 64, and maps, unmaps and releases them.
static double pictures(void)
{
	const int n = steps = 300;
	const cl_image_format format = {CL_RGBA, CL_UNORM_INT8};
	const cl_image_desc desc = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 64, .image_height = 64};
	const size_t origin[3] = {0}, region[3] = {64, 64, 1};
	double start = now();
	for (int i = 0; i < n; i++) {
		cl_int err;
		size_t pitch;
		cl_mem m = clCreateImage(context, CL_MEM_READ_WRITE, &format, &desc, NULL, &err);
		CHECK(err);
		unsigned char *p = clEnqueueMapImage(queue, m, CL_TRUE, CL_MAP_WRITE, origin, region, &pitch, NULL, 0, NULL,
			NULL, &err);
		CHECK(err);
		for (size_t y = 0; y < 64; y++)
			memset(p + y * pitch, i, 256);
		CHECK(clEnqueueUnmapMemObject(queue, m, p, 0, NULL, NULL));
		CHECK(clReleaseMemObject(m));
	}
	CHECK(clFinish(queue));
	return (now() - start) / n;
}

// stencil is one kernel over a cube and a finish, each step, from one buffer to the other and back: steps per second.
static double stencil(void)
{
	const size_t side = argument, cells = side * side * side;
	static cl_kernel k;
	if (!k)
		k = kernel("stencil");
	cl_mem m[2] = {buffer(cells * 4), buffer(cells * 4)};
	const float zero = 0;
	for (int i = 0; i < 2; i++)
		CHECK(clEnqueueFillBuffer(queue, m[i], &zero, sizeof zero, 0, cells * 4, 0, NULL, NULL));
	const int n = steps = side > 100 ? 300 : 3000;
	const cl_uint across = side, turns = side > 100 ? 12 : 1;
	double start = 0;
	for (int i = -10; i < n; i++) {
		if (i == 0)
			start = now();
		CHECK(clSetKernelArg(k, 0, sizeof m[0], &m[i & 1]));
		CHECK(clSetKernelArg(k, 1, sizeof m[0], &m[~i & 1]));
		CHECK(clSetKernelArg(k, 2, sizeof across, &across));
		CHECK(clSetKernelArg(k, 3, sizeof turns, &turns));
		launch(queue, k, cells, NULL, NULL);
		CHECK(clFinish(queue));
	}
	double took = now() - start;
	CHECK(clReleaseMemObject(m[0]));
	CHECK(clReleaseMemObject(m[1]));
	return n / took * 1e9;
}

static const struct { const char *name; double (*run)(void); } tests[] = {
	{"loops", calibrate}, {"use", use}, {"length", length}, {"polled", polled}, {"writes_16x1MiB", writes_large},
	{"reads_16x1MiB", reads_large}, {"writes_1000x64B", writes_small}, {"disorder_100", disorder},
	{"there_and_back_4KiB", little_trip}, {"there_and_back_1MiB", middle_trip}, {"read_1MiB", read_one},
	{"map_1MiB", map_one}, {"map_512MiB", map_large}, {"stream_1MiB", stream}, {"images", pictures},
	{"stencil", stencil},
};

static const char *source =
	"kernel void empty(void) {}\n"
	"kernel void add(global int *p) { p[get_global_id(0)]++; }\n"
	"kernel void turn(global uint *out, uint n) {\n"
	"    uint x = n;\n"
	"    for (uint i = 0; i < n; i++) x = x * 1664525u + 1013904223u + (x >> 7);\n"
	"    *out = x;\n"
	"}\n"
	"kernel void copy(global float *a, global float *b, global float *c) { size_t i = get_global_id(0); c[i] = a[i]; }\n"
	"kernel void scale(global float *a, global float *b, global float *c) { size_t i = get_global_id(0); b[i] = 3 * c[i]; }\n"
	"kernel void sum(global float *a, global float *b, global float *c) { size_t i = get_global_id(0); c[i] = a[i] + b[i]; }\n"
	"kernel void triad(global float *a, global float *b, global float *c) { size_t i = get_global_id(0); a[i] = b[i] + 3 * c[i]; }\n"
	"kernel void stencil(global const float *from, global float *to, uint n, uint turns) {\n"
	"    uint i = get_global_id(0), x = i % n, y = i / n % n, z = i / n / n;\n"
	"    float here = from[i];\n"
	"    for (uint t = 0; t < turns; t++) {\n"
	"        float around = from[i - x + (x + 1 + t) % n] + from[i - x + (x + n - 1) % n]\n"
	"            + from[(z * n + (y + 1 + t) % n) * n + x] + from[(z * n + (y + n - 1) % n) * n + x]\n"
	"            + from[((z + 1 + t) % n * n + y) * n + x] + from[((z + n - 1) % n * n + y) * n + x];\n"
	"        here += 0.1f * (around - 6 * here) + (i == 0);\n"
	"    }\n"
	"    to[i] = here;\n"
	"}\n";

static void begin(void)
{
	cl_int err;
	CHECK(clGetPlatformIDs(1, &platform, NULL));
	CHECK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
	CHECK(clGetDeviceInfo(device, CL_DEVICE_NAME, sizeof name, name, NULL));
	context = clCreateContext(NULL, 1, &device, NULL, NULL, &err);
	CHECK(err);
	queue = clCreateCommandQueue(context, device, 0, &err);
	CHECK(err);
	disordered = clCreateCommandQueue(context, device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &err);
	CHECK(err);
	program = clCreateProgramWithSource(context, 1, &source, NULL, &err);
	CHECK(err);
	CHECK(clBuildProgram(program, 1, &device, "", NULL, NULL));
}

static double processor(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e9 + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e3;
}

int main(void)
{
	char line[64], test[64];
	begin();
	printf("%s\n", name);
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		double value = -1, used = processor(), start = now();
		steps = 1, argument = 0;
		sscanf(line, "%63s %lf", test, &argument);
		for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
			if (strcmp(tests[i].name, test) == 0)
				value = tests[i].run();
		printf("%.1f %d %.3f\n", value, steps, (processor() - used) / (now() - start));
		fflush(stdout);
	}
	return 0;
}
