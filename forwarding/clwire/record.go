package clwire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Version is the session protocol's version, exchanged in Hello.
const Version = 1

// Limits. A peer that exceeds one is in error; none is a limit on a buffer's size.
const (
	HeaderBytes = 16        // of a record
	MaxRecord   = 96 << 10  // bytes of one payload: less than half of the smaller ring
	MaxBlob     = 1 << 30   // bytes of one blob (program source, binaries)
	MaxWait     = 4096      // events in one wait list
	MaxArgs     = 4096      // changed arguments in one NDRange
	MaxDevices  = 256       // devices named in one message
	MaxPattern  = 128       // bytes of a fill pattern (OpenCL 3.0 §5.2.2)
	InlineBytes = 64 << 10  // largest payload of WriteInline, BulkBytes and BulkData
	MaxText     = 1<<16 - 1 // bytes of a str16
)

// Record flags.
const (
	FlagMore   = 1 << 0 // the Reply goes on in another record
	FlagUrgent = 1 << 1 // rings the bell of a lazy consumer
)

// ErrRecord is wrapped by every decoding error.
var ErrRecord = errors.New("malformed record")

// Header stands before every payload.
type Header struct {
	Length  uint32 // bytes of the payload, ≤ MaxRecord
	Type    Type
	Flags   uint16
	Request uint64 // ≠ 0: wants exactly one Reply with this number
}

// Put writes the header into b, which must hold HeaderBytes.
func (h Header) Put(b []byte) {
	_ = b[HeaderBytes-1]
	binary.LittleEndian.PutUint32(b, h.Length)
	binary.LittleEndian.PutUint16(b[4:], uint16(h.Type))
	binary.LittleEndian.PutUint16(b[6:], h.Flags)
	binary.LittleEndian.PutUint64(b[8:], h.Request)
}

// ParseHeader reads a header and bounds its length. b must hold HeaderBytes.
func ParseHeader(b []byte) (Header, error) {
	_ = b[HeaderBytes-1]
	h := Header{
		Length:  binary.LittleEndian.Uint32(b),
		Type:    Type(binary.LittleEndian.Uint16(b[4:])),
		Flags:   binary.LittleEndian.Uint16(b[6:]),
		Request: binary.LittleEndian.Uint64(b[8:]),
	}
	if h.Length > MaxRecord {
		return h, fmt.Errorf("%w: %v claims %d bytes, the limit is %d", ErrRecord, h.Type, h.Length, MaxRecord)
	}
	return h, nil
}

// Message is one payload. Append writes it behind b; Decode fills it from
// exactly its bytes.
type Message interface {
	Type() Type
	Append(b []byte) []byte
	Decode(b []byte) error
}
