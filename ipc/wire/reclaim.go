package wire

import (
	"tendril/ipc/field"
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
//
//wire:payload Reclaim
type ReclaimRequest struct {
	Claims []Claim `wire:"max=MaxClaims"`
}

// Verdict is the result of a claim.
type Verdict uint8

// The verdicts.
const (
	Gone  Verdict = 0 // no reference: the object is not there, or is not for this peer
	Moved Verdict = 1 // held again; its bytes are elsewhere than in the claim's segment
	Held  Verdict = 2 // held again, in the claim's segment, which counts as received
)

// ReclaimReply has a verdict for each claim, in order.
//
//wire:payload re Reclaim
type ReclaimReply struct {
	Verdicts []Verdict `wire:"max=MaxClaims"`
}

func (m *ReclaimReply) check(r *field.Reader) {
	for _, v := range m.Verdicts {
		if v > Held {
			r.Fail("verdict")
		}
	}
}

// TakeoverRequest asks to become the next daemon.
//
//wire:payload Takeover
type TakeoverRequest struct{ Lowest, Highest uint16 } // formats of the handover that the peer reads

// TakeoverReply comes with the handover's socket.
//
//wire:payload re Takeover
type TakeoverReply struct{ Format uint16 }
