package span

import (
	"slices"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// EnqueueMap is clEnqueueMapBuffer (§5.2.3): of the copy at the queue's member, or of the program's own memory.
func (d *Driver) EnqueueMap(queue, buffer uintptr, blocking bool, flags, off, size uint64, w api.Waits) (api.HostPtr,
	uintptr, api.Status) {
	q, b := d.queues.Get(queue), d.buffers.Get(buffer)
	if q == nil || b == nil || b.ctx != q.ctx {
		var at api.HostPtr
		event, status := mixed(q, b, queue, func(queue uintptr) (event uintptr, status api.Status) {
			at, event, status = d.base.EnqueueMap(queue, buffer, blocking, flags, off, size, w)
			return event, status
		})
		return at, event, status
	}
	m := mapping{member: q.member, off: off, n: size, writes: flags&(cl.MAP_WRITE|cl.MAP_WRITE_INVALIDATE_REGION) != 0}
	r := request{q: q, w: w, kind: cl.COMMAND_MAP_BUFFER, sized: b,
		uses: []use{{b: b, off: off, n: size, reads: flags&cl.MAP_WRITE_INVALIDATE_REGION == 0}}}
	var at api.HostPtr
	r.call = b.onMember(q, func(inner uintptr, w api.Waits) (event uintptr, status api.Status) {
		at, event, status = d.base.EnqueueMap(q.inner, inner, false, flags, off, size, w)
		return event, status
	})
	if b.root.mirror != nil || b.root.view != nil {
		m.host = true
		at = b.host.Plus(off)
		if b.root.view != nil {
			r.holds = b.root
		}
		r.call = b.onMember(q, func(inner uintptr, w api.Waits) (uintptr, api.Status) {
			if !mappable(flags) || size == 0 {
				return 0, cl.INVALID_VALUE
			}
			return d.base.EnqueueRead(q.inner, inner, false, off, size, at, w)
		})
	}
	r.call = b.noting(&m, r.call, func() uintptr { return at.Address() })
	event, status := r.run(blocking)
	if status != cl.SUCCESS {
		return api.HostPtr{}, 0, status
	}
	return at, event, cl.SUCCESS
}

// noting makes a map's call note the mapping before a blocking call waits: the program may unmap from a callback.
func (b *Buffer) noting(m *mapping, call func(api.Waits) (uintptr, api.Status),
	address func() uintptr) func(api.Waits) (uintptr, api.Status) {
	return func(w api.Waits) (uintptr, api.Status) {
		event, status := call(w)
		if status == cl.SUCCESS {
			m.address = address()
			b.maps = append(b.maps, *m)
		}
		return event, status
	}
}

// mappable checks a map's flags (§5.2.3).
func mappable(flags uint64) bool {
	return flags&^(cl.MAP_READ|cl.MAP_WRITE|cl.MAP_WRITE_INVALIDATE_REGION) == 0 &&
		(flags&cl.MAP_WRITE_INVALIDATE_REGION == 0 || flags == cl.MAP_WRITE_INVALIDATE_REGION)
}

// EnqueueUnmap is clEnqueueUnmapMemObject (§5.5.3). What was written through the map is the buffer's newest contents.
func (d *Driver) EnqueueUnmap(queue, buffer uintptr, ptr api.HostPtr, w api.Waits) (uintptr, api.Status) {
	q, b := d.queues.Get(queue), d.buffers.Get(buffer)
	if q == nil || b == nil || b.ctx != q.ctx {
		return mixed(q, b, queue, func(queue uintptr) (uintptr, api.Status) {
			return d.base.EnqueueUnmap(queue, buffer, ptr, w)
		})
	}
	m, ok := b.takeMapping(ptr.Address())
	if !ok {
		return 0, cl.INVALID_VALUE
	}
	var event uintptr
	var status api.Status
	if q.member == m.member || m.host {
		event, status = b.unmap(q, m, ptr, w)
	} else {
		event, status = b.unmapElsewhere(q, m, ptr, w)
	}
	if status != cl.SUCCESS {
		b.ctx.mu.Lock()
		b.maps = append(b.maps, m)
		b.ctx.mu.Unlock()
	}
	return event, status
}

// takeMapping removes the latest mapping at an address.
func (b *Buffer) takeMapping(address uintptr) (mapping, bool) {
	b.ctx.mu.Lock()
	defer b.ctx.mu.Unlock()
	for i, m := range slices.Backward(b.maps) {
		if m.address == address {
			b.maps = slices.Delete(b.maps, i, i+1)
			return m, true
		}
	}
	return mapping{}, false
}

func (b *Buffer) unmap(q *Queue, m mapping, ptr api.HostPtr, w api.Waits) (uintptr, api.Status) {
	d := b.ctx.d.base
	touched := use{b: b, off: m.off, n: m.n, writes: m.writes}
	if b.image != nil {
		touched = b.allOf(m.writes, m.writes)
	}
	r := request{q: q, w: w, kind: cl.COMMAND_UNMAP_MEM_OBJECT, uses: []use{touched}}
	r.call = b.onMember(q, func(inner uintptr, w api.Waits) (uintptr, api.Status) {
		switch {
		case !m.host:
			return d.EnqueueUnmap(q.inner, inner, ptr, w)
		case m.writes && m.region != nil:
			return b.unmapImage(q, inner, m.region, ptr, w)
		case m.writes:
			return d.EnqueueWrite(q.inner, inner, false, m.off, m.n, ptr, w)
		}
		return d.EnqueueMarker(q.inner, w)
	})
	return r.run(false)
}

// unmapElsewhere unmaps at the member where the map was made, in the order of a queue of another member: what is behind
// the unmap on the queue waits for it.
func (b *Buffer) unmapElsewhere(q *Queue, m mapping, ptr api.HostPtr, w api.Waits) (uintptr, api.Status) {
	c, d := b.ctx, b.ctx.d
	home, status := c.newQueue(c.members[m.member].devices[0], func(context uintptr) (uintptr, api.Status) {
		return d.base.CreateQueue(context, c.members[m.member].devices[0], 0)
	})
	if status != cl.SUCCESS {
		return 0, status
	}
	defer d.ReleaseQueue(home)
	before, status := d.EnqueueMarker(q.handle, api.Waits{N: w.N, List: w.List, Want: true})
	if status != cl.SUCCESS {
		return 0, status
	}
	defer d.ReleaseEvent(before)
	event, status := b.unmap(d.queues.Get(home), m, ptr, api.Waits{N: 1, List: []uintptr{before}, Want: true})
	if status != cl.SUCCESS {
		return 0, status
	}
	if _, status = d.EnqueueBarrier(q.handle, api.Waits{N: 1, List: []uintptr{event}}); status != cl.SUCCESS ||
		!w.Want {
		d.ReleaseEvent(event)
		return 0, status
	}
	return event, cl.SUCCESS
}
