/* handover measures what an OpenCL program pays for objects of the store: opening one in the memory of a GPU as a
 * buffer, and writes to a device from memory of the store.
 *
 *   tendril run -- handover NAME
 *
 * NAME is an object in the memory of the GPU, with its offset + 1 in the eight bytes at every 64 MiB. Prints medians:
 * "open us", "write bytes/s", "read bytes/s"; and how many of those marks are right in what was opened, of how many, and
 * in what it becomes when it is published: "marks N", "published_marks N", with "marks_all N"; "publish us".
 */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tendril/cl_tendril_store.h>
#include <tendril.h>
#include <time.h>

#define CHECK(e) do { cl_int s_ = (e); if (s_ != CL_SUCCESS) { \
	fprintf(stderr, "handover: %s: %d\n", #e, s_); exit(1); } } while (0)

enum { TRIES = 50, BULK = 256 << 20 };
#define ENOUGH 3e9 /* ns: an object that is opened by a copy takes as long as its bytes */

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static int less(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double median(double *took, int n)
{
	qsort(took, n, sizeof *took, less);
	return took[n / 2];
}

static cl_context context;
static cl_command_queue queue;

/* marks counts those that are right. */
static int marks(cl_mem m, size_t size, int *all)
{
	int right = 0;
	*all = 0;
	for (size_t at = 0; at + 8 <= size; at += 64 << 20, ++*all) {
		unsigned long long mark = 0;
		CHECK(clEnqueueReadBuffer(queue, m, CL_TRUE, at, sizeof mark, &mark, 0, NULL, NULL));
		right += mark == at + 1;
	}
	return right;
}

static size_t size_of(cl_mem m)
{
	size_t size;
	CHECK(clGetMemObjectInfo(m, CL_MEM_SIZE, sizeof size, &size, NULL));
	return size;
}

/* whole looks at all of an object: what is larger than the driver imports comes in pieces. Then it publishes a copy. */
static void whole(clCreateBufferFromObjectTENDRIL_fn open_object, clPublishBufferTENDRIL_fn publish, const char *name)
{
	cl_int code;
	int all;
	cl_mem m = open_object(context, NULL, name, &code);
	CHECK(code);
	size_t size = size_of(m);
	printf("marks %d of the object\n", marks(m, size, &all));
	printf("marks_all %d there are\n", all);
	fflush(stdout);
	cl_mem copy = clCreateBuffer(context, CL_MEM_READ_WRITE, size, NULL, &code);
	CHECK(code);
	CHECK(clEnqueueCopyBuffer(queue, m, copy, 0, 0, size, 0, NULL, NULL));
	CHECK(clFinish(queue));
	CHECK(clReleaseMemObject(m));
	double start = now();
	CHECK(publish(copy, "handover-published", NULL));
	printf("publish %.1f us\n", (now() - start) / 1e3);
	CHECK(clReleaseMemObject(copy));
	m = open_object(context, NULL, "handover-published", &code);
	CHECK(code);
	printf("published_marks %d of what was published\n", marks(m, size, &all));
	CHECK(clReleaseMemObject(m));
}

/* opened times the call, and the first read of what it opened: a driver may put the import off until then. */
static void opened(clCreateBufferFromObjectTENDRIL_fn open_object, const char *name)
{
	double took[TRIES], used[TRIES], began = now();
	int n = 0;
	for (; n < TRIES && (n == 0 || now() - began < ENOUGH); n++) {
		cl_int code;
		char byte[64];
		double start = now();
		cl_mem m = open_object(context, NULL, name, &code);
		CHECK(code);
		took[n] = now() - start;
		CHECK(clEnqueueReadBuffer(queue, m, CL_TRUE, 0, sizeof byte, byte, 0, NULL, NULL));
		used[n] = now() - start;
		CHECK(clReleaseMemObject(m));
		CHECK(clFinish(queue));
	}
	printf("open %.1f us\nopen_and_read_64B %.1f us\n", median(took, n) / 1e3, median(used, n) / 1e3);
}

/* moved times writes and reads between the device and memory of an object of the store. */
static void moved(void)
{
	tendril *store;
	tendril_buffer b;
	cl_int code;
	if (tendril_connect(NULL, &store) != TENDRIL_OK || tendril_create(store, BULK, NULL, &b) != TENDRIL_OK) {
		fprintf(stderr, "handover: the store gives no memory: %s\n", tendril_message());
		exit(1);
	}
	memset(b.data, 7, BULK);
	cl_mem m = clCreateBuffer(context, CL_MEM_READ_WRITE, BULK, NULL, &code);
	CHECK(code);
	for (int writing = 1; writing >= 0; writing--) {
		double took[9];
		for (int i = 0; i < 9; i++) {
			double start = now();
			CHECK(writing ? clEnqueueWriteBuffer(queue, m, CL_TRUE, 0, BULK, b.data, 0, NULL, NULL)
				      : clEnqueueReadBuffer(queue, m, CL_TRUE, 0, BULK, b.data, 0, NULL, NULL));
			took[i] = now() - start;
		}
		printf("%s %.0f bytes/s\n", writing ? "store_write" : "store_read", BULK / median(took, 9) * 1e9);
	}
}

int main(int argc, char **argv)
{
	cl_platform_id platform;
	cl_device_id device;
	cl_int code;
	if (argc != 2) {
		fprintf(stderr, "usage: handover NAME\n");
		return 2;
	}
	CHECK(clGetPlatformIDs(1, &platform, NULL));
	clCreateBufferFromObjectTENDRIL_fn open_object = (clCreateBufferFromObjectTENDRIL_fn)
		clGetExtensionFunctionAddressForPlatform(platform, "clCreateBufferFromObjectTENDRIL");
	if (!open_object) {
		fprintf(stderr, "handover: run it with tendril run\n");
		return 1;
	}
	CHECK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
	context = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
	CHECK(code);
	queue = clCreateCommandQueue(context, device, 0, &code);
	CHECK(code);
	opened(open_object, argv[1]);
	fflush(stdout);
	clPublishBufferTENDRIL_fn publish = (clPublishBufferTENDRIL_fn)
		clGetExtensionFunctionAddressForPlatform(platform, "clPublishBufferTENDRIL");
	whole(open_object, publish, argv[1]);
	fflush(stdout);
	moved();
	return 0;
}
