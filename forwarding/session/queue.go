package session

import (
	"sync"
	"sync/atomic"

	"tendril/forwarding/clwire"
	"tendril/forwarding/session/handle"
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
	marker  clwire.Marker
	barrier clwire.Barrier
	host    clwire.Host
	inline  clwire.WriteInline
	copies  clwire.Copy
	fill    clwire.Fill
}

// queueProps reads clCreateCommandQueueWithProperties' list (§5.1).
func parseQueueProperties(given []uint64) (props uint64, status Status) {
	size := false
	for i := 0; i+1 < len(given) && given[i] != 0; i += 2 {
		switch given[i] {
		case queueProperties:
			props = given[i+1]
		case queueSize:
			size = true
		default:
			return 0, InvalidValue
		}
	}
	const known = queueOutOfOrder | queueProfiling | queueOnDevice | queueOnDeviceDefault
	if props&^known != 0 || size && props&queueOnDevice == 0 ||
		props&queueOnDeviceDefault != 0 && props&queueOnDevice == 0 ||
		props&queueOnDevice != 0 && props&queueOutOfOrder == 0 {
		return 0, InvalidValue
	}
	return props, Success
}

// CreateQueueWithProperties is clCreateCommandQueueWithProperties (§5.1).
func (d *Driver) CreateQueueWithProperties(context, device uintptr, given []uint64) (uintptr, Status) {
	ctx, dev, status := d.queueParents(context, device)
	if status != Success {
		return 0, status
	}
	props, status := parseQueueProperties(given)
	if status != Success {
		return 0, status
	}
	return d.createQueue(ctx, dev, props, given)
}

// CreateQueue is clCreateCommandQueue (§5.1 of OpenCL 1.2).
func (d *Driver) CreateQueue(context, device uintptr, props uint64) (uintptr, Status) {
	ctx, dev, status := d.queueParents(context, device)
	if status != Success {
		return 0, status
	}
	if props&^(queueOutOfOrder|queueProfiling) != 0 {
		return 0, InvalidValue
	}
	return d.createQueue(ctx, dev, props, nil)
}

func (d *Driver) queueParents(context, device uintptr) (*Context, *Device, Status) {
	ctx := d.contexts.Get(context)
	if ctx == nil {
		return nil, nil, InvalidContext
	}
	dev := d.devices.Get(device)
	if dev == nil || !ctx.has(dev) {
		return nil, nil, InvalidDevice
	}
	return ctx, dev, Success
}

func (d *Driver) createQueue(ctx *Context, dev *Device, props uint64, given []uint64) (uintptr, Status) {
	if props&^dev.limits.queueProps != 0 {
		return 0, InvalidQueueProperties
	}
	w, status := ctx.worker()
	if status != Success {
		return 0, status
	}
	q := newQueue(ctx, dev, w, props)
	q.given = given
	if err := w.send(&clwire.CreateQueue{ID: q.id, Context: ctx.id, Device: dev.index, Properties: props}, 0, 0); err != nil {
		return 0, OutOfResources
	}
	h, err := d.queues.Put(q)
	if err != nil {
		return 0, OutOfHostMemory
	}
	q.handle = h
	w.addQueue(q)
	ctx.refs.Retain()
	return h, Success
}

func newQueue(ctx *Context, dev *Device, w *worker, props uint64) *Queue {
	q := &Queue{d: ctx.d, id: ctx.d.newID(), ctx: ctx, device: dev, w: w, props: props, outOf: props&queueOutOfOrder != 0}
	q.refs.Set(1)
	q.d.traceQueue(q)
	return q
}

