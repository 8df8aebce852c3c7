package transfer

import "tendril/forwarding/clwire"

// Piece is one part of a transfer that fits a chunk of the staging pool, in which its bytes have no gaps.
type Piece struct {
	Transfer clwire.Transfer // the device's side; Cmd, Segment and SegmentOffset are the sender's
	Bytes    uint64

	// The program's side: a run of bytes for each row of size, from at on in box. No rows: the bytes go nowhere.
	box      Box
	at, size [3]uint64
}

// Runs calls f with each contiguous part: its offsets in the chunk and from the program's address, and its length.
func (p *Piece) Runs(f func(chunk, at, n uint64)) {
	for z := range p.size[2] {
		for y := range p.size[1] {
			f((z*p.size[1]+y)*p.size[0], p.box.Offset(p.at[1]+y, p.at[2]+z)+p.at[0], p.size[0])
		}
	}
}

// Pieces cuts a transfer; image: device is a region of an image that only its driver lays out.
func Pieces(device *clwire.Shape, image bool, side *Side) func(yield func(Piece) bool) {
	switch {
	case image:
		return imagePieces(device.Origin, device.Region, side.Box, side.Unit)
	case side.Rect:
		return rectPieces(BoxOf(device), side.Box, side.Region)
	}
	return func(yield func(Piece) bool) { linePieces(device.Offset, 0, side.Size, yield) }
}

// linePieces cuts n bytes in a row, at offsets on either side; false: no more are wanted.
func linePieces(device, at, n uint64, yield func(Piece) bool) bool {
	for done := uint64(0); done < n; done += ChunkBytes {
		part := min(ChunkBytes, n-done)
		p := Piece{Bytes: part, Transfer: clwire.Transfer{Offset: device + done, Size: part}}
		p.at, p.size = [3]uint64{at + done}, [3]uint64{part, 1, 1}
		if !yield(p) {
			return false
		}
	}
	return true
}

// rectPieces cuts a box into runs of rows that fit a chunk; rows longer than a chunk are cut themselves.
func rectPieces(device, host Box, region [3]uint64) func(yield func(Piece) bool) {
	return func(yield func(Piece) bool) {
		for z := range region[2] {
			for y := uint64(0); y < region[1]; {
				rows := min(max(ChunkBytes/region[0], 1), region[1]-y)
				if region[0] > ChunkBytes {
					if !linePieces(device.Offset(y, z), host.Offset(y, z), region[0], yield) {
						return
					}
				} else if !yield(rowsPiece(device, host, region[0], y, z, rows)) {
					return
				}
				y += rows
			}
		}
	}
}

func rowsPiece(device, host Box, width, y, z, rows uint64) Piece {
	p := Piece{Bytes: width * rows, box: host, at: [3]uint64{0, y, z}, size: [3]uint64{width, rows, 1}}
	if rows == 1 {
		p.Transfer = clwire.Transfer{Offset: device.Offset(y, z), Size: width}
		return p
	}
	p.Transfer = clwire.Transfer{
		Rect: true, Origin: device.RowOrigin(y, z), Region: p.size, RowPitch: device.Row, SlicePitch: device.Row * rows,
	}
	return p
}

// imagePieces cuts a region into parts that fit a chunk: whole slices where they are small, whole rows, or parts of a
// row that end with an element. x counts bytes.
func imagePieces(origin, region [3]uint64, host Box, element uint64) func(yield func(Piece) bool) {
	return func(yield func(Piece) bool) {
		whole := ChunkBytes - ChunkBytes%element
		var at [3]uint64
		for at[2] < region[2] {
			size := [3]uint64{min(region[0]-at[0], whole), 1, 1}
			if size[0] == region[0] {
				size[1] = min(region[1]-at[1], max(ChunkBytes/region[0], 1))
			}
			if size[1] == region[1] {
				size[2] = min(region[2]-at[2], max(ChunkBytes/(region[0]*region[1]), 1))
			}
			p := Piece{Bytes: size[0] * size[1] * size[2], Transfer: clwire.Transfer{Rect: true, Region: size},
				box: host, at: at, size: size}
			for i := range at {
				p.Transfer.Origin[i] = origin[i] + at[i]
			}
			if !yield(p) {
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
