package session

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/geometry"
)

// EnqueueCopyImage is clEnqueueCopyImage (§5.3.4); r.Origin is the source's.
func (d *Driver) EnqueueCopyImage(queue, src, dst uintptr, r api.ImageRegion, to [3]uint64, w api.Waits) (uintptr,
	api.Status) {
	q, status := d.liveQueue(queue)
	if status != cl.SUCCESS {
		return 0, status
	}
	s, status := d.image(q, src)
	if status != cl.SUCCESS {
		return 0, status
	}
	t, status := d.image(q, dst)
	if status != cl.SUCCESS {
		return 0, status
	}
	if s.image.Format != t.image.Format {
		return 0, cl.IMAGE_FORMAT_MISMATCH
	}
	if !s.image.Holds(&r) || !t.image.Inside(to, r.Region) {
		return 0, cl.INVALID_VALUE
	}
	if s == t && geometry.Overlap(r.Origin, to, r.Region) || s.linear() && t.linear() && s.root == t.root &&
		geometry.SpansMeet(s.parent.origin+s.image.Bytes(r.Origin)[0], t.parent.origin+t.image.Bytes(to)[0],
			s.image.Bytes(r.Region)[0]) {
		return 0, cl.MEM_COPY_OVERLAP
	}
	c, status := d.openPair(q, cl.COMMAND_COPY_IMAGE, w, s, t)
	if status != cl.SUCCESS {
		return c.close(status)
	}
	if s.linear() || t.linear() {
		return c.close(c.copyLinear(s, t, r.Origin, to, r.Region))
	}
	m := &clwire.CopyImage{Src: s.id.Load(), Dst: t.id.Load(), SrcOrigin: r.Origin, DstOrigin: to, Region: r.Region}
	return c.close(c.send(m, &m.Cmd))
}

// copyLinear copies between images of which one at least is linear: to and from that one it is a copy of its buffer.
// Some drivers do not survive it otherwise.
func (c *command) copyLinear(s, t *Buffer, from, to, region [3]uint64) api.Status {
	src, dst := s.image.Bytes(from)[0], t.image.Bytes(to)[0]
	switch {
	case s.linear() && t.linear():
		m := &clwire.Copy{Src: s.parent.id.Load(), Dst: t.parent.id.Load(), SrcOffset: src, DstOffset: dst,
			Size: s.image.Bytes(region)[0]}
		return c.send(m, &m.Cmd)
	case s.linear():
		m := &clwire.CopyImageBuffer{Direction: clwire.BufferToImage, Image: t.id.Load(), Buffer: s.parent.id.Load(),
			Offset: src, Origin: to, Region: region}
		return c.send(m, &m.Cmd)
	}
	m := &clwire.CopyImageBuffer{Direction: clwire.ImageToBuffer, Image: s.id.Load(), Buffer: t.parent.id.Load(),
		Offset: dst, Origin: from, Region: region}
	return c.send(m, &m.Cmd)
}

// EnqueueCopyImageBuffer is clEnqueueCopyImageToBuffer (toBuffer) or clEnqueueCopyBufferToImage (§5.3.5); offset in
// bytes.
func (d *Driver) EnqueueCopyImageBuffer(toBuffer bool, queue, image, buffer uintptr, r api.ImageRegion, offset uint64,
	w api.Waits) (uintptr, api.Status) {
	q, status := d.liveQueue(queue)
	if status != cl.SUCCESS {
		return 0, status
	}
	im, status := d.image(q, image)
	if status != cl.SUCCESS {
		return 0, status
	}
	b, status := d.buffer(q, buffer)
	if status != cl.SUCCESS {
		return 0, status
	}
	if !im.image.Holds(&r) {
		return 0, cl.INVALID_VALUE
	}
	region := im.image.Bytes(r.Region)
	if !b.inside(offset, region[0]*region[1]*region[2]) {
		return 0, cl.INVALID_VALUE
	}
	if status := b.placed(q); status != cl.SUCCESS {
		return 0, status
	}
	n, start := region[0]*region[1]*region[2], im.image.Bytes(r.Origin)[0]
	if im.linear() && im.parent.root == b.root && geometry.SpansMeet(im.parent.origin+start, b.origin+offset, n) {
		return 0, cl.MEM_COPY_OVERLAP
	}
	m := &clwire.CopyImageBuffer{Direction: clwire.BufferToImage, Offset: offset, Origin: r.Origin, Region: r.Region}
	kind, from, to := uint32(cl.COMMAND_COPY_BUFFER_TO_IMAGE), b, im
	if toBuffer {
		m.Direction = clwire.ImageToBuffer
		kind, from, to = cl.COMMAND_COPY_IMAGE_TO_BUFFER, im, b
	}
	c, status := d.openPair(q, kind, w, from, to)
	if status != cl.SUCCESS {
		return c.close(status)
	}
	if im.linear() {
		m := &clwire.Copy{Src: b.id.Load(), SrcOffset: offset, Dst: im.parent.id.Load(), DstOffset: start, Size: n}
		if toBuffer {
			m = &clwire.Copy{Src: im.parent.id.Load(), SrcOffset: start, Dst: b.id.Load(), DstOffset: offset, Size: n}
		}
		return c.close(c.send(m, &m.Cmd))
	}
	m.Image, m.Buffer = im.id.Load(), b.id.Load()
	return c.close(c.send(m, &m.Cmd))
}

// EnqueueFillImage is clEnqueueFillImage (§5.3.6): color is four components of 32 bits, of a depth image one.
func (d *Driver) EnqueueFillImage(queue, image uintptr, color api.HostPtr, r api.ImageRegion, w api.Waits) (uintptr,
	api.Status) {
	q, status := d.liveQueue(queue)
	if status != cl.SUCCESS {
		return 0, status
	}
	b, status := d.image(q, image)
	if status != cl.SUCCESS {
		return 0, status
	}
	if color.Nil() || !b.image.Holds(&r) {
		return 0, cl.INVALID_VALUE
	}
	var c command
	status = d.open(&c, q, cl.COMMAND_FILL_IMAGE, &w)
	if status == cl.SUCCESS {
		status = c.uses(b, true)
	}
	if status != cl.SUCCESS {
		return c.close(status)
	}
	m := &clwire.FillImage{Image: b.id.Load(), Origin: r.Origin, Region: r.Region}
	copy(m.Color[:], color.Bytes(0, b.image.ColorBytes()))
	return c.close(c.send(m, &m.Cmd))
}
