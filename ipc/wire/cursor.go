package wire

import (
	"encoding/binary"
	"fmt"

	"tendril/store/object"
)

// cursor reads a payload. The first fault sticks; done reports it, or bytes left over.
type cursor struct {
	b     []byte
	total int
	err   error
}

func read(b []byte) *cursor { return &cursor{b: b, total: len(b)} }

// take gives the next n bytes, aliasing the payload, or nil after a fault.
func (c *cursor) take(n int) []byte {
	if c.err != nil {
		return nil
	}
	if n > len(c.b) {
		c.err = fmt.Errorf("%w: payload of %d bytes ends %d short of a field of %d", object.ErrProtocol, c.total, n-len(c.b), n)
		return nil
	}
	field := c.b[:n:n]
	c.b = c.b[n:]
	return field
}

func (c *cursor) u8() uint8 {
	if b := c.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (c *cursor) u16() uint16 {
	if b := c.take(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (c *cursor) u32() uint32 {
	if b := c.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if b := c.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (c *cursor) hash() (h [32]byte) {
	copy(h[:], c.take(len(h)))
	return h
}

func (c *cursor) id() (id object.ID) {
	copy(id[:], c.take(object.IDBytes))
	return id
}

func (c *cursor) ref() object.Ref {
	return object.Ref{Segment: c.u64(), SegmentBytes: c.u64(), Offset: c.u64()}
}

func (c *cursor) str16() string { return string(c.take(int(c.u16()))) }

// bytes32 aliases the payload. A length beyond it is a fault before anything is taken.
func (c *cursor) bytes32() []byte {
	n := c.u32()
	if uint64(n) > uint64(len(c.b)) {
		n = uint32(min(len(c.b)+1, 1<<31)) // one too many: take says so
	}
	return c.take(int(n))
}

func (c *cursor) bool() bool {
	v := c.u8()
	if v > 1 && c.err == nil {
		c.err = fmt.Errorf("%w: a boolean of %d", object.ErrProtocol, v)
	}
	return v == 1
}

func (c *cursor) done() error {
	if c.err == nil && len(c.b) > 0 {
		c.err = fmt.Errorf("%w: payload of %d bytes has %d too many", object.ErrProtocol, c.total, len(c.b))
	}
	return c.err
}

var le = binary.LittleEndian

func appendStr16(b []byte, s string) []byte {
	s = s[:min(len(s), 1<<16-1)]
	return append(le.AppendUint16(b, uint16(len(s))), s...)
}

func appendBytes32(b, v []byte) []byte { return append(le.AppendUint32(b, uint32(len(v))), v...) }

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendRef(b []byte, r object.Ref) []byte {
	b = le.AppendUint64(b, r.Segment)
	b = le.AppendUint64(b, r.SegmentBytes)
	return le.AppendUint64(b, r.Offset)
}
