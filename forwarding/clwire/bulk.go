package clwire

import (
	"encoding/binary"
	"fmt"
)

// Sessions across a network: payload that goes over lanes (PROTOCOL.md, Bulk).
const (
	LaneHeaderBytes = 24        // before every chunk on a lane
	MaxChunk        = 256 << 10 // bytes of one chunk on a lane
	MaxLanes        = 8         // connections of one worker, the control stream included
	StagingBytes    = 4 << 20   // payload that may be under way for writes whose turn has not come
)

// Shape is the part of a buffer that a bulk command covers. Its bytes are dense
// on the wire: rows follow each other, then slices.
type Shape struct {
	Rect                 bool
	Offset, Size         uint64    // Rect false
	Origin, Region       [3]uint64 // Rect true: x in bytes, y in rows, z in slices
	RowPitch, SlicePitch uint64    // bytes, never 0 from a client of ours
}

func (s *Shape) append(b []byte) []byte {
	if !s.Rect {
		return le.AppendUint64(le.AppendUint64(append(b, 0), s.Offset), s.Size)
	}
	b = appendU64x3(appendU64x3(append(b, 1), s.Origin), s.Region)
	return le.AppendUint64(le.AppendUint64(b, s.RowPitch), s.SlicePitch)
}

func (s *Shape) decode(c *cursor) {
	*s = Shape{}
	switch c.u8("rect") {
	case 0:
		s.Offset, s.Size = c.u64("offset"), c.u64("size")
	case 1:
		s.Rect = true
		s.Origin, s.Region = c.u64x3("origin"), c.u64x3("region")
		s.RowPitch, s.SlicePitch = c.u64("row pitch"), c.u64("slice pitch")
	default:
		c.fail("rect")
	}
}

// BulkWrite is a write whose bytes come apart from it, as chunks named by Op.
type BulkWrite struct {
	Cmd
	Op     uint64 // of the space of host operations
	Buffer uint64
	Shape
}

func (*BulkWrite) Type() Type { return TypeBulkWrite }
func (m *BulkWrite) Append(b []byte) []byte {
	b = le.AppendUint64(m.Cmd.append(b), m.Op)
	return m.Shape.append(le.AppendUint64(b, m.Buffer))
}
func (m *BulkWrite) Decode(b []byte) error {
	c := cursor{b: b, t: TypeBulkWrite}
	m.Cmd.decode(&c)
	m.Op, m.Buffer = c.u64("op"), c.u64("buffer")
	m.Shape.decode(&c)
	return c.end()
}

// BulkRead is a read whose bytes come as chunks named by Op: on the control
// stream if Inline (at most InlineBytes), otherwise on lanes.
type BulkRead struct {
	Cmd
	Op     uint64
	Inline bool
	Buffer uint64
	Shape
}

func (*BulkRead) Type() Type { return TypeBulkRead }
func (m *BulkRead) Append(b []byte) []byte {
	b = le.AppendUint64(m.Cmd.append(b), m.Op)
	inline := byte(0)
	if m.Inline {
		inline = 1
	}
	return m.Shape.append(le.AppendUint64(append(b, inline), m.Buffer))
}
func (m *BulkRead) Decode(b []byte) error {
	c := cursor{b: b, t: TypeBulkRead}
	m.Cmd.decode(&c)
	m.Op = c.u64("op")
	inline := c.u8("inline")
	if inline > 1 {
		c.fail("inline")
	}
	m.Inline = inline == 1
	m.Buffer = c.u64("buffer")
	m.Shape.decode(&c)
	return c.end()
}

// chunk is a part of a bulk command's dense bytes, on the control stream.
type chunk struct {
	Op, Offset uint64
	Data       []byte
}

func (m *chunk) Append(b []byte) []byte {
	return appendBytes32(le.AppendUint64(le.AppendUint64(b, m.Op), m.Offset), m.Data)
}

func (m *chunk) decode(b []byte, t Type) error {
	c := cursor{b: b, t: t}
	m.Op, m.Offset, m.Data = c.u64("op"), c.u64("offset"), c.bytes32("data")
	return c.end()
}

// BulkBytes is a chunk of a BulkWrite that goes on the control stream.
type BulkBytes struct{ chunk }

// NewBulkBytes makes a chunk; data is not copied.
func NewBulkBytes(op, offset uint64, data []byte) *BulkBytes {
	return &BulkBytes{chunk{op, offset, data}}
}

func (*BulkBytes) Type() Type              { return TypeBulkBytes }
func (m *BulkBytes) Decode(b []byte) error { return m.decode(b, TypeBulkBytes) }

// BulkData is a chunk of an inline BulkRead.
type BulkData struct{ chunk }

// NewBulkData makes a chunk; data is not copied.
func NewBulkData(op, offset uint64, data []byte) *BulkData { return &BulkData{chunk{op, offset, data}} }

