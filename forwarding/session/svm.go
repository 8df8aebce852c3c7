package session

import (
	"fmt"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/fixed"
	"tendril/forwarding/session/kernelargs"
	"tendril/forwarding/session/mapped"
	"tendril/forwarding/session/svm"
	"tendril/forwarding/session/ways"
	"tendril/store/segment"
)

// Shared virtual memory (OpenCL 3.0 §5.6). An allocation is a buffer that the program has no handle of, or a part of
// one: its commands are those of a buffer, on memory that has the same address in the program and in the worker.
// docs/design/svm.md says how it gets there, and which grain is shown.

// svmPart is one allocation of a program's.
type svmPart struct {
	root   *Buffer
	off, n uint64 // bytes, in root
}

// svmCapabilities is what all devices of the context can (CL_DEVICE_SVM_CAPABILITIES).
func (c *Context) svmCapabilities() uint64 {
	all := ^uint64(0)
	for _, dev := range c.devices {
		all &= answers.Number(dev.info[cl.DEVICE_SVM_CAPABILITIES])
	}
	return all
}

// checkSVM says whether an allocation is one that the context can have.
func (c *Context) checkSVM(flags, size uint64, align uint32) bool {
	const grain = cl.MEM_SVM_FINE_GRAIN_BUFFER | cl.MEM_SVM_ATOMICS
	can := c.svmCapabilities()
	switch {
	case can == 0, flags&^(memAccess|grain) != 0, !oneOf(flags, memAccess),
		flags&cl.MEM_SVM_ATOMICS != 0 && flags&cl.MEM_SVM_FINE_GRAIN_BUFFER == 0,
		flags&cl.MEM_SVM_FINE_GRAIN_BUFFER != 0 && can&cl.DEVICE_SVM_FINE_GRAIN_BUFFER == 0,
		flags&cl.MEM_SVM_ATOMICS != 0 && can&cl.DEVICE_SVM_ATOMICS == 0,
		size == 0, size > c.maxAlloc(), size > clwire.MaxSVM, align&(align-1) != 0, align > clwire.SVMAlign,
		c.InPlace && align > clwire.SVMTypeAlign: // others' drivers judge it
		return false
	}
	return true
}

// SVMAlloc is clSVMAlloc (§5.6.1): NULL where it cannot be.
func (d *Driver) SVMAlloc(context uintptr, flags, size uint64, align uint32) api.HostPtr {
	ctx := d.contexts.Get(context)
	if ctx == nil || !ctx.checkSVM(flags, size, align) {
		return api.HostPtr{}
	}
	p, err := ctx.takeSVM(flags, size, align)
	if err != nil {
		text := fmt.Sprintf("tendril: no shared virtual memory of %d bytes: %v", size, err)
		d.cfg.Log(text)
		ctx.notify(text)
		return api.HostPtr{}
	}
	at := p.address()
	d.shared.Add(at, size, p)
	return api.NewHostPtr(at)
}

func (p *svmPart) address() uintptr { return fixed.Address(p.root.svm) + uintptr(p.off) }

// takeSVM gives an allocation memory: small ones a part of what several share.
func (c *Context) takeSVM(flags, size uint64, align uint32) (svmPart, error) {
	kind := flags &^ memAccess
	if size < svm.SmallBytes && align <= clwire.SVMTypeAlign && c.maxAlloc() >= svm.ArenaBytes {
		if root, off, ok := c.arenas.Take(kind, size); ok {
			return svmPart{root, off, size}, nil
		}
		if root, err := c.makeSVM(cl.MEM_READ_WRITE|kind, svm.ArenaBytes, 0); err == nil {
			c.arenas.Add(kind, root, size)
			return svmPart{root, 0, size}, nil
		} // there may be room for what was asked
	}
	root, err := c.makeSVM(flags, size, align)
	return svmPart{root, 0, size}, err
}

// SVMFree is clSVMFree (§5.6.1): at once; the program says that no command uses it.
func (d *Driver) SVMFree(context uintptr, ptr api.HostPtr) {
	ctx := d.contexts.Get(context)
	if ctx == nil {
		return
	}
	d.freeSVM(ctx, ptr.Address())
}

func (d *Driver) freeSVM(ctx *Context, at uintptr) {
	p, ok := d.shared.Remove(at, func(p svmPart) bool { return p.root.ctx == ctx })
	if ok && ctx.arenas.Give(p.root, p.off) {
		d.releaseBuffer(p.root)
	}
}

