package cuda

import "fmt"

// Error is what a function of the driver answered instead of success.
type Error struct {
	Function string // as the driver names it
	Code     int    // CUresult
	Name     string // its name: "CUDA_ERROR_OUT_OF_MEMORY"
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Function, e.Name, e.Code) }

// OutOfMemory is the code of an allocation for which the device has no room: CUDA_ERROR_OUT_OF_MEMORY.
const OutOfMemory = 2

// Device is one GPU, as the driver lists it. CUDA_VISIBLE_DEVICES chooses which ones there are, and in which order.
type Device struct {
	Ordinal int // place in the driver's list: not the same in every process
	UUID    [16]byte
	Name    string
	Bytes   uint64 // of its memory
	Shares  bool   // memory of it can be handed to other processes as a descriptor
}
