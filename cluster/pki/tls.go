package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"time"

	"tendril/store/object"
)

// The protocols that a connection announces (ALPN, RFC 7301). Join is the one that needs no client certificate: it
// carries a token and a certificate request, and nothing else.
const (
	Protocol     = "tendril/1"
	ProtocolJoin = "tendril-join/1"
	ProtocolRaft = "tendril-raft/1" // between nodes: raft's messages
)

// Peer is who is at the other end.
type Peer struct {
	Subject
	Serial  Serial
	Expires time.Time
	Leaf    *x509.Certificate
}

// Verifier says whose certificates are believed. Immutable; Revoked must be safe for concurrent use.
type Verifier struct {
	Trust
	Now     func() time.Time
	Revoked func(Serial) bool // nil = nobody's is
}

// Verify checks a certificate that a peer has proven to own, the first of those that it has shown. The others may prove
// that its authority succeeds one that is believed. server says that the peer answered as a server: it must then be a
// node. Errors: ErrPermission, with the two authorities or the two times.
func (v *Verifier) Verify(shown []*x509.Certificate, server bool) (Peer, error) {
	leaf := shown[0]
	deny := func(format string, args ...any) (Peer, error) {
		return Peer{}, fmt.Errorf("%w: "+format, append([]any{object.ErrPermission}, args...)...)
	}
	issuer := v.Learn(shown).Issuer(leaf)
	if issuer == nil {
		issuer = v.Issuer(leaf)
	}
	if issuer == nil {
		return deny("the certificate of %.60q was issued by %.60q, another authority than %.60q: is it the right cluster? log in to it or join it", leaf.Subject.CommonName, leaf.Issuer.CommonName, v.Authority.Subject.CommonName)
	}
	if err := checkTimes(leaf, v.Now()); err != nil {
		return Peer{}, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(issuer)
	usage := x509.ExtKeyUsageClientAuth
	if server {
		usage = x509.ExtKeyUsageServerAuth
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: v.Now(),
		KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
		return deny("the certificate of %.60q: %w", leaf.Subject.CommonName, err)
	}
	subject, err := SubjectOf(leaf)
	if err != nil {
		return Peer{}, err
	}
	serial, err := SerialOf(leaf)
	if err != nil {
		return Peer{}, err
	}
	if v.Revoked != nil && v.Revoked(serial) {
		return deny("the certificate %s of %.60q was revoked: log in again with a new token", serial, subject.Name)
	}
	return Peer{subject, serial, leaf.NotAfter, leaf}, nil
}

// checkTimes names both times when a certificate is not valid now.
func checkTimes(c *x509.Certificate, now time.Time) error {
	show := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	switch {
	case now.Before(c.NotBefore):
		return fmt.Errorf("%w: the certificate of %.60q is valid from %s, but this machine's clock says %s: correct the clocks of both machines", object.ErrPermission, c.Subject.CommonName, show(c.NotBefore), show(now))
	case now.After(c.NotAfter):
		return fmt.Errorf("%w: the certificate of %.60q expired at %s, and this machine's clock says %s: renew it (log in again), or correct the clock", object.ErrPermission, c.Subject.CommonName, show(c.NotAfter), show(now))
	}
	return nil
}

// base is what all configurations share. Verification is ours (VerifyConnection), because names are not host names;
// crypto/tls still has the peer prove that it owns its certificate's key.
func base() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true, InsecureSkipVerify: true,
		ClientAuth: tls.RequireAnyClientCert}
}

// leafOf gives the certificate that a peer has shown.
func leafOf(cs tls.ConnectionState) (*x509.Certificate, error) {
	if len(cs.PeerCertificates) == 0 {
		return nil, fmt.Errorf("%w: the peer showed no certificate: log in first", object.ErrPermission)
	}
	return cs.PeerCertificates[0], nil
}

// ServerConfig is the front door's: mutual TLS 1.3; a client that asks for ProtocolJoin, and nothing else, need not
// show a certificate and must be given the token exchange only (look at ConnectionState.NegotiatedProtocol). own gives
// the node's current certificate (Keyring.Certificate).
func ServerConfig(own func() *tls.Certificate, v *Verifier) *tls.Config {
	mutual := base()
	mutual.NextProtos = []string{Protocol, ProtocolRaft}
	mutual.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own(), nil }
	mutual.VerifyConnection = func(cs tls.ConnectionState) error {
		_, err := leafOf(cs)
		if err == nil {
			_, err = v.Verify(cs.PeerCertificates, false)
		}
		return err
	}
	join := base()
	join.NextProtos, join.ClientAuth, join.GetCertificate = []string{ProtocolJoin}, tls.NoClientCert,
		mutual.GetCertificate
	mutual.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if slices.Equal(hello.SupportedProtos, join.NextProtos) {
			return join, nil
		}
		return nil, nil
	}
	return mutual
}

