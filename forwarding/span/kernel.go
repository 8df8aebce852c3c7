package span

import (
	"slices"
	"strings"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/handle"
)

// Kernel is a cl_kernel of a spanning context: one of session's for each member that built its program.
type Kernel struct {
	refs    handle.Refs
	program *Program
	handle  uintptr
	inner   []uintptr // session's, by member; 0: not built there; immutable
	// memory objects; the others went to every member when they were set; guarded by Context.mu
	args map[uint32]*argument
	reach
	room [8]byte // a handle on its way to a member; guarded by Context.mu
}

// argument is a memory object that was set, and the members that know it.
type argument struct {
	b     *Buffer  // nil: NULL
	point svmPoint // where at is not 0: an address in shared virtual memory
	sent  uint64
}

// CreateKernel is clCreateKernel (§5.9.1).
func (d *Driver) CreateKernel(program uintptr, name string) (uintptr, api.Status) {
	p := d.programs.Get(program)
	if p == nil {
		return d.base.CreateKernel(program, name)
	}
	return p.newKernel(func(inner uintptr) (uintptr, api.Status) { return d.base.CreateKernel(inner, name) })
}

// newKernel makes a kernel of one of each member's. A member that did not build the program has none.
func (p *Program) newKernel(create func(inner uintptr) (uintptr, api.Status)) (uintptr, api.Status) {
	k := &Kernel{program: p, inner: make([]uintptr, len(p.inner)), args: map[uint32]*argument{}}
	made, first := 0, api.Status(cl.INVALID_PROGRAM_EXECUTABLE)
	for i, inner := range p.inner {
		if inner == 0 {
			continue
		}
		h, status := create(inner)
		switch {
		case status == cl.SUCCESS:
			k.inner[i] = h
			made++
		case status != cl.INVALID_PROGRAM_EXECUTABLE:
			first = status
		}
	}
	if made == 0 || first != cl.INVALID_PROGRAM_EXECUTABLE {
		k.dropInner()
		return 0, first
	}
	return k.show()
}

func (k *Kernel) show() (uintptr, api.Status) {
	k.refs.Set(1)
	h, err := k.program.ctx.d.kernels.Put(k)
	if err != nil {
		k.dropInner()
		return 0, cl.OUT_OF_HOST_MEMORY
	}
	k.handle = h
	k.program.refs.Retain()
	return h, cl.SUCCESS
}

func (k *Kernel) dropInner() {
	for _, h := range k.inner {
		if h != 0 {
			k.program.ctx.d.base.ReleaseKernel(h)
		}
	}
}

// home is a member that has the kernel.
func (k *Kernel) home() int {
	return slices.IndexFunc(k.inner, func(h uintptr) bool { return h != 0 })
}

// splitNames takes CL_PROGRAM_KERNEL_NAMES apart.
func splitNames(list []byte) []string {
	names := answers.Text(list)
	if names == "" {
		return nil
	}
	return strings.Split(names, ";")
}

// CreateKernels is clCreateKernelsInProgram: by the names of a member that built the program.
func (d *Driver) CreateKernels(program uintptr, count int) (handles []uintptr, total int, status api.Status) {
	p := d.programs.Get(program)
	if p == nil {
		return d.base.CreateKernels(program, count)
	}
	text, status := p.first(func(inner uintptr) ([]byte, api.Status) {
		return d.base.ProgramInfo(inner, cl.PROGRAM_KERNEL_NAMES)
	})
	if status != cl.SUCCESS {
		return nil, 0, status
	}
	create := func(name string) (uintptr, api.Status) { return d.CreateKernel(program, name) }
	return api.CreateKernels(splitNames(text), count, create, d.ReleaseKernel)
}

// CloneKernel is clCloneKernel (§5.9.1).
func (d *Driver) CloneKernel(h uintptr) (uintptr, api.Status) {
	k := d.kernels.Get(h)
	if k == nil {
		return d.base.CloneKernel(h)
	}
	k.program.ctx.mu.Lock()
	defer k.program.ctx.mu.Unlock()
	c := &Kernel{program: k.program, inner: make([]uintptr, len(k.inner)), args: map[uint32]*argument{}}
	for i, inner := range k.inner {
		if inner == 0 {
			continue
		}
		var status api.Status
		if c.inner[i], status = d.base.CloneKernel(inner); status != cl.SUCCESS {
			c.dropInner()
			return 0, status
		}
	}
	for i, a := range k.args {
		copied := *a
		c.args[i] = &copied
	}
	c.reach = k.reach
	return c.show()
}

// RetainKernel is clRetainKernel.
func (d *Driver) RetainKernel(h uintptr) api.Status {
	k := d.kernels.Get(h)
	if k == nil {
		return d.base.RetainKernel(h)
	}
	if !k.refs.Retain() {
		return cl.INVALID_KERNEL
	}
	return cl.SUCCESS
}

