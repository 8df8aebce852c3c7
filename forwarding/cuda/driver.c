#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Numbers of the driver's interface. */
enum {
	ALLOCATION_PINNED = 1,       /* CU_MEM_ALLOCATION_TYPE_PINNED */
	LOCATION_DEVICE = 1,         /* CU_MEM_LOCATION_TYPE_DEVICE */
	HANDLE_FD = 1,               /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */
	ACCESS_READ_WRITE = 3,       /* CU_MEM_ACCESS_FLAGS_PROT_READWRITE */
	GRANULARITY_MINIMUM = 0,     /* CU_MEM_ALLOC_GRANULARITY_MINIMUM */
	REGISTER_PORTABLE = 1,       /* CU_MEMHOSTREGISTER_PORTABLE: for all contexts */
	REGISTER_READ_ONLY = 8,      /* CU_MEMHOSTREGISTER_READ_ONLY */
	STREAM_NON_BLOCKING = 1,     /* CU_STREAM_NON_BLOCKING */
	EVENT_DISABLE_TIMING = 2,    /* CU_EVENT_DISABLE_TIMING */
	ATTRIBUTE_MODE = 20,         /* CU_DEVICE_ATTRIBUTE_COMPUTE_MODE */
	ATTRIBUTE_VIRTUAL = 102,     /* CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
	ATTRIBUTE_HANDLE_FD = 103,   /* CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED */
};

typedef struct {
	int type, id;
} location;

typedef struct { /* CUmemAllocationProp */
	int type, handle_types;
	location at;
	void *win32;
	struct {
		unsigned char compression, rdma;
		unsigned short usage;
		unsigned char reserved[4];
	} flags;
} allocation;

typedef struct { /* CUmemAccessDesc */
	location at;
	int flags;
} access_to;

/* Names with which the driver exports each function, and its type. */
#define FUNCTIONS(F) \
	F(init, "cuInit", (unsigned flags)) \
	F(error_name, "cuGetErrorName", (int result, const char **text)) \
	F(count, "cuDeviceGetCount", (int *n)) \
	F(get, "cuDeviceGet", (int *device, int ordinal)) \
	F(name, "cuDeviceGetName", (char *name, int size, int device)) \
	F(uuid, "cuDeviceGetUuid", (unsigned char *uuid, int device)) \
	F(total, "cuDeviceTotalMem_v2", (size_t *bytes, int device)) \
	F(attribute, "cuDeviceGetAttribute", (int *value, int attribute, int device)) \
	F(retain, "cuDevicePrimaryCtxRetain", (void **context, int device)) \
	F(release_context, "cuDevicePrimaryCtxRelease_v2", (int device)) \
	F(current, "cuCtxSetCurrent", (void *context)) \
	F(synchronize, "cuCtxSynchronize", (void)) \
	F(info, "cuMemGetInfo_v2", (size_t *free_bytes, size_t *bytes)) \
	F(granularity, "cuMemGetAllocationGranularity", (size_t *bytes, const allocation *a, int option)) \
	F(create, "cuMemCreate", (tc_memory *memory, size_t bytes, const allocation *a, unsigned long long flags)) \
	F(export, "cuMemExportToShareableHandle", (void *to, tc_memory memory, int type, unsigned long long flags)) \
	F(import, "cuMemImportFromShareableHandle", (tc_memory *memory, void *from, int type)) \
	F(release, "cuMemRelease", (tc_memory memory)) \
	F(reserve, "cuMemAddressReserve", (tc_pointer *at, size_t bytes, size_t align, tc_pointer near, unsigned long long flags)) \
	F(free_address, "cuMemAddressFree", (tc_pointer at, size_t bytes)) \
	F(map, "cuMemMap", (tc_pointer at, size_t bytes, size_t offset, tc_memory memory, unsigned long long flags)) \
	F(set_access, "cuMemSetAccess", (tc_pointer at, size_t bytes, const access_to *list, size_t n)) \
	F(unmap, "cuMemUnmap", (tc_pointer at, size_t bytes)) \
	F(to_device, "cuMemcpyHtoD_v2", (tc_pointer to, const void *from, size_t bytes)) \
	F(to_host, "cuMemcpyDtoH_v2", (void *to, tc_pointer from, size_t bytes)) \
	F(copy, "cuMemcpyDtoD_v2", (tc_pointer to, tc_pointer from, size_t bytes)) \
	F(alloc, "cuMemAlloc_v2", (tc_pointer *at, size_t bytes)) \
	F(free, "cuMemFree_v2", (tc_pointer at)) \
	F(ipc_handle, "cuIpcGetMemHandle", (void *handle, tc_pointer at)) \
	F(can_access, "cuDeviceCanAccessPeer", (int *can, int device, int peer)) \
	F(host_register, "cuMemHostRegister_v2", (void *at, size_t bytes, unsigned flags)) \
	F(host_unregister, "cuMemHostUnregister", (void *at)) \
	F(stream, "cuStreamCreate", (void **stream, unsigned flags)) \
	F(end_stream, "cuStreamDestroy_v2", (void *stream)) \
	F(wait_stream, "cuStreamSynchronize", (void *stream)) \
	F(to_device_later, "cuMemcpyHtoDAsync_v2", (tc_pointer to, const void *from, size_t bytes, void *stream)) \
	F(to_host_later, "cuMemcpyDtoHAsync_v2", (void *to, tc_pointer from, size_t bytes, void *stream)) \
	F(copy_later, "cuMemcpyDtoDAsync_v2", (tc_pointer to, tc_pointer from, size_t bytes, void *stream)) \
	F(event, "cuEventCreate", (void **event, unsigned flags)) \
	F(end_event, "cuEventDestroy_v2", (void *event)) \
	F(record, "cuEventRecord", (void *event, void *stream)) \
	F(await, "cuStreamWaitEvent", (void *stream, void *event, unsigned flags)) \
	F(fill, "cuMemsetD8_v2", (tc_pointer at, unsigned char value, size_t bytes))

