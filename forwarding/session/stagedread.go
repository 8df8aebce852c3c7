package session

import (
	"sync"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/memory"
	"tendril/forwarding/session/transfer"
)

// Reads that nobody waits for, of buffers in place whose queue is busy and of buffers out of place. The worker's device
// copies to shared memory that was lent to the read (stagedwrite.go), as one command among the others, and this side
// copies on to the program when it hears of the end, which it does with many others' at once. As work of this side's
// own each took 200 µs where a native one takes 4.

// maxStagedReadBytes is how many bytes of all such reads may be under way.
const maxStagedReadBytes = 8 << 20

// stagedRead is one of them. It ends once, whoever brings the end: the worker's word or the worker's death.
type stagedRead struct {
	d      *Driver
	to     api.HostPtr
	size   uint64
	place  *memory.Place // lent
	hazard *transfer.ReadHazard

	mu     sync.Mutex // held while the program's memory is written; leaf but for slabs.mu, readHazards.mu
	over   bool
	status int32
}

// stagedRead sends a read that does not block as a command of the device's own. done false: there is no memory, and
// nothing was sent.
func (c *command) stagedRead(t *hostTransfer) (done bool, status api.Status) {
	r := c.newStagedRead(&t.host)
	if r == nil {
		return false, cl.SUCCESS
	}
	if status := t.b.ensureRemote(c.q.w); status != cl.SUCCESS {
		r.end(int32(status))
		return true, status
	}
	m := &clwire.Transfer{Direction: clwire.FromBuffer, Buffer: t.b.id.Load(), Offset: t.device.Offset, Size: r.size,
		Segment: r.place.Segment.ID, SegmentOffset: r.place.Offset}
	return true, c.sendLanding(m, r)
}

// sendLanding sends a transfer that does not block, and has x hear of its end.
func (c *command) sendLanding(m *clwire.Transfer, x landing) api.Status {
	shown := c.e != nil
	if !shown {
		c.e = c.d.newEvent(c.q.ctx, c.q, c.kind)
	}
	c.e.landing, c.e.held = x, true // nobody else knows the event yet
	if _, status := c.q.submit(m, &m.Cmd, c.e, c.wait, 0); status != cl.SUCCESS {
		x.end(int32(status))
		return status
	}
	if !shown {
		c.q.w.SendOneWay(&clwire.Release{ID: c.e.id}) // its end is told all the same
	}
	return cl.SUCCESS
}

// newStagedRead takes shared memory for a read; nil: there is none now, or enough is under way.
func (c *command) newStagedRead(host *hostShape) *stagedRead {
	d, w, size := c.d, c.q.w, host.Size
	if d.stagedReadBytes.Add(int64(size)) > maxStagedReadBytes {
		d.stagedReadBytes.Add(-int64(size))
		return nil
	}
	p := c.stagingMemory(size)
	if p == nil {
		d.stagedReadBytes.Add(-int64(size))
		return nil
	}
	return &stagedRead{d: d, to: host.ptr, size: size, place: p,
		hazard: d.readHazards.Add(host.ptr.Address(), &host.Side, w)}
}

// end brings the bytes where the program wants them, if the command went well, and returns how it ended: as was said
// first. Nothing touches the program's memory after it has returned. It may run under the reader's lock.
func (r *stagedRead) end(status int32) int32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return r.status
	}
	r.over, r.status = true, status
	if status == 0 {
		copy(r.to.Bytes(0, r.size), r.place.Bytes(r.size))
	}
	r.d.readHazards.End(r.hazard)
	r.d.stagedReadBytes.Add(-int64(r.size))
	r.d.slabs.FreeNow(r.place)
	return status
}
