/* cl_pocl_content_size, under PoCL's names: a buffer says how much of another means something.
 *
 * A platform that has it names it in CL_PLATFORM_EXTENSIONS. Newer <CL/cl_ext.h> have the function's type too.
 *
 *   clSetContentSizeBufferPoCL_fn set =
 *       (clSetContentSizeBufferPoCL_fn)clGetExtensionFunctionAddressForPlatform(platform, "clSetContentSizeBufferPoCL");
 *
 * clSetContentSizeBufferPoCL(buffer, content_size_buffer)
 *
 *   From now on the cl_ulong at the beginning of content_size_buffer, which kernels may write, counts the bytes of buffer,
 *   from its beginning, that mean something. What reads buffer may leave the others out: in Tendril clEnqueueReadBuffer
 *   and clEnqueueMapBuffer of a device of another machine do, and the program's memory keeps what it had there. The number
 *   is looked at when the command's turn has come, so a kernel earlier in the queue decides. A number larger than the
 *   buffer means all of it. Kernels, copies, fills and writes are as without; but where the devices of a context have memories
 *   of their own, what one of them needs of another's result is the content alone, and the rest is undefined there. NULL for
 *   content_size_buffer ends it, and so does the release of that buffer.
 *
 *   Errors: CL_INVALID_MEM_OBJECT: one of them is no buffer, or content_size_buffer has less than 8 bytes;
 *   CL_INVALID_CONTEXT: they are of two contexts.
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
