package span

import (
	"slices"

	"tendril/forwarding/session"
	"tendril/forwarding/session/handle"
)

// Kernel is a cl_kernel of a spanning context: one of session's for each member that built its program.
type Kernel struct {
	refs    handle.Refs
	program *Program
	handle  uintptr
	inner   []uintptr            // session's, by member; 0: not built there; immutable
	args    map[uint32]*argument // memory objects; the others went to every member when they were set; guarded by Context.mu
}

// argument is a memory object that was set, and the members that know it.
type argument struct {
	b    *Buffer // nil: NULL
	sent uint64
}

// Parameters of clGetKernelInfo.
const (
	kernelRefs    uint32 = 0x1192
	kernelContext uint32 = 0x1193
	kernelProgram uint32 = 0x1194
)

// CreateKernel is clCreateKernel (§5.9.1).
func (d *Driver) CreateKernel(program uintptr, name string) (uintptr, session.Status) {
	p := d.programs.Get(program)
	if p == nil {
		return d.Driver.CreateKernel(program, name)
	}
	return p.newKernel(func(inner uintptr) (uintptr, session.Status) { return d.Driver.CreateKernel(inner, name) })
}

// newKernel makes a kernel of one of each member's. A member that did not build the program has none.
func (p *Program) newKernel(create func(inner uintptr) (uintptr, session.Status)) (uintptr, session.Status) {
	k := &Kernel{program: p, inner: make([]uintptr, len(p.inner)), args: map[uint32]*argument{}}
	made, first := 0, session.InvalidProgramExecutable
	for i, inner := range p.inner {
		if inner == 0 {
			continue
		}
		h, status := create(inner)
		switch {
		case status == session.Success:
			k.inner[i] = h
			made++
		case status != session.InvalidProgramExecutable:
			first = status
		}
	}
	if made == 0 || first != session.InvalidProgramExecutable {
		k.dropInner()
		return 0, first
	}
	return k.show()
}

func (k *Kernel) show() (uintptr, session.Status) {
	k.refs.Set(1)
	h, err := k.program.ctx.d.kernels.Put(k)
	if err != nil {
		k.dropInner()
		return 0, session.OutOfHostMemory
	}
	k.handle = h
	k.program.refs.Retain()
	return h, session.Success
}

func (k *Kernel) dropInner() {
	for _, h := range k.inner {
		if h != 0 {
			k.program.ctx.d.Driver.ReleaseKernel(h)
		}
	}
}

// home is a member that has the kernel.
func (k *Kernel) home() int {
	return slices.IndexFunc(k.inner, func(h uintptr) bool { return h != 0 })
}

// CreateKernels is clCreateKernelsInProgram: by the names of a member that built the program.
func (d *Driver) CreateKernels(program uintptr, count int) (handles []uintptr, total int, status session.Status) {
	p := d.programs.Get(program)
	if p == nil {
		return d.Driver.CreateKernels(program, count)
	}
	const kernelNames = 0x1168
	text, status := p.first(func(inner uintptr) ([]byte, session.Status) { return d.Driver.ProgramInfo(inner, kernelNames) })
	if status != session.Success {
		return nil, 0, status
	}
	names := splitNames(text)
	switch {
	case count == 0:
		return nil, len(names), session.Success
	case count < len(names):
		return nil, 0, session.InvalidValue
	}
	for _, name := range names {
		h, status := d.CreateKernel(program, name)
		if status != session.Success {
			for _, made := range handles {
				d.ReleaseKernel(made)
			}
			return nil, 0, status
		}
		handles = append(handles, h)
	}
	return handles, len(names), session.Success
}

// CloneKernel is clCloneKernel (§5.9.1).
func (d *Driver) CloneKernel(h uintptr) (uintptr, session.Status) {
	k := d.kernels.Get(h)
	if k == nil {
		return d.Driver.CloneKernel(h)
	}
	k.program.ctx.mu.Lock()
	defer k.program.ctx.mu.Unlock()
	c := &Kernel{program: k.program, inner: make([]uintptr, len(k.inner)), args: map[uint32]*argument{}}
	for i, inner := range k.inner {
		if inner == 0 {
			continue
		}
		var status session.Status
		if c.inner[i], status = d.Driver.CloneKernel(inner); status != session.Success {
			c.dropInner()
			return 0, status
		}
	}
	for i, a := range k.args {
		copied := *a
		c.args[i] = &copied
	}
	return c.show()
}

