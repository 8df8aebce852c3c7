package session

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// chunkRead sends a blocking read as one transfer through a free chunk of the staging pool. done false: there is none,
// and nothing was sent.
func (c *command) chunkRead(t *hostTransfer) (done bool, status api.Status) {
	pool := &c.q.ctx.staging
	if _, status := t.b.prepare(); status != cl.SUCCESS {
		return false, cl.SUCCESS // the long way says why
	}
	i, ok := pool.Acquire()
	if !ok {
		return false, cl.SUCCESS
	}
	defer pool.Release(i)
	m := clwire.Transfer{Direction: clwire.FromBuffer, Buffer: t.b.id.Load(), Offset: t.device.Offset,
		Size:    t.host.Size,
		Segment: pool.Segment.ID, SegmentOffset: pool.Offset(i)}
	if status := c.deviceTransfer(&m, true); status != cl.SUCCESS {
		return true, status
	}
	copy(t.host.ptr.Bytes(0, t.host.Size), pool.Chunk(i))
	return true, cl.SUCCESS
}

// deviceTransfer sends a Transfer as this command, and waits for its end where the call blocks.
func (c *command) deviceTransfer(t *clwire.Transfer, blocking bool) api.Status {
	q := c.q
	if blocking && c.e == nil {
		c.e = q.waitedEvent()
		defer c.e.letGo(q.w)
	}
	if _, status := q.submit(t, &t.Cmd, c.e, c.wait, 0); status != cl.SUCCESS || !blocking {
		return status
	}
	status := q.w.waitEvents(causeOfCommand(c.kind), c.e.id)
	if status == cl.SUCCESS {
		return cl.SUCCESS
	}
	return api.Status(min(c.e.status.Load(), int32(status)))
}
