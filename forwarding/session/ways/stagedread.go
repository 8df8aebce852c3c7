package ways

import (
	"sync"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/memory"
	"tendril/forwarding/session/transfer"
	"tendril/store/segment"
)

// Reads that nobody waits for, of buffers in place whose queue is busy and of buffers out of place. The worker's device
// copies to shared memory that was lent to the read (stagedwrite.go), as one command among the others, and this side
// copies on to the program when it hears of the end, which it does with many others' at once. As work of this side's
// own each took 200 µs where a native one takes 4.

// maxStagedReadBytes is how many bytes of all such reads may be under way.
const maxStagedReadBytes = memory.LentBytes

// stagedRead is one of them. It ends once, whoever brings the end: the worker's word or the worker's death.
type stagedRead struct {
	s      *Session
	to     api.HostPtr
	size   uint64
	place  *memory.Place // lent
	hazard *transfer.ReadHazard

	mu     sync.Mutex // held while the program's memory is written; leaf but for slabs.mu, Session.Reads
	over   bool
	status int32
}

// stagedRead sends a read that does not block as a command of the device's own. done false: there is no memory, and
// nothing was sent.
func (c *Command) stagedRead(t *Transfer) (done bool, status api.Status) {
	r := c.newStagedRead(&t.Host)
	if r == nil {
		return false, cl.SUCCESS
	}
	if status := t.Buffer.Reach(c.Queue); status != cl.SUCCESS {
		r.End(int32(status))
		return true, status
	}
	m := &clwire.Transfer{Direction: clwire.FromBuffer, Buffer: t.Buffer.Number(), Offset: t.Device.Offset,
		Size: r.size, Segment: r.place.Segment.ID, SegmentOffset: r.place.Offset}
	return true, c.sendUnfinished(m, r)
}

// sendUnfinished sends a read that does not block. x.End is called when it has ended.
func (c *Command) sendUnfinished(m *clwire.Transfer, x UnfinishedRead) api.Status {
	shown := c.Event != nil
	if !shown {
		c.Event = c.Queue.NewEvent(c.Kind)
	}
	c.Event.SetRead(x) // nobody else knows the event yet
	if _, status := c.Queue.Submit(m, &m.Cmd, c.Event, c.Wait, nil); status != cl.SUCCESS {
		x.End(int32(status))
		return status
	}
	if !shown {
		c.Queue.Worker().SendOneWay(&clwire.Release{ID: c.Event.Number()}) // its end is told all the same
	}
	return cl.SUCCESS
}

// newStagedRead takes shared memory for a read; nil: there is none now, or enough is under way.
func (c *Command) newStagedRead(host *Host) *stagedRead {
	size := host.Size
	if c.stagedBytes.Add(int64(size)) > maxStagedReadBytes {
		c.stagedBytes.Add(-int64(size))
		return nil
	}
	p := c.stagingMemory(size)
	if p == nil {
		c.stagedBytes.Add(-int64(size))
		return nil
	}
	return &stagedRead{s: c.Session, to: host.Ptr, size: size, place: p,
		hazard: c.Reads.Add(host.Ptr.Address(), &host.Side, c.Queue.Worker())}
}

// End brings the bytes where the program wants them, if the command went well, and returns how it ended: as was said
// first. Nothing touches the program's memory after it has returned. It may run under the reader's lock.
func (r *stagedRead) End(status int32) int32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return r.status
	}
	r.over, r.status = true, status
	if status == 0 {
		segment.Copy(r.to.Bytes(0, r.size), r.place.Bytes(r.size))
	}
	r.s.Reads.End(r.hazard)
	r.s.stagedBytes.Add(-int64(r.size))
	r.s.Slabs.FreeNow(r.place)
	return status
}
