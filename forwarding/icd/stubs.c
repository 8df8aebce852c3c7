// The C half: one function for each OpenCL call that is forwarded. Each refuses in a forked child, where Go's runtime
// would hang, and hands its arguments to one Go function. Handles and pointers cross as numbers, since a program may
// pass anything.
#include "driver.h"
#include "trace.h"
#include "_cgo_export.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

static atomic_int forked, told;

static void in_child(void) {
  atomic_store(&forked, 1);
  atomic_store(&tdl_tracing, NULL);
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

// Descriptors 0 to 2 that the program has closed, while Go's runtime opens its own. Bit i: number i is ours.
static int standard_taken;

// Before Go's own constructor, which has no priority.
__attribute__((constructor(101))) static void take_standard(void) {
  for (int fd = open("/dev/null", O_RDWR | O_CLOEXEC); fd >= 0; fd = open("/dev/null", O_RDWR | O_CLOEXEC)) {
    if (fd > 2) {
      close(fd);
      return;
    }
    standard_taken |= 1 << fd;
  }
}

void tdl_free_standard(void) {
  for (int fd = 0; fd <= 2; fd++) {
    if (standard_taken & 1 << fd) {
      close(fd);
    }
  }
  standard_taken = 0;
}

int tdl_forked(void) { return atomic_load_explicit(&forked, memory_order_relaxed); }

int tdl_refused(void) {
  static const char line[] = "tendril: OpenCL was called in a forked child; Go's runtime does not survive fork without "
                             "exec. Start the child with exec (Python: multiprocessing start method \"spawn\").\n";
  if (!atomic_load_explicit(&forked, memory_order_relaxed)) {
    return 0;
  }
  if (!atomic_exchange(&told, 1)) {
    ssize_t ignored = write(2, line, sizeof line - 1); // nobody is left to tell
    (void)ignored;
  }
  return 1;
}

void tdl_call_context(uintptr_t fn, const char *text, uintptr_t data) {
  ((void(CL_CALLBACK *)(const char *, const void *, size_t, void *))fn)(text, NULL, 0, (void *)data);
}
void tdl_call_event(uintptr_t fn, uintptr_t event, cl_int status, uintptr_t data) {
  ((void(CL_CALLBACK *)(cl_event, cl_int, void *))fn)((cl_event)event, status, (void *)data);
}
void tdl_call_object(uintptr_t fn, uintptr_t object, uintptr_t data) {
  ((void(CL_CALLBACK *)(void *, void *))fn)((void *)object, (void *)data);
}

void tdl_call_svm_free(uintptr_t fn, uintptr_t queue, cl_uint n, uintptr_t pointers, uintptr_t data) {
  ((void(CL_CALLBACK *)(cl_command_queue, cl_uint, void **, void *))fn)((cl_command_queue)queue, n, (void **)pointers,
                                                                        (void *)data);
}

#define U(x) ((uintptr_t)(x))
#define REFUSE                                                                                                         \
  if (__builtin_expect(tdl_refused(), 0))                                                                              \
    return CL_OUT_OF_RESOURCES;                                                                                        \
  TRACE
#define WAITS                                                                                                          \
  tdl_waits waits = { num_events, U(list), U(event) }
// CREATE calls a Go function that returns a handle and an error, as the creating functions do.
#define CREATE(type, call) CREATE_NOTED(type, 0, 0, call)
#define CREATE_NOTED(type, about, size, call)                                                                          \
  cl_int code = CL_OUT_OF_RESOURCES;                                                                                   \
  type object = NULL;                                                                                                  \
  TRACE;                                                                                                               \
  NOTE(about, size);                                                                                                   \
  if (__builtin_expect(!tdl_refused(), 1)) {                                                                           \
    object = (type)(call);                                                                                             \
  }                                                                                                                    \
  if (errcode_ret != NULL) {                                                                                           \
    *errcode_ret = code;                                                                                               \
  }                                                                                                                    \
  return object

// Platforms and devices.

CL_API_ENTRY __attribute__((visibility("default"))) cl_int CL_API_CALL clIcdGetPlatformIDsKHR(cl_uint num_entries,
                                                                                              cl_platform_id *platforms,
                                                                                              cl_uint *num_platforms) {
  if (tdl_refused()) {
    return CL_PLATFORM_NOT_FOUND_KHR;
  }
  TRACE;
  return tdlPlatforms(num_entries, U(platforms), U(num_platforms));
}

cl_int CL_API_CALL tdl_clGetPlatformIDs(cl_uint num_entries, cl_platform_id *platforms, cl_uint *num_platforms) {
  return clIcdGetPlatformIDsKHR(num_entries, platforms, num_platforms);
}

#define INFO(name, type, what)                                                                                         \
  cl_int CL_API_CALL tdl_##name(type object, cl_uint param, size_t size, void *value, size_t *size_ret) {              \
    REFUSE;                                                                                                            \
    return tdlInfo(what, U(object), 0, param, size, U(value), U(size_ret));                                            \
  }

