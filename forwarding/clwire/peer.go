package clwire

import "tendril/ipc/field"

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
//
//wire:record
type PeerOpen struct{}

// PeerExpect makes the worker take the sockets that its daemon hands over for a link.
//
//wire:record
type PeerExpect struct {
	Link      uint64
	Answers   bool     `wire:"bits"` // this side is the TLS server
	Plaintext bool     `wire:"bits"`
	Packed    bool     `wire:"bits"` // the other side takes packed chunks
	Lanes     uint8    // 2 to MaxPeerLanes
	PeerSHA   [32]byte // of the other worker's certificate (DER)
}

func (m *PeerExpect) check(r *field.Reader) {
	if m.Lanes < 2 || m.Lanes > MaxPeerLanes {
		r.Fail("lanes")
	}
}

// peerRange is a range of a buffer that goes over a link.
//
//wire:part
type peerRange struct {
	Link         uint64
	Op           uint64 // the event at the side that takes it
	Buffer       uint64
	Offset, Size uint64   // bytes
	Wait         []uint64 `wire:"max=MaxWait"`
}

func (m *peerRange) check(r *field.Reader) {
	if m.Size == 0 {
		r.Fail("size")
	}
}

// PeerPush sends a range of a buffer over a link once Wait is done and the other side is ready for it.
//
//wire:record
type PeerPush struct {
	peerRange
	Content PeerContent
}

// PeerContent is what says how much of a push means something: the u64 at the beginning of a buffer, once Wait is over,
// counts the bytes from Origin on, in the push's buffer. No others are sent, and BulkLength tells the other side.
//
//wire:part
type PeerContent struct {
	Size   uint64   // a buffer; 0: all bytes do
	Origin uint64   // bytes
	Wait   []uint64 `wire:"max=MaxContentWait"` // however they end
}

// NewPeerPush makes a push of all bytes.
func NewPeerPush(link, op, buffer, offset, size uint64, wait []uint64) *PeerPush {
	return &PeerPush{peerRange: peerRange{link, op, buffer, offset, size, wait}}
}

// PeerPull takes what a PeerPush of the same number sends. Op is made an event here, and reported when it ends.
//
//wire:record
type PeerPull struct{ peerRange }

// NewPeerPull makes a pull.
func NewPeerPull(link, op, buffer, offset, size uint64, wait []uint64) *PeerPull {
	return &PeerPull{peerRange{link, op, buffer, offset, size, wait}}
}

// PeerSignal tells the other side how an event ends here.
//
//wire:record
type PeerSignal struct {
	Link  uint64
	Event uint64 // here
	There uint64 // the other side's number
}

// PeerEvent makes an event that ends as the other side's PeerSignal says, and is reported when it does.
//
//wire:record
type PeerEvent struct{ Link, ID uint64 }

// PeerClose ends a link; PeerState answers.
//
//wire:record
type PeerClose struct{ Link uint64 }

// PeerState tells the client that a link is up, or, once, that it has ended: what was under way on it and was not
// reported before has not come and will not.
//
//wire:record
type PeerState struct {
	Link uint64
	Up   bool
	Text string // why not
}

// Kinds of words.
const (
	PeerDone   uint32 = 1 // the event Number ended with Status: a PeerSignal's
	PeerReady  uint32 = 2 // the bytes of the push Number may come
	PeerFailed uint32 = 3 // the push Number ends with Status (negative) and (the rest of) its bytes will not come
)

// PeerWord is what workers tell each other on lane 0.
//
//wire:record
type PeerWord struct {
	Kind   uint32
	Status int32 // 0 or negative
	Number uint64
}

func (m *PeerWord) check(r *field.Reader) {
	if m.Kind < PeerDone || m.Kind > PeerFailed {
		r.Fail("kind")
	}
	if m.Status > 0 || m.Kind == PeerReady && m.Status != 0 || m.Kind == PeerFailed && m.Status == 0 {
		r.Fail("status")
	}
}

// PeerBytes is a piece, of at most InlineBytes, of a small push on lane 0.
//
//wire:record
type PeerBytes struct{ chunk }

// NewPeerBytes makes a piece; data is not copied.
func NewPeerBytes(op, offset uint64, data []byte) *PeerBytes {
	return &PeerBytes{chunk{op, offset, data}}
}

func (m *PeerBytes) check(r *field.Reader) {
	if len(m.Data) == 0 || len(m.Data) > InlineBytes {
		r.Fail("data")
	}
}