// RetainKernel is clRetainKernel.
func (d *Driver) RetainKernel(h uintptr) session.Status {
	k := d.kernels.Get(h)
	if k == nil {
		return d.Driver.RetainKernel(h)
	}
	if !k.refs.Retain() {
		return session.InvalidKernel
	}
	return session.Success
}

// ReleaseKernel is clReleaseKernel.
func (d *Driver) ReleaseKernel(h uintptr) session.Status {
	k := d.kernels.Get(h)
	if k == nil {
		return d.Driver.ReleaseKernel(h)
	}
	ok, last := k.refs.Release()
	if !ok {
		return session.InvalidKernel
	}
	if last {
		d.kernels.Remove(h)
		k.dropInner()
		k.program.drop()
	}
	return session.Success
}

// SetKernelArg is clSetKernelArg (§5.9.2). A value goes to every member now; a buffer to a member with its first launch
// there, after one member has checked it.
func (d *Driver) SetKernelArg(h uintptr, index uint32, size uint64, value session.HostPtr) session.Status {
	k := d.kernels.Get(h)
	if k == nil {
		return d.Driver.SetKernelArg(h, index, size, value)
	}
	k.program.ctx.mu.Lock()
	defer k.program.ctx.mu.Unlock()
	home := k.home()
	var sampler *Sampler
	if size == 8 && !value.Nil() {
		use, h := d.ArgumentUse(k.inner[home], index), uintptr(le.Uint64(value.Bytes(0, 8)))
		if b := d.buffers.Get(h); b != nil && (use.Memory || !use.Known) {
			return k.setBufferLocked(index, b, home)
		}
		if use.Sampler || !use.Known {
			sampler = d.samplers.Get(h)
		}
	}
	if sampler != nil && sampler.ctx != k.program.ctx {
		return session.InvalidSampler
	}
	var room [8]byte
	for i, inner := range k.inner {
		if inner == 0 {
			continue
		}
		if sampler != nil {
			value = handlePointer(&room, sampler.inner[i])
		}
		if status := d.Driver.SetKernelArg(inner, index, size, value); status != session.Success {
			return status
		}
	}
	delete(k.args, index)
	return session.Success
}

func (k *Kernel) setBufferLocked(index uint32, b *Buffer, home int) session.Status {
	c := k.program.ctx
	if b.ctx != c {
		return session.InvalidMemObject
	}
	a := &argument{b: b}
	if at := b.firstMemberLocked(); k.inner[at] != 0 {
		home = at // it has memory there
	}
	if status := k.sendLocked(index, a, home); status != session.Success {
		return status
	}
	k.args[index] = a
	return session.Success
}

// firstMemberLocked is one that has the buffer already.
func (b *Buffer) firstMemberLocked() int {
	return max(slices.IndexFunc(b.inner, func(h uintptr) bool { return h != 0 }), 0)
}

// sendLocked sets a buffer as an argument at a member.
func (k *Kernel) sendLocked(index uint32, a *argument, member int) session.Status {
	inner, status := a.b.atLocked(member)
	if status != session.Success {
		return status
	}
	var room [8]byte
	status = k.program.ctx.d.Driver.SetKernelArg(k.inner[member], index, 8, handlePointer(&room, inner))
	if status == session.Success {
		a.sent |= 1 << member
	}
	return status
}

// EnqueueNDRange is clEnqueueNDRangeKernel (§5.10).
func (d *Driver) EnqueueNDRange(queue, kernel uintptr, r *session.Range, w session.Waits) (uintptr, session.Status) {
	return d.launch(queue, kernel, w, func(queue, kernel uintptr, w session.Waits) (uintptr, session.Status) {
		return d.Driver.EnqueueNDRange(queue, kernel, r, w)
	})
}

// EnqueueTask is clEnqueueTask (OpenCL 1.2 §5.10).
func (d *Driver) EnqueueTask(queue, kernel uintptr, w session.Waits) (uintptr, session.Status) {
	return d.launch(queue, kernel, w, d.Driver.EnqueueTask)
}

