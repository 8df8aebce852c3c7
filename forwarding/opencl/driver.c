#include "driver.h"
#include <CL/cl_icd.h>
#include <CL/cl_ext.h>
#include <dlfcn.h>
#include <string.h>

#define TABLE(h) (*(cl_icd_dispatch **)(h))
#define EVENTS(w) ((const cl_event *)(w))

typedef void *(*address_fn)(const char *);
typedef cl_int (*platforms_fn)(cl_uint, cl_platform_id *, cl_uint *);

void *td_open(const char *file, const char **why)
{
	void *lib = dlopen(file, RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		*why = dlerror();
	return lib;
}

cl_int td_platforms(void *lib, uint32_t n, td_handle *ids, uint32_t *found)
{
	address_fn address = (address_fn)dlsym(lib, "clGetExtensionFunctionAddress");
	platforms_fn get = address ? (platforms_fn)address("clIcdGetPlatformIDsKHR") : NULL;
	cl_uint have = 0;
	cl_int err;

	*found = 0;
	if (!get)
		get = (platforms_fn)dlsym(lib, "clIcdGetPlatformIDsKHR");
	if (!get)
		return CL_INVALID_OPERATION;
	err = get(n, n ? (cl_platform_id *)ids : NULL, &have);
	*found = have;
	return err;
}

cl_int td_devices(td_handle p, uint32_t n, td_handle *ids, uint32_t *found)
{
	cl_uint have = 0;
	cl_int err = TABLE(p)->clGetDeviceIDs((cl_platform_id)p, CL_DEVICE_TYPE_ALL, n, n ? (cl_device_id *)ids : NULL, &have);

	*found = have;
	return err;
}

cl_int td_info(uint32_t what, td_handle o, td_handle device, uint32_t index, uint32_t param,
	const void *input, size_t input_size, size_t size, void *value, size_t *size_ret)
{
	cl_icd_dispatch *t = TABLE(o);
	cl_device_id d = (cl_device_id)device;

	switch (what) {
	case TD_PLATFORM:
		return t->clGetPlatformInfo((cl_platform_id)o, param, size, value, size_ret);
	case TD_DEVICE:
		return t->clGetDeviceInfo((cl_device_id)o, param, size, value, size_ret);
	case TD_PROGRAM:
		return t->clGetProgramInfo((cl_program)o, param, size, value, size_ret);
	case TD_BUILD:
		return t->clGetProgramBuildInfo((cl_program)o, d, param, size, value, size_ret);
	case TD_KERNEL:
		return t->clGetKernelInfo((cl_kernel)o, param, size, value, size_ret);
	case TD_KERNEL_ARG:
		return t->clGetKernelArgInfo((cl_kernel)o, index, param, size, value, size_ret);
	case TD_WORK_GROUP:
		return t->clGetKernelWorkGroupInfo((cl_kernel)o, d, param, size, value, size_ret);
	case TD_SUB_GROUP:
		if (!t->clGetKernelSubGroupInfo)
			return CL_INVALID_OPERATION;
		return t->clGetKernelSubGroupInfo((cl_kernel)o, d, param, input_size, input, size, value, size_ret);
	case TD_MEM:
		return t->clGetMemObjectInfo((cl_mem)o, param, size, value, size_ret);
	case TD_IMAGE:
		return t->clGetImageInfo((cl_mem)o, param, size, value, size_ret);
	}
	return CL_INVALID_VALUE;
}

td_handle td_create_context(td_handle p, uint32_t n, const td_handle *devices, cl_int *err)
{
	cl_context_properties props[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)p, 0};

	return (td_handle)TABLE(p)->clCreateContext(props, n, (const cl_device_id *)devices, NULL, NULL, err);
}

td_handle td_create_queue(td_handle c, td_handle device, uint64_t properties, cl_int *err)
{
	return (td_handle)TABLE(c)->clCreateCommandQueue((cl_context)c, (cl_device_id)device, properties, err);
}

