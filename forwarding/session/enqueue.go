package session

import (
	"tendril/forwarding/clwire"
	"tendril/forwarding/trace"
)

// promptBytes is how much a call that does not block copies itself when nothing is outstanding: a goroutine's start
// costs more.
const promptBytes = 1 << 20

// recordRoom is what a record has beside its wait list.
const recordRoom = clwire.MaxRecord - 512

// EnqueueRead is clEnqueueReadBuffer (§5.2.2).
func (d *Driver) EnqueueRead(queue, buffer uintptr, blocking bool, off, size uint64, ptr HostPtr, w Waits) (uintptr, Status) {
	q, b, status := d.access(queue, buffer, memHostWriteOnly|memHostNoAccess, w)
	if status != Success {
		return 0, status
	}
	if ptr.Nil() || !b.inside(off, size) {
		return 0, InvalidValue
	}
	c, status := d.open(q, cmdRead, w)
	if status == Success {
		status = c.touches(b, false)
	}
	if status != Success {
		return c.close(status)
	}
	switch {
	case q.ctx.remote && size == 0:
		status = c.order(blocking, nil, nil)
	case q.ctx.remote:
		status = c.bulk(b, false, blocking, clwire.Shape{Offset: off, Size: size}, linear(ptr, size), nil)
	default:
		done := false
		if blocking {
			done, status = c.direct(b, off, ptr.bytes(0, size))
		} else {
			done, status = c.readLate(b, off, size, ptr)
		}
		if !done {
			h := c.host(b, blocking, size, func() Status { return b.load(off, ptr.bytes(0, size)) })
			h.lands(d, linear(ptr, size))
			status = h.run()
		}
	}
	if status == Success && blocking {
		q.ctx.syncHost()
	}
	event, status := c.close(status)
	if status == Success && blocking {
		d.publishRead(b, off, size)
	}
	return event, status
}

// EnqueueWrite is clEnqueueWriteBuffer (§5.2.2). Small writes ride in the record.
func (d *Driver) EnqueueWrite(queue, buffer uintptr, blocking bool, off, size uint64, ptr HostPtr, w Waits) (uintptr, Status) {
	q, b, status := d.access(queue, buffer, memHostReadOnly|memHostNoAccess, w)
	if status != Success {
		return 0, status
	}
	if ptr.Nil() || !b.inside(off, size) {
		return 0, InvalidValue
	}
	c, status := d.open(q, cmdWrite, w)
	c.overwrites(b, off, size)
	if status == Success {
		status = c.touches(b, true)
	}
	if status != Success {
		return c.close(status)
	}
	switch {
	case c.rides(b, size, blocking, ptr):
		status = c.inline(b, off, ptr.bytes(0, size), blocking)
	case q.ctx.remote && size == 0:
		status = c.order(blocking, nil, nil)
	case q.ctx.remote:
		status = c.bulk(b, true, blocking, clwire.Shape{Offset: off, Size: size}, linear(ptr, size), nil)
	default:
		done := false
		if !blocking {
			done, status = c.writeAhead(b, off, size, ptr)
		}
		if !done {
			h := c.host(b, blocking, size, func() Status { return b.store(off, ptr.bytes(0, size)) })
			h.takes(d, linear(ptr, size))
			status = h.run()
		}
	}
	if status == Success && blocking {
		q.ctx.syncHost()
	}
	return c.close(status)
}

// access resolves queue and buffer for a command of the host's that denied forbids.
func (d *Driver) access(queue, buffer uintptr, denied uint64, w Waits) (*Queue, *Buffer, Status) {
	q, status := d.liveQueue(queue)
	if status != Success {
		return nil, nil, status
	}
	b, status := d.buffer(q, buffer)
	if status != Success {
		return nil, nil, status
	}
	if b.flags&denied != 0 && !w.unasked {
		return nil, nil, InvalidOperation
	}
	return q, b, b.placed(q)
}

// host makes a command of this side's own that moves size bytes of b.
func (c *command) host(b *Buffer, blocking bool, size uint64, work func() Status) hostWork {
	prompt := c.q.ctx.inPlace && size <= promptBytes
	h := hostWork{q: c.q, kind: c.kind, wait: c.wait, event: c.e, blocking: blocking, prompt: prompt, work: work}
	if !blocking && b.bytes() == nil {
		h.after = b.moving()
	}
	return h
}

// rides says whether a write goes as one record: small, and not better copied by this side. In place a blocking write
// is: it has to wait for its turn anyway (§5.2.2: until the command is complete), and copies when that has come.
func (c *command) rides(b *Buffer, size uint64, blocking bool, ptr HostPtr) bool {
	if size == 0 || size+8*uint64(len(c.wait)) > recordRoom {
		return false
	}
	if c.q.ctx.inPlace && (blocking || size > ridesBytes || len(c.wait) == 0 && c.q.idle()) {
		return false
	}
	from := linear(ptr, size)
	return c.settled(&from) && c.q.w.carries(size)
}

