package main

// #include "driver.h"
import "C"

import "tendril/forwarding/api"

//export tdlFlush
func tdlFlush(queue C.uintptr_t) (code C.cl_int) {
	defer rescue(&code)
	return C.cl_int(driver().Flush(uintptr(queue)))
}

//export tdlFinish
func tdlFinish(queue C.uintptr_t) (code C.cl_int) {
	defer rescue(&code)
	return C.cl_int(driver().Finish(uintptr(queue)))
}

//export tdlEnqueueNDRange
func tdlEnqueueNDRange(queue, kernel C.uintptr_t, dims C.cl_uint, offset, global, local C.uintptr_t,
	w *C.tdl_waits) (code C.cl_int) {
	defer rescue(&code)
	r := indexSpace(dims, offset, global, local)
	event, status := driver().EnqueueNDRange(uintptr(queue), uintptr(kernel), &r, waits(w))
	return enqueued(event, status, w)
}

// indexSpace reads a launch's arrays, each const size_t[dims].
func indexSpace(dims C.cl_uint, offset, global, local C.uintptr_t) api.Range {
	r := api.Range{Dims: uint32(dims), HasOffset: offset != 0, HasLocal: local != 0}
	if n := int(min(dims, 3)); dims <= 3 {
		if global != 0 {
			r.Global = three(uintptr(global), n)
		}
		if offset != 0 {
			r.Offset = three(uintptr(offset), n)
		}
		if local != 0 {
			r.Local = three(uintptr(local), n)
		}
	}
	return r
}

//export tdlEnqueueTask
func tdlEnqueueTask(queue, kernel C.uintptr_t, w *C.tdl_waits) (code C.cl_int) {
	defer rescue(&code)
	event, status := driver().EnqueueTask(uintptr(queue), uintptr(kernel), waits(w))
	return enqueued(event, status, w)
}

//export tdlEnqueueRead
func tdlEnqueueRead(queue, buffer C.uintptr_t, blocking C.cl_uint, offset, size C.size_t, ptr C.uintptr_t,
	w *C.tdl_waits) (code C.cl_int) {
	defer rescue(&code)
	event, status := driver().EnqueueRead(uintptr(queue), uintptr(buffer), blocking != 0, uint64(offset), uint64(size),
		api.NewHostPtr(uintptr(ptr)), waits(w))
	return enqueued(event, status, w)
}

//export tdlEnqueueWrite
func tdlEnqueueWrite(queue, buffer C.uintptr_t, blocking C.cl_uint, offset, size C.size_t, ptr C.uintptr_t,
	w *C.tdl_waits) (code C.cl_int) {
	defer rescue(&code)
	event, status := driver().EnqueueWrite(uintptr(queue), uintptr(buffer), blocking != 0, uint64(offset), uint64(size),
		api.NewHostPtr(uintptr(ptr)), waits(w))
	return enqueued(event, status, w)
}

func rectangle(r *C.tdl_rect) api.Rect {
	out := api.Rect{
		BufferRow: uint64(r.buffer_row), BufferSlice: uint64(r.buffer_slice), HostRow: uint64(r.host_row),
		HostSlice:     uint64(r.host_slice),
		MissingBuffer: r.buffer_origin == 0, MissingHost: r.host_origin == 0, MissingRegionArray: r.region == 0,
	}
	if !out.MissingBuffer && !out.MissingHost && !out.MissingRegionArray {
		out.BufferOrigin, out.HostOrigin = three(uintptr(r.buffer_origin), 3), three(uintptr(r.host_origin), 3)
		out.Region = three(uintptr(r.region), 3)
	}
	return out
}

//export tdlEnqueueRect
func tdlEnqueueRect(write C.int, queue, buffer C.uintptr_t, blocking C.cl_uint, r *C.tdl_rect, ptr C.uintptr_t,
	w *C.tdl_waits) (code C.cl_int) {
	defer rescue(&code)
	move := driver().EnqueueReadRect
	if write != 0 {
		move = driver().EnqueueWriteRect
	}
	event, status := move(uintptr(queue), uintptr(buffer), blocking != 0, rectangle(r),
		api.NewHostPtr(uintptr(ptr)), waits(w))
	return enqueued(event, status, w)
}

