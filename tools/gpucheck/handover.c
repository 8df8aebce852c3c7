/* handover measures what an OpenCL program pays for objects of the store: opening one in the memory of a GPU as a
 * buffer, and writes to a device from memory of the store.
 *
 *   tendril run -- handover NAME
 *
 * NAME is an object in the memory of the GPU. Prints medians: "open us", "write bytes/s", "read bytes/s".
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
	moved();
	return 0;
}
