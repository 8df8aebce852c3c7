package link

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// ErrPeer is wrapped when the other end is not the one that was announced.
var ErrPeer = errors.New("the peer has another certificate than the one announced")

// Fingerprint is the SHA-256 of a certificate's DER.
type Fingerprint [sha256.Size]byte

// Identity is a key that lives as long as its process. Each side of a link
// learns the other's fingerprint over its control connection to the daemon and
// accepts that certificate alone: no names, no authority.
type Identity struct {
	certificate tls.Certificate
	print       Fingerprint
}

// NewIdentity makes a key and a certificate for it.
func NewIdentity() (*Identity, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("ephemeral key: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "tendril session"},
		// nobody checks: the fingerprint decides
		NotBefore: now.Add(-24 * time.Hour), NotAfter: now.Add(365 * 24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("ephemeral certificate: %w", err)
	}
	return &Identity{tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, sha256.Sum256(der)}, nil
}

// Fingerprint returns what the other side has to pin.
func (i *Identity) Fingerprint() Fingerprint { return i.print }

// Config returns TLS 1.3 between this identity and the one whose fingerprint is peer.
func (i *Identity) Config(peer Fingerprint) *tls.Config {
	return &tls.Config{
		Certificates:                []tls.Certificate{i.certificate},
		MinVersion:                  tls.VersionTLS13,
		ClientAuth:                  tls.RequireAnyClientCert,
		InsecureSkipVerify:          true, // replaced by the pin below
		SessionTicketsDisabled:      true,
		DynamicRecordSizingDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 || sha256.Sum256(s.PeerCertificates[0].Raw) != peer {
				return ErrPeer
			}
			return nil
		},
	}
}
