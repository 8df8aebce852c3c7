package span

import (
	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/handle"
)

// CommandBuffer is a cl_command_buffer_khr for a queue of a spanning context: one of session's at the queue's member. A
// replay brings what its commands read, as one command that does what all of them do.
type CommandBuffer struct {
	refs   handle.Refs
	handle uintptr
	inner  uintptr // session's
	q      *Queue

	// Guarded by Context.mu.
	uses []use // of all commands; a reference is held of each buffer
	at   map[usedRange]int
}

// usedRange finds a use again.
type usedRange struct {
	b      *Buffer
	off, n uint64
}

// CreateCommandBuffer is clCreateCommandBufferKHR.
func (d *Driver) CreateCommandBuffer(n uint32, queues []uintptr, given []uint64) (uintptr, api.Status) {
	if len(queues) != 1 || d.queues.Get(queues[0]) == nil {
		return d.base.CreateCommandBuffer(n, queues, given)
	}
	q := d.queues.Get(queues[0])
	inner, status := d.base.CreateCommandBuffer(n, []uintptr{q.inner}, given)
	if status != cl.SUCCESS {
		return 0, status
	}
	b := &CommandBuffer{q: q, inner: inner, at: map[usedRange]int{}}
	b.refs.Set(1)
	h, err := d.graphs.Put(b)
	if err != nil {
		d.base.ReleaseCommandBuffer(inner)
		return 0, cl.OUT_OF_HOST_MEMORY
	}
	b.handle = h
	q.refs.Retain()
	return h, cl.SUCCESS
}

// FinalizeCommandBuffer is clFinalizeCommandBufferKHR.
func (d *Driver) FinalizeCommandBuffer(h uintptr) api.Status {
	if b := d.graphs.Get(h); b != nil {
		h = b.inner
	}
	return d.base.FinalizeCommandBuffer(h)
}

// RetainCommandBuffer is clRetainCommandBufferKHR.
func (d *Driver) RetainCommandBuffer(h uintptr) api.Status {
	b := d.graphs.Get(h)
	if b == nil {
		return d.base.RetainCommandBuffer(h)
	}
	if !b.refs.Retain() {
		return cl.INVALID_COMMAND_BUFFER_KHR
	}
	return cl.SUCCESS
}

// ReleaseCommandBuffer is clReleaseCommandBufferKHR.
func (d *Driver) ReleaseCommandBuffer(h uintptr) api.Status {
	b := d.graphs.Get(h)
	if b == nil {
		return d.base.ReleaseCommandBuffer(h)
	}
	ok, last := b.refs.Release()
	if !ok {
		return cl.INVALID_COMMAND_BUFFER_KHR
	}
	if last {
		d.graphs.Remove(h)
		d.base.ReleaseCommandBuffer(b.inner)
		for i := range b.uses {
			b.uses[i].b.drop()
		}
		b.q.drop()
	}
	return cl.SUCCESS
}

// CommandBufferInfo is clGetCommandBufferInfoKHR.
func (d *Driver) CommandBufferInfo(h uintptr, param uint32) ([]byte, api.Status) {
	b := d.graphs.Get(h)
	switch {
	case b == nil:
		return d.base.CommandBufferInfo(h, param)
	case param == cl.COMMAND_BUFFER_QUEUES_KHR:
		return answers.Size(b.q.handle), cl.SUCCESS
	case param == cl.COMMAND_BUFFER_REFERENCE_COUNT_KHR:
		return answers.U32(b.refs.Count()), cl.SUCCESS
	}
	return d.base.CommandBufferInfo(b.inner, param)
}

// Record checks and records a command; call is this package's enqueue call, which finds from its waits that the command
// is recorded, under Context.mu.
func (d *Driver) Record(h uintptr, s api.SyncPoints,
	call func(queue uintptr, w api.Waits) (uintptr, api.Status)) (point uint32, status api.Status) {
	b := d.graphs.Get(h)
	if b == nil || call == nil {
		if b != nil {
			h = b.inner
		}
		return d.base.Record(h, s, call)
	}
	c := b.q.ctx
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recording = b
	defer func() { c.recording = nil }()
	return d.base.Record(b.inner, s, func(_ uintptr, w api.Waits) (uintptr, api.Status) { return call(b.q.handle, w) })
}

// recordLocked hands a command to session, which keeps it, and notes what it uses. The caller holds Context.mu.
func (r *request) recordLocked() (uintptr, api.Status) {
	event, status := r.call(r.w)
	if status != cl.SUCCESS {
		return event, status
	}
	b := r.q.ctx.recording
	for _, u := range r.uses {
		key := usedRange{u.b, u.off, u.n}
		i, known := b.at[key]
		if !known {
			u.b.refs.Retain()
			b.at[key] = len(b.uses)
			b.uses = append(b.uses, u)
			continue
		}
		b.uses[i].writes = b.uses[i].writes || u.writes // a range that was written before is read as it was left
	}
	return event, cl.SUCCESS
}

// EnqueueCommandBuffer is clEnqueueCommandBufferKHR: on the queue of its creation, or on one like it.
func (d *Driver) EnqueueCommandBuffer(n uint32, queues []uintptr, h uintptr, w api.Waits) (uintptr, api.Status) {
	b := d.graphs.Get(h)
	if b == nil {
		return d.base.EnqueueCommandBuffer(n, queues, h, w)
	}
	q, inner := b.q, []uintptr(nil)
	if n == 1 && len(queues) == 1 {
		switch q = d.queues.Get(queues[0]); {
		case q == nil:
			return 0, cl.INVALID_COMMAND_QUEUE
		case q.ctx != b.q.ctx:
			return 0, cl.INVALID_CONTEXT
		case q.member != b.q.member:
			return 0, cl.INCOMPATIBLE_COMMAND_QUEUE_KHR
		}
		inner = []uintptr{q.inner}
	}
	q.ctx.mu.Lock()
	uses := b.uses[:len(b.uses):len(b.uses)]
	q.ctx.mu.Unlock()
	r := request{q: q, w: w, uses: uses}
	r.call = func(w api.Waits) (uintptr, api.Status) {
		return d.base.EnqueueCommandBuffer(n, inner, b.inner, w)
	}
	return r.run(false)
}