// moveQueue returns the context's own in-order queue for moving bytes to and from a device's memory.
func (c *Context) moveQueue(dev *Device) (*Queue, Status) {
	w, status := c.worker()
	if status != Success {
		return nil, status
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if q := c.moves[dev]; q != nil {
		return q, Success
	}
	if c.moves == nil {
		return nil, InvalidContext
	}
	q := newQueue(c, dev, w, 0)
	if err := w.send(&clwire.CreateQueue{ID: q.id, Context: c.id, Device: dev.index}, 0, 0); err != nil {
		return nil, OutOfResources
	}
	c.moves[dev] = q
	w.addQueue(q)
	return q, Success
}

// forgetQueue releases a queue. One with commands under way stays in the table until they ended: memory may wait for it.
func (w *worker) forgetQueue(q *Queue) {
	q.mu.Lock()
	busy := !q.idle()
	if busy {
		q.finishLaterLocked()
	}
	q.released.Store(true)
	w.tell(&clwire.Release{ID: q.id})
	q.mu.Unlock()
	w.link.Kick()
	if busy {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dropQueueLocked(q)
}

// idle says that nothing sent to the queue can still be under way.
func (q *Queue) idle() bool { return q.doneSeq.Load() == q.sentSeq.Load() }

// ended notes that a command of the queue completed. In order, so has everything before it.
func (q *Queue) ended(seq uint64) {
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

// latch keeps the first failure that no event carries, for the next clFlush or clFinish.
func (q *Queue) latch(status Status) { q.fault.CompareAndSwap(0, int32(status)) }

func (q *Queue) takeFault() Status { return Status(q.fault.Swap(0)) }

// pollEvery is how many commands may be sent between two looks at the ring, so that a program that only enqueues
// does not leave its worker's reports lying.
const pollEvery = 64

// submit sends one command: m, whose head is cmd. It returns the command's position in the queue.
func (q *Queue) submit(m clwire.Message, cmd *clwire.Cmd, e *Event, wait []uint64, request uint64) (seq uint64, status Status) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.submitLocked(m, cmd, e, wait, request)
}

// submitLocked is submit for a record that lives in q.pool.
func (q *Queue) submitLocked(m clwire.Message, cmd *clwire.Cmd, e *Event, wait []uint64, request uint64) (uint64, Status) {
	seq := q.sentSeq.Load() + 1
	cmd.Queue, cmd.Event, cmd.Wait = q.id, 0, wait
	if e != nil {
		cmd.Event = e.id
		e.seq = seq
		q.w.mu.Lock()
		q.w.events[e.id] = e
		q.w.mu.Unlock()
	}
	q.sentSeq.Store(seq)
	var flags uint16
	if request != 0 {
		flags = clwire.FlagUrgent
	}
	if q.w.send(m, flags, request) != nil {
		return seq, OutOfResources
	}
	q.traced(m)
	if seq%pollEvery == 0 {
		q.w.reader.poll()
	}
	return seq, Success
}

// RetainQueue is clRetainCommandQueue.
func (d *Driver) RetainQueue(h uintptr) Status {
	if q := d.queues.Get(h); q != nil && q.refs.Retain() {
		return Success
	}
	return InvalidCommandQueue
}

// ReleaseQueue is clReleaseCommandQueue. Commands sent before go on; they were flushed when they were sent.
func (d *Driver) ReleaseQueue(h uintptr) Status {
	q := d.queues.Get(h)
	if q == nil || !d.releaseQueue(q) {
		return InvalidCommandQueue
	}
	return Success
}

func (d *Driver) releaseQueue(q *Queue) bool {
	ok, last := q.refs.Release()
	if last {
		q.ctx.settle(q, func(*unwaited) {})
		d.queues.Remove(q.handle)
		q.w.forgetQueue(q)
		d.releaseContext(q.ctx)
	}
	return ok
}

// QueueInfo is clGetCommandQueueInfo (§5.1).
func (d *Driver) QueueInfo(h uintptr, param uint32) ([]byte, Status) {
	q := d.queues.Get(h)
	if q == nil {
		return nil, InvalidCommandQueue
	}
	switch param {
	case 0x1090:
		return infoSize(q.ctx.handle), Success
	case 0x1091:
		return infoSize(q.device.handle), Success
	case 0x1092:
		return infoU32(q.refs.Count()), Success
	case 0x1093:
		return infoU64(q.props), Success
	case 0x1094:
		return nil, InvalidCommandQueue // not a queue on a device
	case 0x1095:
		return infoSize(0), Success
	case 0x1098:
		return infoSizes(q.given), Success
	}
	return nil, InvalidValue
}

// Flush is clFlush (§5.15). Commands travel when they are enqueued; this tells the driver.
func (d *Driver) Flush(h uintptr) Status {
	q := d.queues.Get(h)
	if q == nil {
		return InvalidCommandQueue
	}
	if q.w.dead.Load() {
		return OutOfResources
	}
	q.w.reader.poll()
	if status := q.takeFault(); status != Success {
		return status
	}
	if !q.idle() {
		q.w.tell(&clwire.Flush{Queue: q.id})
		q.w.link.Kick()
	}
	return Success
}

// Finish is clFinish (§5.15): 0, or the first failure that no event told.
func (d *Driver) Finish(h uintptr) Status {
	q := d.queues.Get(h)
	if q == nil {
		return InvalidCommandQueue
	}
	status := q.finish()
	if q.w.dead.Load() {
		q.w.awaitLanded()
	}
	q.ctx.syncHost()
	return status
}

func (q *Queue) finish() Status {
	if q.w.dead.Load() {
		return OutOfResources
	}
	if q.idle() {
		return q.takeFault()
	}
	f, status := q.askFinish()
	if status != Success {
		return status
	}
	status = f.await()
	latched := q.takeFault()
	if status != Success {
		return status
	}
	return latched
}

// finishing is a question whether everything up to a place in a queue has ended.
type finishing struct {
	q   *Queue
	c   *call
	seq uint64
}

func (q *Queue) askFinish() (finishing, Status) {
	c, request := q.w.begin(nil)
	c.cause = trace.CauseFinish
	q.mu.Lock()
	seq := q.sentSeq.Load()
	err := q.w.send(&clwire.Finish{Queue: q.id}, clwire.FlagUrgent, request)
	q.mu.Unlock()
	if err != nil {
		q.w.forget(request)
		return finishing{}, OutOfResources
	}
	return finishing{q, c, seq}, Success
}

// await waits for the answer: 0, or the first failure that no event told.
func (f finishing) await() Status {
	if f.q.w.await(f.c) != nil {
		return OutOfResources
	}
	if !f.q.w.dead.Load() {
		f.q.endedUpTo(f.seq)
	}
	return f.c.status
}

// finishLater notes, without waiting, when everything sent so far has ended: for memory that waits to be reused. A
// released queue was asked with its release, and the worker no longer knows it.
func (q *Queue) finishLater() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.released.Load() {
		q.finishLaterLocked()
	}
}

func (q *Queue) finishLaterLocked() {
	seq := q.sentSeq.Load()
	_, request := q.w.begin(func(c *call) {
		if !q.w.dead.Load() {
			q.endedUpTo(seq)
		}
	})
	if q.w.send(&clwire.Finish{Queue: q.id}, 0, request) != nil {
		q.w.forget(request)
	}
}
