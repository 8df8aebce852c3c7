package ways

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/node"
	"tendril/store/segment"
)

// chunkRead sends a blocking read or map as one transfer through a free chunk of the staging pool. done false: there is
// none, and nothing was sent.
func (c *Command) chunkRead(t *Transfer) (done bool, status api.Status) {
	if t.Shown != nil { // another thread may unmap and release it
		done, status := keepShown(t.Shown)
		if status != cl.SUCCESS {
			return true, status
		}
		defer done()
	}
	pieces, pool := c.inPieces(t), &c.Staging
	if pieces { // a release by another thread must not come between them
		done, status := t.Buffer.Keep()
		if status != cl.SUCCESS {
			return true, status
		}
		defer done()
	}
	if _, status := c.prepare(t.Buffer); status != cl.SUCCESS {
		return false, cl.SUCCESS // the long way says why
	}
	i, ok := pool.Acquire()
	if !ok {
		return false, cl.SUCCESS
	}
	defer pool.Release(i)
	if pieces {
		return true, c.readPieces(t, i)
	}
	m := t.record(pool.Segment, pool.Offset(i))
	if status := c.deviceTransfer(&m, true); status != cl.SUCCESS {
		return true, status
	}
	t.scatter(pool.Chunk(i))
	return true, cl.SUCCESS
}

// record is the device's half of a transfer of one range, or of an image, from or to shared memory, where the bytes
// have no gaps.
func (t *Transfer) record(s *node.Segment, at uint64) clwire.Transfer {
	m := clwire.Transfer{Direction: t.direction(), Buffer: t.Buffer.Number(), Segment: s.ID, SegmentOffset: at}
	if t.isImage() {
		m.Rect, m.Origin, m.Region = true, t.Device.Origin, t.Device.Region
	} else {
		m.Offset, m.Size = t.Device.Offset, t.Host.Size
	}
	return m
}

// scatter brings dense bytes to where the program looks for them, gather the other way.
func (t *Transfer) scatter(dense []byte) {
	t.Host.runs(0, t.Host.Size, func(part []byte) { dense = dense[segment.CopyChunk(part, dense):] })
}

func (t *Transfer) gather(dense []byte) {
	t.Host.runs(0, t.Host.Size, func(part []byte) { dense = dense[segment.CopyChunk(dense, part):] })
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
