package main

// #include "driver.h"
import "C"

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

//export tdlCreateImage
func tdlCreateImage(context, properties C.uintptr_t, flags C.cl_ulong, format, desc, host,
	code C.uintptr_t) C.uintptr_t {
	defer rescueHandle(uintptr(code))
	var f *api.ImageFormat
	if format != 0 {
		given := at[C.cl_image_format](uintptr(format))
		f = &api.ImageFormat{Order: uint32(given.image_channel_order), DataType: uint32(given.image_channel_data_type)}
	}
	h, status := driver().CreateImage(uintptr(context), list(uintptr(properties)), uint64(flags), f,
		description(uintptr(desc)), api.NewHostPtr(uintptr(host)))
	return created(h, status, code)
}

// description reads a cl_image_desc; nil for NULL.
func description(address uintptr) *api.ImageDesc {
	if address == 0 {
		return nil
	}
	d := at[C.cl_image_desc](address)
	return &api.ImageDesc{
		Kind: uint32(d.image_type), Width: uint64(d.image_width), Height: uint64(d.image_height),
		Depth:     uint64(d.image_depth),
		ArraySize: uint64(d.image_array_size), RowPitch: uint64(d.image_row_pitch),
		SlicePitch: uint64(d.image_slice_pitch),
		MipLevels:  uint32(d.num_mip_levels), Samples: uint32(d.num_samples),
		Parent: *at[uintptr](address + C.TDL_DESC_PARENT),
	}
}

//export tdlImageFormats
func tdlImageFormats(context C.uintptr_t, flags C.cl_ulong, kind, entries C.cl_uint, formats,
	count C.uintptr_t) (code C.cl_int) {
	defer rescue(&code)
	found, status := driver().ImageFormats(uintptr(context), uint64(flags), uint32(kind))
	if status != cl.SUCCESS {
		return C.cl_int(status)
	}
	if formats != 0 && entries == 0 {
		return C.CL_INVALID_VALUE
	}
	for i := range array[[2]uint32](uintptr(formats), min(len(found), int(entries))) {
		*at[[2]uint32](uintptr(formats) + uintptr(8*i)) = [2]uint32{found[i].Order, found[i].DataType}
	}
	store(uintptr(count), uint32(len(found)))
	return C.CL_SUCCESS
}

//export tdlCreateSampler
func tdlCreateSampler(context C.uintptr_t, normalized, addressing, filter C.cl_uint, code C.uintptr_t) C.uintptr_t {
	defer rescueHandle(uintptr(code))
	h, status := driver().CreateSampler(uintptr(context), uint32(normalized), uint32(addressing), uint32(filter))
	return created(h, status, code)
}

//export tdlCreateSamplerWithProperties
func tdlCreateSamplerWithProperties(context, properties, code C.uintptr_t) C.uintptr_t {
	defer rescueHandle(uintptr(code))
	h, status := driver().CreateSamplerWithProperties(uintptr(context), list(uintptr(properties)))
	return created(h, status, code)
}

func imageRegion(r *C.tdl_region) api.ImageRegion {
	if r.origin == 0 || r.region == 0 {
		return api.ImageRegion{Missing: true}
	}
	return api.ImageRegion{Origin: three(uintptr(r.origin), 3), Region: three(uintptr(r.region), 3)}
}

//export tdlEnqueueImage
func tdlEnqueueImage(write C.int, queue, image C.uintptr_t, blocking C.cl_uint, r *C.tdl_region, row, slice C.size_t,
	ptr C.uintptr_t, w *C.tdl_waits) (code C.cl_int) {
	defer rescue(&code)
	move := driver().EnqueueReadImage
	if write != 0 {
		move = driver().EnqueueWriteImage
	}
	event, status := move(uintptr(queue), uintptr(image), blocking != 0, imageRegion(r), uint64(row), uint64(slice),
		api.NewHostPtr(uintptr(ptr)), waits(w))
	return enqueued(event, status, w)
}

//export tdlEnqueueFillImage
func tdlEnqueueFillImage(queue, image, color C.uintptr_t, r *C.tdl_region, w *C.tdl_waits) (code C.cl_int) {
	defer rescue(&code)
	event, status := driver().EnqueueFillImage(uintptr(queue), uintptr(image), api.NewHostPtr(uintptr(color)),
		imageRegion(r), waits(w))
	return enqueued(event, status, w)
}

// twoImageRegions reads the region of a copy and its other origin.
func twoImageRegions(r *C.tdl_region, to C.uintptr_t) (part api.ImageRegion, origin [3]uint64) {
	part = imageRegion(r)
	if part.Missing = part.Missing || to == 0; !part.Missing {
		origin = three(uintptr(to), 3)
	}
	return part, origin
}

//export tdlEnqueueCopyImage
func tdlEnqueueCopyImage(queue, src, dst C.uintptr_t, r *C.tdl_region, to C.uintptr_t, w *C.tdl_waits) (code C.cl_int) {
	defer rescue(&code)
	part, origin := twoImageRegions(r, to)
	event, status := driver().EnqueueCopyImage(uintptr(queue), uintptr(src), uintptr(dst), part, origin, waits(w))
	return enqueued(event, status, w)
}

//export tdlEnqueueCopyImageBuffer
func tdlEnqueueCopyImageBuffer(toBuffer C.int, queue, image, buffer C.uintptr_t, r *C.tdl_region, offset C.size_t,
	w *C.tdl_waits) (code C.cl_int) {
	defer rescue(&code)
	event, status := driver().EnqueueCopyImageBuffer(toBuffer != 0, uintptr(queue), uintptr(image), uintptr(buffer),
		imageRegion(r), uint64(offset), waits(w))
	return enqueued(event, status, w)
}

//export tdlEnqueueMapImage
func tdlEnqueueMapImage(queue, image C.uintptr_t, blocking C.cl_uint, flags C.cl_ulong, r *C.tdl_region, row,
	slice C.uintptr_t, w *C.tdl_waits, code C.uintptr_t) C.uintptr_t {
	defer rescueHandle(uintptr(code))
	part := imageRegion(r)
	part.Missing = part.Missing || row == 0
	m, status := driver().EnqueueMapImage(uintptr(queue), uintptr(image), blocking != 0, uint64(flags), part,
		slice != 0, waits(w))
	if status == cl.SUCCESS {
		store(uintptr(row), m.Row)
		store(uintptr(slice), m.Slice)
	}
	enqueued(m.Event, status, w)
	return created(m.At.Address(), status, code)
}
