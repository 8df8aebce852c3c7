package session

import (
	"sync"
	"sync/atomic"

	"tendril/forwarding/clwire"
	"tendril/forwarding/session/handle"
	"tendril/forwarding/trace"
)

// Event is a cl_event: of a command, or of the user (queue nil).
type Event struct {
	completion // done once status is 0 or negative
	refs       handle.Refs
	handle     uintptr // 0: internal
	id         uint64  // 0: ended on this side, unknown to the worker
	ctx        *Context
	queue      *Queue
	kind       uint32 // CL_EVENT_COMMAND_TYPE
	seq        uint64 // position in its queue; guarded by Queue.mu while it is sent

	status   atomic.Int32
	reported atomic.Bool // the worker said how it ended: the profile is there
	remote   atomic.Bool // user events: the worker knows it

	mu        sync.Mutex // leaf
	profile   clwire.Profile
	callbacks []eventCallback
	decided   bool          // a user event: it is set, to
	set       int32         // this
	freed     bool          // the program let go; the worker is told at the end
	ended     chan struct{} // made by who waits without a worker
	foreign   bool          // it ends by another worker's word (peers.go); immutable
	whenEnded func()        // not nil: called once it has ended; guarded by mu, and called under it
	held      bool          // something here looks at its end, though the program let go
	hosted    atomic.Bool   // it ends by this side's word, also when the worker dies: the program's memory is in use until then
	late      *lateRead     // what brings the command's bytes before its end is seen, or nil; immutable once it is sent
}

type eventCallback struct {
	level int32
	call  func(status int32)
}

// newEvent makes an event that the program does not see.
func (d *Driver) newEvent(ctx *Context, q *Queue, kind uint32) *Event {
	e := &Event{ctx: ctx, queue: q, kind: kind, id: d.newID()}
	e.refs.Set(1)
	e.status.Store(statusQueued)
	if q == nil {
		e.status.Store(statusSubmitted) // §5.9: where a user event starts
	}
	return e
}

// shownEvent makes an event with a handle and references of its context and queue.
func (d *Driver) shownEvent(ctx *Context, q *Queue, kind uint32) (*Event, Status) {
	e := d.newEvent(ctx, q, kind)
	h, err := d.events.Put(e)
	if err != nil {
		return nil, OutOfHostMemory
	}
	e.handle = h
	if q != nil {
		q.refs.Retain()
	} else {
		ctx.refs.Retain()
	}
	return e, Success
}

// abandon undoes shownEvent when its command was not sent.
func (d *Driver) abandon(e *Event) {
	if e == nil {
		return
	}
	if w := e.ctx.bound(); w != nil {
		w.mu.Lock()
		delete(w.events, e.id)
		w.mu.Unlock()
	}
	e.mu.Lock()
	e.freed = false // the worker may never have heard of it
	e.mu.Unlock()
	e.advance(int32(OutOfResources)) // a mirror waits for its end
	d.dropEvent(e, false)
}

// dropEvent ends an event's handle and what it holds.
func (d *Driver) dropEvent(e *Event, tell bool) {
	if e.handle == 0 {
		return
	}
	d.events.Remove(e.handle)
	if w := e.ctx.bound(); w != nil && tell && e.id != 0 && (e.queue != nil || e.remote.Load()) {
		e.letGo(w)
	}
	if e.queue != nil {
		d.releaseQueue(e.queue)
		return
	}
	if !e.foreign && e.status.Load() > 0 {
		e.ctx.opened() // nobody can set it any more
	}
	d.releaseContext(e.ctx)
}

// letGo drops the worker's event, once nothing here wants its end any more.
func (e *Event) letGo(w *worker) {
	e.mu.Lock()
	e.freed = e.status.Load() > 0 && (len(e.callbacks) > 0 || e.held)
	later := e.freed
	e.mu.Unlock()
	if later {
		return
	}
	if e.status.Load() > 0 {
		w.tell(&clwire.Release{ID: e.id})
	} else {
		w.mention(&clwire.Release{ID: e.id})
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.events, e.id)
}

// hold keeps the worker reporting the event's end after the program let it go.
func (e *Event) hold() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.held = true
}

