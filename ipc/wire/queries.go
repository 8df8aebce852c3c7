package wire

import (
	"fmt"

	"tendril/store/object"
)

// GrantRequest lets others read an object, by name where ID is zero.
type GrantRequest struct {
	ID     object.ID
	Name   string
	Revoke bool
	To     string // "uid:N", "gid:N", "all"
}

// AppendTo appends the payload.
func (m *GrantRequest) AppendTo(b []byte) []byte {
	return appendStr16(appendBool(appendStr16(append(b, m.ID[:]...), m.Name), m.Revoke), m.To)
}

// Decode reads the payload.
func (m *GrantRequest) Decode(b []byte) error {
	c := read(b)
	*m = GrantRequest{ID: c.id(), Name: c.str16(), Revoke: c.bool(), To: c.str16()}
	return c.done()
}

// ListWhereRequest is List with more conditions.
type ListWhereRequest struct {
	Prefix string
	All    bool
	Shared bool // other tenants' objects that may be read, instead of the own ones
	Labels map[string]string
}

// AppendTo appends the payload.
func (m *ListWhereRequest) AppendTo(b []byte) []byte {
	return appendLabels(appendBool(appendBool(appendStr16(b, m.Prefix), m.All), m.Shared), m.Labels)
}

// Decode reads the payload.
func (m *ListWhereRequest) Decode(b []byte) error {
	c := read(b)
	*m = ListWhereRequest{Prefix: c.str16(), All: c.bool(), Shared: c.bool(), Labels: c.labels()}
	return c.done()
}

// RenameRequest moves a name.
type RenameRequest struct {
	From, To string
	Replace  bool
}

// AppendTo appends the payload.
func (m *RenameRequest) AppendTo(b []byte) []byte {
	return appendBool(appendStr16(appendStr16(b, m.From), m.To), m.Replace)
}

// Decode reads the payload.
func (m *RenameRequest) Decode(b []byte) error {
	c := read(b)
	*m = RenameRequest{From: c.str16(), To: c.str16(), Replace: c.bool()}
	return c.done()
}

// MaxWanted bounds an AwaitMany.
const MaxWanted = 2048

// AwaitManyRequest waits until a Get of each would find it.
type AwaitManyRequest struct {
	WaitMS uint32
	Wanted []NameMessage
}

// AppendTo appends the payload.
func (m *AwaitManyRequest) AppendTo(b []byte) []byte {
	b = le.AppendUint16(le.AppendUint32(b, m.WaitMS), uint16(len(m.Wanted)))
	for i := range m.Wanted {
		b = m.Wanted[i].AppendTo(b)
	}
	return b
}

// Decode reads the payload.
func (m *AwaitManyRequest) Decode(b []byte) error {
	c := read(b)
	*m = AwaitManyRequest{WaitMS: c.u32()}
	n := int(c.u16())
	if least := n * (object.IDBytes + 2); (n > MaxWanted || least > len(c.b)) && c.err == nil {
		return fmt.Errorf("%w: %d objects in %d bytes, at most %d", object.ErrProtocol, n, len(c.b), MaxWanted)
	}
	for range n {
		m.Wanted = append(m.Wanted, NameMessage{ID: c.id(), Name: c.str16()})
	}
	return c.done()
}

// MaxReadBytes bounds a ReadRange: its reply is one frame.
const MaxReadBytes = 1 << 20

// ReadRangeRequest asks for bytes of an object, by name where ID is zero.
type ReadRangeRequest struct {
	ID     object.ID
	Name   string
	Offset uint64
	Bytes  uint32
}

// AppendTo appends the payload.
func (m *ReadRangeRequest) AppendTo(b []byte) []byte {
	b = le.AppendUint64(appendStr16(append(b, m.ID[:]...), m.Name), m.Offset)
	return le.AppendUint32(b, m.Bytes)
}

// Decode reads the payload.
func (m *ReadRangeRequest) Decode(b []byte) error {
	c := read(b)
	*m = ReadRangeRequest{ID: c.id(), Name: c.str16(), Offset: c.u64(), Bytes: c.u32()}
	if m.Bytes > MaxReadBytes && c.err == nil {
		return fmt.Errorf("%w: a read of %d bytes, at most %d", object.ErrProtocol, m.Bytes, MaxReadBytes)
	}
	return c.done()
}

// WatchRequest asks for the events of objects whose name begins so.
type WatchRequest struct{ Prefix string }

// AppendTo appends the payload.
func (m *WatchRequest) AppendTo(b []byte) []byte { return appendStr16(b, m.Prefix) }

// Decode reads the payload.
func (m *WatchRequest) Decode(b []byte) error {
	c := read(b)
	m.Prefix = c.str16()
	return c.done()
}
