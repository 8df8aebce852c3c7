package session

import (
	"sync"

	"tendril/forwarding/clwire"
)

// Writes to a device out of place whose bytes are copied to shared memory by the call itself: a transfer among the queue's other
// commands. As work of this side's own (hostWork) such a write costs a message and a wake-up both ways while its queue stands still:
// a frame of 64 KiB written, worked on and read back took 266 µs on an H200, natively 36. Small reads that do not block use the same memory (lateread.go).
const (
	earlySlot = 128 << 10
	earlyAsk  = chunkBytes / earlySlot / 2 // after so many the queue is asked how far it is
)

// earlySlots is a chunk of the staging pool in smaller pieces, each free again when the queue of the write that has it has passed it.
type earlySlots struct {
	mu    sync.Mutex // leaf
	free  []int
	taken []takenSlot // oldest first
	since int         // writes since a queue was asked
}

type takenSlot struct {
	slot int
	mark
}

func (m *mark) passed() bool { return m.q.doneSeq.Load() >= m.seq || m.q.w.dead.Load() }

// take returns a free slot; false: there is none now.
func (s *earlySlots) take() (int, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reapLocked()
	if len(s.free) == 0 {
		return 0, false
	}
	i := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	return i, true
}

func (s *earlySlots) reapLocked() {
	kept := s.taken[:0]
	for _, t := range s.taken {
		if t.passed() {
			s.free = append(s.free, t.slot)
		} else {
			kept = append(kept, t)
		}
	}
	s.taken = kept
}

// keep leaves a slot to a command until it has ended, and reports whether it is time to ask its queue.
func (s *earlySlots) keep(slot int, q *Queue, seq uint64) (ask bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = append(s.taken, takenSlot{slot, mark{q, seq}})
	if s.since++; s.since < earlyAsk {
		return false
	}
	s.since = 0
	return true
}

// busy says whether a command may still use a slot.
func (s *earlySlots) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reapLocked()
	return len(s.free) < cap(s.free)
}

// put gives a slot back at once.
func (s *earlySlots) put(slot int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, slot)
}

// earlyAt is where a slot begins in the pool's segment.
func earlyAt(slot int) uint64 { return (chunkCount-1)*chunkBytes + uint64(slot)*earlySlot }

// early sends a write that does not block as a transfer; done false: it cannot be one now, and nothing was sent. In order alone:
// elsewhere a queue's progress does not tell of a single command.
func (c *command) early(b *Buffer, off uint64, from HostPtr, size uint64) (done bool, status Status) {
	q, shape := c.q, linear(from, size)
	if !q.ctx.staged() || q.outOf || size == 0 || size > earlySlot || b.bytes() != nil || !c.settled(&shape) {
		return false, Success
	}
	if b.ensureRemote(q.w) != Success {
		return false, Success // the long way says why
	}
	pool := &q.ctx.staging
	i, ok := pool.early.take() // there is none before the long way has opened the pool, for which a call would have to wait
	if !ok {
		return false, Success
	}
	at := earlyAt(i)
	copy(pool.seg.Bytes[at:at+size], from.bytes(0, size))
	t := clwire.Transfer{Direction: clwire.ToBuffer, Buffer: b.id.Load(), Offset: off, Size: size, Segment: pool.seg.ID, SegmentOffset: at}
	seq, status := q.submit(&t, &t.Cmd, c.e, c.wait, 0)
	if pool.early.keep(i, q, seq) {
		q.finishLater()
	}
	return true, status
}
