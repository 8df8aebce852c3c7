package session

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/mapped"
	"tendril/forwarding/session/transfer"
	"tendril/forwarding/session/ways"
)

// EnqueueMap is clEnqueueMapBuffer (§5.2.3). The address is known at once; its contents are when the event has ended.
func (d *Driver) EnqueueMap(queue, buffer uintptr, blocking bool, flags, off, size uint64, w api.Waits) (api.HostPtr,
	uintptr, api.Status) {
	q, b, status := d.mapAccess(queue, buffer, flags)
	if status != cl.SUCCESS {
		return api.HostPtr{}, 0, status
	}
	return d.mapRange(q, b, cl.COMMAND_MAP_BUFFER, blocking, flags, off, size, w)
}

// mapRange maps a range of a buffer, by a command of a kind.
func (d *Driver) mapRange(q *Queue, b *Buffer, kind uint32, blocking bool, flags, off, size uint64,
	w api.Waits) (api.HostPtr, uintptr, api.Status) {
	if !b.inside(off, size) || size == 0 {
		return api.HostPtr{}, 0, cl.INVALID_VALUE
	}
	var c command
	status := d.open(&c, q, kind, &w)
	if status == cl.SUCCESS {
		// A map for writing counts as a write now: what was published must not change under its readers. The
		// program's own memory gets its word at the unmap.
		status = c.touches(b, flags&^cl.MAP_READ != 0 && b.root.mirror == nil)
	}
	if status != cl.SUCCESS {
		e, status := c.close(status)
		return api.HostPtr{}, e, status
	}
	b.root.shareShadow(q)
	at, fetch, status := b.mapped(off, size, flags)
	if status != cl.SUCCESS {
		e, status := c.close(status)
		return api.HostPtr{}, e, status
	}
	b.maps.Add(mapped.Map{Address: at.Address(), Off: off, N: size, Flags: flags})
	status = c.bring(b, false, blocking, off, size, at, fetch)
	e, status := c.close(status)
	if status != cl.SUCCESS {
		b.maps.Take(at.Address())
		return api.HostPtr{}, 0, status
	}
	if blocking {
		q.ctx.mirrors.Sync()
	}
	return at, e, cl.SUCCESS
}

func (d *Driver) mapAccess(queue, buffer uintptr, flags uint64) (*Queue, *Buffer, api.Status) {
	q, status := d.liveQueue(queue)
	if status != cl.SUCCESS {
		return nil, nil, status
	}
	b, status := d.buffer(q, buffer)
	if status != cl.SUCCESS {
		return nil, nil, status
	}
	if status := b.mapFlags(flags); status != cl.SUCCESS {
		return nil, nil, status
	}
	return q, b, b.placed(q)
}

// mapped returns where a map shows the range, and what must be done before its contents are right: nil for nothing.
func (b *Buffer) mapped(off, size, flags uint64) (api.HostPtr, func() api.Status, api.Status) {
	root := b.root
	at := b.origin + off
	if m := root.mirror; m != nil {
		return root.host.Plus(at), m.Fetch, cl.SUCCESS
	}
	if in := b.bytes(); in != nil {
		if root.svm != nil {
			return api.HostBytes(root.svm[at:]), nil, cl.SUCCESS
		}
		return api.HostBytes(in[off:]), nil, cl.SUCCESS
	}
	shadow, status := root.shadowed()
	if status != cl.SUCCESS {
		return api.HostPtr{}, nil, status
	}
	part := shadow[at : at+size]
	shown := api.HostBytes(part)
	if root.svm != nil { // the shadow may be another view of the same memory
		shown = api.HostBytes(root.svm[at:])
	}
	if flags&cl.MAP_WRITE_INVALIDATE_REGION != 0 {
		return shown, nil, cl.SUCCESS
	}
	return shown, func() api.Status { return root.load(at, part) }, cl.SUCCESS
}

// shadowed returns the memory that maps of a buffer out of place show.
func (b *Buffer) shadowed() ([]byte, api.Status) { return b.maps.Shadow(b.shadowBytes()) }

// bring carries out a map or an unmap of [off, off+size), shown at an address; by is how this side moves the bytes
// itself, nil where there are none to move.
func (c *command) bring(b *Buffer, write, blocking bool, off, size uint64, at api.HostPtr,
	by func() api.Status) api.Status {
	if by == nil {
		return c.order(blocking)
	}
	return c.carryOut(&ways.Transfer{Purpose: transfer.Map, Buffer: b, Write: write, Blocking: blocking,
		Device: clwire.Shape{Offset: off, Size: size}, Host: ways.Linear(at, size),
		Fetch: by, Shown: b.root, ShownAt: b.origin + off,
		Shared: b.root.maps.Segment(), SharedAt: b.origin + off, Program: b.root.mirror != nil})
}

// order puts a command in its place that has nothing to do. Most often nothing comes before it either: that is decided
// here, as the table of package transfer does (way none), because a map in place costs half as much without a Transfer.
func (c *command) order(blocking bool) api.Status {
	if c.graph != nil {
		return cl.SUCCESS
	}
	if q := c.q.State(); len(c.wait) == 0 && (q.Idle || q.OutOfOrder && !q.Gated) && !c.timed() {
		if c.e != nil {
			c.e.EndHere(cl.SUCCESS)
		}
		return cl.SUCCESS
	}
	return c.carryOut(&ways.Transfer{Purpose: transfer.Map, Blocking: blocking})
}

// EnqueueUnmap is clEnqueueUnmapMemObject (§5.5.3).
func (d *Driver) EnqueueUnmap(queue, buffer uintptr, ptr api.HostPtr, w api.Waits) (uintptr, api.Status) {
	q, status := d.liveQueue(queue)
	if status != cl.SUCCESS {
		return 0, status
	}
	b, status := d.memObject(q, buffer)
	if status != cl.SUCCESS {
		return 0, status
	}
	if ptr.Nil() {
		return 0, cl.INVALID_VALUE
	}
	if status := d.checkWaits(q.ctx, w); status != cl.SUCCESS {
		return 0, status
	}
	m, ok := b.maps.Take(ptr.Address())
	if !ok {
		return 0, cl.INVALID_VALUE
	}
	return d.unmap(q, b, cl.COMMAND_UNMAP_MEM_OBJECT, m, w)
}

// unmap ends a map that was taken, by a command of a kind.
func (d *Driver) unmap(q *Queue, b *Buffer, kind uint32, m mapped.Map, w api.Waits) (uintptr, api.Status) {
	var c command
	status := d.open(&c, q, kind, &w)
	if status != cl.SUCCESS {
		b.maps.Add(m)
		return c.close(status)
	}
	if m.Image != nil {
		return c.close(c.unmapImage(b, m.Flags, m.Image))
	}
	return c.close(c.bring(b, true, false, m.Off, m.N, api.NewHostPtr(m.Address), b.unmapping(m)))
}

// unmapping returns what an unmap must do: nil for nothing.
func (b *Buffer) unmapping(m mapped.Map) func() api.Status {
	if m.Flags&(cl.MAP_WRITE|cl.MAP_WRITE_INVALIDATE_REGION) == 0 {
		return nil
	}
	root := b.root
	if root.mirror != nil {
		root.mirror.Written()
		return nil
	}
	if b.bytes() != nil {
		return nil
	}
	at := b.origin + m.Off
	return func() api.Status {
		shadow := root.maps.Shown()
		if shadow == nil {
			return cl.INVALID_MEM_OBJECT
		}
		return root.store(at, shadow[at:at+m.N])
	}
}
