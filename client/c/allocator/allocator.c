/* libtendril_cuda.so: memory of GPUs for PyTorch (CUDAPluggableAllocator) and CuPy (CFunctionAllocator), out of the
 * store. An allocation from OBJECT_FROM bytes on is an unsealed object of its own, so that sealing it makes what lies
 * there an object without a copy; a smaller one is the driver's own, for each object takes 2 MiB and a descriptor. So
 * is one that the store does not give, with a line on standard error, the first time.
 *
 * Trust: the program's. It calls from any thread; mu guards the table and what is opened once, and is held while that
 * is opened, and in no other call of the driver or the store. Memory is freed when the GPU has done all its work, as
 * cudaFree does. The driver's primary contexts are used, as both libraries do, and the thread's context is left as it
 * was.
 *
 *   TENDRIL_CUDA_DRIVER   another driver than libcuda.so.1 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "tendril_cuda.h"

enum { OBJECT_FROM = 1 << 20, BUCKETS = 1 << 14, ORDINALS = 64 };
enum { HANDLE_FD = 1, LOCATION_DEVICE = 1, READ_WRITE = 3 };

typedef struct {
	int type, id, flags;
} access_to;

static struct {
	int (*init)(unsigned);
	int (*get)(int *device, int ordinal);
	int (*uuid)(unsigned char *, int device);
	int (*retain)(void **context, int device);
	int (*current)(void *context);
	int (*before)(void **context);
	int (*import)(uint64_t *memory, void *fd, int type);
	int (*reserve)(uint64_t *at, size_t bytes, size_t align, uint64_t near, unsigned long long flags);
	int (*map)(uint64_t at, size_t bytes, size_t offset, uint64_t memory, unsigned long long flags);
	int (*access)(uint64_t at, size_t bytes, const access_to *, size_t n);
	int (*release)(uint64_t memory);
	int (*unmap)(uint64_t at, size_t bytes);
	int (*free_address)(uint64_t at, size_t bytes);
	int (*plain)(uint64_t *at, size_t bytes);
	int (*free_plain)(uint64_t at);
	int (*synchronize)(void);
} cu;

/* One allocation. Its fields are its user's: who frees it frees it once. */
struct block {
	struct block *next;
	uint64_t at;
	size_t size;
	int ordinal;
	size_t mapped; /* of the store: so many bytes are mapped; 0: the driver's own */
	tendril_device_buffer draft;
	tendril_device_object object; /* once it is sealed */
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
/* Guarded by mu. */
static struct block *table[BUCKETS];
static bool loaded, complained;
static pid_t owner;
static tendril *store;
static char *where; /* the daemon's socket; NULL: the usual */
static struct {
	void *context;
	tendril_device uuid;
} gpus[ORDINALS];

static __thread char why[512];

const char *tendril_cuda_message(void) { return why; }

static bool fail(const char *what, int code)
{
	snprintf(why, sizeof why, "%s: CUDA error %d", what, code);
	return false;
}

static bool refused(const char *what)
{
	snprintf(why, sizeof why, "%s: %s", what, tendril_message());
	return false;
}

static bool load_driver(void)
{
	const struct { const char *name; void *to; } names[] = {
		{"cuInit", &cu.init}, {"cuDeviceGet", &cu.get}, {"cuDeviceGetUuid", &cu.uuid},
		{"cuDevicePrimaryCtxRetain", &cu.retain}, {"cuCtxSetCurrent", &cu.current}, {"cuCtxGetCurrent", &cu.before},
		{"cuMemImportFromShareableHandle", &cu.import}, {"cuMemAddressReserve", &cu.reserve}, {"cuMemMap", &cu.map},
		{"cuMemSetAccess", &cu.access}, {"cuMemRelease", &cu.release}, {"cuMemUnmap", &cu.unmap},
		{"cuMemAddressFree", &cu.free_address}, {"cuMemAlloc_v2", &cu.plain}, {"cuMemFree_v2", &cu.free_plain},
		{"cuCtxSynchronize", &cu.synchronize},
	};
	const char *path = getenv("TENDRIL_CUDA_DRIVER");
	void *driver = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW);
	for (size_t i = 0; driver && i < sizeof names / sizeof *names; i++) {
		void *f = dlsym(driver, names[i].name);
		if (!f) {
			snprintf(why, sizeof why, "the CUDA driver has no %s", names[i].name);
			return false;
		}
		memcpy(names[i].to, &f, sizeof f);
	}
	if (!driver) {
		snprintf(why, sizeof why, "no CUDA driver: %s", dlerror());
		return false;
	}
	int code = cu.init(0);
	return code ? fail("cuInit", code) : true;
}

