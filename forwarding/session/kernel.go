package session

import (
	"bytes"
	"sync"
	"sync/atomic"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/handle"
	"tendril/forwarding/session/kernelargs"
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

	mu     sync.Mutex
	remote atomic.Bool
	args   kernelargs.Table // its objects are *Buffer and *Sampler
	last   kernelfacts.LaunchClass
	lastOK bool // last was accepted
	reach       // what launches reach without an argument
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
		facts, round, status := p.builds.Attach(name)
		if status != cl.SUCCESS {
			return 0, status
		}
		if facts != nil {
			return d.showKernel(newKernel(p, facts))
		}
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
	if status != cl.SUCCESS {
		return nil, 0, status
	}
	create := func(name string) (uintptr, api.Status) { return d.createKernel(p, name) }
	return api.CreateKernels(names, count, create, d.ReleaseKernel)
}

// newKernel makes a kernel object without arguments, which its program's builds have counted.
func newKernel(p *Program, facts *kernelfacts.Facts) *Kernel {
	k := &Kernel{d: p.d, id: p.d.newID(), program: p, facts: facts, args: kernelargs.New(facts.NumArgs)}
	k.refs.Set(1)
	p.d.traceKernel(k.id, facts.Name)
	p.refs.Retain()
	return k
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
	k.program.builds.AttachClone()
	c := newKernel(k.program, k.facts)
	k.mu.Lock()
	defer k.mu.Unlock()
	c.args, c.reach = k.args.Clone(), reach{points: k.points, dirty: k.points != nil}
	return c
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
	k.program.builds.Detach()
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
	if index >= uint32(k.args.Len()) {
		return cl.INVALID_ARG_INDEX
	}
	var a kernelargs.Value
	if status := k.classify(int(index), size, value, &a); status != cl.SUCCESS {
		return status
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.args.Set(int(index), &a)
	return cl.SUCCESS
}

// maxArgBytes keeps an argument within a record; drivers take far less (CL_DEVICE_MAX_PARAMETER_SIZE).
const maxArgBytes = 32 << 10

// classify turns what the program passed into an argument, or says what is wrong with it.
func (k *Kernel) classify(index int, size uint64, value api.HostPtr, a *kernelargs.Value) api.Status {
	known := k.facts.Sizes[index]
	switch {
	case known.Other:
		return cl.INVALID_ARG_VALUE
	case known.Local:
		return toLocal(size, value, a)
	case known.Image:
		return k.toImage(known, size, value, a)
	case known.Sampler:
		return k.toSampler(size, value, a)
	case known.Global:
		b, status := k.toBuffer(size, value, a)
		if status == cl.SUCCESS && b != nil && b.isSealed() && !known.Reads && !known.Guessed {
			return cl.INVALID_ARG_VALUE // the kernel may write through it
		}
		return status
	case known.Guessed && size == 8 && !value.Nil() && (known.Bytes == 8 || known.Bytes == 0 && !known.Value):
		if status, handle := k.toHandle(value, a); handle {
			return status
		}
	case known.Bytes != 0 && !known.Guessed:
		return toValue(known.Bytes, size, value, a)
	}
	return k.toUnknown(index, known.Bytes, size, value, a)
}

// toUnknown takes an argument that the driver alone can judge, unless it is as many bytes as the driver is known to
// take.
func (k *Kernel) toUnknown(index int, fits, size uint64, value api.HostPtr, a *kernelargs.Value) api.Status {
	if value.Nil() {
		a.SetLocal(size)
		return k.askArg(index, a)
	}
	if size == 0 || size > maxArgBytes {
		return cl.INVALID_ARG_SIZE
	}
	a.SetBytes(value.Bytes(0, size))
	if size == fits {
		return cl.SUCCESS
	}
	return k.askArg(index, a)
}

// toHandle takes 8 bytes for a handle where the driver does not tell what they are and they can be one: ours come from
// an address range of our own.
func (k *Kernel) toHandle(value api.HostPtr, a *kernelargs.Value) (status api.Status, handle bool) {
	h := uintptr(le.Uint64(value.Bytes(0, 8)))
	switch {
	case k.d.buffers.Get(h) != nil:
		_, status = k.toBuffer(8, value, a)
		return status, true
	case k.d.samplers.Get(h) != nil:
		return k.toSampler(8, value, a), true
	}
	return cl.INVALID_MEM_OBJECT, k.d.wasHandle(h) // the driver would follow it
}

func toLocal(size uint64, value api.HostPtr, a *kernelargs.Value) api.Status {
	if !value.Nil() {
		return cl.INVALID_ARG_VALUE
	}
	if size == 0 {
		return cl.INVALID_ARG_SIZE
	}
	a.SetLocal(size)
	return cl.SUCCESS
}

func toValue(want, size uint64, value api.HostPtr, a *kernelargs.Value) api.Status {
	if value.Nil() {
		return cl.INVALID_ARG_VALUE
	}
	if size != want {
		return cl.INVALID_ARG_SIZE
	}
	a.SetBytes(value.Bytes(0, size))
	return cl.SUCCESS
}

// toBuffer makes an argument of a buffer, which it returns; nil for NULL.
func (k *Kernel) toBuffer(size uint64, value api.HostPtr, a *kernelargs.Value) (*Buffer, api.Status) {
	if size != 8 {
		return nil, cl.INVALID_ARG_SIZE
	}
	var h uintptr
	if !value.Nil() {
		h = uintptr(le.Uint64(value.Bytes(0, 8)))
	}
	if h == 0 {
		a.SetObject(clwire.ArgMem, nil)
		return nil, cl.SUCCESS
	}
	b := k.d.buffers.Get(h)
	if b == nil || b.ctx != k.program.ctx {
		return nil, cl.INVALID_MEM_OBJECT
	}
	a.SetObject(clwire.ArgMem, b)
	return b, cl.SUCCESS
}

// askArg puts a size that only the driver can judge to it, once for each (index, kind, size).
func (k *Kernel) askArg(index int, a *kernelargs.Value) api.Status {
	class := kernelfacts.ArgClass{Index: uint16(index), Kind: a.Kind(), Size: a.Size()}
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
	arg := clwire.Arg{Index: uint16(index), Kind: a.Kind(), Data: bytes.Clone(a.Wire())}
	c, err := w.Ask(&clwire.SetArg{Kernel: k.id, Arg: arg})
	if err != nil {
		return cl.OUT_OF_RESOURCES
	}
	k.facts.RememberArg(class, api.Status(c.Status))
	return api.Status(c.Status)
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
