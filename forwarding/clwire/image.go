package clwire

import "tendril/ipc/field"

// CreateImage makes a native image (OpenCL 3.0 §5.3.1): in the driver's memory, or over Parent. Its Reply carries
// ImageFacts. The program's own memory never travels with it: its contents are written afterwards.
//
//wire:record
type CreateImage struct {
	ID, Context        uint64
	Flags              uint64 // cl_mem_flags
	Order, DataType    uint32 // cl_image_format
	Kind               uint32 // cl_mem_object_type
	Width              uint64 // in elements, as are Height, Depth; ArraySize in images
	Height, Depth      uint64
	ArraySize          uint64
	RowPitch           uint64 // bytes; 0: the driver's choice
	SlicePitch, Parent uint64 // bytes; a buffer or an image, 0: none
}

// ImageFacts is what the driver says of a new image; all in bytes.
//
//wire:payload
type ImageFacts struct {
	ElementBytes         uint64 // CL_IMAGE_ELEMENT_SIZE
	RowPitch, SlicePitch uint64
	MemBytes             uint64 // CL_MEM_SIZE
}

// CreateSampler makes a native sampler (§5.7).
//
//wire:record
type CreateSampler struct {
	ID, Context        uint64
	Normalized         bool
	Addressing, Filter uint32 // cl_addressing_mode, cl_filter_mode
}

// ImageFormats asks for clGetSupportedImageFormats. Its Reply carries pairs of u32: channel order, channel data type.
//
//wire:record
type ImageFormats struct {
	Context, Flags uint64 // Flags is cl_mem_flags
	Kind           uint32 // cl_mem_object_type
}

// CopyImage is clEnqueueCopyImage; origins and region in elements, as there.
//
//wire:record
type CopyImage struct {
	Cmd
	Src, Dst                     uint64
	SrcOrigin, DstOrigin, Region [3]uint64
}

// Directions of a CopyImageBuffer.
const (
	BufferToImage = 0
	ImageToBuffer = 1
)

// CopyImageBuffer is clEnqueueCopyBufferToImage or clEnqueueCopyImageToBuffer; Offset in bytes, the region in elements.
//
//wire:record
type CopyImageBuffer struct {
	Cmd
	Direction      uint8
	Image, Buffer  uint64
	Offset         uint64
	Origin, Region [3]uint64
}

func (m *CopyImageBuffer) check(r *field.Reader) {
	if m.Direction > ImageToBuffer {
		r.Fail("direction")
	}
}

// ColorBytes is the size of a fill color: four components of 32 bits.
const ColorBytes = 16

// FillImage is clEnqueueFillImage; the region in elements.
//
//wire:record
type FillImage struct {
	Cmd
	Image          uint64
	Color          [ColorBytes]byte
	Origin, Region [3]uint64
}

// WriteImageInline is clEnqueueWriteImage with bytes that ride in the record, dense; origin and region with x in bytes.
//
//wire:record
type WriteImageInline struct {
	Cmd
	Image          uint64
	Origin, Region [3]uint64
	Data           []byte
}
