/* An OpenCL driver for tests: one platform with GPUs. Its programs have one kernel, "empty", without arguments. What is
 * not needed for that answers CL_INVALID_OPERATION.
 *
 * By itself it does nothing: commands have ended when they are enqueued, and objects are counted references.
 *
 *   NULLCL_BYTES=N      devices have memory, so many bytes each; a new buffer holds no zeroes. A copy happens when
 *                       somebody waits for its event, or asks for its status, and not before
 *   NULLCL_MOST=N       how much one buffer may have (default all of that)
 *   NULLCL_DEVICES=N    how many devices there are (default 1)
 *   NULLCL_ORDER=WORD   their order by the last digits of their UUIDs (default 0123456789)
 *   NULLCL_FAIL=I:CODE  the I-th call of this process that may fail, counted from 1, answers CODE
 *   NULLCL_LATE=CODE    copies end with CODE: their events say so, and who waits for them is told that they failed
 *   NULLCL_DIE=I        the I-th call ends the process by SIGKILL; NULLCL_HANG=I: it never returns
 *   NULLCL_ONCE=PATH    FAIL, DIE and HANG hold for the process that makes this file, and for none after it
 *   NULLCL_FINISH=PATH  clFinish waits until somebody has this pipe (mkfifo) open for writing
 *   NULLCL_LOG=PATH     PATH.PID always has "calls N left N", left being the objects that were not released
 *
 * Without memory it counts no calls, so that benchmarks measure what stands before a driver.
 */
#define _GNU_SOURCE
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <CL/cl_icd.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TROUBLE "NULLCL_"
#include "../../../fakedriver/trouble.h"

static cl_icd_dispatch table;

typedef struct object {
	cl_icd_dispatch *dispatch;
	atomic_int refs;
	struct object *of; /* of a context, queue or buffer: the device */
	char *bytes;       /* of a buffer; NULL: none */
	size_t size;
	struct { void *to; const void *from; size_t bytes; } copy; /* of an event; bytes 0: it has happened */
	cl_int failed; /* of an event */
} object;

