package wire

import (
	"fmt"

	"tendril/store/object"
)

// MaxWriteBytes bounds a Write's data: the request is one frame.
const MaxWriteBytes = 1<<20 - (object.IDBytes + 8 + 4)

// WriteRequest fills a part of an object that Upload made.
type WriteRequest struct {
	ID     object.ID
	Offset uint64
	Data   []byte
}

// AppendTo appends the payload.
func (m *WriteRequest) AppendTo(b []byte) []byte {
	return appendBytes32(le.AppendUint64(append(b, m.ID[:]...), m.Offset), m.Data)
}

// Decode reads the payload.
func (m *WriteRequest) Decode(b []byte) error {
	c := read(b)
	*m = WriteRequest{ID: c.id(), Offset: c.u64(), Data: c.bytes32()}
	if len(m.Data) > MaxWriteBytes && c.err == nil {
		return fmt.Errorf("%w: a write of %d bytes, at most %d", object.ErrProtocol, len(m.Data), MaxWriteBytes)
	}
	return c.done()
}

// HoldReply says what a held object is.
type HoldReply struct {
	ID        object.ID
	SizeBytes uint64
	Class     object.Class
	Meta      []byte
}

// AppendTo appends the payload.
func (m *HoldReply) AppendTo(b []byte) []byte {
	b = append(le.AppendUint64(append(b, m.ID[:]...), m.SizeBytes), uint8(m.Class))
	return appendBytes32(b, m.Meta)
}

// Decode reads the payload.
func (m *HoldReply) Decode(b []byte) error {
	c := read(b)
	*m = HoldReply{ID: c.id(), SizeBytes: c.u64(), Class: object.Class(c.u8()), Meta: c.bytes32()}
	return c.done()
}
