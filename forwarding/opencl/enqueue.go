//go:build cgo

package opencl

/*
#cgo noescape td_launch
#cgo nocallback td_launch
#cgo noescape td_set_arg
#cgo nocallback td_set_arg
#cgo noescape td_copy
#cgo nocallback td_copy
#cgo noescape td_copy_rect
#cgo nocallback td_copy_rect
#cgo noescape td_fill
#cgo nocallback td_fill
#cgo noescape td_transfer
#cgo nocallback td_transfer
#cgo noescape td_transfer_rect
#cgo nocallback td_transfer_rect
#cgo noescape td_marker
#cgo nocallback td_marker
#cgo noescape td_statuses
#cgo nocallback td_statuses
#cgo noescape td_release_events
#cgo nocallback td_release_events
#cgo noescape td_profile
#cgo nocallback td_profile
#cgo nocallback td_release
#cgo nocallback td_flush
#include "driver.h"
*/
import "C"

import "unsafe"

// After is what every enqueue takes: the events to wait for, and whether the
// caller wants an event, which it then owns.
type After struct {
	Wait []Event
	Want bool
}

func (a *After) event(e *C.td_handle) *C.td_handle {
	if a.Want {
		return e
	}
	return nil
}

// SetArg is clSetKernelArg: Size bytes at Offset of values. One goroutine a kernel.
func (k Kernel) SetArg(a Arg, values []byte) Status {
	return Status(C.td_set_arg(C.td_handle(k), (*C.td_arg)(unsafe.Pointer(&a)), (*C.uchar)(unsafe.SliceData(values))))
}

// Launch sets args and enqueues the kernel in one crossing. bad is the position in args that the driver refused, or −1.
func (q Queue) Launch(k Kernel, r *Range, args []Arg, values []byte, a After) (e Event, bad int, s Status) {
	var event C.td_handle
	var refused C.int32_t
	s = Status(C.td_launch(C.td_handle(q), C.td_handle(k), (*C.td_range)(unsafe.Pointer(r)),
		C.uint32_t(len(args)), (*C.td_arg)(unsafe.Pointer(unsafe.SliceData(args))),
		(*C.uchar)(unsafe.SliceData(values)),
		C.uint32_t(len(a.Wait)), handles(a.Wait), a.event(&event), &refused))
	return Event(event), int(refused), s
}

// Copy is clEnqueueCopyBuffer; offsets and size in bytes.
func (q Queue) Copy(src, dst Mem, srcOffset, dstOffset, size uint64, a After) (Event, Status) {
	var event C.td_handle
	s := C.td_copy(C.td_handle(q), C.td_handle(src), C.td_handle(dst), C.size_t(srcOffset), C.size_t(dstOffset),
		C.size_t(size),
		C.uint32_t(len(a.Wait)), handles(a.Wait), a.event(&event))
	return Event(event), Status(s)
}

// CopyRect is clEnqueueCopyBufferRect.
func (q Queue) CopyRect(src, dst Mem, from, to *Box, region *[3]uintptr, a After) (Event, Status) {
	var event C.td_handle
	s := C.td_copy_rect(C.td_handle(q), C.td_handle(src), C.td_handle(dst), box(from), box(to),
		(*C.size_t)(unsafe.Pointer(&region[0])),
		C.uint32_t(len(a.Wait)), handles(a.Wait), a.event(&event))
	return Event(event), Status(s)
}

func box(b *Box) *C.td_box { return (*C.td_box)(unsafe.Pointer(b)) }

// Fill is clEnqueueFillBuffer; the driver copies the pattern.
func (q Queue) Fill(m Mem, pattern []byte, offset, size uint64, a After) (Event, Status) {
	var event C.td_handle
	s := C.td_fill(C.td_handle(q), C.td_handle(m), unsafe.Pointer(unsafe.SliceData(pattern)), C.size_t(len(pattern)),
		C.size_t(offset), C.size_t(size),
		C.uint32_t(len(a.Wait)), handles(a.Wait), a.event(&event))
	return Event(event), Status(s)
}

