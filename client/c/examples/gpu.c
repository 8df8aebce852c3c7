/* Shares memory of a GPU between two processes. Each maps it with the CUDA driver, which the library does not load.
 *
 *     cc gpu.c $(pkg-config --cflags --libs tendril) -ldl -o gpu
 *     ./gpu put cuda:0 tensor "some bytes"
 *     ./gpu get tensor                # in another process: waits up to a minute for it
 *
 * $TENDRIL_CUDA_DRIVER: another driver than libcuda.so.1. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tendril.h>

/* The part of cuda.h that is needed. */
typedef struct {
	int type, id;
} location;
typedef struct {
	location at;
	int flags;
} access_to;
enum { HANDLE_FD = 1, LOCATION_DEVICE = 1, READ_WRITE = 3 };

static struct {
	int (*init)(unsigned);
	int (*count)(int *);
	int (*get)(int *device, int ordinal);
	int (*uuid)(unsigned char *, int device);
	int (*retain)(void **context, int device);
	int (*current)(void *context);
	int (*import)(uint64_t *memory, void *fd, int type);
	int (*reserve)(uint64_t *at, size_t bytes, size_t align, uint64_t near, unsigned long long flags);
	int (*map)(uint64_t at, size_t bytes, size_t offset, uint64_t memory, unsigned long long flags);
	int (*access)(uint64_t at, size_t bytes, const access_to *, size_t n);
	int (*release)(uint64_t memory);
	int (*unmap)(uint64_t at, size_t bytes);
	int (*free_address)(uint64_t at, size_t bytes);
	int (*write)(uint64_t to, const void *from, size_t bytes);
	int (*read)(void *to, uint64_t from, size_t bytes);
	int (*synchronize)(void);
} cu;

static void must(int status)
{
	if (status != TENDRIL_OK) {
		fprintf(stderr, "gpu: %s\n", tendril_message());
		exit(1);
	}
}

#define CU(call) do { int r_ = (call); if (r_) { \
	fprintf(stderr, "gpu: %s: CUDA error %d\n", #call, r_); exit(1); } } while (0)

static void load_driver(void)
{
	const char *file = getenv("TENDRIL_CUDA_DRIVER");
	void *lib = dlopen(file ? file : "libcuda.so.1", RTLD_NOW);
	const struct { const char *name; void *to; } table[] = {
		{"cuInit", &cu.init}, {"cuDeviceGetCount", &cu.count}, {"cuDeviceGet", &cu.get}, {"cuDeviceGetUuid", &cu.uuid},
		{"cuDevicePrimaryCtxRetain", &cu.retain}, {"cuCtxSetCurrent", &cu.current},
		{"cuMemImportFromShareableHandle", &cu.import}, {"cuMemAddressReserve", &cu.reserve}, {"cuMemMap", &cu.map},
		{"cuMemSetAccess", &cu.access}, {"cuMemRelease", &cu.release}, {"cuMemUnmap", &cu.unmap},
		{"cuMemAddressFree", &cu.free_address}, {"cuMemcpyHtoD_v2", &cu.write}, {"cuMemcpyDtoH_v2", &cu.read},
		{"cuCtxSynchronize", &cu.synchronize},
	};
	for (size_t i = 0; lib && i < sizeof table / sizeof *table; i++) {
		void *f = dlsym(lib, table[i].name);
		if (!f)
			lib = NULL;
		memcpy(table[i].to, &f, sizeof f);
	}
	if (!lib) {
		fprintf(stderr, "gpu: no CUDA driver: %s\n", dlerror());
		exit(1);
	}
	CU(cu.init(0));
}

/* Makes the context of the GPU with this UUID the thread's. Orders of GPUs differ between processes, UUIDs do not. */
static int enter(const tendril_device *want)
{
	int n, device;
	unsigned char uuid[16];
	void *context;
	CU(cu.count(&n));
	for (int i = 0; i < n; i++) {
		CU(cu.get(&device, i));
		CU(cu.uuid(uuid, device));
		if (memcmp(uuid, want->bytes, sizeof uuid) == 0) {
			CU(cu.retain(&context, device));
			CU(cu.current(context));
			return i;
		}
	}
	fprintf(stderr, "gpu: the object's GPU is not among this process's: is CUDA_VISIBLE_DEVICES set?\n");
	exit(1);
}

/* Maps an allocation, given its descriptor, on its GPU. */
static uint64_t map(const tendril_device *device, uint64_t bytes, int fd)
{
	access_to a = {{LOCATION_DEVICE, enter(device)}, READ_WRITE};
	uint64_t memory, at;
	CU(cu.import(&memory, (void *)(intptr_t)fd, HANDLE_FD)); /* the descriptor stays ours */
	CU(cu.reserve(&at, bytes, 0, 0, 0));
	CU(cu.map(at, bytes, 0, memory, 0));
	CU(cu.access(at, bytes, &a, 1));
	CU(cu.release(memory)); /* the mapping keeps it */
	return at;
}

static void unmap(uint64_t at, uint64_t bytes)
{
	CU(cu.synchronize());
	CU(cu.unmap(at, bytes));
	CU(cu.free_address(at, bytes));
}

static void put(tendril *store, const char *gpu, const char *name, const char *text)
{
	tendril_device device;
	tendril_device_buffer b;
	must(tendril_find_gpu(store, gpu, &device));
	must(tendril_create_device(store, &device, strlen(text) + 1, &(tendril_options){.name = name}, &b));
	uint64_t at = map(&b.device, b.bytes, b.fd);
	CU(cu.write(at, text, strlen(text) + 1)); /* or a kernel */
	unmap(at, b.bytes);                       /* which waits for it */
	must(tendril_seal_device(&b, NULL));
}

static void get(tendril *store, const char *name)
{
	tendril_device_object o;
	must(tendril_get_device(store, tendril_named(name), 60000, &o));
	uint64_t at = map(&o.device, o.bytes, o.fd); /* the other process's memory */
	char *text = calloc(1, o.size + 1);
	if (text)
		CU(cu.read(text, at, o.size));
	puts(text ? text : "");
	free(text);
	unmap(at, o.bytes);
	tendril_release_device(&o);
}

int main(int argc, char **argv)
{
	tendril *store;
	int putting = argc == 5 && strcmp(argv[1], "put") == 0;
	if (!putting && !(argc == 3 && strcmp(argv[1], "get") == 0)) {
		fprintf(stderr, "usage: gpu put cuda:N|UUID NAME TEXT | gpu get NAME\n");
		return 2;
	}
	load_driver();
	must(tendril_connect(NULL, &store));
	if (putting)
		put(store, argv[2], argv[3], argv[4]);
	else
		get(store, argv[2]);
	tendril_close(store);
	return 0;
}
