package session

import (
	"sync"

	"tendril/forwarding/clwire"
)

// Reads that nobody waits for, of buffers in place whose queue is busy and of buffers out of place. The worker's device copies to
// shared memory beside the buffer, out of place to memory that its driver pinned, as one command among the others, and this side copies on to the program when it hears of the end, which it
// does with many others' at once. As work of this side's own (hostWork) each would cost a message and a wake-up both ways
// while its queue stands still: 200 µs where a native one takes 4.
const (
	lateBytes = 64 << 10 // the largest such read: larger ones are better copied once
	lateMost  = 8 << 20  // bytes of all that are under way
)

// lateRead is one of them. It ends once, whoever brings the end: the worker's word or the worker's death.
type lateRead struct {
	d     *Driver
	to    HostPtr
	size  uint64
	place *place
	give  func() // gives place back
	lands *landing

	mu     sync.Mutex // held while the program's memory is written; leaf but for slabs.mu, landings.mu
	over   bool
	status int32
}

// readLate sends a read as a command of the device's own; done false: it cannot be one, and nothing was sent.
func (c *command) readLate(b *Buffer, off, size uint64, to HostPtr) (done bool, status Status) {
	ctx := c.q.ctx
	if ctx.remote || size == 0 || size > lateBytes || b.root.special.Load() || ctx.inPlace && c.free() || !ctx.inPlace && b.bytes() != nil {
		return false, Success
	}
	r := c.newLateRead(size, to)
	if r == nil {
		return false, Success
	}
	if status := b.ensureRemote(c.q.w); status != Success {
		r.end(int32(status))
		return true, status
	}
	shown := c.e != nil
	if !shown {
		c.e = c.d.newEvent(c.q.ctx, c.q, cmdRead)
	}
	c.e.late, c.e.held = r, true // nobody else knows the event yet
	t := &clwire.Transfer{Direction: clwire.FromBuffer, Buffer: b.id.Load(), Offset: off, Size: size, Segment: r.place.seg.ID, SegmentOffset: r.place.off}
	if _, status := c.q.submit(t, &t.Cmd, c.e, c.wait, 0); status != Success {
		r.end(int32(status))
		return true, status
	}
	if !shown {
		c.q.w.tell(&clwire.Release{ID: c.e.id}) // its end is told all the same
	}
	return true, Success
}

// newLateRead takes shared memory for a read; nil: there is none now, or enough is under way.
func (c *command) newLateRead(size uint64, to HostPtr) *lateRead {
	d, w := c.d, c.q.w
	if d.lateBytes.Add(int64(size)) > lateMost {
		d.lateBytes.Add(-int64(size))
		return nil
	}
	p, give := c.latePlace(size)
	if p == nil {
		d.lateBytes.Add(-int64(size))
		return nil
	}
	host := linear(to, size)
	r := &lateRead{d: d, to: to, size: size, place: p, give: give, lands: d.landings.add(&host, w)}
	if w.addSegment(p.seg) != nil {
		r.end(int32(OutOfResources))
		return nil
	}
	return r
}

// latePlace takes shared memory that the device copies to, and says how it is given back; nil: there is none now.
func (c *command) latePlace(size uint64) (p *place, give func()) {
	if c.q.ctx.staged() {
		early := &c.q.ctx.staging.early
		at, ok := early.take(size)
		if !ok {
			return nil, nil
		}
		return &place{seg: c.q.ctx.staging.seg, off: at, size: size}, func() { early.put(at, size) }
	}
	p, status := c.d.slabs.alloc(size, 64, false)
	if status != Success {
		return nil, nil
	}
	return p, func() { c.d.slabs.put(p) }
}

// end brings the bytes where the program wants them, if the command went well, and returns how it ended: as was said first.
// Nothing touches the program's memory after it has returned. It may run under the reader's lock.
func (r *lateRead) end(status int32) int32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return r.status
	}
	r.over, r.status = true, status
	if status == 0 {
		copy(r.to.bytes(0, r.size), r.place.bytes(r.size))
	}
	r.d.landings.end(r.lands)
	r.d.lateBytes.Add(-int64(r.size))
	r.give()
	return status
}

// ridesBytes is the largest write in place that rides in its record: the worker copies it twice, and larger ones through
// shared memory not at all.
const ridesBytes = 2 << 10

// goesAhead says whether a write that nobody waits for can be a command of the device's own, from shared memory that this
// side fills now.
func (c *command) goesAhead(b *Buffer, ptr HostPtr, size uint64) bool {
	from := linear(ptr, size)
	return c.q.ctx.inPlace && !b.root.special.Load() && !c.free() && c.settled(&from)
}

func (c *command) writeAhead(b *Buffer, off uint64, data []byte) Status {
	q, size := c.q, uint64(len(data))
	if status := b.ensureRemote(q.w); status != Success {
		return status
	}
	p, status := c.d.slabs.alloc(size, 64, false)
	if status != Success {
		return status
	}
	if q.w.addSegment(p.seg) != nil {
		c.d.slabs.put(p)
		return OutOfResources
	}
	copy(p.bytes(size), data)
	t := &clwire.Transfer{Direction: clwire.ToBuffer, Buffer: b.id.Load(), Offset: off, Size: size, Segment: p.seg.ID, SegmentOffset: p.off}
	_, status = q.submit(t, &t.Cmd, c.e, c.wait, 0)
	c.d.slabs.free(p, q.w)
	return status
}
