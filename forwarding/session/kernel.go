package session

import (
	"bytes"
	"sync"
	"sync/atomic"

	"tendril/forwarding/clwire"
	"tendril/forwarding/session/handle"
)

// Kernel is a cl_kernel.
type Kernel struct {
	refs    handle.Refs
	d       *Driver
	handle  uintptr
	id      uint64
	program *Program
	facts   *kernelFacts

	mu         sync.Mutex
	remote     atomic.Bool
	args       []argument
	unset      int    // arguments without a value
	dirty      int    // arguments whose value differs from what was last sent
	memArgs    []int  // indices of memory arguments; rebuilt when a kind changes
	localBytes uint64 // of local-memory arguments
	last       launchClass
	lastOK     bool // last was accepted
}

// argument is one value of clSetKernelArg.
type argument struct {
	set, dirty bool
	kind       uint8
	size       uint64
	small      [16]byte
	large      []byte  // values that do not fit small
	buffer     *Buffer // of a memory argument; nil: NULL
	sampler    *Sampler
	sentID     uint64 // the buffer's number when last sent
}

func (a *argument) value() []byte {
	if a.large != nil {
		return a.large
	}
	return a.small[:a.wireBytes()]
}

func (a *argument) wireBytes() uint64 {
	if a.kind == clwire.ArgBytes {
		return a.size
	}
	return 8
}

// CreateKernel is clCreateKernel (§5.9.1).
func (d *Driver) CreateKernel(program uintptr, name string) (uintptr, Status) {
	p := d.programs.Get(program)
	if p == nil {
		return 0, InvalidProgram
	}
	for asked := false; ; asked = true {
		p.mu.Lock()
		if !p.executableLocked() {
			p.mu.Unlock()
			return 0, InvalidProgramExecutable
		}
		if facts := p.facts[name]; facts != nil || asked {
			defer p.mu.Unlock()
			if facts == nil {
				return 0, InvalidKernelName // built again meanwhile
			}
			return d.showKernelLocked(p, facts, nil)
		}
		p.mu.Unlock()
		if status := p.askFacts(name); status != Success {
			return 0, status
		}
	}
}