// report takes over what the worker says.
func (e *Event) report(end *clwire.EventEnd) {
	if e.late != nil && end.Status <= 0 {
		end.Status = e.late.end(end.Status)
	}
	if end.HasProfile {
		e.mu.Lock()
		e.profile = end.Profile
		e.mu.Unlock()
	}
	if end.Status <= 0 {
		e.reported.Store(true)
		if end.Status == 0 && e.queue != nil {
			e.queue.ended(e.seq)
		}
	}
	e.advance(end.Status)
}

func (e *Event) fail(status Status) {
	if e.late != nil {
		status = Status(e.late.end(int32(status)))
	}
	e.reported.Store(true)
	e.advance(int32(status))
}

// advance moves the status towards the end, never back, and hands due callbacks to the dispatcher.
func (e *Event) advance(status int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now := e.status.Load(); now <= 0 || status >= now {
		return
	}
	e.status.Store(status)
	if status <= 0 {
		e.done.Store(true)
		if e.ended != nil {
			close(e.ended)
		}
		if e.whenEnded != nil {
			e.whenEnded()
		}
		if w := e.ctx.bound(); e.freed && w != nil {
			e.ctx.d.callbacks.run(func() { w.mention(&clwire.Release{ID: e.id}) })
		}
	}
	e.fireLocked(status)
}

func (e *Event) fireLocked(status int32) {
	kept := e.callbacks[:0]
	for _, cb := range e.callbacks {
		if status > cb.level {
			kept = append(kept, cb)
			continue
		}
		// Each level is told its own number; a failure is told to all (§5.9, clSetEventCallback).
		told := cb.level
		if status < 0 {
			told = status
		}
		e.ctx.d.callbacks.run(func() {
			e.ctx.syncHost()
			cb.call(told)
		})
	}
	e.callbacks = kept
}

// waitLocal waits for an event that needs no worker to end.
func (e *Event) waitLocal() {
	e.mu.Lock()
	if e.status.Load() <= 0 {
		e.mu.Unlock()
		return
	}
	if e.ended == nil {
		e.ended = make(chan struct{})
	}
	ended := e.ended
	e.mu.Unlock()
	<-ended
}

// CreateUserEvent is clCreateUserEvent (§5.9). The worker hears of it when a command waits for it.
func (d *Driver) CreateUserEvent(context uintptr) (uintptr, Status) {
	ctx := d.contexts.Get(context)
	if ctx == nil {
		return 0, InvalidContext
	}
	e, status := d.shownEvent(ctx, nil, cmdUser)
	if status != Success {
		return 0, status
	}
	ctx.settle(nil, func(u *unwaited) { u.gates.Add(1) })
	return e.handle, Success
}

// SetUserEventStatus is clSetUserEventStatus (§5.9): once, 0 or negative.
func (d *Driver) SetUserEventStatus(h uintptr, status int32) Status {
	e := d.events.Get(h)
	if e == nil || e.queue != nil {
		return InvalidEvent
	}
	if status > 0 {
		return InvalidValue
	}
	if e.foreign {
		return e.endForeign(status)
	}
	e.mu.Lock()
	if e.decided {
		e.mu.Unlock()
		return InvalidOperation
	}
	e.decided, e.set = true, status
	remote := e.remote.Load() // if not, who makes it known tells its end too
	e.mu.Unlock()
	if w := e.ctx.bound(); w != nil && remote {
		w.copied.Add(1)
		w.tell(&clwire.SetUserEvent{ID: e.id, Status: status})
		w.link.Kick()
	}
	e.advance(status)
	e.ctx.opened()
	return Success
}

