package session

import (
	"bytes"
	"slices"
	"sync"

	"tendril/forwarding/clwire"
	"tendril/forwarding/session/handle"
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
	r      Range
}

// use is a buffer that a command names.
type use struct {
	b      *Buffer
	writes bool
	id     uint64 // by which the record names it
}

// Parameters and values of the extension.
const (
	cmdCommandBuffer           uint32 = 0x12A8
	commandBufferFlags                = 0x1293
	commandBufferSimultaneous  uint64 = 1 << 0
	commandBufferQueues        uint32 = 0x1294
	commandBufferNumQueues     uint32 = 0x1295
	commandBufferReferences    uint32 = 0x1296
	commandBufferState         uint32 = 0x1297
	commandBufferProperties    uint32 = 0x1298
	devCommandBufferCaps       uint32 = 0x12A9
	devCommandBufferQueueProps uint32 = 0x12AA

	stateRecording, stateExecutable, statePending uint32 = 0, 1, 2

	InvalidCommandBuffer    Status = -1138
	InvalidSyncPoints       Status = -1139
	IncompatibleQueue       Status = -1140
	commandBufferExtension         = "cl_khr_command_buffer"
	commandBufferVersion    uint32 = 9 << 12            // 0.9.0
	commandBufferCapability uint64 = 1<<0 | 1<<2 | 1<<3 // printf in kernels, simultaneous use, out of order
)

// CreateCommandBuffer is clCreateCommandBufferKHR. The extension takes one queue.
func (d *Driver) CreateCommandBuffer(n uint32, queues []uintptr, given []uint64) (uintptr, Status) {
	if n != 1 || queues == nil {
		return 0, InvalidValue
	}
	q, status := d.liveQueue(queues[0])
	if status != Success {
		return 0, status
	}
	b := &CommandBuffer{d: d, id: d.newID(), q: q, given: given}
	seen := false
	for i := 0; i+1 < len(given) && given[i] != 0; i += 2 {
		if given[i] != commandBufferFlags || seen || given[i+1]&^commandBufferSimultaneous != 0 {
			return 0, InvalidValue
		}
		seen, b.simultaneous = true, given[i+1] != 0
	}
	b.refs.Set(1)
	h, err := d.graphs.Put(b)
	if err != nil {
		return 0, OutOfHostMemory
	}
	b.handle = h
	q.refs.Retain()
	return h, Success
}

// FinalizeCommandBuffer is clFinalizeCommandBufferKHR.
func (d *Driver) FinalizeCommandBuffer(h uintptr) Status {
	b := d.graphs.Get(h)
	if b == nil {
		return InvalidCommandBuffer
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.final {
		return InvalidOperation
	}
	b.final = true
	return Success
}

// RetainCommandBuffer is clRetainCommandBufferKHR.
func (d *Driver) RetainCommandBuffer(h uintptr) Status {
	if b := d.graphs.Get(h); b != nil && b.refs.Retain() {
		return Success
	}
	return InvalidCommandBuffer
}

// ReleaseCommandBuffer is clReleaseCommandBufferKHR.
func (d *Driver) ReleaseCommandBuffer(h uintptr) Status {
	b := d.graphs.Get(h)
	if b == nil {
		return InvalidCommandBuffer
	}
	ok, last := b.refs.Release()
	if !ok {
		return InvalidCommandBuffer
	}
	if last {
		d.graphs.Remove(h)
		b.forget()
	}
	return Success
}

// forget lets the recorded commands' objects go. What was enqueued goes on: the worker holds what its commands use.
func (b *CommandBuffer) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sent || b.last != nil {
		b.q.w.tell(&clwire.Release{ID: b.id})
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
		for _, i := range k.memArgs {
			if a := &k.args[i]; a.buffer != nil {
				d.ReleaseMemObject(a.buffer.handle)
			} else if a.sampler != nil {
				d.ReleaseSampler(a.sampler.handle)
			}
		}
		d.ReleaseKernel(k.handle)
	}
}

