package session

import (
	"tendril/forwarding/clwire"
)

// ImageRegion is a part of an image as the enqueue calls name it, in elements. Missing: an array was NULL.
type ImageRegion struct {
	Origin, Region [3]uint64
	Missing        bool
}

// image resolves a cl_mem that must be an image, for a queue.
func (d *Driver) image(q *Queue, h uintptr) (*Buffer, Status) {
	b := d.buffers.Get(h)
	if b == nil || b.image == nil {
		return nil, InvalidMemObject
	}
	if b.ctx != q.ctx {
		return nil, InvalidContext
	}
	return b, Success
}

// holds says whether a region lies in the image.
func (im *image) holds(r *ImageRegion) bool { return !r.Missing && im.inside(r.Origin, r.Region) }

func (im *image) inside(origin, region [3]uint64) bool {
	for i, n := range im.extent {
		if region[i] == 0 || origin[i] > n || region[i] > n-origin[i] {
			return false
		}
	}
	return true
}

// hostBox is the layout of the program's side of a read or write: pitches in bytes, 0 for without gaps (§5.3.3).
func (im *image) hostBox(region [3]uint64, row, slice uint64) (box, Status) {
	width := region[0] * im.elementBytes
	if row == 0 {
		row = width
	}
	if row < width || row > maxHostBytes {
		return box{}, InvalidValue
	}
	switch im.desc.Kind {
	case image1D, image1DBuffer, image2D:
		if slice != 0 {
			return box{}, InvalidValue
		}
		slice = row * region[1]
	case image1DArray:
		slice = max(slice, row)
		return fitting(box{row: slice, slice: slice}, region, width)
	default:
		least, ok := product(row, region[1])
		if slice == 0 {
			slice = least
		}
		if !ok || slice < least {
			return box{}, InvalidValue
		}
	}
	return fitting(box{row: row, slice: slice}, region, width)
}

// fitting refuses a layout that no address space holds.
func fitting(b box, region [3]uint64, width uint64) (box, Status) {
	region[0] = width
	if _, ok := b.end(region); !ok || b.slice > maxHostBytes {
		return box{}, InvalidValue
	}
	return b, Success
}

// EnqueueReadImage is clEnqueueReadImage (§5.3.3); pitches in bytes.
func (d *Driver) EnqueueReadImage(queue, image uintptr, blocking bool, r ImageRegion, row, slice uint64, ptr HostPtr, w Waits) (uintptr, Status) {
	return d.transferImage(queue, image, blocking, r, row, slice, ptr, w, clwire.FromBuffer)
}

// EnqueueWriteImage is clEnqueueWriteImage (§5.3.3); pitches in bytes.
func (d *Driver) EnqueueWriteImage(queue, image uintptr, blocking bool, r ImageRegion, row, slice uint64, ptr HostPtr, w Waits) (uintptr, Status) {
	return d.transferImage(queue, image, blocking, r, row, slice, ptr, w, clwire.ToBuffer)
}

func (d *Driver) transferImage(queue, image uintptr, blocking bool, r ImageRegion, row, slice uint64, ptr HostPtr, w Waits, direction uint8) (uintptr, Status) {
	kind, denied := cmdReadImage, memHostWriteOnly|memHostNoAccess
	if direction == clwire.ToBuffer {
		kind, denied = cmdWriteImage, memHostReadOnly|memHostNoAccess
	}
	q, status := d.liveQueue(queue)
	if status != Success {
		return 0, status
	}
	b, status := d.image(q, image)
	if status != Success {
		return 0, status
	}
	if b.flags&denied != 0 && !w.unasked {
		return 0, InvalidOperation
	}
	if ptr.Nil() || !b.image.holds(&r) {
		return 0, InvalidValue
	}
	host, status := b.image.hostBox(r.Region, row, slice)
	if status != Success {
		return 0, status
	}
	c, status := d.open(q, kind, w)
	if status == Success {
		status = c.touches(b, direction == clwire.ToBuffer)
	}
	if status != Success {
		return c.close(status)
	}
	status = c.moveImage(b, direction, blocking, r.Origin, b.image.bytes(r.Region), host, ptr, nil)
	if status == Success && blocking {
		q.ctx.syncHost()
	}
	return c.close(status)
}

// moveImage carries a read, a write, or a map's part of one out, in its turn. region has x in bytes, origin in elements.
func (c *command) moveImage(b *Buffer, direction uint8, blocking bool, origin, region [3]uint64, host box, ptr HostPtr, pinned *Buffer) Status {
	size := region[0] * region[1] * region[2]
	target, shape := b.imageShape(origin, region)
	if c.q.ctx.remote {
		return c.bulk(target, direction == clwire.ToBuffer, blocking, shape, b.hostSide(region, host, ptr), pinned)
	}
	side := b.hostSide(region, host, ptr)
	if direction == clwire.ToBuffer && c.imageRides(b, size, blocking) && c.settled(&side) {
		return c.inlineImage(b, origin, region, host, ptr)
	}
	h := c.host(target, blocking, size, func() Status { return b.moveImage(direction, origin, region, host, ptr) })
	h.prompt = h.prompt && target != b
	if pinned != nil {
		h.keeps(pinned)
	}
	if direction == clwire.FromBuffer {
		h.lands(c.d, side)
	} else {
		h.takes(c.d, side)
	}
	return h.run()
}

