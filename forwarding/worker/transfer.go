//go:build cgo

package worker

import (
	"fmt"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/fixed"
	"tendril/forwarding/opencl"
	"tendril/forwarding/worker/engine"
)

// memTask is a command on buffers. call runs once, with everything it uses held.
type memTask struct {
	what      string
	status    opencl.Status // ≠ 0: refused before the driver was asked
	buffers   [2]*buffer
	seg       *segment // nil, or held until the driver has the command: unmap waits for what it has
	call      func(q opencl.Queue, a opencl.After) (opencl.Event, opencl.Status)
	finished  func(status int32) // once the driver is done, or will never begin
	submitted bool
}

// hold takes the references that Drop gives back.
func (t *memTask) hold() *memTask {
	for _, b := range t.buffers {
		if b != nil {
			b.refs.Add(1)
		}
	}
	return t
}

// Keep implements engine.Task.
func (t *memTask) Keep() engine.Task { return t }

// Drop implements engine.Task.
func (t *memTask) Drop() {
	for _, b := range t.buffers {
		if b != nil {
			b.unref()
		}
	}
	if t.seg != nil {
		t.seg.unref()
	}
	if !t.submitted && t.finished != nil {
		t.finished(engine.FailedWaitList)
	}
}

// Finished implements engine.Task.
func (t *memTask) Finished() func(int32) { return t.finished }

// Submit implements engine.Task.
func (t *memTask) Submit(q engine.Native, waits []engine.Native, want bool) (engine.Native, int32, string) {
	t.submitted = true
	s := t.status
	for _, b := range t.buffers {
		if b != nil && s == cl.SUCCESS {
			s = b.status
		}
	}
	if s != cl.SUCCESS {
		return 0, int32(s), t.what
	}
	e, s := t.call(opencl.Queue(q), after(waits, want || t.finished != nil))
	if s != cl.SUCCESS {
		return 0, int32(s), t.what
	}
	return engine.Native(e), 0, ""
}

func (s *session) copyTask(m *clwire.Copy) (*memTask, error) {
	src, dst, err := s.twoBuffers(m.Src, m.Dst)
	if err != nil {
		return nil, err
	}
	t := &memTask{what: "clEnqueueCopyBuffer", buffers: [2]*buffer{src, dst}}
	t.status = firstOf(src.inside(m.SrcOffset, m.Size), dst.inside(m.DstOffset, m.Size))
	from, to, n := m.SrcOffset, m.DstOffset, m.Size
	t.call = func(q opencl.Queue, a opencl.After) (opencl.Event, opencl.Status) {
		return q.Copy(src.native, dst.native, from, to, n, a)
	}
	return t.hold(), nil
}

func (s *session) copyRectTask(m *clwire.CopyRect) (*memTask, error) {
	src, dst, err := s.twoBuffers(m.Src, m.Dst)
	if err != nil {
		return nil, err
	}
	t := &memTask{what: "clEnqueueCopyBufferRect", buffers: [2]*buffer{src, dst}}
	from, region := boxOf(m.SrcOrigin, m.SrcRow, m.SrcSlice, m.Region)
	to, _ := boxOf(m.DstOrigin, m.DstRow, m.DstSlice, m.Region)
	t.status = firstOf(boxInside(src, &from, &region), boxInside(dst, &to, &region))
	t.call = func(q opencl.Queue, a opencl.After) (opencl.Event, opencl.Status) {
		return q.CopyRect(src.native, dst.native, &from, &to, &region, a)
	}
	return t.hold(), nil
}

func (s *session) fillTask(m *clwire.Fill) (*memTask, error) {
	b, err := lookup[*buffer](s, m.Buffer)
	if err != nil {
		return nil, err
	}
	t := &memTask{what: "clEnqueueFillBuffer", buffers: [2]*buffer{b}, status: b.inside(m.Offset, m.Size)}
	pattern, offset, size := append([]byte(nil), m.Pattern...), m.Offset, m.Size
	if len(pattern) == 0 {
		t.status = cl.INVALID_VALUE
	}
	t.call = func(q opencl.Queue, a opencl.After) (opencl.Event, opencl.Status) {
		return q.Fill(b.native, pattern, offset, size, a)
	}
	return t.hold(), nil
}