// CommandBufferInfo is clGetCommandBufferInfoKHR.
func (d *Driver) CommandBufferInfo(h uintptr, param uint32) ([]byte, Status) {
	b := d.graphs.Get(h)
	if b == nil {
		return nil, InvalidCommandBuffer
	}
	switch param {
	case commandBufferQueues:
		return infoHandles([]uintptr{b.q.handle}), Success
	case commandBufferNumQueues:
		return infoU32(1), Success
	case commandBufferReferences:
		return infoU32(b.refs.Count()), Success
	case commandBufferState:
		b.mu.Lock()
		defer b.mu.Unlock()
		return infoU32(b.stateLocked()), Success
	case commandBufferProperties:
		return infoSizes(b.given), Success
	}
	return nil, InvalidValue
}

func (b *CommandBuffer) stateLocked() uint32 {
	switch {
	case !b.final:
		return stateRecording
	case b.last != nil && b.last.poll() > 0:
		return statePending
	}
	return stateExecutable
}

// SyncPoints is how a recording call names what its command waits for, and what else it was given.
type SyncPoints struct {
	Queue   uintptr // must be none
	N       uint32
	List    []uint32 // nil: NULL
	Mutable bool     // a place for a mutable handle, which there is none of
}

// Record checks and records a command: call is the enqueue call that carries the command's arguments, with the queue and
// the waits to give it. Sync points need no more than to be ones: a replay keeps the order of recording.
func (d *Driver) Record(h uintptr, s SyncPoints, call func(queue uintptr, w Waits) (uintptr, Status)) (point uint32, status Status) {
	b := d.graphs.Get(h)
	if b == nil {
		return 0, InvalidCommandBuffer
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case s.Queue != 0:
		return 0, InvalidCommandQueue
	case b.final:
		return 0, InvalidOperation
	case s.Mutable:
		return 0, InvalidValue
	case (s.N == 0) != (s.List == nil), slices.ContainsFunc(s.List, func(p uint32) bool { return p >= b.points }):
		return 0, InvalidSyncPoints
	}
	if call != nil { // nil: a barrier
		if _, status := call(b.q.handle, Waits{graph: b}); status != Success {
			return 0, status
		}
	}
	b.points++
	return b.points - 1, Success
}

// roomLocked books the bytes of one more command.
func (b *CommandBuffer) roomLocked(m clwire.Message) Status {
	n := len(clwire.AppendRecorded(nil, m))
	if n > recordRoom || b.bytes+n > clwire.MaxGraphBytes || len(b.commands) == clwire.MaxGraphCommands {
		return OutOfResources
	}
	b.bytes += n
	return Success
}

