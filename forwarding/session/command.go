package session

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/graphs"
)

// command is one enqueue call on its way.
type command struct {
	d    *Driver
	q    *Queue
	kind uint32
	e    *Event   // nil: nobody wants one
	wait []uint64 // events that may not have ended
	want bool

	graph *graphs.Graph[*Queue] // not nil: the command is recorded
	noted []graphs.Use          // of a recorded command: its buffers
	given uint32                // events in the program's wait list
	whole *Buffer               // nil, or a root that the command overwrites from end to end
	holds bool                  // Context.publishing
	named bool                  // it names fences: see ways.AsyncWrites.Before
}

// liveQueue resolves a queue.
func (d *Driver) liveQueue(h uintptr) (*Queue, api.Status) {
	q := d.queues.Get(h)
	if q == nil {
		return nil, cl.INVALID_COMMAND_QUEUE
	}
	return q, cl.SUCCESS
}

// open begins an empty command: it resolves the wait list and makes the event. The caller has checked everything else:
// what follows can fail for want of resources alone. Commands are made where they stay, here and in package ways: to
// read a value in wide words that has just been written in narrow ones has a processor wait.
func (d *Driver) open(c *command, q *Queue, kind uint32, w *api.Waits) api.Status {
	c.d, c.q, c.kind, c.want, c.given = d, q, kind, w.Want, w.N
	c.graph, _ = w.Recorder.(*graphs.Graph[*Queue])
	if w.N > 0 || w.List != nil {
		var status api.Status
		if c.wait, status = d.waitList(q, *w); status != cl.SUCCESS {
			return status
		}
	}
	if q.w.Dead() {
		return cl.OUT_OF_RESOURCES
	}
	if q.ctx.InPlace {
		q.ctx.publishing.RLock()
		c.holds = true
	}
	status := c.afterWrites()
	if !w.Want || status != cl.SUCCESS {
		return status
	}
	c.e, status = d.shownEvent(q.ctx, q, kind)
	return status
}

// checkWaits looks at a wait list's handles.
func (d *Driver) checkWaits(ctx *Context, w api.Waits) api.Status {
	if w.N == 0 && w.List == nil {
		return cl.SUCCESS
	}
	if (w.N == 0) != (w.List == nil) {
		return cl.INVALID_EVENT_WAIT_LIST
	}
	for _, h := range w.List {
		e := d.events.Get(h)
		if e == nil {
			return cl.INVALID_EVENT_WAIT_LIST
		}
		if e.ctx != ctx {
			return cl.INVALID_CONTEXT
		}
	}
	return cl.SUCCESS
}

// waitList returns the worker's numbers of the events that are not known to have completed. A failed one stays in:
// the worker fails the command as the specification says.
func (d *Driver) waitList(q *Queue, w api.Waits) ([]uint64, api.Status) {
	if status := d.checkWaits(q.ctx, w); status != cl.SUCCESS {
		return nil, status
	}
	q.w.Poll()
	var ids []uint64
	for _, h := range w.List {
		e := d.events.Get(h)
		if e == nil || e.status.Load() == 0 {
			continue
		}
		if e.id == 0 {
			return nil, cl.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST // ended here, in error
		}
		if e.ensureRemote(q.w) != nil {
			return nil, cl.OUT_OF_RESOURCES
		}
		ids = append(ids, e.id)
	}
	if len(ids) <= maxWaitEvents {
		return ids, cl.SUCCESS
	}
	return d.foldWaits(q, ids)
}

// foldWaits makes a long wait list short: markers gather its parts.
func (d *Driver) foldWaits(q *Queue, ids []uint64) ([]uint64, api.Status) {
	var folded []uint64
	for len(ids) > 0 {
		n := min(len(ids), maxWaitEvents)
		e := d.internalEvent(q)
		m := &clwire.Marker{}
		if _, status := q.submit(m, &m.Cmd, e, ids[:n], 0); status != cl.SUCCESS {
			return nil, status
		}
		folded = append(folded, e.id)
		ids = ids[n:]
	}
	if len(folded) > maxWaitEvents {
		return nil, cl.OUT_OF_RESOURCES
	}
	return folded, cl.SUCCESS
}

// afterWrites adds to what a command waits for the writes of other queues that were not waited for.
func (c *command) afterWrites() (status api.Status) {
	// these order their own queue alone
	if c.q.ctx.InPlace || c.kind == cl.COMMAND_MARKER || c.kind == cl.COMMAND_BARRIER {
		return cl.SUCCESS
	}
	c.wait, c.named, status = c.q.ctx.AsyncWrites.Before(c.q, c.wait)
	if status == cl.SUCCESS && len(c.wait) > maxWaitEvents {
		c.wait, status = c.d.foldWaits(c.q, c.wait)
	}
	return status
}

