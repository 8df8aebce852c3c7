//go:build cgo

package worker

import (
	"unsafe"

	"tendril/forwarding/opencl"
	"tendril/forwarding/worker/engine"
)

// asEvents views native handles as the binding's events: both are a uintptr.
func asEvents(h []engine.Native) []opencl.Event {
	return unsafe.Slice((*opencl.Event)(unsafe.SliceData(h)), len(h))
}