enum { DEVICES = 10 };
static object the_platform, the_devices[DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long calls;
static atomic_long left;
static size_t used[DEVICES];

/* note writes the log. The lock is held. */
static void note(void)
{
	static int log = -1;
	char name[4096], line[64];
	int n = snprintf(line, sizeof line, "calls %10ld left %10ld\n", calls, (long)left);
	if (log < 0) {
		snprintf(name, sizeof name, "%s.%d", getenv("NULLCL_LOG"), getpid());
		log = open(name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	}
	if (pwrite(log, line, n, 0) != n)
		abort();
}

static int counts; /* the driver was asked to, when it was loaded */

/* begin counts a call, and gives what it is to answer; 0: what is true. */
static cl_int begin(void)
{
	cl_int answer;

	if (!counts)
		return CL_SUCCESS;
	pthread_mutex_lock(&lock);
	answer = trouble(++calls);
	if (getenv("NULLCL_LOG"))
		note();
	pthread_mutex_unlock(&lock);
	return answer;
}

#define CALL do { cl_int answer_ = begin(); if (answer_) return answer_; } while (0)
#define MAKE(err) do { cl_int answer_ = begin(); if (answer_) { if (err) *(err) = answer_; return NULL; } } while (0)

static void *make(cl_int *err)
{
	object *o = calloc(1, sizeof *o);
	o->dispatch = &table;
	o->refs = 1;
	left++;
	if (err)
		*err = CL_SUCCESS;
	return o;
}

static void *make_of(void *of, cl_int *err)
{
	object *o = make(err);
	o->of = of;
	return o;
}

static cl_int CL_API_CALL drop(void *p)
{
	object *o = p;

	CALL;
	if (atomic_fetch_sub(&o->refs, 1) != 1)
		return CL_SUCCESS;
	if (o->bytes) {
		pthread_mutex_lock(&lock);
		used[o->of - the_devices] -= o->size;
		pthread_mutex_unlock(&lock);
	}
	left--;
	free(o->bytes);
	free(o);
	return CL_SUCCESS;
}

/* shown gives the device at a place. */
static object *shown(cl_uint place)
{
	const char *order = getenv("NULLCL_ORDER");
	return &the_devices[order && place < strlen(order) ? (order[place] - '0') % DEVICES : (int)place % DEVICES];
}

/* happen does an event's copy. */
static void happen(object *e)
{
	if (e->copy.bytes)
		memcpy(e->copy.to, e->copy.from, e->copy.bytes);
	e->copy.bytes = 0;
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
	CALL;
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
	cl_uint have = (cl_uint)number("NULLCL_DEVICES", 1);

	(void)p, (void)t;
	CALL;
	for (cl_uint i = 0; ids && i < n && i < have; i++)
		ids[i] = (cl_device_id)shown(i);
	if (found)
		*found = have;
	return have ? CL_SUCCESS : CL_DEVICE_NOT_FOUND;
}

static cl_int CL_API_CALL device_info(cl_device_id d, cl_device_info what, size_t size, void *value, size_t *ret)
{
	unsigned char uuid[16] = {[0 ... 14] = 0xce};
	size_t bytes = (size_t)number("NULLCL_BYTES", 0);

	CALL;
	switch (what) {
	case CL_DEVICE_TYPE:
		NUMBER(cl_device_type, CL_DEVICE_TYPE_GPU);
	case 0x106A: /* CL_DEVICE_UUID_KHR */
		uuid[15] = (unsigned char)((object *)d - the_devices);
		return give(uuid, sizeof uuid, size, value, ret);
	case CL_DEVICE_GLOBAL_MEM_SIZE:
		if (bytes)
			NUMBER(cl_ulong, bytes);
		break;
	case CL_DEVICE_MAX_MEM_ALLOC_SIZE:
		if (bytes)
			NUMBER(cl_ulong, number("NULLCL_MOST", bytes));
	}
	return CL_INVALID_VALUE;
}

static cl_context CL_API_CALL context(const cl_context_properties *p, cl_uint n, const cl_device_id *d,
	void(CL_CALLBACK *f)(const char *, const void *, size_t, void *), void *u, cl_int *err)
{
	(void)p, (void)n, (void)f, (void)u;
	MAKE(err);
	return make_of(d[0], err);
}

static cl_command_queue CL_API_CALL queue(cl_context c, cl_device_id d, cl_command_queue_properties p, cl_int *err)
{
	(void)c, (void)p;
	MAKE(err);
	return make_of(d, err);
}

static cl_mem CL_API_CALL buffer(cl_context c, cl_mem_flags f, size_t n, void *host, cl_int *err)
{
	size_t all = (size_t)number("NULLCL_BYTES", 0), most = (size_t)number("NULLCL_MOST", all);
	object *device = ((object *)c)->of, *o;
	int fits;

	(void)f, (void)host;
	MAKE(err);
	if (!all)
		return make_of(device, err);
	pthread_mutex_lock(&lock);
	fits = n <= all - used[device - the_devices];
	if (n <= most && fits)
		used[device - the_devices] += n;
	pthread_mutex_unlock(&lock);
	if (!n || n > most || !fits) {
		*err = n && n <= most ? CL_MEM_OBJECT_ALLOCATION_FAILURE : CL_INVALID_BUFFER_SIZE;
		return NULL;
	}
	o = make_of(device, err);
	o->size = n;
	o->bytes = malloc(n);
	memset(o->bytes, 0xa5, n);
	return (cl_mem)o;
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

/* transfer copies, at once or with its event. */
static cl_int transfer(object *o, size_t at, size_t size, cl_bool blocking, void *to, const void *from, cl_event *event)
{
	object *e;

	if (!o->bytes)
		return done(event);
	if (at > o->size || size > o->size - at)
		return CL_INVALID_VALUE;
	if (blocking || !event)
		memcpy(to, from, size);
	done(event);
	if (!blocking && event) {
		e = (object *)*event;
		e->failed = (cl_int)number("NULLCL_LATE", 0);
		e->copy.to = to, e->copy.from = from, e->copy.bytes = e->failed ? 0 : size;
	}
	return CL_SUCCESS;
}

static cl_int CL_API_CALL write_buffer(cl_command_queue q, cl_mem m, cl_bool blocking, size_t at, size_t size, const void *from,
	cl_uint n, const cl_event *wait, cl_event *event)
{
	object *o = (object *)m;

	(void)q, (void)n, (void)wait;
	CALL;
	return transfer(o, at, size, blocking, o->bytes ? o->bytes + at : NULL, from, event);
}

static cl_int CL_API_CALL read_buffer(cl_command_queue q, cl_mem m, cl_bool blocking, size_t at, size_t size, void *to,
	cl_uint n, const cl_event *wait, cl_event *event)
{
	object *o = (object *)m;

	(void)q, (void)n, (void)wait;
	CALL;
	return transfer(o, at, size, blocking, to, o->bytes ? o->bytes + at : NULL, event);
}

static cl_int CL_API_CALL wait_for(cl_uint n, const cl_event *events)
{
	cl_int answer = CL_SUCCESS;

	CALL;
	for (cl_uint i = 0; i < n; i++) {
		happen((object *)events[i]);
		if (((object *)events[i])->failed)
			answer = CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
	}
	return answer;
}

static cl_int CL_API_CALL marker(cl_command_queue q, cl_uint n, const cl_event *wait, cl_event *event)
{
	(void)q, (void)n, (void)wait;
	return done(event);
}

static cl_int CL_API_CALL flush(cl_command_queue q) { return (void)q, CL_SUCCESS; }

static cl_int CL_API_CALL finish(cl_command_queue q)
{
	const char *pipe = getenv("NULLCL_FINISH");
	int fd = pipe && *pipe ? open(pipe, O_RDONLY | O_CLOEXEC) : -1;
	if (fd >= 0)
		close(fd);
	return (void)q, CL_SUCCESS;
}

static cl_int CL_API_CALL event_info(cl_event e, cl_event_info what, size_t size, void *value, size_t *ret)
{
	happen((object *)e);
	if (what == CL_EVENT_COMMAND_EXECUTION_STATUS)
		NUMBER(cl_int, ((object *)e)->failed);
	return CL_INVALID_VALUE;
}

__attribute__((constructor)) static void fill(void)
{
	void **each = (void **)&table;
	for (size_t i = 0; i < sizeof table / sizeof *each; i++)
		each[i] = (void *)nothing;
	the_platform.dispatch = &table;
	for (int i = 0; i < DEVICES; i++)
		the_devices[i].dispatch = &table;
	counts = getenv("NULLCL_BYTES") != NULL;
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
	table.clEnqueueReadBuffer = read_buffer;
	table.clWaitForEvents = wait_for;
	table.clEnqueueMarkerWithWaitList = marker;
	table.clFlush = flush;
	table.clFinish = finish;
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
