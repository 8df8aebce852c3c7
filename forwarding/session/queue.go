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

// Queue is a cl_command_queue.
type Queue struct {
	refs     handle.Refs
	d        *Driver
	handle   uintptr // 0: internal
	id       uint64
	ctx      *Context
	device   *Device
	w        *worker
	props    uint64
	given    []uint64 // properties as the program gave them, 0-terminated; nil: none
	outOf    bool     // out of order
	fault    atomic.Int32
	doneSeq  atomic.Uint64 // every command up to here is known to have ended
	sentSeq  atomic.Uint64 // written under mu
	released atomic.Bool   // written under mu: the worker does not know it any more
	gated    atomic.Bool   // a barrier was sent: even out of order, what follows may have to wait

	mu   sync.Mutex // order of sequence numbers = order in the stream
	pool messages   // reused; guarded by mu

	tracedSeq uint32 // commands told to the trace; guarded by mu
}

// messages are records under construction, kept to spare the collector.
type messages struct {
	ndrange clwire.NDRange
	host    clwire.Host
	inline  clwire.WriteInline
}

// queueProps reads clCreateCommandQueueWithProperties' list (§5.1).
func parseQueueProperties(given []uint64) (props uint64, status api.Status) {
	size := false
	for i := 0; i+1 < len(given) && given[i] != 0; i += 2 {
		switch given[i] {
		case cl.QUEUE_PROPERTIES:
			props = given[i+1]
		case cl.QUEUE_SIZE:
			size = true
		default:
			return 0, cl.INVALID_VALUE
		}
	}
	const known = cl.QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE | cl.QUEUE_PROFILING_ENABLE | cl.QUEUE_ON_DEVICE |
		cl.QUEUE_ON_DEVICE_DEFAULT
	if props&^known != 0 || size && props&cl.QUEUE_ON_DEVICE == 0 ||
		props&cl.QUEUE_ON_DEVICE_DEFAULT != 0 && props&cl.QUEUE_ON_DEVICE == 0 ||
		props&cl.QUEUE_ON_DEVICE != 0 && props&cl.QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE == 0 {
		return 0, cl.INVALID_VALUE
	}
	return props, cl.SUCCESS
}

// CreateQueueWithProperties is clCreateCommandQueueWithProperties (§5.1).
func (d *Driver) CreateQueueWithProperties(context, device uintptr, given []uint64) (uintptr, api.Status) {
	ctx, dev, status := d.queueParents(context, device)
	if status != cl.SUCCESS {
		return 0, status
	}
	props, status := parseQueueProperties(given)
	if status != cl.SUCCESS {
		return 0, status
	}
	return d.createQueue(ctx, dev, props, given)
}

// CreateQueue is clCreateCommandQueue (§5.1 of OpenCL 1.2).
func (d *Driver) CreateQueue(context, device uintptr, props uint64) (uintptr, api.Status) {
	ctx, dev, status := d.queueParents(context, device)
	if status != cl.SUCCESS {
		return 0, status
	}
	if props&^(cl.QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE|cl.QUEUE_PROFILING_ENABLE) != 0 {
		return 0, cl.INVALID_VALUE
	}
	return d.createQueue(ctx, dev, props, nil)
}

func (d *Driver) queueParents(context, device uintptr) (*Context, *Device, api.Status) {
	ctx := d.contexts.Get(context)
	if ctx == nil {
		return nil, nil, cl.INVALID_CONTEXT
	}
	dev := d.devices.Get(device)
	if dev == nil || !ctx.has(dev) {
		return nil, nil, cl.INVALID_DEVICE
	}
	return ctx, dev, cl.SUCCESS
}

func (d *Driver) createQueue(ctx *Context, dev *Device, props uint64, given []uint64) (uintptr, api.Status) {
	if props&^dev.limits.QueueProps != 0 {
		return 0, cl.INVALID_QUEUE_PROPERTIES
	}
	w, status := ctx.worker()
	if status != cl.SUCCESS {
		return 0, status
	}
	q := newQueue(ctx, dev, w, props)
	q.given = given
	if err := w.Send(&clwire.CreateQueue{ID: q.id, Context: ctx.id, Device: dev.index, Properties: props}, 0,
		0); err != nil {
		return 0, cl.OUT_OF_RESOURCES
	}
	h, err := d.queues.Put(q)
	if err != nil {
		return 0, cl.OUT_OF_HOST_MEMORY
	}
	q.handle = h
	w.addQueue(q)
	ctx.refs.Retain()
	return h, cl.SUCCESS
}

