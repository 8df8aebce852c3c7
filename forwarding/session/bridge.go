package session

import (
	"sync/atomic"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/node"
	"tendril/forwarding/session/peers"
	"tendril/forwarding/trace"
)

// Pushes and ends of events that go from one of this process's workers to another, over the links of package peers.

// peersOf is the session as its links know it.
type peersOf struct{ d *Driver }

func (h *peersOf) NewID() uint64  { return h.d.newID() }
func (h *peersOf) Later(f func()) { h.d.callbacks.Run(f) }

func (h *peersOf) Connecting(ends [2]peers.Worker) (done func()) {
	began := h.d.began()
	return func() { h.d.tripped(began, trace.CausePeer, ends[0].(*worker), "") }
}

func (h *peersOf) Refused(ends [2]peers.Worker, why error) {
	h.d.tracedLink(ends[0].(*worker), ends[1].(*worker), why)
}

// Control implements peers.Worker, as do those below.
func (w *worker) Control() node.Control { return w.platform.control }
func (w *worker) Name() string          { return answers.Text(w.platform.info[cl.PLATFORM_NAME]) }
func (w *worker) Order() uint64         { return uint64(w.platform.handle) }

// peerOf gives the link between two workers, made now if it is not there; nil: there is none.
func (d *Driver) peerOf(a, b *worker) *peers.Link {
	if a == nil || b == nil || a == b || a.Dead() || b.Dead() {
		return nil
	}
	return d.peers.Of(a, b)
}

// PeerState implements conn.Sink.
func (w *worker) PeerState(m *clwire.PeerState) error { return w.d.peers.State(w, m) }

// foreignEvent makes an event of ctx that ends by what comes over a link; nil: there is no memory for one. lost runs,
// on the callbacks' goroutine, if the link ends first, and ended once the event has, however.
func (d *Driver) foreignEvent(l *peers.Link, ctx *Context, lost func(e *Event), ended func(e *Event)) *Event {
	e, status := d.shownEvent(ctx, nil, cl.COMMAND_USER)
	if status != cl.SUCCESS {
		return nil
	}
	e.foreign = true
	e.remote.Store(true)
	e.refs.Retain() // until it ends
	e.whenEnded = func() {
		l.Ended(e.id)
		d.callbacks.Run(func() {
			ended(e)
			d.ReleaseEvent(e.handle)
		})
	}
	w := ctx.bound()
	over := l.Expect(e.id, w, func() { lost(e) })
	ctx.AsyncWrites.MakeVisible(nil, func() { // from here on writes are waited for: see watched
		w.addEvent(e)
	})
	switch {
	case w.Dead():
		e.Fail(cl.OUT_OF_RESOURCES)
	case over:
		d.callbacks.Run(func() { lost(e) })
	}
	return e
}

// Push starts a push and gives the event of Dst's context, with a reference, that ends with it. ok false: there is no
// way from worker to worker for it, and nothing was done.
func (d *Driver) Push(p api.Push) (event uintptr, ok bool) {
	src, dst := d.buffers.Get(p.Src), d.buffers.Get(p.Dst)
	if src == nil || dst == nil || (src.image == nil) != (dst.image == nil) || src.special.Load() ||
		dst.special.Load() {
		return 0, false
	}
	from, to := src.ctx.bound(), dst.ctx.bound()
	if d.nearer(src, dst) {
		return 0, false
	}
	l := d.peerOf(from, to)
	if l == nil {
		return 0, false
	}
	after, fine := d.peerWaits(src.ctx, from, p.After)
	before, well := d.peerWaits(dst.ctx, to, p.Before)
	if !fine || !well || src.ensureRemote(from) != cl.SUCCESS || dst.ensureRemote(to) != cl.SUCCESS {
		return 0, false
	}
	began, lost := d.began(), new(atomic.Bool)
	e := d.foreignEvent(l, dst.ctx, func(e *Event) { lost.Store(true); p.Lost(e.handle) }, func(e *Event) {
		d.tracedPush(began, from, to, to.tookPushed(e.id, p.Size), e.status.Load(), lost.Load())
		p.Ended(e.status.Load())
	})
	if e == nil {
		return 0, false
	}
	// a failure ends the worker, and so the event
	_ = to.Send(clwire.NewPeerPull(l.ID, e.id, dst.id.Load(), p.Off, p.Size, before), 0, 0)
	push := clwire.NewPeerPush(l.ID, e.id, src.id.Load(), p.Off, p.Size, after)
	push.Content = d.pushContent(src.ctx, from, p.Content)
	_ = from.Send(push, 0, 0) // as does this one, through the link
	return e.handle, true
}