INFO(clGetPlatformInfo, cl_platform_id, TDL_PLATFORM)
INFO(clGetDeviceInfo, cl_device_id, TDL_DEVICE)
INFO(clGetContextInfo, cl_context, TDL_CONTEXT)
INFO(clGetCommandQueueInfo, cl_command_queue, TDL_QUEUE)
INFO(clGetMemObjectInfo, cl_mem, TDL_MEM)
INFO(clGetProgramInfo, cl_program, TDL_PROGRAM)
INFO(clGetKernelInfo, cl_kernel, TDL_KERNEL)
INFO(clGetEventInfo, cl_event, TDL_EVENT)
INFO(clGetEventProfilingInfo, cl_event, TDL_EVENT_PROFILING)

CL_API_ENTRY __attribute__((visibility("default"))) cl_int CL_API_CALL
clGetPlatformInfo(cl_platform_id platform, cl_platform_info param, size_t size, void *value, size_t *size_ret) {
  return tdl_clGetPlatformInfo(platform, param, size, value, size_ret);
}

CL_API_ENTRY __attribute__((visibility("default"))) void *CL_API_CALL clGetExtensionFunctionAddress(const char *name) {
  return tdl_function(name);
}

void *CL_API_CALL tdl_clGetExtensionFunctionAddress(const char *name) { return tdl_function(name); }

void *CL_API_CALL tdl_clGetExtensionFunctionAddressForPlatform(cl_platform_id platform, const char *name) {
  if (tdl_refused() || tdlIsPlatform(U(platform)) == 0) {
    return NULL;
  }
  return tdl_function(name);
}

cl_int CL_API_CALL tdl_clGetDeviceIDs(cl_platform_id platform, cl_device_type type, cl_uint num_entries,
                                      cl_device_id *devices, cl_uint *num_devices) {
  REFUSE;
  return tdlDeviceIDs(U(platform), type, num_entries, U(devices), U(num_devices));
}

cl_int CL_API_CALL tdl_clGetDeviceAndHostTimer(cl_device_id device, cl_ulong *device_time, cl_ulong *host_time) {
  REFUSE;
  return tdlTimers(U(device), U(device_time), U(host_time), 1);
}

cl_int CL_API_CALL tdl_clGetHostTimer(cl_device_id device, cl_ulong *host_time) {
  REFUSE;
  return tdlTimers(U(device), 0, U(host_time), 0);
}

cl_int CL_API_CALL tdl_clCreateSubDevices(cl_device_id device, const cl_device_partition_property *properties,
                                          cl_uint num_entries, cl_device_id *devices, cl_uint *num_devices) {
  REFUSE;
  return tdlCreateSubDevices(U(device), U(properties), num_entries, U(devices), U(num_devices));
}

// References.

#define REFS(name, type, what)                                                                                         \
  cl_int CL_API_CALL tdl_clRetain##name(type object) {                                                                 \
    REFUSE;                                                                                                            \
    return tdlRef(what, U(object));                                                                                    \
  }                                                                                                                    \
  cl_int CL_API_CALL tdl_clRelease##name(type object) {                                                                \
    REFUSE;                                                                                                            \
    return tdlRef(what | TDL_RELEASE, U(object));                                                                      \
  }