td_handle td_create_buffer(td_handle c, uint64_t flags, size_t size, uintptr_t host, cl_int *err)
{
	return (td_handle)TABLE(c)->clCreateBuffer((cl_context)c, flags, size, (void *)host, err);
}

td_handle td_import_buffer(td_handle c, td_handle device, uint64_t flags, size_t size, int fd, cl_int *err)
{
	/* cl_khr_external_memory: the descriptor; then the devices. */
	enum { OPAQUE_FD = 0x2060, DEVICE_LIST = 0x2051, DEVICE_LIST_END = 0 };
	cl_mem_properties props[] = {OPAQUE_FD, (cl_mem_properties)fd, DEVICE_LIST, (cl_mem_properties)device,
	                             DEVICE_LIST_END, 0};

	return (td_handle)TABLE(c)->clCreateBufferWithProperties((cl_context)c, props, flags, size, NULL, err);
}

uintptr_t td_svm_alloc(td_handle c, uint64_t flags, size_t size, uint32_t alignment)
{
	if (!TABLE(c)->clSVMAlloc)
		return 0;
	return (uintptr_t)TABLE(c)->clSVMAlloc((cl_context)c, flags, size, alignment);
}

void td_svm_free(td_handle c, uintptr_t address) { TABLE(c)->clSVMFree((cl_context)c, (void *)address); }

cl_int td_svm_pointers(td_handle k, size_t n, const uintptr_t *pointers)
{
	static const uintptr_t none[1];

	if (!TABLE(k)->clSetKernelExecInfo)
		return CL_INVALID_OPERATION;
	return TABLE(k)->clSetKernelExecInfo((cl_kernel)k, CL_KERNEL_EXEC_INFO_SVM_PTRS, n * sizeof *pointers, n ? pointers : none);
}

td_handle td_create_sub_buffer(td_handle m, uint64_t flags, size_t origin, size_t size, cl_int *err)
{
	cl_buffer_region region = {origin, size};

	return (td_handle)TABLE(m)->clCreateSubBuffer((cl_mem)m, flags, CL_BUFFER_CREATE_TYPE_REGION, &region, err);
}

td_handle td_create_source(td_handle c, const char *text, size_t size, cl_int *err)
{
	return (td_handle)TABLE(c)->clCreateProgramWithSource((cl_context)c, 1, &text, &size, err);
}

enum { MAX_DEVICES = 256 };

td_handle td_create_binary(td_handle c, uint32_t n, const td_handle *devices, const size_t *sizes,
	const unsigned char *bytes, int32_t *verdicts, cl_int *err)
{
	const unsigned char *parts[MAX_DEVICES];

	if (n > MAX_DEVICES) {
		*err = CL_INVALID_VALUE;
		return 0;
	}
	for (uint32_t i = 0; i < n; i++) {
		parts[i] = bytes;
		bytes += sizes[i];
	}
	return (td_handle)TABLE(c)->clCreateProgramWithBinary((cl_context)c, n, (const cl_device_id *)devices, sizes, parts, verdicts, err);
}

td_handle td_create_il(td_handle c, const void *il, size_t size, cl_int *err)
{
	if (!TABLE(c)->clCreateProgramWithIL) {
		*err = CL_INVALID_OPERATION;
		return 0;
	}
	return (td_handle)TABLE(c)->clCreateProgramWithIL((cl_context)c, il, size, err);
}

td_handle td_create_built_in(td_handle c, uint32_t n, const td_handle *devices, const char *names, cl_int *err)
{
	return (td_handle)TABLE(c)->clCreateProgramWithBuiltInKernels((cl_context)c, n, (const cl_device_id *)devices, names, err);
}

cl_int td_spec_constant(td_handle p, uint32_t id, size_t size, const void *value)
{
	if (!TABLE(p)->clSetProgramSpecializationConstant)
		return CL_INVALID_OPERATION;
	return TABLE(p)->clSetProgramSpecializationConstant((cl_program)p, id, size, value);
}

