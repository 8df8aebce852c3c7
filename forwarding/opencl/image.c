#include "image.h"
#include <CL/cl_icd.h>

#define TABLE(h) (*(cl_icd_dispatch **)(h))
#define AFTER nwait, nwait ? (const cl_event *)wait : NULL, (cl_event *)event

td_handle td_create_image(td_handle c, uint64_t flags, const td_image *i, cl_int *err)
{
	cl_image_format format = {i->order, i->data_type};
	cl_image_desc desc = {
		.image_type = i->kind, .image_width = i->width, .image_height = i->height, .image_depth = i->depth,
		.image_array_size = i->array_size, .image_row_pitch = i->row_pitch, .image_slice_pitch = i->slice_pitch,
		.mem_object = (cl_mem)i->parent,
	};

	if (!TABLE(c)->clCreateImage) { /* new in 1.2 */
		*err = CL_INVALID_OPERATION;
		return 0;
	}
	return (td_handle)TABLE(c)->clCreateImage((cl_context)c, flags, &format, &desc, NULL, err);
}

td_handle td_create_sampler(td_handle c, uint32_t normalized, uint32_t addressing, uint32_t filter, cl_int *err)
{
	return (td_handle)TABLE(c)->clCreateSampler((cl_context)c, normalized, addressing, filter, err);
}

cl_int td_image_formats(td_handle c, uint64_t flags, uint32_t kind, uint32_t n, uint32_t *formats, uint32_t *found)
{
	cl_uint have = 0;
	cl_int err = TABLE(c)->clGetSupportedImageFormats((cl_context)c, flags, kind, n, n ? (cl_image_format *)formats : NULL, &have);

	*found = have;
	return err;
}

cl_int td_transfer_image(td_handle q, uint32_t read, td_handle image, const td_region *at, size_t row, size_t slice, uintptr_t host,
	uint32_t nwait, const td_handle *wait, td_handle *event)
{
	cl_icd_dispatch *t = TABLE(q);

	if (read)
		return t->clEnqueueReadImage((cl_command_queue)q, (cl_mem)image, CL_FALSE, at->origin, at->region, row, slice, (void *)host, AFTER);
	return t->clEnqueueWriteImage((cl_command_queue)q, (cl_mem)image, CL_FALSE, at->origin, at->region, row, slice, (const void *)host, AFTER);
}

cl_int td_copy_image(td_handle q, td_handle src, td_handle dst, const size_t *src_origin, const size_t *dst_origin, const size_t *region,
	uint32_t nwait, const td_handle *wait, td_handle *event)
{
	return TABLE(q)->clEnqueueCopyImage((cl_command_queue)q, (cl_mem)src, (cl_mem)dst, src_origin, dst_origin, region, AFTER);
}

cl_int td_copy_image_buffer(td_handle q, uint32_t to_buffer, td_handle image, td_handle buffer, const td_region *at, size_t offset,
	uint32_t nwait, const td_handle *wait, td_handle *event)
{
	cl_icd_dispatch *t = TABLE(q);

	if (to_buffer)
		return t->clEnqueueCopyImageToBuffer((cl_command_queue)q, (cl_mem)image, (cl_mem)buffer, at->origin, at->region, offset, AFTER);
	return t->clEnqueueCopyBufferToImage((cl_command_queue)q, (cl_mem)buffer, (cl_mem)image, offset, at->origin, at->region, AFTER);
}

cl_int td_fill_image(td_handle q, td_handle image, const void *color, const td_region *at,
	uint32_t nwait, const td_handle *wait, td_handle *event)
{
	return TABLE(q)->clEnqueueFillImage((cl_command_queue)q, (cl_mem)image, color, at->origin, at->region, AFTER);
}
