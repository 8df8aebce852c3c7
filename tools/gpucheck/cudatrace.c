/* cudatrace stands between the keeper and the CUDA driver, and notes how long each call took:
 *
 *   CUDA_TRACE=PATH tendril daemon --cuda-driver $PWD/bin/gpu/libcudatrace.so
 *
 * PATH.PID gets a line for each call: ns since the trace began, the function, ns, the result, and the bytes where the
 * call has some. It has the functions that forwarding/cuda/driver.c asks for, and passes them on to libcuda.so.1, or to
 * what CUDA_TRACE_DRIVER names.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long u64;

static void *driver;
static int out = -1;
static u64 begun;

static u64 now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

__attribute__((constructor)) static void begin(void)
{
	char path[4096];
	const char *to = getenv("CUDA_TRACE"), *real = getenv("CUDA_TRACE_DRIVER");

	begun = now();
	driver = dlopen(real ? real : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!driver)
		fprintf(stderr, "cudatrace: %s\n", dlerror());
	if (to) {
		snprintf(path, sizeof path, "%s.%d", to, getpid());
		out = open(path, O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0644);
	}
}

static void note(const char *name, u64 began, int result, u64 bytes)
{
	char line[160];
	u64 ended = now();
	int n = snprintf(line, sizeof line, "%llu %s %llu %d %llu\n", began - begun, name, ended - began, result, bytes);

	if (out >= 0 && n > 0 && write(out, line, n) < 0)
		out = -1;
}

/* P(symbol, what the call's bytes are, parameters, arguments) */
#define P(symbol, bytes, parameters, arguments) \
	int symbol parameters \
	{ \
		static int (*real) parameters; \
		u64 began; \
		int result; \
		if (!real && !(driver && (*(void **)&real = dlsym(driver, #symbol)))) \
			return 500; /* CUDA_ERROR_NOT_FOUND */ \
		began = now(); \
		result = real arguments; \
		note(#symbol, began, result, bytes); \
		return result; \
	}

P(cuInit, 0, (unsigned a), (a))
P(cuGetErrorName, 0, (int a, const char **b), (a, b))
P(cuDeviceGetCount, 0, (int *a), (a))
P(cuDeviceGet, 0, (int *a, int b), (a, b))
P(cuDeviceGetName, 0, (char *a, int b, int c), (a, b, c))
P(cuDeviceGetUuid, 0, (unsigned char *a, int b), (a, b))
P(cuDeviceTotalMem_v2, 0, (size_t *a, int b), (a, b))
P(cuDeviceGetAttribute, 0, (int *a, int b, int c), (a, b, c))
P(cuDevicePrimaryCtxRetain, 0, (void **a, int b), (a, b))
P(cuDevicePrimaryCtxRelease_v2, 0, (int a), (a))
P(cuCtxSetCurrent, 0, (void *a), (a))
P(cuCtxSynchronize, 0, (void), ())
P(cuMemGetInfo_v2, 0, (size_t *a, size_t *b), (a, b))
P(cuMemGetAllocationGranularity, 0, (size_t *a, const void *b, int c), (a, b, c))
P(cuMemCreate, b, (u64 *a, size_t b, const void *c, u64 d), (a, b, c, d))
P(cuMemExportToShareableHandle, 0, (void *a, u64 b, int c, u64 d), (a, b, c, d))
P(cuMemImportFromShareableHandle, 0, (u64 *a, void *b, int c), (a, b, c))
P(cuMemRelease, 0, (u64 a), (a))
P(cuMemAddressReserve, b, (u64 *a, size_t b, size_t c, u64 d, u64 e), (a, b, c, d, e))
P(cuMemAddressFree, b, (u64 a, size_t b), (a, b))
P(cuMemMap, b, (u64 a, size_t b, size_t c, u64 d, u64 e), (a, b, c, d, e))
P(cuMemSetAccess, b, (u64 a, size_t b, const void *c, size_t d), (a, b, c, d))
P(cuMemUnmap, b, (u64 a, size_t b), (a, b))
P(cuMemcpyHtoD_v2, c, (u64 a, const void *b, size_t c), (a, b, c))
P(cuMemcpyDtoH_v2, c, (void *a, u64 b, size_t c), (a, b, c))
P(cuMemcpyDtoD_v2, c, (u64 a, u64 b, size_t c), (a, b, c))
P(cuMemAlloc_v2, b, (u64 *a, size_t b), (a, b))
P(cuMemFree_v2, 0, (u64 a), (a))
P(cuIpcGetMemHandle, 0, (void *a, u64 b), (a, b))
P(cuDeviceCanAccessPeer, 0, (int *a, int b, int c), (a, b, c))
P(cuMemHostRegister_v2, b, (void *a, size_t b, unsigned c), (a, b, c))
P(cuMemHostUnregister, 0, (void *a), (a))
P(cuStreamCreate, 0, (void **a, unsigned b), (a, b))
P(cuStreamDestroy_v2, 0, (void *a), (a))
P(cuStreamSynchronize, 0, (void *a), (a))
P(cuMemcpyHtoDAsync_v2, c, (u64 a, const void *b, size_t c, void *d), (a, b, c, d))
P(cuMemcpyDtoHAsync_v2, c, (void *a, u64 b, size_t c, void *d), (a, b, c, d))
P(cuMemcpyDtoDAsync_v2, c, (u64 a, u64 b, size_t c, void *d), (a, b, c, d))
P(cuEventCreate, 0, (void **a, unsigned b), (a, b))
P(cuEventDestroy_v2, 0, (void *a), (a))
P(cuEventRecord, 0, (void *a, void *b), (a, b))
P(cuStreamWaitEvent, 0, (void *a, void *b, unsigned c), (a, b, c))
P(cuMemsetD8_v2, c, (u64 a, unsigned char b, size_t c), (a, b, c))