/* Loads the driver, and finds a GPU by its place in the process's order. */
static bool know(int ordinal)
{
	int device, code;
	if (owner && owner != getpid()) {
		snprintf(why, sizeof why, "CUDA does not survive a fork: start processes with the method spawn");
		return false;
	}
	if (ordinal < 0 || ordinal >= ORDINALS) {
		snprintf(why, sizeof why, "GPU %d: at most %d are known", ordinal, ORDINALS);
		return false;
	}
	if (!loaded && !(loaded = load_driver()))
		return false;
	owner = getpid();
	if (gpus[ordinal].context)
		return true;
	if ((code = cu.get(&device, ordinal)) != 0)
		return fail("cuDeviceGet", code);
	if ((code = cu.uuid(gpus[ordinal].uuid.bytes, device)) != 0)
		return fail("cuDeviceGetUuid", code);
	code = cu.retain(&gpus[ordinal].context, device);
	return code ? fail("cuDevicePrimaryCtxRetain", code) : true;
}

/* Makes a GPU's context the thread's; leave(before) undoes it. */
static bool enter(int ordinal, void **before)
{
	pthread_mutex_lock(&mu);
	bool known = know(ordinal);
	void *context = known ? gpus[ordinal].context : NULL;
	pthread_mutex_unlock(&mu);
	if (!known)
		return false;
	int code = cu.before(before);
	if (code == 0)
		code = cu.current(context);
	return code ? fail("cuCtxSetCurrent", code) : true;
}

static void leave(void *before) { (void)cu.current(before); }

static tendril *connected(void)
{
	pthread_mutex_lock(&mu);
	if (!store && tendril_connect(where, &store) != TENDRIL_OK) {
		refused("connect");
		store = NULL;
	}
	tendril *t = store;
	pthread_mutex_unlock(&mu);
	return t;
}

int tendril_cuda_use(const char *socket)
{
	int same;
	pthread_mutex_lock(&mu);
	same = !store || (socket && where ? strcmp(socket, where) == 0 : socket == where);
	if (!store) {
		free(where);
		where = socket ? strdup(socket) : NULL;
	}
	pthread_mutex_unlock(&mu);
	if (!same)
		snprintf(why, sizeof why, "memory comes from another daemon already: a process has one");
	return same ? 0 : -1;
}

/* Maps the allocation of a draft, whose descriptor it closes. */
static bool map(struct block *b)
{
	access_to a = {LOCATION_DEVICE, b->ordinal, READ_WRITE};
	uint64_t memory;
	size_t n = b->draft.bytes;
	int code = cu.import(&memory, (void *)(intptr_t)b->draft.fd, HANDLE_FD);
	if (code)
		return fail("cuMemImportFromShareableHandle", code);
	code = cu.reserve(&b->at, n, 0, 0, 0);
	if (code == 0 && (code = cu.map(b->at, n, 0, memory, 0)) != 0)
		(void)cu.free_address(b->at, n);
	else if (code == 0 && (code = cu.access(b->at, n, &a, 1)) != 0) {
		(void)cu.unmap(b->at, n);
		(void)cu.free_address(b->at, n);
	}
	(void)cu.release(memory); /* a mapping keeps the memory */
	if (code)
		return fail("mapping memory", code);
	close(b->draft.fd);
	b->draft.fd = -1;
	b->mapped = n;
	return true;
}

static bool from_store(struct block *b)
{
	tendril *t = connected();
	if (!t)
		return false;
	if (tendril_create_device(t, &gpus[b->ordinal].uuid, b->size, NULL, &b->draft) != TENDRIL_OK)
		return refused("memory of the store");
	if (map(b))
		return true;
	tendril_abort_device(&b->draft);
	return false;
}

