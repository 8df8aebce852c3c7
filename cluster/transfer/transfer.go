// Package transfer brings published objects from one node to another.
//
// A node that needs an object asks one that has it, chunk by chunk, over connections that both ends have proven to be
// members' (TLS with node certificates; who makes them is the caller's business: Dial, Serve). It writes a block at a
// time into the memory that the object will lie in, and compares each chunk with its checksum before it counts. What
// has arrived stays when a connection is cut, or when another node has to give the rest.
//
// Trust: the other end is a node of the cluster and may be wrong all the same. What it sends is bounded before it is
// read: lengths have to be what was asked for, and each chunk has a time. It decides nothing about the receiver's
// memory. Who asks is checked by the Holder, which must not give what is not published.
//
// Goroutines: Pull has one for each connection and joins them. Serve runs in its caller's. Locks: pull.mu and
// Rate.mu are leaves.
package transfer

import (
	"encoding/binary"
	"fmt"
	"strings"
	"unicode"

	"tendril/store/object"
)

// Protocol is what connections between nodes announce for this (ALPN, RFC 7301).
const Protocol = "tendril-transfer/1"

// ID names a node, an incarnation or an object.
type ID = [16]byte

// ChunkBytes is the size of a chunk, but for an object's last one: what a checksum covers, here and in the store.
const ChunkBytes = 1 << 20

// MaxStreams is how many connections a node gets one object over at a time.
const MaxStreams = 4

// Bounds of a message.
const (
	MaxChunks       = 16 // of one request: for so many a giver may hold a copy, which its tenant pays for
	maxMessageBytes = 4096
	maxTenantBytes  = 253
	maxTextBytes    = 1024
)

// Types of messages (PROTOCOL.md). A reply's type is the request's with replyBit, or typeError.
const (
	typePull  = 1
	typeProbe = 2
	typeTake  = 3
	typeDrop  = 4
	replyBit  = 0x80
	typeError = 0xFF
)

const headerBytes = 8 // u32 length of what follows, u8 type, 3 × zero

// A chunk's header: u64 checksum (XXH64, seed 0), u32 bytes.
const (
	chunkHeaderBytes = 12
	noChunk          = 0xFFFFFFFF // in place of bytes: an error follows, and the reply ends with it
)

var le = binary.LittleEndian

// Request asks for chunks of an object.
type Request struct {
	ID          ID
	Incarnation ID     // of the node that is asked: another one has other memory
	Epoch       uint64 // of the object, as the asking node knows it
	SizeBytes   uint64
	First       uint64 // chunk
	Chunks      uint32 // 1 to MaxChunks
	Tenant      string
}

// Named is what Take and Drop say of an object: that the node is to have a replica of it, or none any more.
type Named struct {
	ID     ID
	Epoch  uint64
	Tenant string
}

// State is what a node says of itself (Probe, which earlier releases ask). The zero value of a field means that it is
// not known.
type State struct {
	Node, Incarnation ID
	CapacityBytes     uint64 // of its store
	FreeBytes         uint64 // of it, with what a new object would have go: cached copies, or to disk
	Transfers         uint32 // that it has under way, both ways
}

// chunksOf gives how many chunks an object has.
func chunksOf(sizeBytes uint64) uint64 { return (sizeBytes + ChunkBytes - 1) / ChunkBytes }

// chunkBytes gives the length of one of them.
func chunkBytes(sizeBytes, chunk uint64) uint64 { return min(ChunkBytes, sizeBytes-chunk*ChunkBytes) }

// Bytes gives what a request asks for: n bytes from off on.
func (r *Request) Bytes() (off, n uint64) {
	off = r.First * ChunkBytes
	return off, min(uint64(r.Chunks)*ChunkBytes, r.SizeBytes-off)
}

// check says what is wrong with a request.
func (r *Request) check() error {
	all := chunksOf(r.SizeBytes)
	if r.ID == (ID{}) || r.Chunks < 1 || r.Chunks > MaxChunks || r.First >= all || uint64(r.Chunks) > all-r.First {
		return fmt.Errorf("%w: chunks [%d, +%d) of object %x, which has %d: want 1 to %d that are there",
			object.ErrProtocol, r.First, r.Chunks, r.ID, all, MaxChunks)
	}
	return nil
}

