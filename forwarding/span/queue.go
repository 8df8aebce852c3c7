package span

import (
	"tendril/forwarding/session"
	"tendril/forwarding/session/handle"
)

// Queue is a cl_command_queue of a spanning context: one of session's, on the member of its device.
type Queue struct {
	refs    handle.Refs
	ctx     *Context
	handle  uintptr
	inner   uintptr
	member  int
	inOrder bool
}

// Parameters of clGetCommandQueueInfo.
const (
	queueContext uint32 = 0x1090
	queueRefs    uint32 = 0x1092
	queueProps   uint32 = 0x1093
	outOfOrder   uint64 = 1
)

// CreateQueueWithProperties is clCreateCommandQueueWithProperties (§5.1).
func (d *Driver) CreateQueueWithProperties(context, device uintptr, given []uint64) (uintptr, session.Status) {
	c := d.contexts.Get(context)
	if c == nil {
		return d.Driver.CreateQueueWithProperties(context, device, given)
	}
	return c.newQueue(device, func(inner uintptr) (uintptr, session.Status) {
		return d.Driver.CreateQueueWithProperties(inner, device, given)
	})
}

// CreateQueue is clCreateCommandQueue (§5.1 of OpenCL 1.2).
func (d *Driver) CreateQueue(context, device uintptr, props uint64) (uintptr, session.Status) {
	c := d.contexts.Get(context)
	if c == nil {
		return d.Driver.CreateQueue(context, device, props)
	}
	return c.newQueue(device, func(inner uintptr) (uintptr, session.Status) {
		return d.Driver.CreateQueue(inner, device, props)
	})
}

func (c *Context) newQueue(device uintptr, create func(context uintptr) (uintptr, session.Status)) (uintptr, session.Status) {
	i := c.memberOf(device)
	if i < 0 {
		return 0, session.InvalidDevice
	}
	inner, status := create(c.members[i].context)
	if status != session.Success {
		return 0, status
	}
	props, _ := c.d.Driver.QueueInfo(inner, queueProps)
	q := &Queue{ctx: c, inner: inner, member: i, inOrder: number(props)&outOfOrder == 0}
	q.refs.Set(1)
	h, err := c.d.queues.Put(q)
	if err != nil {
		c.d.Driver.ReleaseQueue(inner)
		return 0, session.OutOfHostMemory
	}
	q.handle = h
	c.refs.Retain()
	return h, session.Success
}

// RetainQueue is clRetainCommandQueue.
func (d *Driver) RetainQueue(h uintptr) session.Status {
	q := d.queues.Get(h)
	if q == nil {
		return d.Driver.RetainQueue(h)
	}
	if !q.refs.Retain() {
		return session.InvalidCommandQueue
	}
	return session.Success
}

// ReleaseQueue is clReleaseCommandQueue.
func (d *Driver) ReleaseQueue(h uintptr) session.Status {
	q := d.queues.Get(h)
	if q == nil {
		return d.Driver.ReleaseQueue(h)
	}
	if !q.drop() {
		return session.InvalidCommandQueue
	}
	return session.Success
}

func (q *Queue) drop() bool {
	ok, last := q.refs.Release()
	if last {
		q.ctx.d.queues.Remove(q.handle)
		q.ctx.d.Driver.ReleaseQueue(q.inner)
		q.ctx.drop()
	}
	return ok
}

// QueueInfo is clGetCommandQueueInfo (§5.1).
func (d *Driver) QueueInfo(h uintptr, param uint32) ([]byte, session.Status) {
	q := d.queues.Get(h)
	switch {
	case q == nil:
		return d.Driver.QueueInfo(h, param)
	case param == queueContext:
		return infoHandle(q.ctx.handle), session.Success
	case param == queueRefs:
		return infoU32(q.refs.Count()), session.Success
	}
	return d.Driver.QueueInfo(q.inner, param)
}

// Flush is clFlush (§5.15).
func (d *Driver) Flush(h uintptr) session.Status {
	if q := d.queues.Get(h); q != nil {
		h = q.inner
	}
	return d.Driver.Flush(h)
}

// Finish is clFinish (§5.15).
func (d *Driver) Finish(h uintptr) session.Status {
	q := d.queues.Get(h)
	if q == nil {
		return d.Driver.Finish(h)
	}
	status := d.Driver.Finish(q.inner)
	q.ctx.syncHost()
	return status
}
