package session

import (
	"sync"

	"tendril/forwarding/clwire"
)

// Reads that nobody waits for, of buffers in place whose queue is busy and of buffers out of place. The worker's device copies to shared
// memory that was lent to the read (ahead.go), as one command among the others, and this side copies on to the program when it hears of
// the end, which it does with many others' at once. As work of this side's own each took 200 µs where a native one takes 4.

// lateMost is how many bytes of all such reads may be under way.
const lateMost = 8 << 20

// lateRead is one of them. It ends once, whoever brings the end: the worker's word or the worker's death.
type lateRead struct {
	d     *Driver
	to    HostPtr
	size  uint64
	place *place // lent
	lands *landing

	mu     sync.Mutex // held while the program's memory is written; leaf but for slabs.mu, landings.mu
	over   bool
	status int32
}

// readLate sends a read as a command of the device's own; done false: it cannot be one, and nothing was sent.
func (c *command) readLate(b *Buffer, off, size uint64, to HostPtr) (done bool, status Status) {
	ctx := c.q.ctx
	if ctx.remote || size == 0 || size > aheadBytes || b.root.special.Load() || ctx.inPlace && c.free() || !ctx.inPlace && b.bytes() != nil {
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
	p := c.lend(size)
	if p == nil {
		d.lateBytes.Add(-int64(size))
		return nil
	}
	host := linear(to, size)
	return &lateRead{d: d, to: to, size: size, place: p, lands: d.landings.add(&host, w)}
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
	r.d.slabs.put(r.place)
	return status
}
