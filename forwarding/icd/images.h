// Images and samplers. Included by stubs.c.

INFO(clGetImageInfo, cl_mem, TDL_IMAGE)
INFO(clGetSamplerInfo, cl_sampler, TDL_SAMPLER)
REFS(Sampler, cl_sampler, TDL_SAMPLER)

cl_mem CL_API_CALL tdl_clCreateImage(cl_context context, cl_mem_flags flags, const cl_image_format *format,
                                     const cl_image_desc *desc, void *host, cl_int *errcode_ret) {
  CREATE(cl_mem, tdlCreateImage(U(context), 0, flags, U(format), U(desc), U(host), U(&code)));
}

cl_mem CL_API_CALL tdl_clCreateImageWithProperties(cl_context context, const cl_mem_properties *properties,
                                                   cl_mem_flags flags, const cl_image_format *format,
                                                   const cl_image_desc *desc, void *host, cl_int *errcode_ret) {
  CREATE(cl_mem, tdlCreateImage(U(context), U(properties), flags, U(format), U(desc), U(host), U(&code)));
}

// WIDTH is the image's width, or 0 if another size is 0. The functions of OpenCL 1.1 refuse any size of 0, but
// clCreateImage of some drivers checks the width only.
#define WIDTH(all) ((all) ? width : 0)

cl_mem CL_API_CALL tdl_clCreateImage2D(cl_context context, cl_mem_flags flags, const cl_image_format *format,
                                       size_t width, size_t height, size_t row_pitch, void *host,
                                       cl_int *errcode_ret) {
  cl_image_desc desc = {.image_type = CL_MEM_OBJECT_IMAGE2D,
                        .image_width = WIDTH(height),
                        .image_height = height,
                        .image_row_pitch = row_pitch};
  CREATE(cl_mem, tdlCreateImage(U(context), 0, flags, U(format), U(&desc), U(host), U(&code)));
}

cl_mem CL_API_CALL tdl_clCreateImage3D(cl_context context, cl_mem_flags flags, const cl_image_format *format,
                                       size_t width, size_t height, size_t depth, size_t row_pitch, size_t slice_pitch,
                                       void *host, cl_int *errcode_ret) {
  cl_image_desc desc = {.image_type = CL_MEM_OBJECT_IMAGE3D,
                        .image_width = WIDTH(height && depth),
                        .image_height = height,
                        .image_depth = depth,
                        .image_row_pitch = row_pitch,
                        .image_slice_pitch = slice_pitch};
  CREATE(cl_mem, tdlCreateImage(U(context), 0, flags, U(format), U(&desc), U(host), U(&code)));
}

cl_int CL_API_CALL tdl_clGetSupportedImageFormats(cl_context context, cl_mem_flags flags, cl_mem_object_type type,
                                                  cl_uint num_entries, cl_image_format *formats,
                                                  cl_uint *num_formats) {
  REFUSE;
  return tdlImageFormats(U(context), flags, type, num_entries, U(formats), U(num_formats));
}

cl_sampler CL_API_CALL tdl_clCreateSampler(cl_context context, cl_bool normalized, cl_addressing_mode addressing,
                                           cl_filter_mode filter, cl_int *errcode_ret) {
  CREATE(cl_sampler, tdlCreateSampler(U(context), normalized, addressing, filter, U(&code)));
}

cl_sampler CL_API_CALL tdl_clCreateSamplerWithProperties(cl_context context, const cl_sampler_properties *properties,
                                                         cl_int *errcode_ret) {
  CREATE(cl_sampler, tdlCreateSamplerWithProperties(U(context), U(properties), U(&code)));
}

#define REGION                                                                                                         \
  tdl_region part = { U(origin), U(region) }

cl_int CL_API_CALL tdl_clEnqueueReadImage(cl_command_queue queue, cl_mem image, cl_bool blocking, const size_t *origin,
                                          const size_t *region, size_t row_pitch, size_t slice_pitch, void *ptr,
                                          ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  NOTE(queue, 0);
  REGION;
  return tdlEnqueueImage(0, U(queue), U(image), blocking, &part, row_pitch, slice_pitch, U(ptr), &waits);
}

cl_int CL_API_CALL tdl_clEnqueueWriteImage(cl_command_queue queue, cl_mem image, cl_bool blocking, const size_t *origin,
                                           const size_t *region, size_t row_pitch, size_t slice_pitch, const void *ptr,
                                           ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  NOTE(queue, 0);
  REGION;
  return tdlEnqueueImage(1, U(queue), U(image), blocking, &part, row_pitch, slice_pitch, U(ptr), &waits);
}

cl_int CL_API_CALL tdl_clEnqueueFillImage(cl_command_queue queue, cl_mem image, const void *color, const size_t *origin,
                                          const size_t *region, ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  NOTE(queue, 0);
  REGION;
  return tdlEnqueueFillImage(U(queue), U(image), U(color), &part, &waits);
}

cl_int CL_API_CALL tdl_clEnqueueCopyImage(cl_command_queue queue, cl_mem src, cl_mem dst, const size_t *origin,
                                          const size_t *dst_origin, const size_t *region, ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  NOTE(queue, 0);
  REGION;
  return tdlEnqueueCopyImage(U(queue), U(src), U(dst), &part, U(dst_origin), &waits);
}

cl_int CL_API_CALL tdl_clEnqueueCopyImageToBuffer(cl_command_queue queue, cl_mem image, cl_mem buffer,
                                                  const size_t *origin, const size_t *region, size_t offset,
                                                  ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  NOTE(queue, 0);
  REGION;
  return tdlEnqueueCopyImageBuffer(1, U(queue), U(image), U(buffer), &part, offset, &waits);
}

cl_int CL_API_CALL tdl_clEnqueueCopyBufferToImage(cl_command_queue queue, cl_mem buffer, cl_mem image, size_t offset,
                                                  const size_t *origin, const size_t *region, ENQUEUE_ARGS) {
  REFUSE;
  WAITS;
  NOTE(queue, 0);
  REGION;
  return tdlEnqueueCopyImageBuffer(0, U(queue), U(image), U(buffer), &part, offset, &waits);
}

void *CL_API_CALL tdl_clEnqueueMapImage(cl_command_queue queue, cl_mem image, cl_bool blocking, cl_map_flags flags,
                                        const size_t *origin, const size_t *region, size_t *row_pitch,
                                        size_t *slice_pitch, ENQUEUE_ARGS, cl_int *errcode_ret) {
  WAITS;
  REGION;
  CREATE_NOTED(void *, queue, 0,
               tdlEnqueueMapImage(U(queue), U(image), blocking, flags, &part, U(row_pitch), U(slice_pitch), &waits,
                                  U(&code)));
}