// ClientConfig is for clients and nodes that dial a node. own gives the certificate to show.
func ClientConfig(own func() *tls.Certificate, v *Verifier) *tls.Config {
	c := base()
	c.NextProtos = []string{Protocol}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own(), nil }
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		if _, err := leafOf(cs); err != nil {
			return err
		}
		peer, err := v.Verify(cs.PeerCertificates, true)
		if err == nil && peer.Role != Node {
			err = fmt.Errorf("%w: %.60q answers as a server but is not a node", object.ErrPermission, peer.Name)
		}
		return err
	}
	return c
}

// NodeConfig is ClientConfig for a node that dials the node with this identifier and no other, to speak protocol.
func NodeConfig(own func() *tls.Certificate, v *Verifier, node, protocol string) *tls.Config {
	c := ClientConfig(own, v)
	c.NextProtos = []string{protocol}
	verify := c.VerifyConnection
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		if err := verify(cs); err != nil {
			return err
		}
		peer, _, err := PeerOf(cs)
		if err == nil && peer.Node != node {
			err = fmt.Errorf("%w: node %s answers, which calls itself %.60q, and not node %s", object.ErrPermission,
				peer.Node, peer.Name, node)
		}
		return err
	}
	return c
}

// JoinConfig is for a side that has a token and no certificate yet. The server must show an authority whose key the
// token names, and a node's certificate of it. learned is called with that authority, which is to be pinned from then
// on, before the handshake ends.
func JoinConfig(t Token, now func() time.Time, learned func(Trust)) *tls.Config {
	c := base()
	c.NextProtos = []string{ProtocolJoin}
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		leaf, err := leafOf(cs)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(cs.PeerCertificates,
			func(x *x509.Certificate) bool { return x.IsCA && t.Matches(FingerprintOf(x)) })
		if i < 0 {
			return fmt.Errorf("%w: the server %.60q has another authority than the token: check the address, and that the token is of this cluster, and not from before tendril cluster rotate --finish there. Nothing was sent", object.ErrPermission, leaf.Subject.CommonName)
		}
		v := &Verifier{Trust: Trust{Authority: cs.PeerCertificates[i]}, Now: now}
		v.Trust = v.Learn(cs.PeerCertificates)
		peer, err := v.Verify(cs.PeerCertificates, true)
		if err == nil && peer.Role != Node {
			err = fmt.Errorf("%w: %.60q answers as a server but is not a node", object.ErrPermission, peer.Name)
		}
		if err == nil {
			learned(v.Trust)
		}
		return err
	}
	return c
}

// PeerOf says who is at the other end of a handshake that ServerConfig let through; ok is false for one of
// ProtocolJoin.
func PeerOf(cs tls.ConnectionState) (peer Peer, ok bool, err error) {
	if cs.NegotiatedProtocol == ProtocolJoin {
		return Peer{}, false, nil
	}
	leaf, err := leafOf(cs)
	if err != nil {
		return Peer{}, false, err
	}
	if peer.Subject, err = SubjectOf(leaf); err != nil {
		return Peer{}, false, err
	}
	peer.Serial, err = SerialOf(leaf)
	peer.Expires, peer.Leaf = leaf.NotAfter, leaf
	return peer, err == nil, err
}

// Explain adds what a person can do to an error of a handshake: of TLS alerts (RFC 8446 §6.2) only the number comes
// across.
func Explain(err error) error {
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "remote error" {
		return err
	}
	alert := reflect.ValueOf(op.Err) // crypto/tls does not export the type, a uint8
	if alert.Kind() != reflect.Uint8 {
		return err
	}
	switch alert.Uint() {
	case 42, 44, 45, 46, 48, 49: // bad, revoked, expired, unknown certificate, unknown authority, access denied
		return fmt.Errorf("%w: the server refuses our certificate: it was revoked, has expired or is of another cluster (the server's log says which): log in again: %w", object.ErrPermission, err)
	case 116: // certificate required
		return fmt.Errorf("%w: the server requires a certificate: log in first: %w", object.ErrPermission, err)
	case 70, 120: // protocol version, no application protocol
		return fmt.Errorf("%w: the server speaks another version: %w", object.ErrVersion, err)
	}
	return err
}
