// clbench runs OpenCL measurements on request, so that a native process and a
// forwarded one, both warm, can alternate. It reads a test's name a line on
// standard input and prints two numbers a line: ns a step, or bytes per second
// for the transfers; and how many steps it took, batches and chains counted
// whole. The first line it prints is the device's name. With the
// argument "first" it prints the time from its start to the end of its first
// kernel, and ends; with "queries" it asks for all that a device says of itself,
// and prints how many answers there were; with "frames" it makes ready for
// frames alone, on a link on which all else would take its time.
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"

#define CHECK(e) do { cl_int s_ = (e); if (s_ != CL_SUCCESS) { \
	fprintf(stderr, "clbench: %s: %d\n", #e, s_); exit(1); } } while (0)

enum { KERNELS = 1000, CHAIN = 100, SMALL = 4096, MANY = 100000, FRAME = 65536 };
#define MIB (1024 * 1024)
#define BULK (128ul * MIB)
#define MAPPED (16ul * MIB)

static cl_context context;
static cl_command_queue queue[2];
static cl_kernel empty, add, add_frame;
static cl_mem bulk, mapped, small, frame;
static char *host, name[256];
static int steps; // of the test that runs

static void launch(cl_command_queue q, cl_uint n, const cl_event *wait, cl_event *done)
{
	size_t one = 1;
	CHECK(clEnqueueNDRangeKernel(q, empty, 1, NULL, &one, NULL, n, wait, done));
}

static double kernel_finish(void)
{
	const int n = steps = 1000;
	double start = now();
	for (int i = 0; i < n; i++) {
		launch(queue[0], 0, NULL, NULL);
		CHECK(clFinish(queue[0]));
	}
	return (now() - start) / n;
}

static double kernels(void)
{
	const int rounds = steps = 20;
	double start = now();
	for (int r = 0; r < rounds; r++) {
		for (int i = 0; i < KERNELS; i++)
			launch(queue[0], 0, NULL, NULL);
		CHECK(clFinish(queue[0]));
	}
	return (now() - start) / rounds / KERNELS;
}

static double chain(int queues)
{
	const int rounds = steps = 50;
	cl_event event[CHAIN];
	double start = now();
	for (int r = 0; r < rounds; r++) {
		for (int i = 0; i < CHAIN; i++)
			launch(queue[i % queues], i > 0, i > 0 ? &event[i - 1] : NULL, &event[i]);
		CHECK(clFlush(queue[0]));
		CHECK(clFlush(queue[1]));
		CHECK(clWaitForEvents(1, &event[CHAIN - 1]));
		for (int i = 0; i < CHAIN; i++)
			CHECK(clReleaseEvent(event[i]));
	}
	return (now() - start) / rounds / CHAIN;
}

static double chain_two(void) { return chain(2); }
static double chain_one(void) { return chain(1); }

static double transfer(int writes)
{
	const int n = steps = 4;
	double start = now();
	for (int i = 0; i < n; i++) {
		if (writes)
			CHECK(clEnqueueWriteBuffer(queue[0], bulk, CL_TRUE, 0, BULK, host, 0, NULL, NULL));
		else
			CHECK(clEnqueueReadBuffer(queue[0], bulk, CL_TRUE, 0, BULK, host, 0, NULL, NULL));
	}
	return BULK / ((now() - start) / n) * 1e9;
}

// What is worth compressing on a slow link: 32 MiB of lines of text, and of a smooth field of floats.
enum { TEXT = 32 << 20 };

static void write_lines(char *to)
{
	size_t at = 0;
	for (unsigned i = 0, r = 1; at < TEXT; i++, r = r * 1103515245 + 12345)
		at += snprintf(to + at, TEXT - at, "station %u: temperature %u, pressure %u\n", r >> 8 & 31, r >> 16 & 1023, 900 + i % 100);
}

static void write_field(char *to)
{
	float *f = (float *)to;
	for (size_t i = 0; i < TEXT / sizeof *f; i++)
		f[i] = i % 1024 / 1024.f * (i / 1024 % 512) / 512.f;
}

static double there_and_back(void (*fill)(char *))
{
	static char *moved;
	moved = moved ? moved : malloc(TEXT + 256);
	fill(moved);
	double start = now();
	CHECK(clEnqueueWriteBuffer(queue[0], bulk, CL_TRUE, 0, TEXT, moved, 0, NULL, NULL));
	CHECK(clEnqueueReadBuffer(queue[0], bulk, CL_TRUE, 0, TEXT, moved, 0, NULL, NULL));
	return 2 * TEXT / (now() - start) * 1e9;
}

static double move_text(void) { return there_and_back(write_lines); }
static double move_field(void) { return there_and_back(write_field); }

static double write_bulk(void) { return transfer(1); }

static double read_bulk(void)
{
	static int written; // else there were zeros to read, of memory that nobody touched
	if (!written++)
		CHECK(clEnqueueWriteBuffer(queue[0], bulk, CL_TRUE, 0, BULK, host, 0, NULL, NULL));
	return transfer(0);
}

// Large transfers: 256 MiB from and to ordinary memory that was touched, or memory that the driver
// gave (clEnqueueMapBuffer of a CL_MEM_ALLOC_HOST_PTR buffer); 1 GiB for a network.
enum { LARGE = 256 << 20 };
#define GIANT (1ul << 30)

static double large(int writing, int of_the_driver, size_t bytes)
{
	static cl_mem device, staging;
	static char *ordinary, *given;
	cl_int err;
	if (!device) {
		device = clCreateBuffer(context, CL_MEM_READ_WRITE, GIANT, NULL, &err);
		CHECK(err);
		ordinary = malloc(GIANT);
		memset(ordinary, 3, GIANT);
	}
	if (of_the_driver && !given) {
		staging = clCreateBuffer(context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, LARGE, NULL, &err);
		CHECK(err);
		given = clEnqueueMapBuffer(queue[0], staging, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, LARGE, 0, NULL, NULL, &err);
		CHECK(err);
		memset(given, 5, LARGE);
	}
	char *memory = of_the_driver ? given : ordinary;
	const int n = steps = bytes == GIANT ? 3 : 8;
	double start = now();
	for (int i = 0; i < n; i++) {
		if (writing)
			CHECK(clEnqueueWriteBuffer(queue[0], device, CL_FALSE, 0, bytes, memory, 0, NULL, NULL));
		else
			CHECK(clEnqueueReadBuffer(queue[0], device, CL_FALSE, 0, bytes, memory, 0, NULL, NULL));
		CHECK(clFinish(queue[0]));
	}
	return bytes * (double)n / (now() - start) * 1e9;
}

static double write_large(void) { return large(1, 0, LARGE); }
static double read_large(void) { return large(0, 0, LARGE); }
static double write_given(void) { return large(1, 1, LARGE); }
static double read_given(void) { return large(0, 1, LARGE); }
static double write_huge(void) { return large(1, 0, GIANT); }
static double read_huge(void) { return large(0, 0, GIANT); }

static double map_touch_unmap(size_t size)
{
	const int n = steps = 20;
	double start = now();
	for (int i = 0; i < n; i++) {
		cl_int err;
		char *p = clEnqueueMapBuffer(queue[0], mapped, CL_TRUE, CL_MAP_WRITE, 0, size, 0, NULL, NULL, &err);
		CHECK(err);
		for (size_t at = 0; at < size; at += 4096)
			p[at]++;
		CHECK(clEnqueueUnmapMemObject(queue[0], mapped, p, 0, NULL, NULL));
		CHECK(clFinish(queue[0]));
	}
	return (now() - start) / n;
}

static double map_large(void) { return map_touch_unmap(MAPPED); }
static double map_little(void) { return map_touch_unmap(MIB); }

static double write_tiny(void)
{
	const int n = steps = 1000;
	double start = now();
	for (int i = 0; i < n; i++)
		CHECK(clEnqueueWriteBuffer(queue[0], small, CL_TRUE, 0, 4, host, 0, NULL, NULL));
	return (now() - start) / n;
}

static double write_kernel_read(void)
{
	const int n = steps = 500;
	size_t items = SMALL / sizeof(int);
	double start = now();
	for (int i = 0; i < n; i++) {
		CHECK(clEnqueueWriteBuffer(queue[0], small, CL_TRUE, 0, SMALL, host, 0, NULL, NULL));
		CHECK(clEnqueueNDRangeKernel(queue[0], add, 1, NULL, &items, NULL, 0, NULL, NULL));
		CHECK(clEnqueueReadBuffer(queue[0], small, CL_TRUE, 0, SMALL, host + SMALL, 0, NULL, NULL));
	}
	return (now() - start) / n;
}

static double create_release(void)
{
	const int n = steps = 10000;
	double start = now();
	for (int i = 0; i < n; i++) {
		cl_int err;
		cl_mem m = clCreateBuffer(context, CL_MEM_READ_WRITE, 4096, NULL, &err);
		CHECK(err);
		CHECK(clReleaseMemObject(m));
	}
	return (now() - start) / n;
}

// call is a call that does next to nothing.
static double call(void)
{
	const int n = steps = 200000;
	double start = now();
	for (int i = 0; i < n; i += 2) {
		CHECK(clRetainKernel(empty));
		CHECK(clReleaseKernel(empty));
	}
	return (now() - start) / n;
}

static cl_mem all[MANY];

// many_buffers creates 100,000 buffers that live at once, and releases them.
static double many_buffers(void)
{
	double start = now();
	for (int i = 0; i < MANY; i++) {
		cl_int err;
		all[i] = clCreateBuffer(context, CL_MEM_READ_WRITE, 256, NULL, &err);
		CHECK(err);
	}
	for (int i = 0; i < MANY; i++)
		CHECK(clReleaseMemObject(all[i]));
	return (now() - start) / MANY;
}

static double descriptors(void)
{
	int n = 0;
	DIR *d = opendir("/proc/self/fd");
	if (!d)
		return -1;
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

// many_descriptors is how many descriptors the program has while 100,000 buffers live.
static double many_descriptors(void)
{
	for (int i = 0; i < MANY; i++) {
		cl_int err;
		all[i] = clCreateBuffer(context, CL_MEM_READ_WRITE, 256, NULL, &err);
		CHECK(err);
	}
	double n = descriptors();
	for (int i = 0; i < MANY; i++)
		CHECK(clReleaseMemObject(all[i]));
	return n;
}

// one_frame is what a program does with each picture of a film: bytes there, a kernel, bytes back.
static double one_frame(void)
{
	size_t items = FRAME / sizeof(int);
	double start = now();
	CHECK(clEnqueueWriteBuffer(queue[0], frame, CL_FALSE, 0, FRAME, host, 0, NULL, NULL));
	CHECK(clEnqueueNDRangeKernel(queue[0], add_frame, 1, NULL, &items, NULL, 0, NULL, NULL));
	CHECK(clEnqueueReadBuffer(queue[0], frame, CL_TRUE, 0, FRAME, host + FRAME, 0, NULL, NULL));
	return now() - start;
}

// tiles is 256 pieces of 16 KiB, each written, worked on and read back, with one wait for all.
static double tiles(void)
{
	enum { TILES = 256, TILE = 16384 };
	size_t items = TILE / sizeof(int);
	double start = now();
	for (int i = 0; i < TILES; i++) {
		CHECK(clEnqueueWriteBuffer(queue[0], frame, CL_FALSE, 0, TILE, host + i * TILE, 0, NULL, NULL));
		CHECK(clEnqueueNDRangeKernel(queue[0], add_frame, 1, NULL, &items, NULL, 0, NULL, NULL));
		CHECK(clEnqueueReadBuffer(queue[0], frame, CL_FALSE, 0, TILE, host + i * TILE, 0, NULL, NULL));
	}
	CHECK(clFinish(queue[0]));
	return (now() - start) / TILES;
}

// writes_kernels_read is 100 blocking writes of 4 bytes, each with a kernel, and one read of the result.
static double writes_kernels_read(void)
{
	enum { ROUNDS = 5, STEPS = 100 };
	steps = ROUNDS;
	size_t items = SMALL / sizeof(int);
	double start = now();
	for (int r = 0; r < ROUNDS; r++) {
		for (int i = 0; i < STEPS; i++) {
			CHECK(clEnqueueWriteBuffer(queue[0], small, CL_TRUE, 4 * i, 4, host, 0, NULL, NULL));
			CHECK(clEnqueueNDRangeKernel(queue[0], add, 1, NULL, &items, NULL, 0, NULL, NULL));
		}
		CHECK(clEnqueueReadBuffer(queue[0], small, CL_TRUE, 0, SMALL, host + SMALL, 0, NULL, NULL));
	}
	return (now() - start) / ROUNDS;
}

static int ascending(const void *a, const void *b)
{
	double d = *(const double *)a - *(const double *)b;
	return (d > 0) - (d < 0);
}

static double last_percent(double *took, size_t n)
{
	qsort(took, n, sizeof *took, ascending);
	return took[n - 1 - n / 100];
}

static double timed_kernel(void)
{
	double start = now();
	launch(queue[0], 0, NULL, NULL);
	CHECK(clFinish(queue[0]));
	return now() - start;
}

enum { SAMPLES = 3000, MOST = 1000000 };
static double took[MOST];

static double kernel_p99(void)
{
	steps = SAMPLES;
	for (int i = 0; i < SAMPLES; i++)
		took[i] = timed_kernel();
	return last_percent(took, SAMPLES);
}

// kernel_p99_loaded measures for as long as 1 GiB moves in the other queue.
static double kernel_p99_loaded(void)
{
	size_t n = 0;
	cl_int status = CL_QUEUED;
	cl_event last;
	for (int i = 0; i < 8; i++)
		CHECK(clEnqueueWriteBuffer(queue[1], bulk, CL_FALSE, 0, BULK, host, 0, NULL, i < 7 ? NULL : &last));
	CHECK(clFlush(queue[1]));
	while (n < MOST && status > 0) {
		took[n++] = timed_kernel();
		CHECK(clGetEventInfo(last, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL));
	}
	CHECK(clWaitForEvents(1, &last));
	CHECK(clReleaseEvent(last));
	steps = n;
	return last_percent(took, n);
}

static const struct { const char *name; double (*run)(void); } tests[] = {
	{"kernel_finish", kernel_finish}, {"kernels_1000", kernels}, {"chain_100", chain_two},
	{"chain_100_one_queue", chain_one}, {"write_128MiB", write_bulk}, {"read_128MiB", read_bulk},
	{"map_16MiB", map_large}, {"map_1MiB", map_little}, {"write_4B", write_tiny}, {"write_kernel_read_4KiB", write_kernel_read},
	{"create_release_4KiB", create_release}, {"call", call}, {"buffers_100000", many_buffers}, {"writes_kernels_read", writes_kernels_read},
	{"descriptors", descriptors}, {"descriptors_100000", many_descriptors}, {"frame_64KiB", one_frame}, {"tiles", tiles},
	{"write_256MiB", write_large}, {"read_256MiB", read_large}, {"write_mapped_256MiB", write_given},
	{"read_mapped_256MiB", read_given}, {"write_1GiB", write_huge}, {"read_1GiB", read_huge},
	{"move_text", move_text}, {"move_field", move_field},
	{"kernel_finish_p99", kernel_p99}, {"kernel_finish_p99_loaded", kernel_p99_loaded},
};

static const char *source =
	"kernel void empty(void) {}\n"
	"kernel void add(global int *p) { p[get_global_id(0)]++; }\n";

static void begin(void)
{
	cl_platform_id platform;
	cl_device_id device;
	cl_int err;
	CHECK(clGetPlatformIDs(1, &platform, NULL));
	CHECK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
	CHECK(clGetDeviceInfo(device, CL_DEVICE_NAME, sizeof name, name, NULL));
	context = clCreateContext(NULL, 1, &device, NULL, NULL, &err);
	CHECK(err);
	for (int i = 0; i < 2; i++) {
		queue[i] = clCreateCommandQueue(context, device, 0, &err);
		CHECK(err);
	}
	cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &err);
	CHECK(err);
	CHECK(clBuildProgram(program, 1, &device, "", NULL, NULL));
	empty = clCreateKernel(program, "empty", &err);
	CHECK(err);
	add = clCreateKernel(program, "add", &err);
	CHECK(err);
	add_frame = clCreateKernel(program, "add", &err);
	CHECK(err);
}

// queries asks for all of a device's parameters, one by one, as a program that is careful does.
static int queries(void)
{
	static char answer[1 << 16];
	cl_platform_id platform;
	cl_device_id device;
	int answers = 0;
	CHECK(clGetPlatformIDs(1, &platform, NULL));
	CHECK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
	for (cl_device_info what = 0x1000; what < 0x1080; what++)
		answers += clGetDeviceInfo(device, what, sizeof answer, answer, NULL) == CL_SUCCESS;
	return answers;
}

static void setup_frames(void)
{
	cl_int err;
	frame = clCreateBuffer(context, CL_MEM_READ_WRITE, FRAME, NULL, &err);
	CHECK(err);
	CHECK(clSetKernelArg(add_frame, 0, sizeof frame, &frame));
	host = malloc(BULK);
	unsigned long r = 88172645463325252; // noise: what can be compressed has rows of its own
	for (size_t i = 0; i < BULK; i += sizeof r) {
		r ^= r << 13, r ^= r >> 7, r ^= r << 17;
		memcpy(host + i, &r, sizeof r);
	}
}

// setup moves nothing: on a slow link that would take its time, and who asks drops each test's first round.
static void setup(void)
{
	cl_int err;
	bulk = clCreateBuffer(context, CL_MEM_READ_WRITE, BULK, NULL, &err);
	CHECK(err);
	mapped = clCreateBuffer(context, CL_MEM_READ_WRITE, MAPPED, NULL, &err);
	CHECK(err);
	small = clCreateBuffer(context, CL_MEM_READ_WRITE, SMALL, NULL, &err);
	CHECK(err);
	CHECK(clSetKernelArg(add, 0, sizeof small, &small));
}

int main(int argc, char **argv)
{
	char line[64];
	if (argc > 1 && strcmp(argv[1], "first") == 0) {
		double start = now();
		begin();
		timed_kernel();
		printf("%.1f\n", now() - start);
		return 0;
	}
	if (argc > 1 && strcmp(argv[1], "queries") == 0) {
		printf("%d\n", queries());
		return 0;
	}
	begin();
	setup_frames();
	if (argc < 2 || strcmp(argv[1], "frames") != 0)
		setup();
	printf("%s\n", name);
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		line[strcspn(line, "\n")] = 0;
		double value = -1;
		steps = 1;
		for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
			if (strcmp(tests[i].name, line) == 0)
				value = tests[i].run();
		printf("%.1f %d\n", value, steps);
		fflush(stdout);
	}
	return 0;
}
