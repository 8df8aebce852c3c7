package daemon

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"tendril/cluster/pki"
	"tendril/store/object"
)

// An offer is dialed once; what is remembered of it goes when it would be refused anyway, and is bounded for each
// tenant.
func TestOffersAreDialedOnce(t *testing.T) {
	p, now := newPeering(), time.Now()
	spend := func(ticket, tenant string, at time.Time) error {
		return p.spend(pki.Offer{Tickets: [][]byte{[]byte(ticket)}}, tenant, at)
	}
	if err := errors.Join(spend("a", "x", now), spend("b", "x", now)); err != nil {
		t.Error(err)
	}
	if err := spend("a", "y", now.Add(time.Minute)); !errors.Is(err, object.ErrPermission) {
		t.Errorf("an offer that was dialed: %v", err)
	}
	now = now.Add(2 * offerMemory)
	for i := range maxOffers {
		if err := spend(fmt.Sprint(i), "x", now); err != nil {
			t.Fatal(err)
		}
	}
	if len(p.used) != maxOffers || len(p.queue) != maxOffers {
		t.Errorf("%d and %d offers are remembered, %d are young", len(p.used), len(p.queue), maxOffers)
	}
	if err := spend("more", "x", now); !errors.Is(err, object.ErrBusy) {
		t.Errorf("one more of a tenant that has the most: %v", err)
	}
	if err := spend("more", "y", now); err != nil {
		t.Errorf("another tenant's: %v", err)
	}
	if err := spend("last", "x", now.Add(2*offerMemory)); err != nil || len(p.used) != 1 || len(p.has) != 1 {
		t.Errorf("later: %v, %d offers of %d tenants are remembered", err, len(p.used), len(p.has))
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
