package span

import (
	"math/bits"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// EnqueueRead is clEnqueueReadBuffer (§5.2.2).
func (d *Driver) EnqueueRead(queue, buffer uintptr, blocking bool, off, size uint64, ptr api.HostPtr,
	w api.Waits) (uintptr, api.Status) {
	q, b := d.queues.Get(queue), d.buffers.Get(buffer)
	if q == nil || b == nil || b.ctx != q.ctx {
		return mixed(q, b, queue, func(queue uintptr) (uintptr, api.Status) {
			return d.base.EnqueueRead(queue, buffer, blocking, off, size, ptr, w)
		})
	}
	r := request{q: q, w: w, sized: b, uses: []use{{b: b, off: off, n: size, reads: true}}}
	r.call = b.onMember(q, func(inner uintptr, w api.Waits) (uintptr, api.Status) {
		return d.base.EnqueueRead(q.inner, inner, false, off, size, ptr, w)
	})
	return r.run(blocking)
}

// EnqueueWrite is clEnqueueWriteBuffer (§5.2.2).
func (d *Driver) EnqueueWrite(queue, buffer uintptr, blocking bool, off, size uint64, ptr api.HostPtr,
	w api.Waits) (uintptr, api.Status) {
	q, b := d.queues.Get(queue), d.buffers.Get(buffer)
	if q == nil || b == nil || b.ctx != q.ctx {
		return mixed(q, b, queue, func(queue uintptr) (uintptr, api.Status) {
			return d.base.EnqueueWrite(queue, buffer, blocking, off, size, ptr, w)
		})
	}
	r := request{q: q, w: w, uses: []use{{b: b, off: off, n: size, writes: true}}}
	r.call = b.onMember(q, func(inner uintptr, w api.Waits) (uintptr, api.Status) {
		return d.base.EnqueueWrite(q.inner, inner, false, off, size, ptr, w)
	})
	return r.run(blocking)
}

// mixed is a command whose objects are not all of one spanning context: session answers for those that it knows.
func mixed(q *Queue, b *Buffer, queue uintptr, call func(queue uintptr) (uintptr, api.Status)) (uintptr, api.Status) {
	switch {
	case q != nil && b != nil:
		return 0, cl.INVALID_CONTEXT
	case q != nil:
		queue = q.inner
	}
	event, status := call(queue)
	if q != nil && status == cl.SUCCESS { // unreachable: session's buffers are of session's contexts
		return 0, cl.INVALID_CONTEXT
	}
	return event, status
}

// onMember makes the buffer at the queue's member when the command is sent.
func (b *Buffer) onMember(q *Queue,
	call func(inner uintptr, w api.Waits) (uintptr, api.Status)) func(api.Waits) (uintptr, api.Status) {
	return func(w api.Waits) (uintptr, api.Status) {
		inner, status := b.atLocked(q.member)
		if status != cl.SUCCESS {
			return 0, status
		}
		return call(inner, w)
	}
}

// EnqueueReadRect is clEnqueueReadBufferRect (§5.2.2).
func (d *Driver) EnqueueReadRect(queue, buffer uintptr, blocking bool, rect api.Rect, ptr api.HostPtr,
	w api.Waits) (uintptr, api.Status) {
	return d.rect(queue, buffer, blocking, rect, w, false,
		func(queue, buffer uintptr, blocking bool, w api.Waits) (uintptr, api.Status) {
			return d.base.EnqueueReadRect(queue, buffer, blocking, rect, ptr, w)
		})
}

// EnqueueWriteRect is clEnqueueWriteBufferRect (§5.2.2).
func (d *Driver) EnqueueWriteRect(queue, buffer uintptr, blocking bool, rect api.Rect, ptr api.HostPtr,
	w api.Waits) (uintptr, api.Status) {
	return d.rect(queue, buffer, blocking, rect, w, true,
		func(queue, buffer uintptr, blocking bool, w api.Waits) (uintptr, api.Status) {
			return d.base.EnqueueWriteRect(queue, buffer, blocking, rect, ptr, w)
		})
}

func (d *Driver) rect(queue, buffer uintptr, blocking bool, rect api.Rect, w api.Waits, writes bool,
	call func(queue, buffer uintptr, blocking bool, w api.Waits) (uintptr, api.Status)) (uintptr, api.Status) {
	q, b := d.queues.Get(queue), d.buffers.Get(buffer)
	if q == nil || b == nil || b.ctx != q.ctx {
		return mixed(q, b, queue, func(queue uintptr) (uintptr, api.Status) { return call(queue, buffer, blocking, w) })
	}
	r := request{q: q, w: w,
		uses: []use{boxUse(b, rect.BufferOrigin, rect.Region, rect.BufferRow, rect.BufferSlice, writes)}}
	r.call = b.onMember(q,
		func(inner uintptr, w api.Waits) (uintptr, api.Status) { return call(q.inner, inner, false, w) })
	return r.run(blocking)
}

// boxUse is the range from a box's first byte to its last. What lies between its rows stays as it is: whoever writes
// the box needs it.
func boxUse(b *Buffer, origin, region [3]uint64, row, slice uint64, writes bool) use {
	nowhere := use{b: b, off: ^uint64(0)} // session finds what is wrong
	if region[0] == 0 || region[1] == 0 || region[2] == 0 {
		return nowhere
	}
	row = max(row, region[0])
	if slice == 0 {
		slice = saturated(row, region[1])
	}
	off := saturatedSum(origin[0], saturated(origin[1], row), saturated(origin[2], slice))
	last := saturatedSum(region[0], saturated(region[1]-1, row), saturated(region[2]-1, slice))
	if off == ^uint64(0) || last == ^uint64(0) {
		return nowhere
	}
	return use{b: b, off: off, n: last, reads: true, writes: writes}
}

func saturated(a, b uint64) uint64 {
	if high, low := bits.Mul64(a, b); high == 0 {
		return low
	}
	return ^uint64(0)
}

func saturatedSum(terms ...uint64) (sum uint64) {
	for _, term := range terms {
		var carry uint64
		if sum, carry = bits.Add64(sum, term, 0); carry != 0 {
			return ^uint64(0)
		}
	}
	return sum
}

// pair resolves two buffers of one spanning context; ok false when session is to answer, with session's handles where
// there are any.
func (d *Driver) pair(queue, src, dst uintptr) (q *Queue, s, t *Buffer, ok bool) {
	q, s, t = d.queues.Get(queue), d.buffers.Get(src), d.buffers.Get(dst)
	ok = q != nil && s != nil && t != nil && s.ctx == q.ctx && t.ctx == q.ctx
	return q, s, t, ok
}

// mixedPair is a command on two memory objects that are not all of one spanning context with the queue.
func (d *Driver) mixedPair(queue, src, dst uintptr, call func() (uintptr, api.Status)) (uintptr, api.Status) {
	if d.queues.Get(queue) == nil {
		return call()
	}
	for _, h := range []uintptr{src, dst} {
		if d.RetainMemObject(h) != cl.SUCCESS {
			return 0, cl.INVALID_MEM_OBJECT
		}
		d.ReleaseMemObject(h)
	}
	return 0, cl.INVALID_CONTEXT
}

// EnqueueCopy is clEnqueueCopyBuffer (§5.2.4).
func (d *Driver) EnqueueCopy(queue, src, dst uintptr, srcOff, dstOff, size uint64, w api.Waits) (uintptr, api.Status) {
	q, s, t, ok := d.pair(queue, src, dst)
	if !ok {
		return d.mixedPair(queue, src, dst, func() (uintptr, api.Status) {
			return d.base.EnqueueCopy(queue, src, dst, srcOff, dstOff, size, w)
		})
	}
	r := request{q: q, w: w,
		uses: []use{{b: s, off: srcOff, n: size, reads: true}, {b: t, off: dstOff, n: size, writes: true}}}
	r.call = onMember2(q, s, t, func(s, t uintptr, w api.Waits) (uintptr, api.Status) {
		return d.base.EnqueueCopy(q.inner, s, t, srcOff, dstOff, size, w)
	})
	return r.run(false)
}

func onMember2(q *Queue, s, t *Buffer,
	call func(s, t uintptr, w api.Waits) (uintptr, api.Status)) func(api.Waits) (uintptr, api.Status) {
	return s.onMember(q, func(inner uintptr, w api.Waits) (uintptr, api.Status) {
		target, status := t.atLocked(q.member)
		if status != cl.SUCCESS {
			return 0, status
		}
		return call(inner, target, w)
	})
}

// EnqueueCopyRect is clEnqueueCopyBufferRect (§5.2.4).
func (d *Driver) EnqueueCopyRect(queue, src, dst uintptr, rect api.Rect, w api.Waits) (uintptr, api.Status) {
	q, s, t, ok := d.pair(queue, src, dst)
	if !ok {
		return d.mixedPair(queue, src, dst, func() (uintptr, api.Status) {
			return d.base.EnqueueCopyRect(queue, src, dst, rect, w)
		})
	}
	r := request{q: q, w: w, uses: []use{
		boxUse(s, rect.BufferOrigin, rect.Region, rect.BufferRow, rect.BufferSlice, false),
		boxUse(t, rect.HostOrigin, rect.Region, rect.HostRow, rect.HostSlice, true),
	}}
	r.call = onMember2(q, s, t, func(s, t uintptr, w api.Waits) (uintptr, api.Status) {
		return d.base.EnqueueCopyRect(q.inner, s, t, rect, w)
	})
	return r.run(false)
}

// EnqueueFill is clEnqueueFillBuffer (§5.2.2).
func (d *Driver) EnqueueFill(queue, buffer uintptr, pattern api.HostPtr, patternSize, off, size uint64,
	w api.Waits) (uintptr, api.Status) {
	q, b := d.queues.Get(queue), d.buffers.Get(buffer)
	if q == nil || b == nil || b.ctx != q.ctx {
		return mixed(q, b, queue, func(queue uintptr) (uintptr, api.Status) {
			return d.base.EnqueueFill(queue, buffer, pattern, patternSize, off, size, w)
		})
	}
	r := request{q: q, w: w, uses: []use{{b: b, off: off, n: size, writes: true}}}
	r.call = b.onMember(q, func(inner uintptr, w api.Waits) (uintptr, api.Status) {
		return d.base.EnqueueFill(q.inner, inner, pattern, patternSize, off, size, w)
	})
	return r.run(false)
}

// EnqueueMarker is clEnqueueMarkerWithWaitList (§5.12).
func (d *Driver) EnqueueMarker(queue uintptr, w api.Waits) (uintptr, api.Status) {
	q := d.queues.Get(queue)
	if q == nil {
		return d.base.EnqueueMarker(queue, w)
	}
	r := request{q: q, w: w, keep: true}
	r.call = func(w api.Waits) (uintptr, api.Status) { return d.base.EnqueueMarker(q.inner, w) }
	return r.run(false)
}

// EnqueueBarrier is clEnqueueBarrierWithWaitList (§5.12).
func (d *Driver) EnqueueBarrier(queue uintptr, w api.Waits) (uintptr, api.Status) {
	q := d.queues.Get(queue)
	if q == nil {
		return d.base.EnqueueBarrier(queue, w)
	}
	r := request{q: q, w: w, keep: true}
	r.call = func(w api.Waits) (uintptr, api.Status) { return d.base.EnqueueBarrier(q.inner, w) }
	return r.run(false)
}

// EnqueueWaitForEvents is clEnqueueWaitForEvents (OpenCL 1.1 §5.10).
func (d *Driver) EnqueueWaitForEvents(queue uintptr, w api.Waits) api.Status {
	q := d.queues.Get(queue)
	if q == nil {
		return d.base.EnqueueWaitForEvents(queue, w)
	}
	if w.N == 0 || w.List == nil {
		return cl.INVALID_VALUE
	}
	for _, h := range w.List {
		if d.events.Get(h) == nil {
			return cl.INVALID_EVENT
		}
	}
	_, status := d.EnqueueBarrier(queue, api.Waits{N: w.N, List: w.List})
	return status
}

// EnqueueMigrate is clEnqueueMigrateMemObjects (§5.5.4): the bytes go to the queue's member ahead of their use.
func (d *Driver) EnqueueMigrate(queue uintptr, buffers []uintptr, flags uint64, w api.Waits) (uintptr, api.Status) {
	q := d.queues.Get(queue)
	if q == nil {
		return d.base.EnqueueMigrate(queue, buffers, flags, w)
	}
	r := request{q: q, w: w}
	var list []*Buffer
	for _, h := range buffers {
		b := d.buffers.Get(h)
		switch {
		case b == nil:
			return 0, cl.INVALID_MEM_OBJECT
		case b.ctx != q.ctx:
			return 0, cl.INVALID_CONTEXT
		}
		list = append(list, b)
		r.uses = append(r.uses, b.allOf(flags&cl.MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED == 0, false))
	}
	r.call = func(w api.Waits) (uintptr, api.Status) {
		inner := make([]uintptr, len(list))
		for i, b := range list {
			var status api.Status
			if inner[i], status = b.atLocked(q.member); status != cl.SUCCESS {
				return 0, status
			}
		}
		return d.base.EnqueueMigrate(q.inner, inner, flags, w)
	}
	return r.run(false)
}
