//go:build cgo

package cuda

// #include "driver.h"
import "C"

import (
	"errors"
	"runtime"
	"unsafe"
)

// Pinned is host memory that devices copy from and to by themselves: at the speed of the bus, and without a thread.
type Pinned struct {
	c     *Context
	bytes []byte
}

// Pin pins memory that is mapped, from a page's begin on, for every context. readOnly: the mapping cannot be written,
// and nothing is copied to it; not every device can have that. The caller must Unpin it before it unmaps it.
func (c *Context) Pin(memory []byte, readOnly bool) (*Pinned, error) {
	if len(memory) == 0 {
		return nil, errors.New("no bytes of host memory are to be pinned")
	}
	var only C.int
	if readOnly {
		only = 1
	}
	if err := c.l.err("cuMemHostRegister", C.tc_register(c.l.handle, c.context,
		C.uintptr_t(uintptr(unsafe.Pointer(&memory[0]))), C.uint64_t(len(memory)), only)); err != nil {
		return nil, err
	}
	return &Pinned{c, memory}, nil
}

// Unpin ends it. No copy may be under way.
func (p *Pinned) Unpin() error {
	return p.c.l.err("cuMemHostUnregister", C.tc_unregister(p.c.l.handle, p.c.context,
		C.uintptr_t(uintptr(unsafe.Pointer(&p.bytes[0])))))
}

// Stream is a queue of a device's copies. Not safe for concurrent use.
type Stream struct {
	c      *Context
	stream C.tc_stream
}

// Stream makes one. The caller must Close it.
func (c *Context) Stream() (*Stream, error) {
	s := &Stream{c: c}
	if err := c.l.err("cuStreamCreate", C.tc_stream_of(c.l.handle, c.context, &s.stream)); err != nil {
		return nil, err
	}
	return s, nil
}

// Wait waits until everything in the queue is done, and says what failed.
func (s *Stream) Wait() error {
	return s.c.l.err(waitsForStream, C.tc_wait_stream(s.c.l.handle, s.c.context, s.stream))
}

// Close ends the queue; it is empty.
func (s *Stream) Close() error {
	return s.c.l.err("cuStreamDestroy", C.tc_end_stream(s.c.l.handle, s.c.context, s.stream))
}

// WriteLater is Write through a queue, from memory that is pinned and stays as it is until Wait.
func (v *Mapping) WriteLater(s *Stream, offset uint64, from []byte) error {
	at, err := v.part(offset, uint64(len(from)))
	if err != nil || len(from) == 0 {
		return err
	}
	err = v.c.l.err("cuMemcpyHtoDAsync", C.tc_to_device_later(v.c.l.handle, v.c.context, at,
		C.uintptr_t(uintptr(unsafe.Pointer(&from[0]))), C.uint64_t(len(from)), s.stream))
	runtime.KeepAlive(from)
	return err
}

// ReadLater is Read through a queue, into memory that is pinned; it is there after Wait.
func (v *Mapping) ReadLater(s *Stream, to []byte, offset uint64) error {
	at, err := v.part(offset, uint64(len(to)))
	if err != nil || len(to) == 0 {
		return err
	}
	err = v.c.l.err("cuMemcpyDtoHAsync", C.tc_to_host_later(v.c.l.handle, v.c.context,
		C.uintptr_t(uintptr(unsafe.Pointer(&to[0]))), at, C.uint64_t(len(to)), s.stream))
	runtime.KeepAlive(to)
	return err
}

// CopyLater is CopyFrom through a queue, whose device has both mappings' memory mapped. It is done after Wait.
func (v *Mapping) CopyLater(s *Stream, offset uint64, from *Mapping, fromOffset, bytes uint64) error {
	at, source, err := v.parts(offset, from, fromOffset, bytes)
	if err != nil || bytes == 0 {
		return err
	}
	return s.c.l.err("cuMemcpyDtoDAsync", C.tc_copy_later(s.c.l.handle, s.c.context, at, source, C.uint64_t(bytes),
		s.stream))
}

// Event is a place in a queue that another device's queue can wait for.
type Event struct {
	c     *Context
	event C.tc_event
}

// Event makes one for this device's queues. The caller must Close it.
func (c *Context) Event() (*Event, error) {
	e := &Event{c: c}
	if err := c.l.err("cuEventCreate", C.tc_event_of(c.l.handle, c.context, &e.event)); err != nil {
		return nil, err
	}
	return e, nil
}

// Close ends it. Queues that wait for it go on waiting.
func (e *Event) Close() error {
	return e.c.l.err("cuEventDestroy", C.tc_end_event(e.c.l.handle, e.c.context, e.event))
}

// Record has an event of the same device stand for all that is in the queue now.
func (s *Stream) Record(e *Event) error {
	return s.c.l.err("cuEventRecord", C.tc_record(s.c.l.handle, s.c.context, e.event, s.stream))
}

// Await has what comes later in the queue wait for what the event, of any device, stands for now.
func (s *Stream) Await(e *Event) error {
	return s.c.l.err("cuStreamWaitEvent", C.tc_await(s.c.l.handle, s.c.context, s.stream, e.event))
}

// Reaches reports whether this context's device can have memory of another one mapped: by NVLink, or over the bus.
func (c *Context) Reaches(other *Context) (bool, error) {
	var can C.int
	err := c.l.err("cuDeviceCanAccessPeer", C.tc_can_access(c.l.handle, c.ordinal, other.ordinal, &can))
	return can != 0, err
}
