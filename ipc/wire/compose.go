package wire

import (
	"fmt"

	"tendril/store/object"
)

// SealFilledRequest is Seal that waits until nobody else fills the object.
type SealFilledRequest struct {
	SealRequest
	Despite bool   // seal it although somebody ended in the middle of filling it
	WaitMS  uint32 // WaitForEver: without end
}

// AppendTo appends the payload.
func (m *SealFilledRequest) AppendTo(b []byte) []byte {
	return le.AppendUint32(appendBool(m.SealRequest.AppendTo(b), m.Despite), m.WaitMS)
}

// Decode reads the payload.
func (m *SealFilledRequest) Decode(b []byte) error {
	c := read(b)
	*m = SealFilledRequest{SealRequest: SealRequest{ID: c.id(), Strict: c.bool()}, Despite: c.bool(), WaitMS: c.u32()}
	return c.done()
}

// ComposeRequest makes a composite.
type ComposeRequest struct {
	Class   object.Class
	Name    string
	Meta    []byte
	TTLMS   uint64 // class ttl: ms from now on
	Labels  map[string]string
	Members []object.Member
}

// AppendTo appends the payload.
func (m *ComposeRequest) AppendTo(b []byte) []byte {
	b = appendBytes32(appendStr16(append(b, uint8(m.Class)), m.Name), m.Meta)
	b = appendLabels(le.AppendUint64(b, m.TTLMS), m.Labels)
	b = le.AppendUint16(b, uint16(len(m.Members)))
	for _, part := range m.Members {
		b = append(appendStr16(b, part.Name), part.ID[:]...)
	}
	return b
}

// Decode reads the payload.
func (m *ComposeRequest) Decode(b []byte) error {
	c := read(b)
	*m = ComposeRequest{Class: object.Class(c.u8()), Name: c.str16(), Meta: c.bytes32(), TTLMS: c.u64(), Labels: c.labels()}
	n := int(c.u16())
	if least := n * (object.IDBytes + 2); (n > object.MaxMembers || least > len(c.b)) && c.err == nil {
		return fmt.Errorf("%w: %d members in %d bytes, at most %d", object.ErrProtocol, n, len(c.b), object.MaxMembers)
	}
	for range n {
		m.Members = append(m.Members, object.Member{Name: c.str16(), ID: c.id()})
	}
	return c.done()
}