func flag(b bool) C.uint32_t {
	if b {
		return 1
	}
	return 0
}

// Transfer is clEnqueueReadBuffer (read) or clEnqueueWriteBuffer, not blocking.
// host is an address outside Go's heap, or pinned, that stays until the command is done.
func (q Queue) Transfer(read bool, m Mem, offset, size uint64, host uintptr, a After) (Event, Status) {
	var event C.td_handle
	s := C.td_transfer(C.td_handle(q), flag(read), 0, C.td_handle(m), C.size_t(offset), C.size_t(size),
		C.uintptr_t(host),
		C.uint32_t(len(a.Wait)), handles(a.Wait), a.event(&event))
	return Event(event), Status(s)
}

// TransferRect is clEnqueueReadBufferRect or clEnqueueWriteBufferRect, not blocking.
func (q Queue) TransferRect(read bool, m Mem, buffer, hostBox *Box, region *[3]uintptr, host uintptr,
	a After) (Event, Status) {
	var event C.td_handle
	s := C.td_transfer_rect(C.td_handle(q), flag(read), C.td_handle(m), box(buffer), box(hostBox),
		(*C.size_t)(unsafe.Pointer(&region[0])), C.uintptr_t(host),
		C.uint32_t(len(a.Wait)), handles(a.Wait), a.event(&event))
	return Event(event), Status(s)
}

// Map is a blocking clEnqueueMapBuffer for reading and writing; it returns the address.
func (q Queue) Map(m Mem, size uint64) (uintptr, Status) {
	const readWrite = 3 // CL_MAP_READ | CL_MAP_WRITE
	var err C.cl_int
	p := C.td_map(C.td_handle(q), C.td_handle(m), readWrite, C.size_t(size), &err)
	return uintptr(p), Status(err)
}

// Unmap is clEnqueueUnmapMemObject.
func (q Queue) Unmap(m Mem, host uintptr) Status {
	return Status(C.td_unmap(C.td_handle(q), C.td_handle(m), C.uintptr_t(host)))
}

// Marker is clEnqueueMarkerWithWaitList, or clEnqueueBarrierWithWaitList.
func (q Queue) Marker(barrier bool, a After) (Event, Status) {
	var event C.td_handle
	s := C.td_marker(C.td_handle(q), flag(barrier), C.uint32_t(len(a.Wait)), handles(a.Wait), a.event(&event))
	return Event(event), Status(s)
}

// Flush is clFlush.
func (q Queue) Flush() Status { return Status(C.td_flush(C.td_handle(q))) }

// Finish is clFinish; it blocks.
func (q Queue) Finish() Status { return Status(C.td_finish(C.td_handle(q))) }

// Statuses asks for the execution status of every event (3 queued … 0 complete,
// negative failed) in one crossing. len(status) ≥ len(events).
func Statuses(events []Event, status []int32) {
	if len(events) == 0 {
		return
	}
	_ = status[len(events)-1]
	C.td_statuses(C.uint32_t(len(events)), handles(events), (*C.int32_t)(unsafe.Pointer(&status[0])))
}

// ReleaseEvents drops the caller's reference on each event, in one crossing.
func ReleaseEvents(events []Event) {
	C.td_release_events(C.uint32_t(len(events)), handles(events))
}

// Wait is clWaitForEvents of one event; it blocks. It fails when the event did.
func (e Event) Wait() Status { return Status(C.td_wait(C.td_handle(e))) }

// Profile reads the five times of clGetEventProfilingInfo, in ns of the device's clock.
func (e Event) Profile() ([5]uint64, Status) {
	var t [5]uint64
	s := C.td_profile(C.td_handle(e), (*C.uint64_t)(unsafe.Pointer(&t[0])))
	return t, Status(s)
}
