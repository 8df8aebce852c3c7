package session

import (
	"tendril/forwarding/clwire"
)

// Small transfers that nobody waits for go ahead of their bytes' last copy: the device copies to or from shared memory that lies ready,
// as one command among the others of its queue. As work of this side's own (hostWork) each would cost a message and a wake-up both
// ways while its queue stands still: a frame of 64 KiB written, worked on and read back took 266 µs on an H200, natively 36. A write's
// bytes are copied by the call itself, a read's when its end is heard of (lateread.go).
const (
	aheadBytes = 64 << 10  // of the largest read, and write in place: larger ones are better copied once
	aheadWrite = 128 << 10 // of the largest write out of place, whose bytes are copied twice anyway
	aheadAlign = 64        // of what drivers copy from and to
	ridesBytes = 2 << 10   // of the largest write in place that rides in its record: the worker copies that twice
)

// lend takes shared memory that the device copies from or to: out of place what its driver has pinned. nil: there is none now, or not
// yet. It is given back with slabs.put, or slabs.freeBehind.
func (c *command) lend(size uint64) *place {
	ctx, s := c.q.ctx, c.d.slabs
	if ctx.staged() {
		return s.part(ctx.staging.lent.Load(), size, aheadAlign)
	}
	p, status := s.alloc(size, aheadAlign, false)
	if status != Success {
		return nil
	}
	if c.q.w.addSegment(p.seg) != nil {
		s.put(p)
		return nil
	}
	return p
}

// writeAhead sends a write that does not block as a transfer from memory that it fills now; done false: it cannot be one now, and
// nothing was sent.
func (c *command) writeAhead(b *Buffer, off, size uint64, from HostPtr) (done bool, status Status) {
	q, shape := c.q, linear(from, size)
	switch {
	case q.ctx.remote, size == 0, !c.settled(&shape):
		return false, Success
	case q.ctx.inPlace && (size <= ridesBytes || size > aheadBytes || b.root.special.Load() || c.free()):
		return false, Success
	case !q.ctx.inPlace && (size > aheadWrite || b.bytes() != nil):
		return false, Success
	}
	if b.ensureRemote(q.w) != Success {
		return false, Success // the long way says why
	}
	p := c.lend(size)
	if p == nil {
		return false, Success
	}
	copy(p.bytes(size), from.bytes(0, size))
	t := clwire.Transfer{Direction: clwire.ToBuffer, Buffer: b.id.Load(), Offset: off, Size: size, Segment: p.seg.ID, SegmentOffset: p.off}
	seq, status := q.submit(&t, &t.Cmd, c.e, c.wait, 0)
	c.d.slabs.freeBehind(p, []mark{{q, seq}})
	return true, status
}
