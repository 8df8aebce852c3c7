// Package field holds what the generated codecs of two protocols share (ipc/wire, forwarding/clwire): a reader of a
// payload's fields, front to back, and the few fields that are more than a number. tools/wiregen writes the codecs;
// docs/design/codecs.md says why.
//
// It trusts nobody: a length is compared with what is there before it is used. It keeps no state and takes no locks.
package field

import (
	"encoding/binary"
	"fmt"
)

// MaxText is how many bytes a text can have: its length is a u16.
const MaxText = 1<<16 - 1

// Reader takes a payload's fields from its front. The first fault sticks: from then on there are no bytes. What Take
// gives aliases the payload.
type Reader struct {
	b     []byte // nil after a fault
	fault string // the field at fault; "" while there is none
}

// Read makes a reader of a payload.
func Read(b []byte) Reader { return Reader{b: b} }

// Take gives the next n bytes, or nil if they are not there. what names the fields that they hold.
func (r *Reader) Take(n int, what string) []byte {
	if uint(n) > uint(len(r.b)) {
		r.Fail(what)
		return nil
	}
	p := r.b[:n:n]
	r.b = r.b[n:]
	return p
}

// Rest gives all that is left.
func (r *Reader) Rest() []byte { return r.Take(len(r.b), "") }

// Left is how many bytes are left.
func (r *Reader) Left() int { return len(r.b) }

// Elements takes a list's elements, n of size bytes each; more than most are refused.
func (r *Reader) Elements(n, most, size int, what string) []byte {
	if n > most {
		r.Fail(what)
	}
	return r.Take(n*size, what)
}

// Count reports whether a list of n elements may be there: at most so many, and each at least of size bytes.
func (r *Reader) Count(n, most, size int, what string) bool {
	if n > most || n*size > len(r.b) {
		r.Fail(what)
	}
	return r.fault == ""
}

// Bool is 0 or 1, nothing else.
func (r *Reader) Bool(v uint32, what string) bool {
	if v > 1 {
		r.Fail(what)
	}
	return v == 1
}

// Bits refuses flags beyond the lowest n.
func (r *Reader) Bits(v uint8, n int, what string) {
	if v>>n != 0 {
		r.Fail(what)
	}
}

// U16 takes a number; 0 after a fault.
func (r *Reader) U16(what string) uint16 {
	if p := r.Take(2, what); p != nil {
		return binary.LittleEndian.Uint16(p)
	}
	return 0
}

// U32 takes a number; 0 after a fault.
func (r *Reader) U32(what string) uint32 {
	if p := r.Take(4, what); p != nil {
		return binary.LittleEndian.Uint32(p)
	}
	return 0
}

// Fail says which field is wrong, unless one was before.
func (r *Reader) Fail(what string) {
	if r.fault == "" {
		r.fault = what
	}
	r.b = nil
}

// Failed reports whether something is wrong.
func (r *Reader) Failed() bool { return r.fault != "" }

// End reports the first fault, or bytes that nobody asked for, as an error that wraps sentinel and names the message.
func (r *Reader) End(sentinel error, message string) error {
	if r.fault == "" && len(r.b) == 0 {
		return nil
	}
	return r.error(sentinel, message)
}

func (r *Reader) error(sentinel error, message string) error {
	if r.fault != "" {
		return fmt.Errorf("%w: %s: bad or missing %s", sentinel, message, r.fault)
	}
	return fmt.Errorf("%w: %s: %d bytes too many", sentinel, message, len(r.b))
}

// AppendText appends u16 length and the bytes of s, which it cuts at MaxText.
func AppendText(b []byte, s string) []byte {
	s = s[:min(len(s), MaxText)]
	return append(binary.LittleEndian.AppendUint16(b, uint16(len(s))), s...)
}

// AppendBytes appends u32 length and the bytes.
func AppendBytes(b, p []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(p))), p...)
}

// Bit is 1 for true: written so, the compiler makes no branch of it.
func Bit(v bool) uint8 {
	if v {
		return 1
	}
	return 0
}
