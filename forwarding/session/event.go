package session

import (
	"sync"
	"sync/atomic"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/conn"
	"tendril/forwarding/handle"
	"tendril/forwarding/session/ways"
	"tendril/forwarding/trace"
)

// Event is a cl_event: of a command, or of the user (queue nil).
type Event struct {
	conn.Completion // done once status is 0 or negative
	refs            handle.Refs
	handle          uintptr // 0: internal
	id              uint64  // 0: ended on this side, unknown to the worker
	ctx             *Context
	queue           *Queue
	kind            uint32 // CL_EVENT_COMMAND_TYPE
	seq             uint64 // position in its queue; guarded by Queue.mu while it is sent

	status   atomic.Int32
	reported atomic.Bool  // the worker said how it ended: the profile is there
	polls    atomic.Int32 // of a program that asks again and again, see poll
	remote   atomic.Bool  // user events: the worker knows it

	mu        sync.Mutex // before the connection's own locks, to send
	profile   clwire.Profile
	callbacks []eventCallback
	decided   bool          // a user event: it is set, to
	set       int32         // this
	freed     bool          // the program let go; the worker is told at the end
	ended     chan struct{} // made by who waits without a worker
	foreign   bool          // it ends by another worker's word (bridge.go); immutable
	whenEnded func()        // not nil: called once it has ended; guarded by mu, and called under it
	held      bool          // something here looks at its end, though the program let go
	// it ends by this side's word, also when the worker dies: the program's memory is in use until then
	hosted atomic.Bool
	read   ways.UnfinishedRead // its End is called before the command's end is seen; or nil; immutable once it is sent
}

type eventCallback struct {
	level int32
	call  func(status int32)
}

// newEvent makes an event that the program does not see.
func (d *Driver) newEvent(ctx *Context, q *Queue, kind uint32) *Event {
	e := &Event{ctx: ctx, queue: q, kind: kind, id: d.newID()}
	e.refs.Set(1)
	e.status.Store(cl.QUEUED)
	if q == nil {
		e.status.Store(cl.SUBMITTED) // §5.9: where a user event starts
	}
	return e
}

// shownEvent makes an event with a handle and references of its context and queue.
func (d *Driver) shownEvent(ctx *Context, q *Queue, kind uint32) (*Event, api.Status) {
	e := d.newEvent(ctx, q, kind)
	h, err := d.events.Put(e)
	if err != nil {
		return nil, cl.OUT_OF_HOST_MEMORY
	}
	e.handle = h
	if q != nil {
		q.refs.Retain()
	} else {
		ctx.refs.Retain()
	}
	return e, cl.SUCCESS
}

// abandon undoes shownEvent when its command was not sent.
func (d *Driver) abandon(e *Event) {
	if e == nil {
		return
	}
	if w := e.ctx.bound(); w != nil {
		w.mu.Lock()
		w.events.Delete(e.id)
		w.mu.Unlock()
	}
	e.mu.Lock()
	e.freed = false // the worker may never have heard of it
	e.mu.Unlock()
	e.Advance(int32(cl.OUT_OF_RESOURCES)) // a mirror waits for its end
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
		e.ctx.AsyncWrites.UserEventEnded() // nobody can set it any more
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
		w.SendOneWay(&clwire.Release{ID: e.id})
	} else {
		w.SendLazy(&clwire.Release{ID: e.id})
	}
	if e.reported.Load() {
		return // it went out of the table then
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events.Delete(e.id)
}

// Hold keeps the worker reporting the event's end after the program let it go. It implements mirror.Command, as do
// those below.
func (e *Event) Hold() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.held = true
}

func (e *Event) Over() bool { return e.status.Load() <= 0 }

func (e *Event) Await() {
	if w := e.ctx.bound(); w != nil {
		w.WaitUnhurried(&e.Completion)
	}
}

