package wire

// The index in shared memory (ipc/index/PROTOCOL.md).
const (
	OpenIndex  Type = 100
	IndexLevel Type = 101
)

// OpenIndexReply says what came with two descriptors: the connection's slots, writable, and level 0 of its tenant's table.
type OpenIndexReply struct {
	SlotsBytes uint64
	LevelBytes uint64
}

// AppendTo appends the payload.
func (m *OpenIndexReply) AppendTo(b []byte) []byte {
	return le.AppendUint64(le.AppendUint64(b, m.SlotsBytes), m.LevelBytes)
}

// Decode reads the payload.
func (m *OpenIndexReply) Decode(b []byte) error {
	c := read(b)
	*m = OpenIndexReply{SlotsBytes: c.u64(), LevelBytes: c.u64()}
	return c.done()
}

// IndexLevelRequest asks for a further level's descriptor; the reply is a Number, its bytes.
type IndexLevelRequest struct{ Level uint8 }

// AppendTo appends the payload.
func (m *IndexLevelRequest) AppendTo(b []byte) []byte { return append(b, m.Level) }

// Decode reads the payload.
func (m *IndexLevelRequest) Decode(b []byte) error {
	c := read(b)
	m.Level = c.u8()
	return c.done()
}
