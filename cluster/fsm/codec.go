package fsm

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"

	"tendril/store/object"
)

// codec walks a record's fields in order: it appends them to buf or, when reading, takes them from it. One walk method
// a record describes both directions, so that they cannot drift apart. The first fault stays in err and stops the walk.
// Integers are little-endian.
type codec struct {
	reading bool
	buf     []byte
	off     int // reading only: bytes taken
	err     error
}

func (c *codec) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: "+format, append([]any{object.ErrProtocol}, args...)...)
	}
}

// take gives the next n bytes; nil once something was wrong. The bytes stay the buffer's.
func (c *codec) take(n int) []byte {
	if c.err != nil {
		return nil
	}
	if left := len(c.buf) - c.off; n > left {
		c.fail("a field of %d bytes at offset %d, but %d are left", n, c.off, left)
		return nil
	}
	c.off += n
	return c.buf[c.off-n : c.off]
}

func (c *codec) u8(v *uint8) {
	if !c.reading {
		c.buf = append(c.buf, *v)
	} else if b := c.take(1); b != nil {
		*v = b[0]
	}
}

func (c *codec) u16(v *uint16) {
	if !c.reading {
		c.buf = binary.LittleEndian.AppendUint16(c.buf, *v)
	} else if b := c.take(2); b != nil {
		*v = binary.LittleEndian.Uint16(b)
	}
}

func (c *codec) u32(v *uint32) {
	if !c.reading {
		c.buf = binary.LittleEndian.AppendUint32(c.buf, *v)
	} else if b := c.take(4); b != nil {
		*v = binary.LittleEndian.Uint32(b)
	}
}

func (c *codec) u64(v *uint64) {
	if !c.reading {
		c.buf = binary.LittleEndian.AppendUint64(c.buf, *v)
	} else if b := c.take(8); b != nil {
		*v = binary.LittleEndian.Uint64(b)
	}
}

func (c *codec) i64(v *int64) {
	u := uint64(*v)
	if c.u64(&u); c.reading { // what is written others may read just now
		*v = int64(u)
	}
}

// flag is one byte that is 0 or 1, nothing else.
func (c *codec) flag(v *bool) {
	var b uint8
	if *v {
		b = 1
	}
	if c.u8(&b); !c.reading {
		return
	}
	if b > 1 {
		c.fail("a flag of %d, want 0 or 1", b)
	}
	*v = b == 1
}

// fixed is len(v) bytes as they are.
func (c *codec) fixed(v []byte) {
	if !c.reading {
		c.buf = append(c.buf, v...)
	} else if b := c.take(len(v)); b != nil {
		copy(v, b)
	}
}

// str is u16 length and that many bytes of UTF-8.
func (c *codec) str(v *string, maxBytes int) {
	if !c.reading && (len(*v) > maxBytes || !utf8.ValidString(*v)) {
		c.fail("a text of %d bytes (%.40q) is longer than %d or not UTF-8", len(*v), *v, maxBytes)
		return
	}
	n := uint16(len(*v))
	c.u16(&n)
	if !c.reading {
		c.buf = append(c.buf, *v...)
		return
	}
	if int(n) > maxBytes {
		c.fail("a text of %d bytes is longer than %d", n, maxBytes)
	}
	b := c.take(int(n))
	if !utf8.Valid(b) {
		c.fail("a text that is not UTF-8: %.40q", b)
	}
	*v = string(b)
}

// bytes is u32 length and that many bytes; an empty slice reads back as nil. What was read is a copy.
func (c *codec) bytes(v *[]byte, maxBytes int) {
	if !c.reading && len(*v) > maxBytes {
		c.fail("%d bytes are more than %d", len(*v), maxBytes)
		return
	}
	n := uint32(len(*v))
	c.u32(&n)
	if !c.reading {
		c.buf = append(c.buf, *v...)
		return
	}
	if int64(n) > int64(maxBytes) {
		c.fail("%d bytes are more than %d", n, maxBytes)
	}
	*v = append([]byte(nil), c.take(int(n))...)
}

// list is u32 count and that many elements; an empty list reads back as nil. Memory grows with the bytes that are
// there, never with the count alone.
func list[T any](c *codec, v *[]T, most int, walk func(*T, *codec)) {
	if !c.reading && len(*v) > most {
		c.fail("a list of %d is longer than %d", len(*v), most)
		return
	}
	n := uint32(len(*v))
	c.u32(&n)
	if !c.reading {
		for i := range *v {
			walk(&(*v)[i], c)
		}
		return
	}
	if int64(n) > int64(most) {
		c.fail("a list of %d is longer than %d", n, most)
	}
	*v = nil
	for i := uint32(0); i < n && c.err == nil; i++ {
		var e T
		walk(&e, c)
		*v = append(*v, e)
	}
}

// end says that a record must be over here.
func (c *codec) end() error {
	if c.err == nil && c.reading && c.off != len(c.buf) {
		c.fail("%d bytes follow the record's end at offset %d", len(c.buf)-c.off, c.off)
	}
	return c.err
}
