package session

import (
	"errors"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/kernelargs"
)

// Shared virtual memory of a context that spans (package span): a buffer at each member, at one address in all their
// workers. Package span has the program's view of it, and knows by address what lies where.

var errNotAllowed = errors.New("a member takes no such flags, size or alignment")

// SVMBuffer makes shared virtual memory as a buffer. It lies at an address that the caller holds in this process, or
// where the driver chooses. got is where; 0: something else lies there in the worker.
func (d *Driver) SVMBuffer(context, address uintptr, flags, size uint64, align uint32) (h, got uintptr, err error) {
	ctx := d.contexts.Get(context)
	if ctx == nil || !ctx.checkSVM(flags, size, align) {
		return 0, 0, errNotAllowed
	}
	w, status := ctx.worker()
	if status != cl.SUCCESS {
		return 0, 0, errNoWorker
	}
	if !w.SharesAddresses() {
		return 0, 0, errOldWorker
	}
	b := ctx.newSVM(flags, size)
	b.spans = true
	giveBack, err := b.takeSVM(w)
	if err != nil {
		return 0, 0, err
	}
	id := d.newID()
	got, err = b.askSVM(w, &clwire.CreateSVM{ID: id, Context: ctx.id, Flags: flags, Size: size,
		Address: uint64(address), Align: align})
	if err != nil || got == 0 {
		w.SendOneWay(&clwire.Release{ID: id})
		giveBack()
		return 0, 0, err
	}
	b.id.Store(id)
	b.remote.Store(w)
	if h, status = d.showBuffer(b); status != cl.SUCCESS {
		b.releaseRemote()
		return 0, 0, errNoMemory
	}
	return h, got, nil
}

// SVMPart makes a buffer of n bytes of one that SVMBuffer made, as CreateBuffer does over shared virtual memory.
func (d *Driver) SVMPart(whole uintptr, given []uint64, flags, off, n uint64) (uintptr, api.Status) {
	root := d.buffers.Get(whole)
	switch {
	case root == nil || !root.spans || off > root.size || n > root.size-off:
		return 0, cl.INVALID_MEM_OBJECT
	case len(given) > 0 && given[0] != 0:
		return 0, cl.INVALID_PROPERTY
	case n == 0 || n > root.ctx.maxAlloc():
		return 0, cl.INVALID_BUFFER_SIZE
	}
	if status := checkBufferFlags(flags); status != cl.SUCCESS {
		return 0, status
	}
	if flags == 0 {
		flags = cl.MEM_READ_WRITE
	}
	return d.bufferOverSVM(root, off, n, flags, given)
}

// SetKernelArgAt is clSetKernelArgSVMPointer (§5.9.2) with an address in a buffer that SVMBuffer made.
func (d *Driver) SetKernelArgAt(h uintptr, index uint32, buffer, address uintptr) api.Status {
	k, b := d.kernels.Get(h), d.buffers.Get(buffer)
	switch {
	case k == nil:
		return cl.INVALID_KERNEL
	case b == nil || !b.spans || b.ctx != k.program.ctx:
		return cl.INVALID_ARG_VALUE
	}
	var a kernelargs.Value
	a.SetPointer(b, uint64(address))
	return k.setPointer(index, &a)
}

// SetKernelReach has the launches of a kernel reach addresses, each in a buffer that SVMBuffer made
// (CL_KERNEL_EXEC_INFO_SVM_PTRS).
func (d *Driver) SetKernelReach(h uintptr, buffers, addresses []uintptr) api.Status {
	k := d.kernels.Get(h)
	if k == nil {
		return cl.INVALID_KERNEL
	}
	if len(buffers) > clwire.MaxSVMPointers {
		return cl.INVALID_VALUE
	}
	points := make([]svmPoint, len(buffers))
	for i, h := range buffers {
		b := d.buffers.Get(h)
		if b == nil || !b.spans || b.ctx != k.program.ctx {
			return cl.INVALID_VALUE
		}
		points[i] = svmPoint{b, uint64(addresses[i])}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reach = reach{points, true}
	return cl.SUCCESS
}

// Warn tells of what cannot be, in the log and to a context's callback.
func (d *Driver) Warn(context uintptr, text string) {
	d.cfg.Log(text)
	if ctx := d.contexts.Get(context); ctx != nil {
		ctx.notify(text)
	}
}