func newQueue(ctx *Context, dev *Device, w *worker, props uint64) *Queue {
	q := &Queue{d: ctx.d, id: ctx.d.newID(), ctx: ctx, device: dev, w: w, props: props,
		outOf: props&cl.QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE != 0}
	q.refs.Set(1)
	q.d.traceQueue(q)
	return q
}

// moveQueue returns the context's own in-order queue for moving bytes to and from a device's memory.
func (c *Context) moveQueue(dev *Device) (*Queue, api.Status) {
	w, status := c.worker()
	if status != cl.SUCCESS {
		return nil, status
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if q := c.moves[dev]; q != nil {
		return q, cl.SUCCESS
	}
	if c.moves == nil {
		return nil, cl.INVALID_CONTEXT
	}
	q := newQueue(c, dev, w, 0)
	if err := w.Send(&clwire.CreateQueue{ID: q.id, Context: c.id, Device: dev.index}, 0, 0); err != nil {
		return nil, cl.OUT_OF_RESOURCES
	}
	c.moves[dev] = q
	w.addQueue(q)
	return q, cl.SUCCESS
}

// forgetQueue releases a queue. One with commands under way stays in the table until they ended: memory may wait for
// it.
func (w *worker) forgetQueue(q *Queue) {
	q.mu.Lock()
	busy := !q.idle()
	if busy {
		q.requestCompletionMarkLocked()
	}
	q.released.Store(true)
	w.SendOneWay(&clwire.Release{ID: q.id})
	q.mu.Unlock()
	w.Kick()
	if busy {
		return
	}
	w.dropQueue(q)
}

// ownQueue is the move queue of the context's first device.
func (c *Context) ownQueue() (ways.Queue, api.Status) {
	q, status := c.moveQueue(c.devices[0])
	return q, status
}

// idle says that nothing sent to the queue can still be under way.
func (q *Queue) idle() bool { return q.doneSeq.Load() == q.sentSeq.Load() }

// Ended notes that a command of the queue completed. In order, so has everything before it.
func (q *Queue) Ended(seq uint64) {
	if !q.outOf {
		q.endedUpTo(seq)
	}
}

func (q *Queue) endedUpTo(seq uint64) {
	for {
		now := q.doneSeq.Load()
		if seq <= now || q.doneSeq.CompareAndSwap(now, seq) {
			return
		}
	}
}

// Passed implements memory.Queue.
func (q *Queue) Passed(seq uint64) bool { return q.doneSeq.Load() >= seq || q.w.Dead() }

// latch keeps the first failure that no event carries, for the next clFlush or clFinish.
func (q *Queue) latch(status api.Status) { q.fault.CompareAndSwap(0, int32(status)) }

func (q *Queue) takeFault() api.Status { return api.Status(q.fault.Swap(0)) }

// pollEvery is how many commands may be sent between two looks at the ring, so that a program that only enqueues
// does not leave its worker's reports lying.
const pollEvery = 64

// submit sends one command: m, whose head is cmd. It returns the command's position in the queue.
func (q *Queue) submit(m clwire.Message, cmd *clwire.Cmd, e *Event, wait []uint64, request uint64) (seq uint64,
	status api.Status) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.submitLocked(m, cmd, e, wait, request)
}

// submitLocked is submit for a record that lives in q.pool.
func (q *Queue) submitLocked(m clwire.Message, cmd *clwire.Cmd, e *Event, wait []uint64,
	request uint64) (uint64, api.Status) {
	seq := q.sentSeq.Load() + 1
	cmd.Queue, cmd.Event, cmd.Wait = q.id, 0, wait
	if e != nil {
		cmd.Event = e.id
		e.seq = seq
		q.w.addEvent(e)
	}
	q.sentSeq.Store(seq)
	var flags uint16
	if request != 0 {
		flags = clwire.FlagUrgent
	}
	if q.w.Send(m, flags, request) != nil {
		return seq, cl.OUT_OF_RESOURCES
	}
	q.traced(m)
	if seq%pollEvery == 0 {
		q.w.Poll()
	}
	return seq, cl.SUCCESS
}

// RetainQueue is clRetainCommandQueue.
func (d *Driver) RetainQueue(h uintptr) api.Status {
	if q := d.queues.Get(h); q != nil && q.refs.Retain() {
		return cl.SUCCESS
	}
	return cl.INVALID_COMMAND_QUEUE
}

// ReleaseQueue is clReleaseCommandQueue. Commands sent before go on; they were flushed when they were sent.
func (d *Driver) ReleaseQueue(h uintptr) api.Status {
	q := d.queues.Get(h)
	if q == nil || !d.releaseQueue(q) {
		return cl.INVALID_COMMAND_QUEUE
	}
	return cl.SUCCESS
}

