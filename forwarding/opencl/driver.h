#ifndef TENDRIL_DRIVER_H
#define TENDRIL_DRIVER_H

#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <stdint.h>

/* Every handle is a pointer whose first word is the dispatch table (cl_khr_icd).
 * They travel through Go as integers: Go's collector never sees them. */
typedef uintptr_t td_handle;

typedef struct {
	uint32_t dims, has_offset, has_local;
	size_t global[3], offset[3], local[3];
} td_range;

/* How an argument is set. */
enum { TD_ARG_VALUE, TD_ARG_LOCAL, TD_ARG_SVM };
typedef struct {
	uint32_t index, kind, offset, pad;
	uint64_t size;
} td_arg;

typedef struct {
	size_t origin[3];
	size_t row, slice;
} td_box;

void *td_open(const char *file, const char **why);
cl_int td_platforms(void *lib, uint32_t n, td_handle *ids, uint32_t *found);
cl_int td_devices(td_handle platform, uint32_t n, td_handle *ids, uint32_t *found);

/* what: which clGet...Info; index: argument index where one is asked for. */
enum { TD_PLATFORM, TD_DEVICE, TD_PROGRAM, TD_BUILD, TD_KERNEL, TD_KERNEL_ARG, TD_WORK_GROUP, TD_SUB_GROUP, TD_MEM, TD_IMAGE };
cl_int td_info(uint32_t what, td_handle object, td_handle device, uint32_t index, uint32_t param,
	const void *input, size_t input_size, size_t size, void *value, size_t *size_ret);

td_handle td_create_context(td_handle platform, uint32_t n, const td_handle *devices, cl_int *err);
td_handle td_create_queue(td_handle context, td_handle device, uint64_t properties, cl_int *err);
td_handle td_create_buffer(td_handle context, uint64_t flags, size_t size, uintptr_t host, cl_int *err);
/* A buffer of memory that another driver allocated. device: the one it lies on; 0: the context's only one. The driver
 * owns fd if it succeeds. */
td_handle td_import_buffer(td_handle context, td_handle device, uint64_t flags, size_t size, int fd, cl_int *err);
/* Shared virtual memory (OpenCL 3.0 section 5.6): 0 where the driver has none, or no memory. */
uintptr_t td_svm_alloc(td_handle context, uint64_t flags, size_t size, uint32_t alignment);
void td_svm_free(td_handle context, uintptr_t address);
cl_int td_svm_pointers(td_handle kernel, size_t n, const uintptr_t *pointers);
td_handle td_create_sub_buffer(td_handle mem, uint64_t flags, size_t origin, size_t size, cl_int *err);
td_handle td_create_source(td_handle context, const char *text, size_t size, cl_int *err);
td_handle td_create_binary(td_handle context, uint32_t n, const td_handle *devices, const size_t *sizes,
	const unsigned char *bytes, int32_t *verdicts, cl_int *err);
td_handle td_create_il(td_handle context, const void *il, size_t size, cl_int *err);
td_handle td_create_built_in(td_handle context, uint32_t n, const td_handle *devices, const char *names, cl_int *err);
cl_int td_spec_constant(td_handle program, uint32_t id, size_t size, const void *value);
cl_int td_sub_devices(td_handle device, const intptr_t *properties, uint32_t n, td_handle *ids, uint32_t *found);
cl_int td_release_device(td_handle device);
cl_int td_timers(td_handle device, uint64_t *both);
cl_int td_build(td_handle program, uint32_t n, const td_handle *devices, const char *options);
cl_int td_compile(td_handle program, uint32_t n, const td_handle *devices, const char *options,
	uint32_t nheaders, const td_handle *headers, const char *names);
td_handle td_link(td_handle context, uint32_t n, const td_handle *devices, const char *options,
	uint32_t nprograms, const td_handle *programs, cl_int *err);
cl_int td_binaries(td_handle program, uint32_t n, const size_t *sizes, unsigned char *bytes);
td_handle td_create_kernel(td_handle program, const char *name, cl_int *err);

enum { TD_RELEASE_CONTEXT, TD_RELEASE_QUEUE, TD_RELEASE_MEM, TD_RELEASE_PROGRAM, TD_RELEASE_KERNEL, TD_RELEASE_EVENT, TD_RELEASE_SAMPLER };
cl_int td_release(uint32_t kind, td_handle object);

cl_int td_set_arg(td_handle kernel, const td_arg *arg, const unsigned char *values);
void td_retain_event(td_handle event);
void td_release_events(uint32_t n, const td_handle *events);
/* Sets nargs arguments and launches. *bad is the argument refused, or -1. */
cl_int td_launch(td_handle queue, td_handle kernel, const td_range *range, uint32_t nargs, const td_arg *args,
	const unsigned char *values, uint32_t nwait, const td_handle *wait, td_handle *event, int32_t *bad);

cl_int td_copy(td_handle queue, td_handle src, td_handle dst, size_t src_offset, size_t dst_offset, size_t size,
	uint32_t nwait, const td_handle *wait, td_handle *event);
cl_int td_copy_rect(td_handle queue, td_handle src, td_handle dst, const td_box *from, const td_box *to, const size_t *region,
	uint32_t nwait, const td_handle *wait, td_handle *event);
cl_int td_fill(td_handle queue, td_handle mem, const void *pattern, size_t pattern_size, size_t offset, size_t size,
	uint32_t nwait, const td_handle *wait, td_handle *event);
cl_int td_transfer(td_handle queue, uint32_t read, uint32_t blocking, td_handle mem, size_t offset, size_t size, uintptr_t host,
	uint32_t nwait, const td_handle *wait, td_handle *event);
cl_int td_transfer_rect(td_handle queue, uint32_t read, td_handle mem, const td_box *buffer, const td_box *host_box,
	const size_t *region, uintptr_t host, uint32_t nwait, const td_handle *wait, td_handle *event);
uintptr_t td_map(td_handle queue, td_handle mem, uint64_t flags, size_t size, cl_int *err);
cl_int td_unmap(td_handle queue, td_handle mem, uintptr_t host);
cl_int td_marker(td_handle queue, uint32_t barrier, uint32_t nwait, const td_handle *wait, td_handle *event);
cl_int td_flush(td_handle queue);
cl_int td_finish(td_handle queue);

void td_statuses(uint32_t n, const td_handle *events, int32_t *status);
cl_int td_wait(td_handle event);
cl_int td_profile(td_handle event, uint64_t *times);

#endif
