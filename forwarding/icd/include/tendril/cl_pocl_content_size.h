/* cl_pocl_content_size, under PoCL's names: a buffer holds the number of bytes that are valid in another buffer.
 *
 * A platform that has the extension lists it in CL_PLATFORM_EXTENSIONS. Newer <CL/cl_ext.h> have the function's type,
 * too.
 *
 *   clSetContentSizeBufferPoCL_fn set = (clSetContentSizeBufferPoCL_fn)
 *       clGetExtensionFunctionAddressForPlatform(platform, "clSetContentSizeBufferPoCL");
 *
 * clSetContentSizeBufferPoCL(buffer, content_size_buffer)
 *
 *   From now on, the cl_ulong at the beginning of content_size_buffer is the number of valid bytes at the beginning of
 *   buffer, its content. Kernels may write this number. It is read when a command on buffer runs, so a kernel earlier
 *   in the queue can set it. A number larger than the buffer means the whole buffer.
 *
 *   Commands may leave out bytes that are not content. In Tendril, clEnqueueReadBuffer and clEnqueueMapBuffer of a
 *   device of another machine do: the program's memory keeps what it had there. Kernels, copies, fills and writes do
 *   not. In a context whose devices have separate memories, only the content of one device's result reaches another
 *   device; the other bytes are undefined there.
 *
 *   content_size_buffer NULL ends this, and so does the release of that buffer.
 *
 *   Errors: CL_INVALID_MEM_OBJECT: one of them is not a buffer, or content_size_buffer has less than 8 bytes.
 *   CL_INVALID_CONTEXT: they belong to different contexts.
 */
#ifndef TENDRIL_CL_POCL_CONTENT_SIZE_H
#define TENDRIL_CL_POCL_CONTENT_SIZE_H

#include <CL/cl.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef cl_pocl_content_size
#define cl_pocl_content_size 1
typedef cl_int(CL_API_CALL *clSetContentSizeBufferPoCL_fn)(cl_mem buffer, cl_mem content_size_buffer);
#endif

#ifdef __cplusplus
}
#endif

#endif
