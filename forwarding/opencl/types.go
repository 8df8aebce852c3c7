package opencl

import "fmt"

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

// Codes that this side makes itself or looks for.
const (
	Success                    Status = 0
	MemObjectAllocationFailure Status = -4
	OutOfResources             Status = -5
	OutOfHostMemory            Status = -6
	FailedWaitList             Status = -14
	InvalidValue               Status = -30
	InvalidDevice              Status = -33
	InvalidContext             Status = -34
	InvalidQueue               Status = -36
	InvalidMemObject           Status = -38
	InvalidProgram             Status = -44
	InvalidSampler             Status = -41
	InvalidExecutable          Status = -45
	InvalidKernel              Status = -48
	InvalidArgIndex            Status = -49
	InvalidArgValue            Status = -50
	InvalidArgSize             Status = -51
	InvalidKernelArgs          Status = -52
	InvalidEvent               Status = -58
	InvalidOperation           Status = -59
)

// Err is nil for Success, and otherwise an error that names the call and the code.
func (s Status) Err(call string) error {
	if s == Success {
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

// Command queue properties and memory flags (CL/cl.h).
const (
	OutOfOrder = 1 << 0
	Profiling  = 1 << 1

	MemReadWrite    = 1 << 0
	MemWriteOnly    = 1 << 1
	MemReadOnly     = 1 << 2
	MemUseHostPtr   = 1 << 3
	MemAllocHostPtr = 1 << 4
	MemCopyHostPtr  = 1 << 5
)

// Parameters that the worker reads itself (CL/cl.h).
const (
	PlatformVersion     = 0x0901
	DeviceType          = 0x1000
	DeviceTypeCPU       = 1 << 1
	ProgramNumKernels   = 0x1167
	ProgramKernelNames  = 0x1168
	BuildStatus         = 0x1181
	BuildLog            = 0x1183
	BuildBinaryType     = 0x1184
	BuildGlobalVarTotal = 0x1185
	KernelNumArgs       = 0x1191
	KernelAttributes    = 0x1195
	ArgAddress          = 0x1196
	ArgAccess           = 0x1197
	ArgTypeName         = 0x1198
	ArgTypeQualifier    = 0x1199
	ArgName             = 0x119A
	WorkGroupSize       = 0x11B0
	WorkGroupCompile    = 0x11B1
	WorkGroupLocalMem   = 0x11B2
	WorkGroupMultiple   = 0x11B3
	WorkGroupPrivateMem = 0x11B4
	ProgramDevices      = 0x1163
	ProgramBinarySizes  = 0x1165
	ProgramBinaries     = 0x1166
)

// Range is the index space of a launch (OpenCL 3.0 §5.8), in work-items.
type Range struct {
	Dims                  uint32
	HasOffset, HasLocal   uint32
	Global, Offset, Local [3]uintptr
}

// Arg is one argument of a launch: Size bytes at Offset of the value area.
// Local memory has a size and no value.
type Arg struct {
	Index  uint32
	Local  uint32 // 1: Size bytes of local memory
	Offset uint32 // into the value area, a multiple of 16
	_      uint32
	Size   uint64 // bytes
}

// Box is one side of a rectangular copy: origin (x in bytes) and pitches in bytes.
type Box struct {
	Origin     [3]uintptr
	Row, Slice uintptr
}

// Parameters and kinds of images (CL/cl.h).
const (
	MemSize          = 0x1102
	ImageElementSize = 0x1111
	ImageRowPitch    = 0x1112
	ImageSlicePitch  = 0x1113
	Image2D          = 0x10F1
	Image3D          = 0x10F2
	Image2DArray     = 0x10F3
	Image1D          = 0x10F4
	Image1DArray     = 0x10F5
	Image1DBuffer    = 0x10F6
)

// ImageDesc is cl_image_format and cl_image_desc: sizes in elements, pitches in bytes.
type ImageDesc struct {
	Order, DataType, Kind           uint32
	Width, Height, Depth, ArraySize uint64
	RowPitch, SlicePitch            uint64
	Parent                          Mem
}

// Region is a part of an image, in elements; an array's images are its last dimension.
type Region struct{ Origin, Region [3]uintptr }