REFS(Device, cl_device_id, TDL_DEVICE)
REFS(Context, cl_context, TDL_CONTEXT)
REFS(CommandQueue, cl_command_queue, TDL_QUEUE)
REFS(MemObject, cl_mem, TDL_MEM)
REFS(Program, cl_program, TDL_PROGRAM)
REFS(Kernel, cl_kernel, TDL_KERNEL)
REFS(Event, cl_event, TDL_EVENT)

// Contexts and queues.

typedef void(CL_CALLBACK *context_callback)(const char *, const void *, size_t, void *);

cl_context CL_API_CALL tdl_clCreateContext(const cl_context_properties *properties, cl_uint num_devices,
                                           const cl_device_id *devices, context_callback notify, void *data,
                                           cl_int *errcode_ret) {
  CREATE(cl_context, tdlCreateContext(U(properties), num_devices, U(devices), U(notify), U(data), U(&code)));
}

cl_context CL_API_CALL tdl_clCreateContextFromType(const cl_context_properties *properties, cl_device_type type,
                                                   context_callback notify, void *data, cl_int *errcode_ret) {
  CREATE(cl_context, tdlCreateContextFromType(U(properties), type, U(notify), U(data), U(&code)));
}

cl_int CL_API_CALL tdl_clSetContextDestructorCallback(cl_context context,
                                                      void(CL_CALLBACK *notify)(cl_context, void *), void *data) {
  REFUSE;
  return tdlSetDestructor(TDL_CONTEXT, U(context), U(notify), U(data));
}

cl_command_queue CL_API_CALL tdl_clCreateCommandQueue(cl_context context, cl_device_id device,
                                                      cl_command_queue_properties properties, cl_int *errcode_ret) {
  CREATE(cl_command_queue, tdlCreateQueue(U(context), U(device), properties, U(&code)));
}

cl_command_queue CL_API_CALL tdl_clCreateCommandQueueWithProperties(cl_context context, cl_device_id device,
                                                                    const cl_queue_properties *properties,
                                                                    cl_int *errcode_ret) {
  CREATE(cl_command_queue, tdlCreateQueueWithProperties(U(context), U(device), U(properties), U(&code)));
}

cl_int CL_API_CALL tdl_clFlush(cl_command_queue queue) {
  REFUSE;
  return tdlFlush(U(queue));
}

cl_int CL_API_CALL tdl_clFinish(cl_command_queue queue) {
  REFUSE;
  NOTE(queue, 0);
  return tdlFinish(U(queue));
}

// Buffers.

cl_mem CL_API_CALL tdl_clCreateBuffer(cl_context context, cl_mem_flags flags, size_t size, void *host,
                                      cl_int *errcode_ret) {
  CREATE_NOTED(cl_mem, 0, size, tdlCreateBuffer(U(context), 0, flags, size, U(host), U(&code)));
}

cl_mem CL_API_CALL tdl_clCreateBufferWithProperties(cl_context context, const cl_mem_properties *properties,
                                                    cl_mem_flags flags, size_t size, void *host, cl_int *errcode_ret) {
  CREATE_NOTED(cl_mem, 0, size, tdlCreateBuffer(U(context), U(properties), flags, size, U(host), U(&code)));
}

cl_mem CL_API_CALL tdl_clCreateSubBuffer(cl_mem buffer, cl_mem_flags flags, cl_buffer_create_type type,
                                         const void *info, cl_int *errcode_ret) {
  CREATE(cl_mem, tdlCreateSubBuffer(U(buffer), flags, type, U(info), U(&code)));
}

cl_int CL_API_CALL tdl_clSetMemObjectDestructorCallback(cl_mem memobj, void(CL_CALLBACK *notify)(cl_mem, void *),
                                                        void *data) {
  REFUSE;
  return tdlSetDestructor(TDL_MEM, U(memobj), U(notify), U(data));
}

static cl_int CL_API_CALL tdl_clPublishBufferTENDRIL(cl_mem buffer, const char *name, cl_uchar *id_out) {
  REFUSE;
  return tdlPublish(U(buffer), U(name), U(id_out));
}

