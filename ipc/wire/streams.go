package wire

import (
	"fmt"

	"tendril/store/object"
)

// StreamOpen's flags.
const (
	StreamReads      = 1
	StreamWrites     = 2
	StreamNew        = 4  // it must not be there yet
	StreamExisting   = 8  // it must be there
	StreamDropOldest = 16 // a push into a full stream drops what waits longest
	StreamKeep       = 32 // it stays when nobody has it open and nothing waits
)

// WaitForEver is a wait without end, in ms.
const WaitForEver = 1<<32 - 1

// StreamOpenRequest opens a stream.
type StreamOpenRequest struct {
	Flags  uint8
	Frames uint32 // that may wait; 0 = as it is
	Bytes  uint64 // that may wait; 0 = as it is
	Name   string
}

// AppendTo appends the payload.
func (m *StreamOpenRequest) AppendTo(b []byte) []byte {
	return appendStr16(le.AppendUint64(le.AppendUint32(append(b, m.Flags), m.Frames), m.Bytes), m.Name)
}

// Decode reads the payload.
func (m *StreamOpenRequest) Decode(b []byte) error {
	c := read(b)
	*m = StreamOpenRequest{Flags: c.u8(), Frames: c.u32(), Bytes: c.u64(), Name: c.str16()}
	if m.Flags&^63 != 0 && c.err == nil {
		c.err = fmt.Errorf("%w: StreamOpen flags 0x%x", object.ErrProtocol, m.Flags)
	}
	return c.done()
}

// StreamOpenReply gives the connection's number for the stream and its bounds.
type StreamOpenReply struct {
	Stream uint64
	Frames uint32
	Bytes  uint64
}

// AppendTo appends the payload.
func (m *StreamOpenReply) AppendTo(b []byte) []byte {
	return le.AppendUint64(le.AppendUint32(le.AppendUint64(b, m.Stream), m.Frames), m.Bytes)
}

// Decode reads the payload.
func (m *StreamOpenReply) Decode(b []byte) error {
	c := read(b)
	*m = StreamOpenReply{Stream: c.u64(), Frames: c.u32(), Bytes: c.u64()}
	return c.done()
}

// StreamPushRequest moves a reference into a stream.
type StreamPushRequest struct {
	Stream uint64
	ID     object.ID
	Seal   bool   // the object is the connection's own: seal it first, where that has not happened
	WaitMS uint32 // WaitForEver: without end
	Meta   []byte // with Seal: the object's metadata from now on; empty = as Create said
}

// AppendTo appends the payload.
func (m *StreamPushRequest) AppendTo(b []byte) []byte {
	b = append(le.AppendUint64(b, m.Stream), m.ID[:]...)
	return appendBytes32(le.AppendUint32(appendBool(b, m.Seal), m.WaitMS), m.Meta)
}

// Decode reads the payload.
func (m *StreamPushRequest) Decode(b []byte) error {
	c := read(b)
	*m = StreamPushRequest{Stream: c.u64(), ID: c.id(), Seal: c.bool(), WaitMS: c.u32(), Meta: c.bytes32()}
	return c.done()
}

// StreamPopRequest takes the frame that waits longest.
type StreamPopRequest struct {
	Stream uint64
	WaitMS uint32 // WaitForEver: without end
}

// AppendTo appends the payload.
func (m *StreamPopRequest) AppendTo(b []byte) []byte {
	return le.AppendUint32(le.AppendUint64(b, m.Stream), m.WaitMS)
}

// Decode reads the payload.
func (m *StreamPopRequest) Decode(b []byte) error {
	c := read(b)
	*m = StreamPopRequest{Stream: c.u64(), WaitMS: c.u32()}
	return c.done()
}

// StreamPopReply is a frame: its number in the stream, then what a Get answers.
type StreamPopReply struct {
	Number uint64
	GetReply
}

// AppendTo appends the payload.
func (m *StreamPopReply) AppendTo(b []byte) []byte {
	return m.GetReply.AppendTo(le.AppendUint64(b, m.Number))
}

// Decode reads the payload.
func (m *StreamPopReply) Decode(b []byte) error {
	c := read(b)
	m.Number = c.u64()
	if c.err != nil {
		return c.err
	}
	return m.GetReply.Decode(c.b)
}

// StreamEndRequest says that no more frames come.
type StreamEndRequest struct {
	Stream uint64
	Abort  bool // what waits is dropped
}

// AppendTo appends the payload.
func (m *StreamEndRequest) AppendTo(b []byte) []byte {
	return appendBool(le.AppendUint64(b, m.Stream), m.Abort)
}

// Decode reads the payload.
func (m *StreamEndRequest) Decode(b []byte) error {
	c := read(b)
	*m = StreamEndRequest{Stream: c.u64(), Abort: c.bool()}
	return c.done()
}

// StreamUnpopRequest puts a popped frame back.
type StreamUnpopRequest struct {
	Stream uint64
	ID     object.ID
	Number uint64
}

// AppendTo appends the payload.
func (m *StreamUnpopRequest) AppendTo(b []byte) []byte {
	return le.AppendUint64(append(le.AppendUint64(b, m.Stream), m.ID[:]...), m.Number)
}

// Decode reads the payload.
func (m *StreamUnpopRequest) Decode(b []byte) error {
	c := read(b)
	*m = StreamUnpopRequest{Stream: c.u64(), ID: c.id(), Number: c.u64()}
	return c.done()
}