// add records a copy or a fill with the buffers that the command has noted.
func (b *CommandBuffer) add(m clwire.Message, uses []use) Status {
	if status := b.roomLocked(m); status != Success {
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
	return Success
}

// note keeps a buffer that a recorded command names; an image over a buffer may be named as that.
func (c *command) note(b *Buffer, writes bool) {
	c.noted = append(c.noted, use{b: b, writes: writes})
	if b.image != nil && b.linear() {
		c.noted = append(c.noted, use{b: b.parent, writes: writes})
	}
}

// addLaunch records a launch with a copy of the kernel, so that later arguments are not this launch's.
func (b *CommandBuffer) addLaunch(k *Kernel, r *Range) Status {
	k.mu.Lock()
	class, unset := r.class(b.q, k.localBytes), k.unset
	k.mu.Unlock()
	if unset > 0 {
		return InvalidKernelArgs
	}
	if verdict, known := k.facts.launchVerdict(&class); known && verdict != Success {
		return verdict
	}
	h, status := b.d.CloneKernel(k.handle)
	if status != Success {
		return status
	}
	c := recorded{kernel: b.d.kernels.Get(h), r: *r}
	if status := b.roomLocked(c.message()); status != Success {
		b.d.ReleaseKernel(h)
		return status
	}
	for _, i := range c.kernel.memArgs {
		if a := &c.kernel.args[i]; a.buffer != nil && !a.buffer.refs.Retain() || a.sampler != nil && !a.sampler.refs.Retain() {
			c.kernel.memArgs = slices.DeleteFunc(c.kernel.memArgs, func(j int) bool { return j >= i })
			c.letGo(b.d)
			return InvalidKernelArgs // released since it was set
		}
	}
	b.commands = append(b.commands, c)
	return Success
}

// message is the command's record, with an empty Cmd.
func (r *recorded) message() clwire.Message {
	k := r.kernel
	if k == nil {
		return r.m
	}
	m := &clwire.NDRange{Kernel: k.id, Dims: uint8(r.r.Dims), HasOffset: r.r.HasOffset, HasLocal: r.r.HasLocal, Global: r.r.Global, Offset: r.r.Offset, Local: r.r.Local}
	for i := range k.args {
		m.Args = append(m.Args, clwire.Arg{Index: uint16(i), Kind: k.args[i].kind, Data: k.args[i].value()})
	}
	return m
}

// EnqueueCommandBuffer is clEnqueueCommandBufferKHR: on the queue of its creation, or on one like it.
func (d *Driver) EnqueueCommandBuffer(n uint32, queues []uintptr, h uintptr, w Waits) (uintptr, Status) {
	b := d.graphs.Get(h)
	if b == nil {
		return 0, InvalidCommandBuffer
	}
	q := b.q
	if (n == 0) != (queues == nil) || n > 1 {
		return 0, InvalidValue
	}
	if n == 1 {
		var status Status
		if q, status = b.replacement(queues[0]); status != Success {
			return 0, status
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if state := b.stateLocked(); state == stateRecording || state == statePending && !b.simultaneous {
		return 0, InvalidOperation
	}
	wanted := w.Want
	w.Want = true
	c, status := d.open(q, cmdCommandBuffer, w)
	if status == Success {
		status = b.replayLocked(&c)
	}
	event, status := c.close(status)
	if status != Success {
		return 0, status
	}
	b.last = c.e
	c.e.hold()
	if !wanted {
		d.ReleaseEvent(event)
		event = 0
	}
	return event, Success
}

// replacement resolves a queue that stands in for the one of the creation.
func (b *CommandBuffer) replacement(h uintptr) (*Queue, Status) {
	q, status := b.d.liveQueue(h)
	switch {
	case status != Success:
		return nil, status
	case q.ctx != b.q.ctx:
		return nil, InvalidContext
	case q.device != b.q.device || q.props != b.q.props:
		return nil, IncompatibleQueue
	}
	return q, Success
}

// replayLocked readies the buffers, sends the commands unless the worker has them as they are, and asks for them.
func (b *CommandBuffer) replayLocked(c *command) Status {
	for i := range b.commands {
		if status := b.prepareLocked(c, &b.commands[i]); status != Success {
			return status
		}
	}
	if !b.sent {
		var data []byte
		for i := range b.commands {
			data = clwire.AppendRecorded(data, b.commands[i].message())
		}
		blob := b.d.newID()
		if c.q.w.sendBlob(blob, data) != nil || c.q.w.send(&clwire.Graph{ID: b.id, Blob: blob}, 0, 0) != nil {
			return OutOfResources
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
func (b *CommandBuffer) prepareLocked(c *command, r *recorded) Status {
	for i := range r.uses {
		u := &r.uses[i]
		if status := c.uses(u.b, u.writes); status != Success {
			return status
		}
		if id := u.b.id.Load(); id != u.id {
			renumber(r.m, u.id, id)
			u.id, b.sent = id, false
		}
	}
	k := r.kernel
	if k == nil {
		return Success
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if status := k.ensureRemote(c.q.w); status != Success {
		return status
	}
	if status := c.prepareArgsLocked(k); status != Success {
		return status
	}
	if k.dirty > 0 {
		for i := range k.args {
			k.args[i].dirty = false
		}
		k.dirty, b.sent = 0, false
	}
	return Success
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
