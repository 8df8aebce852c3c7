package main

// #include "driver.h"
import "C"

import (
	"slices"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// Command buffers (cl_khr_command_buffer).

//export tdlCreateCommandBuffer
func tdlCreateCommandBuffer(n C.cl_uint, queues, properties, code C.uintptr_t) C.uintptr_t {
	defer rescueHandle(uintptr(code))
	var one []uintptr
	if n == 1 {
		one = array[uintptr](uintptr(queues), uint32(1))
	}
	h, status := driver().CreateCommandBuffer(uint32(n), one, list(uintptr(properties)))
	return created(h, status, code)
}

//export tdlFinalizeCommandBuffer
func tdlFinalizeCommandBuffer(buffer C.uintptr_t) (code C.cl_int) {
	defer rescue(&code)
	return C.cl_int(driver().FinalizeCommandBuffer(uintptr(buffer)))
}

//export tdlEnqueueCommandBuffer
func tdlEnqueueCommandBuffer(n C.cl_uint, queues, buffer C.uintptr_t, w *C.tdl_waits) (code C.cl_int) {
	defer rescue(&code)
	event, status := driver().EnqueueCommandBuffer(uint32(n), array[uintptr](uintptr(queues), uint32(n)),
		uintptr(buffer), waits(w))
	return enqueued(event, status, w)
}

// record hands a recording call over, and gives the program its sync point.
func record(buffer C.uintptr_t, s *C.tdl_sync, call func(queue uintptr, w api.Waits) (uintptr, api.Status)) C.cl_int {
	points := api.SyncPoints{Queue: uintptr(s.queue), N: uint32(s.n),
		List: slices.Clone(array[uint32](uintptr(s.list), uint32(s.n))), Mutable: s.mutable_handle != 0}
	point, status := driver().Record(uintptr(buffer), points, call)
	if status == cl.SUCCESS {
		store(uintptr(s.point), C.cl_uint(point))
	}
	return C.cl_int(status)
}

//export tdlRecordBarrier
func tdlRecordBarrier(buffer C.uintptr_t, s *C.tdl_sync) (code C.cl_int) {
	defer rescue(&code)
	return record(buffer, s, nil)
}

//export tdlRecordCopy
func tdlRecordCopy(buffer, src, dst C.uintptr_t, srcOffset, dstOffset, size C.size_t, s *C.tdl_sync) (code C.cl_int) {
	defer rescue(&code)
	return record(buffer, s, func(queue uintptr, w api.Waits) (uintptr, api.Status) {
		return driver().EnqueueCopy(queue, uintptr(src), uintptr(dst), uint64(srcOffset), uint64(dstOffset),
			uint64(size), w)
	})
}

//export tdlRecordCopyRect
func tdlRecordCopyRect(buffer, src, dst C.uintptr_t, r *C.tdl_rect, s *C.tdl_sync) (code C.cl_int) {
	defer rescue(&code)
	return record(buffer, s, func(queue uintptr, w api.Waits) (uintptr, api.Status) {
		return driver().EnqueueCopyRect(queue, uintptr(src), uintptr(dst), rectangle(r), w)
	})
}

//export tdlRecordCopyImageBuffer
func tdlRecordCopyImageBuffer(buffer C.uintptr_t, toBuffer C.int, image, other C.uintptr_t, r *C.tdl_region,
	offset C.size_t, s *C.tdl_sync) (code C.cl_int) {
	defer rescue(&code)
	return record(buffer, s, func(queue uintptr, w api.Waits) (uintptr, api.Status) {
		return driver().EnqueueCopyImageBuffer(toBuffer != 0, queue, uintptr(image), uintptr(other), imageRegion(r),
			uint64(offset), w)
	})
}

//export tdlRecordCopyImage
func tdlRecordCopyImage(buffer, src, dst C.uintptr_t, r *C.tdl_region, to C.uintptr_t, s *C.tdl_sync) (code C.cl_int) {
	defer rescue(&code)
	return record(buffer, s, func(queue uintptr, w api.Waits) (uintptr, api.Status) {
		part, origin := twoImageRegions(r, to)
		return driver().EnqueueCopyImage(queue, uintptr(src), uintptr(dst), part, origin, w)
	})
}

//export tdlRecordFill
func tdlRecordFill(buffer, target, pattern C.uintptr_t, patternSize, offset, size C.size_t,
	s *C.tdl_sync) (code C.cl_int) {
	defer rescue(&code)
	return record(buffer, s, func(queue uintptr, w api.Waits) (uintptr, api.Status) {
		return driver().EnqueueFill(queue, uintptr(target), api.NewHostPtr(uintptr(pattern)), uint64(patternSize),
			uint64(offset), uint64(size), w)
	})
}

//export tdlRecordFillImage
func tdlRecordFillImage(buffer, image, color C.uintptr_t, r *C.tdl_region, s *C.tdl_sync) (code C.cl_int) {
	defer rescue(&code)
	return record(buffer, s, func(queue uintptr, w api.Waits) (uintptr, api.Status) {
		return driver().EnqueueFillImage(queue, uintptr(image), api.NewHostPtr(uintptr(color)), imageRegion(r), w)
	})
}

//export tdlRecordNDRange
func tdlRecordNDRange(buffer, kernel C.uintptr_t, dims C.cl_uint, offset, global, local C.uintptr_t,
	s *C.tdl_sync) (code C.cl_int) {
	defer rescue(&code)
	return record(buffer, s, func(queue uintptr, w api.Waits) (uintptr, api.Status) {
		r := indexSpace(dims, offset, global, local)
		return driver().EnqueueNDRange(queue, uintptr(kernel), &r, w)
	})
}