cl_int td_sub_devices(td_handle d, const intptr_t *properties, uint32_t n, td_handle *ids, uint32_t *found)
{
	cl_uint have = 0;
	cl_int err = TABLE(d)->clCreateSubDevices((cl_device_id)d, properties, n, n ? (cl_device_id *)ids : NULL, &have);

	*found = have;
	return err;
}

cl_int td_release_device(td_handle d) { return TABLE(d)->clReleaseDevice((cl_device_id)d); }

cl_int td_timers(td_handle d, uint64_t *both)
{
	cl_ulong device = 0, host = 0;
	cl_int err;

	if (!TABLE(d)->clGetDeviceAndHostTimer)
		return CL_INVALID_OPERATION;
	err = TABLE(d)->clGetDeviceAndHostTimer((cl_device_id)d, &device, &host);
	both[0] = device;
	both[1] = host;
	return err;
}

cl_int td_build(td_handle p, uint32_t n, const td_handle *devices, const char *options)
{
	return TABLE(p)->clBuildProgram((cl_program)p, n, n ? (const cl_device_id *)devices : NULL, options, NULL, NULL);
}

enum { MAX_HEADERS = 1024 };

/* names: nheaders strings, each with its terminating zero, one after another. */
cl_int td_compile(td_handle p, uint32_t n, const td_handle *devices, const char *options,
	uint32_t nheaders, const td_handle *headers, const char *names)
{
	const char *each[MAX_HEADERS];

	if (nheaders > MAX_HEADERS)
		return CL_INVALID_VALUE;
	for (uint32_t i = 0; i < nheaders; i++) {
		each[i] = names;
		names += strlen(names) + 1;
	}
	return TABLE(p)->clCompileProgram((cl_program)p, n, n ? (const cl_device_id *)devices : NULL, options,
		nheaders, nheaders ? (const cl_program *)headers : NULL, nheaders ? each : NULL, NULL, NULL);
}

td_handle td_link(td_handle c, uint32_t n, const td_handle *devices, const char *options,
	uint32_t nprograms, const td_handle *programs, cl_int *err)
{
	return (td_handle)TABLE(c)->clLinkProgram((cl_context)c, n, n ? (const cl_device_id *)devices : NULL, options,
		nprograms, (const cl_program *)programs, NULL, NULL, err);
}

cl_int td_binaries(td_handle p, uint32_t n, const size_t *sizes, unsigned char *bytes)
{
	unsigned char *parts[MAX_DEVICES];

	if (n > MAX_DEVICES)
		return CL_INVALID_VALUE;
	for (uint32_t i = 0; i < n; i++) {
		parts[i] = bytes;
		bytes += sizes[i];
	}
	return TABLE(p)->clGetProgramInfo((cl_program)p, CL_PROGRAM_BINARIES, n * sizeof *parts, parts, NULL);
}

td_handle td_create_kernel(td_handle p, const char *name, cl_int *err)
{
	return (td_handle)TABLE(p)->clCreateKernel((cl_program)p, name, err);
}

cl_int td_release(uint32_t kind, td_handle o)
{
	cl_icd_dispatch *t = TABLE(o);

	switch (kind) {
	case TD_RELEASE_CONTEXT:
		return t->clReleaseContext((cl_context)o);
	case TD_RELEASE_QUEUE:
		return t->clReleaseCommandQueue((cl_command_queue)o);
	case TD_RELEASE_MEM:
		return t->clReleaseMemObject((cl_mem)o);
	case TD_RELEASE_PROGRAM:
		return t->clReleaseProgram((cl_program)o);
	case TD_RELEASE_KERNEL:
		return t->clReleaseKernel((cl_kernel)o);
	case TD_RELEASE_EVENT:
		return t->clReleaseEvent((cl_event)o);
	case TD_RELEASE_SAMPLER:
		return t->clReleaseSampler((cl_sampler)o);
	}
	return CL_INVALID_VALUE;
}

