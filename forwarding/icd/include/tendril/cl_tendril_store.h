/* cl_tendril_store 1.0.0: OpenCL buffers and objects of Tendril's store are the same memory.
 *
 * A platform that has the extension lists it in CL_PLATFORM_EXTENSIONS. Its functions are found by name:
 *
 *   clCreateBufferFromObjectTENDRIL_fn open = (clCreateBufferFromObjectTENDRIL_fn)
 *       clGetExtensionFunctionAddressForPlatform(platform, "clCreateBufferFromObjectTENDRIL");
 *
 * The store is that of the node whose devices the context has. With `tendril run --server HOST` it is HOST's. So an
 * object that was once put there (tendril put --server HOST FILE) serves any number of programs, and its bytes cross
 * the network once. Any thread may call both functions. If they fail, the reason goes to standard error.
 *
 * clCreateBufferFromObjectTENDRIL(context, id, name, errcode_ret)
 *
 *   makes a buffer of a sealed object, given its 16-byte id or its name; the other one is NULL. A published name that
 *   this node's store does not have is looked up in the cluster. Release the buffer with clReleaseMemObject.
 *
 *   - The buffer has the object's size and the flags CL_MEM_READ_ONLY | CL_MEM_HOST_READ_ONLY. Writing to it, filling
 *     it, copying to it and mapping it for writing return CL_INVALID_OPERATION. clSetKernelArg returns
 *     CL_INVALID_ARG_VALUE if the argument is a pointer to memory that is neither const nor constant. (If the driver
 *     does not describe arguments, as for programs made of binaries, a kernel that writes ends its own session, or
 *     writes to a copy.)
 *   - A device that computes in shared memory (CPU devices, here or on another node) works on the object itself,
 *     without a copy, if the object begins at a multiple of 128 bytes in its segment. Objects of 1 MiB and more do.
 *   - An object in the memory of a GPU (kind cuda) is that GPU's own memory, without a copy, if the GPU is a device of
 *     the context, and its driver imports memory (NVIDIA's does). The hardware lets a kernel write there: the rule
 *     about arguments above is what keeps it from that. Otherwise, and of an object in the memory of another device
 *     (kind opencl), the buffer is a copy in host memory. A program on another machine gets such a copy of kind opencl
 *     alone.
 *   - An unsealed object in the memory of a GPU, of the program's own tenant and given by its id, is a buffer with the
 *     flag CL_MEM_READ_WRITE. Whoever made it seals it when the writes to it have ended (clFinish); from then on no
 *     command may write to it.
 *   - Any other device gets a copy from its node's memory when a kernel, or a read from the device, first needs the
 *     object there. Before that, clEnqueueCopyBuffer from such a buffer copies its part straight from the node's
 *     memory. So parts of an object that is larger than the device's memory can be used.
 *   - The object stays as long as the buffer, its sub-buffers, and the commands that use them. Deleting the object
 *     removes its name.
 *
 *   In a context over several platforms or nodes the object is that of the first node that has it.
 *
 *   Errors: CL_INVALID_CONTEXT. CL_INVALID_VALUE: neither or both of id and name, no such object, or one that is not
 *   sealed or empty (but see above). CL_INVALID_OPERATION: another tenant's object that was not shared, or the memory
 *   of a GPU that the context cannot use. CL_MEM_OBJECT_ALLOCATION_FAILURE. CL_OUT_OF_RESOURCES.
 *
 * clPublishBufferTENDRIL(buffer, name, id_out)
 *
 *   waits for the commands enqueued so far. Then it makes the buffer's memory a sealed object, without a copy for
 *   buffers of 1 MiB and more. An object without a name (NULL or "") ends with this process. id_out gets the object's
 *   16-byte id (NULL: not wanted). The cl_mem stays valid: reads see the same memory, and the next write gets fresh
 *   memory.
 *
 *   The object is in host memory, or with TENDRIL_PUBLISH_KIND=cuda in that of the context's first GPU whose driver
 *   imports memory, where the GPU copies it. If the device is of another machine it must be such a GPU. With
 *   TENDRIL_PUBLISH_KIND=opencl it is in the memory of the context's first device, by copies through host memory.
 *
 *   The bytes are copied once if the device has memory of its own, if the program has the buffer mapped for writing, or
 *   if anything else still maps its memory writable (a forked child, code in the worker). The kernel ensures that
 *   nobody can write the memory of an object.
 *
 *   Errors: CL_INVALID_MEM_OBJECT. CL_INVALID_OPERATION: a sub-buffer, a CL_MEM_USE_HOST_PTR buffer, memory that is an
 *   object already, or a device of another machine that is no such GPU. CL_OUT_OF_RESOURCES: the store refuses.
 */
#ifndef TENDRIL_CL_TENDRIL_STORE_H
#define TENDRIL_CL_TENDRIL_STORE_H

#include <CL/cl.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef cl_mem(CL_API_CALL *clCreateBufferFromObjectTENDRIL_fn)(cl_context context, const cl_uchar *id,
                                                                const char *name, cl_int *errcode_ret);
typedef cl_int(CL_API_CALL *clPublishBufferTENDRIL_fn)(cl_mem buffer, const char *name, cl_uchar id_out[16]);

#ifdef __cplusplus
}
#endif

#endif
