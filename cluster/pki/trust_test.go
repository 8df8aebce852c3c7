package pki

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"sync"
	"testing"
	"time"

	"tendril/store/object"
)

// succeed rotates an authority, as a node does that reads of it in the metadata.
func succeed(t *testing.T, a *Authority) *Authority {
	t.Helper()
	s, err := a.Succeed()
	if err != nil {
		t.Fatal(err)
	}
	next, err := a.Successor(s)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// TestSuccession: while an authority is rotated, nodes and clients of the old and of the new one believe each other,
// also those that have not heard of the new one. Once that is finished, only those of the new one do.
func TestSuccession(t *testing.T) {
	c := newClock()
	old, _ := authority(t, c)
	next := succeed(t, old)
	server, client := keyring(t, old, c, nodeSubject, NodeLife), keyring(t, old, c, userSubject, ClientLife)
	newServer, newClient := keyring(t, next, c, nodeSubject, NodeLife), keyring(t, next, c, userSubject, ClientLife)
	meet := func(what string, s *Keyring, sTrust Trust, k *Keyring, kTrust Trust, good bool) {
		t.Helper()
		_, errS, errC := handshake(t, ServerConfig(s.Certificate, &Verifier{Trust: sTrust, Now: c.now}),
			ClientConfig(k.Certificate, &Verifier{Trust: kTrust, Now: c.now}))
		if err := errors.Join(errS, errC); (err == nil) != good {
			t.Errorf("%s: %v", what, err)
		}
	}
	meet("both old", server, old.Trust(), client, old.Trust(), true)
	meet("a new node, a client that knows the old authority alone", newServer, next.Trust(), client, old.Trust(), true)
	meet("an old node that knows the old authority alone, a new client", server, old.Trust(), newClient, next.Trust(),
		true)
	meet("an old client after the end", newServer, next.Alone().Trust(), client, next.Trust(), false)
	meet("an old node after the end", server, next.Trust(), newClient, next.Alone().Trust(), false)

	stranger, _ := authority(t, c)
	other := succeed(t, stranger)
	forged := keyring(t, other, c, nodeSubject, NodeLife)
	meet("a node of another authority", forged, other.Trust(), client, old.Trust(), false)
	// It shows our successor, with a word of its own authority and with ours.
	raw := *forged.Certificate()
	raw.Certificate = [][]byte{raw.Certificate[0], next.cert.Raw, next.link.Raw, other.link.Raw}
	_, _, err := handshake(t, ServerConfig(func() *tls.Certificate { return &raw }, &Verifier{Trust: next.Trust(),
		Now: c.now}), ClientConfig(client.Certificate, &Verifier{Trust: old.Trust(), Now: c.now}))
	if err == nil {
		t.Error("a node of another authority that shows our successor is believed")
	}
}

// TestTokensInASuccession: a token of the old authority is good at a node of the new one; who logs in so believes both.
func TestTokensInASuccession(t *testing.T) {
	c := newClock()
	old, _ := authority(t, c)
	token, err := old.NewToken()
	if err != nil {
		t.Fatal(err)
	}
	next := succeed(t, old)
	server := keyring(t, next, c, nodeSubject, NodeLife)
	login := func(trust Trust) (learned Trust, err error) {
		server.SetTrust(trust)
		_, errS, errC := handshake(t, ServerConfig(server.Certificate, &Verifier{Trust: trust, Now: c.now}),
			JoinConfig(token, c.now, func(x Trust) { learned = x }))
		return learned, errors.Join(errS, errC)
	}
	learned, err := login(next.Trust())
	if err != nil || !learned.Authority.Equal(next.cert) || !learned.Before.Equal(old.cert) {
		t.Errorf("%+v, %v", learned, err)
	}
	if _, err := login(next.Alone().Trust()); !errors.Is(err, object.ErrPermission) {
		t.Errorf("after the end: %v", err)
	}
	shown := []*x509.Certificate{server.Certificate().Leaf, next.cert}
	if now := learned.Finished(shown); now.Before != nil {
		t.Error("who sees a node without the old authority goes on to believe that")
	}
}

// TestSuccessionIsKept: an authority's file has its predecessor until the rotation is finished, and a succession is of
// no use to who has not the predecessor's key.
func TestSuccessionIsKept(t *testing.T) {
	c := newClock()
	old, dir := authority(t, c)
	next := succeed(t, old)
	for _, x := range []*Authority{next, next.Alone()} {
		if err := x.Save(dir); err != nil {
			t.Fatal(err)
		}
		back, err := OpenAuthority(dir, c.now)
		if err != nil {
			t.Fatal(err)
		}
		if !back.cert.Equal(x.cert) || !back.key.Equal(x.key) || !back.before.Equal(x.before) ||
			!back.link.Equal(x.link) {
			t.Errorf("got %+v, want %+v", back.Trust(), x.Trust())
		}
	}
	s, err := old.Succeed()
	if err != nil {
		t.Fatal(err)
	}
	stranger, _ := authority(t, c)
	if _, err := stranger.Successor(s); !errors.Is(err, object.ErrInvalid) {
		t.Errorf("a succession of another authority: %v", err)
	}
	s.Key[len(s.Key)-1] ^= 1
	if _, err := old.Successor(s); !errors.Is(err, object.ErrInvalid) {
		t.Errorf("another key: %v", err)
	}
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	request, err := NewRequest(key, "x")
	if err != nil {
		t.Fatal(err)
	}
	issued, err := next.Issue(request, userSubject, time.Hour)
	if err != nil || !issued.Serial.IssuedBy(FingerprintOf(next.cert)) ||
		issued.Serial.IssuedBy(FingerprintOf(old.cert)) {
		t.Errorf("serial %v: %v", issued.Serial, err)
	}
}

// TestShownWithTheLatestTrust: a certificate that comes while the authority's rotation goes on is shown with what goes
// with it at the end.
func TestShownWithTheLatestTrust(t *testing.T) {
	c := newClock()
	old, _ := authority(t, c)
	next := succeed(t, old)
	ring := keyring(t, next, c, nodeSubject, NodeLife)
	leaf, key := ring.Certificate().Leaf, ring.Certificate().PrivateKey.(*ecdsa.PrivateKey)
	for range 300 {
		ring.SetTrust(next.Trust())
		var both sync.WaitGroup
		both.Go(func() { ring.hold(leaf, key) })
		both.Go(func() { ring.SetTrust(next.Alone().Trust()) })
		both.Wait()
		if n := len(ring.Certificate().Certificate); n != 2 {
			t.Fatalf("%d certificates are shown, want its own and the authority's", n)
		}
	}
}
