package span

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// EnqueueMapImage is clEnqueueMapImage (§5.3.7): of the copy at the queue's member, or of the program's own memory.
func (d *Driver) EnqueueMapImage(queue, h uintptr, blocking bool, flags uint64, r api.ImageRegion, hasSlice bool,
	w api.Waits) (api.ImageMap, api.Status) {
	q, b, ok := d.image(queue, h)
	var shown api.ImageMap
	if !ok {
		_, status := notImage(q, b, queue, func(queue uintptr) (event uintptr, status api.Status) {
			shown, status = d.base.EnqueueMapImage(queue, h, blocking, flags, r, hasSlice, w)
			return 0, status
		})
		return shown, status
	}
	m := mapping{member: q.member, writes: flags&(cl.MAP_WRITE|cl.MAP_WRITE_INVALIDATE_REGION) != 0}
	req := request{q: q, w: w, kind: cl.COMMAND_MAP_IMAGE,
		uses: []use{b.allOf(flags&cl.MAP_WRITE_INVALIDATE_REGION == 0 || b.overwritten(r.Region).reads, false)}}
	if b.root.mirror != nil {
		m.host, m.region = true, &r
		shown = b.hostImage(&r)
		req.call = b.onMember(q, func(inner uintptr, w api.Waits) (uintptr, api.Status) {
			if !mappable(flags) || !hasSlice && b.image.sliced() {
				return 0, cl.INVALID_VALUE
			}
			return d.base.EnqueueReadImage(q.inner, inner, false, r, b.image.row, b.image.slicePitch(), shown.At, w)
		})
	} else {
		req.call = b.onMember(q, func(inner uintptr, w api.Waits) (event uintptr, status api.Status) {
			shown, status = d.base.EnqueueMapImage(q.inner, inner, false, flags, r, hasSlice, w)
			return shown.Event, status
		})
	}
	req.call = b.noting(&m, req.call, func() uintptr { return shown.At.Address() })
	event, status := req.run(blocking)
	if status != cl.SUCCESS {
		return api.ImageMap{}, status
	}
	shown.Event = event
	return shown, cl.SUCCESS
}

// hostImage is where a region lies in the program's own memory: under the image, or under its buffer.
func (b *Buffer) hostImage(r *api.ImageRegion) api.ImageMap {
	im := b.image
	shown := api.ImageMap{Row: im.row, Slice: im.slicePitch()}
	row, slice := im.row, im.slice
	if im.desc.Kind == cl.MEM_OBJECT_IMAGE1D_ARRAY {
		row = im.slice
	}
	off := saturatedSum(r.Origin[0]*(im.rowBytes/im.extent[0]), saturated(r.Origin[1], row),
		saturated(r.Origin[2], slice))
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
func (b *Buffer) unmapImage(q *Queue, inner uintptr, r *api.ImageRegion, ptr api.HostPtr, w api.Waits) (uintptr,
	api.Status) {
	return b.ctx.d.base.EnqueueWriteImage(q.inner, inner, false, *r, b.image.row, b.image.slicePitch(), ptr, w)
}
