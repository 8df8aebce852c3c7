// Package geometry says how images lie: in the program's memory, in a buffer, and in memory that maps show (§5.3 of
// OpenCL 3.0). It is arithmetic of sizes and pitches, with the checks and the codes of the specification.
//
// Trust: sizes and pitches are the program's and the driver's; none makes a product overflow. Locks: none.
package geometry

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/transfer"
)

// Image is an image's format and sizes. It does not change once the image is shown to the program.
type Image struct {
	Format       api.ImageFormat
	Desc         api.ImageDesc
	Extent       [3]uint64 // elements; an array's images are its last dimension
	ElementBytes uint64
	Row, Slice   uint64       // bytes, as CL_IMAGE_ROW_PITCH and CL_IMAGE_SLICE_PITCH
	UnderRow     uint64       // bytes between rows in the buffer under the image, if there is one
	Host         transfer.Box // how the program's own memory is laid out (CL_MEM_USE_HOST_PTR, CL_MEM_COPY_HOST_PTR)
}

// Take keeps what the driver said of the image. width is that of a row, in bytes.
func (im *Image) Take(facts *clwire.ImageFacts) (width uint64, status api.Status) {
	im.ElementBytes, im.Row, im.Slice = facts.ElementBytes, facts.RowPitch, facts.SlicePitch
	width, ok := product(im.Extent[0], im.ElementBytes)
	if im.ElementBytes == 0 || !ok {
		return 0, cl.INVALID_IMAGE_SIZE
	}
	if _, ok := product(width, im.Extent[1], im.Extent[2]); !ok {
		return 0, cl.INVALID_IMAGE_SIZE
	}
	return width, cl.SUCCESS
}

// FitUnder checks that an image with rows of width bytes lies in a buffer of size bytes.
func (im *Image) FitUnder(width, size uint64) api.Status {
	im.UnderRow = max(im.Row, width)
	end, ok := product(im.UnderRow, im.Extent[1])
	if !ok || end-(im.UnderRow-width) > size {
		return cl.INVALID_IMAGE_SIZE
	}
	return cl.SUCCESS
}

// LayOut takes the pitches that the program gave for its own memory (§5.3.1.2); 0 means without gaps.
func (im *Image) LayOut(width uint64) api.Status {
	row, slice := im.Desc.RowPitch, im.Desc.SlicePitch
	if row == 0 {
		row = width
	}
	if row < width || row%im.ElementBytes != 0 || row > transfer.MaxBytes {
		return cl.INVALID_IMAGE_DESCRIPTOR
	}
	if !im.Sliced() {
		if slice != 0 && slice%row != 0 { // it has none
			return cl.INVALID_IMAGE_DESCRIPTOR
		}
		im.Host, im.Row = transfer.Box{Row: row, Slice: row * max(im.Extent[1], 1)}, row
		return cl.SUCCESS
	}
	height := im.Extent[1]
	if im.Desc.Kind == cl.MEM_OBJECT_IMAGE1D_ARRAY {
		height = 1
	}
	least, ok := product(row, height)
	if slice == 0 {
		slice = least
	}
	if !ok || slice < least || slice%row != 0 || slice > transfer.MaxBytes {
		return cl.INVALID_IMAGE_DESCRIPTOR
	}
	im.Row, im.Slice, im.Host = row, slice, transfer.Box{Row: row, Slice: slice}
	if im.Desc.Kind == cl.MEM_OBJECT_IMAGE1D_ARRAY {
		im.Host = transfer.Box{Row: slice, Slice: slice}
	}
	return cl.SUCCESS
}

// HostBytes is how much of the program's memory the image covers, pitches and all.
func (im *Image) HostBytes() uint64 {
	switch im.Desc.Kind {
	case cl.MEM_OBJECT_IMAGE1D:
		return im.Row
	case cl.MEM_OBJECT_IMAGE2D:
		return im.Row * im.Extent[1]
	case cl.MEM_OBJECT_IMAGE1D_ARRAY:
		return im.Slice * im.Extent[1]
	}
	return im.Slice * im.Extent[2]
}

// DenseBytes is the size of all elements, without gaps.
func (im *Image) DenseBytes() uint64 {
	return im.ElementBytes * im.Extent[0] * im.Extent[1] * im.Extent[2]
}

// Bytes is a region, or an origin, with x in bytes.
func (im *Image) Bytes(region [3]uint64) [3]uint64 {
	region[0] *= im.ElementBytes
	return region
}

