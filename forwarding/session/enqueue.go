package session

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/ways"
	"tendril/forwarding/trace"
)

// EnqueueRead is clEnqueueReadBuffer (§5.2.2).
func (d *Driver) EnqueueRead(queue, buffer uintptr, blocking bool, off, size uint64, ptr api.HostPtr,
	w api.Waits) (uintptr, api.Status) {
	q, b, status := d.access(queue, buffer, cl.MEM_HOST_WRITE_ONLY|cl.MEM_HOST_NO_ACCESS, w)
	if status != cl.SUCCESS {
		return 0, status
	}
	event, status := d.read(q, b, cl.COMMAND_READ_BUFFER, blocking, off, size, ptr, w)
	if status == cl.SUCCESS && blocking {
		d.publishRead(b, off, size)
	}
	return event, status
}

// read brings a range of a buffer to the program's memory, by a command of a kind.
func (d *Driver) read(q *Queue, b *Buffer, kind uint32, blocking bool, off, size uint64, ptr api.HostPtr,
	w api.Waits) (uintptr, api.Status) {
	if ptr.Nil() || !b.inside(off, size) {
		return 0, cl.INVALID_VALUE
	}
	var c command
	status := d.open(&c, q, kind, &w)
	if status == cl.SUCCESS {
		status = c.touches(b, false)
	}
	if status != cl.SUCCESS {
		return c.close(status)
	}
	t := ways.Transfer{Buffer: b, Blocking: blocking}
	t.Linear(off, ptr, size)
	status = c.carryOut(&t)
	if status == cl.SUCCESS && blocking {
		q.ctx.mirrors.Sync()
	}
	return c.close(status)
}

// EnqueueWrite is clEnqueueWriteBuffer (§5.2.2).
func (d *Driver) EnqueueWrite(queue, buffer uintptr, blocking bool, off, size uint64, ptr api.HostPtr,
	w api.Waits) (uintptr, api.Status) {
	q, b, status := d.access(queue, buffer, cl.MEM_HOST_READ_ONLY|cl.MEM_HOST_NO_ACCESS, w)
	if status != cl.SUCCESS {
		return 0, status
	}
	return d.write(q, b, cl.COMMAND_WRITE_BUFFER, blocking, off, size, ptr, w)
}

// write brings the program's memory to a range of a buffer, by a command of a kind.
func (d *Driver) write(q *Queue, b *Buffer, kind uint32, blocking bool, off, size uint64, ptr api.HostPtr,
	w api.Waits) (uintptr, api.Status) {
	if ptr.Nil() || !b.inside(off, size) {
		return 0, cl.INVALID_VALUE
	}
	var c command
	status := d.open(&c, q, kind, &w)
	c.overwrites(b, off, size)
	if status == cl.SUCCESS {
		status = c.touches(b, true)
	}
	if status != cl.SUCCESS {
		return c.close(status)
	}
	t := ways.Transfer{Buffer: b, Write: true, Blocking: blocking}
	t.Linear(off, ptr, size)
	status = c.carryOut(&t)
	if status == cl.SUCCESS && blocking {
		q.ctx.mirrors.Sync()
	}
	return c.close(status)
}

// access resolves queue and buffer for a command of the host's that denied forbids.
func (d *Driver) access(queue, buffer uintptr, denied uint64, w api.Waits) (*Queue, *Buffer, api.Status) {
	q, status := d.liveQueue(queue)
	if status != cl.SUCCESS {
		return nil, nil, status
	}
	b, status := d.buffer(q, buffer)
	if status != cl.SUCCESS {
		return nil, nil, status
	}
	if b.flags&denied != 0 && !w.Internal {
		return nil, nil, cl.INVALID_OPERATION
	}
	return q, b, b.placed(q)
}

// EnqueueCopy is clEnqueueCopyBuffer (§5.2.4).
func (d *Driver) EnqueueCopy(queue, src, dst uintptr, srcOff, dstOff, size uint64, w api.Waits) (uintptr, api.Status) {
	q, s, t, status := d.pair(queue, src, dst)
	if status != cl.SUCCESS {
		return 0, status
	}
	return d.copy(q, cl.COMMAND_COPY_BUFFER, s, t, srcOff, dstOff, size, w)
}

