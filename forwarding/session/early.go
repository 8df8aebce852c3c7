package session

import (
	"sync"

	"tendril/forwarding/clwire"
	"tendril/store/alloc"
)

// Writes to a device out of place whose bytes are copied to shared memory by the call itself: a transfer among the queue's other
// commands. As work of this side's own (hostWork) such a write costs a message and a wake-up both ways while its queue stands still:
// a frame of 64 KiB written, worked on and read back took 266 µs on an H200, natively 36. Small reads that do not block use the same memory (lateread.go).
const (
	earlyBytes = 128 << 10               // of the largest such write
	earlyAsk   = 16                      // after so many the queue is asked how far it is
	earlyAlign = 64                      // of what the driver copies from and to
	earlyFrom  = chunkBytes * earlyFirst // where their memory begins in the staging pool's segment
	earlyFirst = chunkCount - 2          // the first of its chunks that is theirs
)

// earlyMemory is the last chunks of the staging pool, in pieces. A write's is free again when the queue has passed it.
type earlyMemory struct {
	mu     sync.Mutex // leaf
	ranges *alloc.Ranges
	taken  []takenPiece // of writes, oldest first
	since  int          // writes since a queue was asked
}

type takenPiece struct {
	off, size uint64
	mark
}

func (m *mark) passed() bool { return m.q.doneSeq.Load() >= m.seq || m.q.w.dead.Load() }

// open says that the memory is there.
func (m *earlyMemory) open() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ranges = alloc.NewSized((chunkCount - earlyFirst) * chunkBytes)
}

// take returns where in the pool's segment a piece is; false: there is none now, or no memory yet.
func (m *earlyMemory) take(size uint64) (uint64, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ranges == nil {
		return 0, false
	}
	m.reapLocked()
	off, ok := m.ranges.Alloc(size, earlyAlign)
	return earlyFrom + off, ok
}

// put gives a piece back.
func (m *earlyMemory) put(off, size uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.putLocked(off, size)
}

func (m *earlyMemory) putLocked(off, size uint64) {
	_ = m.ranges.FreeSized(off-earlyFrom, size) // fails for what was not taken alone
}

func (m *earlyMemory) reapLocked() {
	kept := m.taken[:0]
	for _, t := range m.taken {
		if t.passed() {
			m.putLocked(t.off, t.size)
		} else {
			kept = append(kept, t)
		}
	}
	m.taken = kept
}

// keep leaves a piece to a command until it has ended, and reports whether it is time to ask its queue.
func (m *earlyMemory) keep(off, size uint64, q *Queue, seq uint64) (ask bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taken = append(m.taken, takenPiece{off, size, mark{q, seq}})
	if m.since++; m.since < earlyAsk {
		return false
	}
	m.since = 0
	return true
}

// busy says whether a command may still use a piece.
func (m *earlyMemory) busy() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ranges == nil {
		return false
	}
	m.reapLocked()
	return m.ranges.Used() != 0
}

// early sends a write that does not block as a transfer; done false: it cannot be one now, and nothing was sent. In order alone:
// elsewhere a queue's progress does not tell of a single command.
func (c *command) early(b *Buffer, off uint64, from HostPtr, size uint64) (done bool, status Status) {
	q, shape := c.q, linear(from, size)
	if !q.ctx.staged() || q.outOf || size == 0 || size > earlyBytes || b.bytes() != nil || !c.settled(&shape) {
		return false, Success
	}
	if b.ensureRemote(q.w) != Success {
		return false, Success // the long way says why
	}
	pool := &q.ctx.staging
	at, ok := pool.early.take(size) // there is none before the long way has opened the pool, for which a call would have to wait
	if !ok {
		return false, Success
	}
	copy(pool.seg.Bytes[at:at+size], from.bytes(0, size))
	t := clwire.Transfer{Direction: clwire.ToBuffer, Buffer: b.id.Load(), Offset: off, Size: size, Segment: pool.seg.ID, SegmentOffset: at}
	seq, status := q.submit(&t, &t.Cmd, c.e, c.wait, 0)
	if pool.early.keep(at, size, q, seq) {
		q.finishLater()
	}
	return true, status
}