// imageRides says whether a write goes as one record: a small one that nobody waits for, into a driver's own memory.
func (c *command) imageRides(b *Buffer, size uint64, blocking bool) bool {
	return !blocking && b.image.under == nil && size+8*uint64(len(c.wait)) <= recordRoom && c.q.w.carries(size)
}

func (c *command) inlineImage(b *Buffer, origin, region [3]uint64, host box, ptr HostPtr) Status {
	if status := b.ensureRemote(c.q.w); status != Success {
		return status
	}
	s := b.hostSide(region, host, ptr)
	m := &clwire.WriteImageInline{Image: b.id.Load(), Origin: b.image.bytes(origin), Region: region, Data: make([]byte, 0, s.size)}
	s.runs(0, s.size, func(part []byte) { m.Data = append(m.Data, part...) })
	return c.send(m, &m.Cmd)
}

// hostSide is the program's side of a bulk operation.
func (b *Buffer) hostSide(region [3]uint64, host box, ptr HostPtr) hostShape {
	return hostShape{ptr: ptr, size: region[0] * region[1] * region[2], rect: true, box: host, region: region, unit: b.image.elementBytes}
}

// imageShape is the device's side of a bulk operation, and the object that it is of: the image, or the buffer under it.
func (b *Buffer) imageShape(origin, region [3]uint64) (*Buffer, clwire.Shape) {
	if under := b.image.under; under != nil {
		side := b.image.underBox(origin, region)
		return under, side.shape(region)
	}
	return b, clwire.Shape{Rect: true, Origin: b.image.bytes(origin), Region: region}
}

// underBox is where a region lies in the buffer under an image.
func (im *image) underBox(origin, region [3]uint64) box {
	return box{origin: im.bytes(origin), row: im.underRow, slice: im.underRow * region[1]}
}

// moveImage moves a region (x in bytes) between the image and the program's memory, now, by this thread. The caller has
// seen to the order.
func (b *Buffer) moveImage(direction uint8, origin, region [3]uint64, host box, ptr HostPtr) Status {
	switch {
	case b.ctx.remote:
		target, shape := b.imageShape(origin, region)
		return target.carry(direction == clwire.ToBuffer, shape, b.hostSide(region, host, ptr))
	case b.image.under != nil:
		return b.image.under.rect(direction, b.image.underBox(origin, region), host, region, ptr)
	}
	return b.move(direction, b.imagePieces(b.image.bytes(origin), region, host, ptr))
}

// whole moves all of an image from or to the program's own memory under it.
func (b *Buffer) whole(direction uint8) Status {
	return b.moveImage(direction, [3]uint64{}, b.image.bytes(b.image.extent), b.image.host, b.host)
}

// imagePieces cuts a region into parts that fit a chunk: whole slices where they are small, whole rows, or parts of a
// row that end with an element. x counts bytes.
func (b *Buffer) imagePieces(origin, region [3]uint64, host box, ptr HostPtr) func(yield func(piece) bool) {
	return func(yield func(piece) bool) {
		whole := chunkBytes - chunkBytes%b.image.elementBytes
		var at [3]uint64
		for at[2] < region[2] {
			size := [3]uint64{min(region[0]-at[0], whole), 1, 1}
			if size[0] == region[0] {
				size[1] = min(region[1]-at[1], max(chunkBytes/region[0], 1))
			}
			if size[1] == region[1] {
				size[2] = min(region[2]-at[2], max(chunkBytes/(region[0]*region[1]), 1))
			}
			if !yield(imagePiece(origin, at, size, host, ptr)) {
				return
			}
			at = next(at, size, region)
		}
	}
}

// next is where the part after one of the given size begins.
func next(at, size, region [3]uint64) [3]uint64 {
	if at[0] += size[0]; at[0] < region[0] {
		return at
	}
	at[0] = 0
	if at[1] += size[1]; at[1] < region[1] {
		return at
	}
	at[1] = 0
	at[2] += size[2]
	return at
}

func imagePiece(origin, at, size [3]uint64, host box, ptr HostPtr) piece {
	p := piece{bytes: size[0] * size[1] * size[2], transfer: clwire.Transfer{Rect: true, Region: size}}
	for i := range at {
		p.transfer.Origin[i] = origin[i] + at[i]
	}
	p.copy = func(chunk []byte, toChunk bool) {
		for z := range size[2] {
			for y := range size[1] {
				dense := chunk[(z*size[1]+y)*size[0]:][:size[0]]
				theirs := ptr.bytes(host.offset(at[1]+y, at[2]+z)+at[0], size[0])
				if toChunk {
					copy(dense, theirs)
				} else {
					copy(theirs, dense)
				}
			}
		}
	}
	return p
}
