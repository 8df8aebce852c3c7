package span

import (
	"slices"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// Commands on shared virtual memory are those of a buffer, by its address.

// svmQueue resolves the queue of a command on shared virtual memory; nil and success: it is the Base's.
func (d *Driver) svmQueue(queue uintptr) (*Queue, api.Status) {
	q := d.queues.Get(queue)
	if q != nil && !q.ctx.members[q.member].svm {
		return nil, cl.INVALID_OPERATION
	}
	return q, cl.SUCCESS
}

// orders is a call that moves nothing and has its place in the queue's order.
func (q *Queue) orders(at api.HostPtr) func(api.Waits) (uintptr, api.Status) {
	return func(w api.Waits) (uintptr, api.Status) {
		return q.ctx.d.base.EnqueueSVMMemcpy(q.inner, false, at, at, 0, w)
	}
}

// EnqueueSVMFree is clEnqueueSVMFree (§5.6.1).
func (d *Driver) EnqueueSVMFree(queue uintptr, pointers []uintptr, call func(), w api.Waits) (uintptr, api.Status) {
	q, status := d.svmQueue(queue)
	switch {
	case status != cl.SUCCESS:
		return 0, status
	case q == nil:
		return d.base.EnqueueSVMFree(queue, pointers, call, w)
	}
	if call == nil {
		list := slices.Clone(pointers)
		call = func() {
			for _, at := range list {
				q.ctx.freeSVM(at)
			}
		}
	}
	r := request{q: q, w: w}
	r.call = func(w api.Waits) (uintptr, api.Status) { return d.base.EnqueueSVMFree(q.inner, pointers, call, w) }
	return r.run(false)
}

// EnqueueSVMMemcpy is clEnqueueSVMMemcpy (§5.6.1).
func (d *Driver) EnqueueSVMMemcpy(queue uintptr, blocking bool, dst, src api.HostPtr, size uint64,
	w api.Waits) (uintptr, api.Status) {
	q, status := d.svmQueue(queue)
	switch {
	case status != cl.SUCCESS:
		return 0, status
	case q == nil:
		return d.base.EnqueueSVMMemcpy(queue, blocking, dst, src, size, w)
	}
	c := q.ctx
	r := request{q: q, w: w, kind: cl.COMMAND_SVM_MEMCPY}
	r.call = func(w api.Waits) (uintptr, api.Status) { // between other memory, or wrong
		return d.base.EnqueueSVMMemcpy(q.inner, false, dst, src, size, w)
	}
	from, fromOff, fromSVM := c.inSVM(src, size)
	to, toOff, toSVM := c.inSVM(dst, size)
	_, _, fromBegins := c.inSVM(src, 1)
	_, _, toBegins := c.inSVM(dst, 1)
	switch {
	case dst.Nil(), src.Nil(), size == 0, overlap(src.Address(), dst.Address(), size):
	case fromBegins && !fromSVM, toBegins && !toSVM:
		return 0, cl.INVALID_VALUE // beyond the allocation
	case fromSVM && toSVM:
		r.uses = []use{{b: from.root, off: fromOff, n: size, reads: true},
			{b: to.root, off: toOff, n: size, writes: true}}
		r.call = onMember2(q, from.root, to.root, func(s, t uintptr, w api.Waits) (uintptr, api.Status) {
			return d.base.EnqueueCopy(q.inner, s, t, fromOff, toOff, size, w)
		})
	case fromSVM:
		r.uses = []use{{b: from.root, off: fromOff, n: size, reads: true}}
		r.call = from.root.onMember(q, func(inner uintptr, w api.Waits) (uintptr, api.Status) {
			return d.base.EnqueueRead(q.inner, inner, false, fromOff, size, dst, w)
		})
	case toSVM:
		r.uses = []use{{b: to.root, off: toOff, n: size, writes: true}}
		r.call = to.root.onMember(q, func(inner uintptr, w api.Waits) (uintptr, api.Status) {
			return d.base.EnqueueWrite(q.inner, inner, false, toOff, size, src, w)
		})
	}
	return r.run(blocking)
}

func overlap(a, b uintptr, size uint64) bool { return a < b+uintptr(size) && b < a+uintptr(size) }

// EnqueueSVMMemFill is clEnqueueSVMMemFill (§5.6.1).
func (d *Driver) EnqueueSVMMemFill(queue uintptr, ptr, pattern api.HostPtr, patternSize, size uint64,
	w api.Waits) (uintptr, api.Status) {
	q, status := d.svmQueue(queue)
	switch {
	case status != cl.SUCCESS:
		return 0, status
	case q == nil:
		return d.base.EnqueueSVMMemFill(queue, ptr, pattern, patternSize, size, w)
	}
	p, off, ok := q.ctx.inSVM(ptr, size)
	if !ok {
		return 0, cl.INVALID_VALUE
	}
	r := request{q: q, w: w, kind: cl.COMMAND_SVM_MEMFILL, uses: []use{{b: p.root, off: off, n: size, writes: true}}}
	r.call = p.root.onMember(q, func(inner uintptr, w api.Waits) (uintptr, api.Status) {
		return d.base.EnqueueFill(q.inner, inner, pattern, patternSize, off, size, w)
	})
	return r.run(false)
}

// EnqueueSVMMap is clEnqueueSVMMap (§5.6.1): the newest bytes come to the program's memory.
func (d *Driver) EnqueueSVMMap(queue uintptr, blocking bool, flags uint64, ptr api.HostPtr, size uint64,
	w api.Waits) (uintptr, api.Status) {
	q, status := d.svmQueue(queue)
	switch {
	case status != cl.SUCCESS:
		return 0, status
	case q == nil:
		return d.base.EnqueueSVMMap(queue, blocking, flags, ptr, size, w)
	}
	p, off, ok := q.ctx.inSVM(ptr, size)
	if !ok || size == 0 || !mappable(flags) {
		return 0, cl.INVALID_VALUE
	}
	b := p.root
	m := mapping{member: q.member, off: off, n: size, host: true,
		writes: flags&(cl.MAP_WRITE|cl.MAP_WRITE_INVALIDATE_REGION) != 0}
	r := request{q: q, w: w, kind: cl.COMMAND_SVM_MAP, call: q.orders(ptr)}
	if flags&cl.MAP_WRITE_INVALIDATE_REGION == 0 {
		r.uses = []use{{b: b, off: off, n: size, reads: true}}
		r.holds = b
		r.call = b.onMember(q, func(inner uintptr, w api.Waits) (uintptr, api.Status) {
			return d.base.EnqueueRead(q.inner, inner, false, off, size, ptr, w)
		})
	}
	r.call = b.noting(&m, r.call, ptr.Address)
	return r.run(blocking)
}

// EnqueueSVMUnmap is clEnqueueSVMUnmap (§5.6.1). What was written through the map is the newest contents; memory that
// is not mapped stays as it is.
func (d *Driver) EnqueueSVMUnmap(queue uintptr, ptr api.HostPtr, w api.Waits) (uintptr, api.Status) {
	q, status := d.svmQueue(queue)
	switch {
	case status != cl.SUCCESS:
		return 0, status
	case q == nil:
		return d.base.EnqueueSVMUnmap(queue, ptr, w)
	}
	p, _, ok := q.ctx.inSVM(ptr, 0)
	if !ok {
		return 0, cl.INVALID_VALUE
	}
	b := p.root
	r := request{q: q, w: w, kind: cl.COMMAND_SVM_UNMAP, call: q.orders(ptr)}
	m, mapped := b.takeMapping(ptr.Address())
	if mapped && m.writes {
		r.uses = []use{{b: b, off: m.off, n: m.n, writes: true}}
		r.holds = b
		r.call = b.onMember(q, func(inner uintptr, w api.Waits) (uintptr, api.Status) {
			return d.base.EnqueueWrite(q.inner, inner, false, m.off, m.n, ptr, w)
		})
	}
	event, status := r.run(false)
	if status != cl.SUCCESS && mapped {
		b.ctx.mu.Lock()
		b.maps = append(b.maps, m)
		b.ctx.mu.Unlock()
	}
	return event, status
}

// EnqueueSVMMigrate is clEnqueueSVMMigrateMem (§5.6.1): the bytes go to the queue's member ahead of their use.
func (d *Driver) EnqueueSVMMigrate(queue uintptr, pointers []uintptr, sizes []uint64, flags uint64,
	w api.Waits) (uintptr, api.Status) {
	q, status := d.svmQueue(queue)
	switch {
	case status != cl.SUCCESS:
		return 0, status
	case q == nil:
		return d.base.EnqueueSVMMigrate(queue, pointers, sizes, flags, w)
	}
	if len(pointers) == 0 || flags&^(cl.MIGRATE_MEM_OBJECT_HOST|cl.MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED) != 0 {
		return 0, cl.INVALID_VALUE
	}
	r := request{q: q, w: w, kind: cl.COMMAND_SVM_MIGRATE_MEM, call: q.orders(api.NewHostPtr(pointers[0]))}
	for i, at := range pointers {
		var n uint64 // 0: to the allocation's end
		if sizes != nil {
			n = sizes[i]
		}
		p, off, ok := q.ctx.inSVM(api.NewHostPtr(at), n)
		if !ok {
			return 0, cl.INVALID_VALUE
		}
		u := p.rest(off, flags == 0, false)
		if n > 0 {
			u.n = n
		}
		r.uses = append(r.uses, u)
	}
	return r.run(false)
}