// ReleaseKernel is clReleaseKernel.
func (d *Driver) ReleaseKernel(h uintptr) api.Status {
	k := d.kernels.Get(h)
	if k == nil {
		return d.base.ReleaseKernel(h)
	}
	ok, last := k.refs.Release()
	if !ok {
		return cl.INVALID_KERNEL
	}
	if last {
		d.kernels.Remove(h)
		k.dropInner()
		k.program.drop()
	}
	return cl.SUCCESS
}

// SetKernelArg is clSetKernelArg (§5.9.2). A value goes to every member now; a buffer to a member with its first launch
// there, after one member has checked it.
func (d *Driver) SetKernelArg(h uintptr, index uint32, size uint64, value api.HostPtr) api.Status {
	k := d.kernels.Get(h)
	if k == nil {
		return d.base.SetKernelArg(h, index, size, value)
	}
	k.program.ctx.mu.Lock()
	defer k.program.ctx.mu.Unlock()
	home := k.home()
	var sampler *Sampler
	if size == 8 && !value.Nil() {
		use, h := d.base.ArgumentUse(k.inner[home], index), uintptr(le.Uint64(value.Bytes(0, 8)))
		if b := d.buffers.Get(h); b != nil && (use.Memory || !use.Known) {
			return k.setBufferLocked(index, b, home)
		}
		if use.Sampler || !use.Known {
			sampler = d.samplers.Get(h)
		}
	}
	if sampler != nil && sampler.ctx != k.program.ctx {
		return cl.INVALID_SAMPLER
	}
	for i, inner := range k.inner {
		if inner == 0 {
			continue
		}
		if sampler != nil {
			value = k.handleLocked(sampler.inner[i])
		}
		if status := d.base.SetKernelArg(inner, index, size, value); status != cl.SUCCESS {
			return status
		}
	}
	delete(k.args, index)
	return cl.SUCCESS
}

func (k *Kernel) setBufferLocked(index uint32, b *Buffer, home int) api.Status {
	c := k.program.ctx
	if b.ctx != c {
		return cl.INVALID_MEM_OBJECT
	}
	a := &argument{b: b}
	if at := b.firstMemberLocked(); k.inner[at] != 0 {
		home = at // it has memory there
	}
	if status := k.sendLocked(index, a, home); status != cl.SUCCESS {
		return status
	}
	k.args[index] = a
	return cl.SUCCESS
}

// firstMemberLocked is one that has the buffer already.
func (b *Buffer) firstMemberLocked() int {
	return max(slices.IndexFunc(b.inner, func(h uintptr) bool { return h != 0 }), 0)
}

// sendLocked sets a buffer as an argument at a member.
func (k *Kernel) sendLocked(index uint32, a *argument, member int) api.Status {
	inner, status := a.b.atLocked(member)
	if status != cl.SUCCESS {
		return status
	}
	switch {
	case a.point.at == 0:
		status = k.program.ctx.d.base.SetKernelArg(k.inner[member], index, 8, k.handleLocked(inner))
	case !k.program.ctx.members[member].svm:
		status = cl.INVALID_OPERATION
	default:
		status = k.program.ctx.d.base.SetKernelArgAt(k.inner[member], index, inner, a.point.at)
	}
	if status == cl.SUCCESS {
		a.sent |= 1 << member
	}
	return status
}

// handleLocked is a member's handle as an argument, until the next call.
func (k *Kernel) handleLocked(h uintptr) api.HostPtr {
	le.PutUint64(k.room[:], uint64(h))
	return api.HostBytes(k.room[:])
}

// EnqueueNDRange is clEnqueueNDRangeKernel (§5.10).
func (d *Driver) EnqueueNDRange(queue, kernel uintptr, r *api.Range, w api.Waits) (uintptr, api.Status) {
	if d.queues.Get(queue) == nil && d.kernels.Get(kernel) == nil { // mostly, and this way nothing is allocated
		return d.base.EnqueueNDRange(queue, kernel, r, w)
	}
	return d.launch(queue, kernel, w, func(queue, kernel uintptr, w api.Waits) (uintptr, api.Status) {
		return d.base.EnqueueNDRange(queue, kernel, r, w)
	})
}

// EnqueueTask is clEnqueueTask (OpenCL 1.2 §5.10).
func (d *Driver) EnqueueTask(queue, kernel uintptr, w api.Waits) (uintptr, api.Status) {
	return d.launch(queue, kernel, w, d.base.EnqueueTask)
}

