package session

import (
	"bytes"
	"slices"
	"sync"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/handle"
	"tendril/forwarding/session/kernelargs"
	"tendril/forwarding/session/kernelfacts"
	"tendril/forwarding/session/transfer"
)

// CommandBuffer is a cl_command_buffer_khr (cl_khr_command_buffer 0.9.0): commands that were checked and recorded here,
// and that the worker replays at one message.
type CommandBuffer struct {
	refs         handle.Refs
	d            *Driver
	handle       uintptr
	id           uint64
	q            *Queue
	given        []uint64 // properties, 0-terminated; nil: none
	simultaneous bool

	mu       sync.Mutex
	final    bool
	commands []recorded
	points   uint32 // sync points given out
	sent     bool   // the worker has the commands as they are
	bytes    int    // of what it has, or will have
	last     *Event // of the newest enqueue; nil: none
}

// recorded is one command. Its record's Cmd is empty.
type recorded struct {
	m      clwire.Message // of a copy or a fill; nil: of a launch
	uses   []use          // of a copy or a fill
	kernel *Kernel        // a copy with the arguments of the time of recording, which nobody else has
	r      api.Range
}

// use is a buffer that a command names.
type use struct {
	b      *Buffer
	writes bool
	id     uint64 // by which the record names it
}

// CreateCommandBuffer is clCreateCommandBufferKHR. The extension takes one queue.
func (d *Driver) CreateCommandBuffer(n uint32, queues []uintptr, given []uint64) (uintptr, api.Status) {
	if n != 1 || queues == nil {
		return 0, cl.INVALID_VALUE
	}
	q, status := d.liveQueue(queues[0])
	if status != cl.SUCCESS {
		return 0, status
	}
	b := &CommandBuffer{d: d, id: d.newID(), q: q, given: given}
	seen := false
	for i := 0; i+1 < len(given) && given[i] != 0; i += 2 {
		if given[i] != cl.COMMAND_BUFFER_FLAGS_KHR || seen || given[i+1]&^cl.COMMAND_BUFFER_SIMULTANEOUS_USE_KHR != 0 {
			return 0, cl.INVALID_VALUE
		}
		seen, b.simultaneous = true, given[i+1] != 0
	}
	b.refs.Set(1)
	h, err := d.graphs.Put(b)
	if err != nil {
		return 0, cl.OUT_OF_HOST_MEMORY
	}
	b.handle = h
	q.refs.Retain()
	return h, cl.SUCCESS
}

// FinalizeCommandBuffer is clFinalizeCommandBufferKHR.
func (d *Driver) FinalizeCommandBuffer(h uintptr) api.Status {
	b := d.graphs.Get(h)
	if b == nil {
		return cl.INVALID_COMMAND_BUFFER_KHR
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.final {
		return cl.INVALID_OPERATION
	}
	b.final = true
	return cl.SUCCESS
}

// RetainCommandBuffer is clRetainCommandBufferKHR.
func (d *Driver) RetainCommandBuffer(h uintptr) api.Status {
	if b := d.graphs.Get(h); b != nil && b.refs.Retain() {
		return cl.SUCCESS
	}
	return cl.INVALID_COMMAND_BUFFER_KHR
}

// ReleaseCommandBuffer is clReleaseCommandBufferKHR.
func (d *Driver) ReleaseCommandBuffer(h uintptr) api.Status {
	b := d.graphs.Get(h)
	if b == nil {
		return cl.INVALID_COMMAND_BUFFER_KHR
	}
	ok, last := b.refs.Release()
	if !ok {
		return cl.INVALID_COMMAND_BUFFER_KHR
	}
	if last {
		d.graphs.Remove(h)
		b.forget()
	}
	return cl.SUCCESS
}

// forget lets the recorded commands' objects go. What was enqueued goes on: the worker holds what its commands use.
func (b *CommandBuffer) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sent || b.last != nil {
		b.q.w.SendOneWay(&clwire.Release{ID: b.id})
	}
	for i := range b.commands {
		b.commands[i].letGo(b.d)
	}
	b.commands = nil
	b.d.releaseQueue(b.q)
}

func (r *recorded) letGo(d *Driver) {
	for _, u := range r.uses {
		d.ReleaseMemObject(u.b.handle)
	}
	if k := r.kernel; k != nil {
		for _, i := range k.args.Objects() {
			d.releaseArg(k.args.Object(i))
		}
		d.dropKernel(k)
	}
}

// releaseArg gives back the reference to an object that a recorded launch's argument names.
func (d *Driver) releaseArg(o kernelargs.Object) {
	switch o := o.(type) {
	case *Buffer:
		d.ReleaseMemObject(o.handle)
	case *Sampler:
		d.ReleaseSampler(o.handle)
	}
}

