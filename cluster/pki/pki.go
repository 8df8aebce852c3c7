// Package pki is a cluster's certificate authority: certificates for nodes and clients, tokens that pay for them, and
// the TLS configurations that use them.
//
// The authority is made at a node's first start. A joining side makes its key itself, shows a token (hash of the
// authority's public key and a secret) over a handshake that needs no client certificate, and gets a certificate. From
// then on both sides prove who they are: TLS 1.3 only, certificates of this authority only, no session resumption (so
// that a revocation counts at the next connection). Names in certificates are not host names: whoever the authority
// made a node is one, at whatever address it answers.
//
// Client and worker meet with ephemeral keys and pin each other's fingerprint; no key of the authority or a node is in
// a process that runs tenant code.
//
// An authority can be succeeded by another one without a stop (Succession): until that is finished both are believed,
// and the old one vouches for the new one to those who know it alone.
//
// Trust: whoever reads the state directory is the cluster. Peers are trusted as far as their certificate's role goes;
// of a certificate request only the public key is taken.
//
// Goroutines: Keyring.Run, which its caller joins. Locks: Keyring.mu, held while a certificate is renewed; nothing is
// called under it but the issuer.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"tendril/store/object"
)

// ErrDamaged is returned, wrapped with the file, the fault and the way out, when a file with keys cannot be believed.
var ErrDamaged = errors.New("a file with keys is damaged")

// Life times.
const (
	AuthorityLife = 30 * 365 * 24 * time.Hour
	NodeLife      = 90 * 24 * time.Hour
	ClientLife    = 365 * 24 * time.Hour
	MaxLife       = 10 * 365 * 24 * time.Hour
	// clockAllowance is how far certificates reach back, for machines whose clock is behind the authority's.
	clockAllowance = 10 * time.Minute
)

const maxNameBytes = 253

// Role is what a certificate or token allows. The numbers are those of cluster/fsm.
type Role uint8

// The roles.
const (
	User     Role = 1 // sessions and objects of its tenant
	ReadOnly Role = 2 // looks at things
	Node     Role = 3 // a member of the cluster
	Metrics  Role = 4 // reads /metrics over HTTP; a token alone, it pays for no certificate
)

var roleNames = [...]string{"", "user", "read-only", "node", "metrics"}

// Valid reports whether r is one of the four.
func (r Role) Valid() bool { return r >= User && r <= Metrics }

func (r Role) String() string {
	if r.Valid() {
		return roleNames[r]
	}
	return fmt.Sprintf("role(%d)", uint8(r))
}

// ParseRole reads a role's name. Anything else is ErrInvalid.
func ParseRole(s string) (Role, error) {
	for i, n := range roleNames {
		if i > 0 && n == s {
			return Role(i), nil
		}
	}
	return 0, fmt.Errorf("%w: role %.40q, want user, read-only, node or metrics", object.ErrInvalid, s)
}

// Serial is a certificate's serial number, big-endian.
type Serial [16]byte

// String gives 32 hexadecimal digits.
func (s Serial) String() string { return hex.EncodeToString(s[:]) }

// SerialOf gives a certificate's serial number. One of more than 128 bits is none of ours: ErrPermission.
func SerialOf(c *x509.Certificate) (s Serial, err error) {
	if c.SerialNumber.Sign() <= 0 || c.SerialNumber.BitLen() > 128 {
		return s, fmt.Errorf("%w: a certificate whose serial number has %d bits is not of this cluster",
			object.ErrPermission, c.SerialNumber.BitLen())
	}
	c.SerialNumber.FillBytes(s[:])
	return s, nil
}

// newSerial draws a number for a certificate of the authority with this fingerprint, whose mark it has.
func newSerial(authority Fingerprint) (*big.Int, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, err
	}
	b[0] = b[0]&0x7F | 0x40 // positive, and always 127 bits
	if authority != (Fingerprint{}) {
		copy(b[issuedMark:issuedMark+issuedBytes], authority[:])
	}
	return new(big.Int).SetBytes(b[:]), nil
}

// Subject is whom a certificate speaks for.
type Subject struct {
	Name   string // of the client or node, for people
	Role   Role
	Tenant string // "" = none: nodes, or "as configured for the name"
	Node   string // identifier of a node; "" for clients
}

const uriScheme = "tendril"

func (s Subject) check() error {
	var faults []error
	text := func(what, v string, may bool) {
		if v == "" && !may || len(v) > maxNameBytes || !utf8.ValidString(v) ||
			strings.ContainsFunc(v, func(r rune) bool { return r < 0x20 || r == 0x7F }) {
			faults = append(faults, fmt.Errorf("%s %.60q is empty, too long or holds control characters", what, v))
		}
	}
	text("name", s.Name, false)
	text("tenant", s.Tenant, true)
	text("node", s.Node, s.Role != Node)
	if !s.Role.Valid() {
		faults = append(faults, fmt.Errorf("%v is no role", s.Role))
	}
	if len(faults) > 0 {
		return fmt.Errorf("%w: certificate: %w", object.ErrInvalid, errors.Join(faults...))
	}
	return nil
}

// uri is how a subject stands in a certificate: tendril:role?node=…&tenant=….
func (s Subject) uri() *url.URL {
	q := url.Values{}
	if s.Tenant != "" {
		q.Set("tenant", s.Tenant)
	}
	if s.Node != "" {
		q.Set("node", s.Node)
	}
	return &url.URL{Scheme: uriScheme, Opaque: s.Role.String(), RawQuery: q.Encode()}
}

// SubjectOf reads a subject out of a certificate that was verified.
func SubjectOf(c *x509.Certificate) (Subject, error) {
	if len(c.URIs) != 1 || c.URIs[0].Scheme != uriScheme {
		return Subject{}, fmt.Errorf("%w: the certificate of %.60q names no role", object.ErrPermission,
			c.Subject.CommonName)
	}
	role, err := ParseRole(c.URIs[0].Opaque)
	if err != nil {
		return Subject{}, fmt.Errorf("%w: %w", object.ErrPermission, err)
	}
	q := c.URIs[0].Query()
	s := Subject{Name: c.Subject.CommonName, Role: role, Tenant: q.Get("tenant"), Node: q.Get("node")}
	if err := s.check(); err != nil {
		return Subject{}, fmt.Errorf("%w: %w", object.ErrPermission, err)
	}
	return s, nil
}

// Fingerprint is the SHA-256 of a public key (its SubjectPublicKeyInfo, RFC 5280 §4.1).
type Fingerprint [32]byte

// String gives 64 hexadecimal digits.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }

// FingerprintOf gives the fingerprint of a certificate's key.
func FingerprintOf(c *x509.Certificate) Fingerprint { return sha256.Sum256(c.RawSubjectPublicKeyInfo) }

// NewKey makes a key (ECDSA on P-256).
func NewKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// NewRequest makes a certificate request (RFC 2986, DER) for a key. The name is a wish.
func NewRequest(key *ecdsa.PrivateKey, name string) ([]byte, error) {
	return x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, key)
}
