//go:build cgo

package worker

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/fixed"
	"tendril/forwarding/opencl"
	"tendril/forwarding/worker/engine"
	"tendril/forwarding/worker/journal"
)

// Objects of the session's tables. One whose creation failed stays in its table
// with the driver's status, so that commands which name it fail instead of the
// session. refs counts the table's hold and those of commands that wait.

type clContext struct {
	native  opencl.Context
	status  opencl.Status
	devices []uint32 // indices in the platform
	refs    atomic.Int32
}

func (c *clContext) unref() {
	if c.refs.Add(-1) == 0 && c.native != 0 {
		c.native.Release()
	}
}

type clQueue struct {
	id      uint64
	native  opencl.Queue
	clock   opencl.Queue // of a profiling queue: in order, for times alone; 0: none
	context *clContext
	device  uint32      // index in the platform
	writes  *writeBytes // nil: the queue orders nothing
	refs    atomic.Int32
}

func (q *clQueue) unref() {
	if q.refs.Add(-1) == 0 {
		q.native.Release()
		if q.clock != 0 {
			q.clock.Release()
		}
	}
}

type buffer struct {
	native  opencl.Mem
	status  opencl.Status
	size    uint64 // bytes
	context *clContext
	seg     *segment // in place, or nil
	at      uint64   // where in seg
	parent  *buffer
	image   *imageShape // nil: a buffer
	svm     *segment    // shared virtual memory, where the program has it too; nil: none
	content uint64      // the size buffer's number, 0: none; the reader's
	charged uint64      // of memory
	memory  *deviceMemory
	refs    atomic.Int32
}

func (b *buffer) unref() {
	if b.refs.Add(-1) != 0 {
		return
	}
	if b.native != 0 {
		b.native.Release()
	}
	if b.charged > 0 {
		b.memory.give(b.charged)
	}
	if b.seg != nil {
		b.seg.unref()
	}
	if b.svm != nil {
		b.svm.unref()
	}
	if b.parent != nil {
		b.parent.unref()
	}
}

// bytes is the buffer's memory in place.
func (b *buffer) bytes() []byte { return b.seg.mem[b.at : b.at+b.size : b.at+b.size] }

// inside checks a range of the buffer, in bytes.
func (b *buffer) inside(offset, size uint64) opencl.Status {
	if b.status != cl.SUCCESS {
		return b.status
	}
	if offset > b.size || size > b.size-offset || size == 0 {
		return cl.INVALID_VALUE
	}
	return cl.SUCCESS
}

// segment is shared memory of the client. Its mapping goes when the client
// dropped it, no buffer or command uses it, and every command before has ended.
type segment struct {
	id       uint64
	mem      []byte      // immutable
	at       uintptr     // of shared virtual memory: its address, which the program has too
	readOnly bool        // of the store: mapped for reading
	gpu      *allocation // nil: host memory. Else there is no mem
	refs     atomic.Int32
	gone     func(*segment) // called once, with no refs left

	mu     sync.Mutex
	pinned map[*clContext]pin // staging for devices with own memory
}

// pin is a buffer over the whole segment, mapped once, so that the driver
// copies at the speed of the bus. The zero pin: tried without success.
type pin struct{ native opencl.Mem }

func (s *segment) unref() {
	if s.refs.Add(-1) == 0 {
		s.gone(s)
	}
}

func (s *segment) inside(offset, size uint64) bool {
	return offset <= uint64(len(s.mem)) && size <= uint64(len(s.mem))-offset
}

// pinFor lays the staging buffer for a context, through a queue of it, on first use.
func (s *segment) pinFor(c *clContext, q opencl.Queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, tried := s.pinned[c]; tried {
		return
	}
	var p pin
	n := uint64(len(s.mem))
	m, status := c.native.CreateBuffer(cl.MEM_READ_WRITE|cl.MEM_USE_HOST_PTR, n, fixed.Address(s.mem))
	if status == cl.SUCCESS {
		if at, status := q.Map(m, n); status == cl.SUCCESS && at == fixed.Address(s.mem) {
			p.native = m
		} else {
			m.Release()
		}
	}
	if s.pinned == nil {
		s.pinned = map[*clContext]pin{}
	}
	s.pinned[c] = p
}