static cl_int CL_API_CALL tdl_clSetContentSizeBufferPoCL(cl_mem buffer, cl_mem content_size_buffer) {
  REFUSE;
  return tdlSetContentSize(U(buffer), U(content_size_buffer));
}

static cl_mem CL_API_CALL tdl_clCreateBufferFromObjectTENDRIL(cl_context context, const cl_uchar *id, const char *name,
                                                              cl_int *errcode_ret) {
  CREATE(cl_mem, tdlOpenObject(U(context), U(id), U(name), U(&code)));
}

// Programs.

cl_program CL_API_CALL tdl_clCreateProgramWithSource(cl_context context, cl_uint count, const char **strings,
                                                     const size_t *lengths, cl_int *errcode_ret) {
  CREATE(cl_program, tdlCreateProgramWithSource(U(context), count, U(strings), U(lengths), U(&code)));
}

cl_program CL_API_CALL tdl_clCreateProgramWithBinary(cl_context context, cl_uint num_devices,
                                                     const cl_device_id *devices, const size_t *lengths,
                                                     const unsigned char **binaries, cl_int *binary_status,
                                                     cl_int *errcode_ret) {
  CREATE(cl_program, tdlCreateProgramWithBinary(U(context), num_devices, U(devices), U(lengths), U(binaries),
                                                U(binary_status), U(&code)));
}

cl_program CL_API_CALL tdl_clCreateProgramWithIL(cl_context context, const void *il, size_t size,
                                                 cl_int *errcode_ret) {
  CREATE(cl_program, tdlCreateProgramWithIL(U(context), U(il), size, U(&code)));
}

cl_program CL_API_CALL tdl_clCreateProgramWithBuiltInKernels(cl_context context, cl_uint num_devices,
                                                             const cl_device_id *devices, const char *names,
                                                             cl_int *errcode_ret) {
  CREATE(cl_program, tdlCreateProgramWithBuiltInKernels(U(context), num_devices, U(devices), U(names), U(&code)));
}

cl_int CL_API_CALL tdl_clSetProgramSpecializationConstant(cl_program program, cl_uint id, size_t size,
                                                          const void *value) {
  REFUSE;
  return tdlSetSpecConstant(U(program), id, size, U(value));
}

cl_int CL_API_CALL tdl_clBuildProgram(cl_program program, cl_uint num_devices, const cl_device_id *devices,
                                      const char *options, void(CL_CALLBACK *notify)(cl_program, void *),
                                      void *data) {
  REFUSE;
  return tdlBuildProgram(U(program), num_devices, U(devices), U(options), U(notify), U(data));
}

cl_int CL_API_CALL tdl_clCompileProgram(cl_program program, cl_uint num_devices, const cl_device_id *devices,
                                        const char *options, cl_uint num_headers, const cl_program *headers,
                                        const char **names, void(CL_CALLBACK *notify)(cl_program, void *), void *data) {
  REFUSE;
  tdl_parts parts = {num_devices, num_headers, U(devices), U(options), U(headers), U(names)};
  return tdlCompileProgram(U(program), &parts, U(notify), U(data));
}

cl_program CL_API_CALL tdl_clLinkProgram(cl_context context, cl_uint num_devices, const cl_device_id *devices,
                                         const char *options, cl_uint num_programs, const cl_program *programs,
                                         void(CL_CALLBACK *notify)(cl_program, void *), void *data,
                                         cl_int *errcode_ret) {
  tdl_parts parts = {num_devices, num_programs, U(devices), U(options), U(programs), 0};
  CREATE(cl_program, tdlLinkProgram(U(context), &parts, U(notify), U(data), U(&code)));
}

cl_int CL_API_CALL tdl_clGetProgramBuildInfo(cl_program program, cl_device_id device, cl_program_build_info param,
                                             size_t size, void *value, size_t *size_ret) {
  REFUSE;
  return tdlInfo(TDL_PROGRAM_BUILD, U(program), U(device), param, size, U(value), U(size_ret));
}

cl_int CL_API_CALL tdl_clUnloadCompiler(void) { return CL_SUCCESS; }

