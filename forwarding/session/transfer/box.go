package transfer

import "tendril/forwarding/clwire"

// MaxBytes bounds any size, offset and pitch: no address space holds more.
const MaxBytes uint64 = 1 << 47

// Box is where a region lies on one side of a rectangular command: origin (x in bytes, y in rows, z in slices) and
// pitches in bytes.
type Box struct {
	Origin     [3]uint64
	Row, Slice uint64
}

// Pitched fills in the pitches that are 0, for rows without gaps; false: no region lies so (§5.2.2).
func (b *Box) Pitched(region [3]uint64) bool {
	if b.Row == 0 {
		b.Row = region[0]
	}
	if b.Row < region[0] || b.Row > MaxBytes || region[1] > MaxBytes/b.Row {
		return false
	}
	if b.Slice == 0 {
		b.Slice = region[1] * b.Row
	}
	return b.Slice >= region[1]*b.Row && b.Slice%b.Row == 0 && b.Slice <= MaxBytes
}

// End is the first byte behind a region; ok false when it does not fit an address space.
func (b *Box) End(region [3]uint64) (end uint64, ok bool) {
	for _, term := range [...][2]uint64{
		{b.Origin[2], b.Slice}, {b.Origin[1], b.Row}, {b.Origin[0], 1},
		{region[2] - 1, b.Slice}, {region[1] - 1, b.Row}, {region[0], 1},
	} {
		if term[0] > MaxBytes/max(term[1], 1) {
			return 0, false
		}
		end += term[0] * term[1]
	}
	return end, end <= MaxBytes
}

// Offset is where a row of a slice begins, in bytes.
func (b *Box) Offset(y, z uint64) uint64 {
	return (b.Origin[2]+z)*b.Slice + (b.Origin[1]+y)*b.Row + b.Origin[0]
}

// RowOrigin is the origin of a row as one within the first slice: a slice is a whole number of rows. Some drivers
// refuse slice pitches that reach beyond the buffer, though no byte there is touched.
func (b *Box) RowOrigin(y, z uint64) [3]uint64 {
	return [3]uint64{b.Origin[0], b.Origin[1] + y + (b.Origin[2]+z)*(b.Slice/b.Row), 0}
}

// Shape is the device's side of a command.
func (b *Box) Shape(region [3]uint64) clwire.Shape {
	return clwire.Shape{Rect: true, Origin: b.Origin, Region: region, RowPitch: b.Row, SlicePitch: b.Slice}
}

// BoxOf is the box of a shape.
func BoxOf(s *clwire.Shape) Box { return Box{s.Origin, s.RowPitch, s.SlicePitch} }

// Overlap says whether two boxes of one memory, which begin at bases, share a byte. With equal pitches rows are
// compared exactly as appendix E of the specification does; otherwise all that lies between a box's first and last byte
// is.
func Overlap(baseA uint64, a Box, baseB uint64, b Box, region [3]uint64) bool {
	startA, startB := baseA+a.Offset(0, 0), baseB+b.Offset(0, 0)
	endA, _ := a.End(region)
	endB, _ := b.End(region)
	if startA >= baseB+endB || startB >= baseA+endA {
		return false
	}
	if a.Row != b.Row || a.Slice != b.Slice {
		return true
	}
	return shiftOverlaps(startA, startB, a.Row, a.Slice, region)
}

// shiftOverlaps compares two equal boxes whose starts differ: they overlap when the distance, taken apart into slices,
// rows and bytes (each towards either side), is shorter than the region in every direction.
func shiftOverlaps(a, b, row, slice uint64, region [3]uint64) bool {
	distance := max(a, b) - min(a, b)
	for _, z := range [2]uint64{distance / slice, distance/slice + 1} {
		rest := int64(distance) - int64(z*slice)
		for _, y := range [2]int64{floorDiv(rest, int64(row)), floorDiv(rest, int64(row)) + 1} {
			x := rest - y*int64(row)
			if z < region[2] && abs(y) < int64(region[1]) && abs(x) < int64(region[0]) {
				return true
			}
		}
	}
	return false
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func abs(v int64) int64 { return max(v, -v) }
