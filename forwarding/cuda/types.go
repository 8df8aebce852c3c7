package cuda

import (
	"errors"
	"fmt"
)

// Error is what a function of the driver answered instead of success.
type Error struct {
	Function string // as the driver names it
	Code     int    // CUresult
	Name     string // its name: "CUDA_ERROR_OUT_OF_MEMORY"
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Function, e.Name, e.Code) }

// Lasts reports whether the driver answers the same to whatever this process asks from now on, for the device's context
// is broken: an uncorrectable error of the memory or a link, a fault of an address or a program, or the device was
// reset. Another process begins again. So it is where waiting for the device failed, whatever the code: nobody knows
// what it still reads and writes, and the process's end stops it. And so it is where giving memory back failed: the
// process's end gives it back.
func (e *Error) Lasts() bool {
	switch e.Function {
	case waitsForDevice, waitsForStream, "cuMemUnmap", "cuMemAddressFree", "cuMemRelease", "cuMemHostUnregister",
		cuMemFree:
		return true
	}
	switch e.Code {
	case 4, 201, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999:
		return true
	}
	return false
}

// ErrLasts is what every Error is that lasts, wherever it stands among joined ones: for errors.Is.
var ErrLasts = errors.New("the driver is of no use to this process any more")

// Is reports whether the error lasts, for ErrLasts.
func (e *Error) Is(target error) bool { return target == ErrLasts && e.Lasts() }

// The functions that wait for what a device does.
const (
	waitsForDevice = "cuCtxSynchronize"
	waitsForStream = "cuStreamSynchronize"
)

// cuMemFree is the function that gives an Owned back.
const cuMemFree = "cuMemFree"

// HandleBytes is the size of a CUipcMemHandle.
const HandleBytes = 64

// NotSupported is the code of what a device or its driver does not do: CUDA_ERROR_NOT_SUPPORTED.
const NotSupported = 801

// OutOfMemory is the code of an allocation for which the device has no room: CUDA_ERROR_OUT_OF_MEMORY.
const OutOfMemory = 2

// Device is one GPU, as the driver lists it. CUDA_VISIBLE_DEVICES chooses which ones there are, and in which order.
type Device struct {
	Ordinal int // place in the driver's list: not the same in every process
	UUID    [16]byte
	Name    string
	Bytes   uint64 // of its memory
	Shares  bool   // memory of it can be handed to other processes as a descriptor
	Mode    int    // its compute mode (CUcomputemode) when the devices were listed
}
