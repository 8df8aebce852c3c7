package frontdoor

import (
	"errors"
	"testing"

	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// A place in a line goes with the connection whose last request for a session got it, and with no other's.
func TestPlaceInALineGoesWithItsConnection(t *testing.T) {
	d := open(t, func(*Options) {})
	gone := make(chan struct{}, 2)
	waits := func(leave func()) {
		d.backend.mu.Lock()
		defer d.backend.mu.Unlock()
		d.backend.waits = leave
	}
	waits(func() { gone <- struct{}{} })
	p, q := d.dial(t).hello(), d.dial(t).hello()
	for _, x := range []*peer{p, q} {
		if _, err := x.ask(wire.OpenSession, &wire.OpenSessionRequest{}); !errors.Is(err, object.ErrBusy) {
			t.Fatal(err)
		}
	}
	p.Close()
	<-gone
	waits(nil)
	f, err := q.ask(wire.OpenSession, &wire.OpenSessionRequest{})
	session := sessionOf(t, f, err)
	q.Close()
	await.Until(t, "its session has ended", func() bool { return !d.backend.isOpen(session) })
	if len(gone) > 0 {
		t.Error("a connection that has its session has left a line")
	}
}
