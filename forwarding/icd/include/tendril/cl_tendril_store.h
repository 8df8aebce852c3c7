/* cl_tendril_store: an OpenCL buffer becomes an object of Tendril's store. Experimental: name and form may change.
 *
 *   clPublishBufferTENDRIL_fn publish =
 *       (clPublishBufferTENDRIL_fn)clGetExtensionFunctionAddressForPlatform(platform, "clPublishBufferTENDRIL");
 *
 * publish() waits for the commands enqueued so far, then moves the buffer's memory into a sealed object of that name
 * (NULL or "": without a name), without a copy for buffers of 1 MiB and more, and writes the object's 16-byte id to
 * id_out unless that is NULL. The cl_mem stays valid: reads see the same memory, the next write gets fresh memory.
 *
 * Returns CL_SUCCESS; CL_INVALID_MEM_OBJECT; CL_INVALID_OPERATION for a sub-buffer, a CL_MEM_USE_HOST_PTR buffer, a
 * device that does not compute on shared memory, or memory that is an object already; CL_OUT_OF_RESOURCES where the
 * store refuses (the reason goes to standard error).
 */
#ifndef TENDRIL_CL_TENDRIL_STORE_H
#define TENDRIL_CL_TENDRIL_STORE_H

#include <CL/cl.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef cl_int(CL_API_CALL *clPublishBufferTENDRIL_fn)(cl_mem buffer, const char *name, cl_uchar id_out[16]);

#ifdef __cplusplus
}
#endif

#endif
