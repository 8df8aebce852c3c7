package session

import (
	"tendril/forwarding/clwire"
)

// Waits is how an enqueue call names what it waits for and whether it wants an event: num_events_in_wait_list,
// event_wait_list (nil: NULL) and event.
type Waits struct {
	N    uint32
	List []uintptr
	Want bool

	graph   *CommandBuffer // not nil: the command is recorded there, under its lock, and not sent
	unasked bool           // see Unasked
}

// command is one enqueue call on its way.
type command struct {
	d    *Driver
	q    *Queue
	kind uint32
	e    *Event   // nil: nobody wants one
	wait []uint64 // events that may not have ended
	want bool

	graph *CommandBuffer // not nil: the command is recorded
	noted []use          // of a recorded command: its buffers
	given uint32         // events in the program's wait list
	whole *Buffer        // nil, or a root that the command overwrites from end to end
	holds bool           // Context.publishing
}

// liveQueue resolves a queue.
func (d *Driver) liveQueue(h uintptr) (*Queue, Status) {
	q := d.queues.Get(h)
	if q == nil {
		return nil, InvalidCommandQueue
	}
	return q, Success
}

// open resolves the wait list and makes the event. The caller has checked everything else: what follows can fail
// for want of resources alone.
func (d *Driver) open(q *Queue, kind uint32, w Waits) (command, Status) {
	c := command{d: d, q: q, kind: kind, want: w.Want, given: w.N, graph: w.graph}
	if w.N > 0 || w.List != nil {
		var status Status
		if c.wait, status = d.waitList(q, w); status != Success {
			return c, status
		}
	}
	if q.w.dead.Load() {
		return c, OutOfResources
	}
	if q.ctx.inPlace {
		q.ctx.publishing.RLock()
		c.holds = true
	}
	status := c.afterWrites()
	if !w.Want || status != Success {
		return c, status
	}
	c.e, status = d.shownEvent(q.ctx, q, kind)
	return c, status
}

// checkWaits looks at a wait list's handles.
func (d *Driver) checkWaits(ctx *Context, w Waits) Status {
	if w.N == 0 && w.List == nil {
		return Success
	}
	if (w.N == 0) != (w.List == nil) {
		return InvalidEventWaitList
	}
	for _, h := range w.List {
		e := d.events.Get(h)
		if e == nil {
			return InvalidEventWaitList
		}
		if e.ctx != ctx {
			return InvalidContext
		}
	}
	return Success
}

// waitList returns the worker's numbers of the events that are not known to have completed. A failed one stays in:
// the worker fails the command as the specification says.
func (d *Driver) waitList(q *Queue, w Waits) ([]uint64, Status) {
	if status := d.checkWaits(q.ctx, w); status != Success {
		return nil, status
	}
	q.w.reader.poll()
	var ids []uint64
	for _, h := range w.List {
		e := d.events.Get(h)
		if e == nil || e.status.Load() == 0 {
			continue
		}
		if e.id == 0 {
			return nil, ExecStatusErrorForEvents // ended here, in error
		}
		if e.ensureRemote(q.w) != nil {
			return nil, OutOfResources
		}
		ids = append(ids, e.id)
	}
	if len(ids) <= maxWaitEvents {
		return ids, Success
	}
	return d.foldWaits(q, ids)
}

// foldWaits makes a long wait list short: markers gather its parts.
func (d *Driver) foldWaits(q *Queue, ids []uint64) ([]uint64, Status) {
	var folded []uint64
	for len(ids) > 0 {
		n := min(len(ids), maxWaitEvents)
		e := d.internalEvent(q)
		m := &clwire.Marker{}
		if _, status := q.submit(m, &m.Cmd, e, ids[:n], 0); status != Success {
			return nil, status
		}
		folded = append(folded, e.id)
		ids = ids[n:]
	}
	if len(folded) > maxWaitEvents {
		return nil, OutOfResources
	}
	return folded, Success
}

// internalEvent makes an event that the program never sees; the worker drops it when it ended.
func (d *Driver) internalEvent(q *Queue) *Event {
	e := d.newEvent(q.ctx, q, cmdMarker)
	e.freed = true
	return e
}

// waitedEvent makes the event of a blocking command that has none: its caller is told of a failure, and an event keeps
// that from being latched on the queue as well. The caller lets go of it.
func (q *Queue) waitedEvent() *Event { return q.d.newEvent(q.ctx, q, cmdMarker) }

// close returns the event's handle, or takes it back when the command failed.
func (c *command) close(status Status) (uintptr, Status) {
	if c.holds {
		c.holds = false
		c.q.ctx.publishing.RUnlock()
	}
	if status != Success {
		if w := c.q.w; w.dead.Load() {
			w.awaitLanded()
		}
		c.d.abandon(c.e)
		return 0, status
	}
	if !c.want {
		return 0, Success
	}
	return c.e.handle, Success
}

// uses prepares a buffer that the command names to the worker.
func (c *command) uses(b *Buffer, writes bool) Status {
	if c.graph != nil {
		c.note(b, writes)
		return b.ensureRemote(c.q.w)
	}
	if status := c.touches(b, writes); status != Success {
		return status
	}
	return b.ensureRemote(c.q.w)
}

// touches prepares a buffer for a command: fresh memory for one that was published, the program's own memory pushed.
func (c *command) touches(b *Buffer, writes bool) Status {
	root := b.root
	if writes && root.object != nil {
		return InvalidOperation
	}
	if writes && root.published.Load() {
		if status := root.freshen(c.whole != root); status != Success {
			return status
		}
	}
	if root.mirror == nil {
		return Success
	}
	if c.e == nil {
		c.e = c.d.internalEvent(c.q)
	}
	push, status := root.mirror.use(c.q, c.e, c.wait, writes)
	if push != nil && c.q.outOf {
		c.wait = append(c.wait, push.id)
	}
	return status
}

// send submits a record of this command's own.
func (c *command) send(m clwire.Message, cmd *clwire.Cmd) Status {
	if c.graph != nil {
		return c.graph.add(m, c.noted)
	}
	_, status := c.q.submit(m, cmd, c.e, c.wait, 0)
	return status
}

// buffer resolves a cl_mem for a queue (§5.2.2: the same context). An image is none.
func (d *Driver) buffer(q *Queue, h uintptr) (*Buffer, Status) {
	if b := d.buffers.Get(h); b == nil || b.image != nil {
		return nil, InvalidMemObject
	}
	return d.memObject(q, h)
}

// memObject resolves a cl_mem of any kind.
func (d *Driver) memObject(q *Queue, h uintptr) (*Buffer, Status) {
	b := d.buffers.Get(h)
	if b == nil {
		return nil, InvalidMemObject
	}
	if b.ctx != q.ctx {
		return nil, InvalidContext
	}
	return b, Success
}

// placed checks a sub-buffer's alignment for the queue's device.
func (b *Buffer) placed(q *Queue) Status {
	if b.parent != nil && b.origin%q.device.limits.alignBytes != 0 {
		return MisalignedSubBufferOffset
	}
	return Success
}

// overwrites notes that the command leaves nothing of the buffer's contents.
func (c *command) overwrites(b *Buffer, off, n uint64) {
	if b.parent == nil && off == 0 && n == b.size {
		c.whole = b
	}
}

// inside says whether [off, off+n) lies in the buffer.
func (b *Buffer) inside(off, n uint64) bool { return off <= b.size && n <= b.size-off }
