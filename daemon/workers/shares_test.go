package workers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// A tenant that takes what it can get leaves a worker for each that comes.
func TestOneTenantDoesNotTakeEveryWorker(t *testing.T) {
	p, _ := newPool(t, func(o *Options) { o.Max, o.Warm = 4, -1 }, "good")
	pl, _ := p.Platforms(t.Context())
	session := uint64(0)
	take := func(tenant string) error {
		session++
		o, err := p.Open(t.Context(), Request{Session: session, Platform: pl[0], Tenant: tenant})
		if err == nil {
			t.Cleanup(func() { o.Socket.Close(); o.Ring.Close() })
		}
		return err
	}
	had := 0
	var err error
	for ; err == nil && had < 5; had++ {
		err = take("greedy")
	}
	if !errors.Is(err, object.ErrBusy) || !strings.Contains(err.Error(), "--max-workers") {
		t.Errorf("the greedy tenant took %d of 4 workers, then: %v", had-1, err)
	}
	if err := take("newcomer"); err != nil {
		t.Errorf("a tenant that has none gets none, since another has %d: %v", had-1, err)
	}
	// A worker that dies, not one that is released, makes room too.
	p.mu.Lock()
	for _, s := range p.serving {
		if s.session == 1 {
			s.w.kill()
		}
	}
	p.mu.Unlock()
	await.Until(t, "room", func() bool { return take("third") == nil })
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shares.total > 4 {
		t.Errorf("%d workers of at most 4", p.shares.total)
	}
}

func TestWaitForAWorkerIsBounded(t *testing.T) {
	p, _ := newPool(t, func(o *Options) { o.Max, o.Warm, o.Wait = 1, -1, time.Millisecond }, "good")
	o, _ := open(t, p, 1, me())
	pl, _ := p.Platforms(t.Context())
	r := Request{Session: 2, Platform: pl[0], Tenant: "uid:other"}
	if _, err := p.Open(t.Context(), r); !errors.Is(err, object.ErrBusy) ||
		!strings.Contains(err.Error(), "--worker-wait") {
		t.Errorf("one more than there are: %v", err)
	}
	p.opts.Wait = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := p.Open(ctx, r)
		ended <- err
	}()
	waits := func(want int) func() bool {
		return func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.shares.waiting) == want
		}
	}
	await.Until(t, "a request that waits", waits(1))
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) || !waits(0)() {
		t.Errorf("a request that nobody waits for: %v", err)
	}
	go func() {
		o, err := p.Open(t.Context(), r)
		if err == nil {
			o.Socket.Close()
			o.Ring.Close()
		}
		ended <- err
	}()
	await.Until(t, "a request that waits", waits(1))
	if err := p.Release(1, o.ID); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the worker became free: %v", err)
	}
}

// Whatever is taken and given back, no more serve than may, a newcomer gets what was kept, and nothing is lost.
func TestSharesHold(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for most := 1; most < 40; most++ {
		s := newShares(most)
		var held []string
		for range 2000 {
			tenant := fmt.Sprint(r.IntN(6))
			if r.IntN(3) > 0 {
				own := s.used[tenant]
				got := s.take(tenant)
				if got {
					held = append(held, tenant)
				}
				switch {
				case s.total > most:
					t.Fatalf("%d of %d", s.total, most)
				case own == 0 && !got && s.total < most:
					t.Fatalf("a newcomer was refused, although %d of %d are free", most-s.total, most)
				case own > 0 && got && most-s.total < s.kept():
					t.Fatalf("a tenant with %d took one of the %d that are kept", own, s.kept())
				}
			} else if len(held) > 0 {
				i := r.IntN(len(held))
				s.give(held[i])
				held = append(held[:i], held[i+1:]...)
			}
		}
		for _, tenant := range held {
			s.give(tenant)
		}
		if s.total != 0 || len(s.used) != 0 {
			t.Fatalf("%d left: %v", s.total, s.used)
		}
	}
}

// Who has the fewest goes first, then who came first.
func TestTheFewestGoFirst(t *testing.T) {
	s := newShares(4)
	for _, tenant := range []string{"a", "a", "a", "b"} {
		if !s.take(tenant) {
			t.Fatal("no room for ", tenant)
		}
	}
	a, b, c, d := s.enter("a"), s.enter("b"), s.enter("c"), s.enter("d")
	open := func(w *waiter) bool {
		select {
		case <-w.granted:
			return true
		default:
			return false
		}
	}
	s.give("a")
	s.give("a")
	if open(a) || open(b) || !open(c) || !open(d) {
		t.Errorf("a %v, b %v, c %v, d %v: want the two that have none", open(a), open(b), open(c), open(d))
	}
	for _, tenant := range []string{"c", "d", "b"} {
		s.give(tenant)
	}
	if !open(a) || !open(b) || len(s.waiting) != 0 {
		t.Errorf("a %v, b %v: there is room for both; waiting: %v", open(a), open(b), s.waiting)
	}
}
