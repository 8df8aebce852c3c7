package session

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/memory"
	"tendril/forwarding/session/node"
	"tendril/forwarding/session/transfer"
)

// Transfers in the queue itself. A device out of place moves bytes between a buffer and shared memory; where that
// memory is free beforehand, the transfer is the program's command: one message and one wait, where work of this side
// (hostWork) would wait for the command's turn first and for its own transfer then.

// sharedShadowBytes is the least buffer whose maps are shown in shared memory: a segment has a descriptor and a charge,
// and the driver's first use of it costs more than a copy of this many bytes.
const sharedShadowBytes = 256 << 10

// shareShadow gives maps of a large buffer out of place shared memory to show, so that the worker moves their bytes
// without a copy by this side. Where there is none left, maps show memory of the program's own.
func (b *Buffer) shareShadow(q *Queue) {
	if !b.ctx.staged() || b.size < sharedShadowBytes || b.image != nil || b.mirror != nil {
		return
	}
	b.mu.Lock()
	has := b.shadow != nil
	b.mu.Unlock()
	if has {
		return
	}
	p, status := b.d.slabs.AllocOwn(b.size)
	if status != cl.SUCCESS {
		return
	}
	if b.pinShadow(p, q) == cl.SUCCESS && b.setShadow(p) {
		return
	}
	q.w.freeMemory(b.d, p)
}

// pinShadow makes the driver pin the memory. It may write all of it back then: a transfer of nothing that matters is
// waited for.
func (b *Buffer) pinShadow(p *memory.Place, q *Queue) api.Status {
	if q.w.addSegment(p.Segment) != nil {
		return cl.OUT_OF_RESOURCES
	}
	own, status := b.moveQueue()
	if status != cl.SUCCESS {
		return status
	}
	first := command{d: b.d, q: own, kind: cl.COMMAND_MAP_BUFFER}
	return first.deviceTransfer(&clwire.Transfer{Direction: clwire.FromBuffer, Buffer: b.id.Load(), Size: 1,
		Segment: p.Segment.ID}, true)
}

// setShadow reports whether the place became the buffer's shadow: another thread may have been first.
func (b *Buffer) setShadow(p *memory.Place) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shadow != nil || b.released {
		return false
	}
	b.shadow, b.shadowPlace = p.Bytes(b.size), p
	return true
}

// shadowSegment is the shared segment under the buffer's shadow, nil where there is none.
func (b *Buffer) shadowSegment() *node.Segment {
	if !b.ctx.staged() {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shadowPlace == nil {
		return nil
	}
	return b.shadowPlace.Segment
}

// moveShared lets the worker move a map's bytes between the device and the shared memory that the map shows, as this
// command.
func (c *command) moveShared(t *hostTransfer) api.Status {
	root := t.shown
	if c.q.w.addSegment(t.shared) != nil {
		return cl.OUT_OF_RESOURCES
	}
	if status := root.ensureRemote(c.q.w); status != cl.SUCCESS {
		return status
	}
	at := t.b.origin + t.device.Offset
	m := &clwire.Transfer{Direction: t.direction(), Buffer: root.id.Load(), Offset: at, Size: t.host.Size,
		Segment: t.shared.ID, SegmentOffset: at}
	if t.write || t.blocking {
		return c.deviceTransfer(m, t.blocking)
	}
	hazards := &c.d.readHazards
	return c.sendLanding(m, &mapRead{hazards, hazards.Add(t.host.ptr.Address(), &t.host.Side, c.q.w)})
}

// mapRead is a map that does not block, until its bytes are where it shows them.
type mapRead struct {
	hazards *transfer.ReadHazards
	hazard  *transfer.ReadHazard
}

func (x *mapRead) end(status int32) int32 {
	x.hazards.End(x.hazard)
	return status
}
