package session

import (
	"tendril/forwarding/clwire"
)

// box is one side of a rectangular command: origin (x in bytes, y in rows, z in slices) and pitches in bytes.
type box struct {
	origin     [3]uint64
	row, slice uint64
}

// Rect holds the arguments that the rectangular commands share (§5.2.2).
type Rect struct {
	BufferOrigin, HostOrigin, Region               [3]uint64
	BufferRow, BufferSlice, HostRow, HostSlice     uint64
	MissingBuffer, MissingHost, MissingRegionArray bool // NULL where an array must be
}

// pitched fills in the pitches that are 0 and checks the others.
func (b *box) pitched(region [3]uint64) Status {
	if b.row == 0 {
		b.row = region[0]
	}
	if b.row < region[0] || b.row > maxHostBytes || region[1] > maxHostBytes/b.row {
		return InvalidValue
	}
	if b.slice == 0 {
		b.slice = region[1] * b.row
	}
	if b.slice < region[1]*b.row || b.slice%b.row != 0 || b.slice > maxHostBytes {
		return InvalidValue
	}
	return Success
}

// end is the first byte behind the box; ok false when it does not fit an address space.
func (b *box) end(region [3]uint64) (end uint64, ok bool) {
	for _, term := range [...][2]uint64{
		{b.origin[2], b.slice}, {b.origin[1], b.row}, {b.origin[0], 1},
		{region[2] - 1, b.slice}, {region[1] - 1, b.row}, {region[0], 1},
	} {
		if term[0] > maxHostBytes/max(term[1], 1) {
			return 0, false
		}
		end += term[0] * term[1]
	}
	return end, end <= maxHostBytes
}

func (b *box) offset(y, z uint64) uint64 {
	return (b.origin[2]+z)*b.slice + (b.origin[1]+y)*b.row + b.origin[0]
}

// rowOrigin is the origin of a row as one within the first slice: a slice is a whole number of rows. Some drivers refuse
// slice pitches that reach beyond the buffer, though no byte there is touched.
func (b *box) rowOrigin(y, z uint64) [3]uint64 {
	return [3]uint64{b.origin[0], b.origin[1] + y + (b.origin[2]+z)*(b.slice/b.row), 0}
}

// shape is the buffer's side of a bulk command.
func (b *box) shape(region [3]uint64) clwire.Shape {
	return clwire.Shape{Rect: true, Origin: b.origin, Region: region, RowPitch: b.row, SlicePitch: b.slice}
}

func emptyRegion(region [3]uint64) bool { return region[0] == 0 || region[1] == 0 || region[2] == 0 }

// sides checks a read's or write's geometry; the host's side has no size to check against.
func (r *Rect) sides(b *Buffer) (dev, host box, status Status) {
	if r.MissingBuffer || r.MissingHost || r.MissingRegionArray || emptyRegion(r.Region) {
		return dev, host, InvalidValue
	}
	for _, n := range r.Region {
		if n > maxHostBytes {
			return dev, host, InvalidValue
		}
	}
	dev = box{r.BufferOrigin, r.BufferRow, r.BufferSlice}
	host = box{r.HostOrigin, r.HostRow, r.HostSlice}
	if dev.pitched(r.Region) != Success || host.pitched(r.Region) != Success {
		return dev, host, InvalidValue
	}
	if end, ok := dev.end(r.Region); !ok || end > b.size {
		return dev, host, InvalidValue
	}
	if _, ok := host.end(r.Region); !ok {
		return dev, host, InvalidValue
	}
	return dev, host, Success
}

// EnqueueReadRect is clEnqueueReadBufferRect, EnqueueWriteRect clEnqueueWriteBufferRect (§5.2.2).
func (d *Driver) EnqueueReadRect(queue, buffer uintptr, blocking bool, r Rect, ptr HostPtr, w Waits) (uintptr, Status) {
	return d.moveRect(queue, buffer, blocking, r, ptr, w, clwire.FromBuffer)
}

// EnqueueWriteRect: see EnqueueReadRect.
func (d *Driver) EnqueueWriteRect(queue, buffer uintptr, blocking bool, r Rect, ptr HostPtr, w Waits) (uintptr, Status) {
	return d.moveRect(queue, buffer, blocking, r, ptr, w, clwire.ToBuffer)
}

func (d *Driver) moveRect(queue, buffer uintptr, blocking bool, r Rect, ptr HostPtr, w Waits, direction uint8) (uintptr, Status) {
	kind, denied := cmdReadRect, memHostWriteOnly|memHostNoAccess
	if direction == clwire.ToBuffer {
		kind, denied = cmdWriteRect, memHostReadOnly|memHostNoAccess
	}
	q, b, status := d.access(queue, buffer, denied, w)
	if status != Success {
		return 0, status
	}
	if ptr.Nil() {
		return 0, InvalidValue
	}
	dev, host, status := r.sides(b)
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
	size := r.Region[0] * r.Region[1] * r.Region[2]
	if q.ctx.remote {
		status = c.bulk(b, direction == clwire.ToBuffer, blocking, dev.shape(r.Region), hostShape{ptr: ptr, size: size, rect: true, box: host, region: r.Region}, nil)
	} else {
		h := c.host(b, blocking, size, func() Status { return b.rect(direction, dev, host, r.Region, ptr) })
		side := hostShape{ptr: ptr, rect: true, box: host, region: r.Region}
		if direction == clwire.FromBuffer {
			h.lands(d, side)
		} else {
			h.takes(d, side)
		}
		status = h.run()
	}
	if status == Success && blocking {
		q.ctx.syncHost()
	}
	return c.close(status)
}

