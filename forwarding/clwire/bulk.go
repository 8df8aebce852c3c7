package clwire

import (
	"encoding/binary"
	"fmt"

	"tendril/ipc/field"
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
//
//wire:part
type Shape struct {
	Rect                 bool
	Offset, Size         uint64    `wire:"unless=Rect"`
	Origin, Region       [3]uint64 `wire:"if=Rect"` // x in bytes, y in rows, z in slices
	RowPitch, SlicePitch uint64    `wire:"if=Rect"` // bytes, never 0 from a client of ours
}

// BulkWrite is a write whose bytes come apart from it, as chunks named by Op.
//
//wire:record
type BulkWrite struct {
	Cmd
	Op     uint64 // of the space of host operations
	Buffer uint64
	Shape
}

// BulkRead is a read whose bytes come as chunks named by Op: on the control
// stream if Inline (at most InlineBytes), otherwise on lanes.
//
//wire:record
type BulkRead struct {
	Cmd
	Op     uint64
	Inline bool
	Buffer uint64
	Shape
}

// chunk is a part of a bulk command's dense bytes, on the control stream.
//
//wire:part
type chunk struct {
	Op, Offset uint64
	Data       []byte
}

// BulkBytes is a chunk of a BulkWrite that goes on the control stream.
//
//wire:record
type BulkBytes struct{ chunk }

// NewBulkBytes makes a chunk; data is not copied.
func NewBulkBytes(op, offset uint64, data []byte) *BulkBytes {
	return &BulkBytes{chunk{op, offset, data}}
}

// BulkData is a chunk of an inline BulkRead.
//
//wire:record
type BulkData struct{ chunk }

// NewBulkData makes a chunk; data is not copied.
func NewBulkData(op, offset uint64, data []byte) *BulkData { return &BulkData{chunk{op, offset, data}} }

// BulkDone ends a bulk operation: the bytes of a write are in place, those of an
// inline read were all sent (Status 0), or it failed.
//
//wire:record
type BulkDone struct {
	Op     uint64
	Status int32
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
	Plain    Packing = iota
	PackedS2         // one block of S2 (github.com/klauspost/compress/s2), an extension of Snappy's
	// PackedWords is PackedS2 of the first bytes of all 4-byte words, then their second, third and fourth ones, then
	// the last Length mod 4 bytes.
	PackedWords
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
		Op: binary.LittleEndian.Uint64(b), Offset: binary.LittleEndian.Uint64(b[8:]),
		Length:  binary.LittleEndian.Uint32(b[16:]),
		Skipped: flags&laneSkipped != 0, Packing: Packing(flags >> lanePackingAt & lanePackingAll),
		Packed: flags >> lanePackedAt,
	}
	if h.Length == 0 || h.Length > MaxChunk || !h.sound(flags) {
		return h, fmt.Errorf("%w: a chunk of %d bytes with flags %#x; the limit is %d bytes", ErrRecord, h.Length,
			flags, MaxChunk)
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

// TakesPacked says that its sender takes packed chunks, in every way up to the greatest it names, on the lanes of the
// connection's other end. A client sends it to a worker that shows CapPacked; nothing is packed before.
//
//wire:record
type TakesPacked struct{ Greatest Packing }

func (m *TakesPacked) check(r *field.Reader) {
	if m.Greatest == Plain {
		r.Fail("greatest")
	}
}