func (*BulkData) Type() Type              { return TypeBulkData }
func (m *BulkData) Decode(b []byte) error { return m.decode(b, TypeBulkData) }

// BulkDone ends a bulk operation: the bytes of a write are in place, those of an
// inline read were all sent (Status 0), or it failed.
type BulkDone struct {
	Op     uint64
	Status int32
}

func (*BulkDone) Type() Type { return TypeBulkDone }
func (m *BulkDone) Append(b []byte) []byte {
	return le.AppendUint32(le.AppendUint64(b, m.Op), uint32(m.Status))
}
func (m *BulkDone) Decode(b []byte) error {
	c := cursor{b: b, t: TypeBulkDone}
	m.Op, m.Status = c.u64("op"), int32(c.u32("status"))
	return c.end()
}

// LaneHeader stands before every chunk on a lane.
type LaneHeader struct {
	Op      uint64
	Offset  uint64 // in the dense bytes of the operation
	Length  uint32 // ≤ MaxChunk, ≥ 1: bytes of the operation, whatever they take on the lane
	Skipped bool   // no payload follows: the sender gave the operation up, or failed to read its memory
	Packing Packing
	Packed  uint32 // what follows, in bytes, where Packing is not Plain: less than Length
}

// Packing says how a chunk's bytes were made fewer.
type Packing uint8

// Ways to pack. Numbers are for ever.
const (
	Plain       Packing = iota
	PackedS2            // one block of S2 (github.com/klauspost/compress/s2), an extension of Snappy's
	PackedWords         // likewise, of the first bytes of all 4-byte words, then their second, third and fourth ones, then the last Length mod 4 bytes
	packings

	GreatestPacking = packings - 1
)

const (
	laneSkipped    = 1
	lanePackingAt  = 1 // 3 bits
	lanePackingAll = 7
	lanePackedAt   = 8 // 24 bits
)

// WireBytes is how much of the lane the chunk's payload takes.
func (h *LaneHeader) WireBytes() uint32 {
	switch {
	case h.Skipped:
		return 0
	case h.Packing != Plain:
		return h.Packed
	}
	return h.Length
}

// Put writes the header into b, which must hold LaneHeaderBytes.
func (h LaneHeader) Put(b []byte) {
	_ = b[LaneHeaderBytes-1]
	binary.LittleEndian.PutUint64(b, h.Op)
	binary.LittleEndian.PutUint64(b[8:], h.Offset)
	binary.LittleEndian.PutUint32(b[16:], h.Length)
	flags := uint32(h.Packing)<<lanePackingAt | h.Packed<<lanePackedAt
	if h.Skipped {
		flags |= laneSkipped
	}
	binary.LittleEndian.PutUint32(b[20:], flags)
}

// ParseLaneHeader reads a header and bounds its lengths. b must hold LaneHeaderBytes.
func ParseLaneHeader(b []byte) (LaneHeader, error) {
	_ = b[LaneHeaderBytes-1]
	flags := binary.LittleEndian.Uint32(b[20:])
	h := LaneHeader{
		Op: binary.LittleEndian.Uint64(b), Offset: binary.LittleEndian.Uint64(b[8:]), Length: binary.LittleEndian.Uint32(b[16:]),
		Skipped: flags&laneSkipped != 0, Packing: Packing(flags >> lanePackingAt & lanePackingAll), Packed: flags >> lanePackedAt,
	}
	if h.Length == 0 || h.Length > MaxChunk || !h.sound(flags) {
		return h, fmt.Errorf("%w: a chunk of %d bytes with flags %#x; the limit is %d bytes", ErrRecord, h.Length, flags, MaxChunk)
	}
	return h, nil
}

func (h *LaneHeader) sound(flags uint32) bool {
	switch known := flags>>lanePackedAt<<lanePackedAt | lanePackingAll<<lanePackingAt | laneSkipped; {
	case flags&^known != 0, h.Packing >= packings, h.Skipped && flags != laneSkipped:
		return false
	case h.Packing == Plain:
		return h.Packed == 0
	}
	return h.Packed > 0 && h.Packed < h.Length
}

// TakesPacked says that its sender takes packed chunks, in every way up to the greatest it names, on the lanes of the connection's other end. A
// client sends it to a worker that shows CapPacked; nothing is packed before.
type TakesPacked struct{ Greatest Packing }

func (*TakesPacked) Type() Type               { return TypeTakesPacked }
func (m *TakesPacked) Append(b []byte) []byte { return append(b, uint8(m.Greatest)) }
func (m *TakesPacked) Decode(b []byte) error {
	c := cursor{b: b, t: TypeTakesPacked}
	m.Greatest = Packing(c.u8("packing"))
	if m.Greatest == Plain {
		c.fail("packing")
	}
	return c.end()
}
