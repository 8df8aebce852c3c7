package store

import (
	"context"
	"errors"
	"testing"

	"tendril/store/object"
)

// TestRequestMemoryHasThreeBounds: a connection's, its tenant's and the daemon's; and what is given back wakes who
// waits for it.
func TestRequestMemoryHasThreeBounds(t *testing.T) {
	s, err := New(Options{CapacityBytes: 64 << 20, RequestBytes: 32 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const tenantMost, connMost = 8 << 20, 2 << 20
	conn := func(tenant string) *Conn {
		c, err := s.Connect(Owner{Tenant: tenant})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	fill := func(tenant string) (list []*Conn) {
		for range tenantMost / connMost {
			c := conn(tenant)
			if err := c.ChargeRequest(connMost); err != nil {
				t.Fatal(err)
			}
			list = append(list, c)
		}
		return list
	}
	full := fill("a")
	for what, c := range map[string]*Conn{"connection": full[0], "tenant": conn("a")} {
		if err := c.ChargeRequest(1); !errors.Is(err, object.ErrBusy) {
			t.Errorf("a byte more for a full %s: %v", what, err)
		}
	}
	fill("b")
	fill("c")
	last := fill("d")
	if err := conn("e").ChargeRequest(1); !errors.Is(err, object.ErrBusy) {
		t.Errorf("a byte more for a full daemon: %v", err)
	}
	got := make(chan error)
	waits := conn("e")
	go func() { got <- waits.AwaitCharge(context.Background(), connMost) }()
	last[0].UnchargeRequest(connMost)
	if err := <-got; err != nil {
		t.Errorf("room was given back: %v", err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := conn("f").AwaitCharge(ended, 1); !errors.Is(err, object.ErrTimeout) {
		t.Errorf("waiting with an ended context: %v", err)
	}
	if err := full[1].AwaitCharge(ended, 1); !errors.Is(err, object.ErrTimeout) {
		t.Errorf("waiting for a full tenant: %v", err)
	}
	full[1].UnchargeRequest(1 << 20)
	own := conn("a")
	if err := errors.Join(own.ChargeRequest(1<<20), own.AwaitCharge(ended, 1<<19)); !errors.Is(err, object.ErrTimeout) {
		t.Errorf("more than its tenant has left: %v", err)
	}
	own.Close()
	if err := full[0].AwaitCharge(ended, 1<<20); err != nil { // or it would wait for what it gives back later
		t.Errorf("waiting with a full connection: %v", err)
	}
	full[0].UnchargeRequest(1 << 20)
	if err := full[1].ChargeRequest(1 << 20); err != nil {
		t.Fatal(err)
	}
	if err := conn("f").AwaitCharge(context.Background(), connMost+1); !errors.Is(err, object.ErrBusy) {
		t.Errorf("more than a connection may have: %v", err)
	}
	full[0].ChargeUnread(connMost) // is there already
	full[0].Close()
	full[0].UnchargeRequest(connMost)
	if held := s.Status().RequestBytes; held != 32<<20-connMost {
		t.Errorf("%d bytes are charged, want %d", held, 32<<20-connMost)
	}
}

// TestChargesComeInOrder: what is given back goes to those who wait, in their order, and wakes nobody else; tenants
// take turns.
func TestChargesComeInOrder(t *testing.T) {
	s := newStore(t, Options{CapacityBytes: 64 << 20, RequestBytes: 16 << 20})
	conn := func(tenant string) *Conn { return connect(t, s, tenant) }
	for range 4 {
		if err := conn("a").ChargeRequest(1 << 20); err != nil {
			t.Fatal(err)
		}
	}
	full := conn("b")
	if err := full.ChargeRequest(1 << 20); err != nil {
		t.Fatal(err)
	}
	l := s.requests
	var waits []*chargeWait
	wait := func(tenant string, n uint64) {
		w := &chargeWait{c: conn(tenant), n: n, charged: make(chan struct{})}
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
		l.mu.Lock()
		for c := range s.conns {
			if c.tenant.name == "a" && c.requests == 1<<20 {
				l.remove(c, 1<<19)
				break
			}
		}
		l.mu.Unlock()
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
	if err := conn("a").AwaitCharge(ctx, 1); !errors.Is(err, object.ErrTimeout) {
		t.Errorf("behind others: %v", err)
	}
}
