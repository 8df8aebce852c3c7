//go:build cgo

package worker

import (
	"runtime"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/fixed"
	"tendril/forwarding/opencl"
)

func (s *session) copyImageTask(m *clwire.CopyImage) (*memTask, error) {
	src, dst, err := s.twoBuffers(m.Src, m.Dst)
	if err != nil {
		return nil, err
	}
	from, bad := src.region(m.SrcOrigin, m.Region)
	to, worse := dst.region(m.DstOrigin, m.Region)
	t := &memTask{what: "clEnqueueCopyImage", buffers: [2]*buffer{src, dst}, status: firstOf(bad, worse)}
	t.call = func(q opencl.Queue, a opencl.After) (opencl.Event, opencl.Status) {
		return q.CopyImage(src.native, dst.native, &from, &to.Origin, a)
	}
	return t.hold(), nil
}

func (s *session) copyImageBufferTask(m *clwire.CopyImageBuffer) (*memTask, error) {
	image, b, err := s.twoBuffers(m.Image, m.Buffer)
	if err != nil {
		return nil, err
	}
	at, status := image.region(m.Origin, m.Region)
	if status == cl.SUCCESS {
		status = b.inside(m.Offset, image.denseBytes(&at))
	}
	t := &memTask{what: "copy between an image and a buffer", buffers: [2]*buffer{image, b}, status: status}
	toBuffer, offset := m.Direction == clwire.ImageToBuffer, m.Offset
	t.call = func(q opencl.Queue, a opencl.After) (opencl.Event, opencl.Status) {
		return q.CopyImageBuffer(toBuffer, image.native, b.native, &at, offset, a)
	}
	return t.hold(), nil
}

// denseBytes is how many bytes a checked region has; more than any memory if that is no number.
func (b *buffer) denseBytes(r *opencl.Region) uint64 {
	n := b.image.elementBytes
	for _, v := range r.Region {
		if !fits(n, uint64(v)) {
			return 1 << 62
		}
		n *= uint64(v)
	}
	return n
}

func (s *session) fillImageTask(m *clwire.FillImage) (*memTask, error) {
	image, err := lookup[*buffer](s, m.Image)
	if err != nil {
		return nil, err
	}
	at, status := image.region(m.Origin, m.Region)
	t := &memTask{what: "clEnqueueFillImage", buffers: [2]*buffer{image}, status: status}
	color := m.Color
	t.call = func(q opencl.Queue, a opencl.After) (opencl.Event, opencl.Status) {
		return q.FillImage(image.native, &color, &at, a)
	}
	return t.hold(), nil
}

// writeImageTask keeps a copy of the record's bytes, pinned until the driver has read them.
func (s *session) writeImageTask(m *clwire.WriteImageInline) (*memTask, error) {
	image, err := lookup[*buffer](s, m.Image)
	if err != nil {
		return nil, err
	}
	at, status := image.bytesRegion(m.Origin, m.Region)
	if status == cl.SUCCESS && image.denseBytes(&at) != uint64(len(m.Data)) {
		status = cl.INVALID_VALUE
	}
	t := &memTask{what: "clEnqueueWriteImage", buffers: [2]*buffer{image}, status: status}
	if status != cl.SUCCESS {
		return t.hold(), nil
	}
	data, pinner := append([]byte(nil), m.Data...), new(runtime.Pinner)
	pinner.Pin(&data[0])
	t.finished = func(int32) { pinner.Unpin() }
	t.call = func(q opencl.Queue, a opencl.After) (opencl.Event, opencl.Status) {
		row, slice := image.densePitches(&at)
		return q.TransferImage(false, image.native, &at, row, slice, fixed.Address(data), a)
	}
	return t.hold(), nil
}

// transferImage is transferTask for an image: its bytes are dense in the segment.
func (s *session) transferImage(t *memTask, m *clwire.Transfer, image *buffer, seg *segment, read bool) {
	at, status := image.bytesRegion(m.Origin, m.Region)
	if !m.Rect {
		status = cl.INVALID_VALUE
	}
	if status == cl.SUCCESS && !seg.inside(m.SegmentOffset, image.denseBytes(&at)) {
		status = cl.INVALID_VALUE
	}
	t.status = status
	offset := m.SegmentOffset
	t.call = func(q opencl.Queue, a opencl.After) (opencl.Event, opencl.Status) {
		s.stage(seg, image, q)
		row, slice := image.densePitches(&at)
		return q.TransferImage(read, image.native, &at, row, slice, fixed.Address(seg.mem)+uintptr(offset), a)
	}
}

// imageExtent checks the shape of a bulk operation against its image.
func imageExtent(image *buffer, e extent) (extent, opencl.Status) {
	_, status := image.bytesRegion(e.Origin, e.Region)
	if !e.Rect {
		status = firstOf(image.status, cl.INVALID_VALUE)
	}
	e.unit = image.image.elementBytes
	return e, status
}

// imageRows is the extent of a range of all an image's bytes, row by row through its slices without gaps: of whole
// rows.
func imageRows(image *buffer, offset, size uint64) (extent, opencl.Status) {
	im := image.image
	e := extent{Shape: clwire.Shape{Rect: true, Region: [3]uint64{im.extent[0] * im.elementBytes, im.extent[1],
		im.extent[2]}}, size: size, unit: im.elementBytes, base: offset}
	row, all := e.Region[0], sizeOf(&e.Shape)
	switch {
	case image.status != cl.SUCCESS:
		return e, image.status
	case all == 0 || size == 0 || offset > all || size > all-offset || offset%row != 0 || size%row != 0:
		return e, cl.INVALID_VALUE
	}
	return e, cl.SUCCESS
}

// transferImage moves a dense range of an image's extent between a slot's memory and the device: whole rows at once,
// parts of rows one by one. It returns the event of the last.
func (o *bulkOp) transferImage(q opencl.Queue, read bool, from, n uint64, host uintptr) (last opencl.Event,
	status opencl.Status) {
	width := o.ext.Region[0]
	from += o.ext.base
	for n > 0 && status == cl.SUCCESS {
		row := from / width
		x, y, z := from%width, row%o.ext.Region[1], row/o.ext.Region[1]
		part, rows := min(n, width-x), uint64(1)
		if x == 0 && n >= width {
			rows = min(n/width, o.ext.Region[1]-y)
		}
		at, bad := o.buffer.bytesRegion([3]uint64{o.ext.Origin[0] + x, o.ext.Origin[1] + y, o.ext.Origin[2] + z},
			[3]uint64{part, rows, 1})
		if status = bad; status != cl.SUCCESS {
			break
		}
		var e opencl.Event
		pitch, slice := o.buffer.densePitches(&at)
		if e, status = q.TransferImage(read, o.buffer.native, &at, pitch, slice, host,
			opencl.After{Want: true}); status != cl.SUCCESS {
			break
		}
		if last != 0 {
			last.Release()
		}
		last, host, from, n = e, host+uintptr(part*rows), from+part*rows, n-part*rows
	}
	q.Flush()
	return last, status
}
