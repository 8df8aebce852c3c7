//go:build cgo

package worker

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/fixed"
	"tendril/forwarding/opencl"
)

// Shared virtual memory (OpenCL 3.0 §5.6): memory that has the same address here as in the program, so that pointers in
// it mean the same to both. docs/design/svm.md.

// createSVM makes the memory, and the buffer over it by which commands name it.
func (s *session) createSVM(h clwire.Header, m *clwire.CreateSVM) error {
	if err := s.fresh(m.ID); err != nil {
		return err
	}
	c, err := lookup[*clContext](s, m.Context)
	if err != nil {
		return err
	}
	if h.Request == 0 {
		return fmt.Errorf("%w: CreateSVM without a request", errRecord)
	}
	b := &buffer{size: m.Size, context: c, status: c.status}
	b.refs.Store(1)
	var at uintptr
	switch {
	case b.status != cl.SUCCESS:
	case m.Segment != 0:
		at, err = s.svmOfSegment(b, m)
	case s.take(b, m.Size) != cl.SUCCESS:
	case s.inPlace && m.Address != 0:
		at = s.svmOfOwn(b, m)
	default:
		at = s.svmOfDriver(b, m)
	}
	if err != nil {
		return err
	}
	if (at == 0 || b.status != cl.SUCCESS) && b.charged > 0 {
		b.memory.give(b.charged)
		b.charged = 0
	}
	s.objects[m.ID] = b
	s.reply(h.Request, b.status, nativeOrder.AppendUint64(nil, uint64(at)))
	if at == 0 && b.status == cl.SUCCESS {
		b.status = cl.MEM_OBJECT_ALLOCATION_FAILURE // nothing may be done with it
	}
	return nil
}

// svmOfSegment shows a segment at the program's address too. 0: something else lies there.
func (s *session) svmOfSegment(b *buffer, m *clwire.CreateSVM) (uintptr, error) {
	seg, err := s.segment(m.Segment)
	if err != nil {
		return 0, err
	}
	if !s.inPlace || seg.readOnly || seg.gpu != nil || m.Address == 0 || m.Size > uint64(len(seg.mem)) {
		return 0, fmt.Errorf("%w: %d bytes of shared virtual memory in a segment of %d", errRecord, m.Size, len(seg.mem))
	}
	b.svm, b.status = s.svmAt(m, func(mem []byte) error { return fixed.View(mem, seg.mem) })
	if b.svm == nil {
		return 0, nil
	}
	s.layOver(b, 0, seg, 0)
	return b.svm.at, nil
}

// svmOfOwn maps memory of this process at the program's address. 0: something else lies there.
func (s *session) svmOfOwn(b *buffer, m *clwire.CreateSVM) uintptr {
	if m.Align > clwire.SVMTypeAlign {
		b.status = cl.INVALID_VALUE // as drivers do that compute on any memory
		return 0
	}
	if b.svm, b.status = s.svmAt(m, fixed.Fresh); b.svm == nil {
		return 0
	}
	s.layOver(b, 0, b.svm, 0)
	return b.svm.at
}

// svmAt maps memory at the program's address, and fills it. nil and success: something else lies there, and the program
// tries another address.
func (s *session) svmAt(m *clwire.CreateSVM, fill func(mem []byte) error) (*segment, opencl.Status) {
	mem, err := fixed.Reserve(uintptr(m.Address), m.Size)
	if errors.Is(err, fixed.ErrTaken) {
		return nil, cl.SUCCESS
	}
	if err == nil {
		if err = fill(mem); err != nil {
			fixed.Release(mem)
		}
	}
	if err != nil {
		return nil, cl.OUT_OF_HOST_MEMORY
	}
	return s.svmSegment(mem, fixed.Address(mem), func() { fixed.Release(mem) }), cl.SUCCESS
}

