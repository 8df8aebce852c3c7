// A driver that does nothing: one platform with one GPU, whose commands have ended when they are enqueued and whose programs have one kernel,
// "empty", without arguments. What is not needed for that answers CL_INVALID_OPERATION. Objects are counted references and nothing else.
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <CL/cl_icd.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static cl_icd_dispatch table;

typedef struct {
	cl_icd_dispatch *dispatch;
	atomic_int refs;
} object;

static object the_platform, the_device;

static void *make(cl_int *err)
{
	object *o = calloc(1, sizeof *o);
	o->dispatch = &table;
	o->refs = 1;
	if (err)
		*err = CL_SUCCESS;
	return o;
}

static cl_int CL_API_CALL drop(void *o)
{
	if (atomic_fetch_sub(&((object *)o)->refs, 1) == 1)
		free(o);
	return CL_SUCCESS;
}

static cl_int done(cl_event *event)
{
	if (event)
		*event = make(NULL);
	return CL_SUCCESS;
}

static cl_int give(const void *what, size_t n, size_t size, void *value, size_t *ret)
{
	if (ret)
		*ret = n;
	if (value && size < n)
		return CL_INVALID_VALUE;
	if (value)
		memcpy(value, what, n);
	return CL_SUCCESS;
}
#define TEXT(s) return give(s, sizeof s, size, value, ret)
#define NUMBER(type, x) do { type v_ = (x); return give(&v_, sizeof v_, size, value, ret); } while (0)

static cl_int CL_API_CALL nothing(void) { return CL_INVALID_OPERATION; }

static cl_int CL_API_CALL platforms(cl_uint n, cl_platform_id *ids, cl_uint *found)
{
	if (n && ids)
		ids[0] = (cl_platform_id)&the_platform;
	if (found)
		*found = 1;
	return CL_SUCCESS;
}

static cl_int CL_API_CALL platform_info(cl_platform_id p, cl_platform_info what, size_t size, void *value, size_t *ret)
{
	(void)p;
	if (what == CL_PLATFORM_NAME)
		TEXT("Null");
	return CL_INVALID_VALUE;
}

static cl_int CL_API_CALL devices(cl_platform_id p, cl_device_type t, cl_uint n, cl_device_id *ids, cl_uint *found)
{
	(void)p, (void)t;
	if (n && ids)
		ids[0] = (cl_device_id)&the_device;
	if (found)
		*found = 1;
	return CL_SUCCESS;
}

static cl_int CL_API_CALL device_info(cl_device_id d, cl_device_info what, size_t size, void *value, size_t *ret)
{
	(void)d;
	if (what == CL_DEVICE_TYPE)
		NUMBER(cl_device_type, CL_DEVICE_TYPE_GPU);
	return CL_INVALID_VALUE;
}

static cl_context CL_API_CALL context(const cl_context_properties *p, cl_uint n, const cl_device_id *d,
	void(CL_CALLBACK *f)(const char *, const void *, size_t, void *), void *u, cl_int *err)
{
	(void)p, (void)n, (void)d, (void)f, (void)u;
	return make(err);
}

static cl_command_queue CL_API_CALL queue(cl_context c, cl_device_id d, cl_command_queue_properties p, cl_int *err)
{
	(void)c, (void)d, (void)p;
	return make(err);
}

static cl_mem CL_API_CALL buffer(cl_context c, cl_mem_flags f, size_t n, void *host, cl_int *err)
{
	(void)c, (void)f, (void)n, (void)host;
	return make(err);
}

static cl_program CL_API_CALL program(cl_context c, cl_uint n, const char **text, const size_t *sizes, cl_int *err)
{
	(void)c, (void)n, (void)text, (void)sizes;
	return make(err);
}

static cl_int CL_API_CALL build(cl_program p, cl_uint n, const cl_device_id *d, const char *options,
	void(CL_CALLBACK *f)(cl_program, void *), void *u)
{
	(void)p, (void)n, (void)d, (void)options, (void)f, (void)u;
	return CL_SUCCESS;
}

static cl_int CL_API_CALL program_info(cl_program p, cl_program_info what, size_t size, void *value, size_t *ret)
{
	(void)p;
	if (what == CL_PROGRAM_KERNEL_NAMES)
		TEXT("empty");
	return CL_INVALID_VALUE;
}

