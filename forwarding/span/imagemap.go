package span

import (
	"tendril/forwarding/session"
)

// EnqueueMapImage is clEnqueueMapImage (§5.3.7): of the copy at the queue's member, or of the program's own memory.
func (d *Driver) EnqueueMapImage(queue, h uintptr, blocking bool, flags uint64, r session.ImageRegion, hasSlice bool, w session.Waits) (session.ImageMap, session.Status) {
	q, b, ok := d.image(queue, h)
	var shown session.ImageMap
	if !ok {
		_, status := notImage(q, b, queue, func(queue uintptr) (event uintptr, status session.Status) {
			shown, status = d.Driver.EnqueueMapImage(queue, h, blocking, flags, r, hasSlice, w)
			return 0, status
		})
		return shown, status
	}
	m := mapping{member: q.member, writes: flags&(mapWrite|mapWriteInvalidate) != 0}
	req := request{q: q, w: w, kind: commandMapImage, uses: []use{b.allOf(flags&mapWriteInvalidate == 0 || b.overwritten(r.Region).reads, false)}}
	if b.root.mirror != nil {
		m.host, m.region = true, &r
		shown = b.hostImage(&r)
		req.call = b.onMember(q, func(inner uintptr, w session.Waits) (uintptr, session.Status) {
			if !mappable(flags) || !hasSlice && b.image.sliced() {
				return 0, session.InvalidValue
			}
			return d.Driver.EnqueueReadImage(q.inner, inner, false, r, b.image.row, b.image.slicePitch(), shown.At, w)
		})
	} else {
		req.call = b.onMember(q, func(inner uintptr, w session.Waits) (event uintptr, status session.Status) {
			shown, status = d.Driver.EnqueueMapImage(q.inner, inner, false, flags, r, hasSlice, w)
			return shown.Event, status
		})
	}
	req.call = b.noting(&m, req.call, func() uintptr { return shown.At.Address() })
	event, status := req.run(blocking)
	if status != session.Success {
		return session.ImageMap{}, status
	}
	shown.Event = event
	return shown, session.Success
}

// hostImage is where a region lies in the program's own memory: under the image, or under its buffer.
func (b *Buffer) hostImage(r *session.ImageRegion) session.ImageMap {
	im := b.image
	shown := session.ImageMap{Row: im.row, Slice: im.slicePitch()}
	row, slice := im.row, im.slice
	if im.desc.Kind == image1DArray {
		row = im.slice
	}
	off := saturatedSum(r.Origin[0]*(im.rowBytes/im.extent[0]), saturated(r.Origin[1], row), saturated(r.Origin[2], slice))
	if off != ^uint64(0) { // else session finds that no such region is there
		shown.At = b.host.Plus(off)
	}
	return shown
}

// slicePitch is what calls give and get: none where the image has none.
func (im *image) slicePitch() uint64 {
	if im.sliced() {
		return im.slice
	}
	return 0
}

// unmapImage writes what a map of the program's own memory may have changed.
func (b *Buffer) unmapImage(q *Queue, inner uintptr, r *session.ImageRegion, ptr session.HostPtr, w session.Waits) (uintptr, session.Status) {
	return b.ctx.d.Driver.EnqueueWriteImage(q.inner, inner, false, *r, b.image.row, b.image.slicePitch(), ptr, w)
}
