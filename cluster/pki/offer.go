package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"tendril/store/object"
)

// Offer is a node's word that whoever shows these tickets at its front door, soon, meets one of its workers. It travels
// by way of a client, which could make up another: so the node signs it, and who dials believes it from authorities
// that its operator named alone.
type Offer struct {
	Address   string    `json:"address"` // where the node believes to be reached: a wish
	Tickets   [][]byte  `json:"tickets"` // of 32 bytes, one a connection
	Plaintext bool      `json:"plaintext,omitempty"`
	Issued    time.Time `json:"issued"`

	Node string `json:"-"` // who signed it, as OpenOffer found: a node's identifier
}

// Limits of offers.
const (
	MaxOfferBytes   = 16 << 10
	MaxOfferTickets = 8
	OfferLife       = 30 * time.Second
	ticketBytes     = 32
)

// offerContext stands before what is signed, so that no signature for something else is one of an offer.
const offerContext = "tendril peer offer 1\x00"

// signedOffer is an Offer as it travels.
type signedOffer struct {
	Body        []byte `json:"body"` // JSON of an Offer
	Signature   []byte `json:"signature"`
	Certificate []byte `json:"certificate"` // the node's (DER)
	Authority   []byte `json:"authority"`   // who issued it (DER)
}

// Sign makes an offer's bytes. own is the node's certificate with its authority behind it (Keyring.Certificate).
func (o Offer) Sign(own *tls.Certificate) ([]byte, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	signer, ok := own.PrivateKey.(crypto.Signer)
	if !ok || len(own.Certificate) < 2 {
		return nil, fmt.Errorf("%w: a node's certificate without its key or authority", object.ErrInternal)
	}
	sum := sha256.Sum256(append([]byte(offerContext), body...))
	signature, err := signer.Sign(rand.Reader, sum[:], crypto.SHA256)
	if err != nil {
		return nil, err
	}
	return json.Marshal(signedOffer{body, signature, own.Certificate[0], own.Certificate[1]})
}

// OpenOffer reads an offer and checks that a node of an authority for which known says true has signed it, within the
// last OfferLife by this machine's clock, give or take what certificates allow. Errors: ErrPermission with what is
// wrong; ErrInvalid for what is no offer.
func OpenOffer(raw []byte, known func(Fingerprint) bool, now time.Time) (Offer, Fingerprint, error) {
	var o Offer
	s, leaf, authority, err := parseOffer(raw)
	if err != nil {
		return o, Fingerprint{}, err
	}
	print := FingerprintOf(authority)
	if !known(print) {
		return o, print, fmt.Errorf("%w: the other node's authority is %s, which is no peer of this node: tendril peer add HOST:PORT --ca %s", object.ErrPermission, print, print)
	}
	v := &Verifier{Trust: Trust{Authority: authority}, Now: func() time.Time { return now }}
	peer, err := v.Verify([]*x509.Certificate{leaf}, true)
	switch {
	case err != nil:
		return o, print, err
	case peer.Role != Node:
		return o, print, fmt.Errorf("%w: the offer comes from %.60q, which is not a node",
			object.ErrPermission, peer.Name)
	case leaf.CheckSignature(x509.ECDSAWithSHA256, append([]byte(offerContext), s.Body...), s.Signature) != nil:
		return o, print, fmt.Errorf("%w: the offer was not signed by the node %.60q that it names",
			object.ErrPermission, peer.Name)
	}
	if err := json.Unmarshal(s.Body, &o); err != nil {
		return o, print, fmt.Errorf("%w: an offer: %w", object.ErrInvalid, err)
	}
	o.Node = peer.Node
	return o, print, o.check(now)
}

func parseOffer(raw []byte) (s signedOffer, leaf, authority *x509.Certificate, err error) {
	if len(raw) > MaxOfferBytes {
		return s, nil, nil, fmt.Errorf("%w: an offer of %d bytes, at most %d", object.ErrInvalid, len(raw),
			MaxOfferBytes)
	}
	if err = json.Unmarshal(raw, &s); err == nil {
		leaf, err = x509.ParseCertificate(s.Certificate)
	}
	if err == nil {
		authority, err = x509.ParseCertificate(s.Authority)
	}
	if err == nil && (!authority.IsCA || authority.CheckSignatureFrom(authority) != nil) {
		err = errors.New("it has no authority")
	}
	if err != nil {
		return s, nil, nil, fmt.Errorf("%w: an offer: %w", object.ErrInvalid, err)
	}
	return s, leaf, authority, nil
}

func (o *Offer) check(now time.Time) error {
	if age := now.Sub(o.Issued); age > OfferLife+clockAllowance || age < -clockAllowance {
		return fmt.Errorf("%w: the offer was made at %s, and this machine's clock says %s: it is too old, or the clocks of both machines differ", object.ErrPermission, o.Issued.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	if n := len(o.Tickets); n == 0 || n > MaxOfferTickets {
		return fmt.Errorf("%w: an offer of %d tickets, at most %d", object.ErrInvalid, n, MaxOfferTickets)
	}
	for _, t := range o.Tickets {
		if len(t) != ticketBytes {
			return fmt.Errorf("%w: an offer's ticket of %d bytes", object.ErrInvalid, len(t))
		}
	}
	return nil
}

// ParseFingerprint reads what Fingerprint.String writes, with or without colons.
func ParseFingerprint(s string) (f Fingerprint, err error) {
	raw, err := hex.DecodeString(strings.ReplaceAll(s, ":", ""))
	if err != nil || len(raw) != len(f) {
		return f, fmt.Errorf("%w: %.80q is no fingerprint: want 64 hexadecimal digits, as tendril peer ls shows them",
			object.ErrInvalid, s)
	}
	return Fingerprint(raw), nil
}
