//go:build cgo

package worker

import (
	"tendril/forwarding/clwire"
	"tendril/forwarding/opencl"
)

// extent is a checked shape of a buffer: pitches are filled in.
type extent struct {
	clwire.Shape
	size uint64 // dense bytes
	unit uint64 // of an image: bytes that no cut divides
	base uint64 // of a push: where it begins in the dense bytes of the image
}

// sizeOf is how many bytes a shape has on the wire; 0 if that is no number.
func sizeOf(s *clwire.Shape) uint64 {
	if !s.Rect {
		return s.Size
	}
	r := s.Region
	if !fits(r[0], r[1]) || !fits(r[0]*r[1], r[2]) {
		return 0
	}
	return r[0] * r[1] * r[2]
}

// extentOf checks a shape against its buffer.
func extentOf(b *buffer, s *clwire.Shape) (extent, opencl.Status) {
	e := extent{Shape: *s, size: sizeOf(s)}
	if b.image != nil {
		return imageExtent(b, e)
	}
	if !s.Rect {
		return e, b.inside(s.Offset, s.Size)
	}
	if e.RowPitch == 0 {
		e.RowPitch = s.Region[0]
	}
	if e.SlicePitch == 0 && fits(e.RowPitch, s.Region[1]) {
		e.SlicePitch = e.RowPitch * s.Region[1]
	}
	box, region := boxOf(s.Origin, s.RowPitch, s.SlicePitch, s.Region)
	return e, boxInside(b, &box, &region)
}

// runs calls f with each contiguous part of the buffer that the dense range
// [from, from+n) covers, in order, until f says false.
func (e *extent) runs(from, n uint64, f func(at, n uint64) bool) {
	if !e.Rect {
		f(e.Offset+from, n)
		return
	}
	for width := e.Region[0]; n > 0; {
		row := from / width
		x, y, z := from%width, row%e.Region[1], row/e.Region[1]
		part := min(n, width-x)
		at := (e.Origin[2]+z)*e.SlicePitch + (e.Origin[1]+y)*e.RowPitch + e.Origin[0] + x
		if !f(at, part) {
			return
		}
		from, n = from+part, n-part
	}
}

// piece returns the length of the chunk that begins at a place in the dense range: of a rectangle a part of one row, or
// whole rows of one slice; of an image whole pixels.
func (e *extent) piece(at uint64) uint64 {
	left := e.size - at
	at += e.base
	switch width := e.Region[0]; {
	case !e.Rect:
		return min(clwire.MaxChunk, left)
	case width <= clwire.MaxChunk:
		return min(clwire.MaxChunk/width, e.Region[1]-at/width%e.Region[1]) * width
	default:
		n := min(clwire.MaxChunk, width-at%width)
		if e.unit != 0 && n == clwire.MaxChunk {
			n -= n % e.unit
		}
		return n
	}
}

// rows says whether a dense range is whole rows of one slice, and gives its box.
func (e *extent) rows(from, n uint64) (box opencl.Box, region [3]uintptr, ok bool) {
	width := e.Region[0]
	if !e.Rect || from%width != 0 || n%width != 0 {
		return box, region, false
	}
	row, count := from/width, n/width
	y, z := row%e.Region[1], row/e.Region[1]
	if y+count > e.Region[1] {
		return box, region, false
	}
	box, region = boxOf([3]uint64{e.Origin[0], e.Origin[1] + y, e.Origin[2] + z}, e.RowPitch, e.SlicePitch,
		[3]uint64{width, count, 1})
	return box, region, true
}
