package main

// #include "driver.h"
import "C"

import (
	"runtime"
	"slices"
	"unsafe"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

//export tdlSVMAlloc
func tdlSVMAlloc(context C.uintptr_t, flags C.cl_ulong, size C.size_t, align C.cl_uint) (at C.uintptr_t) {
	defer rescueHandle(0)
	return C.uintptr_t(driver().SVMAlloc(uintptr(context), uint64(flags), uint64(size), uint32(align)).Address())
}

//export tdlSVMFree
func tdlSVMFree(context, ptr C.uintptr_t) {
	defer rescueHandle(0)
	driver().SVMFree(uintptr(context), api.NewHostPtr(uintptr(ptr)))
}

//export tdlEnqueueSVMFree
func tdlEnqueueSVMFree(queue C.uintptr_t, n C.cl_uint, pointers, free, data C.uintptr_t,
	w *C.tdl_waits) (code C.cl_int) {
	defer rescue(&code)
	if (n == 0) != (pointers == 0) {
		return C.CL_INVALID_VALUE
	}
	list := slices.Clone(array[uintptr](uintptr(pointers), uint32(n)))
	var call func()
	if free != 0 {
		call = func() {
			C.tdl_call_svm_free(free, queue, n, C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(list)))), data)
			runtime.KeepAlive(list)
		}
	}
	event, status := driver().EnqueueSVMFree(uintptr(queue), list, call, waits(w))
	return enqueued(event, status, w)
}

//export tdlEnqueueSVMMemcpy
func tdlEnqueueSVMMemcpy(queue C.uintptr_t, blocking C.cl_uint, dst, src C.uintptr_t, size C.size_t,
	w *C.tdl_waits) (code C.cl_int) {
	defer rescue(&code)
	event, status := driver().EnqueueSVMMemcpy(uintptr(queue), blocking != 0, api.NewHostPtr(uintptr(dst)),
		api.NewHostPtr(uintptr(src)), uint64(size), waits(w))
	return enqueued(event, status, w)
}

//export tdlEnqueueSVMMemFill
func tdlEnqueueSVMMemFill(queue, ptr, pattern C.uintptr_t, patternSize, size C.size_t,
	w *C.tdl_waits) (code C.cl_int) {
	defer rescue(&code)
	event, status := driver().EnqueueSVMMemFill(uintptr(queue), api.NewHostPtr(uintptr(ptr)),
		api.NewHostPtr(uintptr(pattern)), uint64(patternSize), uint64(size), waits(w))
	return enqueued(event, status, w)
}

//export tdlEnqueueSVMMap
func tdlEnqueueSVMMap(queue C.uintptr_t, blocking C.cl_uint, flags C.cl_ulong, ptr C.uintptr_t, size C.size_t,
	w *C.tdl_waits) (code C.cl_int) {
	defer rescue(&code)
	event, status := driver().EnqueueSVMMap(uintptr(queue), blocking != 0, uint64(flags), api.NewHostPtr(uintptr(ptr)),
		uint64(size), waits(w))
	return enqueued(event, status, w)
}

//export tdlEnqueueSVMUnmap
func tdlEnqueueSVMUnmap(queue, ptr C.uintptr_t, w *C.tdl_waits) (code C.cl_int) {
	defer rescue(&code)
	event, status := driver().EnqueueSVMUnmap(uintptr(queue), api.NewHostPtr(uintptr(ptr)), waits(w))
	return enqueued(event, status, w)
}

//export tdlEnqueueSVMMigrate
func tdlEnqueueSVMMigrate(queue C.uintptr_t, n C.cl_uint, pointers, sizes C.uintptr_t, flags C.cl_ulong,
	w *C.tdl_waits) (code C.cl_int) {
	defer rescue(&code)
	event, status := driver().EnqueueSVMMigrate(uintptr(queue), array[uintptr](uintptr(pointers), uint32(n)),
		array[uint64](uintptr(sizes), uint32(n)), uint64(flags), waits(w))
	return enqueued(event, status, w)
}

//export tdlSetKernelArgSVM
func tdlSetKernelArgSVM(kernel C.uintptr_t, index C.cl_uint, ptr C.uintptr_t) (code C.cl_int) {
	defer rescue(&code)
	return C.cl_int(driver().SetKernelArgSVM(uintptr(kernel), uint32(index), api.NewHostPtr(uintptr(ptr))))
}

//export tdlSetKernelExecInfo
func tdlSetKernelExecInfo(kernel C.uintptr_t, param C.cl_uint, size C.size_t, value C.uintptr_t) (code C.cl_int) {
	defer rescue(&code)
	bytes := array[byte](uintptr(value), uint64(size))
	if bytes == nil {
		if _, status := driver().KernelInfo(uintptr(kernel), C.CL_KERNEL_NUM_ARGS); status != cl.SUCCESS {
			return C.cl_int(status)
		}
		return C.CL_INVALID_VALUE
	}
	return C.cl_int(driver().SetKernelExecInfo(uintptr(kernel), uint32(param), bytes))
}
