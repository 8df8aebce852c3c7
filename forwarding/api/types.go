package api

import (
	"fmt"

	"tendril/forwarding/cl"
	"tendril/store/object"
)

// Status is a cl_int: 0 or one of the negative numbers of OpenCL 3.0 (cl.h).
type Status int32

// Waits is how an enqueue call names what it waits for and whether it wants an event: num_events_in_wait_list,
// event_wait_list (nil: NULL) and event.
type Waits struct {
	N    uint32
	List []uintptr
	Want bool

	Recorder any  // not nil: the command is recorded and not sent; set by Record alone, which knows what it is
	Internal bool // the program did not ask for this transfer: what its flags deny the host does not hold for it
}

// Recorded says that the command goes into a command buffer (Record), and is not sent.
func (w *Waits) Recorded() bool { return w.Recorder != nil }

// Range is the index space of a launch (OpenCL 3.0 §5.8), in work-items.
type Range struct {
	Dims                uint32
	HasOffset, HasLocal bool
	Offset              [3]uint64
	Global              [3]uint64
	Local               [3]uint64
}

// Rect holds the arguments that the rectangular commands share (§5.2.2).
type Rect struct {
	BufferOrigin, HostOrigin, Region               [3]uint64
	BufferRow, BufferSlice, HostRow, HostSlice     uint64
	MissingBuffer, MissingHost, MissingRegionArray bool // NULL where an array must be
}

// ImageFormat is cl_image_format.
type ImageFormat struct{ Order, DataType uint32 }

// ImageDesc is cl_image_desc: sizes in elements, pitches in bytes, Parent its buffer or mem_object.
type ImageDesc struct {
	Kind                            uint32
	Width, Height, Depth, ArraySize uint64
	RowPitch, SlicePitch            uint64
	MipLevels, Samples              uint32
	Parent                          uintptr
}

// Extent is an image's size in the three dimensions of its regions; false for no kind of image.
func (desc *ImageDesc) Extent() ([3]uint64, bool) {
	switch desc.Kind {
	case cl.MEM_OBJECT_IMAGE1D, cl.MEM_OBJECT_IMAGE1D_BUFFER:
		return [3]uint64{desc.Width, 1, 1}, true
	case cl.MEM_OBJECT_IMAGE1D_ARRAY:
		return [3]uint64{desc.Width, desc.ArraySize, 1}, true
	case cl.MEM_OBJECT_IMAGE2D:
		return [3]uint64{desc.Width, desc.Height, 1}, true
	case cl.MEM_OBJECT_IMAGE2D_ARRAY:
		return [3]uint64{desc.Width, desc.Height, desc.ArraySize}, true
	case cl.MEM_OBJECT_IMAGE3D:
		return [3]uint64{desc.Width, desc.Height, desc.Depth}, true
	}
	return [3]uint64{}, false
}

// ImageRegion is a part of an image as the enqueue calls name it, in elements. Missing: an array was NULL.
type ImageRegion struct {
	Origin, Region [3]uint64
	Missing        bool
}

// ImageMap is what clEnqueueMapImage answers; pitches in bytes.
type ImageMap struct {
	At         HostPtr
	Row, Slice uint64
	Event      uintptr
}

// SyncPoints is how a recording call names what its command waits for, and what else it was given.
type SyncPoints struct {
	Queue   uintptr // must be none
	N       uint32
	List    []uint32 // nil: NULL
	Mutable bool     // a place for a mutable handle, which there is none of
}

// Push is a range of a buffer or image that goes from a worker to another one's.
type Push struct {
	Src, Dst  uintptr   // buffers, or images of the same shape, of contexts of different workers
	Off, Size uint64    // bytes, of both; of images whole rows, counted row by row through all slices without gaps
	After     []uintptr // events of Src's context: the bytes are there
	Before    []uintptr // events of Dst's context: nobody writes there any more
	Content   PushContent
	// Lost is called where the link ends before the push did: the caller has to bring the bytes otherwise, and then to
	// end the event with SetUserEventStatus. Ended is called once the event has ended. Both run on the callbacks'
	// goroutine.
	Lost  func(event uintptr)
	Ended func(status int32)
}

// PushContent is what says how much of a push means something: see clwire.PeerContent. Size 0: all does, as where the
// number is not known.
type PushContent struct {
	Size   uintptr // a buffer of the source's context
	Origin uint64  // bytes
	After  []uintptr
}

// ArgumentUse is what a kernel's build tells of an argument.
type ArgumentUse struct {
	Memory  bool // a buffer or an image
	Sampler bool
	Writes  bool // the kernel may write through it
	Known   bool // false: the driver gave no argument information
}

// ErrNotPublishable answers Publish for memory that is not a buffer's own.
var ErrNotPublishable = fmt.Errorf("%w: publish: a sub-buffer, or a buffer over the program's own memory",
	object.ErrUnsupported)
