package daemon

import (
	"testing"
	"time"

	"tendril/cluster/pki"
)

// An offer is dialed once; what is remembered of it goes when it would be refused anyway.
func TestOffersAreDialedOnce(t *testing.T) {
	p, now := newPeering(), time.Now()
	offer := func(ticket string) pki.Offer { return pki.Offer{Tickets: [][]byte{[]byte(ticket)}} }
	if !p.first(offer("a"), now) || p.first(offer("a"), now.Add(time.Minute)) || !p.first(offer("b"), now) {
		t.Error("an offer counts as seen, or not, against what was shown")
	}
	if !p.first(offer("c"), now.Add(2*time.Hour)) || len(p.used) != 1 {
		t.Errorf("%d offers are remembered, one is young", len(p.used))
	}
}

// What a program says of its links shows on an operator's terminal.
func TestPrintable(t *testing.T) {
	for said, want := range map[string]string{"worker 3 of ü": "worker 3 of ü", "a\x1b[2J\nb": "a?[2J?b", "\xff": "?"} {
		if got := printable(said); got != want {
			t.Errorf("%q: %q, want %q", said, got, want)
		}
	}
}
