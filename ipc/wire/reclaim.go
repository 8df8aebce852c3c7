package wire

import (
	"fmt"

	"tendril/store/object"
)

// MaxClaims bounds one Reclaim.
const MaxClaims = 4096

// Claim is one reference that the connection before this one held.
type Claim struct {
	ID      object.ID
	Segment uint64 // the number of the segment that the peer has mapped for it; 0: of none that this daemon knows
}

// ReclaimRequest asks for references again, each for itself: an object may stand in it several times.
type ReclaimRequest struct{ Claims []Claim }

// AppendTo appends the payload.
func (m *ReclaimRequest) AppendTo(b []byte) []byte {
	b = le.AppendUint16(b, uint16(len(m.Claims)))
	for _, claim := range m.Claims {
		b = le.AppendUint64(append(b, claim.ID[:]...), claim.Segment)
	}
	return b
}

// Decode reads the payload.
func (m *ReclaimRequest) Decode(b []byte) error {
	c := read(b)
	n := int(c.u16())
	if (n > MaxClaims || n*(object.IDBytes+8) != len(c.b)) && c.err == nil {
		return fmt.Errorf("%w: %d claims in %d bytes, at most %d", object.ErrProtocol, n, len(c.b), MaxClaims)
	}
	m.Claims = nil
	for range n {
		m.Claims = append(m.Claims, Claim{ID: c.id(), Segment: c.u64()})
	}
	return c.done()
}

// Verdict is what became of a claim.
type Verdict uint8

// The verdicts.
const (
	Gone  Verdict = 0 // no reference: the object is not there, or is not for this peer
	Moved Verdict = 1 // held again; its bytes are elsewhere than in the claim's segment
	Held  Verdict = 2 // held again, in the claim's segment, which counts as received
)

// ReclaimReply has a verdict for each claim, in order.
type ReclaimReply struct{ Verdicts []Verdict }

// AppendTo appends the payload.
func (m *ReclaimReply) AppendTo(b []byte) []byte {
	b = le.AppendUint16(b, uint16(len(m.Verdicts)))
	for _, v := range m.Verdicts {
		b = append(b, uint8(v))
	}
	return b
}

// Decode reads the payload.
func (m *ReclaimReply) Decode(b []byte) error {
	c := read(b)
	n := int(c.u16())
	if n != len(c.b) && c.err == nil {
		return fmt.Errorf("%w: %d verdicts in %d bytes", object.ErrProtocol, n, len(c.b))
	}
	m.Verdicts = nil
	for range n {
		v := Verdict(c.u8())
		if v > Held {
			return fmt.Errorf("%w: verdict %d", object.ErrProtocol, v)
		}
		m.Verdicts = append(m.Verdicts, v)
	}
	return c.done()
}

// TakeoverRequest asks to become the next daemon.
type TakeoverRequest struct{ Lowest, Highest uint16 } // formats of the handover that the peer reads

// AppendTo appends the payload.
func (m *TakeoverRequest) AppendTo(b []byte) []byte {
	return le.AppendUint16(le.AppendUint16(b, m.Lowest), m.Highest)
}

// Decode reads the payload.
func (m *TakeoverRequest) Decode(b []byte) error {
	c := read(b)
	*m = TakeoverRequest{Lowest: c.u16(), Highest: c.u16()}
	return c.done()
}

// TakeoverReply comes with the handover's socket.
type TakeoverReply struct{ Format uint16 }

// AppendTo appends the payload.
func (m *TakeoverReply) AppendTo(b []byte) []byte { return le.AppendUint16(b, m.Format) }

// Decode reads the payload.
func (m *TakeoverReply) Decode(b []byte) error {
	c := read(b)
	*m = TakeoverReply{Format: c.u16()}
	return c.done()
}