// inline sends a write in its record; a blocking one waits for its end, or for what looks the same to the program.
func (c *command) inline(b *Buffer, off uint64, data []byte, blocking bool) Status {
	if status := b.ensureRemote(c.q.w); status != Success {
		return status
	}
	if blocking && c.e == nil {
		if sent, status := c.sendUnwaited(b, off, data); sent {
			return status
		}
		c.e = c.q.waitedEvent()
		defer c.e.letGo(c.q.w)
	}
	status := c.sendInline(b, off, data)
	if status != Success || !blocking {
		return status
	}
	return c.q.w.waitEvents(trace.CauseWait, c.e.id)
}

func (c *command) sendInline(b *Buffer, off uint64, data []byte) Status {
	q := c.q
	q.mu.Lock()
	defer q.mu.Unlock()
	m := &q.pool.inline
	m.Buffer, m.Offset, m.Data = b.id.Load(), off, data
	_, status := q.submitLocked(m, &m.Cmd, c.e, c.wait, 0)
	m.Data = nil
	return status
}

// EnqueueCopy is clEnqueueCopyBuffer (§5.2.4).
func (d *Driver) EnqueueCopy(queue, src, dst uintptr, srcOff, dstOff, size uint64, w Waits) (uintptr, Status) {
	q, s, t, status := d.pair(queue, src, dst)
	if status != Success {
		return 0, status
	}
	if size == 0 || !s.inside(srcOff, size) || !t.inside(dstOff, size) {
		return 0, InvalidValue
	}
	if s.root == t.root {
		from, to := s.origin+srcOff, t.origin+dstOff
		if from < to+size && to < from+size {
			return 0, MemCopyOverlap
		}
	}
	if m := s.copyOfObject(q, srcOff, dstOff, size); m != nil {
		c, status := d.open(q, cmdCopy, w)
		if status == Success {
			status = c.uses(t, true)
		}
		if status == Success {
			m.Buffer = t.id.Load() // of fresh memory, if it was published
			status = c.send(m, &m.Cmd)
		}
		return c.close(status)
	}
	c, status := d.openPair(q, cmdCopy, w, s, t)
	if status != Success {
		return c.close(status)
	}
	m := &clwire.Copy{Src: s.id.Load(), Dst: t.id.Load(), SrcOffset: srcOff, DstOffset: dstOff, Size: size}
	return c.close(c.send(m, &m.Cmd))
}

func (d *Driver) pair(queue, src, dst uintptr) (q *Queue, s, t *Buffer, status Status) {
	if q, status = d.liveQueue(queue); status != Success {
		return
	}
	if s = d.buffers.Get(src); s == nil || s.image != nil {
		return q, s, t, InvalidMemObject
	}
	if t = d.buffers.Get(dst); t == nil || t.image != nil {
		return q, s, t, InvalidMemObject
	}
	if s.ctx != q.ctx || t.ctx != q.ctx {
		return q, s, t, InvalidContext
	}
	if status = s.placed(q); status == Success {
		status = t.placed(q)
	}
	return
}

func (d *Driver) openPair(q *Queue, kind uint32, w Waits, src, dst *Buffer) (command, Status) {
	c, status := d.open(q, kind, w)
	if status == Success {
		status = c.uses(src, false)
	}
	if status == Success {
		status = c.uses(dst, true)
	}
	return c, status
}

// EnqueueFill is clEnqueueFillBuffer (§5.2.2).
func (d *Driver) EnqueueFill(queue, buffer uintptr, pattern HostPtr, patternSize, off, size uint64, w Waits) (uintptr, Status) {
	q, status := d.liveQueue(queue)
	if status != Success {
		return 0, status
	}
	b, status := d.buffer(q, buffer)
	if status != Success {
		return 0, status
	}
	if !b.inside(off, size) || pattern.Nil() || patternSize == 0 || patternSize > clwire.MaxPattern ||
		patternSize&(patternSize-1) != 0 || off%patternSize != 0 || size%patternSize != 0 {
		return 0, InvalidValue
	}
	if status := b.placed(q); status != Success {
		return 0, status
	}
	c, status := d.open(q, cmdFill, w)
	c.overwrites(b, off, size)
	if status == Success {
		status = c.uses(b, true)
	}
	if status != Success {
		return c.close(status)
	}
	if size == 0 {
		return c.close(c.order(false, nil, nil))
	}
	m := &clwire.Fill{Buffer: b.id.Load(), Offset: off, Size: size, Pattern: pattern.bytes(0, patternSize)}
	return c.close(c.send(m, &m.Cmd))
}

// EnqueueMarker is clEnqueueMarkerWithWaitList, and clEnqueueMarker with an empty list (§5.12).
func (d *Driver) EnqueueMarker(queue uintptr, w Waits) (uintptr, Status) {
	return d.mark(queue, cmdMarker, w)
}

