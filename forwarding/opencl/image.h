#ifndef TENDRIL_IMAGE_H
#define TENDRIL_IMAGE_H

#include "driver.h"

typedef struct {
	uint32_t order, data_type, kind, pad;
	size_t width, height, depth, array_size, row_pitch, slice_pitch;
	td_handle parent;
} td_image;

/* Regions of images, in elements. */
typedef struct {
	size_t origin[3], region[3];
} td_region;

td_handle td_create_image(td_handle context, uint64_t flags, const td_image *image, cl_int *err);
td_handle td_create_sampler(td_handle context, uint32_t normalized, uint32_t addressing, uint32_t filter, cl_int *err);
/* formats: pairs of channel order and channel data type. */
cl_int td_image_formats(td_handle context, uint64_t flags, uint32_t kind, uint32_t n, uint32_t *formats, uint32_t *found);

cl_int td_transfer_image(td_handle queue, uint32_t read, td_handle image, const td_region *at, size_t row, size_t slice, uintptr_t host,
	uint32_t nwait, const td_handle *wait, td_handle *event);
cl_int td_copy_image(td_handle queue, td_handle src, td_handle dst, const size_t *src_origin, const size_t *dst_origin, const size_t *region,
	uint32_t nwait, const td_handle *wait, td_handle *event);
cl_int td_copy_image_buffer(td_handle queue, uint32_t to_buffer, td_handle image, td_handle buffer, const td_region *at, size_t offset,
	uint32_t nwait, const td_handle *wait, td_handle *event);
cl_int td_fill_image(td_handle queue, td_handle image, const void *color, const td_region *at,
	uint32_t nwait, const td_handle *wait, td_handle *event);

#endif
