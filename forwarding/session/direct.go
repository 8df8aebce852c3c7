package session

import (
	"tendril/forwarding/clwire"
)

// Transfers in the queue itself. A device out of place moves bytes between a buffer and shared memory; where that memory
// is free beforehand, the transfer is the program's command: one message and one wait, where work of this side (hostWork)
// would wait for the command's turn first and for its own transfer then.

// sharedShadowBytes is the least buffer whose maps are shown in shared memory: a segment has a descriptor and a charge,
// and the driver's first use of it costs more than a copy of this many bytes.
const sharedShadowBytes = 256 << 10

// direct reports whether a blocking read was one transfer through a free chunk of the staging pool. It leaves alone what
// does not fit one, and what would have to wait for others' chunks.
func (c *command) direct(b *Buffer, off uint64, to []byte) (done bool, status Status) {
	ctx := c.q.ctx
	if !ctx.staged() || len(to) == 0 || len(to) > chunkBytes || c.free() {
		return false, Success
	}
	pool := &ctx.staging
	if _, status := b.prepare(); status != Success {
		return false, Success // the long way says why
	}
	i, ok := pool.hold()
	if !ok {
		return false, Success
	}
	defer pool.let(i)
	t := clwire.Transfer{Direction: clwire.FromBuffer, Buffer: b.id.Load(), Offset: off, Size: uint64(len(to)),
		Segment: pool.seg.ID, SegmentOffset: uint64(i) * chunkBytes}
	if status := c.transfer(&t, true); status != Success {
		return true, status
	}
	copy(to, pool.chunk(i))
	return true, Success
}

// free says that the command has nothing to wait for: then work of this side's own takes one wait as well, and may be
// cut into chunks that overlap.
func (c *command) free() bool {
	h := hostWork{q: c.q, wait: c.wait, event: c.e}
	return h.free()
}

// transfer sends a Transfer as this command, and waits for its end where the call blocks.
func (c *command) transfer(t *clwire.Transfer, blocking bool) Status {
	q := c.q
	if blocking && c.e == nil {
		c.e = q.waitedEvent()
		defer c.e.letGo(q.w)
	}
	if _, status := q.submit(t, &t.Cmd, c.e, c.wait, 0); status != Success || !blocking {
		return status
	}
	status := q.w.waitEvents(causeOfCommand(c.kind), c.e.id)
	if status == Success {
		return Success
	}
	return Status(min(c.e.status.Load(), int32(status)))
}

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
	p, status := b.d.slabs.allocOwn(b.size)
	if status != Success {
		return
	}
	if b.pinShadow(p, q) == Success && b.setShadow(p) {
		return
	}
	b.d.slabs.free(p, q.w)
}

// pinShadow makes the driver pin the memory. It may write all of it back then: a transfer of nothing that matters is
// waited for.
func (b *Buffer) pinShadow(p *place, q *Queue) Status {
	if q.w.addSegment(p.seg) != nil {
		return OutOfResources
	}
	own, status := b.moveQueue()
	if status != Success {
		return status
	}
	first := command{d: b.d, q: own, kind: cmdMap}
	return first.transfer(&clwire.Transfer{Direction: clwire.FromBuffer, Buffer: b.id.Load(), Size: 1, Segment: p.seg.ID}, true)
}

// setShadow reports whether the place became the buffer's shadow: another thread may have been first.
func (b *Buffer) setShadow(p *place) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shadow != nil || b.released {
		return false
	}
	b.shadow, b.shadowPlace = p.bytes(b.size), p
	return true
}

// shadowSegment is the shared segment under the buffer's shadow, nil where there is none.
func (b *Buffer) shadowSegment() *Segment {
	if !b.ctx.staged() {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shadowPlace == nil {
		return nil
	}
	return b.shadowPlace.seg
}

// moveShadow lets the worker move [at, at+n) of a root between the device and its shared shadow, as this command.
func (c *command) moveShadow(root *Buffer, seg *Segment, direction uint8, blocking bool, at, n uint64) Status {
	if c.q.w.addSegment(seg) != nil {
		return OutOfResources
	}
	if status := root.ensureRemote(c.q.w); status != Success {
		return status
	}
	return c.transfer(&clwire.Transfer{Direction: direction, Buffer: root.id.Load(), Offset: at, Size: n,
		Segment: seg.ID, SegmentOffset: at}, blocking)
}