func (d *Driver) releaseQueue(q *Queue) bool {
	ok, last := q.refs.Release()
	if last {
		q.ctx.AsyncWrites.MakeVisible(q, func() {})
		d.queues.Remove(q.handle)
		q.w.forgetQueue(q)
		d.releaseContext(q.ctx)
	}
	return ok
}

// QueueInfo is clGetCommandQueueInfo (§5.1).
func (d *Driver) QueueInfo(h uintptr, param uint32) ([]byte, api.Status) {
	q := d.queues.Get(h)
	if q == nil {
		return nil, cl.INVALID_COMMAND_QUEUE
	}
	switch param {
	case cl.QUEUE_CONTEXT:
		return answers.Size(q.ctx.handle), cl.SUCCESS
	case cl.QUEUE_DEVICE:
		return answers.Size(q.device.handle), cl.SUCCESS
	case cl.QUEUE_REFERENCE_COUNT:
		return answers.U32(q.refs.Count()), cl.SUCCESS
	case cl.QUEUE_PROPERTIES:
		return answers.U64(q.props), cl.SUCCESS
	case cl.QUEUE_SIZE:
		return nil, cl.INVALID_COMMAND_QUEUE // not a queue on a device
	case cl.QUEUE_DEVICE_DEFAULT:
		return answers.Size(0), cl.SUCCESS
	case cl.QUEUE_PROPERTIES_ARRAY:
		return answers.Sizes(q.given), cl.SUCCESS
	}
	return nil, cl.INVALID_VALUE
}

// Flush is clFlush (§5.15). Commands travel when they are enqueued; this tells the driver.
func (d *Driver) Flush(h uintptr) api.Status {
	q := d.queues.Get(h)
	if q == nil {
		return cl.INVALID_COMMAND_QUEUE
	}
	if q.w.Dead() {
		return cl.OUT_OF_RESOURCES
	}
	q.w.Poll()
	if status := q.takeFault(); status != cl.SUCCESS {
		return status
	}
	if !q.idle() {
		q.w.SendOneWay(&clwire.Flush{Queue: q.id})
		q.w.Kick()
	}
	return cl.SUCCESS
}

// Finish is clFinish (§5.15): 0, or the first failure that no event told.
func (d *Driver) Finish(h uintptr) api.Status {
	q := d.queues.Get(h)
	if q == nil {
		return cl.INVALID_COMMAND_QUEUE
	}
	status := q.finish()
	if q.w.Dead() {
		q.w.awaitLanded()
	}
	q.ctx.mirrors.Sync()
	return status
}

func (q *Queue) finish() api.Status {
	if q.w.Dead() {
		return cl.OUT_OF_RESOURCES
	}
	if q.idle() {
		return q.takeFault()
	}
	f, status := q.askFinish()
	if status != cl.SUCCESS {
		return status
	}
	status = f.await()
	latched := q.takeFault()
	if status != cl.SUCCESS {
		return status
	}
	return latched
}

// finishing is a question whether everything up to a place in a queue has ended.
type finishing struct {
	q   *Queue
	c   *conn.Call
	seq uint64
}

func (q *Queue) askFinish() (finishing, api.Status) {
	c, request := q.w.Begin(nil)
	c.Cause = trace.CauseFinish
	q.mu.Lock()
	seq := q.sentSeq.Load()
	err := q.w.Send(&clwire.Finish{Queue: q.id}, clwire.FlagUrgent, request)
	q.mu.Unlock()
	if err != nil {
		q.w.Forget(request)
		return finishing{}, cl.OUT_OF_RESOURCES
	}
	return finishing{q, c, seq}, cl.SUCCESS
}

// await waits for the answer: 0, or the first failure that no event told.
func (f finishing) await() api.Status {
	if f.q.w.Await(f.c) != nil {
		return cl.OUT_OF_RESOURCES
	}
	if !f.q.w.Dead() {
		f.q.endedUpTo(f.seq)
	}
	return api.Status(f.c.Status)
}

// RequestCompletionMark notes, without waiting, when everything sent so far has ended: for memory that waits to be
// reused. A released queue was asked with its release, and the worker no longer knows it.
func (q *Queue) RequestCompletionMark() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.released.Load() {
		q.requestCompletionMarkLocked()
	}
}

func (q *Queue) requestCompletionMarkLocked() {
	seq := q.sentSeq.Load()
	_, request := q.w.Begin(func(*conn.Call) {
		if !q.w.Dead() {
			q.endedUpTo(seq)
		}
	})
	if q.w.Send(&clwire.Finish{Queue: q.id}, 0, request) != nil {
		q.w.Forget(request)
	}
}
