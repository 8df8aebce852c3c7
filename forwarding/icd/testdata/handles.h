// Every handle of every call of the table that is forwarded, wrong in turn: numbers that never were handles, live handles of every
// other kind, a handle that was released, and one of another context where that is an error of its own. What a call answers is what the
// specification gives, and the process lives. icd_test.go compares the rows with the table.

enum { PLATFORM = 1, DEVICE = 2, CONTEXT = 4, QUEUE = 8, BUFFER = 16, IMAGE = 32, SAMPLER = 64, PROGRAM = 128, KERNEL = 256, EVENT = 512 };
#define MEM (BUFFER | IMAGE)

static struct {
  int kind;
  void *live, *released, *foreign;
} handles[16];
static int kinds, wrong;

static void add(int kind, void *live, void *released, void *foreign) {
  handles[kinds].kind = kind;
  handles[kinds].live = live;
  handles[kinds].released = released;
  handles[kinds++].foreign = foreign;
}

static void judge(const char *name, const char *what, int got, int want) {
  if (got != want && ++wrong <= 50) printf("%s of %s: %d, want %d\n", name, what, got, want);
}

static const char *never_names[] = {"1", "the program's own memory", "-1", "the middle of a handle"};

// ROW: with bad in place of a handle of the kinds, the call answers code.
#define ROW(function, kind_, code, call)                                                                               \
  do {                                                                                                                 \
    void *never[] = {(void *)1, junk, (void *)-1, (char *)queue + 8};                                                  \
    for (int i = 0; i < 4; i++) {                                                                                      \
      void *bad = never[i];                                                                                            \
      judge(#function, never_names[i], (call), code);                                                                  \
    }                                                                                                                  \
    for (int i = 0; i < kinds; i++) {                                                                                  \
      void *bad = handles[i].live;                                                                                     \
      char what[64];                                                                                                   \
      snprintf(what, sizeof what, "a handle of kind %d", handles[i].kind);                                             \
      if (!(handles[i].kind & (kind_))) judge(#function, what, (call), code);                                          \
      bad = handles[i].released;                                                                                       \
      if (bad && (handles[i].kind & (kind_))) judge(#function, "a released handle", (call), code);                     \
    }                                                                                                                  \
  } while (0)

// ONCE: numbers that are or were handles of other kinds alone.
#define ONCE(function, kind_, code, call)                                                                              \
  do {                                                                                                                 \
    for (int i = 0; i < kinds; i++) {                                                                                  \
      void *bad = handles[i].live;                                                                                     \
      if (!(handles[i].kind & (kind_))) judge(#function, "another kind of handle", (call), code);                      \
      bad = handles[i].released;                                                                                       \
      if (bad && handles[i].kind != SAMPLER) judge(#function, "a released handle", (call), code);                      \
    }                                                                                                                  \
  } while (0)

// NULLROW: and NULL is as wrong.
#define NULLROW(function, kind_, code, call)                                                                           \
  do {                                                                                                                 \
    void *bad = NULL;                                                                                                  \
    judge(#function, "NULL", (call), code);                                                                            \
    ROW(function, kind_, code, call);                                                                                  \
  } while (0)

// FOREIGN: a handle of another context.
#define FOREIGN(function, kind_, code, call)                                                                           \
  do {                                                                                                                 \
    for (int i = 0; i < kinds; i++) {                                                                                  \
      void *bad = handles[i].foreign;                                                                                  \
      if (bad && (handles[i].kind & (kind_))) judge(#function, "a handle of another context", (call), code);           \
    }                                                                                                                  \
  } while (0)

// NONE: a call that takes no handle.
#define NONE(function)

// The wait list of a command: one wrong event, and one of another context.
#define WAITS(function, call)                                                                                          \
  do {                                                                                                                 \
    NULLROW(function, EVENT, CL_INVALID_EVENT_WAIT_LIST, call);                                                        \
    FOREIGN(function, EVENT, CL_INVALID_CONTEXT, call);                                                                \
  } while (0)
#define W 1, (cl_event *)&bad, NULL
#define N 0, NULL, NULL
#define MADE(call) (e = 77, (call) ? 0 : e) // of a call that makes an object

static cl_context other_context;
static cl_image_format pixel = {CL_RGBA, CL_UNSIGNED_INT8};
static cl_image_desc square = {CL_MEM_OBJECT_IMAGE2D, 4, 4};
static const char *handle_source = "kernel void k(global int *a, sampler_t s, read_only image2d_t i) { a[0] = read_imageui(i, s, (int2)(0)).x; }\n"
                                   "kernel void one(global int *a) { a[0] = 1; }\n";
static cl_program made_program;

// make_objects makes one of each kind in c.
static void make_objects(cl_context c, void **out) {
  cl_int e;
  out[0] = cl->clCreateCommandQueue(c, device, CL_QUEUE_PROFILING_ENABLE, &e);
  OK(e);
  out[1] = cl->clCreateBuffer(c, 0, 4096, NULL, &e);
  OK(e);
  out[2] = cl->clCreateImage(c, 0, &pixel, &square, NULL, &e);
  OK(e);
  out[3] = cl->clCreateSampler(c, 0, CL_ADDRESS_NONE, CL_FILTER_NEAREST, &e);
  OK(e);
  out[4] = made_program = cl->clCreateProgramWithSource(c, 1, &handle_source, NULL, &e);
  OK(e);
  OK(cl->clBuildProgram(made_program, 0, NULL, "-cl-kernel-arg-info", NULL, NULL));
  out[5] = cl->clCreateKernel(made_program, "one", &e);
  OK(e);
  out[6] = cl->clCreateUserEvent(c, &e);
  OK(e);
}

static void release_objects(void **o) {
  OK(cl->clReleaseEvent(o[6]));
  OK(cl->clReleaseKernel(o[5]));
  OK(cl->clReleaseProgram(o[4]));
  OK(cl->clReleaseSampler(o[3]));
  OK(cl->clReleaseMemObject(o[2]));
  OK(cl->clReleaseMemObject(o[1]));
  OK(cl->clReleaseCommandQueue(o[0]));
}

static void wrong_handles(void) {
  static char junk[4096];
  cl_int e;
  size_t size = 0, zero[3] = {0, 0, 0}, one[3] = {1, 1, 1}, part[3] = {4, 1, 1};
  cl_uint n = 0, color[4] = {0};
  void *mine[7], *dead[7], *theirs[7];
  cl_context gone = make_context();
  other_context = make_context();
  make_objects(context, mine);
  make_objects(context, dead);
  make_objects(other_context, theirs);
  release_objects(dead);
  OK(cl->clReleaseContext(gone));
  add(PLATFORM, platform, NULL, NULL);
  add(DEVICE, device, NULL, NULL);
  add(CONTEXT, context, gone, NULL);
  int order[] = {QUEUE, BUFFER, IMAGE, SAMPLER, PROGRAM, KERNEL, EVENT};
  for (int i = 0; i < 7; i++) add(order[i], mine[i], dead[i], theirs[i]);
  cl_command_queue q = mine[0];
  cl_mem buffer = mine[1], image = mine[2];
  cl_sampler sampler = mine[3];
  cl_program program = mine[4];
  cl_kernel kernel = mine[5];
  cl_event event = mine[6];
  cl_kernel wide = cl->clCreateKernel(program, "k", &e);
  OK(e);
  OK(cl->clSetKernelArg(kernel, 0, sizeof buffer, &buffer));

  NONE(clGetPlatformIDs);
  NONE(clGetExtensionFunctionAddress);
  NONE(clUnloadCompiler);
  ROW(clGetPlatformInfo, PLATFORM, CL_INVALID_PLATFORM, cl->clGetPlatformInfo(bad, CL_PLATFORM_NAME, 0, NULL, &size));
  ROW(clGetDeviceIDs, PLATFORM, CL_INVALID_PLATFORM, cl->clGetDeviceIDs(bad, CL_DEVICE_TYPE_ALL, 0, NULL, &n));
  NULLROW(clGetDeviceInfo, DEVICE, CL_INVALID_DEVICE, cl->clGetDeviceInfo(bad, CL_DEVICE_TYPE, 8, junk, NULL));
  NULLROW(clCreateSubDevices, DEVICE, CL_INVALID_DEVICE,
          cl->clCreateSubDevices(bad, (cl_device_partition_property[]){CL_DEVICE_PARTITION_EQUALLY, 1, 0}, 0, NULL, &n));
  NULLROW(clRetainDevice, DEVICE, CL_INVALID_DEVICE, cl->clRetainDevice(bad));
  NULLROW(clReleaseDevice, DEVICE, CL_INVALID_DEVICE, cl->clReleaseDevice(bad));
  NULLROW(clGetDeviceAndHostTimer, DEVICE, CL_INVALID_DEVICE, cl->clGetDeviceAndHostTimer(bad, (cl_ulong *)junk, (cl_ulong *)junk + 1));
  NULLROW(clGetHostTimer, DEVICE, CL_INVALID_DEVICE, cl->clGetHostTimer(bad, (cl_ulong *)junk));
  ROW(clUnloadPlatformCompiler, PLATFORM, CL_INVALID_PLATFORM, cl->clUnloadPlatformCompiler(bad));
  ROW(clGetExtensionFunctionAddressForPlatform, PLATFORM, 0, !!cl->clGetExtensionFunctionAddressForPlatform(bad, "clPublishBufferTENDRIL"));

  NULLROW(clCreateContext, DEVICE, CL_INVALID_DEVICE, MADE(cl->clCreateContext(NULL, 1, (cl_device_id *)&bad, NULL, NULL, &e)));
  ROW(clCreateContext, PLATFORM, CL_INVALID_PLATFORM,
      MADE(cl->clCreateContext((cl_context_properties[]){CL_CONTEXT_PLATFORM, (cl_context_properties)bad, 0}, 1, &device, NULL, NULL, &e)));
  ROW(clCreateContextFromType, PLATFORM, CL_INVALID_PLATFORM,
      MADE(cl->clCreateContextFromType((cl_context_properties[]){CL_CONTEXT_PLATFORM, (cl_context_properties)bad, 0}, CL_DEVICE_TYPE_ALL, NULL, NULL, &e)));
  NULLROW(clRetainContext, CONTEXT, CL_INVALID_CONTEXT, cl->clRetainContext(bad));
  NULLROW(clReleaseContext, CONTEXT, CL_INVALID_CONTEXT, cl->clReleaseContext(bad));
  NULLROW(clGetContextInfo, CONTEXT, CL_INVALID_CONTEXT, cl->clGetContextInfo(bad, CL_CONTEXT_NUM_DEVICES, 4, junk, NULL));
  NULLROW(clSetContextDestructorCallback, CONTEXT, CL_INVALID_CONTEXT,
          cl->clSetContextDestructorCallback(bad, (void(CL_CALLBACK *)(cl_context, void *))(void *)junk, NULL));
  NULLROW(clGetSupportedImageFormats, CONTEXT, CL_INVALID_CONTEXT,
          cl->clGetSupportedImageFormats(bad, CL_MEM_READ_WRITE, CL_MEM_OBJECT_IMAGE2D, 0, NULL, &n));

  NULLROW(clCreateCommandQueue, CONTEXT, CL_INVALID_CONTEXT, MADE(cl->clCreateCommandQueue(bad, device, 0, &e)));
  NULLROW(clCreateCommandQueue, DEVICE, CL_INVALID_DEVICE, MADE(cl->clCreateCommandQueue(context, bad, 0, &e)));
  NULLROW(clCreateCommandQueueWithProperties, CONTEXT, CL_INVALID_CONTEXT, MADE(cl->clCreateCommandQueueWithProperties(bad, device, NULL, &e)));
  NULLROW(clCreateCommandQueueWithProperties, DEVICE, CL_INVALID_DEVICE, MADE(cl->clCreateCommandQueueWithProperties(context, bad, NULL, &e)));
  NULLROW(clRetainCommandQueue, QUEUE, CL_INVALID_COMMAND_QUEUE, cl->clRetainCommandQueue(bad));
  NULLROW(clReleaseCommandQueue, QUEUE, CL_INVALID_COMMAND_QUEUE, cl->clReleaseCommandQueue(bad));
  NULLROW(clGetCommandQueueInfo, QUEUE, CL_INVALID_COMMAND_QUEUE, cl->clGetCommandQueueInfo(bad, CL_QUEUE_PROPERTIES, 8, junk, NULL));
  NULLROW(clFlush, QUEUE, CL_INVALID_COMMAND_QUEUE, cl->clFlush(bad));
  NULLROW(clFinish, QUEUE, CL_INVALID_COMMAND_QUEUE, cl->clFinish(bad));

  NULLROW(clCreateBuffer, CONTEXT, CL_INVALID_CONTEXT, MADE(cl->clCreateBuffer(bad, 0, 64, NULL, &e)));
  NULLROW(clCreateBufferWithProperties, CONTEXT, CL_INVALID_CONTEXT, MADE(cl->clCreateBufferWithProperties(bad, NULL, 0, 64, NULL, &e)));
  NULLROW(clCreateSubBuffer, BUFFER, CL_INVALID_MEM_OBJECT,
          MADE(cl->clCreateSubBuffer(bad, 0, CL_BUFFER_CREATE_TYPE_REGION, &(cl_buffer_region){0, 64}, &e)));
  NULLROW(clCreateImage, CONTEXT, CL_INVALID_CONTEXT, MADE(cl->clCreateImage(bad, 0, &pixel, &square, NULL, &e)));
  NULLROW(clCreateImageWithProperties, CONTEXT, CL_INVALID_CONTEXT, MADE(cl->clCreateImageWithProperties(bad, NULL, 0, &pixel, &square, NULL, &e)));
  NULLROW(clCreateImage2D, CONTEXT, CL_INVALID_CONTEXT, MADE(cl->clCreateImage2D(bad, 0, &pixel, 4, 4, 0, NULL, &e)));
  NULLROW(clCreateImage3D, CONTEXT, CL_INVALID_CONTEXT, MADE(cl->clCreateImage3D(bad, 0, &pixel, 4, 4, 4, 0, 0, NULL, &e)));
  NULLROW(clRetainMemObject, MEM, CL_INVALID_MEM_OBJECT, cl->clRetainMemObject(bad));
  NULLROW(clReleaseMemObject, MEM, CL_INVALID_MEM_OBJECT, cl->clReleaseMemObject(bad));
  NULLROW(clGetMemObjectInfo, MEM, CL_INVALID_MEM_OBJECT, cl->clGetMemObjectInfo(bad, CL_MEM_SIZE, 8, junk, NULL));
  NULLROW(clGetImageInfo, IMAGE, CL_INVALID_MEM_OBJECT, cl->clGetImageInfo(bad, CL_IMAGE_WIDTH, 8, junk, NULL));
  NULLROW(clSetMemObjectDestructorCallback, MEM, CL_INVALID_MEM_OBJECT,
          cl->clSetMemObjectDestructorCallback(bad, (void(CL_CALLBACK *)(cl_mem, void *))(void *)junk, NULL));
  NULLROW(clCreateSampler, CONTEXT, CL_INVALID_CONTEXT, MADE(cl->clCreateSampler(bad, 0, CL_ADDRESS_NONE, CL_FILTER_NEAREST, &e)));
  NULLROW(clCreateSamplerWithProperties, CONTEXT, CL_INVALID_CONTEXT, MADE(cl->clCreateSamplerWithProperties(bad, NULL, &e)));
  NULLROW(clRetainSampler, SAMPLER, CL_INVALID_SAMPLER, cl->clRetainSampler(bad));
  NULLROW(clReleaseSampler, SAMPLER, CL_INVALID_SAMPLER, cl->clReleaseSampler(bad));
  NULLROW(clGetSamplerInfo, SAMPLER, CL_INVALID_SAMPLER, cl->clGetSamplerInfo(bad, CL_SAMPLER_FILTER_MODE, 4, junk, NULL));

  NULLROW(clCreateProgramWithSource, CONTEXT, CL_INVALID_CONTEXT, MADE(cl->clCreateProgramWithSource(bad, 1, &handle_source, NULL, &e)));
  NULLROW(clCreateProgramWithBinary, CONTEXT, CL_INVALID_CONTEXT,
          MADE(cl->clCreateProgramWithBinary(bad, 1, &device, (size_t[]){8}, (const unsigned char *[]){(unsigned char *)junk}, NULL, &e)));
  NULLROW(clCreateProgramWithBinary, DEVICE, CL_INVALID_DEVICE,
          MADE(cl->clCreateProgramWithBinary(context, 1, (cl_device_id *)&bad, (size_t[]){8}, (const unsigned char *[]){(unsigned char *)junk}, NULL, &e)));
  NULLROW(clCreateProgramWithBuiltInKernels, CONTEXT, CL_INVALID_CONTEXT, MADE(cl->clCreateProgramWithBuiltInKernels(bad, 1, &device, "x", &e)));
  NULLROW(clCreateProgramWithBuiltInKernels, DEVICE, CL_INVALID_DEVICE,
          MADE(cl->clCreateProgramWithBuiltInKernels(context, 1, (cl_device_id *)&bad, "x", &e)));
  NULLROW(clCreateProgramWithIL, CONTEXT, CL_INVALID_CONTEXT, MADE(cl->clCreateProgramWithIL(bad, junk, 64, &e)));
  NULLROW(clRetainProgram, PROGRAM, CL_INVALID_PROGRAM, cl->clRetainProgram(bad));
  NULLROW(clReleaseProgram, PROGRAM, CL_INVALID_PROGRAM, cl->clReleaseProgram(bad));
  NULLROW(clBuildProgram, PROGRAM, CL_INVALID_PROGRAM, cl->clBuildProgram(bad, 0, NULL, "", NULL, NULL));
  NULLROW(clBuildProgram, DEVICE, CL_INVALID_DEVICE, cl->clBuildProgram(program, 1, (cl_device_id *)&bad, "", NULL, NULL));
  NULLROW(clCompileProgram, PROGRAM, CL_INVALID_PROGRAM, cl->clCompileProgram(bad, 0, NULL, "", 0, NULL, NULL, NULL, NULL));
  NULLROW(clCompileProgram, DEVICE, CL_INVALID_DEVICE, cl->clCompileProgram(program, 1, (cl_device_id *)&bad, "", 0, NULL, NULL, NULL, NULL));
  NULLROW(clCompileProgram, PROGRAM, CL_INVALID_PROGRAM,
          cl->clCompileProgram(program, 0, NULL, "", 1, (cl_program *)&bad, (const char *[]){"h"}, NULL, NULL));
  NULLROW(clLinkProgram, CONTEXT, CL_INVALID_CONTEXT, MADE(cl->clLinkProgram(bad, 0, NULL, "", 1, &program, NULL, NULL, &e)));
  NULLROW(clLinkProgram, DEVICE, CL_INVALID_DEVICE, MADE(cl->clLinkProgram(context, 1, (cl_device_id *)&bad, "", 1, &program, NULL, NULL, &e)));
  NULLROW(clLinkProgram, PROGRAM, CL_INVALID_PROGRAM, MADE(cl->clLinkProgram(context, 0, NULL, "", 1, (cl_program *)&bad, NULL, NULL, &e)));
  NULLROW(clSetProgramSpecializationConstant, PROGRAM, CL_INVALID_PROGRAM, cl->clSetProgramSpecializationConstant(bad, 0, 4, junk));
  NULLROW(clGetProgramInfo, PROGRAM, CL_INVALID_PROGRAM, cl->clGetProgramInfo(bad, CL_PROGRAM_NUM_DEVICES, 4, junk, NULL));
  NULLROW(clGetProgramBuildInfo, PROGRAM, CL_INVALID_PROGRAM, cl->clGetProgramBuildInfo(bad, device, CL_PROGRAM_BUILD_STATUS, 4, junk, NULL));
  NULLROW(clGetProgramBuildInfo, DEVICE, CL_INVALID_DEVICE, cl->clGetProgramBuildInfo(program, bad, CL_PROGRAM_BUILD_STATUS, 4, junk, NULL));

  NULLROW(clCreateKernel, PROGRAM, CL_INVALID_PROGRAM, MADE(cl->clCreateKernel(bad, "one", &e)));
  NULLROW(clCreateKernelsInProgram, PROGRAM, CL_INVALID_PROGRAM, cl->clCreateKernelsInProgram(bad, 0, NULL, &n));
  NULLROW(clCloneKernel, KERNEL, CL_INVALID_KERNEL, MADE(cl->clCloneKernel(bad, &e)));
  NULLROW(clRetainKernel, KERNEL, CL_INVALID_KERNEL, cl->clRetainKernel(bad));
  NULLROW(clReleaseKernel, KERNEL, CL_INVALID_KERNEL, cl->clReleaseKernel(bad));
  NULLROW(clSetKernelArg, KERNEL, CL_INVALID_KERNEL, cl->clSetKernelArg(bad, 0, 8, &buffer));
  ROW(clSetKernelArg, MEM, CL_INVALID_MEM_OBJECT, cl->clSetKernelArg(kernel, 0, 8, &bad)); // an image passes for a pointer, as natively
  FOREIGN(clSetKernelArg, BUFFER, CL_INVALID_MEM_OBJECT, cl->clSetKernelArg(kernel, 0, 8, &bad));
  ROW(clSetKernelArg, SAMPLER, CL_INVALID_SAMPLER, cl->clSetKernelArg(wide, 1, 8, &bad));
  ROW(clSetKernelArg, MEM, CL_INVALID_MEM_OBJECT, cl->clSetKernelArg(wide, 2, 8, &bad));
  cl_kernel untyped = build(context, handle_source, "one"); // most drivers tell no types then
  ONCE(clSetKernelArg, MEM | SAMPLER, CL_INVALID_MEM_OBJECT, cl->clSetKernelArg(untyped, 0, 8, &bad));
  OK(cl->clReleaseKernel(untyped));
  NULLROW(clSetKernelArgSVMPointer, KERNEL, CL_INVALID_KERNEL, cl->clSetKernelArgSVMPointer(bad, 0, NULL));
  NULLROW(clSetKernelExecInfo, KERNEL, CL_INVALID_KERNEL, cl->clSetKernelExecInfo(bad, CL_KERNEL_EXEC_INFO_SVM_PTRS, 8, &junk));
  NULLROW(clGetKernelInfo, KERNEL, CL_INVALID_KERNEL, cl->clGetKernelInfo(bad, CL_KERNEL_NUM_ARGS, 4, junk, NULL));
  NULLROW(clGetKernelArgInfo, KERNEL, CL_INVALID_KERNEL, cl->clGetKernelArgInfo(bad, 0, CL_KERNEL_ARG_NAME, 64, junk, NULL));
  NULLROW(clGetKernelWorkGroupInfo, KERNEL, CL_INVALID_KERNEL, cl->clGetKernelWorkGroupInfo(bad, device, CL_KERNEL_WORK_GROUP_SIZE, 8, junk, NULL));
  ROW(clGetKernelWorkGroupInfo, DEVICE, CL_INVALID_DEVICE, cl->clGetKernelWorkGroupInfo(kernel, bad, CL_KERNEL_WORK_GROUP_SIZE, 8, junk, NULL));
  NULLROW(clGetKernelSubGroupInfo, KERNEL, CL_INVALID_KERNEL,
          cl->clGetKernelSubGroupInfo(bad, device, CL_KERNEL_MAX_NUM_SUB_GROUPS, 0, NULL, 8, junk, NULL));
  ROW(clGetKernelSubGroupInfo, DEVICE, CL_INVALID_DEVICE,
      cl->clGetKernelSubGroupInfo(kernel, bad, CL_KERNEL_MAX_NUM_SUB_GROUPS, 0, NULL, 8, junk, NULL));
  NULLROW(clGetKernelSubGroupInfoKHR, KERNEL, CL_INVALID_KERNEL,
          cl->clGetKernelSubGroupInfoKHR(bad, device, CL_KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE_KHR, 8, one, 8, junk, NULL));

  NULLROW(clCreateUserEvent, CONTEXT, CL_INVALID_CONTEXT, MADE(cl->clCreateUserEvent(bad, &e)));
  NULLROW(clSetUserEventStatus, EVENT, CL_INVALID_EVENT, cl->clSetUserEventStatus(bad, 0));
  NULLROW(clSetEventCallback, EVENT, CL_INVALID_EVENT,
          cl->clSetEventCallback(bad, CL_COMPLETE, (void(CL_CALLBACK *)(cl_event, cl_int, void *))(void *)junk, NULL));
  NULLROW(clRetainEvent, EVENT, CL_INVALID_EVENT, cl->clRetainEvent(bad));
  NULLROW(clReleaseEvent, EVENT, CL_INVALID_EVENT, cl->clReleaseEvent(bad));
  NULLROW(clGetEventInfo, EVENT, CL_INVALID_EVENT, cl->clGetEventInfo(bad, CL_EVENT_COMMAND_TYPE, 4, junk, NULL));
  NULLROW(clGetEventProfilingInfo, EVENT, CL_INVALID_EVENT, cl->clGetEventProfilingInfo(bad, CL_PROFILING_COMMAND_END, 8, junk, NULL));
  NULLROW(clWaitForEvents, EVENT, CL_INVALID_EVENT, cl->clWaitForEvents(1, (cl_event *)&bad));
  FOREIGN(clWaitForEvents, EVENT, CL_INVALID_CONTEXT, cl->clWaitForEvents(2, (cl_event[]){event, bad}));
  NULLROW(clEnqueueWaitForEvents, QUEUE, CL_INVALID_COMMAND_QUEUE, cl->clEnqueueWaitForEvents(bad, 1, &event));
  NULLROW(clEnqueueWaitForEvents, EVENT, CL_INVALID_EVENT, cl->clEnqueueWaitForEvents(q, 1, (cl_event *)&bad));
  FOREIGN(clEnqueueWaitForEvents, EVENT, CL_INVALID_CONTEXT, cl->clEnqueueWaitForEvents(q, 1, (cl_event *)&bad));
  NULLROW(clEnqueueMarker, QUEUE, CL_INVALID_COMMAND_QUEUE, cl->clEnqueueMarker(bad, (cl_event *)junk));
  NULLROW(clEnqueueBarrier, QUEUE, CL_INVALID_COMMAND_QUEUE, cl->clEnqueueBarrier(bad));
  NULLROW(clEnqueueMarkerWithWaitList, QUEUE, CL_INVALID_COMMAND_QUEUE, cl->clEnqueueMarkerWithWaitList(bad, N));
  WAITS(clEnqueueMarkerWithWaitList, cl->clEnqueueMarkerWithWaitList(q, W));
  NULLROW(clEnqueueBarrierWithWaitList, QUEUE, CL_INVALID_COMMAND_QUEUE, cl->clEnqueueBarrierWithWaitList(bad, N));
  WAITS(clEnqueueBarrierWithWaitList, cl->clEnqueueBarrierWithWaitList(q, W));

// One command that names a queue, a memory object of a kind, and events. use is the call's beginning, as far as the wait list.
#define COMMAND(function, kind_, of_queue, of_memory, plain)                                                           \
  NULLROW(function, QUEUE, CL_INVALID_COMMAND_QUEUE, of_queue);                                                        \
  NULLROW(function, kind_, CL_INVALID_MEM_OBJECT, of_memory);                                                          \
  FOREIGN(function, kind_, CL_INVALID_CONTEXT, of_memory);                                                             \
  WAITS(function, plain)

  // Shared virtual memory has no handles: its calls take a context or a queue, and events.
  unsigned *shared = cl->clSVMAlloc(context, 0, 4096, 0);
  if (!shared) FAIL("no shared virtual memory");
  NULLROW(clSVMAlloc, CONTEXT, CL_INVALID_CONTEXT, cl->clSVMAlloc(bad, 0, 64, 0) ? 0 : CL_INVALID_CONTEXT);
  NULLROW(clSVMFree, CONTEXT, 0, (cl->clSVMFree(bad, shared), 0));
  NULLROW(clEnqueueSVMFree, QUEUE, CL_INVALID_COMMAND_QUEUE, cl->clEnqueueSVMFree(bad, 1, (void **)&shared, NULL, NULL, N));
  WAITS(clEnqueueSVMFree, cl->clEnqueueSVMFree(q, 1, (void **)&shared, NULL, NULL, W));
  NULLROW(clEnqueueSVMMemcpy, QUEUE, CL_INVALID_COMMAND_QUEUE, cl->clEnqueueSVMMemcpy(bad, 1, shared, junk, 8, N));
  WAITS(clEnqueueSVMMemcpy, cl->clEnqueueSVMMemcpy(q, 1, shared, junk, 8, W));
  NULLROW(clEnqueueSVMMemFill, QUEUE, CL_INVALID_COMMAND_QUEUE, cl->clEnqueueSVMMemFill(bad, shared, junk, 4, 8, N));
  WAITS(clEnqueueSVMMemFill, cl->clEnqueueSVMMemFill(q, shared, junk, 4, 8, W));
  NULLROW(clEnqueueSVMMap, QUEUE, CL_INVALID_COMMAND_QUEUE, cl->clEnqueueSVMMap(bad, 1, CL_MAP_READ, shared, 8, N));
  WAITS(clEnqueueSVMMap, cl->clEnqueueSVMMap(q, 1, CL_MAP_READ, shared, 8, W));
  NULLROW(clEnqueueSVMUnmap, QUEUE, CL_INVALID_COMMAND_QUEUE, cl->clEnqueueSVMUnmap(bad, shared, N));
  WAITS(clEnqueueSVMUnmap, cl->clEnqueueSVMUnmap(q, shared, W));
  NULLROW(clEnqueueSVMMigrateMem, QUEUE, CL_INVALID_COMMAND_QUEUE, cl->clEnqueueSVMMigrateMem(bad, 1, (const void **)&shared, NULL, 0, N));
  WAITS(clEnqueueSVMMigrateMem, cl->clEnqueueSVMMigrateMem(q, 1, (const void **)&shared, NULL, 0, W));
  shared[0] = 5; // it is there still
  cl->clSVMFree(context, shared);

  COMMAND(clEnqueueReadBuffer, BUFFER, cl->clEnqueueReadBuffer(bad, buffer, 1, 0, 4, junk, N), cl->clEnqueueReadBuffer(q, bad, 1, 0, 4, junk, N),
          cl->clEnqueueReadBuffer(q, buffer, 1, 0, 4, junk, W));
  COMMAND(clEnqueueWriteBuffer, BUFFER, cl->clEnqueueWriteBuffer(bad, buffer, 1, 0, 4, junk, N), cl->clEnqueueWriteBuffer(q, bad, 1, 0, 4, junk, N),
          cl->clEnqueueWriteBuffer(q, buffer, 1, 0, 4, junk, W));
  COMMAND(clEnqueueReadBufferRect, BUFFER, cl->clEnqueueReadBufferRect(bad, buffer, 1, zero, zero, part, 0, 0, 0, 0, junk, N),
          cl->clEnqueueReadBufferRect(q, bad, 1, zero, zero, part, 0, 0, 0, 0, junk, N),
          cl->clEnqueueReadBufferRect(q, buffer, 1, zero, zero, part, 0, 0, 0, 0, junk, W));
  COMMAND(clEnqueueWriteBufferRect, BUFFER, cl->clEnqueueWriteBufferRect(bad, buffer, 1, zero, zero, part, 0, 0, 0, 0, junk, N),
          cl->clEnqueueWriteBufferRect(q, bad, 1, zero, zero, part, 0, 0, 0, 0, junk, N),
          cl->clEnqueueWriteBufferRect(q, buffer, 1, zero, zero, part, 0, 0, 0, 0, junk, W));
  COMMAND(clEnqueueFillBuffer, BUFFER, cl->clEnqueueFillBuffer(bad, buffer, junk, 4, 0, 4, N), cl->clEnqueueFillBuffer(q, bad, junk, 4, 0, 4, N),
          cl->clEnqueueFillBuffer(q, buffer, junk, 4, 0, 4, W));
  COMMAND(clEnqueueCopyBuffer, BUFFER, cl->clEnqueueCopyBuffer(bad, buffer, buffer, 0, 64, 4, N), cl->clEnqueueCopyBuffer(q, bad, buffer, 0, 64, 4, N),
          cl->clEnqueueCopyBuffer(q, buffer, buffer, 0, 64, 4, W));
  NULLROW(clEnqueueCopyBuffer, BUFFER, CL_INVALID_MEM_OBJECT, cl->clEnqueueCopyBuffer(q, buffer, bad, 0, 64, 4, N));
  FOREIGN(clEnqueueCopyBuffer, BUFFER, CL_INVALID_CONTEXT, cl->clEnqueueCopyBuffer(q, buffer, bad, 0, 64, 4, N));
  COMMAND(clEnqueueCopyBufferRect, BUFFER, cl->clEnqueueCopyBufferRect(bad, buffer, buffer, zero, part, part, 0, 0, 0, 0, N),
          cl->clEnqueueCopyBufferRect(q, bad, buffer, zero, part, part, 0, 0, 0, 0, N),
          cl->clEnqueueCopyBufferRect(q, buffer, buffer, zero, (size_t[]){64, 0, 0}, part, 0, 0, 0, 0, W));
  NULLROW(clEnqueueCopyBufferRect, BUFFER, CL_INVALID_MEM_OBJECT, cl->clEnqueueCopyBufferRect(q, buffer, bad, zero, part, part, 0, 0, 0, 0, N));
  COMMAND(clEnqueueMapBuffer, BUFFER, MADE(cl->clEnqueueMapBuffer(bad, buffer, 1, CL_MAP_READ, 0, 4, N, &e)),
          MADE(cl->clEnqueueMapBuffer(q, bad, 1, CL_MAP_READ, 0, 4, N, &e)), MADE(cl->clEnqueueMapBuffer(q, buffer, 1, CL_MAP_READ, 0, 4, W, &e)));
  COMMAND(clEnqueueReadImage, IMAGE, cl->clEnqueueReadImage(bad, image, 1, zero, one, 0, 0, junk, N),
          cl->clEnqueueReadImage(q, bad, 1, zero, one, 0, 0, junk, N), cl->clEnqueueReadImage(q, image, 1, zero, one, 0, 0, junk, W));
  COMMAND(clEnqueueWriteImage, IMAGE, cl->clEnqueueWriteImage(bad, image, 1, zero, one, 0, 0, junk, N),
          cl->clEnqueueWriteImage(q, bad, 1, zero, one, 0, 0, junk, N), cl->clEnqueueWriteImage(q, image, 1, zero, one, 0, 0, junk, W));
  COMMAND(clEnqueueFillImage, IMAGE, cl->clEnqueueFillImage(bad, image, color, zero, one, N), cl->clEnqueueFillImage(q, bad, color, zero, one, N),
          cl->clEnqueueFillImage(q, image, color, zero, one, W));
  COMMAND(clEnqueueCopyImage, IMAGE, cl->clEnqueueCopyImage(bad, image, image, zero, one, one, N), cl->clEnqueueCopyImage(q, bad, image, zero, one, one, N),
          cl->clEnqueueCopyImage(q, image, image, zero, (size_t[]){2, 2, 0}, one, W));
  NULLROW(clEnqueueCopyImage, IMAGE, CL_INVALID_MEM_OBJECT, cl->clEnqueueCopyImage(q, image, bad, zero, one, one, N));
  COMMAND(clEnqueueCopyImageToBuffer, IMAGE, cl->clEnqueueCopyImageToBuffer(bad, image, buffer, zero, one, 0, N),
          cl->clEnqueueCopyImageToBuffer(q, bad, buffer, zero, one, 0, N), cl->clEnqueueCopyImageToBuffer(q, image, buffer, zero, one, 0, W));
  NULLROW(clEnqueueCopyImageToBuffer, BUFFER, CL_INVALID_MEM_OBJECT, cl->clEnqueueCopyImageToBuffer(q, image, bad, zero, one, 0, N));
  COMMAND(clEnqueueCopyBufferToImage, BUFFER, cl->clEnqueueCopyBufferToImage(bad, buffer, image, 0, zero, one, N),
          cl->clEnqueueCopyBufferToImage(q, bad, image, 0, zero, one, N), cl->clEnqueueCopyBufferToImage(q, buffer, image, 0, zero, one, W));
  NULLROW(clEnqueueCopyBufferToImage, IMAGE, CL_INVALID_MEM_OBJECT, cl->clEnqueueCopyBufferToImage(q, buffer, bad, 0, zero, one, N));
  COMMAND(clEnqueueMapImage, IMAGE, MADE(cl->clEnqueueMapImage(bad, image, 1, CL_MAP_READ, zero, one, &size, NULL, N, &e)),
          MADE(cl->clEnqueueMapImage(q, bad, 1, CL_MAP_READ, zero, one, &size, NULL, N, &e)),
          MADE(cl->clEnqueueMapImage(q, image, 1, CL_MAP_READ, zero, one, &size, NULL, W, &e)));
  void *mapped = cl->clEnqueueMapBuffer(q, buffer, 1, CL_MAP_READ, 0, 64, 0, NULL, NULL, &e);
  OK(e);
  COMMAND(clEnqueueUnmapMemObject, MEM, cl->clEnqueueUnmapMemObject(bad, buffer, mapped, N), cl->clEnqueueUnmapMemObject(q, bad, mapped, N),
          cl->clEnqueueUnmapMemObject(q, buffer, mapped, W));
  OK(cl->clEnqueueUnmapMemObject(q, buffer, mapped, 0, NULL, NULL));
  COMMAND(clEnqueueMigrateMemObjects, MEM, cl->clEnqueueMigrateMemObjects(bad, 1, &buffer, 0, N),
          cl->clEnqueueMigrateMemObjects(q, 1, (cl_mem *)&bad, 0, N), cl->clEnqueueMigrateMemObjects(q, 1, &buffer, 0, W));
  NULLROW(clEnqueueNDRangeKernel, QUEUE, CL_INVALID_COMMAND_QUEUE, cl->clEnqueueNDRangeKernel(bad, kernel, 1, NULL, one, NULL, N));
  NULLROW(clEnqueueNDRangeKernel, KERNEL, CL_INVALID_KERNEL, cl->clEnqueueNDRangeKernel(q, bad, 1, NULL, one, NULL, N));
  FOREIGN(clEnqueueNDRangeKernel, KERNEL, CL_INVALID_CONTEXT, cl->clEnqueueNDRangeKernel(q, bad, 1, NULL, one, NULL, N));
  WAITS(clEnqueueNDRangeKernel, cl->clEnqueueNDRangeKernel(q, kernel, 1, NULL, one, NULL, W));
  NULLROW(clEnqueueTask, QUEUE, CL_INVALID_COMMAND_QUEUE, cl->clEnqueueTask(bad, kernel, N));
  NULLROW(clEnqueueTask, KERNEL, CL_INVALID_KERNEL, cl->clEnqueueTask(q, bad, N));
  WAITS(clEnqueueTask, cl->clEnqueueTask(q, kernel, W));

  OK(cl->clFinish(q));
  OK(cl->clReleaseKernel(wide));
  release_objects(mine);
  release_objects(theirs);
  (void)sampler;
  if (wrong) FAIL("%d calls answer something else", wrong);
  compute(context, queue);
}
