package session

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/conn"
	"tendril/forwarding/session/node"
	"tendril/forwarding/session/ways"
	"tendril/forwarding/trace"
)

// What the ways of a transfer ask of this package's objects, and how a command takes one.

// carryOut has a transfer take its way as this command.
func (c *command) carryOut(t *ways.Transfer) api.Status {
	x := ways.Command{Context: &c.q.ctx.Context, Queue: c.q, Kind: c.kind, Wait: c.wait, Listed: c.given != 0,
		Wanted: c.want}
	if c.e != nil {
		x.Event = c.e
	}
	status := x.CarryOut(t)
	if c.e == nil {
		c.e = eventOf(x.Event) // close takes it back, if the command failed
	}
	return status
}

// eventOf is the event behind the interface, nil for none.
func eventOf(e ways.Event) *Event {
	if e == nil {
		return nil
	}
	return e.(*Event)
}

// Worker implements ways.Queue, as do the queue's methods below.
func (q *Queue) Worker() ways.Worker { return q.w }
func (q *Queue) Sent() uint64        { return q.sentSeq.Load() }
func (q *Queue) Watched() bool       { return q.w.watched(q.ctx) }

func (q *Queue) NewEvent(kind uint32) ways.Event { return q.d.newEvent(q.ctx, q, kind) }

func (q *Queue) State() ways.State {
	return ways.State{Idle: q.idle(), OutOfOrder: q.outOf, Gated: q.gated.Load(),
		Timed: q.props&cl.QUEUE_PROFILING_ENABLE != 0}
}

func (q *Queue) Submit(m clwire.Message, cmd *clwire.Cmd, e ways.Event, wait []uint64,
	first ways.Positioned) (seq uint64, status api.Status) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return locked{q}.Submit(m, cmd, e, wait, first)
}

func (q *Queue) Together(do func(ways.Submitter)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	do(locked{q})
}

// locked is a queue whose lock the caller holds.
type locked struct{ *Queue }

func (q locked) Submit(m clwire.Message, cmd *clwire.Cmd, e ways.Event, wait []uint64,
	first ways.Positioned) (seq uint64, status api.Status) {
	if first != nil && !first.At(q.sentSeq.Load()+1) {
		return 0, cl.OUT_OF_RESOURCES
	}
	return q.submitLocked(m, cmd, eventOf(e), wait, 0)
}

func (q *Queue) SubmitHost(op uint64, e ways.Event, wait []uint64) (seq uint64, status api.Status) {
	q.mu.Lock()
	defer q.mu.Unlock()
	m := &q.pool.host
	m.Op = op
	return q.submitLocked(m, &m.Cmd, eventOf(e), wait, 0)
}

func (q *Queue) SubmitInline(buffer, offset uint64, data []byte, e ways.Event, wait []uint64) api.Status {
	q.mu.Lock()
	defer q.mu.Unlock()
	m := &q.pool.inline
	m.Buffer, m.Offset, m.Data = buffer, offset, data
	_, status := q.submitLocked(m, &m.Cmd, eventOf(e), wait, 0)
	m.Data = nil
	return status
}

func (q *Queue) AskFinish() (await func(), status api.Status) {
	f, status := q.askFinish()
	return func() {
		if status := f.await(); status != cl.SUCCESS {
			q.latch(status) // the program's next call of the queue tells
		}
	}, status
}

// Number implements ways.Event, as do the event's methods below.
func (e *Event) Number() uint64                { return e.id }
func (e *Event) Status() int32                 { return e.status.Load() }
func (e *Event) Timed() bool                   { return e.queue.props&cl.QUEUE_PROFILING_ENABLE != 0 }
func (e *Event) LetGo()                        { e.letGo(e.queue.w) }
func (e *Event) Host()                         { e.hosted.Store(true) }
func (e *Event) SetRead(x ways.UnfinishedRead) { e.read, e.held = x, true }

// Pending implements graphs.Event.
func (e *Event) Pending() bool { return e.poll() > 0 }

func (e *Event) EndHere(status api.Status) {
	e.id = 0
	e.Advance(int32(min(status, 0)))
}

// Number implements ways.Buffer, as do the buffer's methods below.
func (b *Buffer) Number() uint64                { return b.id.Load() }
func (b *Buffer) Reach(q ways.Queue) api.Status { return b.ensureRemote(q.(*Queue).w) }
func (b *Buffer) Alive() bool                   { return b.refs.Alive() } // of kernelargs.Object, as Retain
func (b *Buffer) Retain() bool                  { return b.refs.Retain() }
func (b *Buffer) LetGo()                        { b.d.ReleaseMemObject(b.handle) } // of graphs.Buffer
func (b *Buffer) Mapped() []byte                { return b.bytes() }
func (b *Buffer) Special() bool                 { return b.root.special.Load() }
func (b *Buffer) Pin()                          { b.maps.Pin() }
func (b *Buffer) Unpin()                        { b.maps.Unpin().Free(b.freeShown) }

func (b *Buffer) ElementBytes() uint64 {
	if b.image == nil {
		return 0
	}
	return b.image.ElementBytes
}

// Share implements ways.Worker, as do the worker's methods below.
func (w *worker) Share(s *node.Segment) error { return w.addSegment(s) }
func (w *worker) Hosting(n int32)             { w.hosting.Add(n) }
func (w *worker) Began() int64                { return w.d.began() }

func (w *worker) Tripped(began int64, cause trace.Cause, detail string) {
	w.d.tripped(began, cause, w, detail)
}

func (w *worker) Operate(o *conn.BulkOp, owner conn.BulkOwner) ways.Operation {
	w.Bulk(o, owner)
	return o
}

// moveNow moves bytes between the buffer, or image, and memory of this process, by this thread. The caller has seen to
// the order.
func (b *Buffer) moveNow(write bool, device clwire.Shape, host ways.Host) api.Status {
	return b.ctx.MoveNow(b, write, device, host)
}

// store puts data into the buffer at off, load takes it out: by this thread, now. The caller has seen to the order.
func (b *Buffer) store(off uint64, data []byte) api.Status {
	n := uint64(len(data))
	return b.moveNow(true, clwire.Shape{Offset: off, Size: n}, ways.Linear(api.HostBytes(data), n))
}

func (b *Buffer) load(off uint64, data []byte) api.Status {
	n := uint64(len(data))
	return b.moveNow(false, clwire.Shape{Offset: off, Size: n}, ways.Linear(api.HostBytes(data), n))
}

// overHost is a buffer or an image over the program's own memory, as its mirror moves it.
type overHost struct{ b *Buffer }

func (x overHost) Push() api.Status  { return x.move(true) }
func (x overHost) Fetch() api.Status { return x.move(false) }

func (x overHost) move(write bool) api.Status {
	b := x.b
	if b.image != nil {
		return b.whole(write, b.host)
	}
	return b.moveNow(write, clwire.Shape{Size: b.size}, ways.Linear(b.host, b.size))
}