func (d *Driver) launch(queue, kernel uintptr, w session.Waits, call func(queue, kernel uintptr, w session.Waits) (uintptr, session.Status)) (uintptr, session.Status) {
	q, k := d.queues.Get(queue), d.kernels.Get(kernel)
	switch {
	case q != nil && k == nil:
		if d.Driver.RetainKernel(kernel) != session.Success {
			return 0, session.InvalidKernel
		}
		d.Driver.ReleaseKernel(kernel)
		return 0, session.InvalidContext
	case q == nil && k == nil:
		return call(queue, kernel, w)
	case q == nil:
		return call(queue, 0, w) // session knows whether the queue is one
	case k.program.ctx != q.ctx:
		return 0, session.InvalidContext
	case k.inner[q.member] == 0:
		return 0, session.InvalidProgramExecutable
	}
	c := q.ctx
	r := request{q: q, w: w}
	r.call = func(w session.Waits) (uintptr, session.Status) { return call(q.inner, k.inner[q.member], w) }
	var status session.Status
	if w.Recorded() {
		if r.uses, status = k.usesLocked(q.member); status != session.Success {
			return 0, status
		}
		return r.recordLocked()
	}
	c.mu.Lock()
	var event uintptr
	if r.uses, status = k.usesLocked(q.member); status == session.Success {
		event, status = r.sendLocked(w.Want)
	}
	c.mu.Unlock()
	if status != session.Success || event == 0 {
		return 0, status
	}
	return c.newEvent(event, q.member, q, 0)
}

// usesLocked readies the kernel's buffers at a member. The caller holds Context.mu.
func (k *Kernel) usesLocked(member int) ([]use, session.Status) {
	uses := make([]use, 0, len(k.args))
	for index, a := range k.args {
		if !a.b.refs.Alive() {
			return nil, session.InvalidKernelArgs // released since it was set
		}
		if a.sent>>member&1 == 0 {
			if status := k.sendLocked(index, a, member); status != session.Success {
				return nil, status
			}
		}
		writes := k.program.ctx.d.ArgumentUse(k.inner[member], index).Writes
		uses = append(uses, a.b.allOf(true, writes && a.b.flags&memReadOnly == 0))
	}
	return uses, session.Success
}

// KernelInfo is clGetKernelInfo (§5.9.4).
func (d *Driver) KernelInfo(h uintptr, param uint32) ([]byte, session.Status) {
	k := d.kernels.Get(h)
	switch {
	case k == nil:
		return d.Driver.KernelInfo(h, param)
	case param == kernelRefs:
		return infoU32(k.refs.Count()), session.Success
	case param == kernelContext:
		return infoHandle(k.program.ctx.handle), session.Success
	case param == kernelProgram:
		return infoHandle(k.program.handle), session.Success
	}
	return d.Driver.KernelInfo(k.inner[k.home()], param)
}

// KernelArgInfo is clGetKernelArgInfo (§5.9.4).
func (d *Driver) KernelArgInfo(h uintptr, index, param uint32) ([]byte, session.Status) {
	if k := d.kernels.Get(h); k != nil {
		h = k.inner[k.home()]
	}
	return d.Driver.KernelArgInfo(h, index, param)
}

// at resolves a query of a device; session refuses a device that is not the kernel's, and none where there are several.
func (k *Kernel) at(device uintptr) (uintptr, session.Status) {
	i := k.program.ctx.memberOf(device)
	if i < 0 || k.inner[i] == 0 {
		return 0, session.InvalidDevice
	}
	return k.inner[i], session.Success
}

// KernelWorkGroupInfo is clGetKernelWorkGroupInfo (§5.9.4).
func (d *Driver) KernelWorkGroupInfo(kernel, device uintptr, param uint32) ([]byte, session.Status) {
	k := d.kernels.Get(kernel)
	if k == nil {
		return d.Driver.KernelWorkGroupInfo(kernel, device, param)
	}
	inner, status := k.at(device)
	if status != session.Success {
		return nil, status
	}
	return d.Driver.KernelWorkGroupInfo(inner, device, param)
}

// KernelSubGroupInfo is clGetKernelSubGroupInfo (§5.9.4).
func (d *Driver) KernelSubGroupInfo(kernel, device uintptr, param uint32, input []byte) ([]byte, session.Status) {
	k := d.kernels.Get(kernel)
	if k == nil {
		return d.Driver.KernelSubGroupInfo(kernel, device, param, input)
	}
	inner, status := k.at(device)
	if status != session.Success {
		return nil, status
	}
	return d.Driver.KernelSubGroupInfo(inner, device, param, input)
}
