package clwire

import (
	"crypto/sha256"
	"fmt"
)

// Links between the workers of one program (PROTOCOL.md, Peer links). Numbers of links, events and pushes are the
// client's, of one space for all its workers.

// Limits of peer links. A side that exceeds one is in error.
const (
	MaxPeerLinks = 256      // of one worker, those that ended among them
	MaxPeerLanes = 8        // connections of one link; 0 carries records (words and small pushes), the others chunks
	MaxPeerEarly = 1 << 16  // words about what this side's client has not told of yet, a link
	PeerSmall    = 64 << 10 // bytes of a push that goes as PeerBytes

	MaxContentWait = 64 // events that a push's size buffer waits for
)

// PeerOpen asks for the fingerprint that this worker shows on peer links; the Reply carries its 32 bytes.
type PeerOpen struct{}

func (*PeerOpen) Type() Type             { return TypePeerOpen }
func (*PeerOpen) Append(b []byte) []byte { return b }
func (*PeerOpen) Decode(b []byte) error {
	c := cursor{b: b, t: TypePeerOpen}
	return c.end()
}

// PeerExpect makes the worker take the sockets that its daemon hands over for a link.
type PeerExpect struct {
	Link      uint64
	Answers   bool // this side is the TLS server
	Plaintext bool
	Packed    bool              // the other side takes packed chunks
	Lanes     uint8             // 2 to MaxPeerLanes
	PeerSHA   [sha256.Size]byte // of the other worker's certificate (DER)
}

const (
	peerAnswers   = 1
	peerPlaintext = 2
	peerPacked    = 4
)

func (*PeerExpect) Type() Type { return TypePeerExpect }
func (m *PeerExpect) Append(b []byte) []byte {
	var flags uint8
	if m.Answers {
		flags |= peerAnswers
	}
	if m.Plaintext {
		flags |= peerPlaintext
	}
	if m.Packed {
		flags |= peerPacked
	}
	return append(append(le.AppendUint64(b, m.Link), flags, m.Lanes), m.PeerSHA[:]...)
}
func (m *PeerExpect) Decode(b []byte) error {
	c := cursor{b: b, t: TypePeerExpect}
	m.Link = c.u64("link")
	flags := c.u8("flags")
	m.Lanes = c.u8("lanes")
	copy(m.PeerSHA[:], c.take(sha256.Size, "fingerprint"))
	m.Answers, m.Plaintext, m.Packed = flags&peerAnswers != 0, flags&peerPlaintext != 0, flags&peerPacked != 0
	if flags > peerAnswers|peerPlaintext|peerPacked {
		c.fail("flags")
	}
	if m.Lanes < 2 || m.Lanes > MaxPeerLanes {
		c.fail("lanes")
	}
	return c.end()
}

// peerRange is a range of a buffer that goes over a link.
type peerRange struct {
	Link         uint64
	Op           uint64 // the event at the side that takes it
	Buffer       uint64
	Offset, Size uint64 // bytes
	Wait         []uint64
}

func (m *peerRange) Append(b []byte) []byte {
	for _, v := range []uint64{m.Link, m.Op, m.Buffer, m.Offset, m.Size} {
		b = le.AppendUint64(b, v)
	}
	return appendIDs(b, m.Wait)
}

func (m *peerRange) decode(b []byte, t Type) error {
	c := cursor{b: b, t: t}
	m.take(&c)
	return c.end()
}

func (m *peerRange) take(c *cursor) {
	m.Link, m.Op, m.Buffer = c.u64("link"), c.u64("op"), c.u64("buffer")
	m.Offset, m.Size = c.u64("offset"), c.u64("size")
	if m.Size == 0 {
		c.fail("size")
	}
	m.Wait = decodeIDs(c, m.Wait, MaxWait, "wait list")
}

// PeerPush sends a range of a buffer over a link once Wait is done and the other side is ready for it.
type PeerPush struct {
	peerRange
	Content PeerContent
}

// PeerContent is what says how much of a push means something: the u64 at the beginning of a buffer, once Wait is over, counts the bytes
// from Origin on, in the push's buffer. No others are sent, and BulkLength tells the other side.
type PeerContent struct {
	Size   uint64   // a buffer; 0: all bytes do
	Origin uint64   // bytes
	Wait   []uint64 // however they end
}

// NewPeerPush makes a push of all bytes.
func NewPeerPush(link, op, buffer, offset, size uint64, wait []uint64) *PeerPush {
	return &PeerPush{peerRange: peerRange{link, op, buffer, offset, size, wait}}
}

func (*PeerPush) Type() Type { return TypePeerPush }
func (m *PeerPush) Append(b []byte) []byte {
	b = le.AppendUint64(le.AppendUint64(m.peerRange.Append(b), m.Content.Size), m.Content.Origin)
	return appendIDs(b, m.Content.Wait)
}
func (m *PeerPush) Decode(b []byte) error {
	c := cursor{b: b, t: TypePeerPush}
	m.take(&c)
	m.Content.Size, m.Content.Origin = c.u64("size buffer"), c.u64("origin")
	m.Content.Wait = decodeIDs(&c, m.Content.Wait, MaxContentWait, "size buffer's wait list")
	return c.end()
}

