package session

import (
	"bytes"
	"sync"
	"sync/atomic"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/handle"
	"tendril/forwarding/session/kernelfacts"
)

// Kernel is a cl_kernel.
type Kernel struct {
	refs    handle.Refs
	d       *Driver
	handle  uintptr
	id      uint64
	program *Program
	facts   *kernelfacts.Facts

	mu         sync.Mutex
	remote     atomic.Bool
	args       []argument
	unset      int    // arguments without a value
	dirty      int    // arguments whose value differs from what was last sent
	memArgs    []int  // indices of memory arguments; rebuilt when a kind changes
	localBytes uint64 // of local-memory arguments
	last       kernelfacts.LaunchClass
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
func (d *Driver) CreateKernel(program uintptr, name string) (uintptr, api.Status) {
	p := d.programs.Get(program)
	if p == nil {
		return 0, cl.INVALID_PROGRAM
	}
	return d.createKernel(p, name)
}

// createKernel asks the driver for a kernel of which nothing is known: it may be there all the same.
func (d *Driver) createKernel(p *Program, name string) (uintptr, api.Status) {
	for {
		p.mu.Lock()
		if !p.executableLocked() {
			p.mu.Unlock()
			return 0, cl.INVALID_PROGRAM_EXECUTABLE
		}
		if facts := p.facts[name]; facts != nil {
			k := newKernel(p, facts)
			k.attachLocked()
			p.mu.Unlock()
			return d.showKernel(k)
		}
		round := p.round
		p.mu.Unlock()
		if status := p.askFacts(name, round); status != cl.SUCCESS {
			return 0, status
		}
	}
}

// CreateKernels is clCreateKernelsInProgram: count is how many handles the caller takes, 0 to ask for the number.
func (d *Driver) CreateKernels(program uintptr, count int) (handles []uintptr, total int, status api.Status) {
	p := d.programs.Get(program)
	if p == nil {
		return nil, 0, cl.INVALID_PROGRAM
	}
	names, status := p.kernelNames()
	switch {
	case status != cl.SUCCESS:
		return nil, 0, status
	case count == 0:
		return nil, len(names), cl.SUCCESS
	case count < len(names):
		return nil, 0, cl.INVALID_VALUE
	}
	for _, name := range names {
		h, status := d.createKernel(p, name)
		if status != cl.SUCCESS {
			for _, made := range handles {
				d.ReleaseKernel(made)
			}
			return nil, 0, status
		}
		handles = append(handles, h)
	}
	return handles, len(names), cl.SUCCESS
}

// newKernel makes a kernel object without arguments, which its program does not count yet.
func newKernel(p *Program, facts *kernelfacts.Facts) *Kernel {
	k := &Kernel{d: p.d, id: p.d.newID(), program: p, facts: facts, args: make([]argument, facts.NumArgs),
		unset: int(facts.NumArgs)}
	k.refs.Set(1)
	return k
}

// attachLocked has the program count the kernel. The caller holds the program's mu.
func (k *Kernel) attachLocked() {
	k.d.traceKernel(k.id, k.facts.Name)
	k.program.kernels++
	k.program.refs.Retain()
}

// showKernel gives a kernel a handle.
func (d *Driver) showKernel(k *Kernel) (uintptr, api.Status) {
	h, err := d.kernels.Put(k)
	if err != nil {
		d.dropKernel(k)
		return 0, cl.OUT_OF_HOST_MEMORY
	}
	k.handle = h
	return h, cl.SUCCESS
}

// CloneKernel is clCloneKernel (§5.9.1): the same arguments, in an object of its own.
func (d *Driver) CloneKernel(h uintptr) (uintptr, api.Status) {
	k := d.kernels.Get(h)
	if k == nil {
		return 0, cl.INVALID_KERNEL
	}
	return d.showKernel(k.clone())
}

// clone makes a kernel with the same arguments that nobody else has. It is given back as the last reference is.
func (k *Kernel) clone() *Kernel {
	c := newKernel(k.program, k.facts)
	k.mu.Lock()
	c.copyArgs(k)
	k.mu.Unlock()
	k.program.mu.Lock()
	defer k.program.mu.Unlock()
	c.attachLocked()
	return c
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
func (d *Driver) RetainKernel(h uintptr) api.Status {
	if k := d.kernels.Get(h); k != nil && k.refs.Retain() {
		return cl.SUCCESS
	}
	return cl.INVALID_KERNEL
}

// ReleaseKernel is clReleaseKernel.
func (d *Driver) ReleaseKernel(h uintptr) api.Status {
	k := d.kernels.Get(h)
	if k == nil {
		return cl.INVALID_KERNEL
	}
	ok, last := k.refs.Release()
	if !ok {
		return cl.INVALID_KERNEL
	}
	if last {
		d.kernels.Remove(k.handle)
		d.dropKernel(k)
	}
	return cl.SUCCESS
}

// dropKernel ends a kernel that has no handle any more, or never had one.
func (d *Driver) dropKernel(k *Kernel) {
	d.forgetTraced(k.id)
	if w := k.program.ctx.bound(); w != nil && k.remote.Load() {
		w.SendOneWay(&clwire.Release{ID: k.id})
	}
	k.program.mu.Lock()
	k.program.kernels--
	k.program.mu.Unlock()
	d.releaseProgram(k.program)
}

// ensureRemote makes the kernel known to the worker. The caller holds k.mu.
func (k *Kernel) ensureRemote(w *worker) api.Status {
	if k.remote.Load() {
		return cl.SUCCESS
	}
	if w.Send(&clwire.CreateKernel{ID: k.id, Program: k.program.id, Name: k.facts.Name}, 0, 0) != nil {
		return cl.OUT_OF_RESOURCES
	}
	k.remote.Store(true)
	return cl.SUCCESS
}

// SetKernelArg is clSetKernelArg (§5.9.2).
func (d *Driver) SetKernelArg(h uintptr, index uint32, size uint64, value api.HostPtr) api.Status {
	k := d.kernels.Get(h)
	if k == nil {
		return cl.INVALID_KERNEL
	}
	if index >= uint32(len(k.args)) {
		return cl.INVALID_ARG_INDEX
	}
	var a argument
	if status := k.classify(int(index), size, value, &a); status != cl.SUCCESS {
		return status
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.storeLocked(int(index), &a)
	return cl.SUCCESS
}

// maxArgBytes keeps an argument within a record; drivers take far less (CL_DEVICE_MAX_PARAMETER_SIZE).
const maxArgBytes = 32 << 10

// classify turns what the program passed into an argument, or says what is wrong with it.
func (k *Kernel) classify(index int, size uint64, value api.HostPtr, a *argument) api.Status {
	a.set, a.dirty, a.size = true, true, size
	known := k.facts.Sizes[index]
	switch {
	case known.Other:
		return cl.INVALID_ARG_VALUE
	case known.Local:
		return a.toLocal(size, value)
	case known.Image:
		return k.toImage(index, known, size, value, a)
	case known.Sampler:
		return k.toSampler(size, value, a)
	case known.Global:
		if status := k.toBuffer(size, value, a); status != cl.SUCCESS {
			return status
		}
		if a.buffer != nil && a.buffer.isObject() && !known.Reads && !known.Guessed {
			return cl.INVALID_ARG_VALUE // the kernel may write through it
		}
		return cl.SUCCESS
	case known.Guessed && size == 8 && !value.Nil() && (known.Bytes == 8 || known.Bytes == 0 && !known.Value):
		if status, handle := k.toHandle(value, a); handle {
			return status
		}
	case known.Bytes != 0 && !known.Guessed:
		return a.toValue(known.Bytes, size, value)
	}
	return k.toUnknown(index, known.Bytes, size, value, a)
}

// toUnknown takes an argument that the driver alone can judge, unless it is as many bytes as the driver is known to
// take.
func (k *Kernel) toUnknown(index int, fits, size uint64, value api.HostPtr, a *argument) api.Status {
	if value.Nil() {
		a.kind = clwire.ArgLocal
		le.PutUint64(a.small[:], size)
		return k.askArg(index, a)
	}
	if size == 0 || size > maxArgBytes {
		return cl.INVALID_ARG_SIZE
	}
	a.take(size, value)
	if size == fits {
		return cl.SUCCESS
	}
	return k.askArg(index, a)
}

// toHandle takes 8 bytes for a handle where the driver does not tell what they are and they can be one: ours come from
// an address range of our own.
func (k *Kernel) toHandle(value api.HostPtr, a *argument) (status api.Status, handle bool) {
	h := uintptr(le.Uint64(value.Bytes(0, 8)))
	switch {
	case k.d.buffers.Get(h) != nil:
		return k.toBuffer(8, value, a), true
	case k.d.samplers.Get(h) != nil:
		return k.toSampler(8, value, a), true
	}
	return cl.INVALID_MEM_OBJECT, k.d.wasHandle(h) // the driver would follow it
}

func (a *argument) toLocal(size uint64, value api.HostPtr) api.Status {
	if !value.Nil() {
		return cl.INVALID_ARG_VALUE
	}
	if size == 0 {
		return cl.INVALID_ARG_SIZE
	}
	a.kind = clwire.ArgLocal
	le.PutUint64(a.small[:], size)
	return cl.SUCCESS
}

func (a *argument) toValue(want, size uint64, value api.HostPtr) api.Status {
	if value.Nil() {
		return cl.INVALID_ARG_VALUE
	}
	if size != want {
		return cl.INVALID_ARG_SIZE
	}
	a.take(size, value)
	return cl.SUCCESS
}

func (a *argument) take(size uint64, value api.HostPtr) {
	a.kind = clwire.ArgBytes
	if size <= uint64(len(a.small)) {
		copy(a.small[:], value.Bytes(0, size))
		return
	}
	a.large = bytes.Clone(value.Bytes(0, size))
}

func (k *Kernel) toBuffer(size uint64, value api.HostPtr, a *argument) api.Status {
	if size != 8 {
		return cl.INVALID_ARG_SIZE
	}
	a.kind = clwire.ArgMem
	if value.Nil() {
		return cl.SUCCESS
	}
	h := uintptr(le.Uint64(value.Bytes(0, 8)))
	if h == 0 {
		return cl.SUCCESS
	}
	a.buffer = k.d.buffers.Get(h)
	if a.buffer == nil {
		return cl.INVALID_MEM_OBJECT
	}
	if a.buffer.ctx != k.program.ctx {
		return cl.INVALID_MEM_OBJECT
	}
	le.PutUint64(a.small[:], a.buffer.id.Load())
	return cl.SUCCESS
}

// isObject says whether a launch must look after what the argument names.
func (a *argument) isObject() bool { return a.kind == clwire.ArgMem || a.kind == clwire.ArgSampler }

// askArg puts a size that only the driver can judge to it, once for each (index, kind, size).
func (k *Kernel) askArg(index int, a *argument) api.Status {
	class := kernelfacts.ArgClass{Index: uint16(index), Kind: a.kind, Size: a.size}
	if status, known := k.facts.ArgVerdict(class); known {
		return status
	}
	w, status := k.program.ctx.worker()
	if status != cl.SUCCESS {
		return status
	}
	k.mu.Lock()
	status = k.ensureRemote(w)
	k.mu.Unlock()
	if status != cl.SUCCESS {
		return status
	}
	// A copy: the argument itself stays on the caller's stack, which spares the hot path an allocation.
	arg := clwire.Arg{Index: uint16(index), Kind: a.kind, Data: bytes.Clone(a.value())}
	c, err := w.Ask(&clwire.SetArg{Kernel: k.id, Arg: arg})
	if err != nil {
		return cl.OUT_OF_RESOURCES
	}
	k.facts.RememberArg(class, api.Status(c.Status))
	return api.Status(c.Status)
}

// storeLocked takes a new value over; one that equals what was sent last does not travel again.
func (k *Kernel) storeLocked(index int, a *argument) {
	old := &k.args[index]
	if old.set && !old.dirty && old.kind == a.kind && old.size == a.size && old.buffer == a.buffer &&
		old.sampler == a.sampler && bytes.Equal(old.value(), a.value()) {
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

// workGroup is what is known of the kernel on a device. A device for which nothing was built runs the code of the one
// that it is a part of (§4.3). Whether it also runs that of its own parts, or of another part of its root, the driver
// says at the first launch.
func (k *Kernel) workGroup(dev *Device) *clwire.WorkGroup {
	for of := dev; of != nil; of = of.parent() {
		if group := k.facts.WorkGroup(of.index); group != nil {
			return group
		}
	}
	for _, of := range k.program.devices {
		if of.root() == dev.root() {
			if group := k.facts.WorkGroup(of.index); group != nil {
				return group
			}
		}
	}
	return nil
}
