package wire

import "tendril/store/object"

// AttachRequest shows a sealed object's segment to a worker of the session, read-only; by name where ID is zero.
type AttachRequest struct {
	Worker  uint64
	Attempt uint64 // the client's number for it: asked for again, it is answered again and not done twice; 0: no such
	ID      object.ID
	Name    string
}

// AppendTo appends the payload.
func (m *AttachRequest) AppendTo(b []byte) []byte {
	return appendStr16(append(le.AppendUint64(le.AppendUint64(b, m.Worker), m.Attempt), m.ID[:]...), m.Name)
}

// Decode reads the payload.
func (m *AttachRequest) Decode(b []byte) error {
	c := read(b)
	*m = AttachRequest{Worker: c.u64(), Attempt: c.u64(), ID: c.id(), Name: c.str16()}
	return c.done()
}

// AttachReply says under what number the worker knows the segment, and where the object lies in it. The connection holds
// a reference to the object until a Release.
type AttachReply struct {
	ID        object.ID
	Segment   uint64
	Offset    uint64
	SizeBytes uint64
}

// AppendTo appends the payload.
func (m *AttachReply) AppendTo(b []byte) []byte {
	b = le.AppendUint64(append(b, m.ID[:]...), m.Segment)
	return le.AppendUint64(le.AppendUint64(b, m.Offset), m.SizeBytes)
}

// Decode reads the payload.
func (m *AttachReply) Decode(b []byte) error {
	c := read(b)
	*m = AttachReply{ID: c.id(), Segment: c.u64(), Offset: c.u64(), SizeBytes: c.u64()}
	return c.done()
}