// driverSVM is held while a driver makes or frees shared virtual memory. NVIDIA's (580) refuses an allocation while
// another thread frees one, or ends the process.
var driverSVM sync.Mutex

// svmOfDriver has the driver choose. What it gives is aligned to a page, if need be by taking a page more.
func (s *session) svmOfDriver(b *buffer, m *clwire.CreateSVM) uintptr {
	driverSVM.Lock()
	defer driverSVM.Unlock()
	c := b.context
	native := c.native
	given := native.SVMAlloc(m.Flags, m.Size, m.Align)
	at := given
	if at%clwire.SVMAlign != 0 {
		native.SVMFree(given)
		given = native.SVMAlloc(m.Flags, m.Size+clwire.SVMAlign, m.Align)
		at = (given + clwire.SVMAlign - 1) / clwire.SVMAlign * clwire.SVMAlign
	}
	if given == 0 {
		b.status = cl.MEM_OBJECT_ALLOCATION_FAILURE
		return 0
	}
	c.refs.Add(1)
	b.svm = s.svmSegment(nil, at, func() {
		defer c.unref()
		driverSVM.Lock()
		defer driverSVM.Unlock()
		native.SVMFree(given)
	})
	b.native, b.status = native.CreateBuffer(cl.MEM_READ_WRITE|cl.MEM_USE_HOST_PTR, b.size, at)
	return at
}

// svmSegment is the memory with what ends it, once no native command can touch it.
func (s *session) svmSegment(mem []byte, at uintptr, end func()) *segment {
	seg := &segment{mem: mem, at: at, gone: func(*segment) { s.afterCommands(end) }}
	seg.refs.Store(1)
	return seg
}

// holds says whether an address lies in the buffer's shared virtual memory, or right behind it.
func (b *buffer) holds(address uint64) error {
	switch {
	case b.status != cl.SUCCESS:
		return nil // the launch fails
	case b.svm == nil:
		return fmt.Errorf("%w: an address in a buffer that is no shared virtual memory", errRecord)
	case address < uint64(b.svm.at) || address-uint64(b.svm.at) > b.size:
		return fmt.Errorf("%w: address %#x in %d bytes at %#x", errRecord, address, b.size, b.svm.at)
	}
	return nil
}

// reach is what a kernel reaches by pointers that are no arguments. A nil *reach is nothing.
type reach struct {
	pointers []uintptr
	buffers  []*buffer // each with a reference
	refs     atomic.Int32
}

func (r *reach) ref() *reach {
	if r != nil {
		r.refs.Add(1)
	}
	return r
}

func (r *reach) unref() {
	if r != nil && r.refs.Add(-1) == 0 {
		for _, b := range r.buffers {
			b.unref()
		}
	}
}

func (s *session) svmPointers(m *clwire.SVMPointers) error {
	k, err := lookup[*kernel](s, m.Kernel)
	if err != nil {
		return err
	}
	r := &reach{}
	r.refs.Store(1)
	defer func() { r.unref() }()
	for i, id := range m.Objects {
		b, err := lookup[*buffer](s, id)
		if err == nil {
			err = b.holds(m.Pointers[i])
		}
		if err != nil {
			return err
		}
		b.refs.Add(1)
		r.buffers, r.pointers = append(r.buffers, b), append(r.pointers, uintptr(m.Pointers[i]))
	}
	k.reaches, r = r, k.reaches
	return nil
}

// tell has the native kernel reach what a launch does. kernel.mu is held.
func (k *kernel) tell(r *reach) opencl.Status {
	if k.told == r {
		return cl.SUCCESS
	}
	var pointers []uintptr
	if r != nil {
		pointers = r.pointers
	}
	status := k.native.SetSVMPointers(pointers)
	if status != cl.SUCCESS && status != cl.INVALID_OPERATION && pointers != nil {
		return status // a driver without the call computes on any memory
	}
	k.told.unref()
	k.told = r.ref()
	return cl.SUCCESS
}
