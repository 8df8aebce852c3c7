package requests

import (
	"context"
	"errors"
	"testing"

	"tendril/store/object"
)

// TestRequestMemoryHasThreeBounds: a connection's, its tenant's and the daemon's; and what is given back wakes who
// waits for it.
func TestRequestMemoryHasThreeBounds(t *testing.T) {
	l := New(32 << 20)
	const tenantMost, connMost = 8 << 20, 2 << 20
	fill := func(tenant string) (list []*Account) {
		for range tenantMost / connMost {
			c := l.Account(tenant)
			if err := c.ChargeRequest(connMost); err != nil {
				t.Fatal(err)
			}
			list = append(list, c)
		}
		return list
	}
	full := fill("a")
	for what, c := range map[string]*Account{"connection": full[0], "tenant": l.Account("a")} {
		if err := c.ChargeRequest(1); !errors.Is(err, object.ErrBusy) {
			t.Errorf("a byte more for a full %s: %v", what, err)
		}
	}
	fill("b")
	fill("c")
	last := fill("d")
	if err := l.Account("e").ChargeRequest(1); !errors.Is(err, object.ErrBusy) {
		t.Errorf("a byte more for a full daemon: %v", err)
	}
	got := make(chan error)
	waits := l.Account("e")
	go func() { got <- waits.AwaitCharge(context.Background(), connMost) }()
	last[0].UnchargeRequest(connMost)
	if err := <-got; err != nil {
		t.Errorf("room was given back: %v", err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.Account("f").AwaitCharge(ended, 1); !errors.Is(err, object.ErrTimeout) {
		t.Errorf("waiting with an ended context: %v", err)
	}
	if err := full[1].AwaitCharge(ended, 1); !errors.Is(err, object.ErrTimeout) {
		t.Errorf("waiting for a full tenant: %v", err)
	}
	full[1].UnchargeRequest(1 << 20)
	own := l.Account("a")
	if err := errors.Join(own.ChargeRequest(1<<20), own.AwaitCharge(ended, 1<<19)); !errors.Is(err, object.ErrTimeout) {
		t.Errorf("more than its tenant has left: %v", err)
	}
	l.Drop(own)
	if err := full[0].AwaitCharge(ended, 1<<20); err != nil { // or it would wait for what it gives back later
		t.Errorf("waiting with a full connection: %v", err)
	}
	full[0].UnchargeRequest(1 << 20)
	if err := full[1].ChargeRequest(1 << 20); err != nil {
		t.Fatal(err)
	}
	if err := l.Account("f").AwaitCharge(context.Background(), connMost+1); !errors.Is(err, object.ErrBusy) {
		t.Errorf("more than a connection may have: %v", err)
	}
	full[0].ChargeUnread(connMost) // is there already
	l.Drop(full[0])
	full[0].UnchargeRequest(connMost)
	if held := l.Total(); held != 32<<20-connMost {
		t.Errorf("%d bytes are charged, want %d", held, 32<<20-connMost)
	}
}

// TestChargesComeInOrder: what is given back goes to those who wait, in their order, and wakes nobody else; tenants
// take turns.
func TestChargesComeInOrder(t *testing.T) {
	l := New(16 << 20)
	var holders []*Account
	for range 4 {
		holders = append(holders, l.Account("a"))
		if err := holders[len(holders)-1].ChargeRequest(1 << 20); err != nil {
			t.Fatal(err)
		}
	}
	full := l.Account("b")
	if err := full.ChargeRequest(1 << 20); err != nil {
		t.Fatal(err)
	}
	var waits []*chargeWait
	wait := func(tenant string, n uint64) {
		w := &chargeWait{a: l.Account(tenant), n: n, charged: make(chan struct{})}
		l.mu.Lock()
		l.join(w)
		l.mu.Unlock()
		waits = append(waits, w)
	}
	done := func() (n int) {
		for _, w := range waits {
			select {
			case <-w.charged:
				n++
			default:
			}
		}
		return n
	}
	for range 100 {
		wait("a", 1<<18)
	}
	for i, want := range []int{2, 4} { // two for each half MiB of a's
		holders[i].UnchargeRequest(1 << 19)
		if got := done(); got != want {
			t.Errorf("round %d: %d of %d charges are done, want %d", i, got, len(waits), want)
		}
	}
	select {
	case <-waits[3].charged:
	default:
		t.Error("who came fourth was passed over")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.Account("a").AwaitCharge(ctx, 1); !errors.Is(err, object.ErrTimeout) {
		t.Errorf("behind others: %v", err)
	}
}
