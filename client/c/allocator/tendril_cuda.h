/* Memory of GPUs out of the store, for libraries that take an allocator: libtendril_cuda.so. It calls the CUDA driver,
 * which libtendril does not. Safe for concurrent use. client/python/tendril/allocators.py is what programs use. */
#ifndef TENDRIL_CUDA_H
#define TENDRIL_CUDA_H

#include <stddef.h>
#include <sys/types.h>

#include "tendril.h"

/* Says which daemon memory comes from: the path of its socket, NULL for the usual one. Before the first allocation; −1
 * if another one gives it already. */
TENDRIL_API int tendril_cuda_use(const char *socket);

/* PyTorch's CUDAPluggableAllocator. NULL: there is no memory; the reason is on standard error. */
TENDRIL_API void *tendril_torch_alloc(ssize_t size, int device, void *stream);
TENDRIL_API void tendril_torch_free(void *, ssize_t size, int device, void *stream);

/* CuPy's CFunctionAllocator. */
TENDRIL_API void *tendril_cupy_alloc(void *parameter, size_t size, int device);
TENDRIL_API void tendril_cupy_free(void *parameter, void *, int device);

enum { TENDRIL_CUDA_SEALED = 0, TENDRIL_CUDA_COPY = 1, TENDRIL_CUDA_FAILED = 2 };

/* Seals the whole allocation of size bytes at an address, after all work of its GPU; it is the object *id then. The
 * memory stays the program's until it frees it, and must not be written any more. TENDRIL_CUDA_COPY: it is no object,
 * is sealed already, or has another size. TENDRIL_CUDA_FAILED: tendril_cuda_message says why. */
TENDRIL_API int tendril_cuda_seal(void *, size_t size, const void *meta, size_t meta_size, tendril_id *id);

/* Why the thread's last call failed. */
TENDRIL_API const char *tendril_cuda_message(void);

#endif
