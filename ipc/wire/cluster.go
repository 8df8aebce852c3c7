package wire

import (
	"fmt"

	"tendril/store/object"
)

// MaxLanes bounds the connections between a client and a remote worker: one carries control, the others payload.
const MaxLanes = 8

// CreateTokenRequest asks for a token.
type CreateTokenRequest struct {
	Role        uint8  // cluster/pki's numbers
	LifeSeconds uint64 // 0 = for ever
	Once        bool
	Tenant      string // that certificates are for; "" = what is configured for their name
}

// AppendTo appends the payload.
func (m *CreateTokenRequest) AppendTo(b []byte) []byte {
	b = le.AppendUint64(append(b, m.Role), m.LifeSeconds)
	return appendStr16(appendBool(b, m.Once), m.Tenant)
}

// Decode reads the payload.
func (m *CreateTokenRequest) Decode(b []byte) error {
	c := read(b)
	*m = CreateTokenRequest{Role: c.u8(), LifeSeconds: c.u64(), Once: c.bool(), Tenant: c.str16()}
	return c.done()
}

// RevokeTokenRequest ends a token, and the certificates that it paid for where Certificates is set.
type RevokeTokenRequest struct {
	ID           object.ID // the token's
	Certificates bool
}

// AppendTo appends the payload.
func (m *RevokeTokenRequest) AppendTo(b []byte) []byte {
	return appendBool(append(b, m.ID[:]...), m.Certificates)
}

// Decode reads the payload.
func (m *RevokeTokenRequest) Decode(b []byte) error {
	c := read(b)
	*m = RevokeTokenRequest{ID: c.id(), Certificates: c.bool()}
	return c.done()
}

// TextReply is the reply of CreateToken (the token) and OpenPage (the address): both are secrets.
type TextReply struct{ Text string }

// AppendTo appends the payload.
func (m *TextReply) AppendTo(b []byte) []byte { return appendStr16(b, m.Text) }

// Decode reads the payload.
func (m *TextReply) Decode(b []byte) error {
	c := read(b)
	m.Text = c.str16()
	return c.done()
}

// EnrollRequest shows a token and asks for a certificate.
type EnrollRequest struct {
	Token      object.ID
	SecretHash [32]byte
	Name       string // a wish
	Request    []byte // RFC 2986, DER
}

// AppendTo appends the payload.
func (m *EnrollRequest) AppendTo(b []byte) []byte {
	b = append(append(b, m.Token[:]...), m.SecretHash[:]...)
	return appendBytes32(appendStr16(b, m.Name), m.Request)
}

// Decode reads the payload.
func (m *EnrollRequest) Decode(b []byte) error {
	c := read(b)
	*m = EnrollRequest{Token: c.id(), SecretHash: c.hash(), Name: c.str16(), Request: c.bytes32()}
	return c.done()
}

// DERMessage is a certificate request (Renew) or a certificate (the replies of Enroll and Renew).
type DERMessage struct{ DER []byte }

// AppendTo appends the payload.
func (m *DERMessage) AppendTo(b []byte) []byte { return appendBytes32(b, m.DER) }

// Decode reads the payload.
func (m *DERMessage) Decode(b []byte) error {
	c := read(b)
	m.DER = c.bytes32()
	return c.done()
}

// OpenRemoteWorkerRequest asks for a worker that is reached through the front door.
type OpenRemoteWorkerRequest struct {
	Platform     uint32
	ClientSHA256 [32]byte // of the client's ephemeral certificate (DER)
	Lanes        uint8    // 1 to MaxLanes; the first is the control stream
	Plaintext    bool     // no TLS between client and worker
	Resume       bool     // the connections can be replaced (KeepSession)
}

// AppendTo appends the payload.
func (m *OpenRemoteWorkerRequest) AppendTo(b []byte) []byte {
	b = append(le.AppendUint32(b, m.Platform), m.ClientSHA256[:]...)
	return append(b, m.Lanes, bit(m.Plaintext, 0)|bit(m.Resume, 1))
}

// Decode reads the payload.
func (m *OpenRemoteWorkerRequest) Decode(b []byte) error {
	c := read(b)
	*m = OpenRemoteWorkerRequest{Platform: c.u32(), ClientSHA256: c.hash(), Lanes: c.u8()}
	flags := c.u8()
	m.Plaintext, m.Resume = flags&1 != 0, flags&2 != 0
	if err := c.done(); err != nil {
		return err
	}
	if flags > 3 {
		return fmt.Errorf("%w: OpenRemoteWorker with flags %#x", object.ErrProtocol, flags)
	}
	return nil
}

func bit(set bool, number int) uint8 {
	if set {
		return 1 << number
	}
	return 0
}

// OpenRemoteWorkerReply says how to reach the worker: ticket i opens lane i.
type OpenRemoteWorkerReply struct {
	Worker       uint64
	WorkerSHA256 [32]byte   // of the worker's ephemeral certificate (DER); zero without TLS
	Tickets      [][32]byte // 1 to MaxLanes
}

// AppendTo appends the payload.
func (m *OpenRemoteWorkerReply) AppendTo(b []byte) []byte {
	b = append(le.AppendUint64(b, m.Worker), m.WorkerSHA256[:]...)
	b = append(b, uint8(len(m.Tickets)))
	for _, t := range m.Tickets {
		b = append(b, t[:]...)
	}
	return b
}

// Decode reads the payload.
func (m *OpenRemoteWorkerReply) Decode(b []byte) error {
	c := read(b)
	*m = OpenRemoteWorkerReply{Worker: c.u64(), WorkerSHA256: c.hash()}
	n := c.u8()
	if n > MaxLanes && c.err == nil {
		return fmt.Errorf("%w: %d tickets, at most %d", object.ErrProtocol, n, MaxLanes)
	}
	for range n {
		m.Tickets = append(m.Tickets, c.hash())
	}
	return c.done()
}