typedef struct {
#define F(field, symbol, arguments) int (*field) arguments;
	FUNCTIONS(F)
#undef F
} table;

#define T(lib) ((table *)(lib))

void *tc_open(const char *file, const char **why)
{
	void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL); /* never closed: drivers do not survive that */
	table *t;

	if (!handle) {
		*why = dlerror();
		return NULL;
	}
	t = calloc(1, sizeof *t);
	if (!t) {
		*why = "no memory";
		return NULL;
	}
#define F(field, symbol, arguments) \
	if (!(*(void **)&t->field = dlsym(handle, symbol))) { \
		*why = "it has no function " symbol ": is the driver older than 11.0?"; \
		free(t); \
		return NULL; \
	}
	FUNCTIONS(F)
#undef F
	return t;
}

int tc_init(void *lib) { return T(lib)->init(0); }

void tc_error(void *lib, int result, char *name, size_t size)
{
	const char *text = NULL;

	if (T(lib)->error_name(result, &text) != 0 || !text)
		text = "unknown error";
	snprintf(name, size, "%s", text);
}

int tc_count(void *lib, int *n) { return T(lib)->count(n); }

int tc_describe(void *lib, int ordinal, tc_device *d)
{
	table *t = T(lib);
	int device, virtual = 0, fd = 0, r;
	size_t bytes = 0;

	memset(d, 0, sizeof *d);
	d->ordinal = ordinal;
	if ((r = t->get(&device, ordinal)) || (r = t->name(d->name, sizeof d->name, device)) ||
	    (r = t->uuid(d->uuid, device)) || (r = t->total(&bytes, device)) ||
	    (r = t->attribute(&d->mode, ATTRIBUTE_MODE, device)) ||
	    (r = t->attribute(&virtual, ATTRIBUTE_VIRTUAL, device)) || (r = t->attribute(&fd, ATTRIBUTE_HANDLE_FD, device)))
		return r;
	d->name[sizeof d->name - 1] = 0;
	d->bytes = bytes;
	d->shares = virtual && fd;
	return 0;
}

