package frontdoor

import (
	"errors"
	"strings"
	"testing"

	"tendril/ipc/wire"
	"tendril/store/object"
)

// TestWhatWaitsIsCharged: a peer that has the daemon hold its requests while they wait is refused at a bound, and pays nothing when it
// has gone.
func TestWhatWaitsIsCharged(t *testing.T) {
	d := open(t, nil)
	p := d.dial(t).hello()
	many := wire.AwaitManyRequest{WaitMS: 1 << 30}
	for len(many.Wanted) < 1500 {
		many.Wanted = append(many.Wanted, wire.NameMessage{Name: strings.Repeat("n", object.MaxNameBytes)})
	}
	for request := range uint64(maxWaits - 1) {
		p.send(wire.AwaitMany, 1+request, &many)
	}
	p.send(wire.Hurry, 1000, nil)
	refused := 0
	for {
		f, err := p.receive()
		if err != nil {
			t.Fatal(err)
		}
		if f.Request == 1000 {
			break
		}
		if err := decodeError(t, f); !errors.Is(err, object.ErrBusy) {
			t.Fatalf("request %d: %v, want %v", f.Request, err, object.ErrBusy)
		}
		refused++
	}
	const most = 64 << 20 / 4 / 4
	held := d.store.Status().RequestBytes
	if refused < 50 || held == 0 || held > most {
		t.Errorf("%d of %d were refused, %d bytes are charged; want most of them, and up to %d bytes", refused, maxWaits-1, held, most)
	}
	p.Close()
	waitFor(t, func() bool { return d.store.Status().RequestBytes == 0 })
}

// TestWatchesAreCharged: a watch holds a queue of events.
func TestWatchesAreCharged(t *testing.T) {
	d := open(t, nil)
	p := d.dial(t).hello()
	if _, err := p.ask(wire.Watch, &wire.WatchRequest{}); err != nil {
		t.Fatal(err)
	}
	if held := d.store.Status().Tenants[0].RequestBytes; held < 16<<10 {
		t.Errorf("a watch is charged %d bytes", held)
	}
	p.Close()
	waitFor(t, func() bool { return d.store.Status().RequestBytes == 0 })
}
