package span

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// Shared virtual memory belongs to one of session's contexts. A context that spans has none yet: clSVMAlloc answers
// NULL there, as it may (§5.6.1), and the calls that need it are refused.

// SVMAlloc is clSVMAlloc (§5.6.1).
func (d *Driver) SVMAlloc(context uintptr, flags, size uint64, align uint32) api.HostPtr {
	if d.contexts.Get(context) != nil {
		return api.HostPtr{}
	}
	return d.base.SVMAlloc(context, flags, size, align)
}

// SVMFree is clSVMFree (§5.6.1).
func (d *Driver) SVMFree(context uintptr, ptr api.HostPtr) {
	if d.contexts.Get(context) == nil {
		d.base.SVMFree(context, ptr)
	}
}

// onBase has the Base carry out a command on shared virtual memory, which no queue of a context that spans has.
func (d *Driver) onBase(queue uintptr, call func() (uintptr, api.Status)) (uintptr, api.Status) {
	if d.queues.Get(queue) != nil {
		return 0, cl.INVALID_OPERATION
	}
	return call()
}

// EnqueueSVMFree is clEnqueueSVMFree (§5.6.1).
func (d *Driver) EnqueueSVMFree(queue uintptr, pointers []uintptr, call func(), w api.Waits) (uintptr, api.Status) {
	return d.onBase(queue, func() (uintptr, api.Status) { return d.base.EnqueueSVMFree(queue, pointers, call, w) })
}

// EnqueueSVMMemcpy is clEnqueueSVMMemcpy (§5.6.1).
func (d *Driver) EnqueueSVMMemcpy(queue uintptr, blocking bool, dst, src api.HostPtr, size uint64,
	w api.Waits) (uintptr, api.Status) {
	return d.onBase(queue, func() (uintptr, api.Status) {
		return d.base.EnqueueSVMMemcpy(queue, blocking, dst, src, size, w)
	})
}

// EnqueueSVMMemFill is clEnqueueSVMMemFill (§5.6.1).
func (d *Driver) EnqueueSVMMemFill(queue uintptr, ptr, pattern api.HostPtr, patternSize, size uint64,
	w api.Waits) (uintptr, api.Status) {
	return d.onBase(queue, func() (uintptr, api.Status) {
		return d.base.EnqueueSVMMemFill(queue, ptr, pattern, patternSize, size, w)
	})
}

// EnqueueSVMMap is clEnqueueSVMMap (§5.6.1).
func (d *Driver) EnqueueSVMMap(queue uintptr, blocking bool, flags uint64, ptr api.HostPtr, size uint64,
	w api.Waits) (uintptr, api.Status) {
	return d.onBase(queue, func() (uintptr, api.Status) {
		return d.base.EnqueueSVMMap(queue, blocking, flags, ptr, size, w)
	})
}

// EnqueueSVMUnmap is clEnqueueSVMUnmap (§5.6.1).
func (d *Driver) EnqueueSVMUnmap(queue uintptr, ptr api.HostPtr, w api.Waits) (uintptr, api.Status) {
	return d.onBase(queue, func() (uintptr, api.Status) { return d.base.EnqueueSVMUnmap(queue, ptr, w) })
}

// EnqueueSVMMigrate is clEnqueueSVMMigrateMem (§5.6.1).
func (d *Driver) EnqueueSVMMigrate(queue uintptr, pointers []uintptr, sizes []uint64, flags uint64,
	w api.Waits) (uintptr, api.Status) {
	return d.onBase(queue, func() (uintptr, api.Status) {
		return d.base.EnqueueSVMMigrate(queue, pointers, sizes, flags, w)
	})
}

// SetKernelArgSVM is clSetKernelArgSVMPointer (§5.9.2).
func (d *Driver) SetKernelArgSVM(kernel uintptr, index uint32, ptr api.HostPtr) api.Status {
	if d.kernels.Get(kernel) != nil {
		return cl.INVALID_OPERATION
	}
	return d.base.SetKernelArgSVM(kernel, index, ptr)
}

// SetKernelExecInfo is clSetKernelExecInfo (§5.9.2).
func (d *Driver) SetKernelExecInfo(kernel uintptr, param uint32, value []byte) api.Status {
	if d.kernels.Get(kernel) != nil {
		return cl.INVALID_OPERATION
	}
	return d.base.SetKernelExecInfo(kernel, param, value)
}