// Size is a size that only some kinds of image have: 0 for the others.
func (im *Image) Size(size uint64, kinds ...uint32) uint64 {
	for _, kind := range kinds {
		if im.Desc.Kind == kind {
			return size
		}
	}
	return 0
}

// Holds says whether a region lies in the image.
func (im *Image) Holds(r *api.ImageRegion) bool { return !r.Missing && im.Inside(r.Origin, r.Region) }

// Inside says so of a region, in elements.
func (im *Image) Inside(origin, region [3]uint64) bool {
	for i, n := range im.Extent {
		if region[i] == 0 || origin[i] > n || region[i] > n-origin[i] {
			return false
		}
	}
	return true
}

// HostBox is the layout of the program's side of a read or write: pitches in bytes, 0 for without gaps (§5.3.3).
func (im *Image) HostBox(region [3]uint64, row, slice uint64) (transfer.Box, api.Status) {
	width := region[0] * im.ElementBytes
	if row == 0 {
		row = width
	}
	if row < width || row > transfer.MaxBytes {
		return transfer.Box{}, cl.INVALID_VALUE
	}
	switch {
	case !im.Sliced():
		if slice != 0 {
			return transfer.Box{}, cl.INVALID_VALUE
		}
		slice = row * region[1]
	case im.Desc.Kind == cl.MEM_OBJECT_IMAGE1D_ARRAY:
		slice = max(slice, row)
		return fitting(transfer.Box{Row: slice, Slice: slice}, region, width)
	default:
		least, ok := product(row, region[1])
		if slice == 0 {
			slice = least
		}
		if !ok || slice < least {
			return transfer.Box{}, cl.INVALID_VALUE
		}
	}
	return fitting(transfer.Box{Row: row, Slice: slice}, region, width)
}

// fitting refuses a layout that no address space holds.
func fitting(b transfer.Box, region [3]uint64, width uint64) (transfer.Box, api.Status) {
	region[0] = width
	if _, ok := b.End(region); !ok || b.Slice > transfer.MaxBytes {
		return transfer.Box{}, cl.INVALID_VALUE
	}
	return b, cl.SUCCESS
}

// UnderBox is where a region lies in the buffer under the image: the origin in elements, the region's x in bytes.
func (im *Image) UnderBox(origin, region [3]uint64) transfer.Box {
	return transfer.Box{Origin: im.Bytes(origin), Row: im.UnderRow, Slice: im.UnderRow * region[1]}
}

// DenseBox is how all of the image lies without gaps.
func (im *Image) DenseBox() transfer.Box {
	width := im.Extent[0] * im.ElementBytes
	return transfer.Box{Row: width, Slice: width * im.Extent[1]}
}

// MapPitches are what clEnqueueMapImage answers of a layout: no slice pitch where the image has none.
func (im *Image) MapPitches(layout *transfer.Box) (row, slice uint64) {
	switch {
	case !im.Sliced():
		return layout.Row, 0
	case im.Desc.Kind == cl.MEM_OBJECT_IMAGE1D_ARRAY:
		return max(im.Extent[0]*im.ElementBytes, min(im.Row, layout.Row)), layout.Row
	}
	return layout.Row, layout.Slice
}

// Sliced says whether the image has a slice pitch.
func (im *Image) Sliced() bool {
	switch im.Desc.Kind {
	case cl.MEM_OBJECT_IMAGE1D, cl.MEM_OBJECT_IMAGE1D_BUFFER, cl.MEM_OBJECT_IMAGE2D:
		return false
	}
	return true
}

// ColorBytes is how much of a fill color the program has to give.
func (im *Image) ColorBytes() uint64 {
	if im.Format.Order == cl.DEPTH {
		return 4
	}
	return clwire.ColorBytes
}

// Overlap says whether two regions of one size share an element.
func Overlap(a, b, region [3]uint64) bool {
	for i := range region {
		if max(a[i], b[i])-min(a[i], b[i]) >= region[i] {
			return false
		}
	}
	return true
}

// SpansMeet says whether two spans of n bytes share one.
func SpansMeet(a, b, n uint64) bool { return a < b+n && b < a+n }

// product multiplies sizes; false when the result is no size of memory.
func product(v ...uint64) (uint64, bool) {
	n := uint64(1)
	for _, x := range v {
		if x != 0 && n > transfer.MaxBytes/x {
			return 0, false
		}
		n *= x
	}
	return n, n <= transfer.MaxBytes
}