// pushContent is a push's content as its worker knows it.
func (d *Driver) pushContent(ctx *Context, w *worker, c api.PushContent) (content clwire.PeerContent) {
	size := d.buffers.Get(c.Size)
	if size == nil || size.image != nil || size.special.Load() {
		return content
	}
	wait, ok := d.peerWaits(ctx, w, c.After)
	if !ok || len(wait) > clwire.MaxContentWait || size.ensureRemote(w) != cl.SUCCESS {
		return content
	}
	return clwire.PeerContent{Size: size.id.Load(), Origin: c.Origin, Wait: wait}
}

// Pushed implements conn.Sink: a push to this worker is over with its first bytes.
func (w *worker) Pushed(event, bytes uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.events.Get(event); e == nil || !e.foreign || w.d.trace == nil {
		return // it counts for the trace alone
	}
	if w.pushed == nil {
		w.pushed = map[uint64]uint64{}
	}
	w.pushed[event] = bytes
}

// tookPushed is how many bytes of a push came, which has ended.
func (w *worker) tookPushed(id, size uint64) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n, ok := w.pushed[id]; ok {
		delete(w.pushed, id)
		return n
	}
	return size
}

// nearer says that memory which this process shares with a worker of this node is the shorter way.
func (d *Driver) nearer(src, dst *Buffer) bool {
	return src.ctx.platform.control == dst.ctx.platform.control && (src.bytes() != nil || dst.bytes() != nil)
}

// peerWaits gives a worker's numbers of events that are not known to have completed.
func (d *Driver) peerWaits(ctx *Context, w *worker, list []uintptr) (ids []uint64, ok bool) {
	for _, h := range list {
		e := d.events.Get(h)
		switch {
		case e == nil || e.ctx != ctx:
			return nil, false
		case e.status.Load() == 0:
			continue
		case e.id == 0 || e.ensureRemote(w) != nil:
			return nil, false
		}
		ids = append(ids, e.id)
	}
	return ids, len(ids) <= clwire.MaxWait
}

// BridgeEvent makes an event of a context that ends as a command's event of another worker's does, told from worker to
// worker. The caller owns the handle. ok false: there is no such way, and nothing was done.
func (d *Driver) BridgeEvent(event, context uintptr) (bridge uintptr, ok bool) {
	x, ctx := d.events.Get(event), d.contexts.Get(context)
	if x == nil || ctx == nil || x.queue == nil || x.id == 0 {
		return 0, false
	}
	from, to := x.ctx.bound(), ctx.bound()
	l := d.peerOf(from, to)
	if l == nil || !x.refs.Retain() {
		return 0, false
	}
	e := d.foreignEvent(l, ctx, func(e *Event) { d.followHere(event, e.handle) },
		func(*Event) { d.ReleaseEvent(event) })
	if e == nil {
		d.ReleaseEvent(event)
		return 0, false
	}
	// a failure ends the worker, and so the event
	_ = to.Send(&clwire.PeerEvent{Link: l.ID, ID: e.id}, 0, 0)
	_ = from.Send(&clwire.PeerSignal{Link: l.ID, Event: x.id, There: e.id}, 0, 0) // as does this one, through the link
	return e.handle, true
}

// followHere ends an event as another does, through this process.
func (d *Driver) followHere(event, follower uintptr) {
	end := func(status int32) { d.SetUserEventStatus(follower, min(status, 0)) }
	if status := d.SetEventCallback(event, 0, end); status != cl.SUCCESS {
		end(int32(status))
	}
}

// endForeign is SetUserEventStatus of an event that waits for another worker, after the link's end.
func (e *Event) endForeign(status int32) api.Status {
	if w := e.ctx.bound(); w != nil {
		w.SendOneWay(&clwire.SetUserEvent{ID: e.id, Status: status})
		w.Kick()
	}
	e.Advance(status)
	return cl.SUCCESS
}
