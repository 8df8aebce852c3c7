package session

import (
	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/graphs"
)

// CreateCommandBuffer is clCreateCommandBufferKHR (cl_khr_command_buffer 0.9.0). The extension takes one queue. What is
// recorded was checked here, and the worker replays it at one message.
func (d *Driver) CreateCommandBuffer(n uint32, queues []uintptr, given []uint64) (uintptr, api.Status) {
	if n != 1 || queues == nil {
		return 0, cl.INVALID_VALUE
	}
	q, status := d.liveQueue(queues[0])
	if status != cl.SUCCESS {
		return 0, status
	}
	g, status := graphs.New(d.newID(), q, given)
	if status != cl.SUCCESS {
		return 0, status
	}
	h, err := d.graphs.Put(g)
	if err != nil {
		return 0, cl.OUT_OF_HOST_MEMORY
	}
	q.refs.Retain()
	return h, cl.SUCCESS
}

// FinalizeCommandBuffer is clFinalizeCommandBufferKHR.
func (d *Driver) FinalizeCommandBuffer(h uintptr) api.Status {
	g := d.graphs.Get(h)
	if g == nil {
		return cl.INVALID_COMMAND_BUFFER_KHR
	}
	return g.Finalize()
}

// RetainCommandBuffer is clRetainCommandBufferKHR.
func (d *Driver) RetainCommandBuffer(h uintptr) api.Status {
	if g := d.graphs.Get(h); g != nil && g.Refs.Retain() {
		return cl.SUCCESS
	}
	return cl.INVALID_COMMAND_BUFFER_KHR
}

// ReleaseCommandBuffer is clReleaseCommandBufferKHR.
func (d *Driver) ReleaseCommandBuffer(h uintptr) api.Status {
	g := d.graphs.Get(h)
	if g == nil {
		return cl.INVALID_COMMAND_BUFFER_KHR
	}
	ok, last := g.Refs.Release()
	if !ok {
		return cl.INVALID_COMMAND_BUFFER_KHR
	}
	if last {
		d.graphs.Remove(h)
		g.Forget(func() { g.Queue.w.SendOneWay(&clwire.Release{ID: g.ID}) })
		d.releaseQueue(g.Queue)
	}
	return cl.SUCCESS
}

// CommandBufferInfo is clGetCommandBufferInfoKHR.
func (d *Driver) CommandBufferInfo(h uintptr, param uint32) ([]byte, api.Status) {
	g := d.graphs.Get(h)
	if g == nil {
		return nil, cl.INVALID_COMMAND_BUFFER_KHR
	}
	switch param {
	case cl.COMMAND_BUFFER_QUEUES_KHR:
		return answers.Handles([]uintptr{g.Queue.handle}), cl.SUCCESS
	case cl.COMMAND_BUFFER_NUM_QUEUES_KHR:
		return answers.U32(1), cl.SUCCESS
	case cl.COMMAND_BUFFER_REFERENCE_COUNT_KHR:
		return answers.U32(g.Refs.Count()), cl.SUCCESS
	case cl.COMMAND_BUFFER_STATE_KHR:
		return answers.U32(g.State()), cl.SUCCESS
	case cl.COMMAND_BUFFER_PROPERTIES_ARRAY_KHR:
		return answers.Sizes(g.Given()), cl.SUCCESS
	}
	return nil, cl.INVALID_VALUE
}

// Record checks and records a command: call is the enqueue call that carries the command's arguments, with the queue
// and the waits to give it. A nil call is a barrier.
func (d *Driver) Record(h uintptr, s api.SyncPoints, call func(queue uintptr, w api.Waits) (uintptr,
	api.Status)) (point uint32,
	status api.Status) {
	g := d.graphs.Get(h)
	if g == nil {
		return 0, cl.INVALID_COMMAND_BUFFER_KHR
	}
	if call == nil {
		return g.Record(s, nil)
	}
	return g.Record(s, func() api.Status {
		_, status := call(g.Queue.handle, api.Waits{Recorder: g})
		return status
	})
}

// EnqueueCommandBuffer is clEnqueueCommandBufferKHR: on the queue of its creation, or on one like it.
func (d *Driver) EnqueueCommandBuffer(n uint32, queues []uintptr, h uintptr, w api.Waits) (uintptr, api.Status) {
	g := d.graphs.Get(h)
	if g == nil {
		return 0, cl.INVALID_COMMAND_BUFFER_KHR
	}
	q := g.Queue
	if (n == 0) != (queues == nil) || n > 1 {
		return 0, cl.INVALID_VALUE
	}
	if n == 1 {
		var status api.Status
		if q, status = d.replacement(g.Queue, queues[0]); status != cl.SUCCESS {
			return 0, status
		}
	}
	r := replay{d: d, q: q, w: w, graph: g.ID}
	status := g.Enqueue(&r)
	return r.event, status
}

// replacement resolves a queue that stands in for the one of the creation.
func (d *Driver) replacement(own *Queue, h uintptr) (*Queue, api.Status) {
	q, status := d.liveQueue(h)
	switch {
	case status != cl.SUCCESS:
		return nil, status
	case q.ctx != own.ctx:
		return nil, cl.INVALID_CONTEXT
	case q.device != own.device || q.props != own.props:
		return nil, cl.INCOMPATIBLE_COMMAND_QUEUE_KHR
	}
	return q, cl.SUCCESS
}

// replay implements graphs.Replay.
type replay struct {
	d     *Driver
	q     *Queue
	w     api.Waits
	graph uint64 // its number
	c     command
	event uintptr // the program's, once closed; 0: it wants none
}

// Open makes the command, with an event that says when the replay is over, whether the program wants one or not.
func (r *replay) Open() (status api.Status) {
	w := r.w
	w.Want = true
	status = r.d.open(&r.c, r.q, cl.COMMAND_COMMAND_BUFFER_KHR, &w)
	return status
}

func (r *replay) Uses(b graphs.Buffer, writes bool) api.Status { return r.c.uses(b.(*Buffer), writes) }

// Launch readies a recorded launch, whose kernel nobody else has: the graph's lock guards it.
func (r *replay) Launch(l graphs.Launch) (changed bool, status api.Status) {
	k := l.(*recordedLaunch).k
	if status := k.ensureRemote(r.q.w); status != cl.SUCCESS {
		return false, status
	}
	if status := k.tellReach(r.q.w); status != cl.SUCCESS {
		return false, status
	}
	if status := r.c.prepareArgsLocked(k); status != cl.SUCCESS {
		return false, status
	}
	return k.args.Sent(), cl.SUCCESS
}

func (r *replay) Commands(data []byte) api.Status {
	blob := r.d.newID()
	if r.q.w.SendBlob(blob, data) != nil || r.q.w.Send(&clwire.Graph{ID: r.graph, Blob: blob}, 0, 0) != nil {
		return cl.OUT_OF_RESOURCES
	}
	return cl.SUCCESS
}

func (r *replay) Run(count int) api.Status {
	m := &clwire.Replay{Graph: r.graph}
	if n := uint64(count); r.q.outOf && n > 0 {
		m.First = r.d.ids.Add(n) - n + 1
	}
	return r.c.send(m, &m.Cmd)
}

func (r *replay) Close(status api.Status) (graphs.Event, api.Status) {
	event, status := r.c.close(status)
	if status != cl.SUCCESS {
		return nil, status
	}
	r.c.e.Hold()
	if r.w.Want {
		r.event = event
	} else {
		r.d.ReleaseEvent(event)
	}
	return r.c.e, cl.SUCCESS
}
