// A program that loads the driver library as an ICD loader does and tries one thing: program LIBRARY CASE.
// Exit 0: as it should be; otherwise a line on standard output says what was not.
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <CL/cl_icd.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define FAIL(...) (printf(__VA_ARGS__), printf("\n"), fflush(stdout), exit(1))
#define IS(call, want)                                                                                                 \
  do {                                                                                                                 \
    cl_int got_ = (call);                                                                                              \
    if (got_ != (want)) FAIL("line %d: %s = %d, want %d", __LINE__, #call, got_, want);                                \
  } while (0)
#define OK(call) IS(call, CL_SUCCESS)

struct object {
  cl_icd_dispatch *dispatch;
};
static cl_icd_dispatch *cl;
static cl_platform_id platform;
static cl_device_id device;
static cl_context context;
static cl_command_queue queue;

static cl_int platforms(const char *library) {
  void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!lib) FAIL("%s", dlerror());
  void *(*address)(const char *) = (void *(*)(const char *))dlsym(lib, "clGetExtensionFunctionAddress");
  typedef cl_int (*platform_ids)(cl_uint, cl_platform_id *, cl_uint *);
  platform_ids ids = (platform_ids)address("clIcdGetPlatformIDsKHR");
  cl_uint n = 99;
  cl_int status = ids(1, &platform, &n);
  if (status == CL_SUCCESS) cl = ((struct object *)platform)->dispatch;
  return status;
}

static cl_context make_context(void) {
  cl_int e;
  cl_context c = cl->clCreateContext(NULL, 1, &device, NULL, NULL, &e);
  OK(e);
  return c;
}

static void open_device(const char *library) {
  OK(platforms(library));
  OK(cl->clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
  cl_int e;
  context = make_context();
  queue = cl->clCreateCommandQueue(context, device, 0, &e);
  OK(e);
}

static cl_kernel build(cl_context c, const char *source, const char *name) {
  cl_int e;
  cl_program p = cl->clCreateProgramWithSource(c, 1, &source, NULL, &e);
  OK(e);
  OK(cl->clBuildProgram(p, 0, NULL, "", NULL, NULL));
  cl_kernel k = cl->clCreateKernel(p, name, &e);
  OK(e);
  OK(cl->clReleaseProgram(p));
  return k;
}

static const char *twice = "kernel void twice(global int *x) { x[get_global_id(0)] *= 2; }";

static void compute(cl_context c, cl_command_queue q) {
  cl_int e, data[256];
  for (int i = 0; i < 256; i++) data[i] = i;
  cl_kernel k = build(c, twice, "twice");
  cl_mem m = cl->clCreateBuffer(c, CL_MEM_COPY_HOST_PTR, sizeof data, data, &e);
  OK(e);
  OK(cl->clSetKernelArg(k, 0, sizeof m, &m));
  size_t n = 256;
  OK(cl->clEnqueueNDRangeKernel(q, k, 1, NULL, &n, NULL, 0, NULL, NULL));
  OK(cl->clEnqueueReadBuffer(q, m, CL_TRUE, 0, sizeof data, data, 0, NULL, NULL));
  for (int i = 0; i < 256; i++)
    if (data[i] != 2 * i) FAIL("element %d is %d", i, data[i]);
  OK(cl->clReleaseMemObject(m));
  OK(cl->clReleaseKernel(k));
}

// No entry of the table is NULL.
static void table(void) {
  void **entry = (void **)cl;
  for (size_t i = 0; i < sizeof *cl / sizeof *entry; i++)
    if (!entry[i]) FAIL("entry %zu is NULL", i);
}

static void fork_child(void) {
  compute(context, queue);
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    cl_uint n;
    IS(cl->clFinish(queue), CL_OUT_OF_RESOURCES);
    IS(cl->clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, NULL, &n), CL_OUT_OF_RESOURCES);
    cl_int e = 0;
    if (cl->clCreateBuffer(context, 0, 64, NULL, &e)) FAIL("a buffer in the child");
    IS(e, CL_OUT_OF_RESOURCES);
    _exit(0);
  }
  int status;
  waitpid(pid, &status, 0);
  if (status) FAIL("the child ended with %x", status);
  compute(context, queue);
}

// await waits for what another thread says: five minutes, which end a hang and nothing else.
static void await(atomic_int *said, const char *what) {
  for (int i = 0; i < 300000 && !atomic_load(said); i++) usleep(1000);
  if (!atomic_load(said)) FAIL("%s did not come", what);
}

static atomic_int called;
static cl_event inner;