//export tdlEnqueueCopyRect
func tdlEnqueueCopyRect(queue, src, dst C.uintptr_t, r *C.tdl_rect, w *C.tdl_waits) (code C.cl_int) {
	defer rescue(&code)
	event, status := driver().EnqueueCopyRect(uintptr(queue), uintptr(src), uintptr(dst), rectangle(r), waits(w))
	return enqueued(event, status, w)
}

//export tdlEnqueueCopy
func tdlEnqueueCopy(queue, src, dst C.uintptr_t, srcOffset, dstOffset, size C.size_t, w *C.tdl_waits) (code C.cl_int) {
	defer rescue(&code)
	event, status := driver().EnqueueCopy(uintptr(queue), uintptr(src), uintptr(dst), uint64(srcOffset),
		uint64(dstOffset), uint64(size), waits(w))
	return enqueued(event, status, w)
}

//export tdlEnqueueFill
func tdlEnqueueFill(queue, buffer, pattern C.uintptr_t, patternSize, offset, size C.size_t,
	w *C.tdl_waits) (code C.cl_int) {
	defer rescue(&code)
	event, status := driver().EnqueueFill(uintptr(queue), uintptr(buffer), api.NewHostPtr(uintptr(pattern)),
		uint64(patternSize), uint64(offset), uint64(size), waits(w))
	return enqueued(event, status, w)
}

//export tdlEnqueueMap
func tdlEnqueueMap(queue, buffer C.uintptr_t, blocking C.cl_uint, flags C.cl_ulong, offset, size C.size_t,
	w *C.tdl_waits, code C.uintptr_t) C.uintptr_t {
	defer rescueHandle(uintptr(code))
	ptr, event, status := driver().EnqueueMap(uintptr(queue), uintptr(buffer), blocking != 0, uint64(flags),
		uint64(offset), uint64(size), waits(w))
	enqueued(event, status, w)
	return created(ptr.Address(), status, code)
}

//export tdlEnqueueUnmap
func tdlEnqueueUnmap(queue, buffer, ptr C.uintptr_t, w *C.tdl_waits) (code C.cl_int) {
	defer rescue(&code)
	event, status := driver().EnqueueUnmap(uintptr(queue), uintptr(buffer), api.NewHostPtr(uintptr(ptr)), waits(w))
	return enqueued(event, status, w)
}

//export tdlEnqueueMigrate
func tdlEnqueueMigrate(queue C.uintptr_t, n C.cl_uint, objects C.uintptr_t, flags C.cl_ulong,
	w *C.tdl_waits) (code C.cl_int) {
	defer rescue(&code)
	event, status := driver().EnqueueMigrate(uintptr(queue), array[uintptr](uintptr(objects), uint32(n)),
		uint64(flags), waits(w))
	return enqueued(event, status, w)
}

//export tdlEnqueueMarker
func tdlEnqueueMarker(queue C.uintptr_t, needsEvent C.int, w *C.tdl_waits) (code C.cl_int) {
	defer rescue(&code)
	if needsEvent != 0 && w.event == 0 {
		return C.CL_INVALID_VALUE // clEnqueueMarker: nothing else would show
	}
	event, status := driver().EnqueueMarker(uintptr(queue), waits(w))
	return enqueued(event, status, w)
}

//export tdlEnqueueBarrier
func tdlEnqueueBarrier(queue C.uintptr_t, w *C.tdl_waits) (code C.cl_int) {
	defer rescue(&code)
	event, status := driver().EnqueueBarrier(uintptr(queue), waits(w))
	return enqueued(event, status, w)
}

//export tdlEnqueueWaitForEvents
func tdlEnqueueWaitForEvents(queue C.uintptr_t, w *C.tdl_waits) (code C.cl_int) {
	defer rescue(&code)
	return C.cl_int(driver().EnqueueWaitForEvents(uintptr(queue), waits(w)))
}
