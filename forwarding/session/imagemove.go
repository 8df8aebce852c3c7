package session

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/transfer"
	"tendril/forwarding/session/ways"
)

// image resolves a cl_mem that must be an image, for a queue.
func (d *Driver) image(q *Queue, h uintptr) (*Buffer, api.Status) {
	b := d.buffers.Get(h)
	if b == nil || b.image == nil {
		return nil, cl.INVALID_MEM_OBJECT
	}
	if b.ctx != q.ctx {
		return nil, cl.INVALID_CONTEXT
	}
	return b, cl.SUCCESS
}

// EnqueueReadImage is clEnqueueReadImage (§5.3.3); pitches in bytes.
func (d *Driver) EnqueueReadImage(queue, image uintptr, blocking bool, r api.ImageRegion, row, slice uint64,
	ptr api.HostPtr,
	w api.Waits) (uintptr, api.Status) {
	return d.transferImage(queue, image, blocking, r, row, slice, ptr, w, clwire.FromBuffer)
}

// EnqueueWriteImage is clEnqueueWriteImage (§5.3.3); pitches in bytes.
func (d *Driver) EnqueueWriteImage(queue, image uintptr, blocking bool, r api.ImageRegion, row, slice uint64,
	ptr api.HostPtr,
	w api.Waits) (uintptr, api.Status) {
	return d.transferImage(queue, image, blocking, r, row, slice, ptr, w, clwire.ToBuffer)
}

func (d *Driver) transferImage(queue, image uintptr, blocking bool, r api.ImageRegion, row, slice uint64,
	ptr api.HostPtr,
	w api.Waits, direction uint8) (uintptr, api.Status) {
	kind, denied := uint32(cl.COMMAND_READ_IMAGE), uint64(cl.MEM_HOST_WRITE_ONLY|cl.MEM_HOST_NO_ACCESS)
	if direction == clwire.ToBuffer {
		kind, denied = cl.COMMAND_WRITE_IMAGE, cl.MEM_HOST_READ_ONLY|cl.MEM_HOST_NO_ACCESS
	}
	q, status := d.liveQueue(queue)
	if status != cl.SUCCESS {
		return 0, status
	}
	b, status := d.image(q, image)
	if status != cl.SUCCESS {
		return 0, status
	}
	if b.flags&denied != 0 && !w.Internal {
		return 0, cl.INVALID_OPERATION
	}
	if ptr.Nil() || !b.image.Holds(&r) {
		return 0, cl.INVALID_VALUE
	}
	host, status := b.image.HostBox(r.Region, row, slice)
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
	t := b.imageTransfer(direction == clwire.ToBuffer, blocking, r.Origin, b.image.Bytes(r.Region),
		b.hostSide(b.image.Bytes(r.Region), host, ptr))
	status = c.carryOut(&t)
	if status == cl.SUCCESS && blocking {
		q.ctx.mirrors.Sync()
	}
	return c.close(status)
}

// imageTransfer is one of a region (x in bytes) of an image, or of the buffer under it.
func (b *Buffer) imageTransfer(write, blocking bool, origin, region [3]uint64, host ways.Host) ways.Transfer {
	target, shape := b.imageShape(origin, region)
	return ways.Transfer{Buffer: target, Write: write, Blocking: blocking, Device: shape, Host: host}
}

// hostSide is the program's side of a bulk operation.
func (b *Buffer) hostSide(region [3]uint64, host transfer.Box, ptr api.HostPtr) ways.Host {
	return ways.Host{Ptr: ptr, Side: transfer.Side{
		Size: region[0] * region[1] * region[2], Rect: true, Box: host, Region: region, Unit: b.image.ElementBytes,
	}}
}

// imageShape is the device's side of a bulk operation, and the object that it is of: the image, or the buffer under it.
func (b *Buffer) imageShape(origin, region [3]uint64) (*Buffer, clwire.Shape) {
	if under := b.image.under; under != nil {
		side := b.image.UnderBox(origin, region)
		return under, side.Shape(region)
	}
	return b, clwire.Shape{Rect: true, Origin: b.image.Bytes(origin), Region: region}
}

// whole moves all of an image from or to the program's memory, laid out as it was created from, by this thread. The
// caller has seen to the order.
func (b *Buffer) whole(write bool, program api.HostPtr) api.Status {
	region := b.image.Bytes(b.image.Extent)
	target, shape := b.imageShape([3]uint64{}, region)
	return target.moveNow(write, shape, b.hostSide(region, b.image.Host, program))
}
