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

// Type numbers a record. Append only; see PROTOCOL.md.
type Type uint16

// Client to worker.
const (
	TypePad Type = iota
	TypeHello
	TypeCreateContext
	TypeCreateQueue
	TypeAddSegment
	TypeDropSegment
	TypeCreateBuffer
	TypeRelease
	TypeBlob
	TypeCreateProgram
	TypeBuildProgram
	TypeCreateKernel
	TypeNDRange
	TypeSetArg
	TypeCopy
	TypeCopyRect
	TypeFill
	TypeWriteInline
	TypeTransfer
	TypeHost
	TypeHostDone
	TypeMarker
	TypeBarrier
	TypeUserEvent
	TypeSetUserEvent
	TypeFlush
	TypeFinish
	TypeWait
	TypeWatch
	TypeQuery
	TypeBulkWrite
	TypeBulkRead
	TypeBulkBytes
)

// Client to worker: images and samplers.
const (
	TypeCreateImage      Type = 60
	TypeCreateSampler    Type = 61
	TypeImageFormats     Type = 62
	TypeCopyImage        Type = 63
	TypeCopyImageBuffer  Type = 64
	TypeFillImage        Type = 65
	TypeWriteImageInline Type = 66
)

// Programs in parts (programs.go).
const (
	TypeCompileProgram Type = 48
	TypeLinkProgram    Type = 49
	TypeFiles          Type = 50
	TypeFileData       Type = 51

	TypeCreateSubDevices Type = 52
	TypeReleaseSubDevice Type = 53
	TypeSpecConstant     Type = 54

	TypeGraph  Type = 55
	TypeReplay Type = 56

	TypeTimeLimits Type = 57

	TypeContentSize Type = 58

	TypeProtectSegment Type = 163

	TypeBulkLength Type = 157 // worker to client
)

// Client to worker, tracing.
const (
	TypeClockSync  Type = 72
	TypeTraceOn    Type = 73
	TypeTraceFlush Type = 74
	TypeTraceData  Type = 156 // worker to client
)

// Both ways, of the link's own (resume.go).
const (
	TypeAck   Type = 76
	TypeLeave Type = 77
	TypePulse Type = 78
)

// TypeTakesPacked is the client's word that it takes packed chunks (bulk.go).
const TypeTakesPacked Type = 90

// Links between workers (peer.go).
const (
	TypePeerOpen   Type = 80
	TypePeerExpect Type = 81
	TypePeerPush   Type = 82
	TypePeerPull   Type = 83
	TypePeerSignal Type = 84
	TypePeerEvent  Type = 85
	TypePeerClose  Type = 86
	TypePeerWord   Type = 87  // between workers
	TypePeerBytes  Type = 88  // between workers
	TypePeerState  Type = 140 // worker to client
)

// Worker to client.
const (
	TypeReply     Type = 129
	TypeEvents    Type = 130
	TypeHostReady Type = 131
	TypeFault     Type = 132
	TypePrint     Type = 133
	TypeBulkData  Type = 134
	TypeBulkDone  Type = 135
)

