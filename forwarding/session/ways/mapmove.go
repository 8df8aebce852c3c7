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

// mapMove lets the worker move a map's bytes between the device and the shared memory that the map shows, as this
// command.
func (c *Command) mapMove(t *Transfer) api.Status {
	if c.Queue.Worker().Share(t.Shared) != nil {
		return cl.OUT_OF_RESOURCES
	}
	if status := t.Shown.Reach(c.Queue); status != cl.SUCCESS {
		return status
	}
	m := &clwire.Transfer{Direction: t.direction(), Buffer: t.Shown.Number(), Offset: t.ShownAt, Size: t.Host.Size,
		Segment: t.Shared.ID, SegmentOffset: t.ShownAt}
	if t.Write || t.Blocking {
		return c.deviceTransfer(m, t.Blocking)
	}
	return c.sendLanding(m, &mapRead{&c.Reads, c.Reads.Add(t.Host.Ptr.Address(), &t.Host.Side, c.Queue.Worker())})
}

// mapRead is a map that does not block, until its bytes are where it shows them.
type mapRead struct {
	reads  *transfer.ReadHazards
	hazard *transfer.ReadHazard
}

// End implements Landing.
func (x *mapRead) End(status int32) int32 {
	x.reads.End(x.hazard)
	return status
}
