package transfer

import "tendril/forwarding/clwire"

// Side is how the program's side of a transfer lies, from an address on. On the wire and in staging memory its bytes
// have no gaps: the dense range.
type Side struct {
	Size   uint64 // bytes
	Rect   bool   // it is Region, in Box
	Box    Box
	Region [3]uint64 // x in bytes
	Unit   uint64    // of an image: bytes that no cut divides
}

// Runs calls f with each contiguous part of the program's memory that [from, from+n) of the dense range covers, in
// order: its offset from the address, and its length.
func (s *Side) Runs(from, n uint64, f func(at, n uint64)) {
	if !s.Rect {
		f(from, n)
		return
	}
	for width := s.Region[0]; n > 0; {
		row := from / width
		x, y, z := from%width, row%s.Region[1], row/s.Region[1]
		part := min(n, width-x)
		f(s.Box.Offset(y, z)+x, part)
		from, n = from+part, n-part
	}
}

// Chunk returns the length of the lanes' chunk that begins at a place in the dense range: of a rectangle a part of one
// row, or whole rows of one slice; of an image whole pixels.
func (s *Side) Chunk(at uint64) uint64 {
	switch width := s.Region[0]; {
	case !s.Rect:
		return min(clwire.MaxChunk, s.Size-at)
	case width <= clwire.MaxChunk:
		return min(clwire.MaxChunk/width, s.Region[1]-at/width%s.Region[1]) * width
	default:
		n := min(clwire.MaxChunk, s.Size-at, width-at%width)
		if s.Unit != 0 && n == clwire.MaxChunk {
			n -= n % s.Unit
		}
		return n
	}
}

// Span is the part of the program's memory from the first byte to the last, gaps included, as offsets from the address.
func (s *Side) Span() (from, to uint64) {
	if !s.Rect {
		return 0, s.Size
	}
	return s.Box.Offset(0, 0), s.Box.Offset(s.Region[1]-1, s.Region[2]-1) + s.Region[0]
}