static bool from_driver(struct block *b)
{
	int code = cu.plain(&b->at, b->size);
	return code ? fail("cuMemAlloc", code) : true;
}

static void complain(const char *then)
{
	pthread_mutex_lock(&mu);
	bool first = !complained;
	complained = true;
	pthread_mutex_unlock(&mu);
	if (first)
		fprintf(stderr, "tendril: %s: %s\n", why, then);
}

static struct block **bucket(uint64_t at) { return &table[(at >> 9) % BUCKETS]; }

static void *allocate(size_t size, int ordinal)
{
	void *before;
	struct block *b = size ? calloc(1, sizeof *b) : NULL;
	if (!b || !enter(ordinal, &before)) {
		if (b)
			fprintf(stderr, "tendril: %s\n", why);
		free(b);
		return NULL;
	}
	b->size = size;
	b->ordinal = ordinal;
	b->draft.fd = b->object.fd = -1;
	bool made = size >= OBJECT_FROM && from_store(b);
	if (!made) {
		if (size >= OBJECT_FROM)
			complain("memory is the driver's own, which put copies");
		if (!(made = from_driver(b)))
			fprintf(stderr, "tendril: %zu bytes of GPU %d: %s\n", size, ordinal, why);
	}
	leave(before);
	if (!made) {
		free(b);
		return NULL;
	}
	pthread_mutex_lock(&mu);
	b->next = *bucket(b->at);
	*bucket(b->at) = b;
	pthread_mutex_unlock(&mu);
	return (void *)(uintptr_t)b->at;
}

/* Takes a block out of the table. */
static struct block *take(uint64_t at)
{
	pthread_mutex_lock(&mu);
	struct block **p = bucket(at);
	while (*p && (*p)->at != at)
		p = &(*p)->next;
	struct block *b = *p;
	if (b)
		*p = b->next;
	pthread_mutex_unlock(&mu);
	return b;
}

static void give_back(void *p)
{
	void *before;
	struct block *b = take((uint64_t)(uintptr_t)p);
	if (!b)
		return;
	if (owner == getpid() && enter(b->ordinal, &before)) { /* at the process's end the driver may have ended */
		(void)cu.synchronize();
		if (!b->mapped)
			(void)cu.free_plain(b->at);
		else if (cu.unmap(b->at, b->mapped) == 0)
			(void)cu.free_address(b->at, b->mapped);
		leave(before);
	}
	tendril_abort_device(&b->draft); /* of the two the one that there is */
	tendril_release_device(&b->object);
	free(b);
}

int tendril_cuda_seal(void *p, size_t size, const void *meta, size_t meta_size, tendril_id *id)
{
	struct block *b = take((uint64_t)(uintptr_t)p);
	void *before;
	int status = TENDRIL_CUDA_COPY;
	if (!b)
		return status;
	if (b->mapped && b->size == size && b->object.internal[0] == NULL) {
		status = TENDRIL_CUDA_FAILED;
		if (enter(b->ordinal, &before)) {
			int code = cu.synchronize();
			leave(before);
			if (code)
				fail("cuCtxSynchronize", code);
			else if (tendril_seal_device_with(&b->draft, meta, meta_size, &b->object) != TENDRIL_OK)
				refused("seal");
			else {
				*id = b->object.id;
				status = TENDRIL_CUDA_SEALED;
			}
		}
	}
	pthread_mutex_lock(&mu);
	b->next = *bucket(b->at);
	*bucket(b->at) = b;
	pthread_mutex_unlock(&mu);
	return status;
}

void *tendril_torch_alloc(ssize_t size, int device, void *stream)
{
	(void)stream;
	return size > 0 ? allocate((size_t)size, device) : NULL;
}

void tendril_torch_free(void *p, ssize_t size, int device, void *stream)
{
	(void)size, (void)device, (void)stream;
	give_back(p);
}

void *tendril_cupy_alloc(void *parameter, size_t size, int device)
{
	(void)parameter;
	return allocate(size, device);
}

void tendril_cupy_free(void *parameter, void *p, int device)
{
	(void)parameter, (void)device;
	give_back(p);
}
