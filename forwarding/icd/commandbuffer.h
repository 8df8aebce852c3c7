// cl_khr_command_buffer, by name only. Included by stubs.c. The types are the extension's: handles, and sync points of
// 32 bits. They are spelled out, because the extension's header is provisional and differs from release to release.

#define SYNC_ARGS cl_uint n, const cl_uint *list, cl_uint *point, void *mutable_handle
#define RECORD                                                                                                         \
  REFUSE;                                                                                                              \
  tdl_sync sync = { n, U(queue), U(list), U(point), U(mutable_handle) }

static void *CL_API_CALL tdl_clCreateCommandBufferKHR(cl_uint num_queues, const cl_command_queue *queues,
                                                      const cl_properties *properties, cl_int *errcode_ret) {
  CREATE(void *, tdlCreateCommandBuffer(num_queues, U(queues), U(properties), U(&code)));
}

static cl_int CL_API_CALL tdl_clFinalizeCommandBufferKHR(void *buffer) {
  REFUSE;
  return tdlFinalizeCommandBuffer(U(buffer));
}

static cl_int CL_API_CALL tdl_clRetainCommandBufferKHR(void *buffer) {
  REFUSE;
  return tdlRef(TDL_COMMAND_BUFFER, U(buffer));
}

static cl_int CL_API_CALL tdl_clReleaseCommandBufferKHR(void *buffer) {
  REFUSE;
  return tdlRef(TDL_COMMAND_BUFFER | TDL_RELEASE, U(buffer));
}

static INFO(clGetCommandBufferInfoKHR, void *, TDL_COMMAND_BUFFER)

static cl_int CL_API_CALL tdl_clEnqueueCommandBufferKHR(cl_uint num_queues, cl_command_queue *queues, void *buffer,
                                                        ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  return tdlEnqueueCommandBuffer(num_queues, U(queues), U(buffer), &waits);
}

static cl_int CL_API_CALL tdl_clCommandBarrierWithWaitListKHR(void *buffer, cl_command_queue queue, SYNC_ARGS) {
  RECORD;
  return tdlRecordBarrier(U(buffer), &sync);
}

static cl_int CL_API_CALL tdl_clCommandCopyBufferKHR(void *buffer, cl_command_queue queue, cl_mem src, cl_mem dst,
                                                     size_t src_offset, size_t dst_offset, size_t size, SYNC_ARGS) {
  RECORD;
  return tdlRecordCopy(U(buffer), U(src), U(dst), src_offset, dst_offset, size, &sync);
}

static cl_int CL_API_CALL tdl_clCommandCopyBufferRectKHR(void *buffer, cl_command_queue queue, cl_mem from, cl_mem to,
                                                         const size_t *src, const size_t *dst, const size_t *region,
                                                         size_t src_row_pitch, size_t src_slice_pitch,
                                                         size_t dst_row_pitch, size_t dst_slice_pitch, SYNC_ARGS) {
  RECORD;
  tdl_rect rect = {U(src), U(dst), U(region), src_row_pitch, src_slice_pitch, dst_row_pitch, dst_slice_pitch};
  return tdlRecordCopyRect(U(buffer), U(from), U(to), &rect, &sync);
}

static cl_int CL_API_CALL tdl_clCommandCopyBufferToImageKHR(void *buffer, cl_command_queue queue, cl_mem src,
                                                            cl_mem image, size_t offset, const size_t *origin,
                                                            const size_t *region, SYNC_ARGS) {
  RECORD;
  tdl_region part = {U(origin), U(region)};
  return tdlRecordCopyImageBuffer(U(buffer), 0, U(image), U(src), &part, offset, &sync);
}

static cl_int CL_API_CALL tdl_clCommandCopyImageToBufferKHR(void *buffer, cl_command_queue queue, cl_mem image,
                                                            cl_mem dst, const size_t *origin, const size_t *region,
                                                            size_t offset, SYNC_ARGS) {
  RECORD;
  tdl_region part = {U(origin), U(region)};
  return tdlRecordCopyImageBuffer(U(buffer), 1, U(image), U(dst), &part, offset, &sync);
}

static cl_int CL_API_CALL tdl_clCommandCopyImageKHR(void *buffer, cl_command_queue queue, cl_mem src, cl_mem dst,
                                                    const size_t *from, const size_t *to, const size_t *region,
                                                    SYNC_ARGS) {
  RECORD;
  tdl_region part = {U(from), U(region)};
  return tdlRecordCopyImage(U(buffer), U(src), U(dst), &part, U(to), &sync);
}

static cl_int CL_API_CALL tdl_clCommandFillBufferKHR(void *buffer, cl_command_queue queue, cl_mem target,
                                                     const void *pattern, size_t pattern_size, size_t offset,
                                                     size_t size, SYNC_ARGS) {
  RECORD;
  return tdlRecordFill(U(buffer), U(target), U(pattern), pattern_size, offset, size, &sync);
}

static cl_int CL_API_CALL tdl_clCommandFillImageKHR(void *buffer, cl_command_queue queue, cl_mem image,
                                                    const void *color, const size_t *origin, const size_t *region,
                                                    SYNC_ARGS) {
  RECORD;
  tdl_region part = {U(origin), U(region)};
  return tdlRecordFillImage(U(buffer), U(image), U(color), &part, &sync);
}

static cl_int CL_API_CALL tdl_clCommandNDRangeKernelKHR(void *buffer, cl_command_queue queue,
                                                        const cl_properties *properties, cl_kernel kernel, cl_uint dims,
                                                        const size_t *offset, const size_t *global,
                                                        const size_t *local, SYNC_ARGS) {
  RECORD;
  if (properties != NULL && properties[0] != 0) {
    return CL_INVALID_VALUE; // mutable dispatch defines some, and is not here
  }
  return tdlRecordNDRange(U(buffer), U(kernel), dims, U(offset), U(global), U(local), &sync);
}