cl_int td_set_arg(td_handle kernel, const td_arg *a, const unsigned char *values)
{
	cl_icd_dispatch *t = TABLE(kernel);
	const unsigned char *value = values + a->offset;
	void *pointer;

	switch (a->kind) {
	case TD_ARG_LOCAL:
		return t->clSetKernelArg((cl_kernel)kernel, a->index, a->size, NULL);
	case TD_ARG_SVM:
		memcpy(&pointer, value, sizeof pointer);
		return t->clSetKernelArgSVMPointer((cl_kernel)kernel, a->index, pointer);
	}
	return t->clSetKernelArg((cl_kernel)kernel, a->index, a->size, value);
}

cl_int td_launch(td_handle queue, td_handle kernel, const td_range *r, uint32_t nargs, const td_arg *args,
	const unsigned char *values, uint32_t nwait, const td_handle *wait, td_handle *event, int32_t *bad)
{
	cl_icd_dispatch *t = TABLE(queue);
	cl_int err;

	*bad = -1;
	for (uint32_t i = 0; i < nargs; i++) {
		err = td_set_arg(kernel, &args[i], values);
		if (err != CL_SUCCESS) {
			*bad = (int32_t)i;
			return err;
		}
	}
	return t->clEnqueueNDRangeKernel((cl_command_queue)queue, (cl_kernel)kernel, r->dims, r->has_offset ? r->offset : NULL,
		r->global, r->has_local ? r->local : NULL, nwait, nwait ? EVENTS(wait) : NULL, (cl_event *)event);
}

cl_int td_copy(td_handle q, td_handle src, td_handle dst, size_t src_offset, size_t dst_offset, size_t size,
	uint32_t nwait, const td_handle *wait, td_handle *event)
{
	return TABLE(q)->clEnqueueCopyBuffer((cl_command_queue)q, (cl_mem)src, (cl_mem)dst, src_offset, dst_offset, size,
		nwait, nwait ? EVENTS(wait) : NULL, (cl_event *)event);
}

cl_int td_copy_rect(td_handle q, td_handle src, td_handle dst, const td_box *from, const td_box *to, const size_t *region,
	uint32_t nwait, const td_handle *wait, td_handle *event)
{
	return TABLE(q)->clEnqueueCopyBufferRect((cl_command_queue)q, (cl_mem)src, (cl_mem)dst, from->origin, to->origin, region,
		from->row, from->slice, to->row, to->slice, nwait, nwait ? EVENTS(wait) : NULL, (cl_event *)event);
}

cl_int td_fill(td_handle q, td_handle mem, const void *pattern, size_t pattern_size, size_t offset, size_t size,
	uint32_t nwait, const td_handle *wait, td_handle *event)
{
	return TABLE(q)->clEnqueueFillBuffer((cl_command_queue)q, (cl_mem)mem, pattern, pattern_size, offset, size,
		nwait, nwait ? EVENTS(wait) : NULL, (cl_event *)event);
}

cl_int td_transfer(td_handle q, uint32_t read, uint32_t blocking, td_handle mem, size_t offset, size_t size, uintptr_t host,
	uint32_t nwait, const td_handle *wait, td_handle *event)
{
	cl_icd_dispatch *t = TABLE(q);

	if (read)
		return t->clEnqueueReadBuffer((cl_command_queue)q, (cl_mem)mem, blocking, offset, size, (void *)host,
			nwait, nwait ? EVENTS(wait) : NULL, (cl_event *)event);
	return t->clEnqueueWriteBuffer((cl_command_queue)q, (cl_mem)mem, blocking, offset, size, (const void *)host,
		nwait, nwait ? EVENTS(wait) : NULL, (cl_event *)event);
}