var typeNames = map[Type]string{
	TypePad: "Pad", TypeHello: "Hello", TypeCreateContext: "CreateContext", TypeCreateQueue: "CreateQueue",
	TypeAddSegment: "AddSegment", TypeDropSegment: "DropSegment", TypeProtectSegment: "ProtectSegment", TypeCreateBuffer: "CreateBuffer", TypeRelease: "Release",
	TypeBlob: "Blob", TypeCreateProgram: "CreateProgram", TypeBuildProgram: "BuildProgram", TypeCreateKernel: "CreateKernel",
	TypeNDRange: "NDRange", TypeSetArg: "SetArg", TypeCopy: "Copy", TypeCopyRect: "CopyRect", TypeFill: "Fill",
	TypeWriteInline: "WriteInline", TypeTransfer: "Transfer", TypeHost: "Host", TypeHostDone: "HostDone", TypeMarker: "Marker",
	TypeBarrier: "Barrier", TypeUserEvent: "UserEvent", TypeSetUserEvent: "SetUserEvent", TypeFlush: "Flush", TypeFinish: "Finish",
	TypeWait: "Wait", TypeWatch: "Watch", TypeQuery: "Query", TypeReply: "Reply", TypeEvents: "Events", TypeHostReady: "HostReady",
	TypeFault: "Fault", TypePrint: "Print",
	TypeCreateImage: "CreateImage", TypeCreateSampler: "CreateSampler", TypeImageFormats: "ImageFormats", TypeCopyImage: "CopyImage",
	TypeCopyImageBuffer: "CopyImageBuffer", TypeFillImage: "FillImage", TypeWriteImageInline: "WriteImageInline",
	TypeBulkWrite: "BulkWrite", TypeBulkRead: "BulkRead", TypeBulkBytes: "BulkBytes", TypeBulkData: "BulkData", TypeBulkDone: "BulkDone",
	TypeCompileProgram: "CompileProgram", TypeLinkProgram: "LinkProgram", TypeFiles: "Files", TypeFileData: "FileData",
	TypeCreateSubDevices: "CreateSubDevices", TypeReleaseSubDevice: "ReleaseSubDevice", TypeSpecConstant: "SpecConstant",
	TypeGraph: "Graph", TypeReplay: "Replay", TypeTimeLimits: "TimeLimits", TypeContentSize: "ContentSize", TypeBulkLength: "BulkLength",
	TypeClockSync: "ClockSync", TypeTraceOn: "TraceOn", TypeTraceFlush: "TraceFlush", TypeTraceData: "TraceData",
	TypeAck: "Ack", TypeLeave: "Leave", TypePulse: "Pulse",
	TypePeerOpen: "PeerOpen", TypePeerExpect: "PeerExpect", TypePeerPush: "PeerPush", TypePeerPull: "PeerPull", TypePeerSignal: "PeerSignal",
	TypePeerEvent: "PeerEvent", TypePeerClose: "PeerClose", TypePeerWord: "PeerWord", TypePeerBytes: "PeerBytes", TypePeerState: "PeerState",
	TypeTakesPacked: "TakesPacked",
}

// String returns the record's name in PROTOCOL.md.
func (t Type) String() string {
	if s, ok := typeNames[t]; ok {
		return s
	}
	return fmt.Sprintf("type %d", uint16(t))
}

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

// cursor reads a payload front to back; the first fault sticks.
type cursor struct {
	b    []byte
	t    Type
	what string // the field at fault, "" while there is none
}

func (c *cursor) take(n int, what string) []byte {
	if c.what != "" {
		return nil
	}
	if n < 0 || n > len(c.b) {
		c.what = what
		return nil
	}
	p := c.b[:n:n]
	c.b = c.b[n:]
	return p
}

func (c *cursor) u8(what string) uint8 {
	if p := c.take(1, what); p != nil {
		return p[0]
	}
	return 0
}

func (c *cursor) u16(what string) uint16 {
	if p := c.take(2, what); p != nil {
		return binary.LittleEndian.Uint16(p)
	}
	return 0
}

func (c *cursor) u32(what string) uint32 {
	if p := c.take(4, what); p != nil {
		return binary.LittleEndian.Uint32(p)
	}
	return 0
}

func (c *cursor) u64(what string) uint64 {
	if p := c.take(8, what); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

func (c *cursor) u64x3(what string) (v [3]uint64) {
	for i := range v {
		v[i] = c.u64(what)
	}
	return v
}

func (c *cursor) bytes32(what string) []byte {
	n := c.u32(what)
	if uint64(n) > uint64(len(c.b)) {
		c.fail(what)
		return nil
	}
	return c.take(int(n), what)
}

func (c *cursor) str16(what string) string {
	return string(c.take(int(c.u16(what)), what))
}

// count reads a u16 element count and refuses one above limit, or one whose
// elements (each at least size bytes) cannot be there.
func (c *cursor) count(limit, size int, what string) int {
	n := int(c.u16(what))
	if n > limit || n*size > len(c.b) {
		c.fail(what)
		return 0
	}
	return n
}

func (c *cursor) fail(what string) {
	if c.what == "" {
		c.what = what
	}
}

// end reports the first fault, or bytes that nobody asked for.
func (c *cursor) end() error {
	if c.what != "" {
		return fmt.Errorf("%w: %v: bad or missing %s", ErrRecord, c.t, c.what)
	}
	if len(c.b) != 0 {
		return fmt.Errorf("%w: %v: %d bytes too many", ErrRecord, c.t, len(c.b))
	}
	return nil
}

func appendBytes32(b, p []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(p)))
	return append(b, p...)
}

// appendStr16 cuts s at MaxText bytes.
func appendStr16(b []byte, s string) []byte {
	if len(s) > MaxText {
		s = s[:MaxText]
	}
	b = binary.LittleEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}

func appendU64x3(b []byte, v [3]uint64) []byte {
	for _, x := range v {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return b
}
