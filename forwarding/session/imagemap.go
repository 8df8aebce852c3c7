package session

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/session/mapped"
	"tendril/forwarding/session/transfer"
	"tendril/forwarding/session/ways"
)

// EnqueueMapImage is clEnqueueMapImage (§5.3.7). hasSlice: the program takes a slice pitch. The address and the pitches
// are known at once; the contents are when the event has ended.
func (d *Driver) EnqueueMapImage(queue, image uintptr, blocking bool, flags uint64, r api.ImageRegion, hasSlice bool,
	w api.Waits) (api.ImageMap, api.Status) {
	q, b, status := d.mapImageAccess(queue, image, flags, &r)
	if status == cl.SUCCESS && !hasSlice && b.image.Sliced() {
		status = cl.INVALID_VALUE
	}
	if status != cl.SUCCESS {
		return api.ImageMap{}, status
	}
	var c command
	status = d.open(&c, q, cl.COMMAND_MAP_IMAGE, &w)
	if status == cl.SUCCESS {
		status = c.touches(b, flags&^cl.MAP_READ != 0 && b.root.mirror == nil) // as for buffers: see EnqueueMap
	}
	if status != cl.SUCCESS {
		_, status = c.close(status)
		return api.ImageMap{}, status
	}
	m, status := c.mapImage(b, blocking, flags, &r)
	if m.Event, status = c.close(status); status != cl.SUCCESS {
		return api.ImageMap{}, status
	}
	if blocking {
		q.ctx.mirrors.Sync()
	}
	return m, cl.SUCCESS
}

// mapImage books the mapping and brings its contents.
func (c *command) mapImage(b *Buffer, blocking bool, flags uint64, r *api.ImageRegion) (api.ImageMap, api.Status) {
	shown, status := b.showImage(r)
	if status != cl.SUCCESS {
		return api.ImageMap{}, status
	}
	m := api.ImageMap{At: shown.Base.Plus(shown.Layout.Offset(0, 0))}
	m.Row, m.Slice = b.image.MapPitches(&shown.Layout)
	b.maps.Add(mapped.Map{Address: m.At.Address(), Flags: flags, Image: &shown})
	if status = c.fetchImage(b, blocking, flags, &shown); status != cl.SUCCESS {
		b.maps.Take(m.At.Address())
	}
	return m, status
}

func (d *Driver) mapImageAccess(queue, image uintptr, flags uint64, r *api.ImageRegion) (*Queue, *Buffer, api.Status) {
	q, status := d.liveQueue(queue)
	if status != cl.SUCCESS {
		return nil, nil, status
	}
	b, status := d.image(q, image)
	if status != cl.SUCCESS {
		return nil, nil, status
	}
	if status := b.mapFlags(flags); status != cl.SUCCESS {
		return nil, nil, status
	}
	if !b.image.Holds(r) {
		return nil, nil, cl.INVALID_VALUE
	}
	return q, b, cl.SUCCESS
}

// mapFlags checks what a map asks for against what the object allows.
func (b *Buffer) mapFlags(flags uint64) api.Status {
	if flags&^(cl.MAP_READ|cl.MAP_WRITE|cl.MAP_WRITE_INVALIDATE_REGION) != 0 ||
		flags&cl.MAP_WRITE_INVALIDATE_REGION != 0 && flags&(cl.MAP_READ|cl.MAP_WRITE) != 0 {
		return cl.INVALID_VALUE
	}
	reads, writes := flags&cl.MAP_READ != 0, flags&(cl.MAP_WRITE|cl.MAP_WRITE_INVALIDATE_REGION) != 0
	if reads && b.flags&(cl.MEM_HOST_WRITE_ONLY|cl.MEM_HOST_NO_ACCESS) != 0 ||
		writes && b.flags&(cl.MEM_HOST_READ_ONLY|cl.MEM_HOST_NO_ACCESS) != 0 {
		return cl.INVALID_OPERATION
	}
	return cl.SUCCESS
}

// showImage says where a map shows a region: in the program's own memory, in the buffer under the image, or in memory
// of this side's, the whole image without gaps.
func (b *Buffer) showImage(r *api.ImageRegion) (mapped.Image, api.Status) {
	im := b.image
	m := mapped.Image{Origin: r.Origin, Region: im.Bytes(r.Region)}
	switch {
	case im.under != nil:
		m.Layout = im.UnderBox(r.Origin, m.Region)
		m.Layout.Slice = im.UnderRow * im.Extent[1]
		return m, showUnder(&m, im.under)
	case b.mirror != nil:
		m.Base, m.Layout = b.host, im.Host
	default:
		shadow, status := b.shadowed()
		if status != cl.SUCCESS {
			return m, status
		}
		m.Base = api.HostBytes(shadow)
		m.Layout = im.DenseBox()
	}
	m.Layout.Origin = im.Bytes(r.Origin)
	return m, cl.SUCCESS
}

// showUnder finds the memory that maps of a buffer show.
func showUnder(m *mapped.Image, b *Buffer) api.Status {
	if b.root.mirror != nil {
		m.Base = b.root.host.Plus(b.origin)
		return cl.SUCCESS
	}
	if in := b.bytes(); in != nil {
		m.Base = api.HostBytes(in)
		return cl.SUCCESS
	}
	shadow, status := b.root.shadowed()
	if status == cl.SUCCESS {
		m.Base = api.HostBytes(shadow[b.origin:])
	}
	return status
}

// direct says whether maps of the image show the very memory that the device computes on.
func (b *Buffer) direct() bool { return b.image.under != nil && b.image.under.bytes() != nil }

// fetchImage puts the map into its place among the commands, and its contents where it shows them.
func (c *command) fetchImage(b *Buffer, blocking bool, flags uint64, m *mapped.Image) api.Status {
	if m := b.root.mirror; m == nil && (flags&cl.MAP_WRITE_INVALIDATE_REGION != 0 || b.direct()) {
		return c.order(blocking)
	}
	t := b.mapImageTransfer(false, blocking, m)
	if b.root.mirror != nil {
		t.Program, t.Fetch, t.Shown = true, b.root.mirror.Fetch, b.root
	}
	return c.carryOut(&t)
}

// mapImageTransfer is the transfer of a map or an unmap of an image that shows a shadow.
func (b *Buffer) mapImageTransfer(write, blocking bool, m *mapped.Image) ways.Transfer {
	t := b.imageTransfer(write, blocking, m.Origin, m.Region, b.hostSide(m.Region, m.Layout, m.Base))
	t.Purpose, t.Shown = transfer.Map, b.shadowOwner()
	return t
}

// shadowOwner is the object whose shadow maps show.
func (b *Buffer) shadowOwner() *Buffer {
	if b.image.under != nil {
		return b.root
	}
	return b
}

// unmapImage is the unmap's half of fetchImage.
func (c *command) unmapImage(b *Buffer, flags uint64, m *mapped.Image) api.Status {
	writes := flags&(cl.MAP_WRITE|cl.MAP_WRITE_INVALIDATE_REGION) != 0
	if writes && b.root.mirror != nil {
		b.root.mirror.Written()
	}
	if !writes || b.root.mirror != nil || b.direct() {
		return c.order(false)
	}
	t := b.mapImageTransfer(true, false, m)
	return c.carryOut(&t)
}