cl_int CL_API_CALL tdl_clUnloadPlatformCompiler(cl_platform_id platform) {
  REFUSE;
  return tdlIsPlatform(U(platform)) != 0 ? CL_SUCCESS : CL_INVALID_PLATFORM;
}

// Kernels.

cl_kernel CL_API_CALL tdl_clCreateKernel(cl_program program, const char *name, cl_int *errcode_ret) {
  CREATE(cl_kernel, tdlCreateKernel(U(program), U(name), U(&code)));
}

cl_kernel CL_API_CALL tdl_clCloneKernel(cl_kernel kernel, cl_int *errcode_ret) {
  CREATE(cl_kernel, tdlCloneKernel(U(kernel), U(&code)));
}

cl_int CL_API_CALL tdl_clCreateKernelsInProgram(cl_program program, cl_uint num_kernels, cl_kernel *kernels,
                                                cl_uint *num_kernels_ret) {
  REFUSE;
  return tdlCreateKernels(U(program), num_kernels, U(kernels), U(num_kernels_ret));
}

cl_int CL_API_CALL tdl_clSetKernelArg(cl_kernel kernel, cl_uint index, size_t size, const void *value) {
  REFUSE;
  NOTE(kernel, size);
  return tdlSetKernelArg(U(kernel), index, size, U(value));
}

cl_int CL_API_CALL tdl_clGetKernelArgInfo(cl_kernel kernel, cl_uint index, cl_kernel_arg_info param, size_t size,
                                          void *value, size_t *size_ret) {
  REFUSE;
  return tdlKernelArgInfo(U(kernel), index, param, size, U(value), U(size_ret));
}

cl_int CL_API_CALL tdl_clGetKernelWorkGroupInfo(cl_kernel kernel, cl_device_id device, cl_kernel_work_group_info param,
                                                size_t size, void *value, size_t *size_ret) {
  REFUSE;
  return tdlInfo(TDL_KERNEL_WORK_GROUP, U(kernel), U(device), param, size, U(value), U(size_ret));
}

cl_int CL_API_CALL tdl_clGetKernelSubGroupInfo(cl_kernel kernel, cl_device_id device, cl_kernel_sub_group_info param,
                                               size_t input_size, const void *input, size_t size, void *value,
                                               size_t *size_ret) {
  REFUSE;
  return tdlKernelSubGroupInfo(U(kernel), U(device), param, input_size, U(input), size, U(value), U(size_ret));
}

cl_int CL_API_CALL tdl_clGetKernelSubGroupInfoKHR(cl_kernel kernel, cl_device_id device, cl_kernel_sub_group_info param,
                                                  size_t input_size, const void *input, size_t size, void *value,
                                                  size_t *size_ret) {
  return tdl_clGetKernelSubGroupInfo(kernel, device, param, input_size, input, size, value, size_ret);
}

// Commands.

#define ENQUEUE_ARGS cl_uint num_events, const cl_event *list, cl_event *event

cl_int CL_API_CALL tdl_clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint dims,
                                              const size_t *offset, const size_t *global, const size_t *local,
                                              ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  NOTE(queue, 0);
  return tdlEnqueueNDRange(U(queue), U(kernel), dims, U(offset), U(global), U(local), &waits);
}

cl_int CL_API_CALL tdl_clEnqueueTask(cl_command_queue queue, cl_kernel kernel, ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  NOTE(queue, 0);
  return tdlEnqueueTask(U(queue), U(kernel), &waits);
}

cl_int CL_API_CALL tdl_clEnqueueReadBuffer(cl_command_queue queue, cl_mem buffer, cl_bool blocking, size_t offset,
                                           size_t size, void *ptr, ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  NOTE(queue, size);
  return tdlEnqueueRead(U(queue), U(buffer), blocking, offset, size, U(ptr), &waits);
}

cl_int CL_API_CALL tdl_clEnqueueWriteBuffer(cl_command_queue queue, cl_mem buffer, cl_bool blocking, size_t offset,
                                            size_t size, const void *ptr, ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  NOTE(queue, size);
  return tdlEnqueueWrite(U(queue), U(buffer), blocking, offset, size, U(ptr), &waits);
}

