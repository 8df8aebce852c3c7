package conn

import (
	"sync"

	"tendril/forwarding/clwire"
)

// memory is a bulk operation's owner: the program's memory, in one piece or in rows.
type memory struct {
	bytes []byte
	row   uint64 // 0: in one piece

	mu     sync.Mutex
	status []int32 // as often as it ended
}

func (m *memory) Bytes(off, n uint64) []byte             { return m.bytes[off : off+n] }
func (m *memory) Append(to []byte, off, n uint64) []byte { return append(to, m.bytes[off:off+n]...) }
func (m *memory) Scatter(off uint64, data []byte)        { copy(m.bytes[off:], data) }

func (m *memory) Chunk(at uint64) uint64 {
	n := min(clwire.MaxChunk, uint64(len(m.bytes))-at)
	if m.row != 0 {
		return min(n, m.row-at%m.row)
	}
	return n
}

func (m *memory) Ended(status int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.status = append(m.status, status)
}

func (m *memory) ends() []int32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.status
}

// pattern is n bytes that tell where they are.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8)*3 ^ byte(i>>16)*5 ^ seed
	}
	return b
}
