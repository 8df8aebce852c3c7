package span

import (
	"sync"
	"sync/atomic"

	"tendril/forwarding/session"
	"tendril/forwarding/session/handle"
)

// Event is a cl_event of a spanning context: one of session's, on the member where its command runs, or on the first
// member for a user event.
type Event struct {
	refs   handle.Refs
	ctx    *Context
	handle uintptr
	inner  uintptr
	member int
	queue  *Queue      // nil: a user event
	kind   uint32      // CL_EVENT_COMMAND_TYPE where it is not session's; 0: it is
	opened atomic.Bool // a user event that counts in Context.gates no more
	seen   atomic.Bool // a status query has told the program that it is complete

	mu      sync.Mutex
	bridges map[int]uintptr // user events of session's, by the member that waits; guarded by mu
}

// Parameters of clGetEventInfo, and the end of a command.
const (
	eventQueue   uint32 = 0x11D0
	eventCommand uint32 = 0x11D1
	eventRefs    uint32 = 0x11D2
	eventStatus  uint32 = 0x11D3
	eventContext uint32 = 0x11D4
	complete     int32  = 0
)

// newEvent shows an event of session's to the program; it takes over the reference.
func (c *Context) newEvent(inner uintptr, member int, q *Queue, kind uint32) (uintptr, session.Status) {
	e := &Event{ctx: c, inner: inner, member: member, queue: q, kind: kind}
	e.refs.Set(1)
	h, err := c.d.events.Put(e)
	if err != nil {
		c.d.Driver.ReleaseEvent(inner)
		return 0, session.OutOfHostMemory
	}
	e.handle = h
	if q != nil {
		q.refs.Retain()
	} else {
		c.refs.Retain()
	}
	return h, session.Success
}

// statusOf is the execution status of an event of session's, without waiting.
func (d *Driver) statusOf(inner uintptr) int32 {
	value, status := d.Driver.EventInfo(inner, eventStatus)
	if status != session.Success {
		return int32(status)
	}
	return int32(uint32(number(value)))
}

