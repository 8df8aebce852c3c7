#ifndef TENDRIL_CUDA_DRIVER_H
#define TENDRIL_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

/* The part of the CUDA driver's binary interface that is used here, as its documentation gives it. Handles travel
 * through Go as integers: Go's collector never sees them. A result is the driver's CUresult; 0 is success. */

typedef uint64_t tc_pointer; /* CUdeviceptr */
typedef uint64_t tc_memory;  /* CUmemGenericAllocationHandle */
typedef uintptr_t tc_context;
typedef uintptr_t tc_stream;
typedef uintptr_t tc_event;

typedef struct {
	int ordinal;
	unsigned char uuid[16];
	char name[128];
	uint64_t bytes;
	int shares; /* memory of it can be exported as a descriptor */
	int mode;   /* CUcomputemode */
} tc_device;

/* Opens the driver and fills the table of functions; NULL, and why: it cannot be loaded, or lacks the function *why. */
void *tc_open(const char *file, const char **why);
int tc_init(void *lib);
void tc_error(void *lib, int result, char *name, size_t size);
int tc_count(void *lib, int *n);
int tc_describe(void *lib, int ordinal, tc_device *d);
int tc_retain(void *lib, int ordinal, tc_context *context);
int tc_release_context(void *lib, int ordinal);
int tc_info(void *lib, tc_context context, uint64_t *free_bytes, uint64_t *bytes);

int tc_granularity(void *lib, int ordinal, uint64_t *bytes);
int tc_create(void *lib, int ordinal, uint64_t bytes, tc_memory *memory);
int tc_export(void *lib, tc_memory memory, int *fd);
int tc_import(void *lib, int fd, tc_memory *memory);
int tc_release(void *lib, tc_memory memory);

int tc_reserve(void *lib, tc_context context, uint64_t bytes, tc_pointer *at);
int tc_free_address(void *lib, tc_context context, tc_pointer at, uint64_t bytes);
int tc_map(void *lib, tc_context context, tc_pointer at, uint64_t bytes, tc_memory memory);
int tc_set_access(void *lib, tc_context context, int ordinal, tc_pointer at, uint64_t bytes);
int tc_unmap(void *lib, tc_context context, tc_pointer at, uint64_t bytes);

/* Memory of the driver's oldest kind, which other processes open by a handle of 64 bytes (CUipcMemHandle). */
int tc_alloc(void *lib, tc_context context, uint64_t bytes, tc_pointer *at);
int tc_free(void *lib, tc_context context, tc_pointer at);
int tc_ipc_handle(void *lib, tc_context context, tc_pointer at, unsigned char *handle);

int tc_can_access(void *lib, int ordinal, int peer, int *can);

/* Host memory that the device copies from and to by itself. It may only be read by the device: read_only. */
int tc_register(void *lib, tc_context context, uintptr_t at, uint64_t bytes, int read_only);
int tc_unregister(void *lib, tc_context context, uintptr_t at);

int tc_stream_of(void *lib, tc_context context, tc_stream *stream);
int tc_end_stream(void *lib, tc_context context, tc_stream stream);
int tc_wait_stream(void *lib, tc_context context, tc_stream stream);
int tc_to_device_later(void *lib, tc_context context, tc_pointer to, uintptr_t from, uint64_t bytes, tc_stream stream);
int tc_to_host_later(void *lib, tc_context context, uintptr_t to, tc_pointer from, uint64_t bytes, tc_stream stream);
int tc_copy_later(void *lib, tc_context context, tc_pointer to, tc_pointer from, uint64_t bytes, tc_stream stream);

int tc_event_of(void *lib, tc_context context, tc_event *event);
int tc_end_event(void *lib, tc_context context, tc_event event);
int tc_record(void *lib, tc_context context, tc_event event, tc_stream stream);
int tc_await(void *lib, tc_context context, tc_stream stream, tc_event event);

int tc_to_device(void *lib, tc_context context, tc_pointer to, uintptr_t from, uint64_t bytes);
int tc_to_host(void *lib, tc_context context, uintptr_t to, tc_pointer from, uint64_t bytes);
int tc_copy(void *lib, tc_context context, tc_pointer to, tc_pointer from, uint64_t bytes);
int tc_fill(void *lib, tc_context context, tc_pointer at, unsigned char value, uint64_t bytes);
int tc_synchronize(void *lib, tc_context context);

#endif
