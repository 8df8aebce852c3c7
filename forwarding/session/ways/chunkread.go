package ways

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// chunkRead sends a blocking read as one transfer through a free chunk of the staging pool. done false: there is none,
// and nothing was sent.
func (c *Command) chunkRead(t *Transfer) (done bool, status api.Status) {
	pool := &c.Staging
	if _, status := c.prepare(t.Buffer); status != cl.SUCCESS {
		return false, cl.SUCCESS // the long way says why
	}
	i, ok := pool.Acquire()
	if !ok {
		return false, cl.SUCCESS
	}
	defer pool.Release(i)
	if c.inPieces(t.Host.Size) {
		return true, c.readPieces(t, i)
	}
	m := clwire.Transfer{Direction: clwire.FromBuffer, Buffer: t.Buffer.Number(), Offset: t.Device.Offset,
		Size: t.Host.Size, Segment: pool.Segment.ID, SegmentOffset: pool.Offset(i)}
	if status := c.deviceTransfer(&m, true); status != cl.SUCCESS {
		return true, status
	}
	copy(t.Host.Ptr.Bytes(0, t.Host.Size), pool.Chunk(i))
	return true, cl.SUCCESS
}

// deviceTransfer sends a Transfer as this command, and waits for its end where the call blocks.
func (c *Command) deviceTransfer(t *clwire.Transfer, blocking bool) api.Status {
	if blocking {
		if made := c.waited(); made != nil {
			defer made.LetGo()
		}
	}
	if _, status := c.Queue.Submit(t, &t.Cmd, c.Event, c.Wait, nil); status != cl.SUCCESS || !blocking {
		return status
	}
	status := api.Status(c.Queue.Worker().WaitEvents(causeOfCommand(c.Kind), c.Event.Number()))
	if status == cl.SUCCESS {
		return cl.SUCCESS
	}
	return min(api.Status(c.Event.Status()), status)
}