// timed says that the program may ask for the command's times, which the worker stamps.
func (c *command) timed() bool { return c.e != nil && c.e.Timed() }

// internalEvent makes an event that the program never sees; the worker drops it when it ended.
func (d *Driver) internalEvent(q *Queue) *Event {
	e := d.newEvent(q.ctx, q, cl.COMMAND_MARKER)
	e.freed = true
	return e
}

// close returns the event's handle, or takes it back when the command failed.
func (c *command) close(status api.Status) (uintptr, api.Status) {
	if c.holds {
		c.holds = false
		c.q.ctx.publishing.RUnlock()
	}
	if c.named {
		c.named = false
		c.q.ctx.AsyncWrites.Sent()
	}
	if status != cl.SUCCESS {
		if w := c.q.w; w.Dead() {
			w.awaitLanded()
		}
		c.d.abandon(c.e)
		return 0, status
	}
	if !c.want {
		return 0, cl.SUCCESS
	}
	return c.e.handle, cl.SUCCESS
}

// uses prepares a buffer that the command names to the worker.
func (c *command) uses(b *Buffer, writes bool) api.Status {
	if c.graph != nil {
		c.note(b, writes)
		return b.ensureRemote(c.q.w)
	}
	if status := c.touches(b, writes); status != cl.SUCCESS {
		return status
	}
	return b.ensureRemote(c.q.w)
}

// note keeps a buffer that a recorded command names; an image over a buffer may be named as that.
func (c *command) note(b *Buffer, writes bool) {
	c.noted = append(c.noted, graphs.Use{Buffer: b, Writes: writes})
	if b.image != nil && b.linear() {
		c.noted = append(c.noted, graphs.Use{Buffer: b.parent, Writes: writes})
	}
}

// touches prepares a buffer for a command: fresh memory for one that was published, the program's own memory pushed.
func (c *command) touches(b *Buffer, writes bool) api.Status {
	root := b.root
	if writes && root.isSealed() {
		return cl.INVALID_OPERATION
	}
	if writes && root.published.Load() {
		if status := root.freshen(c.whole != root); status != cl.SUCCESS {
			return status
		}
	}
	if root.mirror == nil {
		return cl.SUCCESS
	}
	if c.e == nil {
		c.e = c.d.internalEvent(c.q)
	}
	return root.mirror.Use(c.e, writes, c.pushInTurn)
}

// pushInTurn has the program's memory pushed when what this command waits for is over, and before it.
func (c *command) pushInTurn(push func() api.Status) api.Status {
	e := c.d.internalEvent(c.q)
	status := c.d.transfers.Later(c.q, e, c.wait, push)
	if status == cl.SUCCESS && c.q.outOf {
		c.wait = append(c.wait, e.id)
	}
	return status
}

// send submits a record of this command's own.
func (c *command) send(m clwire.Message, cmd *clwire.Cmd) api.Status {
	if c.graph != nil {
		return c.graph.Add(m, c.noted)
	}
	_, status := c.q.submit(m, cmd, c.e, c.wait, 0)
	return status
}

// buffer resolves a cl_mem for a queue (§5.2.2: the same context). An image is none.
func (d *Driver) buffer(q *Queue, h uintptr) (*Buffer, api.Status) {
	if b := d.buffers.Get(h); b == nil || b.image != nil {
		return nil, cl.INVALID_MEM_OBJECT
	}
	return d.memObject(q, h)
}

// memObject resolves a cl_mem of any kind.
func (d *Driver) memObject(q *Queue, h uintptr) (*Buffer, api.Status) {
	b := d.buffers.Get(h)
	if b == nil {
		return nil, cl.INVALID_MEM_OBJECT
	}
	if b.ctx != q.ctx {
		return nil, cl.INVALID_CONTEXT
	}
	return b, cl.SUCCESS
}

// placed checks a sub-buffer's alignment for the queue's device.
func (b *Buffer) placed(q *Queue) api.Status {
	if b.parent != nil && b.offset()%q.device.limits.AlignBytes != 0 {
		return cl.MISALIGNED_SUB_BUFFER_OFFSET
	}
	return cl.SUCCESS
}

// overwrites notes that the command leaves nothing of the buffer's contents.
func (c *command) overwrites(b *Buffer, off, n uint64) {
	if b.parent == nil && off == 0 && n == b.size {
		c.whole = b
	}
}

// inside says whether [off, off+n) lies in the buffer.
func (b *Buffer) inside(off, n uint64) bool { return off <= b.size && n <= b.size-off }