// allocation is memory of a GPU that the store lent.
type allocation struct {
	file  *os.File
	bytes uint64
	uuid  string // of the GPU, 32 hexadecimal digits
}

func (s *segment) unmap() {
	if s.gpu != nil {
		s.gpu.file.Close()
		return
	}
	for _, p := range s.pinned {
		if p.native != 0 {
			p.native.Release()
		}
	}
	_ = unix.Munmap(s.mem) // the address and length are mmap's own
}

type program struct {
	native  opencl.Program
	status  opencl.Status
	context *clContext
	devices []uint32      // that it is for, as the client has them: indices in the platform, and of sub-devices
	linked  bool          // of others
	asked   sync.Once     // for sources, unless linked: then the link's goroutine sets them
	sources []*sourceText // see parts
	builtIn bool          // its kernels are the device's own
	built   chan struct{} // closed when the last build asked for is over; nil: none was
	refs    atomic.Int32
}

func (p *program) unref() {
	if p.refs.Add(-1) == 0 && p.native != 0 {
		p.native.Release()
	}
}

// building says whether a build is under way.
func (p *program) building() bool {
	if p.built == nil {
		return false
	}
	select {
	case <-p.built:
		return false
	default:
		return true
	}
}

type kernel struct {
	id     uint64
	name   *journal.Kernel
	gate   *engine.Gate  // nil, or opens when native and status are set
	ready  chan struct{} // the same, for those that may block; nil if ready at birth
	native opencl.Kernel
	status opencl.Status
	refs   atomic.Int32

	shadow  []argument // the reader's: arguments in stream order
	reaches *reach     // the reader's: what later launches reach without an argument; nil: nothing

	mu     sync.Mutex
	set    []argument // what the native kernel has
	told   *reach     // the same, of what it reaches
	inStep bool       // set was the shadow, as it stood after the last record that launched
	low    []opencl.Arg
	val    []byte
}

func (k *kernel) unref() {
	if k.refs.Add(-1) != 0 {
		return
	}
	if k.native != 0 {
		k.native.Release()
	}
	k.reaches.unref()
	k.told.unref()
}

// argument is a kernel argument by value, so that a copy of a slice is a snapshot.
type argument struct {
	kind  uint8
	isSet bool
	n     uint8 // bytes in small
	small [16]byte
	big   []byte // ArgBytes above 16 bytes; never altered
	size  uint64 // ArgLocal, bytes; ArgSVM, the address
	mem   *buffer
	samp  *sampler
}

func (a *argument) equal(b *argument) bool {
	return a.kind == b.kind && a.isSet == b.isSet && a.n == b.n && a.small == b.small && a.size == b.size &&
		a.mem == b.mem && a.samp == b.samp &&
		string(a.big) == string(b.big)
}

func (a *argument) bytes() []byte {
	if a.big != nil {
		return a.big
	}
	return a.small[:a.n]
}

// argumentOf checks and copies one argument of a record.
func (s *session) argumentOf(w *clwire.Arg) (a argument, err error) {
	a.kind, a.isSet = w.Kind, true
	switch w.Kind {
	case clwire.ArgLocal:
		a.size = w.ID()
	case clwire.ArgMem:
		if id := w.ID(); id != 0 {
			a.mem, err = lookup[*buffer](s, id)
		}
	case clwire.ArgSVM:
		if w.ID() == 0 && w.Address() == 0 {
			break // NULL
		}
		a.size = w.Address()
		if a.mem, err = lookup[*buffer](s, w.ID()); err == nil {
			err = a.mem.holds(a.size)
		}
	case clwire.ArgBytes:
		if len(w.Data) <= len(a.small) {
			a.n = uint8(copy(a.small[:], w.Data))
		} else {
			a.big = append([]byte(nil), w.Data...)
		}
	default:
		a.samp, err = lookup[*sampler](s, w.ID())
	}
	return a, err
}

// lookup finds an object of one kind by its id.
func lookup[T any](s *session, id uint64) (T, error) {
	o, ok := s.objects[id].(T)
	if !ok {
		return o, fmt.Errorf("%w: object %d is %T, not %T", errRecord, id, s.objects[id], o)
	}
	return o, nil
}