// copy copies a range of s into t, by a command of a kind.
func (d *Driver) copy(q *Queue, kind uint32, s, t *Buffer, srcOff, dstOff, size uint64,
	w api.Waits) (uintptr, api.Status) {
	if size == 0 || !s.inside(srcOff, size) || !t.inside(dstOff, size) {
		return 0, cl.INVALID_VALUE
	}
	if s.root == t.root {
		from, to := s.origin+srcOff, t.origin+dstOff
		if from < to+size && to < from+size {
			return 0, cl.MEM_COPY_OVERLAP
		}
	}
	if m := s.copyOfObject(q, srcOff, dstOff, size); m != nil {
		var c command
		status := d.open(&c, q, kind, &w)
		if status == cl.SUCCESS {
			status = c.uses(t, true)
		}
		if status == cl.SUCCESS {
			m.Buffer = t.id.Load() // of fresh memory, if it was published
			status = c.send(m, &m.Cmd)
		}
		return c.close(status)
	}
	c, status := d.openPair(q, kind, w, s, t)
	if status != cl.SUCCESS {
		return c.close(status)
	}
	m := &clwire.Copy{Src: s.id.Load(), Dst: t.id.Load(), SrcOffset: srcOff, DstOffset: dstOff, Size: size}
	return c.close(c.send(m, &m.Cmd))
}

func (d *Driver) pair(queue, src, dst uintptr) (q *Queue, s, t *Buffer, status api.Status) {
	if q, status = d.liveQueue(queue); status != cl.SUCCESS {
		return
	}
	if s = d.buffers.Get(src); s == nil || s.image != nil {
		return q, s, t, cl.INVALID_MEM_OBJECT
	}
	if t = d.buffers.Get(dst); t == nil || t.image != nil {
		return q, s, t, cl.INVALID_MEM_OBJECT
	}
	if s.ctx != q.ctx || t.ctx != q.ctx {
		return q, s, t, cl.INVALID_CONTEXT
	}
	if status = s.placed(q); status == cl.SUCCESS {
		status = t.placed(q)
	}
	return
}

func (d *Driver) openPair(q *Queue, kind uint32, w api.Waits, src, dst *Buffer) (command, api.Status) {
	var c command
	status := d.open(&c, q, kind, &w)
	if status == cl.SUCCESS {
		status = c.uses(src, false)
	}
	if status == cl.SUCCESS {
		status = c.uses(dst, true)
	}
	return c, status
}

// EnqueueFill is clEnqueueFillBuffer (§5.2.2).
func (d *Driver) EnqueueFill(queue, buffer uintptr, pattern api.HostPtr, patternSize, off, size uint64,
	w api.Waits) (uintptr, api.Status) {
	q, status := d.liveQueue(queue)
	if status != cl.SUCCESS {
		return 0, status
	}
	b, status := d.buffer(q, buffer)
	if status != cl.SUCCESS {
		return 0, status
	}
	return d.fill(q, b, cl.COMMAND_FILL_BUFFER, pattern, patternSize, off, size, w)
}

// fill repeats a pattern over a range of a buffer, by a command of a kind.
func (d *Driver) fill(q *Queue, b *Buffer, kind uint32, pattern api.HostPtr, patternSize, off, size uint64,
	w api.Waits) (uintptr, api.Status) {
	if !b.inside(off, size) || pattern.Nil() || patternSize == 0 || patternSize > clwire.MaxPattern ||
		patternSize&(patternSize-1) != 0 || off%patternSize != 0 || size%patternSize != 0 {
		return 0, cl.INVALID_VALUE
	}
	if status := b.placed(q); status != cl.SUCCESS {
		return 0, status
	}
	var c command
	status := d.open(&c, q, kind, &w)
	c.overwrites(b, off, size)
	if status == cl.SUCCESS {
		status = c.uses(b, true)
	}
	if status != cl.SUCCESS {
		return c.close(status)
	}
	if size == 0 {
		return c.close(c.order(false))
	}
	m := &clwire.Fill{Buffer: b.id.Load(), Offset: off, Size: size, Pattern: pattern.Bytes(0, patternSize)}
	return c.close(c.send(m, &m.Cmd))
}

// EnqueueMarker is clEnqueueMarkerWithWaitList, and clEnqueueMarker with an empty list (§5.12).
func (d *Driver) EnqueueMarker(queue uintptr, w api.Waits) (uintptr, api.Status) {
	return d.mark(queue, cl.COMMAND_MARKER, w)
}

func (d *Driver) mark(queue uintptr, kind uint32, w api.Waits) (uintptr, api.Status) {
	q, status := d.liveQueue(queue)
	if status != cl.SUCCESS {
		return 0, status
	}
	var c command
	status = d.open(&c, q, kind, &w)
	if status != cl.SUCCESS {
		return c.close(status)
	}
	if w.N > 0 && len(c.wait) == 0 && q.outOf {
		// Every event of the list has ended: an empty list would mean all earlier commands.
		if !c.timed() {
			if c.e != nil {
				c.e.EndHere(cl.SUCCESS)
			}
			return c.close(cl.SUCCESS)
		}
		c.wait, status = d.endedEvent(q)
		if status != cl.SUCCESS {
			return c.close(status)
		}
	}
	m := &clwire.Marker{}
	return c.close(c.send(m, &m.Cmd))
}