// transferTask moves bytes between a segment, dense there, and a buffer. The
// segment stays until the driver is done with it. What computes in place copies without fail, so nobody
// follows a copy there for whose end nobody asks.
func (s *session) transferTask(m *clwire.Transfer) (*memTask, error) {
	b, err := lookup[*buffer](s, m.Buffer)
	if err != nil {
		return nil, err
	}
	seg, err := s.segment(m.Segment)
	if err != nil {
		return nil, err
	}
	t := &memTask{what: "transfer", buffers: [2]*buffer{b}}
	read := m.Direction == clwire.FromBuffer
	if read && seg.readOnly {
		return nil, fmt.Errorf("%w: a transfer into segment %d, which is an object's", errRecord, m.Segment)
	}
	if b.image != nil {
		s.transferImage(t, m, b, seg, read)
	} else if m.Rect {
		s.transferRect(t, m, b, seg, read)
	} else {
		offset, size, at := m.Offset, m.Size, m.SegmentOffset
		t.status = b.inside(offset, size)
		if !seg.inside(at, size) {
			t.status = cl.INVALID_VALUE
		}
		t.call = func(q opencl.Queue, a opencl.After) (opencl.Event, opencl.Status) {
			s.stage(seg, b, q)
			return q.Transfer(read, b.native, offset, size, fixed.Address(seg.mem)+uintptr(at), a)
		}
	}
	seg.refs.Add(1)
	if s.inPlace {
		t.seg = seg
	} else {
		t.finished = func(int32) { seg.unref() }
	}
	return t.hold(), nil
}

func (s *session) transferRect(t *memTask, m *clwire.Transfer, b *buffer, seg *segment, read bool) {
	side, region := boxOf(m.Origin, m.RowPitch, m.SlicePitch, m.Region)
	dense, _ := boxOf([3]uint64{}, m.Region[0], m.Region[0]*m.Region[1], m.Region)
	at := m.SegmentOffset
	t.status = boxInside(b, &side, &region)
	if t.status == cl.SUCCESS && !seg.inside(at, uint64(region[0]*region[1]*region[2])) {
		t.status = cl.INVALID_VALUE
	}
	t.call = func(q opencl.Queue, a opencl.After) (opencl.Event, opencl.Status) {
		s.stage(seg, b, q)
		return q.TransferRect(read, b.native, &side, &dense, &region, fixed.Address(seg.mem)+uintptr(at), a)
	}
}

// stage pins a segment for devices that do not compute in place.
func (s *session) stage(seg *segment, b *buffer, q opencl.Queue) {
	if !s.inPlace && !seg.readOnly { // a pinned buffer is written back to
		seg.pinFor(b.context, q)
	}
}

func (s *session) twoBuffers(a, b uint64) (x, y *buffer, err error) {
	if x, err = lookup[*buffer](s, a); err != nil {
		return nil, nil, err
	}
	y, err = lookup[*buffer](s, b)
	return x, y, err
}

func firstOf(a, b opencl.Status) opencl.Status {
	if a != cl.SUCCESS {
		return a
	}
	return b
}

func boxOf(origin [3]uint64, row, slice uint64, region [3]uint64) (b opencl.Box, r [3]uintptr) {
	for i := range 3 {
		b.Origin[i], r[i] = uintptr(origin[i]), uintptr(region[i])
	}
	b.Row, b.Slice = uintptr(row), uintptr(slice)
	return b, r
}

// maxExtent keeps the products of boxInside below 2⁶³.
const maxExtent = 1 << 20 * 1 << 20

// boxInside checks that a box's last byte lies in the buffer; a pitch of 0
// means dense (OpenCL 3.0 §5.2.2).
func boxInside(b *buffer, box *opencl.Box, region *[3]uintptr) opencl.Status {
	row, slice := uint64(box.Row), uint64(box.Slice)
	x, y, z := uint64(region[0]), uint64(region[1]), uint64(region[2])
	if row == 0 {
		row = x
	}
	if x == 0 || y == 0 || z == 0 || x > maxExtent || y > maxExtent || row < x || row > maxExtent {
		return cl.INVALID_VALUE
	}
	if slice == 0 {
		if !fits(row, y) {
			return cl.INVALID_VALUE
		}
		slice = row * y
	}
	end, ok := lastByte(uint64(box.Origin[0])+x, uint64(box.Origin[1])+y-1, row, uint64(box.Origin[2])+z-1, slice)
	if !ok || uint64(box.Origin[0]) > maxExtent || uint64(box.Origin[1]) > maxExtent ||
		uint64(box.Origin[2]) > maxExtent {
		return cl.INVALID_VALUE
	}
	return b.inside(0, end)
}

// fits says whether a product stays below 2⁶².
func fits(a, b uint64) bool { return b == 0 || a <= (1<<62)/b }

func lastByte(x, y, row, z, slice uint64) (uint64, bool) {
	if x > 1<<61 || !fits(y, row) || !fits(z, slice) {
		return 0, false
	}
	end := x + y*row
	if end < x {
		return 0, false
	}
	return end + z*slice, end+z*slice >= end
}
