// What the C half and the Go half of the driver library share.
#ifndef TENDRIL_ICD_DRIVER_H
#define TENDRIL_ICD_DRIVER_H

#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_0_APIS
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#define CL_USE_DEPRECATED_OPENCL_2_0_APIS
#define CL_USE_DEPRECATED_OPENCL_2_1_APIS
#define CL_USE_DEPRECATED_OPENCL_2_2_APIS
#include <CL/cl.h>
#include <CL/cl_icd.h>
#include <stddef.h>
#include <stdint.h>

// The dispatch table, complete: no entry is NULL.
extern const struct _cl_icd_dispatch tdl_dispatch;

// The address of one of our functions by name, NULL for any other.
void *tdl_function(const char *name);

// True in a forked child, where Go's runtime does not run. Tells standard error once.
int tdl_refused(void);

// The same, and tells nobody.
int tdl_forked(void);

// Set once the driver was made.
extern int tdl_used;

// Callbacks of the program, called from threads of ours.
void tdl_call_context(uintptr_t fn, const char *text, uintptr_t data);
void tdl_call_event(uintptr_t fn, uintptr_t event, cl_int status, uintptr_t data);
void tdl_call_object(uintptr_t fn, uintptr_t object, uintptr_t data); // build, destructors
void tdl_call_svm_free(uintptr_t fn, uintptr_t queue, cl_uint n, uintptr_t pointers, uintptr_t data);

// What tdlInfo asks about.
enum {
  TDL_PLATFORM,
  TDL_DEVICE,
  TDL_CONTEXT,
  TDL_QUEUE,
  TDL_MEM,
  TDL_PROGRAM,
  TDL_PROGRAM_BUILD,
  TDL_KERNEL,
  TDL_KERNEL_WORK_GROUP,
  TDL_EVENT,
  TDL_EVENT_PROFILING,
  TDL_IMAGE,
  TDL_SAMPLER,
  TDL_COMMAND_BUFFER,
};

// Where cl_image_desc keeps its buffer, a member of an anonymous union that cgo does not see.
#define TDL_DESC_PARENT offsetof(cl_image_desc, mem_object)

// What tdlRef counts: the object's number above, or-ed with TDL_RELEASE.
#define TDL_RELEASE 0x100

// The part that every enqueue call has.
typedef struct {
  cl_uint n;
  uintptr_t list;  // const cl_event *
  uintptr_t event; // cl_event *: where the event goes, 0: none wanted
} tdl_waits;

// The part that every call has which records a command.
typedef struct {
  cl_uint n;
  uintptr_t queue; // cl_command_queue: none may be given
  uintptr_t list;  // const cl_sync_point_khr *
  uintptr_t point; // cl_sync_point_khr *: where the command's goes, 0: none wanted
  uintptr_t mutable_handle;
} tdl_sync;

// The arguments of the rectangular commands; each array is const size_t[3].
typedef struct {
  uintptr_t buffer_origin, host_origin, region;
  size_t buffer_row, buffer_slice, host_row, host_slice;
} tdl_rect;

// A part of an image; each array is const size_t[3].
typedef struct {
  uintptr_t origin, region;
} tdl_region;

// What clCompileProgram and clLinkProgram have in common.
typedef struct {
  cl_uint num_devices, num_programs;
  uintptr_t devices;  // const cl_device_id *
  uintptr_t options;  // const char *
  uintptr_t programs; // const cl_program *: embedded headers, inputs
  uintptr_t names;    // const char **: of headers
} tdl_parts;

#endif
