package wire

// Bounds of what links between workers bring.
const (
	MaxPeerLanes = 8        // connections of one link
	MaxOffer     = 16 << 10 // bytes of a node's offer
	MaxPeerText  = 512      // bytes of why a link is not there
)

// OfferPeerRequest asks a node for tickets that another node's worker reaches one of this session's by.
//
//wire:payload OfferPeer
type OfferPeerRequest struct {
	Worker    uint64
	Link      uint64
	Lanes     uint8 // 2 to MaxPeerLanes
	Plaintext bool
}

// DialPeerRequest has a node connect one of this session's workers to the node that made the offer.
//
//wire:payload DialPeer
type DialPeerRequest struct {
	Worker uint64
	Link   uint64
	Offer  []byte // of cluster/pki, as the other node gave it
}

// OfferPeerReply is the answer of OfferPeer.
//
//wire:payload re OfferPeer
type OfferPeerReply struct{ Offer []byte }

// PairPeersRequest connects two workers of this session, on one node.
//
//wire:payload PairPeers
type PairPeersRequest struct {
	Workers [2]uint64
	Link    uint64
	Lanes   uint8
}

// TellPeerRequest says what became of a link, for the node's status; its tickets are spent by it.
//
//wire:payload TellPeer
type TellPeerRequest struct {
	Worker uint64
	Link   uint64
	Up     bool
	With   string // the other worker, as the client names it
	Text   string // why it is not up
}

// SetPeerRequest names a node that this one may connect its workers to, by its authority; with the zero one, no longer.
//
//wire:payload SetPeer
type SetPeerRequest struct {
	Authority [32]byte // SHA-256 of the public key (cluster/pki.Fingerprint)
	Address   string   // HOST:PORT of its front door
}

// CheckLanes bounds the connections of a link.
func CheckLanes(n uint8) bool { return n >= 2 && n <= MaxPeerLanes }
