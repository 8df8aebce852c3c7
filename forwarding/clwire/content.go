package clwire

// ContentSize says that the u64 at the beginning of the buffer Size counts how many bytes of Buffer mean something, from its
// beginning, whenever that is asked: a BulkRead of a range of Buffer brings no others. Size 0: all do.
type ContentSize struct{ Buffer, Size uint64 }

func (*ContentSize) Type() Type { return TypeContentSize }
func (m *ContentSize) Append(b []byte) []byte {
	return le.AppendUint64(le.AppendUint64(b, m.Buffer), m.Size)
}
func (m *ContentSize) Decode(b []byte) error {
	c := cursor{b: b, t: TypeContentSize}
	m.Buffer, m.Size = c.u64("buffer"), c.u64("size buffer")
	return c.end()
}

// BulkLength says that a read, or a push between workers, is over with its first Bytes bytes: no chunk beyond them comes. Of a read it
// follows a HostReady where there is one. It comes once at most.
type BulkLength struct{ Op, Bytes uint64 }

func (*BulkLength) Type() Type { return TypeBulkLength }
func (m *BulkLength) Append(b []byte) []byte {
	return le.AppendUint64(le.AppendUint64(b, m.Op), m.Bytes)
}
func (m *BulkLength) Decode(b []byte) error {
	c := cursor{b: b, t: TypeBulkLength}
	m.Op, m.Bytes = c.u64("operation"), c.u64("bytes")
	return c.end()
}
