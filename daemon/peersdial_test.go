package daemon

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"tendril/client"
	"tendril/client/admin"
	programs "tendril/client/session"
	"tendril/cluster/pki"
	"tendril/ipc"
	"tendril/store/object"
)

// peerDoor is somebody that may be dialed: what was shown to it.
type peerDoor struct {
	net.Listener
	shown chan []byte
}

func openPeerDoor(t *testing.T) *peerDoor {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &peerDoor{l, make(chan []byte, 100)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b, _ := io.ReadAll(io.LimitReader(c, ipc.PrefaceBytes))
			c.Close()
			d.shown <- b
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return d
}

// someNode makes an authority and a node of it.
func someNode(t *testing.T) *tls.Certificate {
	t.Helper()
	dir := t.TempDir()
	a, err := pki.OpenAuthority(dir, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	ring, err := pki.OpenKeyring(context.Background(), dir+"/own.pem", "b", a.Trust(),
		pki.IssueFrom(a, pki.Subject{Name: "b", Node: "b", Role: pki.Node}, pki.NodeLife, nil), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return ring.Certificate()
}

// A running daemon dials what its operator named and nothing that an offer says, each offer once, and no offer of
// anybody else; whatever it is asked, it goes on.
func TestHostileDials(t *testing.T) {
	named, other := openPeerDoor(t), openPeerDoor(t)
	d, stop := serve(t, aConfig(t))
	defer stop()
	conn, err := client.Dial(context.Background(), client.Options{Socket: d.cfg.Socket})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	node, stranger := someNode(t), someNode(t)
	authority, err := x509.ParseCertificate(node.Certificate[1])
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.Of(conn).SetPeer(context.Background(), named.Addr().String(),
		pki.FingerprintOf(authority)); err != nil {
		t.Fatal(err)
	}
	tickets := byte(0)
	offer := func(by *tls.Certificate, change func(o *pki.Offer)) []byte {
		tickets++
		o := pki.Offer{Address: other.Addr().String(), Tickets: [][]byte{bytes.Repeat([]byte{tickets}, 32)},
			Issued: time.Now()}
		if change != nil {
			change(&o)
		}
		raw, err := o.Sign(by)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	good := offer(node, nil)
	if err := programs.Of(conn).DialPeer(context.Background(), 1, 7, good); !errors.Is(err, object.ErrPermission) &&
		!errors.Is(err, object.ErrInvalid) && !errors.Is(err, object.ErrNotFound) {
		t.Errorf("without a session: %v", err)
	}
	if _, _, err := programs.Of(conn).Open(context.Background(), "test", []byte(`{"protocol":1}`)); err != nil {
		t.Fatal(err)
	}
	var again map[string]any
	if err := json.Unmarshal(good, &again); err != nil {
		t.Fatal(err)
	}
	rewritten, err := json.MarshalIndent(again, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	again["body"] = strings.ToUpper(fmt.Sprint(again["body"]))
	tampered, err := json.Marshal(again)
	if err != nil {
		t.Fatal(err)
	}
	if err := programs.Of(conn).DialPeer(context.Background(), 1, 7, good); !errors.Is(err, object.ErrUnsupported) ||
		!strings.Contains(err.Error(), named.Addr().String()) {
		t.Errorf("for a worker that is none: %v", err) // the connection was made by then
	}
	if b := <-named.shown; len(b) != ipc.PrefaceBytes || !bytes.Contains(b, bytes.Repeat([]byte{1}, 32)) {
		t.Errorf("the node named was shown %x", b)
	}
	for what, c := range map[string]struct {
		raw  []byte
		want error
	}{
		"replayed":            {good, object.ErrPermission},
		"replayed, rewritten": {rewritten, object.ErrPermission},
		"tampered with":       {tampered, object.ErrPermission},
		"old": {offer(node, func(o *pki.Offer) { o.Issued = time.Now().Add(-time.Hour) }),
			object.ErrPermission},
		"of tomorrow": {offer(node, func(o *pki.Offer) { o.Issued = time.Now().Add(24 * time.Hour) }),
			object.ErrPermission},
		"of a stranger":      {offer(stranger, nil), object.ErrPermission},
		"without tickets":    {offer(node, func(o *pki.Offer) { o.Tickets = nil }), object.ErrInvalid},
		"with short tickets": {offer(node, func(o *pki.Offer) { o.Tickets = [][]byte{{1}} }), object.ErrInvalid},
		"garbage":            {[]byte("{\"body\":1}"), object.ErrInvalid},
		"nothing":            {nil, object.ErrInvalid},
	} {
		if err := programs.Of(conn).DialPeer(context.Background(), 1, 7, c.raw); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
	select {
	case b := <-named.shown:
		t.Errorf("the node named was dialed again and shown %x", b)
	case b := <-other.shown:
		t.Errorf("an address of an offer's was dialed and shown %x", b)
	default:
	}
	if err := programs.Of(conn).DialPeer(context.Background(), 1, 7, offer(node, nil)); !errors.Is(err,
		object.ErrUnsupported) {
		t.Errorf("a good offer behind all that: %v", err)
	}
}
