package span

import (
	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/handle"
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

// CreateQueueWithProperties is clCreateCommandQueueWithProperties (§5.1).
func (d *Driver) CreateQueueWithProperties(context, device uintptr, given []uint64) (uintptr, api.Status) {
	c := d.contexts.Get(context)
	if c == nil {
		return d.base.CreateQueueWithProperties(context, device, given)
	}
	return c.newQueue(device, func(inner uintptr) (uintptr, api.Status) {
		return d.base.CreateQueueWithProperties(inner, device, given)
	})
}

// CreateQueue is clCreateCommandQueue (§5.1 of OpenCL 1.2).
func (d *Driver) CreateQueue(context, device uintptr, props uint64) (uintptr, api.Status) {
	c := d.contexts.Get(context)
	if c == nil {
		return d.base.CreateQueue(context, device, props)
	}
	return c.newQueue(device, func(inner uintptr) (uintptr, api.Status) {
		return d.base.CreateQueue(inner, device, props)
	})
}

func (c *Context) newQueue(device uintptr, create func(context uintptr) (uintptr, api.Status)) (uintptr, api.Status) {
	i := c.memberOf(device)
	if i < 0 {
		return 0, cl.INVALID_DEVICE
	}
	inner, status := create(c.members[i].context)
	if status != cl.SUCCESS {
		return 0, status
	}
	props, _ := c.d.base.QueueInfo(inner, cl.QUEUE_PROPERTIES)
	q := &Queue{ctx: c, inner: inner, member: i,
		inOrder: answers.Number(props)&cl.QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE == 0}
	q.refs.Set(1)
	h, err := c.d.queues.Put(q)
	if err != nil {
		c.d.base.ReleaseQueue(inner)
		return 0, cl.OUT_OF_HOST_MEMORY
	}
	q.handle = h
	c.refs.Retain()
	return h, cl.SUCCESS
}

// RetainQueue is clRetainCommandQueue.
func (d *Driver) RetainQueue(h uintptr) api.Status {
	q := d.queues.Get(h)
	if q == nil {
		return d.base.RetainQueue(h)
	}
	if !q.refs.Retain() {
		return cl.INVALID_COMMAND_QUEUE
	}
	return cl.SUCCESS
}

// ReleaseQueue is clReleaseCommandQueue.
func (d *Driver) ReleaseQueue(h uintptr) api.Status {
	q := d.queues.Get(h)
	if q == nil {
		return d.base.ReleaseQueue(h)
	}
	if !q.drop() {
		return cl.INVALID_COMMAND_QUEUE
	}
	return cl.SUCCESS
}

func (q *Queue) drop() bool {
	ok, last := q.refs.Release()
	if last {
		q.ctx.d.queues.Remove(q.handle)
		q.ctx.d.base.ReleaseQueue(q.inner)
		q.ctx.drop()
	}
	return ok
}

// QueueInfo is clGetCommandQueueInfo (§5.1).
func (d *Driver) QueueInfo(h uintptr, param uint32) ([]byte, api.Status) {
	q := d.queues.Get(h)
	switch {
	case q == nil:
		return d.base.QueueInfo(h, param)
	case param == cl.QUEUE_CONTEXT:
		return answers.Size(q.ctx.handle), cl.SUCCESS
	case param == cl.QUEUE_REFERENCE_COUNT:
		return answers.U32(q.refs.Count()), cl.SUCCESS
	}
	return d.base.QueueInfo(q.inner, param)
}

// Flush is clFlush (§5.15).
func (d *Driver) Flush(h uintptr) api.Status {
	if q := d.queues.Get(h); q != nil {
		h = q.inner
	}
	return d.base.Flush(h)
}

// Finish is clFinish (§5.15).
func (d *Driver) Finish(h uintptr) api.Status {
	q := d.queues.Get(h)
	if q == nil {
		return d.base.Finish(h)
	}
	status := d.base.Finish(q.inner)
	q.ctx.syncHost()
	return status
}
