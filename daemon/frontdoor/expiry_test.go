package frontdoor

import (
	"crypto/x509"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tendril/cluster/pki"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// endOf waits for the end of a connection, and gives why.
func endOf(link *ipc.Remote) error {
	for {
		f, err := link.Receive(nil)
		if err != nil {
			return err
		}
		var m wire.ErrorReply
		if f.Type == wire.Error && m.Decode(f.Payload) == nil {
			return object.FromCode(m.Code, m.Text)
		}
	}
}

func wantExpired(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, object.ErrPermission) || !strings.Contains(err.Error(), "expired") {
		t.Errorf("want that the certificate has expired, got: %v", err)
	}
}

// expireAll has the certificate of each connection that only says expire now.
func (d *farDoor) expireAll(only func(Peer) bool) {
	d.mu.Lock()
	conns := slices.Collect(maps.Keys(d.conns))
	d.mu.Unlock()
	for _, c := range conns {
		if only(c.peerNow()) {
			c.stateMu.Lock()
			c.certificate.expires = time.Now().Add(-time.Second)
			c.stateMu.Unlock()
			c.expires() // as the timer does
		}
	}
}

// A connection does not outlive its certificate, which TLS looks at in the handshake alone.
func TestConnectionsEndWithTheirCertificate(t *testing.T) {
	var soon atomic.Bool
	d := openFar(t, func(o *Options) {
		remote := o.Remote
		o.Remote = func(p pki.Peer) Peer {
			peer := remote(p)
			if peer.Expires = p.Expires; soon.Load() {
				peer.Expires = time.Now().Add(100 * time.Millisecond)
			}
			return peer
		}
	})
	own := certificateFrom(t, d.cluster.authority, pki.User)
	stays := mustEnter(t, d, own)
	soon.Store(true)
	link, err := d.enter(t, own)
	if err == nil {
		err = endOf(link)
	}
	wantExpired(t, err)
	if _, err := ask(stays, wire.List, &wire.ListRequest{}); err != nil {
		t.Errorf("a connection whose certificate is good: %v", err)
	}
}

// renewOver renews a connection's certificate over it.
func renewOver(t *testing.T, link *ipc.Remote) pki.Serial {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	request, err := pki.NewRequest(key, "client")
	if err != nil {
		t.Fatal(err)
	}
	f, err := ask(link, wire.Renew, &wire.DERMessage{DER: request})
	if err != nil {
		t.Fatal(err)
	}
	var next wire.DERMessage
	if err := next.Decode(f.Payload); err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(next.DER)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := pki.SerialOf(cert)
	if err != nil {
		t.Fatal(err)
	}
	return serial
}

// Where a connection ends with its certificate, its session waits for a client with a new one. One over which the
// certificate was renewed goes on, until the new one is revoked.
func TestRenewedConnectionsGoOn(t *testing.T) {
	d := openFar(t)
	own := certificateFrom(t, d.cluster.authority, pki.User)
	link, renewed := mustEnter(t, d, own), mustEnter(t, d, own)
	m := keep(t, link, time.Hour)
	serial := renewOver(t, renewed)
	old, err := pki.SerialOf(own.Leaf)
	if err != nil {
		t.Fatal(err)
	}
	d.expireAll(func(p Peer) bool { return p.Serial == old })
	wantExpired(t, endOf(link))
	await.Until(t, "its session waits", func() bool { return d.waiting() == 1 && d.backend.isOpen(m.Session) })
	again := mustEnter(t, d, certificateFrom(t, d.cluster.authority, pki.User))
	if _, err := ask(again, wire.ResumeSession, m); err != nil {
		t.Errorf("with a new certificate: %v", err)
	}
	if _, err := ask(renewed, wire.List, &wire.ListRequest{}); err != nil {
		t.Fatalf("over the connection whose certificate was renewed: %v", err)
	}
	next := renewOver(t, renewed)
	if of := *d.cluster.renewed.Load(); of != serial {
		t.Errorf("the second time the certificate %v was renewed, want the present one, %v", of, serial)
	}
	d.EndIf(func(p Peer) bool { return p.Serial == next }, ErrRevoked) // as a revocation does
	if f, err := renewed.Receive(nil); err == nil {
		t.Errorf("it goes on when its new certificate is revoked: %v", f.Type)
	}
}

// A node that asks for objects does so as long as its certificate lasts.
func TestNodesConnectionsEndWithTheirCertificate(t *testing.T) {
	s := &Server{}
	until := func(life time.Duration) pki.Peer { return pki.Peer{Expires: time.Now().Add(life)} }
	lasts, leaveThat, err := s.admitAsker(until(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	defer leaveThat()
	ctx, leave, err := s.admitAsker(until(20 * time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(5 * time.Minute):
		t.Error("it goes on")
	}
	leave()
	if len(s.askers) != 1 || lasts.Err() != nil {
		t.Errorf("%d are left, want the one whose certificate is good: %v", len(s.askers), lasts.Err())
	}
}