static void CL_CALLBACK calls_back(cl_event event, cl_int status, void *data) {
  // A callback may enqueue; here it also waits, which a driver with one reading thread of its own would not survive.
  cl_int e;
  cl_mem m = cl->clCreateBuffer(context, 0, 64, NULL, &e);
  OK(e);
  int zero = 0;
  OK(cl->clEnqueueFillBuffer(queue, m, &zero, 4, 0, 64, 0, NULL, &inner));
  OK(cl->clFinish(queue));
  OK(cl->clReleaseMemObject(m));
  if (status != CL_COMPLETE || data != &called || event == NULL) FAIL("callback got %d", status);
  atomic_store(&called, 1);
}

static void callbacks(void) {
  cl_int e;
  cl_event user = cl->clCreateUserEvent(context, &e), marker;
  OK(e);
  OK(cl->clEnqueueMarkerWithWaitList(queue, 1, &user, &marker));
  OK(cl->clSetEventCallback(marker, CL_COMPLETE, calls_back, &called));
  OK(cl->clReleaseEvent(marker)); // the callback still comes
  OK(cl->clSetUserEventStatus(user, CL_COMPLETE));
  await(&called, "the callback");
  OK(cl->clReleaseEvent(inner));
}

static void misuse(void) {
  compute(context, queue);
  char junk[64] = {0};
  void *bad[] = {NULL, (void *)1, junk, (void *)-1, context, (char *)queue + 8, platform};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    IS(cl->clReleaseMemObject(bad[i]), CL_INVALID_MEM_OBJECT);
    IS(cl->clReleaseEvent(bad[i]), CL_INVALID_EVENT);
    IS(cl->clReleaseKernel(bad[i]), CL_INVALID_KERNEL);
    IS(cl->clFinish(bad[i]), CL_INVALID_COMMAND_QUEUE);
    IS(cl->clSetKernelArg(bad[i], 0, 8, junk), CL_INVALID_KERNEL);
    IS(cl->clWaitForEvents(1, (cl_event *)&bad[i]), CL_INVALID_EVENT);
    IS(cl->clEnqueueBarrierWithWaitList(queue, 1, (cl_event *)&bad[i], NULL), CL_INVALID_EVENT_WAIT_LIST);
  }
  cl_mem m = cl->clCreateBuffer(context, 0, 64, NULL, NULL);
  OK(cl->clRetainMemObject(m));
  OK(cl->clReleaseMemObject(m));
  OK(cl->clReleaseMemObject(m));
  IS(cl->clReleaseMemObject(m), CL_INVALID_MEM_OBJECT);
  for (int i = 0; i < 3; i++) cl->clReleaseContext(context); // more than there are: the queue's goes too
  IS(cl->clFinish(queue), CL_SUCCESS);
}

#include "handles.h"

static void unsupported(void) {
  cl_int e = 0;
  cl_image_format format = {CL_RGBA, CL_FLOAT};
  cl_image_desc shape = {CL_MEM_OBJECT_IMAGE2D, 4, 4};
  shape.num_mip_levels = 2;
  if (cl->clCreateImage(context, 0, &format, &shape, NULL, &e)) FAIL("an image with mip levels");
  IS(e, CL_INVALID_IMAGE_DESCRIPTOR);
  if (cl->clCreateImage(NULL, 0, &format, &shape, NULL, &e)) FAIL("an image of no context");
  IS(e, CL_INVALID_CONTEXT);
  if (cl->clCreateProgramWithIL(context, "x", 1, &e)) FAIL("a program from IL");
  IS(e, CL_INVALID_OPERATION);
  if (cl->clEnqueueMapImage(queue, NULL, 1, 0, NULL, NULL, NULL, NULL, 0, NULL, NULL, &e)) FAIL("a mapped image");
  IS(e, CL_INVALID_MEM_OBJECT);
  if (cl->clCreateFromGLBuffer(context, 0, 1, &e)) FAIL("a GL buffer");
  IS(e, CL_INVALID_CONTEXT);
}

// Our descriptors never land where the program has closed its standard ones, and its input is not read.
static void standard_descriptors(const char *library) {
  int out = fcntl(1, F_DUPFD, 100), pipes[2];
  if (pipe(pipes) || write(pipes[1], "input", 5) != 5) FAIL("pipe");
  close(0), close(1), close(2);
  open_device(library);
  compute(context, queue);
  for (int fd = 0; fd < 3; fd++) {
    char path[64], target[256] = {0};
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (readlink(path, target, sizeof target - 1) > 0) {
      dprintf(out, "descriptor %d is taken by %s\n", fd, target);
      _exit(1);
    }
  }
  char read_back[8];
  if (read(pipes[0], read_back, 8) != 5) dprintf(out, "somebody read the pipe\n"), _exit(1);
  _exit(0);
}

static void *thread(void *failures) {
  cl_int e;
  cl_context c = make_context();
  cl_command_queue q = cl->clCreateCommandQueue(c, device, 0, &e);
  OK(e);
  for (int i = 0; i < 5; i++) compute(c, q);
  OK(cl->clReleaseCommandQueue(q));
  OK(cl->clReleaseContext(c));
  return failures;
}