func (d *Driver) mark(queue uintptr, kind uint32, w Waits) (uintptr, Status) {
	q, status := d.liveQueue(queue)
	if status != Success {
		return 0, status
	}
	c, status := d.open(q, kind, w)
	if status != Success {
		return c.close(status)
	}
	if w.N > 0 && len(c.wait) == 0 && q.outOf {
		// Every event of the list has ended: an empty list would mean all earlier commands.
		h := hostWork{q: q, event: c.e}
		if !h.timed() {
			h.endHere(Success)
			return c.close(Success)
		}
		c.wait, status = d.endedEvent(q)
		if status != Success {
			return c.close(status)
		}
	}
	m := &clwire.Marker{}
	return c.close(c.send(m, &m.Cmd))
}

// endedEvent makes a wait list of one event that has ended.
func (d *Driver) endedEvent(q *Queue) ([]uint64, Status) {
	id := d.newID()
	if q.w.send(&clwire.UserEvent{ID: id}, 0, 0) != nil || q.w.send(&clwire.SetUserEvent{ID: id}, 0, 0) != nil {
		return nil, OutOfResources
	}
	return []uint64{id}, Success
}

// EnqueueBarrier is clEnqueueBarrierWithWaitList, clEnqueueBarrier and clEnqueueWaitForEvents (§5.12).
func (d *Driver) EnqueueBarrier(queue uintptr, w Waits) (uintptr, Status) {
	q, status := d.liveQueue(queue)
	if status != Success {
		return 0, status
	}
	c, status := d.open(q, cmdBarrier, w)
	if status != Success {
		return c.close(status)
	}
	if w.N > 0 && len(c.wait) == 0 {
		if c.wait, status = d.endedEvent(q); status != Success {
			return c.close(status)
		}
	}
	q.gated.Store(true)
	m := &clwire.Barrier{}
	return c.close(c.send(m, &m.Cmd))
}

// EnqueueWaitForEvents is clEnqueueWaitForEvents (OpenCL 1.1 §5.10): a barrier on the list.
func (d *Driver) EnqueueWaitForEvents(queue uintptr, w Waits) Status {
	q, status := d.liveQueue(queue)
	if status != Success {
		return status
	}
	if w.N == 0 || w.List == nil {
		return InvalidValue
	}
	for _, h := range w.List {
		if d.events.Get(h) == nil {
			return InvalidEvent
		}
	}
	_, status = d.EnqueueBarrier(q.handle, Waits{N: w.N, List: w.List})
	return status
}

// EnqueueMigrate is clEnqueueMigrateMemObjects (§5.5.4): one worker holds all, so that it orders and moves nothing.
func (d *Driver) EnqueueMigrate(queue uintptr, buffers []uintptr, flags uint64, w Waits) (uintptr, Status) {
	q, status := d.liveQueue(queue)
	if status != Success {
		return 0, status
	}
	if len(buffers) == 0 || flags&^(migrateHost|migrateUndefined) != 0 {
		return 0, InvalidValue
	}
	for _, h := range buffers {
		if _, status := d.memObject(q, h); status != Success {
			return 0, status
		}
	}
	return d.mark(queue, cmdMigrate, w)
}

// WaitForEvents is clWaitForEvents (§5.9).
func (d *Driver) WaitForEvents(n uint32, list []uintptr) Status {
	if n == 0 || list == nil {
		return InvalidValue
	}
	var ctx *Context
	for _, h := range list {
		e := d.events.Get(h)
		if e == nil {
			return InvalidEvent
		}
		if ctx == nil {
			ctx = e.ctx
		}
		if e.ctx != ctx {
			return InvalidContext
		}
	}
	status := d.waitAll(ctx, list)
	if w := ctx.bound(); w != nil && w.dead.Load() {
		w.awaitLanded()
	}
	ctx.syncHost()
	return status
}

func (d *Driver) waitAll(ctx *Context, list []uintptr) Status {
	w := ctx.bound()
	var ids []uint64
	status := Success
	for _, h := range list {
		e := d.events.Get(h)
		switch {
		case e == nil || e.status.Load() == 0:
		case e.status.Load() < 0:
			status = ExecStatusErrorForEvents
		case w == nil || w.dead.Load():
			e.waitLocal()
			if e.status.Load() < 0 {
				status = ExecStatusErrorForEvents
			}
		case e.ensureRemote(w) != nil:
			status = OutOfResources
		default:
			ids = append(ids, e.id)
		}
	}
	if len(ids) == 0 {
		return status
	}
	if waited := w.waitEvents(trace.CauseWait, ids...); waited != Success {
		if w.dead.Load() {
			return ExecStatusErrorForEvents
		}
		return waited
	}
	return status
}
