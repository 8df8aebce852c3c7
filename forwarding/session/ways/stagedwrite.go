package ways

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/session/memory"
)

// Transfers that nobody waits for go ahead of their bytes' last copy: the device copies to or from shared memory that
// lies ready, as one command among the others of its queue. As work of this side's own (hostWork) each would cost a
// message and a wake-up both ways while its queue stands still: a frame of 64 KiB written, worked on and read back took
// 266 µs on an H200, natively 36. A write's bytes are copied by the call itself, a read's when its end is heard of
// (stagedread.go).
const stagedAlign = 64 // of what drivers copy from and to

// stagingMemory takes shared memory that the device copies from or to: out of place what its driver has pinned. nil:
// there is none now, or not yet. It is given back with Slabs.FreeNow, or Slabs.FreeAfter.
func (c *Command) stagingMemory(size uint64) *memory.Place {
	if c.Staged() {
		return c.Staging.Lend(c.Slabs, size, stagedAlign)
	}
	p, status := c.Slabs.Alloc(size, stagedAlign, false)
	if status != cl.SUCCESS {
		return nil
	}
	if c.Queue.Worker().Share(p.Segment) != nil {
		c.Slabs.FreeNow(p)
		return nil
	}
	return p
}

// stagedWrite sends a write that is not waited for, or an unmap, as a transfer from memory that it fills now. done
// false: there is none, or a blocking one would be seen, and nothing was sent.
func (c *Command) stagedWrite(t *Transfer) (done bool, status api.Status) {
	q, size := c.Queue, t.Host.Size
	pieces := t.Blocking && c.inPieces(t)
	if pieces { // a release by another thread must not come between them
		kept, status := t.Buffer.Keep()
		if status != cl.SUCCESS {
			return true, status
		}
		defer kept()
	}
	if t.Buffer.Reach(q) != cl.SUCCESS {
		return false, cl.SUCCESS // the long way says why
	}
	p := c.stagingMemory(size)
	if p == nil {
		return false, cl.SUCCESS
	}
	if pieces {
		if done, status = c.writePieces(t, p); !done {
			c.Slabs.FreeNow(p)
		}
		return done, status
	}
	t.gather(p.Bytes(size))
	m := t.record(p.Segment, p.Offset)
	send := func() (status api.Status) {
		var seq uint64
		seq, status = q.Submit(&m, &m.Cmd, c.Event, c.Wait, nil)
		c.Slabs.FreeAfter(p, memory.Marks{{Queue: q, Seq: seq}})
		return status
	}
	if !t.Blocking {
		return true, send()
	}
	if done, status = c.async(send); !done {
		c.Slabs.FreeNow(p)
	}
	return done, status
}
