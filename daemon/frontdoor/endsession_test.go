package frontdoor

import (
	"errors"
	"strings"
	"testing"
	"time"

	"tendril/cluster/pki"
	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// A session ends for its tenant and for the daemon's owner, wherever it is: with its connection, or where it waits for
// its client.
func TestEndSession(t *testing.T) {
	d := open(t, nil)
	program, killer := d.dial(t).hello(), d.dial(t).hello()
	f, err := program.ask(wire.OpenSession, &wire.OpenSessionRequest{})
	session := sessionOf(t, f, err)
	end := &wire.Number{N: session}
	if _, err := killer.ask(wire.EndSession, &wire.Number{N: session + 1}); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("a session that never was: %v", err)
	}
	if _, err := killer.ask(wire.EndSession, end); err != nil || d.backend.isOpen(session) {
		t.Errorf("%v, open %v", err, d.backend.isOpen(session))
	}
	f, err = program.receive()
	if err != nil || f.Type != wire.Error || f.Request != 0 {
		t.Fatalf("%v of %d, %v; want the reason", f.Type, f.Request, err)
	}
	if why := decodeError(t, f); !errors.Is(why, object.ErrAborted) || !strings.Contains(why.Error(),
		"was ended by its own user with tendril session end") {
		t.Errorf("the reason is %v", why)
	}
	if f, err := program.receive(); err == nil {
		t.Errorf("its connection goes on with %v", f.Type)
	}
	if _, err := killer.ask(wire.EndSession, end); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("the second time: %v", err)
	}
}

func TestEndSessionOfAnotherMachine(t *testing.T) {
	d := openFar(t)
	own := certificateFrom(t, d.cluster.authority, pki.User)
	admin := d.dial(t).hello()
	for _, waits := range []bool{false, true} {
		link := mustEnter(t, d, own)
		m := keep(t, link, patience)
		if waits {
			link.Shutdown()
			await.Until(t, "it waits", func() bool { return d.waiting() == 1 })
		}
		if _, err := ask(mustEnter(t, d, own), wire.EndSession, &wire.Number{N: m.Session}); !errors.Is(err,
			object.ErrUnsupported) {
			t.Errorf("from another machine: %v", err)
		}
		if _, err := admin.ask(wire.EndSession, &wire.Number{N: m.Session}); err != nil {
			t.Errorf("waits %v: %v", waits, err)
		}
		if d.backend.isOpen(m.Session) || d.waiting() != 0 {
			t.Errorf("waits %v: it is still there", waits)
		}
		if _, err := ask(mustEnter(t, d, own), wire.ResumeSession, m); !errors.Is(err, object.ErrPermission) {
			t.Errorf("it can be resumed: %v", err)
		}
	}
}

func TestEndSessionOfAnotherTenant(t *testing.T) {
	d := openFar(t, func(o *Options) { o.Admin = func(uint32) bool { return false } })
	m := keep(t, mustEnter(t, d, certificateFrom(t, d.cluster.authority, pki.User)), patience)
	stranger := d.dial(t).hello() // tenant t
	if _, err := stranger.ask(wire.EndSession, &wire.Number{N: m.Session}); !errors.Is(err, object.ErrPermission) ||
		!d.backend.isOpen(m.Session) {
		t.Errorf("%v, open %v", err, d.backend.isOpen(m.Session))
	}
}

// TestEndSessionOfWhoDoesNotRead: a program that reads nothing, and holds up what is sent to it, ends all the same.
func TestEndSessionOfWhoDoesNotRead(t *testing.T) {
	d := open(t, func(o *Options) { o.farewellTime = 50 * time.Millisecond })
	program, killer := d.dial(t).hello(), d.dial(t).hello()
	f, err := program.ask(wire.OpenSession, &wire.OpenSessionRequest{})
	session := sessionOf(t, f, err)
	holder, _ := d.holderOf(session)
	holder.mu.Lock() // as one has it who sends
	asked := make(chan error, 1)
	go func() {
		_, err := killer.ask(wire.EndSession, &wire.Number{N: session})
		asked <- err
	}()
	await.Until(t, "the session has ended", func() bool { return !d.backend.isOpen(session) })
	holder.mu.Unlock()
	if err := <-asked; err != nil {
		t.Error(err)
	}
}

// shutTransport notes that it was shut.
type shutTransport struct {
	transport
	shut bool
}

func (x *shutTransport) Shutdown() { x.shut = true }

// A daemon that ends, or hands over, cuts its connections before their requests fail: the client learns that the
// daemon is gone, and comes back; it is not told that its own process has ended, which is final.
func TestConnectionsAreCutFirst(t *testing.T) {
	link := &shutTransport{}
	c := &connection{link: link}
	c.cancel = func() {
		if !link.shut {
			t.Error("requests are refused while the client can still be told so")
		}
	}
	c.end(nil)
}