// svmQueue resolves the queue of a command on shared virtual memory.
func (d *Driver) svmQueue(queue uintptr) (*Queue, api.Status) {
	q, status := d.liveQueue(queue)
	if status == cl.SUCCESS && q.ctx.svmCapabilities() == 0 {
		status = cl.INVALID_OPERATION
	}
	return q, status
}

// inSVM finds n bytes of the program's memory in an allocation of the context's; off is in its root. ok false: they are
// in none.
func (c *Context) inSVM(ptr api.HostPtr, n uint64) (b *Buffer, off uint64, ok bool) {
	p, off, ok := c.d.shared.Find(ptr.Address())
	if !ok || p.root.ctx != c || off > p.n || n > p.n-off {
		return nil, 0, false
	}
	return p.root, p.off + off, true
}

// startsInSVM says whether an address is a byte of an allocation of the context's.
func (c *Context) startsInSVM(ptr api.HostPtr) bool {
	_, _, ok := c.inSVM(ptr, 1)
	return ok
}

// EnqueueSVMFree is clEnqueueSVMFree (§5.6.1). call frees, in its turn among the program's callbacks; nil: we do.
func (d *Driver) EnqueueSVMFree(queue uintptr, pointers []uintptr, call func(), w api.Waits) (uintptr, api.Status) {
	q, status := d.svmQueue(queue)
	if status != cl.SUCCESS {
		return 0, status
	}
	if len(pointers) == 0 {
		return 0, cl.INVALID_VALUE
	}
	var c command
	status = d.open(&c, q, cl.COMMAND_SVM_FREE, &w)
	if status != cl.SUCCESS {
		return c.close(status)
	}
	return c.close(d.transfers.Later(q, c.event(), c.wait, func() api.Status {
		if call != nil {
			d.callbacks.Run(call)
			return cl.SUCCESS
		}
		for _, at := range pointers {
			d.freeSVM(q.ctx, at)
		}
		return cl.SUCCESS
	}))
}

// event is the command's event as the ways see it.
func (c *command) event() ways.Event {
	if c.e == nil {
		return nil
	}
	return c.e
}

// EnqueueSVMMemcpy is clEnqueueSVMMemcpy (§5.6.1): between allocations, the program's other memory, or one and the
// other.
func (d *Driver) EnqueueSVMMemcpy(queue uintptr, blocking bool, dst, src api.HostPtr, size uint64,
	w api.Waits) (uintptr, api.Status) {
	q, status := d.svmQueue(queue)
	if status != cl.SUCCESS {
		return 0, status
	}
	if dst.Nil() || src.Nil() {
		return 0, cl.INVALID_VALUE
	}
	if size > maxHostBytes {
		return 0, cl.INVALID_VALUE
	}
	if from, to := src.Address(), dst.Address(); from < to+uintptr(size) && to < from+uintptr(size) {
		return 0, cl.MEM_COPY_OVERLAP
	}
	const kind = cl.COMMAND_SVM_MEMCPY
	from, fromOff, fromSVM := q.ctx.inSVM(src, size)
	to, toOff, toSVM := q.ctx.inSVM(dst, size)
	switch {
	case size == 0:
		return d.mark(queue, kind, w)
	case !fromSVM && q.ctx.startsInSVM(src), !toSVM && q.ctx.startsInSVM(dst):
		return 0, cl.INVALID_VALUE // beyond the allocation
	case fromSVM && toSVM:
		return d.blockOn(blocking, w, func(w api.Waits) (uintptr, api.Status) {
			return d.copy(q, kind, from, to, fromOff, toOff, size, w)
		})
	case fromSVM:
		return d.read(q, from, kind, blocking, fromOff, size, dst, w)
	case toSVM:
		return d.write(q, to, kind, blocking, toOff, size, src, w)
	}
	return d.blockOn(blocking, w, func(w api.Waits) (uintptr, api.Status) {
		var c command
		status := d.open(&c, q, kind, &w)
		if status != cl.SUCCESS {
			return c.close(status)
		}
		return c.close(d.transfers.Later(q, c.event(), c.wait, func() api.Status {
			segment.Copy(dst.Bytes(0, size), src.Bytes(0, size))
			return cl.SUCCESS
		}))
	})
}

