package opencl

import (
	"fmt"

	"tendril/forwarding/cl"
)

// Native handles. Zero is none.
type (
	Device  uintptr
	Context uintptr
	Queue   uintptr
	Mem     uintptr
	Program uintptr
	Kernel  uintptr
	Event   uintptr
	Sampler uintptr
)

// Status is a cl_int: 0 or a negative code of the OpenCL headers.
type Status int32

// Err is nil for Success, and otherwise an error that names the call and the code.
func (s Status) Err(call string) error {
	if s == cl.SUCCESS {
		return nil
	}
	return &CallError{Call: call, Status: s}
}

// CallError is a driver's refusal.
type CallError struct {
	Call   string
	Status Status
}

func (e *CallError) Error() string { return fmt.Sprintf("%s: OpenCL error %d", e.Call, e.Status) }

// Range is the index space of a launch (OpenCL 3.0 §5.8), in work-items.
type Range struct {
	Dims                  uint32
	HasOffset, HasLocal   uint32
	Global, Offset, Local [3]uintptr
}

// How an argument is set: by its value, as local memory of a size, as an address of shared virtual memory.
const (
	ArgValue = 0
	ArgLocal = 1
	ArgSVM   = 2
)

// Arg is one argument of a launch: Size bytes at Offset of the value area.
// Local memory has a size and no value.
type Arg struct {
	Index  uint32
	Kind   uint32 // ArgValue, ArgLocal or ArgSVM
	Offset uint32 // into the value area, a multiple of 16
	_      uint32
	Size   uint64 // bytes
}

// Box is one side of a rectangular copy: origin (x in bytes) and pitches in bytes.
type Box struct {
	Origin     [3]uintptr
	Row, Slice uintptr
}

// ImageDesc is cl_image_format and cl_image_desc: sizes in elements, pitches in bytes.
type ImageDesc struct {
	Order, DataType, Kind           uint32
	Width, Height, Depth, ArraySize uint64
	RowPitch, SlicePitch            uint64
	Parent                          Mem
}

// Region is a part of an image, in elements; an array's images are its last dimension.
type Region struct{ Origin, Region [3]uintptr }
