package session

import (
	"tendril/forwarding/clwire"
)

// EnqueueCopyImage is clEnqueueCopyImage (§5.3.4); r.Origin is the source's.
func (d *Driver) EnqueueCopyImage(queue, src, dst uintptr, r ImageRegion, to [3]uint64, w Waits) (uintptr, Status) {
	q, status := d.liveQueue(queue)
	if status != Success {
		return 0, status
	}
	s, status := d.image(q, src)
	if status != Success {
		return 0, status
	}
	t, status := d.image(q, dst)
	if status != Success {
		return 0, status
	}
	if s.image.format != t.image.format {
		return 0, ImageFormatMismatch
	}
	if !s.image.holds(&r) || !t.image.inside(to, r.Region) {
		return 0, InvalidValue
	}
	if s == t && overlap(r.Origin, to, r.Region) || s.linear() && t.linear() && s.root == t.root &&
		spansMeet(s.parent.origin+s.image.bytes(r.Origin)[0], t.parent.origin+t.image.bytes(to)[0], s.image.bytes(r.Region)[0]) {
		return 0, MemCopyOverlap
	}
	c, status := d.openPair(q, cmdCopyImage, w, s, t)
	if status != Success {
		return c.close(status)
	}
	if s.linear() || t.linear() {
		return c.close(c.copyLinear(s, t, r.Origin, to, r.Region))
	}
	m := &clwire.CopyImage{Src: s.id.Load(), Dst: t.id.Load(), SrcOrigin: r.Origin, DstOrigin: to, Region: r.Region}
	return c.close(c.send(m, &m.Cmd))
}

// linear says that the image's elements lie in a buffer one after another.
func (b *Buffer) linear() bool { return b.image.under != nil && b.image.desc.Kind == image1DBuffer }

// copyLinear copies between images of which one at least is linear: to and from that one it is a copy of its buffer.
// Some drivers do not survive it otherwise.
func (c *command) copyLinear(s, t *Buffer, from, to, region [3]uint64) Status {
	src, dst := s.image.bytes(from)[0], t.image.bytes(to)[0]
	if s.linear() && t.linear() {
		m := &clwire.Copy{Src: s.parent.id.Load(), Dst: t.parent.id.Load(), SrcOffset: src, DstOffset: dst, Size: s.image.bytes(region)[0]}
		return c.send(m, &m.Cmd)
	}
	m := &clwire.CopyImageBuffer{Direction: clwire.BufferToImage, Image: t.id.Load(), Buffer: s.parent.id.Load(), Offset: src, Origin: to, Region: region}
	if t.linear() {
		m = &clwire.CopyImageBuffer{Direction: clwire.ImageToBuffer, Image: s.id.Load(), Buffer: t.parent.id.Load(), Offset: dst, Origin: from, Region: region}
	}
	return c.send(m, &m.Cmd)
}

// overlap says whether two regions of one size share an element.
func overlap(a, b, region [3]uint64) bool {
	for i := range region {
		if max(a[i], b[i])-min(a[i], b[i]) >= region[i] {
			return false
		}
	}
	return true
}

// EnqueueCopyImageBuffer is clEnqueueCopyImageToBuffer (toBuffer) or clEnqueueCopyBufferToImage (§5.3.5); offset in bytes.
func (d *Driver) EnqueueCopyImageBuffer(toBuffer bool, queue, image, buffer uintptr, r ImageRegion, offset uint64, w Waits) (uintptr, Status) {
	q, status := d.liveQueue(queue)
	if status != Success {
		return 0, status
	}
	im, status := d.image(q, image)
	if status != Success {
		return 0, status
	}
	b, status := d.buffer(q, buffer)
	if status != Success {
		return 0, status
	}
	if !im.image.holds(&r) {
		return 0, InvalidValue
	}
	region := im.image.bytes(r.Region)
	if !b.inside(offset, region[0]*region[1]*region[2]) {
		return 0, InvalidValue
	}
	if status := b.placed(q); status != Success {
		return 0, status
	}
	n, start := region[0]*region[1]*region[2], im.image.bytes(r.Origin)[0]
	if im.linear() && im.parent.root == b.root && spansMeet(im.parent.origin+start, b.origin+offset, n) {
		return 0, MemCopyOverlap
	}
	m := &clwire.CopyImageBuffer{Direction: clwire.BufferToImage, Offset: offset, Origin: r.Origin, Region: r.Region}
	kind, from, to := cmdCopyBufferToImage, b, im
	if toBuffer {
		m.Direction = clwire.ImageToBuffer
		kind, from, to = cmdCopyImageToBuffer, im, b
	}
	c, status := d.openPair(q, kind, w, from, to)
	if status != Success {
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

// spansMeet says whether two spans of n bytes share one.
func spansMeet(a, b, n uint64) bool { return a < b+n && b < a+n }

// EnqueueFillImage is clEnqueueFillImage (§5.3.6): color is four components of 32 bits, of a depth image one.
func (d *Driver) EnqueueFillImage(queue, image uintptr, color HostPtr, r ImageRegion, w Waits) (uintptr, Status) {
	q, status := d.liveQueue(queue)
	if status != Success {
		return 0, status
	}
	b, status := d.image(q, image)
	if status != Success {
		return 0, status
	}
	if color.Nil() || !b.image.holds(&r) {
		return 0, InvalidValue
	}
	c, status := d.open(q, cmdFillImage, w)
	if status == Success {
		status = c.uses(b, true)
	}
	if status != Success {
		return c.close(status)
	}
	m := &clwire.FillImage{Image: b.id.Load(), Origin: r.Origin, Region: r.Region}
	copy(m.Color[:], color.bytes(0, b.image.colorBytes()))
	return c.close(c.send(m, &m.Cmd))
}

// colorBytes is how much of a fill color the program has to give.
func (im *image) colorBytes() uint64 {
	const depth = 0x10BD
	if im.format.Order == depth {
		return 4
	}
	return clwire.ColorBytes
}
