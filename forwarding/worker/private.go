//go:build cgo

package worker

import (
	"math/bits"
	"sync"

	"golang.org/x/sys/unix"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// keptPrivateBytes is how much released memory a session keeps for its next
// buffers: touching fresh memory is slow.
const keptPrivateBytes = 256 << 20

// privateMemory is what buffers of a remote client lie in on a device that
// computes in place: this process's own, so that bytes of the network are
// received where the device reads them.
type privateMemory struct {
	mu    sync.Mutex // leaf
	free  map[uint64][]*segment
	bytes uint64
}

// classOf rounds a size up so that released memory fits again: at most an eighth is lost.
func classOf(size uint64) uint64 {
	step := uint64(4096)
	if n := bits.Len64(size); n > 15 {
		step = 1 << (n - 4)
	}
	return (size + step - 1) / step * step
}

func (p *privateMemory) take(size uint64) *segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.free[size]
	if len(list) == 0 {
		return nil
	}
	seg := list[len(list)-1]
	p.free[size] = list[:len(list)-1]
	p.bytes -= size
	return seg
}

// keep reports false when there is enough already.
func (p *privateMemory) keep(seg *segment) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	size := uint64(len(seg.mem))
	if p.bytes+size > keptPrivateBytes {
		return false
	}
	if p.free == nil {
		p.free = map[uint64][]*segment{}
	}
	p.free[size] = append(p.free[size], seg)
	p.bytes += size
	return true
}

// privateBuffer lays a buffer over memory of its own.
func (s *session) privateBuffer(b *buffer, m *clwire.CreateBuffer) {
	if m.Size == 0 || m.Size > 1<<46 {
		b.status = cl.INVALID_VALUE
		return
	}
	size := classOf(m.Size)
	seg := s.private.take(size)
	if seg == nil {
		mem, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			b.status = cl.OUT_OF_HOST_MEMORY
			return
		}
		_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // fewer faults where the kernel does it
		seg = &segment{mem: mem, gone: s.reuse}
	}
	seg.refs.Store(1)
	s.layOver(b, m.Flags, seg, 0)
	seg.unref() // the buffer holds it
}

// reuse keeps memory once no native command can touch it any more.
func (s *session) reuse(seg *segment) {
	queues := s.liveQueues()
	if len(queues) == 0 {
		s.keepOrUnmap(seg)
		return
	}
	s.work.Go(func() {
		for _, q := range queues {
			q.native.Finish()
			q.unref()
		}
		s.keepOrUnmap(seg)
	})
}

func (s *session) keepOrUnmap(seg *segment) {
	if !s.private.keep(seg) {
		seg.unmap()
	}
}

func (s *session) bulkWrite(h clwire.Header, m *clwire.BulkWrite) error {
	return s.bulkCommand(h, &m.Cmd, m.Op, m.Buffer, &m.Shape, true, false)
}

func (s *session) bulkRead(h clwire.Header, m *clwire.BulkRead) error {
	return s.bulkCommand(h, &m.Cmd, m.Op, m.Buffer, &m.Shape, false, m.Inline)
}
