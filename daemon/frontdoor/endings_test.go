package frontdoor

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"tendril/cluster/pki"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// enterIn is enter with a version of the protocol.
func (d *farDoor) enterIn(t testing.TB, own *tls.Certificate, version uint16) *ipc.Remote {
	t.Helper()
	s := d.knock(t)
	secure := tls.Client(s, pki.ClientConfig(func() *tls.Certificate { return own },
		&pki.Verifier{Trust: d.cluster.authority.Trust(), Now: time.Now}))
	link := ipc.NewRemote(secure, s)
	hello := &wire.HelloRequest{Magic: wire.Magic, Lowest: version, Highest: version, Program: "far"}
	if _, err := ask(link, wire.Hello, hello); err != nil {
		t.Fatal(err)
	}
	return link
}

// TestWhyASessionEnded: who comes back to a session that has ended is told why, though what was said at the moment was
// lost, and nobody else learns that there was one.
func TestWhyASessionEnded(t *testing.T) {
	d := openFar(t)
	own := certificateFrom(t, d.cluster.authority, pki.User)
	waits := func(link *ipc.Remote) {
		link.Shutdown()
		await.Until(t, "it waits", func() bool { return d.waiting() == 1 })
	}
	for name, x := range map[string]struct {
		limit time.Duration
		end   func(t *testing.T, link *ipc.Remote, session uint64)
		says  string // "": nothing
	}{
		"by somebody": {patience, func(t *testing.T, _ *ipc.Remote, session uint64) {
			if err := d.EndSession(session, errors.New("ended by somebody")); err != nil {
				t.Error(err)
			}
		}, "ended by somebody"},
		"by somebody, while it waits": {patience, func(t *testing.T, link *ipc.Remote, session uint64) {
			waits(link)
			if err := d.EndSession(session, errors.New("ended by somebody")); err != nil {
				t.Error(err)
			}
		}, "ended by somebody"},
		"revoked": {patience, func(*testing.T, *ipc.Remote, uint64) {
			d.EndIf(func(p Peer) bool { return p.Subject == "client" }, ErrRevoked)
		}, "its certificate was revoked"},
		"revoked while it waits": {patience, func(_ *testing.T, link *ipc.Remote, _ uint64) {
			waits(link)
			d.EndIf(func(p Peer) bool { return p.Subject == "client" }, ErrRevoked)
		}, "its certificate was revoked"},
		"too late": {20 * time.Millisecond, func(_ *testing.T, link *ipc.Remote, _ uint64) { link.Shutdown() },
			"waited 20ms for its client"},
		"a broken rule": {patience, func(t *testing.T, link *ipc.Remote, _ uint64) {
			if _, err := ask(link, wire.LeaveSession, &wire.Number{N: 1}); !errors.Is(err, object.ErrProtocol) {
				t.Error(err)
			}
		}, "broke a rule"},
		"it left": {patience, func(t *testing.T, link *ipc.Remote, _ uint64) {
			if _, err := ask(link, wire.LeaveSession, nil); err != nil {
				t.Error(err)
			}
			link.Shutdown()
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			link := mustEnter(t, d, own)
			m := keep(t, link, x.limit)
			x.end(t, link, m.Session)
			await.Until(t, "its end", func() bool { return !d.backend.isOpen(m.Session) })
			never := &wire.ResumeSessionRequest{Session: 1 << 60, Secret: m.Secret}
			for version := uint16(1); version <= wire.Version; version++ {
				kind := object.ErrPermission
				if version >= wire.VersionEndings && x.says != "" {
					kind = object.ErrAborted
				}
				_, err := ask(d.enterIn(t, own, version), wire.ResumeSession, m)
				if !errors.Is(err, kind) || !strings.Contains(err.Error(), x.says) ||
					x.says == "" && err.Error() != errNotKept.Error() {
					t.Errorf("version %d: %v", version, err)
				}
			}
			wrong := *m
			wrong.Secret[0]++
			for who, try := range map[string]struct {
				own *tls.Certificate
				m   *wire.ResumeSessionRequest
			}{
				"a wrong secret":           {own, &wrong},
				"another name":             {named(t, d.cluster.authority, "other", "far"), m},
				"another tenant":           {named(t, d.cluster.authority, "client", "near"), m},
				"a session that never was": {own, never},
			} {
				_, err := ask(d.enterIn(t, try.own, wire.Version), wire.ResumeSession, try.m)
				if !errors.Is(err, object.ErrPermission) || err.Error() != errNotKept.Error() {
					t.Errorf("%s: %v", who, err)
				}
			}
		})
	}
}

// TestASessionIsEndedAsItsConnectionBreaks: the last words are charged to a store connection that goes to the session
// that waits. A data race, which the race detector sees.
func TestASessionIsEndedAsItsConnectionBreaks(t *testing.T) {
	d := openFar(t)
	own := certificateFrom(t, d.cluster.authority, pki.User)
	for range 40 {
		link := mustEnter(t, d, own)
		m := keep(t, link, patience)
		cut := make(chan struct{})
		go func() {
			defer close(cut)
			link.Shutdown()
		}()
		if err := d.EndSession(m.Session, errors.New("ended by somebody")); err != nil {
			t.Error(err)
		}
		<-cut
		await.Until(t, "its end", func() bool { return !d.backend.isOpen(m.Session) })
	}
}

// TestEndingsAreBounded: by number, of a tenant and of all, by length and by time.
func TestEndingsAreBounded(t *testing.T) {
	var e endings
	secret := [32]byte{3}
	note := func(session uint64, tenant string) {
		e.note(session, Peer{Tenant: tenant}, keeping{secret: secret, time: time.Minute},
			fmt.Errorf("why: %s", strings.Repeat("ÿ", maxEndingBytes)))
	}
	knows := func(session uint64, tenant string) bool {
		m := &wire.ResumeSessionRequest{Session: session, Secret: secret}
		err := e.why(m, Peer{Tenant: tenant}, object.ErrAborted)
		if err != errNotKept && (len(err.Error()) > maxEndingBytes+20 || !utf8.ValidString(err.Error())) {
			t.Errorf("%d bytes: %q", len(err.Error()), err)
		}
		return err != errNotKept
	}
	note(1, "quiet")
	for i := range uint64(300) { // as when a lease of all of them ends
		note(100+i, "loud")
	}
	for i := range uint64(300) {
		if !knows(100+i, "loud") {
			t.Fatalf("of a tenant's sessions that ended at once, one is not told why: the %dth", i)
		}
	}
	note(1, "quiet") // again: it is one still
	if n := len(e.list); n != 1+300 {
		t.Errorf("%d of one session, and of a tenant", n)
	}
	for i := range uint64(maxEndings) {
		note(400+i, "loud")
	}
	if !knows(1, "quiet") || knows(100+300, "loud") || !knows(400+maxEndings-1, "loud") || len(e.list) != maxEndings {
		t.Errorf("%d: a tenant with many takes another's", len(e.list))
	}
	for i := range uint64(2 * maxEndings) {
		note(1000+i, fmt.Sprint("tenant ", i))
	}
	if len(e.list) != maxEndings || knows(1, "quiet") {
		t.Errorf("%d of all tenants", len(e.list))
	}
	for _, x := range e.list {
		x.until = time.Now().Add(-time.Second)
	}
	if knows(1000+2*maxEndings-1, fmt.Sprint("tenant ", 2*maxEndings-1)) {
		t.Error("what is too old is told")
	}
	note(7, "t")
	if len(e.list) != 1 || !knows(7, "t") {
		t.Errorf("%d, with one that is not too old", len(e.list))
	}
}
