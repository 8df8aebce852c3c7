package session

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/transfer"
	"tendril/forwarding/session/ways"
)

func emptyRegion(region [3]uint64) bool { return region[0] == 0 || region[1] == 0 || region[2] == 0 }

// sidesOf checks a read's or write's geometry; the host's side has no size to check against.
func sidesOf(r *api.Rect, b *Buffer) (dev, host transfer.Box, status api.Status) {
	if r.MissingBuffer || r.MissingHost || r.MissingRegionArray || emptyRegion(r.Region) {
		return dev, host, cl.INVALID_VALUE
	}
	for _, n := range r.Region {
		if n > maxHostBytes {
			return dev, host, cl.INVALID_VALUE
		}
	}
	dev = transfer.Box{Origin: r.BufferOrigin, Row: r.BufferRow, Slice: r.BufferSlice}
	host = transfer.Box{Origin: r.HostOrigin, Row: r.HostRow, Slice: r.HostSlice}
	if !dev.Pitched(r.Region) || !host.Pitched(r.Region) {
		return dev, host, cl.INVALID_VALUE
	}
	if end, ok := dev.End(r.Region); !ok || end > b.size {
		return dev, host, cl.INVALID_VALUE
	}
	if _, ok := host.End(r.Region); !ok {
		return dev, host, cl.INVALID_VALUE
	}
	return dev, host, cl.SUCCESS
}

// EnqueueReadRect is clEnqueueReadBufferRect (§5.2.2).
func (d *Driver) EnqueueReadRect(queue, buffer uintptr, blocking bool, r api.Rect, ptr api.HostPtr,
	w api.Waits) (uintptr, api.Status) {
	return d.moveRect(queue, buffer, blocking, r, ptr, w, clwire.FromBuffer)
}

// EnqueueWriteRect is clEnqueueWriteBufferRect (§5.2.2).
func (d *Driver) EnqueueWriteRect(queue, buffer uintptr, blocking bool, r api.Rect, ptr api.HostPtr,
	w api.Waits) (uintptr, api.Status) {
	return d.moveRect(queue, buffer, blocking, r, ptr, w, clwire.ToBuffer)
}

func (d *Driver) moveRect(queue, buffer uintptr, blocking bool, r api.Rect, ptr api.HostPtr, w api.Waits,
	direction uint8) (uintptr, api.Status) {
	kind, denied := uint32(cl.COMMAND_READ_BUFFER_RECT), uint64(cl.MEM_HOST_WRITE_ONLY|cl.MEM_HOST_NO_ACCESS)
	if direction == clwire.ToBuffer {
		kind, denied = cl.COMMAND_WRITE_BUFFER_RECT, cl.MEM_HOST_READ_ONLY|cl.MEM_HOST_NO_ACCESS
	}
	q, b, status := d.access(queue, buffer, denied, w)
	if status != cl.SUCCESS {
		return 0, status
	}
	if ptr.Nil() {
		return 0, cl.INVALID_VALUE
	}
	dev, host, status := sidesOf(&r, b)
	if status != cl.SUCCESS {
		return 0, status
	}
	var c command
	status = d.open(&c, q, kind, &w)
	if status == cl.SUCCESS {
		status = c.touches(b, direction == clwire.ToBuffer)
	}
	if status != cl.SUCCESS {
		return c.close(status)
	}
	side := ways.Host{Ptr: ptr, Side: transfer.Side{
		Size: r.Region[0] * r.Region[1] * r.Region[2], Rect: true, Box: host, Region: r.Region,
	}}
	t := ways.Transfer{Buffer: b, Write: direction == clwire.ToBuffer, Blocking: blocking,
		Device: dev.Shape(r.Region), Host: side}
	status = c.carryOut(&t)
	if status == cl.SUCCESS && blocking {
		q.ctx.mirrors.Sync()
	}
	return c.close(status)
}

// EnqueueCopyRect is clEnqueueCopyBufferRect (§5.2.4); the Rect's buffer side is the source, its host side the target.
func (d *Driver) EnqueueCopyRect(queue, src, dst uintptr, r api.Rect, w api.Waits) (uintptr, api.Status) {
	q, s, t, status := d.pair(queue, src, dst)
	if status != cl.SUCCESS {
		return 0, status
	}
	from, to, status := sidesOf(&r, s)
	if status != cl.SUCCESS {
		return 0, status
	}
	if end, ok := to.End(r.Region); !ok || end > t.size {
		return 0, cl.INVALID_VALUE
	}
	if s == t && (from.Row != to.Row || from.Slice != to.Slice) {
		return 0, cl.INVALID_VALUE
	}
	if s.root == t.root && transfer.Overlap(s.origin, from, t.origin, to, r.Region) {
		return 0, cl.MEM_COPY_OVERLAP
	}
	c, status := d.openPair(q, cl.COMMAND_COPY_BUFFER_RECT, w, s, t)
	if status != cl.SUCCESS {
		return c.close(status)
	}
	if r.Region[1] == 1 && r.Region[2] == 1 { // one row: pitches, which a driver might mind, do not matter
		m := &clwire.Copy{Src: s.id.Load(), Dst: t.id.Load(), SrcOffset: from.Offset(0, 0), DstOffset: to.Offset(0, 0),
			Size: r.Region[0]}
		return c.close(c.send(m, &m.Cmd))
	}
	m := &clwire.CopyRect{
		Src: s.id.Load(), Dst: t.id.Load(), SrcOrigin: from.Origin, DstOrigin: to.Origin, Region: r.Region,
		SrcRow: from.Row, SrcSlice: from.Slice, DstRow: to.Row, DstSlice: to.Slice,
	}
	return c.close(c.send(m, &m.Cmd))
}