// blockOn enqueues, and waits for the command's end if the call blocks.
func (d *Driver) blockOn(blocking bool, w api.Waits, enqueue func(api.Waits) (uintptr, api.Status)) (uintptr,
	api.Status) {
	want := w.Want
	w.Want = want || blocking
	event, status := enqueue(w)
	if status != cl.SUCCESS || !blocking {
		return event, status
	}
	status = d.WaitForEvents(1, []uintptr{event})
	if !want || status != cl.SUCCESS {
		d.ReleaseEvent(event)
		event = 0
	}
	return event, status
}

// EnqueueSVMMemFill is clEnqueueSVMMemFill (§5.6.1).
func (d *Driver) EnqueueSVMMemFill(queue uintptr, ptr, pattern api.HostPtr, patternSize, size uint64,
	w api.Waits) (uintptr, api.Status) {
	q, status := d.svmQueue(queue)
	if status != cl.SUCCESS {
		return 0, status
	}
	b, off, ok := q.ctx.inSVM(ptr, size)
	if !ok {
		return 0, cl.INVALID_VALUE
	}
	return d.fill(q, b, cl.COMMAND_SVM_MEMFILL, pattern, patternSize, off, size, w)
}

// EnqueueSVMMap is clEnqueueSVMMap (§5.6.1).
func (d *Driver) EnqueueSVMMap(queue uintptr, blocking bool, flags uint64, ptr api.HostPtr, size uint64,
	w api.Waits) (uintptr, api.Status) {
	q, status := d.svmQueue(queue)
	if status != cl.SUCCESS {
		return 0, status
	}
	b, off, ok := q.ctx.inSVM(ptr, size)
	if !ok {
		return 0, cl.INVALID_VALUE
	}
	if status := b.mapFlags(flags); status != cl.SUCCESS {
		return 0, status
	}
	_, event, status := d.mapRange(q, b, cl.COMMAND_SVM_MAP, blocking, flags, off, size, w)
	return event, status
}

// EnqueueSVMUnmap is clEnqueueSVMUnmap (§5.6.1). Memory that is not mapped stays as it is.
func (d *Driver) EnqueueSVMUnmap(queue uintptr, ptr api.HostPtr, w api.Waits) (uintptr, api.Status) {
	q, status := d.svmQueue(queue)
	if status != cl.SUCCESS {
		return 0, status
	}
	b, _, ok := q.ctx.inSVM(ptr, 0)
	if !ok {
		return 0, cl.INVALID_VALUE
	}
	if status := d.checkWaits(q.ctx, w); status != cl.SUCCESS {
		return 0, status
	}
	m, ok := b.maps.Take(ptr.Address())
	if !ok {
		m = mapped.Map{Address: ptr.Address()}
	}
	return d.unmap(q, b, cl.COMMAND_SVM_UNMAP, m, w)
}

// EnqueueSVMMigrate is clEnqueueSVMMigrateMem (§5.6.1): one worker holds all, so that it orders and moves nothing.
// sizes may be nil.
func (d *Driver) EnqueueSVMMigrate(queue uintptr, pointers []uintptr, sizes []uint64, flags uint64,
	w api.Waits) (uintptr, api.Status) {
	q, status := d.svmQueue(queue)
	if status != cl.SUCCESS {
		return 0, status
	}
	if len(pointers) == 0 || flags&^(cl.MIGRATE_MEM_OBJECT_HOST|cl.MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED) != 0 {
		return 0, cl.INVALID_VALUE
	}
	for i, at := range pointers {
		var n uint64
		if sizes != nil {
			n = sizes[i]
		}
		if _, _, ok := q.ctx.inSVM(api.NewHostPtr(at), n); !ok {
			return 0, cl.INVALID_VALUE
		}
	}
	return d.mark(queue, cl.COMMAND_SVM_MIGRATE_MEM, w)
}

// SetKernelArgSVM is clSetKernelArgSVMPointer (§5.9.2): an address in an allocation, or NULL.
func (d *Driver) SetKernelArgSVM(h uintptr, index uint32, ptr api.HostPtr) api.Status {
	k := d.kernels.Get(h)
	if k == nil {
		return cl.INVALID_KERNEL
	}
	if k.program.ctx.svmCapabilities() == 0 {
		return cl.INVALID_OPERATION
	}
	if index >= uint32(k.args.Len()) {
		return cl.INVALID_ARG_INDEX
	}
	var a kernelargs.Value
	if ptr.Nil() {
		a.SetPointer(nil, 0)
	} else if b, _, ok := k.program.ctx.inSVM(ptr, 0); ok {
		a.SetPointer(b, uint64(ptr.Address()))
	} else {
		return cl.INVALID_ARG_VALUE
	}
	return k.setPointer(index, &a)
}