// message appends a message with its header; payload appends what is in it.
func message(b []byte, kind byte, payload func([]byte) []byte) []byte {
	at := len(b)
	b = append(b, 0, 0, 0, 0, kind, 0, 0, 0)
	b = payload(b)
	le.PutUint32(b[at:], uint32(len(b)-at-4))
	return b
}

func (r *Request) append(b []byte) []byte {
	b = append(append(b, r.ID[:]...), r.Incarnation[:]...)
	b = le.AppendUint64(le.AppendUint64(le.AppendUint64(b, r.Epoch), r.SizeBytes), r.First)
	return appendText(le.AppendUint32(b, r.Chunks), r.Tenant, maxTenantBytes)
}

func (n *Named) append(b []byte) []byte {
	return appendText(le.AppendUint64(append(b, n.ID[:]...), n.Epoch), n.Tenant, maxTenantBytes)
}

func (s *State) append(b []byte) []byte {
	b = append(append(b, s.Node[:]...), s.Incarnation[:]...)
	return le.AppendUint32(le.AppendUint64(le.AppendUint64(b, s.CapacityBytes), s.FreeBytes), s.Transfers)
}

func appendText(b []byte, s string, most int) []byte {
	s = s[:min(len(s), most)]
	return append(le.AppendUint16(b, uint16(len(s))), s...)
}

// reader takes fields off a payload. What is missing reads as zero, and end says so.
type reader struct {
	b     []byte
	short bool
}

func (r *reader) take(n int) []byte {
	if n > len(r.b) {
		r.b, r.short = nil, true
		return make([]byte, min(n, 16))
	}
	field := r.b[:n]
	r.b = r.b[n:]
	return field
}

func (r *reader) id() (id ID) { copy(id[:], r.take(16)); return id }
func (r *reader) u16() uint16 { return le.Uint16(r.take(2)) }
func (r *reader) u32() uint32 { return le.Uint32(r.take(4)) }
func (r *reader) u64() uint64 { return le.Uint64(r.take(8)) }
func (r *reader) text(most int) string {
	n := int(r.u16())
	if n > most || n > len(r.b) {
		r.b, r.short = nil, true
		return ""
	}
	return string(r.take(n))
}

// end checks that everything was read.
func (r *reader) end(what string) error {
	if r.short || len(r.b) > 0 {
		return fmt.Errorf("%w: a %s that is cut short, or goes on for %d bytes", object.ErrProtocol, what, len(r.b))
	}
	return nil
}

func (r *Request) decode(b []byte) error {
	x := reader{b: b}
	*r = Request{ID: x.id(), Incarnation: x.id(), Epoch: x.u64(), SizeBytes: x.u64(), First: x.u64(), Chunks: x.u32(),
		Tenant: x.text(maxTenantBytes)}
	if err := x.end("request"); err != nil {
		return err
	}
	return r.check()
}

func (n *Named) decode(b []byte) error {
	x := reader{b: b}
	*n = Named{ID: x.id(), Epoch: x.u64(), Tenant: x.text(maxTenantBytes)}
	return x.end("request")
}

// printable keeps another node's words from writing on a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// appendError is an error as a message.
func appendError(b []byte, err error) []byte {
	return message(b, typeError, func(b []byte) []byte {
		return appendText(le.AppendUint16(b, uint16(object.CodeOf(err))), err.Error(), maxTextBytes)
	})
}

// decodeError reads one.
func decodeError(b []byte) error {
	x := reader{b: b}
	code, text := object.Code(x.u16()), x.text(maxTextBytes)
	if err := x.end("error"); err != nil {
		return err
	}
	if code == 0 {
		return fmt.Errorf("%w: an error without a number", object.ErrProtocol)
	}
	return object.FromCode(code, printable(text))
}