static cl_int CL_API_CALL build_info(cl_program p, cl_device_id d, cl_program_build_info what, size_t size, void *value, size_t *ret)
{
	(void)p, (void)d;
	if (what == CL_PROGRAM_BUILD_STATUS)
		NUMBER(cl_build_status, CL_BUILD_SUCCESS);
	return CL_INVALID_VALUE;
}

static cl_kernel CL_API_CALL kernel(cl_program p, const char *name, cl_int *err)
{
	(void)p;
	if (strcmp(name, "empty") == 0)
		return make(err);
	if (err)
		*err = CL_INVALID_KERNEL_NAME;
	return NULL;
}

static cl_int CL_API_CALL kernel_info(cl_kernel k, cl_kernel_info what, size_t size, void *value, size_t *ret)
{
	(void)k;
	if (what == CL_KERNEL_NUM_ARGS)
		NUMBER(cl_uint, 0);
	return CL_INVALID_VALUE;
}

static cl_int CL_API_CALL launch(cl_command_queue q, cl_kernel k, cl_uint dims, const size_t *offset, const size_t *global,
	const size_t *local, cl_uint n, const cl_event *wait, cl_event *event)
{
	(void)q, (void)k, (void)dims, (void)offset, (void)global, (void)local, (void)n, (void)wait;
	return done(event);
}

static cl_int CL_API_CALL write_buffer(cl_command_queue q, cl_mem m, cl_bool blocking, size_t at, size_t size, const void *from,
	cl_uint n, const cl_event *wait, cl_event *event)
{
	(void)q, (void)m, (void)blocking, (void)at, (void)size, (void)from, (void)n, (void)wait;
	return done(event);
}

static cl_int CL_API_CALL marker(cl_command_queue q, cl_uint n, const cl_event *wait, cl_event *event)
{
	(void)q, (void)n, (void)wait;
	return done(event);
}

static cl_int CL_API_CALL at_once(cl_command_queue q) { return (void)q, CL_SUCCESS; }

static cl_int CL_API_CALL event_info(cl_event e, cl_event_info what, size_t size, void *value, size_t *ret)
{
	(void)e;
	if (what == CL_EVENT_COMMAND_EXECUTION_STATUS)
		NUMBER(cl_int, CL_COMPLETE);
	return CL_INVALID_VALUE;
}

__attribute__((constructor)) static void fill(void)
{
	void **each = (void **)&table;
	for (size_t i = 0; i < sizeof table / sizeof *each; i++)
		each[i] = (void *)nothing;
	the_platform.dispatch = the_device.dispatch = &table;
	table.clGetPlatformInfo = platform_info;
	table.clGetDeviceIDs = devices;
	table.clGetDeviceInfo = device_info;
	table.clCreateContext = context;
	table.clCreateCommandQueue = queue;
	table.clCreateBuffer = buffer;
	table.clCreateProgramWithSource = program;
	table.clBuildProgram = build;
	table.clGetProgramInfo = program_info;
	table.clGetProgramBuildInfo = build_info;
	table.clCreateKernel = kernel;
	table.clGetKernelInfo = kernel_info;
	table.clEnqueueNDRangeKernel = launch;
	table.clEnqueueWriteBuffer = write_buffer;
	table.clEnqueueMarkerWithWaitList = marker;
	table.clFlush = table.clFinish = at_once;
	table.clGetEventInfo = event_info;
	void *all = (void *)drop;
	memcpy(&table.clReleaseContext, &all, sizeof all);
	memcpy(&table.clReleaseCommandQueue, &all, sizeof all);
	memcpy(&table.clReleaseMemObject, &all, sizeof all);
	memcpy(&table.clReleaseProgram, &all, sizeof all);
	memcpy(&table.clReleaseKernel, &all, sizeof all);
	memcpy(&table.clReleaseEvent, &all, sizeof all);
}

CL_API_ENTRY cl_int CL_API_CALL clIcdGetPlatformIDsKHR(cl_uint n, cl_platform_id *ids, cl_uint *found)
{
	return platforms(n, ids, found);
}