// setPointer sets an argument to an address, if the kernel may take one there.
func (k *Kernel) setPointer(index uint32, a *kernelargs.Value) api.Status {
	if index >= uint32(k.args.Len()) {
		return cl.INVALID_ARG_INDEX
	}
	known := k.facts.Sizes[index]
	if may := known.Guessed && (known.Bytes == 8 || known.Bytes == 0 && !known.Value); !known.Global && !may {
		return cl.INVALID_ARG_VALUE
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.args.Set(int(index), a)
	return cl.SUCCESS
}

// reach is what a kernel's launches reach by pointers that are no arguments (CL_KERNEL_EXEC_INFO_SVM_PTRS). The
// kernel's lock guards it.
type reach struct {
	points []svmPoint // immutable
	dirty  bool       // the worker has another list
}

// svmPoint is an address in an allocation.
type svmPoint struct {
	b  *Buffer
	at uint64
}

// SetKernelExecInfo is clSetKernelExecInfo (§5.9.2), of what is forwarded.
func (d *Driver) SetKernelExecInfo(h uintptr, param uint32, value []byte) api.Status {
	k := d.kernels.Get(h)
	if k == nil {
		return cl.INVALID_KERNEL
	}
	if k.program.ctx.svmCapabilities() == 0 {
		return cl.INVALID_OPERATION
	}
	switch param {
	case cl.KERNEL_EXEC_INFO_SVM_FINE_GRAIN_SYSTEM:
		switch {
		case len(value) != 4:
			return cl.INVALID_VALUE
		case le.Uint32(value) != 0: // CL_DEVICE_SVM_CAPABILITIES says that there is none
			return cl.INVALID_OPERATION
		}
		return cl.SUCCESS
	case cl.KERNEL_EXEC_INFO_SVM_PTRS:
	default:
		return cl.INVALID_VALUE
	}
	if len(value)%8 != 0 || len(value) > 8*clwire.MaxSVMPointers {
		return cl.INVALID_VALUE
	}
	var points []svmPoint
	for ; len(value) > 0; value = value[8:] {
		at := le.Uint64(value)
		b, _, ok := k.program.ctx.inSVM(api.NewHostPtr(uintptr(at)), 0)
		if !ok {
			return cl.INVALID_VALUE
		}
		points = append(points, svmPoint{b, at})
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reach = reach{points, true}
	return cl.SUCCESS
}

// tellReach tells the worker, which knows the kernel, what a launch reaches. What was freed since is left out: the
// program says that the kernel does not use it. The caller holds k.mu.
func (k *Kernel) tellReach(w *worker) api.Status {
	if !k.dirty {
		return cl.SUCCESS
	}
	m := &clwire.SVMPointers{Kernel: k.id}
	for _, p := range k.points {
		if p.b.Alive() {
			m.Objects, m.Pointers = append(m.Objects, p.b.Number()), append(m.Pointers, p.at)
		}
	}
	if w.Send(m, 0, 0) != nil {
		return cl.OUT_OF_RESOURCES
	}
	k.dirty = false
	return cl.SUCCESS
}

// bufferOverSVM makes a buffer of n bytes of shared virtual memory, at off of its root: both are the same memory
// (§5.2.1, CL_MEM_USE_HOST_PTR).
func (d *Driver) bufferOverSVM(root *Buffer, off, n, flags uint64, given []uint64) (uintptr, api.Status) {
	b := &Buffer{d: d, ctx: root.ctx, flags: flags, size: n, given: given, parent: root, origin: off, root: root}
	if root.svm != nil {
		b.host = api.HostBytes(root.svm[off:])
	}
	b.id.Store(d.newID())
	b.refs.Set(1)
	return d.showBuffer(b)
}

// overSVM says that the program made the buffer of an address in shared virtual memory: it is nobody's sub-buffer.
func (b *Buffer) overSVM() bool { return b.parent != nil && (b.parent.svm != nil || b.parent.spans) }

// offset is where a sub-buffer begins in what it is part of, in bytes.
func (b *Buffer) offset() uint64 {
	if b.parent == nil || b.overSVM() || b.image != nil {
		return 0
	}
	return b.origin - b.parent.origin
}
