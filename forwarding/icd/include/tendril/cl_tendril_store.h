/* cl_tendril_store 1.0.0: OpenCL buffers and objects of Tendril's store are the same memory.
 *
 * A platform that has it names it in CL_PLATFORM_EXTENSIONS. Its functions are found by name:
 *
 *   clCreateBufferFromObjectTENDRIL_fn open =
 *       (clCreateBufferFromObjectTENDRIL_fn)clGetExtensionFunctionAddressForPlatform(platform, "clCreateBufferFromObjectTENDRIL");
 *
 * The store is that of the node whose devices the context has. With `tendril run --server HOST` that is HOST's, so an
 * object that was once put there (tendril put --server HOST FILE) is used there by any number of programs, and its bytes
 * cross no link again.
 *
 * clCreateBufferFromObjectTENDRIL(context, id, name, errcode_ret)
 *
 *   makes a buffer of a sealed object, by its 16-byte id, or by its name: one of the two, the other is NULL. A
 *   published name that this node's store does not have, but the cluster, is looked up too.
 *
 *   - The buffer has the object's size and the flags CL_MEM_READ_ONLY | CL_MEM_HOST_READ_ONLY. Writing, filling, copying
 *     to it and mapping it for writing are CL_INVALID_OPERATION; clSetKernelArg for an argument that is a pointer to
 *     anything but const or constant is CL_INVALID_ARG_VALUE. (Where the driver tells nothing of arguments, as for
 *     programs made of binaries, a kernel that writes ends its own session, or writes to a copy.)
 *   - A device that computes on shared memory (CPU devices, here or on another node) works on the object itself: no copy
 *     is made, if the object begins at a multiple of 128 bytes in its segment, as objects of 1 MiB and more do.
 *   - Any other device gets a copy from its node's memory when a kernel or a read of the device first needs the object
 *     there. clEnqueueCopyBuffer from such a buffer before that copies the part that it names straight from the node's
 *     memory: so parts of an object larger than the device's memory can be used.
 *   - The object stays as long as the buffer, or a sub-buffer, and the commands that use it: deleting it takes its name.
 *
 *   Errors: CL_INVALID_CONTEXT (also a context that spans several platforms or nodes); CL_INVALID_VALUE: neither or both
 *   of id and name, no such object, one that is not sealed, an empty one; CL_INVALID_OPERATION: another tenant's that
 *   was not shared; CL_MEM_OBJECT_ALLOCATION_FAILURE; CL_OUT_OF_RESOURCES. The reason goes to standard error.
 *
 * clPublishBufferTENDRIL(buffer, name, id_out)
 *
 *   waits for the commands enqueued so far, then moves the buffer's memory into a sealed object of that name (NULL or "":
 *   without a name, gone with this process), without a copy for buffers of 1 MiB and more, and writes the object's
 *   16-byte id to id_out unless that is NULL. The cl_mem stays valid: reads see the same memory, the next write gets
 *   fresh memory. From a device with memory of its own the bytes are copied once, into the object; so are they where the
 *   program has the buffer mapped for writing, and where anything else still maps its memory so (a child that was
 *   forked, code in the worker): nobody can write the memory of an object, and the kernel vouches for that.
 *
 *   Errors: CL_INVALID_MEM_OBJECT; CL_INVALID_OPERATION: a sub-buffer, a CL_MEM_USE_HOST_PTR buffer, memory that is an
 *   object already, a device of another machine; CL_OUT_OF_RESOURCES: the store refuses. The reason goes to standard error.
 */
#ifndef TENDRIL_CL_TENDRIL_STORE_H
#define TENDRIL_CL_TENDRIL_STORE_H

#include <CL/cl.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef cl_mem(CL_API_CALL *clCreateBufferFromObjectTENDRIL_fn)(cl_context context, const cl_uchar *id, const char *name,
                                                                cl_int *errcode_ret);
typedef cl_int(CL_API_CALL *clPublishBufferTENDRIL_fn)(cl_mem buffer, const char *name, cl_uchar id_out[16]);

#ifdef __cplusplus
}
#endif

#endif
