package span

import (
	"slices"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// An image is opaque to its driver: what a member has of it is made there, and a move carries elements. Its history is
// kept by rows, counted through all its slices; an image over a buffer has the history of that buffer, which lies under
// it at every member, an image over an image that image's.

// image is what makes a Buffer an image. Immutable once shown.
type image struct {
	format   api.ImageFormat
	desc     api.ImageDesc // Parent is the program's handle
	extent   [3]uint64     // elements; an array's images are its last dimension
	rowBytes uint64        // of one row of elements, without gaps
	// pitches in bytes, as CL_IMAGE_ROW_PITCH and CL_IMAGE_SLICE_PITCH: of the program's memory if it has some
	row, slice uint64
	home       int // the member that it was first made at
}

// rows is how many an image has, through all its slices.
func (im *image) rows() uint64 { return im.extent[1] * im.extent[2] }

// box is the largest part of rows [from, to) that one transfer takes: in one slice, and of chunkBytes at most where a
// row is not longer.
func (im *image) box(from, to uint64) api.ImageRegion {
	height := im.extent[1]
	y := from % height
	n := min(to-from, height-y, max(chunkBytes/im.rowBytes, 1))
	return api.ImageRegion{Origin: [3]uint64{0, y, from / height}, Region: [3]uint64{im.extent[0], n, 1}}
}

func (im *image) whole() api.ImageRegion { return api.ImageRegion{Region: im.extent} }

// sliced says whether the image has a slice pitch.
func (im *image) sliced() bool {
	return im.desc.Kind == cl.MEM_OBJECT_IMAGE3D || im.desc.Kind == cl.MEM_OBJECT_IMAGE2D_ARRAY ||
		im.desc.Kind == cl.MEM_OBJECT_IMAGE1D_ARRAY
}

// allOf is the use of all of a memory object. What a command leaves of an image stays as it is: it reads it.
func (b *Buffer) allOf(reads, writes bool) use {
	for b.image != nil && b.parent != nil {
		b = b.parent
	}
	return use{b: b, n: b.size, reads: reads, writes: writes}
}

// CreateImage is clCreateImage and clCreateImageWithProperties (§5.3.1). The first member that takes the image judges
// its arguments and takes the first contents; a member that does not refuses the commands that use it.
func (d *Driver) CreateImage(context uintptr, given []uint64, flags uint64, format *api.ImageFormat,
	desc *api.ImageDesc, host api.HostPtr) (uintptr, api.Status) {
	c := d.contexts.Get(context)
	if c == nil {
		return d.base.CreateImage(context, given, flags, format, desc, host)
	}
	b := &Buffer{ctx: c, given: given, inner: make([]uintptr, len(c.members))}
	b.root = b
	if desc != nil && desc.Parent != 0 {
		b.parent = d.buffers.Get(desc.Parent)
		switch {
		case b.parent == nil:
			return 0, cl.INVALID_MEM_OBJECT
		case b.parent.ctx != c:
			return 0, cl.INVALID_CONTEXT
		}
		b.root, b.origin = b.parent.root, b.parent.origin
	}
	native := flags
	if flags&cl.MEM_USE_HOST_PTR != 0 && flags&(cl.MEM_ALLOC_HOST_PTR|cl.MEM_COPY_HOST_PTR) == 0 && !host.Nil() {
		native = flags&^cl.MEM_USE_HOST_PTR | cl.MEM_COPY_HOST_PTR // the mirror is this package's
	}
	home, status := b.firstImage(native, format, desc, host)
	if status != cl.SUCCESS {
		return 0, status
	}
	b.describe(home, format, desc)
	value, _ := d.base.MemObjectInfo(b.inner[home], cl.MEM_FLAGS)
	b.flags = answers.Number(value)&sameInnerFlagsMask | flags&^sameInnerFlagsMask
	if b.parent != nil {
		b.flags |= b.parent.flags &^ sameInnerFlagsMask
		b.host = b.parent.host
		return b.show()
	}
	p := part{hi: b.size}
	if native&cl.MEM_COPY_HOST_PTR != 0 {
		p.valid = 1 << home
	}
	b.parts = parts{p}
	if flags&cl.MEM_USE_HOST_PTR != 0 {
		b.host, b.mirror = host, &mirror{}
	}
	return b.show()
}

// firstImage makes the image at the first member that takes it; the first refusal is the answer where none does.
func (b *Buffer) firstImage(flags uint64, format *api.ImageFormat, desc *api.ImageDesc, host api.HostPtr) (home int,
	status api.Status) {
	c := b.ctx
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.members {
		h, refused := b.imageAtLocked(i, flags, format, desc, host)
		if refused == cl.SUCCESS {
			b.inner[i] = h
			return i, cl.SUCCESS
		}
		if i == 0 || status == cl.INVALID_OPERATION { // which says that a member has no images
			status = refused
		}
	}
	return 0, status
}

func (b *Buffer) imageAtLocked(member int, flags uint64, format *api.ImageFormat, desc *api.ImageDesc,
	host api.HostPtr) (uintptr, api.Status) {
	if b.parent != nil {
		inner, status := b.parent.atLocked(member)
		if status != cl.SUCCESS {
			return 0, status
		}
		over := *desc
		over.Parent = inner
		desc = &over
	}
	return b.ctx.d.base.CreateImage(b.ctx.members[member].context, b.given, flags, format, desc, host)
}

// describe keeps what later calls need of an image that a member has made.
func (b *Buffer) describe(home int, format *api.ImageFormat, desc *api.ImageDesc) {
	d := b.ctx.d.base
	ask := func(param uint32) uint64 {
		value, _ := d.ImageInfo(b.inner[home], param)
		return answers.Number(value)
	}
	im := &image{format: *format, desc: *desc, home: home, row: ask(cl.IMAGE_ROW_PITCH),
		slice: ask(cl.IMAGE_SLICE_PITCH)}
	im.extent, _ = desc.Extent()
	im.rowBytes = im.extent[0] * ask(cl.IMAGE_ELEMENT_SIZE)
	b.image, b.size = im, im.rows()
}

// againLocked makes the image at one more member. The pitches that the program gave for its own memory are not the
// member's.
func (b *Buffer) againLocked(member int) (uintptr, api.Status) {
	desc := b.image.desc
	if b.parent == nil {
		desc.RowPitch, desc.SlicePitch = 0, 0
	}
	return b.imageAtLocked(member, b.flags&sameInnerFlagsMask&^cl.MEM_ALLOC_HOST_PTR, &b.image.format, &desc,
		api.HostPtr{})
}

// ImageInfo is clGetImageInfo (§5.3.8).
func (d *Driver) ImageInfo(h uintptr, param uint32) ([]byte, api.Status) {
	b := d.buffers.Get(h)
	switch {
	case b == nil:
		return d.base.ImageInfo(h, param)
	case b.image == nil:
		return nil, cl.INVALID_MEM_OBJECT
	case param == cl.IMAGE_BUFFER:
		return answers.Size(b.image.desc.Parent), cl.SUCCESS
	}
	return d.base.ImageInfo(b.inner[b.image.home], param)
}

// ImageFormats is clGetSupportedImageFormats (§5.3.2): of a context that spans, what every member with images has.
func (d *Driver) ImageFormats(context uintptr, flags uint64, kind uint32) ([]api.ImageFormat, api.Status) {
	c := d.contexts.Get(context)
	if c == nil {
		return d.base.ImageFormats(context, flags, kind)
	}
	var common []api.ImageFormat
	first := true
	for _, m := range c.members {
		formats, status := d.base.ImageFormats(m.context, flags, kind)
		if status != cl.SUCCESS {
			return nil, status
		}
		if !m.images {
			continue
		}
		if first {
			common, first = slices.Clone(formats), false
			continue
		}
		common = slices.DeleteFunc(common, func(f api.ImageFormat) bool { return !slices.Contains(formats, f) })
	}
	return common, cl.SUCCESS
}

// image resolves an image of the queue's context; ok false when session is to answer.
func (d *Driver) image(queue, h uintptr) (q *Queue, b *Buffer, ok bool) {
	q, b = d.queues.Get(queue), d.buffers.Get(h)
	return q, b, q != nil && b != nil && b.ctx == q.ctx && b.image != nil
}

// notImage is the answer to a command whose objects are not an image and a queue of one spanning context.
func notImage(q *Queue, b *Buffer, queue uintptr, call func(queue uintptr) (uintptr, api.Status)) (uintptr,
	api.Status) {
	if q != nil && b != nil && b.image == nil {
		return 0, cl.INVALID_MEM_OBJECT
	}
	return mixed(q, b, queue, call)
}

// EnqueueReadImage is clEnqueueReadImage (§5.3.3); pitches in bytes.
func (d *Driver) EnqueueReadImage(queue, h uintptr, blocking bool, r api.ImageRegion, row, slice uint64,
	ptr api.HostPtr, w api.Waits) (uintptr, api.Status) {
	q, b, ok := d.image(queue, h)
	if !ok {
		return notImage(q, b, queue, func(queue uintptr) (uintptr, api.Status) {
			return d.base.EnqueueReadImage(queue, h, blocking, r, row, slice, ptr, w)
		})
	}
	req := request{q: q, w: w, uses: []use{b.allOf(true, false)}}
	req.call = b.onMember(q, func(inner uintptr, w api.Waits) (uintptr, api.Status) {
		return d.base.EnqueueReadImage(q.inner, inner, false, r, row, slice, ptr, w)
	})
	return req.run(blocking)
}

// EnqueueWriteImage is clEnqueueWriteImage (§5.3.3); pitches in bytes.
func (d *Driver) EnqueueWriteImage(queue, h uintptr, blocking bool, r api.ImageRegion, row, slice uint64,
	ptr api.HostPtr, w api.Waits) (uintptr, api.Status) {
	q, b, ok := d.image(queue, h)
	if !ok {
		return notImage(q, b, queue, func(queue uintptr) (uintptr, api.Status) {
			return d.base.EnqueueWriteImage(queue, h, blocking, r, row, slice, ptr, w)
		})
	}
	req := request{q: q, w: w, uses: []use{b.overwritten(r.Region)}}
	req.call = b.onMember(q, func(inner uintptr, w api.Waits) (uintptr, api.Status) {
		return d.base.EnqueueWriteImage(q.inner, inner, false, r, row, slice, ptr, w)
	})
	return req.run(blocking)
}

// overwritten is the use of a command that writes a region: all of an image of its own needs no reading.
func (b *Buffer) overwritten(region [3]uint64) use {
	return b.allOf(b.parent != nil || region != b.image.extent, true)
}

// EnqueueFillImage is clEnqueueFillImage (§5.3.6).
func (d *Driver) EnqueueFillImage(queue, h uintptr, color api.HostPtr, r api.ImageRegion, w api.Waits) (uintptr,
	api.Status) {
	q, b, ok := d.image(queue, h)
	if !ok {
		return notImage(q, b, queue, func(queue uintptr) (uintptr, api.Status) {
			return d.base.EnqueueFillImage(queue, h, color, r, w)
		})
	}
	req := request{q: q, w: w, uses: []use{b.overwritten(r.Region)}}
	req.call = b.onMember(q, func(inner uintptr, w api.Waits) (uintptr, api.Status) {
		return d.base.EnqueueFillImage(q.inner, inner, color, r, w)
	})
	return req.run(false)
}

// EnqueueCopyImage is clEnqueueCopyImage (§5.3.4).
func (d *Driver) EnqueueCopyImage(queue, src, dst uintptr, r api.ImageRegion, to [3]uint64, w api.Waits) (uintptr,
	api.Status) {
	q, s, t, ok := d.pair(queue, src, dst)
	if ok && (s.image == nil || t.image == nil) {
		return 0, cl.INVALID_MEM_OBJECT
	}
	if !ok {
		return d.mixedPair(queue, src, dst, func() (uintptr, api.Status) {
			return d.base.EnqueueCopyImage(queue, src, dst, r, to, w)
		})
	}
	req := request{q: q, w: w, uses: []use{s.allOf(true, false), t.overwritten(r.Region)}}
	req.call = onMember2(q, s, t, func(s, t uintptr, w api.Waits) (uintptr, api.Status) {
		return d.base.EnqueueCopyImage(q.inner, s, t, r, to, w)
	})
	return req.run(false)
}

// EnqueueCopyImageBuffer is clEnqueueCopyImageToBuffer (toBuffer) or clEnqueueCopyBufferToImage (§5.3.5); offset in
// bytes.
func (d *Driver) EnqueueCopyImageBuffer(toBuffer bool, queue, h, buffer uintptr, r api.ImageRegion, offset uint64,
	w api.Waits) (uintptr, api.Status) {
	q, im, b, ok := d.pair(queue, h, buffer)
	if ok && (im.image == nil || b.image != nil) {
		return 0, cl.INVALID_MEM_OBJECT
	}
	if !ok {
		return d.mixedPair(queue, h, buffer, func() (uintptr, api.Status) {
			return d.base.EnqueueCopyImageBuffer(toBuffer, queue, h, buffer, r, offset, w)
		})
	}
	n := saturated(saturated(r.Region[0]*(im.image.rowBytes/im.image.extent[0]), r.Region[1]), r.Region[2])
	uses := []use{{b: b, off: offset, n: n, reads: true}, im.overwritten(r.Region)}
	if toBuffer {
		uses = []use{im.allOf(true, false), {b: b, off: offset, n: n, writes: true}}
	}
	req := request{q: q, w: w, uses: uses}
	req.call = onMember2(q, im, b, func(im, b uintptr, w api.Waits) (uintptr, api.Status) {
		return d.base.EnqueueCopyImageBuffer(toBuffer, q.inner, im, b, r, offset, w)
	})
	return req.run(false)
}