// CommandBufferInfo is clGetCommandBufferInfoKHR.
func (d *Driver) CommandBufferInfo(h uintptr, param uint32) ([]byte, api.Status) {
	b := d.graphs.Get(h)
	if b == nil {
		return nil, cl.INVALID_COMMAND_BUFFER_KHR
	}
	switch param {
	case cl.COMMAND_BUFFER_QUEUES_KHR:
		return answers.Handles([]uintptr{b.q.handle}), cl.SUCCESS
	case cl.COMMAND_BUFFER_NUM_QUEUES_KHR:
		return answers.U32(1), cl.SUCCESS
	case cl.COMMAND_BUFFER_REFERENCE_COUNT_KHR:
		return answers.U32(b.refs.Count()), cl.SUCCESS
	case cl.COMMAND_BUFFER_STATE_KHR:
		b.mu.Lock()
		defer b.mu.Unlock()
		return answers.U32(b.stateLocked()), cl.SUCCESS
	case cl.COMMAND_BUFFER_PROPERTIES_ARRAY_KHR:
		return answers.Sizes(b.given), cl.SUCCESS
	}
	return nil, cl.INVALID_VALUE
}

func (b *CommandBuffer) stateLocked() uint32 {
	switch {
	case !b.final:
		return cl.COMMAND_BUFFER_STATE_RECORDING_KHR
	case b.last != nil && b.last.poll() > 0:
		return cl.COMMAND_BUFFER_STATE_PENDING_KHR
	}
	return cl.COMMAND_BUFFER_STATE_EXECUTABLE_KHR
}

// Record checks and records a command: call is the enqueue call that carries the command's arguments, with the queue
// and the waits to give it. Sync points need no more than to be ones: a replay keeps the order of recording.
func (d *Driver) Record(h uintptr, s api.SyncPoints, call func(queue uintptr, w api.Waits) (uintptr,
	api.Status)) (point uint32,
	status api.Status) {
	b := d.graphs.Get(h)
	if b == nil {
		return 0, cl.INVALID_COMMAND_BUFFER_KHR
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case s.Queue != 0:
		return 0, cl.INVALID_COMMAND_QUEUE
	case b.final:
		return 0, cl.INVALID_OPERATION
	case s.Mutable:
		return 0, cl.INVALID_VALUE
	case (s.N == 0) != (s.List == nil), slices.ContainsFunc(s.List, func(p uint32) bool { return p >= b.points }):
		return 0, cl.INVALID_SYNC_POINT_WAIT_LIST_KHR
	}
	if call != nil { // nil: a barrier
		if _, status := call(b.q.handle, api.Waits{Recorder: b}); status != cl.SUCCESS {
			return 0, status
		}
	}
	b.points++
	return b.points - 1, cl.SUCCESS
}

// roomLocked books the bytes of one more command.
func (b *CommandBuffer) roomLocked(m clwire.Message) api.Status {
	n := len(clwire.AppendRecorded(nil, m))
	if n > transfer.RecordBytes || b.bytes+n > clwire.MaxGraphBytes || len(b.commands) == clwire.MaxGraphCommands {
		return cl.OUT_OF_RESOURCES
	}
	b.bytes += n
	return cl.SUCCESS
}

// add records a copy or a fill with the buffers that the command has noted.
func (b *CommandBuffer) add(m clwire.Message, uses []use) api.Status {
	if status := b.roomLocked(m); status != cl.SUCCESS {
		return status
	}
	if fill, ok := m.(*clwire.Fill); ok {
		fill.Pattern = bytes.Clone(fill.Pattern) // it is the program's
	}
	for i := range uses {
		uses[i].id = uses[i].b.id.Load()
		uses[i].b.refs.Retain()
	}
	b.commands = append(b.commands, recorded{m: m, uses: uses})
	return cl.SUCCESS
}

// note keeps a buffer that a recorded command names; an image over a buffer may be named as that.
func (c *command) note(b *Buffer, writes bool) {
	c.noted = append(c.noted, use{b: b, writes: writes})
	if b.image != nil && b.linear() {
		c.noted = append(c.noted, use{b: b.parent, writes: writes})
	}
}

// addLaunch records a launch with a copy of the kernel, so that later arguments are not this launch's.
func (b *CommandBuffer) addLaunch(k *Kernel, r *api.Range) api.Status {
	k.mu.Lock()
	class, complete := kernelfacts.ClassOf(r, b.q.device.index, k.args.LocalBytes()), k.args.Complete()
	k.mu.Unlock()
	if !complete {
		return cl.INVALID_KERNEL_ARGS
	}
	if verdict, known := k.facts.LaunchVerdict(&class); known && verdict != cl.SUCCESS {
		return verdict
	}
	c := recorded{kernel: k.clone(), r: *r}
	if status := b.roomLocked(c.message()); status != cl.SUCCESS {
		b.d.dropKernel(c.kernel)
		return status
	}
	if !c.kernel.args.Retain(b.d.releaseArg) {
		b.d.dropKernel(c.kernel)
		return cl.INVALID_KERNEL_ARGS // released since it was set
	}
	b.commands = append(b.commands, c)
	return cl.SUCCESS
}