cl_int td_transfer_rect(td_handle q, uint32_t read, td_handle mem, const td_box *b, const td_box *h,
	const size_t *region, uintptr_t host, uint32_t nwait, const td_handle *wait, td_handle *event)
{
	cl_icd_dispatch *t = TABLE(q);

	if (read)
		return t->clEnqueueReadBufferRect((cl_command_queue)q, (cl_mem)mem, CL_FALSE, b->origin, h->origin, region,
			b->row, b->slice, h->row, h->slice, (void *)host, nwait, nwait ? EVENTS(wait) : NULL, (cl_event *)event);
	return t->clEnqueueWriteBufferRect((cl_command_queue)q, (cl_mem)mem, CL_FALSE, b->origin, h->origin, region,
		b->row, b->slice, h->row, h->slice, (const void *)host, nwait, nwait ? EVENTS(wait) : NULL, (cl_event *)event);
}

uintptr_t td_map(td_handle q, td_handle mem, uint64_t flags, size_t size, cl_int *err)
{
	return (uintptr_t)TABLE(q)->clEnqueueMapBuffer((cl_command_queue)q, (cl_mem)mem, CL_TRUE, flags, 0, size, 0, NULL, NULL, err);
}

cl_int td_unmap(td_handle q, td_handle mem, uintptr_t host)
{
	return TABLE(q)->clEnqueueUnmapMemObject((cl_command_queue)q, (cl_mem)mem, (void *)host, 0, NULL, NULL);
}

cl_int td_marker(td_handle q, uint32_t barrier, uint32_t nwait, const td_handle *wait, td_handle *event)
{
	cl_icd_dispatch *t = TABLE(q);

	if (barrier)
		return t->clEnqueueBarrierWithWaitList((cl_command_queue)q, nwait, nwait ? EVENTS(wait) : NULL, (cl_event *)event);
	return t->clEnqueueMarkerWithWaitList((cl_command_queue)q, nwait, nwait ? EVENTS(wait) : NULL, (cl_event *)event);
}

cl_int td_flush(td_handle q) { return TABLE(q)->clFlush((cl_command_queue)q); }
cl_int td_finish(td_handle q) { return TABLE(q)->clFinish((cl_command_queue)q); }

void td_statuses(uint32_t n, const td_handle *events, int32_t *status)
{
	for (uint32_t i = 0; i < n; i++) {
		cl_int s = CL_QUEUED;
		cl_int err = TABLE(events[i])->clGetEventInfo((cl_event)events[i], CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof s, &s, NULL);

		status[i] = err != CL_SUCCESS ? err : s;
	}
}

void td_retain_event(td_handle e) { TABLE(e)->clRetainEvent((cl_event)e); }

void td_release_events(uint32_t n, const td_handle *events)
{
	for (uint32_t i = 0; i < n; i++)
		TABLE(events[i])->clReleaseEvent((cl_event)events[i]);
}

cl_int td_wait(td_handle e)
{
	cl_event event = (cl_event)e;

	return TABLE(e)->clWaitForEvents(1, &event);
}

cl_int td_profile(td_handle e, uint64_t *times)
{
	static const cl_profiling_info what[] = {CL_PROFILING_COMMAND_QUEUED, CL_PROFILING_COMMAND_SUBMIT,
		CL_PROFILING_COMMAND_START, CL_PROFILING_COMMAND_END, CL_PROFILING_COMMAND_COMPLETE};
	cl_int err = CL_SUCCESS;

	for (int i = 0; i < 5; i++) {
		cl_ulong t = 0;
		cl_int one = TABLE(e)->clGetEventProfilingInfo((cl_event)e, what[i], sizeof t, &t, NULL);

		/* COMPLETE is new in 2.0: a command without children completes when it ends. */
		if (one != CL_SUCCESS && i == 4)
			t = times[3];
		else if (one != CL_SUCCESS)
			err = one;
		times[i] = t;
	}
	return err;
}
