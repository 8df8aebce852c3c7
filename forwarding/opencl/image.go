//go:build cgo

package opencl

/*
#cgo noescape td_transfer_image
#cgo nocallback td_transfer_image
#cgo noescape td_copy_image
#cgo nocallback td_copy_image
#cgo noescape td_copy_image_buffer
#cgo nocallback td_copy_image_buffer
#cgo noescape td_fill_image
#cgo nocallback td_fill_image
#include "image.h"
*/
import "C"

import (
	"unsafe"

	"tendril/forwarding/cl"
)

// maxFormats bounds what clGetSupportedImageFormats may claim.
const maxFormats = 4096

// CreateImage is clCreateImage without memory of the program's (OpenCL 3.0 §5.3.1).
func (c Context) CreateImage(flags uint64, i *ImageDesc) (Mem, Status) {
	desc := C.td_image{
		order: C.uint32_t(i.Order), data_type: C.uint32_t(i.DataType), kind: C.uint32_t(i.Kind),
		width: C.size_t(i.Width), height: C.size_t(i.Height), depth: C.size_t(i.Depth),
		array_size: C.size_t(i.ArraySize),
		row_pitch:  C.size_t(i.RowPitch), slice_pitch: C.size_t(i.SlicePitch), parent: C.td_handle(i.Parent),
	}
	var err C.cl_int
	m := C.td_create_image(C.td_handle(c), C.uint64_t(flags), &desc, &err)
	return Mem(m), Status(err)
}

// CreateSampler is clCreateSampler.
func (c Context) CreateSampler(normalized bool, addressing, filter uint32) (Sampler, Status) {
	var err C.cl_int
	s := C.td_create_sampler(C.td_handle(c), flag(normalized), C.uint32_t(addressing), C.uint32_t(filter), &err)
	return Sampler(s), Status(err)
}

// ImageFormats is clGetSupportedImageFormats: pairs of channel order and channel data type.
func (c Context) ImageFormats(flags uint64, kind uint32) ([]uint32, Status) {
	var n C.uint32_t
	ask := func(room int, into *C.uint32_t) Status {
		return Status(C.td_image_formats(C.td_handle(c), C.uint64_t(flags), C.uint32_t(kind),
			C.uint32_t(room), into, &n))
	}
	if s := ask(0, nil); s != cl.SUCCESS || n == 0 {
		return nil, s
	}
	list := make([]uint32, 2*min(int(n), maxFormats))
	if s := ask(len(list)/2, (*C.uint32_t)(unsafe.Pointer(&list[0]))); s != cl.SUCCESS {
		return nil, s
	}
	return list[:min(len(list), 2*int(n))], cl.SUCCESS
}

// MemInfo is clGetMemObjectInfo.
func (m Mem) MemInfo(param uint32) ([]byte, Status) {
	return info(C.TD_MEM, uintptr(m), 0, 0, param, nil)
}

// ImageInfo is clGetImageInfo.
func (m Mem) ImageInfo(param uint32) ([]byte, Status) {
	return info(C.TD_IMAGE, uintptr(m), 0, 0, param, nil)
}

// Release drops the caller's reference.
func (s Sampler) Release() Status { return release(C.TD_RELEASE_SAMPLER, uintptr(s)) }

func region(r *Region) *C.td_region { return (*C.td_region)(unsafe.Pointer(r)) }

// TransferImage is clEnqueueReadImage (read) or clEnqueueWriteImage, not blocking; pitches in bytes, of the host's
// side. host is an address outside Go's heap, or pinned, that stays until the command is done.
func (q Queue) TransferImage(read bool, m Mem, at *Region, row, slice uint64, host uintptr, a After) (Event, Status) {
	var event C.td_handle
	s := C.td_transfer_image(C.td_handle(q), flag(read), C.td_handle(m), region(at), C.size_t(row), C.size_t(slice),
		C.uintptr_t(host),
		C.uint32_t(len(a.Wait)), handles(a.Wait), a.event(&event))
	return Event(event), Status(s)
}

// CopyImage is clEnqueueCopyImage; from.Region is the size of both sides.
func (q Queue) CopyImage(src, dst Mem, from *Region, to *[3]uintptr, a After) (Event, Status) {
	var event C.td_handle
	size := func(v *[3]uintptr) *C.size_t { return (*C.size_t)(unsafe.Pointer(&v[0])) }
	s := C.td_copy_image(C.td_handle(q), C.td_handle(src), C.td_handle(dst), size(&from.Origin), size(to),
		size(&from.Region),
		C.uint32_t(len(a.Wait)), handles(a.Wait), a.event(&event))
	return Event(event), Status(s)
}

// CopyImageBuffer is clEnqueueCopyImageToBuffer (toBuffer) or clEnqueueCopyBufferToImage; offset in bytes.
func (q Queue) CopyImageBuffer(toBuffer bool, image, buffer Mem, at *Region, offset uint64, a After) (Event, Status) {
	var event C.td_handle
	s := C.td_copy_image_buffer(C.td_handle(q), flag(toBuffer), C.td_handle(image), C.td_handle(buffer), region(at),
		C.size_t(offset),
		C.uint32_t(len(a.Wait)), handles(a.Wait), a.event(&event))
	return Event(event), Status(s)
}

// FillImage is clEnqueueFillImage; the driver copies the color, four components of 32 bits.
func (q Queue) FillImage(m Mem, color *[16]byte, at *Region, a After) (Event, Status) {
	var event C.td_handle
	s := C.td_fill_image(C.td_handle(q), C.td_handle(m), unsafe.Pointer(color), region(at),
		C.uint32_t(len(a.Wait)), handles(a.Wait), a.event(&event))
	return Event(event), Status(s)
}