// message is the command's record, with an empty Cmd.
func (r *recorded) message() clwire.Message {
	k := r.kernel
	if k == nil {
		return r.m
	}
	m := &clwire.NDRange{Kernel: k.id, Dims: uint8(r.r.Dims), HasOffset: r.r.HasOffset, HasLocal: r.r.HasLocal,
		Global: r.r.Global, Offset: r.r.Offset, Local: r.r.Local}
	m.Args = k.args.All(nil)
	return m
}

// EnqueueCommandBuffer is clEnqueueCommandBufferKHR: on the queue of its creation, or on one like it.
func (d *Driver) EnqueueCommandBuffer(n uint32, queues []uintptr, h uintptr, w api.Waits) (uintptr, api.Status) {
	b := d.graphs.Get(h)
	if b == nil {
		return 0, cl.INVALID_COMMAND_BUFFER_KHR
	}
	q := b.q
	if (n == 0) != (queues == nil) || n > 1 {
		return 0, cl.INVALID_VALUE
	}
	if n == 1 {
		var status api.Status
		if q, status = b.replacement(queues[0]); status != cl.SUCCESS {
			return 0, status
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if state := b.stateLocked(); state == cl.COMMAND_BUFFER_STATE_RECORDING_KHR ||
		state == cl.COMMAND_BUFFER_STATE_PENDING_KHR && !b.simultaneous {
		return 0, cl.INVALID_OPERATION
	}
	wanted := w.Want
	w.Want = true
	c, status := d.open(q, cl.COMMAND_COMMAND_BUFFER_KHR, w)
	if status == cl.SUCCESS {
		status = b.replayLocked(&c)
	}
	event, status := c.close(status)
	if status != cl.SUCCESS {
		return 0, status
	}
	b.last = c.e
	c.e.Hold()
	if !wanted {
		d.ReleaseEvent(event)
		event = 0
	}
	return event, cl.SUCCESS
}

// replacement resolves a queue that stands in for the one of the creation.
func (b *CommandBuffer) replacement(h uintptr) (*Queue, api.Status) {
	q, status := b.d.liveQueue(h)
	switch {
	case status != cl.SUCCESS:
		return nil, status
	case q.ctx != b.q.ctx:
		return nil, cl.INVALID_CONTEXT
	case q.device != b.q.device || q.props != b.q.props:
		return nil, cl.INCOMPATIBLE_COMMAND_QUEUE_KHR
	}
	return q, cl.SUCCESS
}

// replayLocked readies the buffers, sends the commands unless the worker has them as they are, and asks for them.
func (b *CommandBuffer) replayLocked(c *command) api.Status {
	for i := range b.commands {
		if status := b.prepareLocked(c, &b.commands[i]); status != cl.SUCCESS {
			return status
		}
	}
	if !b.sent {
		var data []byte
		for i := range b.commands {
			data = clwire.AppendRecorded(data, b.commands[i].message())
		}
		blob := b.d.newID()
		if c.q.w.SendBlob(blob, data) != nil || c.q.w.Send(&clwire.Graph{ID: b.id, Blob: blob}, 0, 0) != nil {
			return cl.OUT_OF_RESOURCES
		}
		b.sent = true
	}
	m := &clwire.Replay{Graph: b.id}
	if n := uint64(len(b.commands)); c.q.outOf && n > 0 {
		m.First = b.d.ids.Add(n) - n + 1
	}
	return c.send(m, &m.Cmd)
}

// prepareLocked readies one command's buffers. One whose number has changed makes the commands travel again.
func (b *CommandBuffer) prepareLocked(c *command, r *recorded) api.Status {
	for i := range r.uses {
		u := &r.uses[i]
		if status := c.uses(u.b, u.writes); status != cl.SUCCESS {
			return status
		}
		if id := u.b.id.Load(); id != u.id {
			renumber(r.m, u.id, id)
			u.id, b.sent = id, false
		}
	}
	k := r.kernel
	if k == nil {
		return cl.SUCCESS
	}
	if status := k.ensureRemote(c.q.w); status != cl.SUCCESS { // b.mu guards the kernel, which nobody else has
		return status
	}
	if status := c.prepareArgsLocked(k); status != cl.SUCCESS {
		return status
	}
	if k.args.Sent() {
		b.sent = false
	}
	return cl.SUCCESS
}

// renumber makes a record name a buffer by its new number.
func renumber(m clwire.Message, old, id uint64) {
	swap := func(fields ...*uint64) {
		for _, f := range fields {
			if *f == old {
				*f = id
			}
		}
	}
	switch m := m.(type) {
	case *clwire.Copy:
		swap(&m.Src, &m.Dst)
	case *clwire.CopyRect:
		swap(&m.Src, &m.Dst)
	case *clwire.Fill:
		swap(&m.Buffer)
	case *clwire.CopyImage:
		swap(&m.Src, &m.Dst)
	case *clwire.CopyImageBuffer:
		swap(&m.Image, &m.Buffer)
	case *clwire.FillImage:
		swap(&m.Image)
	}
}
