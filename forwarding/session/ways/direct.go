package ways

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/memory"
	"tendril/forwarding/session/transfer"
)

// Transfers in the queue itself. A device out of place moves bytes between a buffer and shared memory; where that
// memory is free beforehand, the transfer is the program's command: one message and one wait, where work of this side
// (hostWork) would wait for the command's turn first and for its own transfer then.

// PinMap makes the driver of a buffer's device pin memory that its maps are to show. It may write all of it back then:
// a transfer of nothing that matters is waited for.
func (c *Context) PinMap(b Buffer, p *memory.Place) api.Status {
	q, status := c.moveQueue(b)
	if status != cl.SUCCESS {
		return status
	}
	if q.Worker().Share(p.Segment) != nil {
		return cl.OUT_OF_RESOURCES
	}
	first := Command{Context: c, Queue: q, Kind: cl.COMMAND_MAP_BUFFER}
	return first.deviceTransfer(&clwire.Transfer{Direction: clwire.FromBuffer, Buffer: b.Number(), Size: 1,
		Segment: p.Segment.ID}, true)
}

// direct lets the worker move bytes between the device and shared memory in which the program has them, or is to have
// them, as this command.
func (c *Command) direct(t *Transfer) api.Status {
	if c.Queue.Worker().Share(t.Shared) != nil {
		return cl.OUT_OF_RESOURCES
	}
	b, at := t.Buffer, t.Device.Offset
	if t.Shown != nil { // of a map: the root, whose memory it is
		b, at = t.Shown, t.ShownAt
	}
	if status := b.Reach(c.Queue); status != cl.SUCCESS {
		return status
	}
	m := &clwire.Transfer{Direction: t.direction(), Buffer: b.Number(), Offset: at, Size: t.Host.Size,
		Segment: t.Shared.ID, SegmentOffset: t.SharedAt}
	if t.Write || t.Blocking {
		return c.deviceTransfer(m, t.Blocking)
	}
	return c.sendUnfinished(m, &directRead{&c.Reads, c.Reads.Add(t.Host.Ptr.Address(), &t.Host.Side, c.Queue.Worker())})
}

// view looks whether the program's side of a read or write lies in memory that a map of the context's shows. A read
// into what another read is about to fill is none: this side may copy the other's bytes after the device copied these.
func (c *Context) view(t *Transfer) {
	if t.Host.Size < transfer.DirectBytes || t.Shared != nil {
		return
	}
	p, at := c.Views.Find(t.Host.Ptr.Address(), t.Host.Size)
	if p == nil || !t.Write && c.Reads.Meeting(t.Host.Ptr.Address(), &t.Host.Side) != nil {
		return
	}
	t.Shared, t.SharedAt = p.Segment, at
}

// directRead is a read or a map that does not block, until its bytes are where the program looks for them.
type directRead struct {
	reads  *transfer.ReadHazards
	hazard *transfer.ReadHazard
}

// End implements UnfinishedRead.
func (x *directRead) End(status int32) int32 {
	x.reads.End(x.hazard)
	return status
}