// rect moves a box between the buffer and the program's memory, now, by this thread.
func (b *Buffer) rect(direction uint8, dev, host box, region [3]uint64, ptr HostPtr) Status {
	in := b.bytes()
	if in == nil {
		return b.move(direction, rectPieces(dev, host, region, ptr))
	}
	for z := range region[2] {
		for y := range region[1] {
			mine := in[dev.offset(y, z):][:region[0]]
			theirs := ptr.bytes(host.offset(y, z), region[0])
			if direction == clwire.ToBuffer {
				copy(mine, theirs)
			} else {
				copy(theirs, mine)
			}
		}
	}
	return Success
}

// rectPieces cuts a box into runs of rows that fit a chunk; rows longer than a chunk are cut themselves.
func rectPieces(dev, host box, region [3]uint64, ptr HostPtr) func(yield func(piece) bool) {
	return func(yield func(piece) bool) {
		for z := range region[2] {
			for y := uint64(0); y < region[1]; {
				rows := min(max(chunkBytes/region[0], 1), region[1]-y)
				if region[0] > chunkBytes {
					row := ptr.bytes(host.offset(y, z), region[0])
					for p := range wholeRange(dev.offset(y, z), row) {
						if !yield(p) {
							return
						}
					}
				} else if !yield(rowsPiece(dev, host, region[0], y, z, rows, ptr)) {
					return
				}
				y += rows
			}
		}
	}
}

func rowsPiece(dev, host box, width, y, z, rows uint64, ptr HostPtr) piece {
	p := piece{bytes: width * rows}
	if rows == 1 {
		p.transfer = clwire.Transfer{Offset: dev.offset(y, z), Size: width}
	} else {
		p.transfer = clwire.Transfer{Rect: true, Origin: dev.rowOrigin(y, z), Region: [3]uint64{width, rows, 1}, RowPitch: dev.row, SlicePitch: dev.row * rows}
	}
	p.copy = func(chunk []byte, toChunk bool) {
		for i := range rows {
			dense, theirs := chunk[i*width:][:width], ptr.bytes(host.offset(y+i, z), width)
			if toChunk {
				copy(dense, theirs)
			} else {
				copy(theirs, dense)
			}
		}
	}
	return p
}

// EnqueueCopyRect is clEnqueueCopyBufferRect (§5.2.4); the Rect's buffer side is the source, its host side the target.
func (d *Driver) EnqueueCopyRect(queue, src, dst uintptr, r Rect, w Waits) (uintptr, Status) {
	q, s, t, status := d.pair(queue, src, dst)
	if status != Success {
		return 0, status
	}
	from, to, status := r.sides(s)
	if status != Success {
		return 0, status
	}
	if end, ok := to.end(r.Region); !ok || end > t.size {
		return 0, InvalidValue
	}
	if s == t && (from.row != to.row || from.slice != to.slice) {
		return 0, InvalidValue
	}
	if s.root == t.root && boxesMeet(s.origin, from, t.origin, to, r.Region) {
		return 0, MemCopyOverlap
	}
	c, status := d.openPair(q, cmdCopyRect, w, s, t)
	if status != Success {
		return c.close(status)
	}
	if r.Region[1] == 1 && r.Region[2] == 1 { // one row: pitches, which a driver might mind, do not matter
		m := &clwire.Copy{Src: s.id.Load(), Dst: t.id.Load(), SrcOffset: from.offset(0, 0), DstOffset: to.offset(0, 0), Size: r.Region[0]}
		return c.close(c.send(m, &m.Cmd))
	}
	m := &clwire.CopyRect{
		Src: s.id.Load(), Dst: t.id.Load(), SrcOrigin: from.origin, DstOrigin: to.origin, Region: r.Region,
		SrcRow: from.row, SrcSlice: from.slice, DstRow: to.row, DstSlice: to.slice,
	}
	return c.close(c.send(m, &m.Cmd))
}

// boxesMeet says whether two boxes of one memory share a byte. With equal pitches rows are compared exactly as
// appendix E of the specification does; otherwise their spans are.
func boxesMeet(baseA uint64, a box, baseB uint64, b box, region [3]uint64) bool {
	startA, startB := baseA+a.offset(0, 0), baseB+b.offset(0, 0)
	endA, _ := a.end(region)
	endB, _ := b.end(region)
	if startA >= baseB+endB || startB >= baseA+endA {
		return false
	}
	if a.row != b.row || a.slice != b.slice {
		return true
	}
	return shiftMeets(startA, startB, a.row, a.slice, region)
}

// shiftMeets compares two equal boxes whose starts differ: they meet when the distance, taken apart into slices, rows
// and bytes (each towards either side), is shorter than the region in every direction.
func shiftMeets(a, b, row, slice uint64, region [3]uint64) bool {
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