// at is an event of session's at a member that ends as e does. Where e has completed it is 0, nothing to wait for, unless
// keep asks for one all the same.
func (e *Event) at(member int, keep bool) (uintptr, session.Status) {
	if e.member == member {
		return e.inner, session.Success
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if h := e.bridges[member]; h != 0 {
		return h, session.Success
	}
	if !keep && e.ctx.d.statusOf(e.inner) == complete {
		return 0, session.Success
	}
	h, status := e.ctx.bridge(e, member)
	if status != session.Success {
		return 0, status
	}
	if e.bridges == nil {
		e.bridges = map[int]uintptr{}
	}
	e.bridges[member] = h
	return h, session.Success
}

// bridge makes an event at a member that ends as an event of another member does, told from worker to worker where that
// can be. The caller owns the handle.
func (c *Context) bridge(e *Event, member int) (uintptr, session.Status) {
	d, inner := c.d.Driver, e.inner
	if e.queue != nil { // a user event's end comes from here
		if h, ok := d.BridgeEvent(inner, c.members[member].context); ok {
			d.Flush(e.queue.inner)
			return h, session.Success
		}
	}
	h, status := d.CreateUserEvent(c.members[member].context)
	if status != session.Success {
		return 0, status
	}
	d.RetainEvent(h) // until it is set
	status = d.SetEventCallback(inner, complete, func(end int32) {
		d.SetUserEventStatus(h, min(end, complete))
		d.ReleaseEvent(h)
	})
	if status != session.Success {
		d.ReleaseEvent(h)
		d.ReleaseEvent(h)
		return 0, status
	}
	return h, session.Success
}

// CreateUserEvent is clCreateUserEvent (§5.9).
func (d *Driver) CreateUserEvent(context uintptr) (uintptr, session.Status) {
	c := d.contexts.Get(context)
	if c == nil {
		return d.Driver.CreateUserEvent(context)
	}
	inner, status := d.Driver.CreateUserEvent(c.members[0].context)
	if status != session.Success {
		return 0, status
	}
	c.gates.Add(1)
	h, status := c.newEvent(inner, 0, nil, 0)
	if status != session.Success {
		c.gates.Add(-1)
	}
	return h, status
}

// SetUserEventStatus is clSetUserEventStatus (§5.9).
func (d *Driver) SetUserEventStatus(h uintptr, status int32) session.Status {
	e := d.events.Get(h)
	if e == nil {
		return d.Driver.SetUserEventStatus(h, status)
	}
	set := d.Driver.SetUserEventStatus(e.inner, status)
	if set == session.Success {
		e.open()
	}
	return set
}

// open notes that a user event has ended, or never will.
func (e *Event) open() {
	if !e.opened.Swap(true) {
		e.ctx.gates.Add(-1)
	}
}

// RetainEvent is clRetainEvent.
func (d *Driver) RetainEvent(h uintptr) session.Status {
	e := d.events.Get(h)
	if e == nil {
		return d.Driver.RetainEvent(h)
	}
	if !e.refs.Retain() {
		return session.InvalidEvent
	}
	return session.Success
}

// ReleaseEvent is clReleaseEvent. Callbacks and bridges that wait for the end still come.
func (d *Driver) ReleaseEvent(h uintptr) session.Status {
	e := d.events.Get(h)
	if e == nil {
		return d.Driver.ReleaseEvent(h)
	}
	ok, last := e.refs.Release()
	if !ok {
		return session.InvalidEvent
	}
	if last {
		d.events.Remove(h)
		e.end()
	}
	return session.Success
}

func (e *Event) end() {
	d := e.ctx.d.Driver
	e.mu.Lock()
	bridges := e.bridges
	e.bridges = nil
	e.mu.Unlock()
	for _, h := range bridges {
		d.ReleaseEvent(h)
	}
	d.ReleaseEvent(e.inner)
	if e.queue != nil {
		e.queue.drop()
	} else {
		e.open() // nobody can set it any more
		e.ctx.drop()
	}
}

// EventInfo is clGetEventInfo (§5.9).
func (d *Driver) EventInfo(h uintptr, param uint32) ([]byte, session.Status) {
	e := d.events.Get(h)
	switch {
	case e == nil:
		return d.Driver.EventInfo(h, param)
	case param == eventQueue && e.queue != nil:
		return infoHandle(e.queue.handle), session.Success
	case param == eventCommand && e.kind != 0:
		return infoU32(e.kind), session.Success
	case param == eventRefs:
		return infoU32(e.refs.Count()), session.Success
	case param == eventContext:
		return infoHandle(e.ctx.handle), session.Success
	}
	value, status := d.Driver.EventInfo(e.inner, param)
	if param == eventStatus && status == session.Success && number(value) == 0 && !e.seen.Swap(true) {
		e.ctx.syncHost()
	}
	return value, status
}

// EventProfilingInfo is clGetEventProfilingInfo (§5.14).
func (d *Driver) EventProfilingInfo(h uintptr, param uint32) ([]byte, session.Status) {
	if e := d.events.Get(h); e != nil {
		h = e.inner
	}
	return d.Driver.EventProfilingInfo(h, param)
}

// SetEventCallback is clSetEventCallback (§5.9).
func (d *Driver) SetEventCallback(h uintptr, level int32, call func(status int32)) session.Status {
	e := d.events.Get(h)
	if e == nil || call == nil {
		if e != nil {
			return session.InvalidValue
		}
		return d.Driver.SetEventCallback(h, level, call)
	}
	return d.Driver.SetEventCallback(e.inner, level, func(status int32) {
		if status <= complete {
			e.ctx.syncHost()
		}
		call(status)
	})
}

// WaitForEvents is clWaitForEvents (§5.9).
func (d *Driver) WaitForEvents(n uint32, list []uintptr) session.Status {
	var c *Context
	if n > 0 && len(list) > 0 {
		if e := d.events.Get(list[0]); e != nil {
			c = e.ctx
		}
	}
	if c == nil {
		return d.Driver.WaitForEvents(n, list)
	}
	byMember := make([][]uintptr, len(c.members))
	for _, h := range list {
		e := d.events.Get(h)
		switch {
		case e == nil && d.Driver.RetainEvent(h) == session.Success:
			d.Driver.ReleaseEvent(h)
			return session.InvalidContext
		case e == nil:
			return session.InvalidEvent
		case e.ctx != c:
			return session.InvalidContext
		}
		byMember[e.member] = append(byMember[e.member], e.inner)
	}
	status := session.Success
	for _, inner := range byMember {
		if len(inner) == 0 {
			continue
		}
		if waited := d.Driver.WaitForEvents(uint32(len(inner)), inner); waited != session.Success {
			status = waited
		}
	}
	c.syncHost()
	return status
}