int tc_retain(void *lib, int ordinal, tc_context *context)
{
	void *c = NULL;
	int device, r = T(lib)->get(&device, ordinal);

	if (!r)
		r = T(lib)->retain(&c, device);
	*context = (tc_context)c;
	return r;
}

int tc_release_context(void *lib, int ordinal)
{
	int device, r = T(lib)->get(&device, ordinal);

	return r ? r : T(lib)->release_context(device);
}

/* Go moves goroutines between threads, and a context is current in a thread: each call that needs one sets it. */
#define ENTER(lib, context) \
	do { \
		int entered = T(lib)->current((void *)(context)); \
		if (entered) \
			return entered; \
	} while (0)

int tc_info(void *lib, tc_context context, uint64_t *free_bytes, uint64_t *bytes)
{
	size_t f = 0, b = 0;
	int r;

	ENTER(lib, context);
	r = T(lib)->info(&f, &b);
	*free_bytes = f;
	*bytes = b;
	return r;
}

static allocation on(int ordinal)
{
	allocation a;

	memset(&a, 0, sizeof a);
	a.type = ALLOCATION_PINNED;
	a.handle_types = HANDLE_FD;
	a.at.type = LOCATION_DEVICE;
	a.at.id = ordinal;
	return a;
}

int tc_granularity(void *lib, int ordinal, uint64_t *bytes)
{
	allocation a = on(ordinal);
	size_t n = 0;
	int r = T(lib)->granularity(&n, &a, GRANULARITY_MINIMUM);

	*bytes = n;
	return r;
}

int tc_create(void *lib, int ordinal, uint64_t bytes, tc_memory *memory)
{
	allocation a = on(ordinal);

	return T(lib)->create(memory, bytes, &a, 0);
}

int tc_export(void *lib, tc_memory memory, int *fd)
{
	*fd = -1;
	return T(lib)->export(fd, memory, HANDLE_FD, 0);
}

int tc_import(void *lib, int fd, tc_memory *memory)
{
	return T(lib)->import(memory, (void *)(intptr_t)fd, HANDLE_FD);
}

int tc_release(void *lib, tc_memory memory) { return T(lib)->release(memory); }

int tc_reserve(void *lib, tc_context context, uint64_t bytes, tc_pointer *at)
{
	ENTER(lib, context);
	return T(lib)->reserve(at, bytes, 0, 0, 0);
}

int tc_free_address(void *lib, tc_context context, tc_pointer at, uint64_t bytes)
{
	ENTER(lib, context);
	return T(lib)->free_address(at, bytes);
}

int tc_map(void *lib, tc_context context, tc_pointer at, uint64_t bytes, tc_memory memory)
{
	ENTER(lib, context);
	return T(lib)->map(at, bytes, 0, memory, 0);
}

int tc_set_access(void *lib, tc_context context, int ordinal, tc_pointer at, uint64_t bytes)
{
	access_to a = {{LOCATION_DEVICE, ordinal}, ACCESS_READ_WRITE};

	ENTER(lib, context);
	return T(lib)->set_access(at, bytes, &a, 1);
}

int tc_unmap(void *lib, tc_context context, tc_pointer at, uint64_t bytes)
{
	ENTER(lib, context);
	return T(lib)->unmap(at, bytes);
}

int tc_to_device(void *lib, tc_context context, tc_pointer to, uintptr_t from, uint64_t bytes)
{
	ENTER(lib, context);
	return T(lib)->to_device(to, (const void *)from, bytes);
}

int tc_to_host(void *lib, tc_context context, uintptr_t to, tc_pointer from, uint64_t bytes)
{
	ENTER(lib, context);
	return T(lib)->to_host((void *)to, from, bytes);
}