// CreateKernels is clCreateKernelsInProgram: count is how many handles the caller takes, 0 to ask for the number.
func (d *Driver) CreateKernels(program uintptr, count int) (handles []uintptr, total int, status Status) {
	p := d.programs.Get(program)
	if p == nil {
		return nil, 0, InvalidProgram
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.executableLocked() {
		return nil, 0, InvalidProgramExecutable
	}
	if count == 0 {
		return nil, len(p.order), Success
	}
	if count < len(p.order) {
		return nil, 0, InvalidValue
	}
	for _, name := range p.order {
		if p.facts[name] == nil { // built-in kernels: nobody has asked yet
			p.mu.Unlock()
			status := p.askFacts(name)
			p.mu.Lock()
			if status != Success || p.facts[name] == nil {
				return nil, 0, status
			}
		}
	}
	for _, name := range p.order {
		h, status := d.showKernelLocked(p, p.facts[name], nil)
		if status != Success {
			return nil, 0, status
		}
		handles = append(handles, h)
	}
	return handles, len(p.order), Success
}

// showKernelLocked makes a kernel object, with the arguments of like if that is not nil.
func (d *Driver) showKernelLocked(p *Program, facts *kernelFacts, like *Kernel) (uintptr, Status) {
	k := &Kernel{d: d, id: d.newID(), program: p, facts: facts, args: make([]argument, facts.NumArgs), unset: int(facts.NumArgs)}
	k.refs.Set(1)
	if like != nil {
		k.copyArgs(like)
	}
	h, err := d.kernels.Put(k)
	if err != nil {
		return 0, OutOfHostMemory
	}
	k.handle = h
	d.traceKernel(k.id, facts.Name)
	p.kernels++
	p.refs.Retain()
	return h, Success
}

// CloneKernel is clCloneKernel (§5.9.1): the same arguments, in an object of its own.
func (d *Driver) CloneKernel(h uintptr) (uintptr, Status) {
	k := d.kernels.Get(h)
	if k == nil {
		return 0, InvalidKernel
	}
	k.program.mu.Lock()
	defer k.program.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	return d.showKernelLocked(k.program, k.facts, k)
}

func (k *Kernel) copyArgs(like *Kernel) {
	copy(k.args, like.args)
	k.unset, k.localBytes = like.unset, like.localBytes
	k.memArgs = append([]int(nil), like.memArgs...)
	for i := range k.args {
		if a := &k.args[i]; a.set {
			a.dirty = true
			a.large = bytes.Clone(a.large)
			k.dirty++
		}
	}
}

// RetainKernel is clRetainKernel.
func (d *Driver) RetainKernel(h uintptr) Status {
	if k := d.kernels.Get(h); k != nil && k.refs.Retain() {
		return Success
	}
	return InvalidKernel
}

// ReleaseKernel is clReleaseKernel.
func (d *Driver) ReleaseKernel(h uintptr) Status {
	k := d.kernels.Get(h)
	if k == nil {
		return InvalidKernel
	}
	ok, last := k.refs.Release()
	if !ok {
		return InvalidKernel
	}
	if last {
		d.kernels.Remove(k.handle)
		d.forgetTraced(k.id)
		if w := k.program.ctx.bound(); w != nil && k.remote.Load() {
			w.tell(&clwire.Release{ID: k.id})
		}
		k.program.mu.Lock()
		k.program.kernels--
		k.program.mu.Unlock()
		d.releaseProgram(k.program)
	}
	return Success
}

// ensureRemote makes the kernel known to the worker. The caller holds k.mu.
func (k *Kernel) ensureRemote(w *worker) Status {
	if k.remote.Load() {
		return Success
	}
	if w.send(&clwire.CreateKernel{ID: k.id, Program: k.program.id, Name: k.facts.Name}, 0, 0) != nil {
		return OutOfResources
	}
	k.remote.Store(true)
	return Success
}

// SetKernelArg is clSetKernelArg (§5.9.2).
func (d *Driver) SetKernelArg(h uintptr, index uint32, size uint64, value HostPtr) Status {
	k := d.kernels.Get(h)
	if k == nil {
		return InvalidKernel
	}
	if index >= uint32(len(k.args)) {
		return InvalidArgIndex
	}
	var a argument
	if status := k.classify(int(index), size, value, &a); status != Success {
		return status
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.storeLocked(int(index), &a)
	return Success
}

// maxArgBytes keeps an argument within a record; drivers take far less (CL_DEVICE_MAX_PARAMETER_SIZE).
const maxArgBytes = 32 << 10

// classify turns what the program passed into an argument, or says what is wrong with it.
func (k *Kernel) classify(index int, size uint64, value HostPtr, a *argument) Status {
	a.set, a.dirty, a.size = true, true, size
	known := k.facts.sizes[index]
	switch {
	case known.other:
		return InvalidArgValue
	case known.local:
		return a.toLocal(size, value)
	case known.image:
		return k.toImage(index, known, size, value, a)
	case known.sampler:
		return k.toSampler(size, value, a)
	case known.global:
		if status := k.toBuffer(size, value, a); status != Success {
			return status
		}
		if a.buffer != nil && a.buffer.isObject() && !known.reads && !known.guessed {
			return InvalidArgValue // the kernel may write through it
		}
		return Success
	case known.guessed && size == 8 && !value.Nil() && (known.bytes == 8 || known.bytes == 0 && !known.value):
		if status, handle := k.toHandle(value, a); handle {
			return status
		}
	case known.bytes != 0 && !known.guessed:
		return a.toValue(known.bytes, size, value)
	}
	return k.toUnknown(index, known.bytes, size, value, a)
}

// toUnknown takes an argument that the driver alone can judge, unless it is as many bytes as the driver is known to take.
func (k *Kernel) toUnknown(index int, fits, size uint64, value HostPtr, a *argument) Status {
	if value.Nil() {
		a.kind = clwire.ArgLocal
		le.PutUint64(a.small[:], size)
		return k.askArg(index, a)
	}
	if size == 0 || size > maxArgBytes {
		return InvalidArgSize
	}
	a.take(size, value)
	if size == fits {
		return Success
	}
	return k.askArg(index, a)
}

// toHandle takes 8 bytes for a handle where the driver does not tell what they are and they can be one: ours come from an
// address range of our own.
func (k *Kernel) toHandle(value HostPtr, a *argument) (status Status, handle bool) {
	h := uintptr(le.Uint64(value.bytes(0, 8)))
	switch {
	case k.d.buffers.Get(h) != nil:
		return k.toBuffer(8, value, a), true
	case k.d.samplers.Get(h) != nil:
		return k.toSampler(8, value, a), true
	}
	return InvalidMemObject, k.d.wasHandle(h) // the driver would follow it
}

func (a *argument) toLocal(size uint64, value HostPtr) Status {
	if !value.Nil() {
		return InvalidArgValue
	}
	if size == 0 {
		return InvalidArgSize
	}
	a.kind = clwire.ArgLocal
	le.PutUint64(a.small[:], size)
	return Success
}

func (a *argument) toValue(want, size uint64, value HostPtr) Status {
	if value.Nil() {
		return InvalidArgValue
	}
	if size != want {
		return InvalidArgSize
	}
	a.take(size, value)
	return Success
}

func (a *argument) take(size uint64, value HostPtr) {
	a.kind = clwire.ArgBytes
	if size <= uint64(len(a.small)) {
		copy(a.small[:], value.bytes(0, size))
		return
	}
	a.large = bytes.Clone(value.bytes(0, size))
}

func (k *Kernel) toBuffer(size uint64, value HostPtr, a *argument) Status {
	if size != 8 {
		return InvalidArgSize
	}
	a.kind = clwire.ArgMem
	if value.Nil() {
		return Success
	}
	h := uintptr(le.Uint64(value.bytes(0, 8)))
	if h == 0 {
		return Success
	}
	a.buffer = k.d.buffers.Get(h)
	if a.buffer == nil {
		return InvalidMemObject
	}
	if a.buffer.ctx != k.program.ctx {
		return InvalidMemObject
	}
	le.PutUint64(a.small[:], a.buffer.id.Load())
	return Success
}

// isObject says whether a launch must look after what the argument names.
func (a *argument) isObject() bool { return a.kind == clwire.ArgMem || a.kind == clwire.ArgSampler }

// askArg puts a size that only the driver can judge to it, once for each (index, kind, size).
func (k *Kernel) askArg(index int, a *argument) Status {
	class := argClass{uint16(index), a.kind, a.size}
	k.facts.mu.Lock()
	status, known := k.facts.args[class]
	k.facts.mu.Unlock()
	if known {
		return status
	}
	w, status := k.program.ctx.worker()
	if status != Success {
		return status
	}
	k.mu.Lock()
	status = k.ensureRemote(w)
	k.mu.Unlock()
	if status != Success {
		return status
	}
	// A copy: the argument itself stays on the caller's stack, which spares the hot path an allocation.
	arg := clwire.Arg{Index: uint16(index), Kind: a.kind, Data: bytes.Clone(a.value())}
	c, err := w.ask(&clwire.SetArg{Kernel: k.id, Arg: arg})
	if err != nil {
		return OutOfResources
	}
	k.facts.mu.Lock()
	defer k.facts.mu.Unlock()
	k.facts.args[class] = c.status
	return c.status
}

// storeLocked takes a new value over; one that equals what was sent last does not travel again.
func (k *Kernel) storeLocked(index int, a *argument) {
	old := &k.args[index]
	if old.set && !old.dirty && old.kind == a.kind && old.size == a.size && old.buffer == a.buffer && old.sampler == a.sampler && bytes.Equal(old.value(), a.value()) {
		return
	}
	if !old.set {
		k.unset--
	}
	if !old.dirty {
		k.dirty++
	}
	if old.set && old.kind == clwire.ArgLocal {
		k.localBytes -= le.Uint64(old.small[:])
	}
	if a.kind == clwire.ArgLocal {
		k.localBytes += le.Uint64(a.small[:])
	}
	moved := (old.set && old.isObject()) != a.isObject()
	*old = *a
	if moved {
		k.memArgs = k.memArgs[:0]
		for i := range k.args {
			if k.args[i].set && k.args[i].isObject() {
				k.memArgs = append(k.memArgs, i)
			}
		}
	}
}
