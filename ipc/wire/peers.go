package wire

// Bounds of what links between workers bring.
const (
	MaxPeerLanes = 8        // connections of one link
	MaxOffer     = 16 << 10 // bytes of a node's offer
	MaxPeerText  = 512      // bytes of why a link is not there
)

// OfferPeerRequest asks a node for tickets that another node's worker reaches one of this session's by.
type OfferPeerRequest struct {
	Worker    uint64
	Link      uint64
	Lanes     uint8 // 2 to MaxPeerLanes
	Plaintext bool
}

// AppendTo appends the payload.
func (m *OfferPeerRequest) AppendTo(b []byte) []byte {
	b = le.AppendUint64(le.AppendUint64(b, m.Worker), m.Link)
	return appendBool(append(b, m.Lanes), m.Plaintext)
}

// Decode reads the payload.
func (m *OfferPeerRequest) Decode(b []byte) error {
	c := read(b)
	*m = OfferPeerRequest{Worker: c.u64(), Link: c.u64(), Lanes: c.u8(), Plaintext: c.bool()}
	return c.done()
}

// DialPeerRequest has a node connect one of this session's workers to the node that made the offer.
type DialPeerRequest struct {
	Worker uint64
	Link   uint64
	Offer  []byte // of cluster/pki, as the other node gave it
}

// AppendTo appends the payload.
func (m *DialPeerRequest) AppendTo(b []byte) []byte {
	return appendBytes32(le.AppendUint64(le.AppendUint64(b, m.Worker), m.Link), m.Offer)
}

// Decode reads the payload.
func (m *DialPeerRequest) Decode(b []byte) error {
	c := read(b)
	*m = DialPeerRequest{Worker: c.u64(), Link: c.u64(), Offer: c.bytes32()}
	return c.done()
}

// OfferPeerReply is the answer of OfferPeer.
type OfferPeerReply struct{ Offer []byte }

// AppendTo appends the payload.
func (m *OfferPeerReply) AppendTo(b []byte) []byte { return appendBytes32(b, m.Offer) }

// Decode reads the payload.
func (m *OfferPeerReply) Decode(b []byte) error {
	c := read(b)
	m.Offer = c.bytes32()
	return c.done()
}

// PairPeersRequest connects two workers of this session, on one node.
type PairPeersRequest struct {
	Workers [2]uint64
	Link    uint64
	Lanes   uint8
}

// AppendTo appends the payload.
func (m *PairPeersRequest) AppendTo(b []byte) []byte {
	b = le.AppendUint64(le.AppendUint64(b, m.Workers[0]), m.Workers[1])
	return append(le.AppendUint64(b, m.Link), m.Lanes)
}

// Decode reads the payload.
func (m *PairPeersRequest) Decode(b []byte) error {
	c := read(b)
	*m = PairPeersRequest{Workers: [2]uint64{c.u64(), c.u64()}, Link: c.u64(), Lanes: c.u8()}
	return c.done()
}

// TellPeerRequest says what became of a link, for the node's status; its tickets are spent by it.
type TellPeerRequest struct {
	Worker uint64
	Link   uint64
	Up     bool
	With   string // the other worker, as the client names it
	Text   string // why it is not up
}

// AppendTo appends the payload.
func (m *TellPeerRequest) AppendTo(b []byte) []byte {
	b = appendBool(le.AppendUint64(le.AppendUint64(b, m.Worker), m.Link), m.Up)
	return appendStr16(appendStr16(b, m.With), m.Text)
}

// Decode reads the payload.
func (m *TellPeerRequest) Decode(b []byte) error {
	c := read(b)
	*m = TellPeerRequest{Worker: c.u64(), Link: c.u64(), Up: c.bool(), With: c.str16(), Text: c.str16()}
	return c.done()
}

// SetPeerRequest names a node that this one may connect its workers to, by its authority; with the zero one, no longer.
type SetPeerRequest struct {
	Authority [32]byte // SHA-256 of the public key (cluster/pki.Fingerprint)
	Address   string   // HOST:PORT of its front door
}

// AppendTo appends the payload.
func (m *SetPeerRequest) AppendTo(b []byte) []byte {
	return appendStr16(append(b, m.Authority[:]...), m.Address)
}

// Decode reads the payload.
func (m *SetPeerRequest) Decode(b []byte) error {
	c := read(b)
	*m = SetPeerRequest{Authority: c.hash(), Address: c.str16()}
	return c.done()
}

// CheckLanes bounds the connections of a link.
func CheckLanes(n uint8) bool { return n >= 2 && n <= MaxPeerLanes }