static void threads(void) {
  pthread_t t[4];
  for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, thread, NULL);
  for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
}

static atomic_int told;

static void CL_CALLBACK hears(const char *text, const void *info, size_t bytes, void *data) { atomic_store(&told, 1); }

static void crash(void) {
  cl_int e;
  context = cl->clCreateContext(NULL, 1, &device, hears, NULL, &e);
  OK(e);
  queue = cl->clCreateCommandQueue(context, device, 0, &e);
  OK(e);
  cl_kernel k = build(context, "kernel void wild(global int *x) { x[(ulong)1 << 40] = 1; }", "wild");
  cl_mem m = cl->clCreateBuffer(context, 0, 64, NULL, &e);
  OK(e);
  OK(cl->clSetKernelArg(k, 0, sizeof m, &m));
  size_t one = 1;
  e = cl->clEnqueueNDRangeKernel(queue, k, 1, NULL, &one, NULL, 0, NULL, NULL);
  if (e == CL_SUCCESS) e = cl->clFinish(queue);
  IS(e, CL_OUT_OF_RESOURCES);
  IS(cl->clFinish(queue), CL_OUT_OF_RESOURCES);
  // Once the context hears of it, standard error has said why the worker ended. At exit there is little time for that.
  await(&told, "word of the worker's end");
  open_device(getenv("LIBRARY"));
  compute(context, queue);
}

static void library_path(void) {
  typedef cl_int (*publish_buffer)(cl_mem, const char *, cl_uchar *);
  publish_buffer publish = (publish_buffer)
      cl->clGetExtensionFunctionAddressForPlatform(platform, "clPublishBufferTENDRIL");
  if (!publish) FAIL("no clPublishBufferTENDRIL");
  cl_int e, seven = 7;
  cl_mem m = cl->clCreateBuffer(context, 0, 4096, NULL, &e);
  OK(e);
  OK(cl->clEnqueueFillBuffer(queue, m, &seven, 4, 0, 4096, 0, NULL, NULL));
  cl_uchar id[16] = {0}, zero[16] = {0};
  OK(publish(m, "icd-test", id));
  if (!memcmp(id, zero, 16)) FAIL("no id");
  IS(publish(m, "icd-test", id), CL_INVALID_OPERATION);
  IS(publish(NULL, "icd-test", id), CL_INVALID_MEM_OBJECT);
  OK(cl->clEnqueueFillBuffer(queue, m, &e, 4, 0, 4096, 0, NULL, NULL));
  OK(cl->clFinish(queue));
  OK(publish(m, NULL, NULL));

  cl_mem (*open_object)(cl_context, const cl_uchar *, const char *, cl_int *) =
      (cl_mem(*)(cl_context, const cl_uchar *, const char *, cl_int *))cl->clGetExtensionFunctionAddressForPlatform(
          platform, "clCreateBufferFromObjectTENDRIL");
  if (!open_object) FAIL("no clCreateBufferFromObjectTENDRIL");
  cl_mem o = open_object(context, id, NULL, &e);
  OK(e);
  cl_int got[1024];
  OK(cl->clEnqueueReadBuffer(queue, o, CL_TRUE, 0, sizeof got, got, 0, NULL, NULL));
  if (got[0] != 7 || got[1023] != 7) FAIL("the object holds %d and %d", got[0], got[1023]);
  IS(cl->clEnqueueWriteBuffer(queue, o, CL_TRUE, 0, 4, &seven, 0, NULL, NULL), CL_INVALID_OPERATION);
  OK(cl->clReleaseMemObject(o));
  if (open_object(context, NULL, NULL, &e)) FAIL("an object of no name");
  IS(e, CL_INVALID_VALUE);
}

int main(int argc, char **argv) {
  if (argc != 3) FAIL("usage: program LIBRARY CASE");
  const char *name = argv[2];
  setenv("LIBRARY", argv[1], 1);
  if (!strcmp(name, "no-daemon")) {
    IS(platforms(argv[1]), CL_PLATFORM_NOT_FOUND_KHR);
    return 0;
  }
  if (!strcmp(name, "standard-descriptors")) standard_descriptors(argv[1]);
  open_device(argv[1]);
  if (!strcmp(name, "table")) table();
  else if (!strcmp(name, "compute")) compute(context, queue);
  else if (!strcmp(name, "fork")) fork_child();
  else if (!strcmp(name, "callbacks")) callbacks();
  else if (!strcmp(name, "misuse")) misuse();
  else if (!strcmp(name, "unsupported")) unsupported();
  else if (!strcmp(name, "handles")) wrong_handles();
  else if (!strcmp(name, "threads")) threads();
  else if (!strcmp(name, "crash")) crash();
  else if (!strcmp(name, "publish")) library_path();
  else FAIL("no case %s", name);
  return 0;
}