#define RECT(a, b)                                                                                                     \
  tdl_rect rect = { U(a), U(b), U(region), a##_row_pitch, a##_slice_pitch, b##_row_pitch, b##_slice_pitch }

cl_int CL_API_CALL tdl_clEnqueueReadBufferRect(cl_command_queue queue, cl_mem buffer, cl_bool blocking,
                                               const size_t *dev, const size_t *host, const size_t *region,
                                               size_t dev_row_pitch, size_t dev_slice_pitch, size_t host_row_pitch,
                                               size_t host_slice_pitch, void *ptr, ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  NOTE(queue, 0);
  RECT(dev, host);
  return tdlEnqueueRect(0, U(queue), U(buffer), blocking, &rect, U(ptr), &waits);
}

cl_int CL_API_CALL tdl_clEnqueueWriteBufferRect(cl_command_queue queue, cl_mem buffer, cl_bool blocking,
                                                const size_t *dev, const size_t *host, const size_t *region,
                                                size_t dev_row_pitch, size_t dev_slice_pitch, size_t host_row_pitch,
                                                size_t host_slice_pitch, const void *ptr, ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  NOTE(queue, 0);
  RECT(dev, host);
  return tdlEnqueueRect(1, U(queue), U(buffer), blocking, &rect, U(ptr), &waits);
}

cl_int CL_API_CALL tdl_clEnqueueCopyBufferRect(cl_command_queue queue, cl_mem from, cl_mem to, const size_t *src,
                                               const size_t *dst, const size_t *region, size_t src_row_pitch,
                                               size_t src_slice_pitch, size_t dst_row_pitch, size_t dst_slice_pitch,
                                               ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  NOTE(queue, 0);
  RECT(src, dst);
  return tdlEnqueueCopyRect(U(queue), U(from), U(to), &rect, &waits);
}

cl_int CL_API_CALL tdl_clEnqueueCopyBuffer(cl_command_queue queue, cl_mem src, cl_mem dst, size_t src_offset,
                                           size_t dst_offset, size_t size, ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  NOTE(queue, size);
  return tdlEnqueueCopy(U(queue), U(src), U(dst), src_offset, dst_offset, size, &waits);
}

cl_int CL_API_CALL tdl_clEnqueueFillBuffer(cl_command_queue queue, cl_mem buffer, const void *pattern,
                                           size_t pattern_size, size_t offset, size_t size, ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  NOTE(queue, size);
  return tdlEnqueueFill(U(queue), U(buffer), U(pattern), pattern_size, offset, size, &waits);
}

void *CL_API_CALL tdl_clEnqueueMapBuffer(cl_command_queue queue, cl_mem buffer, cl_bool blocking, cl_map_flags flags,
                                         size_t offset, size_t size, ENQUEUE_ARGS, cl_int *errcode_ret) {
  WAITS;
  CREATE_NOTED(void *, queue, size,
               tdlEnqueueMap(U(queue), U(buffer), blocking, flags, offset, size, &waits, U(&code)));
}

cl_int CL_API_CALL tdl_clEnqueueUnmapMemObject(cl_command_queue queue, cl_mem memobj, void *ptr, ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  NOTE(queue, 0);
  return tdlEnqueueUnmap(U(queue), U(memobj), U(ptr), &waits);
}

cl_int CL_API_CALL tdl_clEnqueueMigrateMemObjects(cl_command_queue queue, cl_uint num, const cl_mem *objects,
                                                  cl_mem_migration_flags flags, ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  NOTE(queue, 0);
  return tdlEnqueueMigrate(U(queue), num, U(objects), flags, &waits);
}

cl_int CL_API_CALL tdl_clEnqueueMarkerWithWaitList(cl_command_queue queue, ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  NOTE(queue, 0);
  return tdlEnqueueMarker(U(queue), 0, &waits);
}

cl_int CL_API_CALL tdl_clEnqueueMarker(cl_command_queue queue, cl_event *event) {
  REFUSE;
  tdl_waits waits = {0, 0, U(event)};
  return tdlEnqueueMarker(U(queue), 1, &waits);
}

cl_int CL_API_CALL tdl_clEnqueueBarrierWithWaitList(cl_command_queue queue, ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  NOTE(queue, 0);
  return tdlEnqueueBarrier(U(queue), &waits);
}

cl_int CL_API_CALL tdl_clEnqueueBarrier(cl_command_queue queue) {
  REFUSE;
  tdl_waits waits = {0, 0, 0};
  return tdlEnqueueBarrier(U(queue), &waits);
}

cl_int CL_API_CALL tdl_clEnqueueWaitForEvents(cl_command_queue queue, cl_uint num_events, const cl_event *list) {
  REFUSE;
  tdl_waits waits = {num_events, U(list), 0};
  return tdlEnqueueWaitForEvents(U(queue), &waits);
}

// Events.

cl_int CL_API_CALL tdl_clWaitForEvents(cl_uint num_events, const cl_event *list) {
  REFUSE;
  return tdlWaitForEvents(num_events, U(list));
}

cl_event CL_API_CALL tdl_clCreateUserEvent(cl_context context, cl_int *errcode_ret) {
  CREATE(cl_event, tdlCreateUserEvent(U(context), U(&code)));
}

cl_int CL_API_CALL tdl_clSetUserEventStatus(cl_event event, cl_int status) {
  REFUSE;
  return tdlSetUserEventStatus(U(event), status);
}

cl_int CL_API_CALL tdl_clSetEventCallback(cl_event event, cl_int level,
                                          void(CL_CALLBACK *notify)(cl_event, cl_int, void *), void *data) {
  REFUSE;
  return tdlSetEventCallback(U(event), level, U(notify), U(data));
}

#include "images.h"
#include "svm.h"
#include "commandbuffer.h"
#include "unsupported.h"
#include "dispatch.h"

// The extension functions that a program may ask for by name, and those of the table under their own.
void *tdl_function(const char *name) {
  static const struct {
    const char *name;
    void *function;
  } functions[] = {
      {"clIcdGetPlatformIDsKHR", clIcdGetPlatformIDsKHR},
      {"clGetPlatformInfo", clGetPlatformInfo},
      {"clGetExtensionFunctionAddress", clGetExtensionFunctionAddress},
      {"clGetKernelSubGroupInfoKHR", tdl_clGetKernelSubGroupInfoKHR},
      {"clPublishBufferTENDRIL", tdl_clPublishBufferTENDRIL},
      {"clCreateBufferFromObjectTENDRIL", tdl_clCreateBufferFromObjectTENDRIL},
      {"clSetContentSizeBufferPoCL", tdl_clSetContentSizeBufferPoCL},
      {"clCreateCommandBufferKHR", tdl_clCreateCommandBufferKHR},
      {"clFinalizeCommandBufferKHR", tdl_clFinalizeCommandBufferKHR},
      {"clRetainCommandBufferKHR", tdl_clRetainCommandBufferKHR},
      {"clReleaseCommandBufferKHR", tdl_clReleaseCommandBufferKHR},
      {"clGetCommandBufferInfoKHR", tdl_clGetCommandBufferInfoKHR},
      {"clEnqueueCommandBufferKHR", tdl_clEnqueueCommandBufferKHR},
      {"clCommandBarrierWithWaitListKHR", tdl_clCommandBarrierWithWaitListKHR},
      {"clCommandCopyBufferKHR", tdl_clCommandCopyBufferKHR},
      {"clCommandCopyBufferRectKHR", tdl_clCommandCopyBufferRectKHR},
      {"clCommandCopyBufferToImageKHR", tdl_clCommandCopyBufferToImageKHR},
      {"clCommandCopyImageToBufferKHR", tdl_clCommandCopyImageToBufferKHR},
      {"clCommandCopyImageKHR", tdl_clCommandCopyImageKHR},
      {"clCommandFillBufferKHR", tdl_clCommandFillBufferKHR},
      {"clCommandFillImageKHR", tdl_clCommandFillImageKHR},
      {"clCommandNDRangeKernelKHR", tdl_clCommandNDRangeKernelKHR},
  };
  if (name == NULL) {
    return NULL;
  }
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    if (strcmp(name, functions[i].name) == 0) {
      return functions[i].function;
    }
  }
  return NULL;
}
