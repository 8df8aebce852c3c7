/* export asks whether the memory of an ordinary OpenCL buffer can leave its process: only then could a buffer become an
 * object of the store without a copy. OpenCL has no call for that, so it takes the buffer's address on the GPU, which a
 * kernel stores, and asks the CUDA driver of the same process for a descriptor or a handle of what lies there, each way
 * that CUDA has. It ends with 0 where every way is refused, with 1 where one works, with 2 where it could not ask.
 *
 *   export [BYTES] [libcuda.so.1]      natively, never under `tendril run`
 */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(e) do { cl_int s_ = (e); if (s_ != CL_SUCCESS) { \
	fprintf(stderr, "export: %s: %d\n", #e, s_); exit(2); } } while (0)

enum { POSIX_DESCRIPTOR = 1, DMABUF_DESCRIPTOR = 1 };
enum { MEMORY_TYPE = 2, IPC_CAPABLE = 10, RANGE_SIZE = 12, HANDLE_TYPES = 14 }; /* CUpointer_attribute */
static const char *source = "kernel void at(global uchar *p, global ulong *out) { p[0] = 7; *out = (ulong)p; }";
static int works;

/* said prints what a way answered. */
static void said(const char *whose, const char *way, int code)
{
	printf("%-18s %-48s %d%s\n", whose, way, code, code ? "" : "   <- it works");
}

/* entry finds a function of the CUDA driver. */
static void *entry(void *cuda, const char *name)
{
	void *f = dlsym(cuda, name);
	if (!f)
		printf("the CUDA driver has no %s\n", name);
	return f;
}

/* ways tries each one with the context that is current. */
static void ways(void *cuda, const char *whose, unsigned long long at, size_t bytes)
{
	int (*attribute)(void *, int, unsigned long long) = entry(cuda, "cuPointerGetAttribute");
	int (*retain)(unsigned long long *, void *) = entry(cuda, "cuMemRetainAllocationHandle");
	int (*out)(void *, unsigned long long, int, unsigned long long) = entry(cuda, "cuMemExportToShareableHandle");
	int (*ipc)(void *, unsigned long long) = entry(cuda, "cuIpcGetMemHandle");
	int (*range)(void *, unsigned long long, size_t, int, unsigned long long) =
		entry(cuda, "cuMemGetHandleForAddressRange");
	static const struct { const char *name; int number; } asked[] = { { "is of which memory type", MEMORY_TYPE },
		{ "may go by a legacy handle", IPC_CAPABLE }, { "lies in a range of", RANGE_SIZE },
		{ "may go by descriptors of types", HANDLE_TYPES } };
	for (size_t i = 0; attribute && i < sizeof asked / sizeof *asked; i++) {
		unsigned long long value = 0;
		int code = attribute(&value, asked[i].number, at);
		printf("%-18s it %-45s %d, value %llu\n", whose, asked[i].name, code, value);
	}
	unsigned long long handle = 0;
	int fd = -1, code = -1;
	char legacy[64];
	if (retain && (code = retain(&handle, (void *)at)) == 0 && out) {
		said(whose, "cuMemRetainAllocationHandle", code);
		said(whose, "cuMemExportToShareableHandle", code = out(&fd, handle, POSIX_DESCRIPTOR, 0));
		works += code == 0;
	} else {
		said(whose, "cuMemRetainAllocationHandle", code);
	}
	if (ipc) {
		said(whose, "cuIpcGetMemHandle (dies with its process)", code = ipc(legacy, at));
		works += code == 0;
	}
	if (range) {
		size_t page = 64 << 10;
		said(whose, "cuMemGetHandleForAddressRange, dmabuf",
			code = range(&fd, at & ~(unsigned long long)(page - 1), bytes & ~(page - 1), DMABUF_DESCRIPTOR, 0));
		works += code == 0;
	}
}

int main(int argc, char **argv)
{
	cl_platform_id platforms[16], platform = NULL;
	cl_device_id device;
	cl_uint n = 0;
	cl_int code;
	size_t bytes = argc > 1 ? strtoul(argv[1], NULL, 10) : 64 << 20, one = 1;
	char text[8192];
	CHECK(clGetPlatformIDs(16, platforms, &n));
	for (cl_uint i = 0; i < n && i < 16; i++)
		if (!clGetPlatformInfo(platforms[i], CL_PLATFORM_NAME, sizeof text, text, NULL) && strstr(text, "NVIDIA"))
			platform = platforms[i];
	if (!platform) {
		fprintf(stderr, "export: there is no NVIDIA platform\n");
		return 2;
	}
	CHECK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_GPU, 1, &device, NULL));
	CHECK(clGetDeviceInfo(device, CL_DEVICE_EXTENSIONS, sizeof text, text, NULL));
	for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
		if (strstr(word, "external") || strstr(word, "export") || strstr(word, "dma"))
			printf("extension %s\n", word);
	cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
	CHECK(code);
	cl_command_queue queue = clCreateCommandQueue(context, device, 0, &code);
	CHECK(code);
	cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &code);
	CHECK(code);
	CHECK(clBuildProgram(program, 1, &device, "", NULL, NULL));
	cl_kernel kernel = clCreateKernel(program, "at", &code);
	CHECK(code);
	cl_mem p = clCreateBuffer(context, CL_MEM_READ_WRITE, bytes, NULL, &code);
	CHECK(code);
	cl_mem where = clCreateBuffer(context, CL_MEM_READ_WRITE, sizeof(cl_ulong), NULL, &code);
	CHECK(code);
	CHECK(clSetKernelArg(kernel, 0, sizeof p, &p));
	CHECK(clSetKernelArg(kernel, 1, sizeof where, &where));
	CHECK(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &one, NULL, 0, NULL, NULL));
	cl_ulong at = 0;
	CHECK(clEnqueueReadBuffer(queue, where, CL_TRUE, 0, sizeof at, &at, 0, NULL, NULL));
	printf("a buffer of %zu bytes lies at 0x%llx\n", bytes, (unsigned long long)at);

	void *cuda = dlopen(argc > 2 ? argv[2] : "libcuda.so.1", RTLD_NOW), *own = NULL;
	int (*init)(unsigned) = cuda ? entry(cuda, "cuInit") : NULL;
	int (*current)(void **) = cuda ? entry(cuda, "cuCtxGetCurrent") : NULL;
	int (*primary)(void **, int) = cuda ? entry(cuda, "cuDevicePrimaryCtxRetain") : NULL;
	int (*set)(void *) = cuda ? entry(cuda, "cuCtxSetCurrent") : NULL;
	if (!init || init(0) || !current || !primary || !set) {
		fprintf(stderr, "export: the CUDA driver does not start\n");
		return 2;
	}
	printf("cuCtxGetCurrent after OpenCL's context: %d", current(&own));
	printf(", context %p\n", own);
	ways(cuda, "as OpenCL left it", at, bytes);
	if (primary(&own, 0) || set(own)) {
		fprintf(stderr, "export: no primary context\n");
		return 2;
	}
	ways(cuda, "primary context", at, bytes);
	printf("%d ways out of the process\n", works);
	return works > 0;
}
