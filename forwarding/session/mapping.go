package session

import (
	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
)

// EnqueueMap is clEnqueueMapBuffer (§5.2.3). The address is known at once; its contents are when the event has ended.
func (d *Driver) EnqueueMap(queue, buffer uintptr, blocking bool, flags, off, size uint64, w Waits) (HostPtr, uintptr, Status) {
	q, b, status := d.mapAccess(queue, buffer, flags)
	if status != Success {
		return HostPtr{}, 0, status
	}
	if !b.inside(off, size) || size == 0 {
		return HostPtr{}, 0, InvalidValue
	}
	c, status := d.open(q, cmdMap, w)
	if status == Success {
		// A map for writing counts as a write now: what was published must not change under its readers. The
		// program's own memory gets its word at the unmap.
		status = c.touches(b, flags&^mapRead != 0 && b.root.mirror == nil)
	}
	if status != Success {
		e, status := c.close(status)
		return HostPtr{}, e, status
	}
	b.root.shareShadow(q)
	at, fetch, status := b.mapped(off, size, flags)
	if status != Success {
		e, status := c.close(status)
		return HostPtr{}, e, status
	}
	b.addMapping(mapping{address: at.Address(), off: off, n: size, flags: flags})
	seg := b.root.shadowSegment()
	switch {
	case fetch != nil && seg != nil:
		status = c.moveShadow(b.root, seg, clwire.FromBuffer, blocking, b.origin+off, size)
	case q.ctx.remote && fetch != nil && b.root.mirror == nil:
		status = c.bulk(b, false, blocking, clwire.Shape{Offset: off, Size: size}, linear(at, size), b.root)
	default:
		status = c.order(blocking, fetch, b.root)
	}
	e, status := c.close(status)
	if status != Success {
		b.takeMapping(at.Address())
		return HostPtr{}, 0, status
	}
	if blocking {
		q.ctx.syncHost()
	}
	return at, e, Success
}

func (d *Driver) mapAccess(queue, buffer uintptr, flags uint64) (*Queue, *Buffer, Status) {
	q, status := d.liveQueue(queue)
	if status != Success {
		return nil, nil, status
	}
	b, status := d.buffer(q, buffer)
	if status != Success {
		return nil, nil, status
	}
	if status := b.mapFlags(flags); status != Success {
		return nil, nil, status
	}
	return q, b, b.placed(q)
}

// mapped returns where a map shows the range, and what must be done before its contents are right: nil for nothing.
func (b *Buffer) mapped(off, size, flags uint64) (HostPtr, func() Status, Status) {
	root := b.root
	at := b.origin + off
	if m := root.mirror; m != nil {
		return root.host.plus(at), m.fetch, Success
	}
	if in := b.bytes(); in != nil {
		return pointerTo(in[off:]), nil, Success
	}
	shadow, status := root.shadowed()
	if status != Success {
		return HostPtr{}, nil, status
	}
	part := shadow[at : at+size]
	if flags&mapWriteInvalidate != 0 {
		return pointerTo(part), nil, Success
	}
	return pointerTo(part), func() Status { return root.load(at, part) }, Success
}

// shadowed returns the memory that maps of a buffer out of place show.
func (b *Buffer) shadowed() ([]byte, Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shadow == nil {
		shadow, err := unix.Mmap(-1, 0, int(b.shadowBytes()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return nil, MapFailure
		}
		b.shadow = shadow
	}
	return b.shadow, Success
}

// order puts a command in its place whose work may be nothing (nil). shown is the root whose
// shadow the work fills.
func (c *command) order(blocking bool, work func() Status, shown *Buffer) Status {
	if c.graph != nil {
		return Success // nothing to do at any time
	}
	if work != nil {
		h := hostWork{q: c.q, kind: c.kind, wait: c.wait, event: c.e, blocking: blocking, prompt: c.q.ctx.inPlace, work: work}
		h.keeps(shown)
		return h.run()
	}
	h := hostWork{q: c.q, kind: c.kind, wait: c.wait, event: c.e, blocking: blocking, prompt: true, work: func() Status { return Success }}
	switch {
	case blocking, h.free():
		return h.run()
	case c.e == nil && len(c.wait) == 0:
		return Success // nobody can see when it runs
	}
	m := &clwire.Marker{}
	return c.send(m, &m.Cmd)
}

func (b *Buffer) addMapping(m mapping) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.maps = append(b.maps, m)
}

// takeMapping removes the latest mapping at an address.
func (b *Buffer) takeMapping(address uintptr) (mapping, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := len(b.maps) - 1; i >= 0; i-- {
		if b.maps[i].address == address {
			m := b.maps[i]
			b.maps = append(b.maps[:i], b.maps[i+1:]...)
			return m, true
		}
	}
	return mapping{}, false
}

// EnqueueUnmap is clEnqueueUnmapMemObject (§5.5.3).
func (d *Driver) EnqueueUnmap(queue, buffer uintptr, ptr HostPtr, w Waits) (uintptr, Status) {
	q, status := d.liveQueue(queue)
	if status != Success {
		return 0, status
	}
	b, status := d.memObject(q, buffer)
	if status != Success {
		return 0, status
	}
	if ptr.Nil() {
		return 0, InvalidValue
	}
	if status := d.checkWaits(q.ctx, w); status != Success {
		return 0, status
	}
	m, ok := b.takeMapping(ptr.Address())
	if !ok {
		return 0, InvalidValue
	}
	c, status := d.open(q, cmdUnmap, w)
	if status != Success {
		b.addMapping(m)
		return c.close(status)
	}
	if m.image != nil {
		return c.close(c.unmapImage(b, m.flags, m.image))
	}
	work := b.unmapping(m)
	if q.ctx.remote && work != nil {
		return c.close(c.bulk(b, true, false, clwire.Shape{Offset: m.off, Size: m.n}, linear(NewHostPtr(m.address), m.n), b.root))
	}
	if seg := b.root.shadowSegment(); work != nil && seg != nil {
		return c.close(c.moveShadow(b.root, seg, clwire.ToBuffer, false, b.origin+m.off, m.n))
	}
	if work != nil {
		return c.close(c.pushShadow(b.root, work))
	}
	return c.close(c.order(false, nil, nil))
}

// unmapping returns what an unmap must do: nil for nothing.
func (b *Buffer) unmapping(m mapping) func() Status {
	if m.flags&(mapWrite|mapWriteInvalidate) == 0 {
		return nil
	}
	root := b.root
	if root.mirror != nil {
		root.mirror.written()
		return nil
	}
	if b.bytes() != nil {
		return nil
	}
	at := b.origin + m.off
	return func() Status {
		root.mu.Lock()
		shadow := root.shadow
		root.mu.Unlock()
		if shadow == nil {
			return InvalidMemObject
		}
		return root.store(at, shadow[at:at+m.n])
	}
}
