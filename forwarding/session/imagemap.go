package session

import (
	"tendril/forwarding/clwire"
)

// imageMapping is the part of a mapping that images have: what is shown (x of the region in bytes), and how it lies
// from base on.
type imageMapping struct {
	origin, region [3]uint64
	base           HostPtr
	layout         box
}

// ImageMap is what clEnqueueMapImage answers; pitches in bytes.
type ImageMap struct {
	At         HostPtr
	Row, Slice uint64
	Event      uintptr
}

// EnqueueMapImage is clEnqueueMapImage (§5.3.7). hasSlice: the program takes a slice pitch. The address and the pitches
// are known at once; the contents are when the event has ended.
func (d *Driver) EnqueueMapImage(queue, image uintptr, blocking bool, flags uint64, r ImageRegion, hasSlice bool, w Waits) (ImageMap, Status) {
	q, b, status := d.mapImageAccess(queue, image, flags, &r)
	if status == Success && !hasSlice && b.image.sliced() {
		status = InvalidValue
	}
	if status != Success {
		return ImageMap{}, status
	}
	c, status := d.open(q, cmdMapImage, w)
	if status == Success {
		status = c.touches(b, flags&^mapRead != 0 && b.root.mirror == nil) // as for buffers: see EnqueueMap
	}
	if status != Success {
		_, status = c.close(status)
		return ImageMap{}, status
	}
	m, status := c.mapImage(b, blocking, flags, &r)
	if m.Event, status = c.close(status); status != Success {
		return ImageMap{}, status
	}
	if blocking {
		q.ctx.syncHost()
	}
	return m, Success
}

// mapImage books the mapping and brings its contents.
func (c *command) mapImage(b *Buffer, blocking bool, flags uint64, r *ImageRegion) (ImageMap, Status) {
	shown, status := b.showImage(r)
	if status != Success {
		return ImageMap{}, status
	}
	m := ImageMap{At: shown.base.plus(shown.layout.offset(0, 0))}
	m.Row, m.Slice = b.image.mapPitches(&shown.layout)
	b.addMapping(mapping{address: m.At.Address(), flags: flags, image: &shown})
	if status = c.fetchImage(b, blocking, flags, &shown); status != Success {
		b.takeMapping(m.At.Address())
	}
	return m, status
}

func (d *Driver) mapImageAccess(queue, image uintptr, flags uint64, r *ImageRegion) (*Queue, *Buffer, Status) {
	q, status := d.liveQueue(queue)
	if status != Success {
		return nil, nil, status
	}
	b, status := d.image(q, image)
	if status != Success {
		return nil, nil, status
	}
	if status := b.mapFlags(flags); status != Success {
		return nil, nil, status
	}
	if !b.image.holds(r) {
		return nil, nil, InvalidValue
	}
	return q, b, Success
}

// mapFlags checks what a map asks for against what the object allows.
func (b *Buffer) mapFlags(flags uint64) Status {
	if flags&^(mapRead|mapWrite|mapWriteInvalidate) != 0 || flags&mapWriteInvalidate != 0 && flags&(mapRead|mapWrite) != 0 {
		return InvalidValue
	}
	reads, writes := flags&mapRead != 0, flags&(mapWrite|mapWriteInvalidate) != 0
	if reads && b.flags&(memHostWriteOnly|memHostNoAccess) != 0 || writes && b.flags&(memHostReadOnly|memHostNoAccess) != 0 {
		return InvalidOperation
	}
	return Success
}

// showImage says where a map shows a region: in the program's own memory, in the buffer under the image, or in memory
// of this side's, the whole image without gaps.
func (b *Buffer) showImage(r *ImageRegion) (imageMapping, Status) {
	im := b.image
	m := imageMapping{origin: r.Origin, region: im.bytes(r.Region)}
	switch {
	case im.under != nil:
		m.layout = im.underBox(r.Origin, m.region)
		m.layout.slice = im.underRow * im.extent[1]
		return m, m.under(im.under)
	case b.mirror != nil:
		m.base, m.layout = b.host, im.host
	default:
		shadow, status := b.shadowed()
		if status != Success {
			return m, status
		}
		m.base = pointerTo(shadow)
		width := im.extent[0] * im.elementBytes
		m.layout = box{row: width, slice: width * im.extent[1]}
	}
	m.layout.origin = im.bytes(r.Origin)
	return m, Success
}

// under finds the memory that maps of a buffer show.
func (m *imageMapping) under(b *Buffer) Status {
	if b.root.mirror != nil {
		m.base = b.root.host.plus(b.origin)
		return Success
	}
	if in := b.bytes(); in != nil {
		m.base = pointerTo(in)
		return Success
	}
	shadow, status := b.root.shadowed()
	if status == Success {
		m.base = pointerTo(shadow[b.origin:])
	}
	return status
}

// mapPitches are what clEnqueueMapImage answers: no slice pitch where the image has none.
func (im *image) mapPitches(layout *box) (row, slice uint64) {
	switch {
	case !im.sliced():
		return layout.row, 0
	case im.desc.Kind == image1DArray:
		return max(im.extent[0]*im.elementBytes, min(im.row, layout.row)), layout.row
	}
	return layout.row, layout.slice
}

// sliced says whether the image has a slice pitch.
func (im *image) sliced() bool {
	switch im.desc.Kind {
	case image1D, image1DBuffer, image2D:
		return false
	}
	return true
}

// direct says whether maps of the image show the very memory that the device computes on.
func (b *Buffer) direct() bool { return b.image.under != nil && b.image.under.bytes() != nil }

// fetchImage puts the map into its place among the commands, and its contents where it shows them.
func (c *command) fetchImage(b *Buffer, blocking bool, flags uint64, m *imageMapping) Status {
	switch {
	case b.root.mirror != nil:
		return c.order(blocking, b.root.mirror.fetch, b.root)
	case flags&mapWriteInvalidate != 0 || b.direct():
		return c.order(blocking, nil, nil)
	}
	return c.moveImage(b, clwire.FromBuffer, blocking, m.origin, m.region, m.layout, m.base, b.shadowOwner())
}

// shadowOwner is the object whose shadow maps show.
func (b *Buffer) shadowOwner() *Buffer {
	if b.image.under != nil {
		return b.root
	}
	return b
}

// pushShadow brings what the program wrote into a shadow to the device, in its turn.
func (c *command) pushShadow(owner *Buffer, push func() Status) Status {
	h := hostWork{q: c.q, kind: c.kind, wait: c.wait, event: c.e, work: push}
	h.keeps(owner)
	return h.run()
}

// unmapImage is the unmap's half of fetchImage.
func (c *command) unmapImage(b *Buffer, flags uint64, m *imageMapping) Status {
	switch {
	case flags&(mapWrite|mapWriteInvalidate) == 0:
		return c.order(false, nil, nil)
	case b.root.mirror != nil:
		b.root.mirror.written()
		return c.order(false, nil, nil)
	case b.direct():
		return c.order(false, nil, nil)
	}
	owner := b.shadowOwner()
	if c.q.ctx.remote {
		return c.moveImage(b, clwire.ToBuffer, false, m.origin, m.region, m.layout, m.base, owner)
	}
	return c.pushShadow(owner, func() Status { return b.moveImage(clwire.ToBuffer, m.origin, m.region, m.layout, m.base) })
}