int tc_copy(void *lib, tc_context context, tc_pointer to, tc_pointer from, uint64_t bytes)
{
	ENTER(lib, context);
	return T(lib)->copy(to, from, bytes);
}

int tc_fill(void *lib, tc_context context, tc_pointer at, unsigned char value, uint64_t bytes)
{
	ENTER(lib, context);
	return T(lib)->fill(at, value, bytes);
}

int tc_synchronize(void *lib, tc_context context)
{
	ENTER(lib, context);
	return T(lib)->synchronize();
}

int tc_alloc(void *lib, tc_context context, uint64_t bytes, tc_pointer *at)
{
	ENTER(lib, context);
	return T(lib)->alloc(at, bytes);
}

int tc_free(void *lib, tc_context context, tc_pointer at)
{
	ENTER(lib, context);
	return T(lib)->free(at);
}

int tc_ipc_handle(void *lib, tc_context context, tc_pointer at, unsigned char *handle)
{
	ENTER(lib, context);
	return T(lib)->ipc_handle(handle, at);
}

int tc_can_access(void *lib, int ordinal, int peer, int *can)
{
	int device, other, r;

	*can = 0;
	if ((r = T(lib)->get(&device, ordinal)) || (r = T(lib)->get(&other, peer)))
		return r;
	return T(lib)->can_access(can, device, other);
}

int tc_register(void *lib, tc_context context, uintptr_t at, uint64_t bytes, int read_only)
{
	ENTER(lib, context);
	return T(lib)->host_register((void *)at, bytes, REGISTER_PORTABLE | (read_only ? REGISTER_READ_ONLY : 0));
}

int tc_unregister(void *lib, tc_context context, uintptr_t at)
{
	ENTER(lib, context);
	return T(lib)->host_unregister((void *)at);
}

int tc_stream_of(void *lib, tc_context context, tc_stream *stream)
{
	void *s = NULL;
	int r;

	ENTER(lib, context);
	r = T(lib)->stream(&s, STREAM_NON_BLOCKING);
	*stream = (tc_stream)s;
	return r;
}

int tc_end_stream(void *lib, tc_context context, tc_stream stream)
{
	ENTER(lib, context);
	return T(lib)->end_stream((void *)stream);
}

int tc_wait_stream(void *lib, tc_context context, tc_stream stream)
{
	ENTER(lib, context);
	return T(lib)->wait_stream((void *)stream);
}

int tc_to_device_later(void *lib, tc_context context, tc_pointer to, uintptr_t from, uint64_t bytes, tc_stream stream)
{
	ENTER(lib, context);
	return T(lib)->to_device_later(to, (const void *)from, bytes, (void *)stream);
}

int tc_to_host_later(void *lib, tc_context context, uintptr_t to, tc_pointer from, uint64_t bytes, tc_stream stream)
{
	ENTER(lib, context);
	return T(lib)->to_host_later((void *)to, from, bytes, (void *)stream);
}

int tc_copy_later(void *lib, tc_context context, tc_pointer to, tc_pointer from, uint64_t bytes, tc_stream stream)
{
	ENTER(lib, context);
	return T(lib)->copy_later(to, from, bytes, (void *)stream);
}

int tc_event_of(void *lib, tc_context context, tc_event *event)
{
	void *e = NULL;
	int r;

	ENTER(lib, context);
	r = T(lib)->event(&e, EVENT_DISABLE_TIMING);
	*event = (tc_event)e;
	return r;
}

int tc_end_event(void *lib, tc_context context, tc_event event)
{
	ENTER(lib, context);
	return T(lib)->end_event((void *)event);
}

int tc_record(void *lib, tc_context context, tc_event event, tc_stream stream)
{
	ENTER(lib, context);
	return T(lib)->record((void *)event, (void *)stream);
}

int tc_await(void *lib, tc_context context, tc_stream stream, tc_event event)
{
	ENTER(lib, context);
	return T(lib)->await((void *)stream, (void *)event, 0);
}