// ensureRemote makes a user event known to the worker, with its end if that has come.
func (e *Event) ensureRemote(w *worker) error {
	if e.queue != nil || e.remote.Load() {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.remote.Load() {
		return nil
	}
	if err := w.send(&clwire.UserEvent{ID: e.id}, 0, 0); err != nil {
		return err
	}
	e.remote.Store(true)
	if e.decided {
		return w.send(&clwire.SetUserEvent{ID: e.id, Status: e.set}, 0, 0)
	}
	return nil
}

// RetainEvent is clRetainEvent.
func (d *Driver) RetainEvent(h uintptr) Status {
	if e := d.events.Get(h); e != nil && e.refs.Retain() {
		return Success
	}
	return InvalidEvent
}

// ReleaseEvent is clReleaseEvent. Callbacks that wait for the end still come.
func (d *Driver) ReleaseEvent(h uintptr) Status {
	e := d.events.Get(h)
	if e == nil {
		return InvalidEvent
	}
	ok, last := e.refs.Release()
	if !ok {
		return InvalidEvent
	}
	if last {
		d.dropEvent(e, true)
	}
	return Success
}

// EventInfo is clGetEventInfo (§5.9). A status query takes what the worker has said, without waiting.
func (d *Driver) EventInfo(h uintptr, param uint32) ([]byte, Status) {
	e := d.events.Get(h)
	if e == nil {
		return nil, InvalidEvent
	}
	switch param {
	case 0x11D0:
		if e.queue == nil {
			return infoSize(0), Success
		}
		return infoSize(e.queue.handle), Success
	case 0x11D1:
		return infoU32(e.kind), Success
	case 0x11D2:
		return infoU32(e.refs.Count()), Success
	case 0x11D3:
		return infoU32(uint32(e.poll())), Success
	case 0x11D4:
		return infoSize(e.ctx.handle), Success
	}
	return nil, InvalidValue
}

// poll returns the status as far as it is known without waiting.
func (e *Event) poll() int32 {
	if w := e.ctx.bound(); e.status.Load() > 0 && w != nil && !w.dead.Load() {
		w.link.Kick()
		w.reader.poll()
	}
	status := e.status.Load()
	if status == 0 && e.queue != nil {
		e.ctx.syncHost()
	}
	return status
}

// Hear takes what the workers of events have to say of commands that have ended: whatever ended before the call is known after it.
func (d *Driver) Hear(events []uintptr) {
	asked := map[*worker]struct{}{}
	for _, h := range events {
		e := d.events.Get(h)
		if e == nil {
			continue
		}
		w := e.ctx.bound()
		if _, twice := asked[w]; w == nil || twice {
			continue
		}
		asked[w] = struct{}{}
		w.waitForNone()
	}
}

// waitForNone waits for no event: an answer comes behind all ends that the worker knows of. A dead worker has none.
func (w *worker) waitForNone() { _, _ = w.askFor(trace.CauseWait, "", &clwire.Wait{}) }

// InCallback says whether the caller is one of the program's callbacks, which must not wait for others.
func (d *Driver) InCallback() bool { return d.callbacks.here() }

// EventProfilingInfo is clGetEventProfilingInfo (§5.14).
func (d *Driver) EventProfilingInfo(h uintptr, param uint32) ([]byte, Status) {
	e := d.events.Get(h)
	if e == nil {
		return nil, InvalidEvent
	}
	if e.queue == nil || e.queue.props&queueProfiling == 0 || e.poll() != 0 {
		return nil, ProfilingInfoNotAvailable
	}
	if param < 0x1280 || param > 0x1284 {
		return nil, InvalidValue
	}
	if w := e.ctx.bound(); w != nil && !e.reported.Load() && e.id != 0 {
		w.waitEvents(trace.CauseWait, e.id)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return infoU64(e.profile[param-0x1280]), Success
}

// SetEventCallback is clSetEventCallback (§5.9). call runs once, on the dispatcher.
func (d *Driver) SetEventCallback(h uintptr, level int32, call func(status int32)) Status {
	e := d.events.Get(h)
	if e == nil {
		return InvalidEvent
	}
	if call == nil || level < 0 || level > 2 {
		return InvalidValue
	}
	w := e.ctx.bound()
	ends := e.queue != nil || e.foreign // the worker says when
	if w != nil && ends && e.status.Load() > 0 {
		done := w.reader.want()
		inner := call
		call = func(status int32) { done(); inner(status) }
	}
	e.mu.Lock()
	// Each time: the worker may have answered for a callback before this one, and tells nobody of an end that nobody asked for.
	ask := e.status.Load() > 0 && ends
	e.callbacks = append(e.callbacks, eventCallback{level, call})
	// What the status has passed already fires now: a command's was said by the worker, which does not move it again.
	if now := e.status.Load(); now <= 0 || !e.foreign && now <= level {
		e.fireLocked(now)
	}
	e.mu.Unlock()
	if ask && w != nil {
		w.tell(&clwire.Watch{Event: e.id, Level: level})
	}
	return Success
}
