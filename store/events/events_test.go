package events

import (
	"context"
	"errors"
	"strings"
	"testing"

	"tendril/store/object"
)

// left fails where something of watchers that have all been closed is left.
func left(t *testing.T, x *Watchers) {
	t.Helper()
	if x.Any() || len(x.byPrefix)+len(x.lengths)+x.count+x.queued != 0 {
		t.Errorf("left: any %v, %d prefixes, %d lengths, %d watchers, %d bytes", x.Any(), len(x.byPrefix), len(x.lengths),
			x.count, x.queued)
	}
}

// rest returns the kinds and names of all that waits for w.
func rest(w *Watcher) (all []string) {
	for ev, ok := w.TryNext(); ok; ev, ok = w.TryNext() {
		all = append(all, ev.Kind+" "+ev.Name)
	}
	return all
}

// TestPrefixes: a watcher gets the events of the names that begin with its prefix, in order, and no other.
func TestPrefixes(t *testing.T) {
	var x Watchers
	happened := []*Event{{Kind: Sealed, Name: "a/1"}, {Kind: Sealed, Name: "b"}, {Kind: Gone, Name: "a/1"}, {Kind: Gone}}
	for prefix, want := range map[string]string{
		"": "sealed a/1,sealed b,gone a/1,gone ", "a/": "sealed a/1,gone a/1", "a/1": "sealed a/1,gone a/1", "a/12": "", "c": "",
	} {
		w, again := x.Add(prefix, nil), x.Add(prefix, nil)
		x.Tell(happened, false)
		for _, w := range []*Watcher{w, again} {
			if got := strings.Join(rest(w), ","); got != want {
				t.Errorf("%q got %q, want %q", prefix, got, want)
			}
			w.Close()
		}
	}
	left(t, &x)
}

// TestWake: wake is called when there is something after there was nothing, and not for each event.
func TestWake(t *testing.T) {
	var x Watchers
	woken := 0
	w := x.Add("", func() { woken++ })
	x.Tell([]*Event{{Kind: Sealed}, {Kind: Gone}}, false)
	x.Tell([]*Event{{Kind: Sealed}}, false)
	if got := len(rest(w)); woken != 1 || got != 3 {
		t.Errorf("woken %d times for %d events, want once for 3", woken, got)
	}
	x.Tell([]*Event{{Kind: Sealed}}, false)
	if woken != 2 {
		t.Errorf("woken %d times, want twice", woken)
	}
	w.Close()
	left(t, &x)
}

// TestLost: a watcher whose queue is full, or who was not told of all, gets what it has, then Lost, and then begins
// anew.
func TestLost(t *testing.T) {
	var x Watchers
	w := x.Add("", nil)
	one := []*Event{{Kind: Sealed, Name: "n"}}
	for range QueueEvents + 2 {
		x.Tell(one, false)
	}
	if got := rest(w); len(got) != QueueEvents+1 || got[QueueEvents] != Lost+" " {
		t.Errorf("%d events, the last %q", len(got), got[len(got)-1])
	}
	x.Tell(one, true)
	x.Tell(one, false) // after what was lost
	if got := strings.Join(rest(w), ","); got != "sealed n,lost " {
		t.Errorf("got %q", got)
	}
	w.Close()
	left(t, &x)
}

// TestPool: what waits for all is bounded by bytes, and is free again when a watcher with a full queue closes.
func TestPool(t *testing.T) {
	var x Watchers
	big := []*Event{{Kind: Sealed, Name: strings.Repeat("n", 1000)}}
	slow := x.Add("", nil)
	for range QueueEvents {
		x.Tell(big, false)
	}
	if x.queued > poolBytes+WatchBytes || !slow.lost || x.queued == 0 {
		t.Errorf("%d bytes wait, lost %v", x.queued, slow.lost)
	}
	slow.Close()
	left(t, &x)
	next := x.Add("", nil)
	x.Tell(big, false)
	if got := len(rest(next)); got != 1 {
		t.Errorf("%d events, want 1", got)
	}
	next.Close()
}

// TestNext: Next waits for an event, and no longer than its context.
func TestNext(t *testing.T) {
	var x Watchers
	w := x.Add("", nil)
	defer w.Close()
	go x.Tell([]*Event{{Kind: Named, Name: "n"}}, false)
	if ev, err := w.Next(t.Context()); err != nil || ev.Kind != Named {
		t.Errorf("%+v, %v", ev, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Next(ctx); !errors.Is(err, object.ErrTimeout) {
		t.Errorf("%v, want %v", err, object.ErrTimeout)
	}
}
