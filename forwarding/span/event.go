package span

import (
	"sync"
	"sync/atomic"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/handle"
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

// newEvent shows an event of session's to the program; it takes over the reference.
func (c *Context) newEvent(inner uintptr, member int, q *Queue, kind uint32) (uintptr, api.Status) {
	e := &Event{ctx: c, inner: inner, member: member, queue: q, kind: kind}
	e.refs.Set(1)
	h, err := c.d.events.Put(e)
	if err != nil {
		c.d.base.ReleaseEvent(inner)
		return 0, cl.OUT_OF_HOST_MEMORY
	}
	e.handle = h
	if q != nil {
		q.refs.Retain()
	} else {
		c.refs.Retain()
	}
	return h, cl.SUCCESS
}

// statusOf is the execution status of an event of session's, without waiting.
func (d *Driver) statusOf(inner uintptr) int32 {
	value, status := d.base.EventInfo(inner, cl.EVENT_COMMAND_EXECUTION_STATUS)
	if status != cl.SUCCESS {
		return int32(status)
	}
	return int32(uint32(answers.Number(value)))
}

// at is an event of session's at a member that ends as e does. Where e has completed it is 0, nothing to wait for,
// unless keep asks for one all the same.
func (e *Event) at(member int, keep bool) (uintptr, api.Status) {
	if e.member == member {
		return e.inner, cl.SUCCESS
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if h := e.bridges[member]; h != 0 {
		return h, cl.SUCCESS
	}
	if !keep && e.ctx.d.statusOf(e.inner) == cl.COMPLETE {
		return 0, cl.SUCCESS
	}
	h, status := e.ctx.bridge(e, member)
	if status != cl.SUCCESS {
		return 0, status
	}
	if e.bridges == nil {
		e.bridges = map[int]uintptr{}
	}
	e.bridges[member] = h
	return h, cl.SUCCESS
}

// bridge makes an event at a member that ends as an event of another member does, told from worker to worker where that
// can be. The caller owns the handle.
func (c *Context) bridge(e *Event, member int) (uintptr, api.Status) {
	d, inner := c.d.base, e.inner
	if e.queue != nil { // a user event's end comes from here
		if h, ok := d.BridgeEvent(inner, c.members[member].context); ok {
			d.Flush(e.queue.inner)
			return h, cl.SUCCESS
		}
	}
	h, status := d.CreateUserEvent(c.members[member].context)
	if status != cl.SUCCESS {
		return 0, status
	}
	d.RetainEvent(h) // until it is set
	status = d.SetEventCallback(inner, cl.COMPLETE, func(end int32) {
		d.SetUserEventStatus(h, min(end, cl.COMPLETE))
		d.ReleaseEvent(h)
	})
	if status != cl.SUCCESS {
		d.ReleaseEvent(h)
		d.ReleaseEvent(h)
		return 0, status
	}
	return h, cl.SUCCESS
}

// CreateUserEvent is clCreateUserEvent (§5.9).
func (d *Driver) CreateUserEvent(context uintptr) (uintptr, api.Status) {
	c := d.contexts.Get(context)
	if c == nil {
		return d.base.CreateUserEvent(context)
	}
	inner, status := d.base.CreateUserEvent(c.members[0].context)
	if status != cl.SUCCESS {
		return 0, status
	}
	c.gates.Add(1)
	h, status := c.newEvent(inner, 0, nil, 0)
	if status != cl.SUCCESS {
		c.gates.Add(-1)
	}
	return h, status
}

// SetUserEventStatus is clSetUserEventStatus (§5.9).
func (d *Driver) SetUserEventStatus(h uintptr, status int32) api.Status {
	e := d.events.Get(h)
	if e == nil {
		return d.base.SetUserEventStatus(h, status)
	}
	set := d.base.SetUserEventStatus(e.inner, status)
	if set == cl.SUCCESS {
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
func (d *Driver) RetainEvent(h uintptr) api.Status {
	e := d.events.Get(h)
	if e == nil {
		return d.base.RetainEvent(h)
	}
	if !e.refs.Retain() {
		return cl.INVALID_EVENT
	}
	return cl.SUCCESS
}

// ReleaseEvent is clReleaseEvent. Callbacks and bridges that wait for the end still come.
func (d *Driver) ReleaseEvent(h uintptr) api.Status {
	e := d.events.Get(h)
	if e == nil {
		return d.base.ReleaseEvent(h)
	}
	ok, last := e.refs.Release()
	if !ok {
		return cl.INVALID_EVENT
	}
	if last {
		d.events.Remove(h)
		e.end()
	}
	return cl.SUCCESS
}

func (e *Event) end() {
	d := e.ctx.d.base
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
func (d *Driver) EventInfo(h uintptr, param uint32) ([]byte, api.Status) {
	e := d.events.Get(h)
	switch {
	case e == nil:
		return d.base.EventInfo(h, param)
	case param == cl.EVENT_COMMAND_QUEUE && e.queue != nil:
		return answers.Size(e.queue.handle), cl.SUCCESS
	case param == cl.EVENT_COMMAND_TYPE && e.kind != 0:
		return answers.U32(e.kind), cl.SUCCESS
	case param == cl.EVENT_REFERENCE_COUNT:
		return answers.U32(e.refs.Count()), cl.SUCCESS
	case param == cl.EVENT_CONTEXT:
		return answers.Size(e.ctx.handle), cl.SUCCESS
	}
	value, status := d.base.EventInfo(e.inner, param)
	if param == cl.EVENT_COMMAND_EXECUTION_STATUS && status == cl.SUCCESS && answers.Number(value) == 0 &&
		!e.seen.Swap(true) {
		e.ctx.syncHost()
	}
	return value, status
}

// EventProfilingInfo is clGetEventProfilingInfo (§5.14).
func (d *Driver) EventProfilingInfo(h uintptr, param uint32) ([]byte, api.Status) {
	if e := d.events.Get(h); e != nil {
		h = e.inner
	}
	return d.base.EventProfilingInfo(h, param)
}

// SetEventCallback is clSetEventCallback (§5.9).
func (d *Driver) SetEventCallback(h uintptr, level int32, call func(status int32)) api.Status {
	e := d.events.Get(h)
	if e == nil || call == nil {
		if e != nil {
			return cl.INVALID_VALUE
		}
		return d.base.SetEventCallback(h, level, call)
	}
	return d.base.SetEventCallback(e.inner, level, func(status int32) {
		if status <= cl.COMPLETE {
			e.ctx.syncHost()
		}
		call(status)
	})
}

// WaitForEvents is clWaitForEvents (§5.9).
func (d *Driver) WaitForEvents(n uint32, list []uintptr) api.Status {
	var c *Context
	if n > 0 && len(list) > 0 {
		if e := d.events.Get(list[0]); e != nil {
			c = e.ctx
		}
	}
	if c == nil {
		return d.base.WaitForEvents(n, list)
	}
	byMember := make([][]uintptr, len(c.members))
	for _, h := range list {
		e := d.events.Get(h)
		switch {
		case e == nil && d.base.RetainEvent(h) == cl.SUCCESS:
			d.base.ReleaseEvent(h)
			return cl.INVALID_CONTEXT
		case e == nil:
			return cl.INVALID_EVENT
		case e.ctx != c:
			return cl.INVALID_CONTEXT
		}
		byMember[e.member] = append(byMember[e.member], e.inner)
	}
	var status api.Status
	for _, inner := range byMember {
		if len(inner) == 0 {
			continue
		}
		if waited := d.base.WaitForEvents(uint32(len(inner)), inner); waited != cl.SUCCESS {
			status = waited
		}
	}
	c.syncHost()
	return status
}