// report takes over what the worker says.
func (e *Event) report(end *clwire.EventEnd) {
	if e.read != nil && end.Status <= 0 {
		end.Status = e.read.End(end.Status)
	}
	if end.HasProfile {
		e.mu.Lock()
		e.profile = end.Profile
		e.mu.Unlock()
	}
	if end.Status <= 0 {
		e.reported.Store(true)
		if end.Status == 0 && e.queue != nil {
			e.queue.Ended(e.seq)
		}
	}
	e.Advance(end.Status)
}

func (e *Event) Fail(status api.Status) {
	if e.read != nil {
		status = api.Status(e.read.End(int32(status)))
	}
	e.reported.Store(true)
	e.Advance(int32(status))
}

// Advance moves the status towards the end, never back, and hands due callbacks to the dispatcher.
func (e *Event) Advance(status int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now := e.status.Load(); now <= 0 || status >= now {
		return
	}
	e.status.Store(status)
	if status <= 0 {
		e.Complete()
		if e.ended != nil {
			close(e.ended)
		}
		if e.whenEnded != nil {
			e.whenEnded()
		}
		if w := e.ctx.bound(); e.freed && w != nil {
			e.ctx.d.callbacks.Run(func() { w.SendLazy(&clwire.Release{ID: e.id}) })
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
		e.ctx.d.callbacks.Run(func() {
			e.ctx.mirrors.Sync()
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
func (d *Driver) CreateUserEvent(context uintptr) (uintptr, api.Status) {
	ctx := d.contexts.Get(context)
	if ctx == nil {
		return 0, cl.INVALID_CONTEXT
	}
	e, status := d.shownEvent(ctx, nil, cl.COMMAND_USER)
	if status != cl.SUCCESS {
		return 0, status
	}
	ctx.AsyncWrites.UserEventMade()
	return e.handle, cl.SUCCESS
}

// SetUserEventStatus is clSetUserEventStatus (§5.9): once, 0 or negative.
func (d *Driver) SetUserEventStatus(h uintptr, status int32) api.Status {
	e := d.events.Get(h)
	if e == nil || e.queue != nil {
		return cl.INVALID_EVENT
	}
	if status > 0 {
		return cl.INVALID_VALUE
	}
	if e.foreign {
		return e.endForeign(status)
	}
	e.mu.Lock()
	if e.decided {
		e.mu.Unlock()
		return cl.INVALID_OPERATION
	}
	e.decided, e.set = true, status
	remote := e.remote.Load() // if not, who makes it known tells its end too
	e.mu.Unlock()
	if w := e.ctx.bound(); w != nil && remote {
		w.MemoryWritten()
		w.SendOneWay(&clwire.SetUserEvent{ID: e.id, Status: status})
		w.Kick()
	}
	e.Advance(status)
	e.ctx.AsyncWrites.UserEventEnded()
	return cl.SUCCESS
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
	if err := w.Send(&clwire.UserEvent{ID: e.id}, 0, 0); err != nil {
		return err
	}
	e.remote.Store(true)
	if e.decided {
		return w.Send(&clwire.SetUserEvent{ID: e.id, Status: e.set}, 0, 0)
	}
	return nil
}

// RetainEvent is clRetainEvent.
func (d *Driver) RetainEvent(h uintptr) api.Status {
	if e := d.events.Get(h); e != nil && e.refs.Retain() {
		return cl.SUCCESS
	}
	return cl.INVALID_EVENT
}

// ReleaseEvent is clReleaseEvent. Callbacks that wait for the end still come.
func (d *Driver) ReleaseEvent(h uintptr) api.Status {
	e := d.events.Get(h)
	if e == nil {
		return cl.INVALID_EVENT
	}
	ok, last := e.refs.Release()
	if !ok {
		return cl.INVALID_EVENT
	}
	if last {
		d.dropEvent(e, true)
	}
	return cl.SUCCESS
}

// EventInfo is clGetEventInfo (§5.9). A status query takes what the worker has said, without waiting.
func (d *Driver) EventInfo(h uintptr, param uint32) ([]byte, api.Status) {
	e := d.events.Get(h)
	if e == nil {
		return nil, cl.INVALID_EVENT
	}
	switch param {
	case cl.EVENT_COMMAND_QUEUE:
		if e.queue == nil {
			return answers.Size(0), cl.SUCCESS
		}
		return answers.Size(e.queue.handle), cl.SUCCESS
	case cl.EVENT_COMMAND_TYPE:
		return answers.U32(e.kind), cl.SUCCESS
	case cl.EVENT_REFERENCE_COUNT:
		return answers.U32(e.refs.Count()), cl.SUCCESS
	case cl.EVENT_COMMAND_EXECUTION_STATUS:
		return answers.U32(uint32(e.poll())), cl.SUCCESS
	case cl.EVENT_CONTEXT:
		return answers.Size(e.ctx.handle), cl.SUCCESS
	}
	return nil, cl.INVALID_VALUE
}

// poll returns the status as far as it is known without waiting. Who asks again waits for the end: the worker hears of
// that once, and tells it at once then, not with others' when it has time.
func (e *Event) poll() int32 {
	if w := e.ctx.bound(); e.status.Load() > 0 && w != nil && !w.Dead() {
		if (e.queue != nil || e.foreign) && e.polls.Add(1) == 2 {
			w.SendOneWay(&clwire.Watch{Event: e.id, Level: cl.COMPLETE})
		}
		w.Kick()
		w.Poll()
	}
	status := e.status.Load()
	if status == 0 && e.queue != nil {
		e.ctx.mirrors.Sync()
	}
	return status
}

// Hear takes what the workers of events have to say of commands that have ended: whatever ended before the call is
// known after it.
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
		w.WaitForNone()
	}
}

// InCallback says whether the caller is one of the program's callbacks, which must not wait for others.
func (d *Driver) InCallback() bool { return d.callbacks.Here() }

// EventProfilingInfo is clGetEventProfilingInfo (§5.14).
func (d *Driver) EventProfilingInfo(h uintptr, param uint32) ([]byte, api.Status) {
	e := d.events.Get(h)
	if e == nil {
		return nil, cl.INVALID_EVENT
	}
	if e.queue == nil || e.queue.props&cl.QUEUE_PROFILING_ENABLE == 0 || e.poll() != 0 {
		return nil, cl.PROFILING_INFO_NOT_AVAILABLE
	}
	if param < cl.PROFILING_COMMAND_QUEUED || param > cl.PROFILING_COMMAND_COMPLETE {
		return nil, cl.INVALID_VALUE
	}
	if w := e.ctx.bound(); w != nil && !e.reported.Load() && e.id != 0 {
		w.waitEvents(trace.CauseWait, e.id)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return answers.U64(e.profile[param-cl.PROFILING_COMMAND_QUEUED]), cl.SUCCESS
}

// SetEventCallback is clSetEventCallback (§5.9). call runs once, on the dispatcher.
func (d *Driver) SetEventCallback(h uintptr, level int32, call func(status int32)) api.Status {
	e := d.events.Get(h)
	if e == nil {
		return cl.INVALID_EVENT
	}
	if call == nil || level < 0 || level > 2 {
		return cl.INVALID_VALUE
	}
	w := e.ctx.bound()
	ends := e.queue != nil || e.foreign // the worker says when
	if w != nil && ends && e.status.Load() > 0 {
		done := w.ReadPromptly()
		inner := call
		call = func(status int32) { done(); inner(status) }
	}
	e.mu.Lock()
	// Each time: the worker may have answered for a callback before this one, and tells nobody of an end that nobody
	// asked for.
	ask := e.status.Load() > 0 && ends
	e.callbacks = append(e.callbacks, eventCallback{level, call})
	// What the status has passed already fires now: a command's was said by the worker, which does not move it again.
	if now := e.status.Load(); now <= 0 || !e.foreign && now <= level {
		e.fireLocked(now)
	}
	e.mu.Unlock()
	if ask && w != nil {
		w.SendOneWay(&clwire.Watch{Event: e.id, Level: level})
	}
	return cl.SUCCESS
}