// endedEvent makes a wait list of one event that has ended.
func (d *Driver) endedEvent(q *Queue) ([]uint64, api.Status) {
	id := d.newID()
	if q.w.Send(&clwire.UserEvent{ID: id}, 0, 0) != nil || q.w.Send(&clwire.SetUserEvent{ID: id}, 0, 0) != nil {
		return nil, cl.OUT_OF_RESOURCES
	}
	return []uint64{id}, cl.SUCCESS
}

// EnqueueBarrier is clEnqueueBarrierWithWaitList, clEnqueueBarrier and clEnqueueWaitForEvents (§5.12).
func (d *Driver) EnqueueBarrier(queue uintptr, w api.Waits) (uintptr, api.Status) {
	q, status := d.liveQueue(queue)
	if status != cl.SUCCESS {
		return 0, status
	}
	var c command
	status = d.open(&c, q, cl.COMMAND_BARRIER, &w)
	if status != cl.SUCCESS {
		return c.close(status)
	}
	if w.N > 0 && len(c.wait) == 0 {
		if c.wait, status = d.endedEvent(q); status != cl.SUCCESS {
			return c.close(status)
		}
	}
	q.gated.Store(true)
	m := &clwire.Barrier{}
	return c.close(c.send(m, &m.Cmd))
}

// EnqueueWaitForEvents is clEnqueueWaitForEvents (OpenCL 1.1 §5.10): a barrier on the list.
func (d *Driver) EnqueueWaitForEvents(queue uintptr, w api.Waits) api.Status {
	q, status := d.liveQueue(queue)
	if status != cl.SUCCESS {
		return status
	}
	if w.N == 0 || w.List == nil {
		return cl.INVALID_VALUE
	}
	for _, h := range w.List {
		if d.events.Get(h) == nil {
			return cl.INVALID_EVENT
		}
	}
	_, status = d.EnqueueBarrier(q.handle, api.Waits{N: w.N, List: w.List})
	return status
}

// EnqueueMigrate is clEnqueueMigrateMemObjects (§5.5.4): one worker holds all, so that it orders and moves nothing.
func (d *Driver) EnqueueMigrate(queue uintptr, buffers []uintptr, flags uint64, w api.Waits) (uintptr, api.Status) {
	q, status := d.liveQueue(queue)
	if status != cl.SUCCESS {
		return 0, status
	}
	if len(buffers) == 0 || flags&^(cl.MIGRATE_MEM_OBJECT_HOST|cl.MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED) != 0 {
		return 0, cl.INVALID_VALUE
	}
	for _, h := range buffers {
		if _, status := d.memObject(q, h); status != cl.SUCCESS {
			return 0, status
		}
	}
	return d.mark(queue, cl.COMMAND_MIGRATE_MEM_OBJECTS, w)
}

// WaitForEvents is clWaitForEvents (§5.9).
func (d *Driver) WaitForEvents(n uint32, list []uintptr) api.Status {
	if n == 0 || list == nil {
		return cl.INVALID_VALUE
	}
	var ctx *Context
	for _, h := range list {
		e := d.events.Get(h)
		if e == nil {
			return cl.INVALID_EVENT
		}
		if ctx == nil {
			ctx = e.ctx
		}
		if e.ctx != ctx {
			return cl.INVALID_CONTEXT
		}
	}
	status := d.waitAll(ctx, list)
	if w := ctx.bound(); w != nil && w.Dead() {
		w.awaitLanded()
	}
	ctx.mirrors.Sync()
	return status
}

func (d *Driver) waitAll(ctx *Context, list []uintptr) api.Status {
	w := ctx.bound()
	var ids []uint64
	var status api.Status
	for _, h := range list {
		e := d.events.Get(h)
		switch {
		case e == nil || e.status.Load() == 0:
		case e.status.Load() < 0:
			status = cl.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST
		case w == nil || w.Dead():
			e.waitLocal()
			if e.status.Load() < 0 {
				status = cl.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST
			}
		case e.ensureRemote(w) != nil:
			status = cl.OUT_OF_RESOURCES
		default:
			ids = append(ids, e.id)
		}
	}
	if len(ids) == 0 {
		return status
	}
	if waited := w.waitEvents(trace.CauseWait, ids...); waited != cl.SUCCESS {
		if w.Dead() {
			return cl.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST
		}
		return waited
	}
	return status
}