// PeerPull takes what a PeerPush of the same number sends. Op is made an event here, and reported when it ends.
type PeerPull struct{ peerRange }

// NewPeerPull makes a pull.
func NewPeerPull(link, op, buffer, offset, size uint64, wait []uint64) *PeerPull {
	return &PeerPull{peerRange{link, op, buffer, offset, size, wait}}
}

func (*PeerPull) Type() Type              { return TypePeerPull }
func (m *PeerPull) Decode(b []byte) error { return m.decode(b, TypePeerPull) }

// PeerSignal tells the other side how an event ends here.
type PeerSignal struct {
	Link  uint64
	Event uint64 // here
	There uint64 // the other side's number
}

func (*PeerSignal) Type() Type { return TypePeerSignal }
func (m *PeerSignal) Append(b []byte) []byte {
	return le.AppendUint64(le.AppendUint64(le.AppendUint64(b, m.Link), m.Event), m.There)
}
func (m *PeerSignal) Decode(b []byte) error {
	c := cursor{b: b, t: TypePeerSignal}
	m.Link, m.Event, m.There = c.u64("link"), c.u64("event"), c.u64("event there")
	return c.end()
}

// PeerEvent makes an event that ends as the other side's PeerSignal says, and is reported when it does.
type PeerEvent struct{ Link, ID uint64 }

func (*PeerEvent) Type() Type { return TypePeerEvent }
func (m *PeerEvent) Append(b []byte) []byte {
	return le.AppendUint64(le.AppendUint64(b, m.Link), m.ID)
}
func (m *PeerEvent) Decode(b []byte) error {
	c := cursor{b: b, t: TypePeerEvent}
	m.Link, m.ID = c.u64("link"), c.u64("id")
	return c.end()
}

// PeerClose ends a link; PeerState answers.
type PeerClose struct{ Link uint64 }

func (*PeerClose) Type() Type               { return TypePeerClose }
func (m *PeerClose) Append(b []byte) []byte { return le.AppendUint64(b, m.Link) }
func (m *PeerClose) Decode(b []byte) error {
	c := cursor{b: b, t: TypePeerClose}
	m.Link = c.u64("link")
	return c.end()
}

// PeerState tells the client that a link is up, or, once, that it has ended: what was under way on it and was not
// reported before has not come and will not.
type PeerState struct {
	Link uint64
	Up   bool
	Text string // why not
}

func (*PeerState) Type() Type { return TypePeerState }
func (m *PeerState) Append(b []byte) []byte {
	b = le.AppendUint64(b, m.Link)
	if m.Up {
		return appendStr16(append(b, 1), m.Text)
	}
	return appendStr16(append(b, 0), m.Text)
}
func (m *PeerState) Decode(b []byte) error {
	c := cursor{b: b, t: TypePeerState}
	m.Link = c.u64("link")
	up := c.u8("state")
	m.Up = up == 1
	if up > 1 {
		c.fail("state")
	}
	m.Text = c.str16("text")
	return c.end()
}

// Kinds of words.
const (
	PeerDone   uint32 = 1 // the event Number ended with Status: a PeerSignal's
	PeerReady  uint32 = 2 // the bytes of the push Number may come
	PeerFailed uint32 = 3 // the push Number ends with Status (negative) and (the rest of) its bytes will not come
)

// PeerWord is what workers tell each other on lane 0.
type PeerWord struct {
	Kind   uint32
	Status int32 // 0 or negative
	Number uint64
}

func (*PeerWord) Type() Type { return TypePeerWord }
func (m *PeerWord) Append(b []byte) []byte {
	return le.AppendUint64(le.AppendUint32(le.AppendUint32(b, m.Kind), uint32(m.Status)), m.Number)
}
func (m *PeerWord) Decode(b []byte) error {
	c := cursor{b: b, t: TypePeerWord}
	m.Kind, m.Status, m.Number = c.u32("kind"), int32(c.u32("status")), c.u64("number")
	if m.Kind < PeerDone || m.Kind > PeerFailed {
		c.fail("kind")
	}
	if m.Status > 0 || m.Kind == PeerReady && m.Status != 0 || m.Kind == PeerFailed && m.Status == 0 {
		c.fail("status")
	}
	return c.end()
}

// PeerBytes is a piece, of at most InlineBytes, of a small push on lane 0.
type PeerBytes struct{ chunk }

// NewPeerBytes makes a piece; data is not copied.
func NewPeerBytes(op, offset uint64, data []byte) *PeerBytes {
	return &PeerBytes{chunk{op, offset, data}}
}

func (*PeerBytes) Type() Type { return TypePeerBytes }
func (m *PeerBytes) Decode(b []byte) error {
	err := m.decode(b, TypePeerBytes)
	if err == nil && (len(m.Data) == 0 || len(m.Data) > InlineBytes) {
		return fmt.Errorf("%w: %d bytes of a push in a record, the limit is %d", ErrRecord, len(m.Data), InlineBytes)
	}
	return err
}