func (d *Driver) launch(queue, kernel uintptr, w api.Waits,
	call func(queue, kernel uintptr, w api.Waits) (uintptr, api.Status)) (uintptr, api.Status) {
	q, k := d.queues.Get(queue), d.kernels.Get(kernel)
	switch {
	case q != nil && k == nil:
		if d.base.RetainKernel(kernel) != cl.SUCCESS {
			return 0, cl.INVALID_KERNEL
		}
		d.base.ReleaseKernel(kernel)
		return 0, cl.INVALID_CONTEXT
	case q == nil && k == nil:
		return call(queue, kernel, w)
	case q == nil:
		return call(queue, 0, w) // session knows whether the queue is one
	case k.program.ctx != q.ctx:
		return 0, cl.INVALID_CONTEXT
	case k.inner[q.member] == 0:
		return 0, cl.INVALID_PROGRAM_EXECUTABLE
	}
	c := q.ctx
	r := request{q: q, w: w}
	r.call = func(w api.Waits) (uintptr, api.Status) { return call(q.inner, k.inner[q.member], w) }
	var status api.Status
	if w.Recorded() {
		if r.uses, status = k.usesLocked(q.member); status != cl.SUCCESS {
			return 0, status
		}
		return r.recordLocked()
	}
	c.mu.Lock()
	var event uintptr
	if r.uses, status = k.usesLocked(q.member); status == cl.SUCCESS {
		event, status = r.sendLocked(w.Want)
	}
	c.mu.Unlock()
	if status != cl.SUCCESS || event == 0 {
		return 0, status
	}
	return c.newEvent(event, q.member, q, 0)
}

// usesLocked readies the kernel's buffers at a member. The caller holds Context.mu.
func (k *Kernel) usesLocked(member int) ([]use, api.Status) {
	uses := make([]use, 0, len(k.args))
	for index, a := range k.args {
		if !a.b.refs.Alive() {
			return nil, cl.INVALID_KERNEL_ARGS // released since it was set
		}
		if a.sent>>member&1 == 0 {
			if status := k.sendLocked(index, a, member); status != cl.SUCCESS {
				return nil, status
			}
		}
		if a.point.at != 0 {
			uses = append(uses, a.point.use())
			continue
		}
		writes := k.program.ctx.d.base.ArgumentUse(k.inner[member], index).Writes
		uses = append(uses, a.b.allOf(true, writes && a.b.flags&cl.MEM_READ_ONLY == 0))
	}
	return k.reachUsesLocked(member, uses)
}

// KernelInfo is clGetKernelInfo (§5.9.4).
func (d *Driver) KernelInfo(h uintptr, param uint32) ([]byte, api.Status) {
	k := d.kernels.Get(h)
	switch {
	case k == nil:
		return d.base.KernelInfo(h, param)
	case param == cl.KERNEL_REFERENCE_COUNT:
		return answers.U32(k.refs.Count()), cl.SUCCESS
	case param == cl.KERNEL_CONTEXT:
		return answers.Size(k.program.ctx.handle), cl.SUCCESS
	case param == cl.KERNEL_PROGRAM:
		return answers.Size(k.program.handle), cl.SUCCESS
	}
	return d.base.KernelInfo(k.inner[k.home()], param)
}

// KernelArgInfo is clGetKernelArgInfo (§5.9.4).
func (d *Driver) KernelArgInfo(h uintptr, index, param uint32) ([]byte, api.Status) {
	if k := d.kernels.Get(h); k != nil {
		h = k.inner[k.home()]
	}
	return d.base.KernelArgInfo(h, index, param)
}

// at resolves a query of a device; session refuses a device that is not the kernel's, and none where there are several.
func (k *Kernel) at(device uintptr) (uintptr, api.Status) {
	i := k.program.ctx.memberOf(device)
	if i < 0 || k.inner[i] == 0 {
		return 0, cl.INVALID_DEVICE
	}
	return k.inner[i], cl.SUCCESS
}

// KernelWorkGroupInfo is clGetKernelWorkGroupInfo (§5.9.4).
func (d *Driver) KernelWorkGroupInfo(kernel, device uintptr, param uint32) ([]byte, api.Status) {
	k := d.kernels.Get(kernel)
	if k == nil {
		return d.base.KernelWorkGroupInfo(kernel, device, param)
	}
	inner, status := k.at(device)
	if status != cl.SUCCESS {
		return nil, status
	}
	return d.base.KernelWorkGroupInfo(inner, device, param)
}

// KernelSubGroupInfo is clGetKernelSubGroupInfo (§5.9.4).
func (d *Driver) KernelSubGroupInfo(kernel, device uintptr, param uint32, input []byte) ([]byte, api.Status) {
	k := d.kernels.Get(kernel)
	if k == nil {
		return d.base.KernelSubGroupInfo(kernel, device, param, input)
	}
	inner, status := k.at(device)
	if status != cl.SUCCESS {
		return nil, status
	}
	return d.base.KernelSubGroupInfo(inner, device, param, input)
}
