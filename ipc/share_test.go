package ipc

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// run gives n turns, each of which costs what cost says, to connections that always want more.
func (h *shareHeap) run(n int, cost func(tenant string) time.Duration) map[string]time.Duration {
	got := map[string]time.Duration{}
	for range n {
		x := (*h)[0]
		s := x.take()
		x.had += cost(x.tenant)
		got[x.tenant] += cost(x.tenant)
		x.put(s)
		h.settle(x)
	}
	return got
}

// Tenants get equal parts of the time, however many connections they have and however long their turns take.
func TestSharesAreOfTenants(t *testing.T) {
	var h shareHeap
	many, one := &share{tenant: "many", at: -1}, &share{tenant: "one", at: -1}
	for range 1000 {
		h.want(&served{share: many}, 0)
	}
	cost := func(tenant string) time.Duration { return map[string]time.Duration{"many": 30, "one": 10}[tenant] }
	if got := h.run(500, cost); got["many"] != 500*30 {
		t.Errorf("alone it got %d of %d", got["many"], 500*30)
	}
	h.want(&served{share: one}, many.had) // it has saved nothing up, and owes nothing
	if got := h.run(4000, cost); got["one"] < got["many"]-60 || got["one"] > got["many"]+60 {
		t.Errorf("parts of %d and %d", got["one"], got["many"])
	}
}

// Each of a tenant's connections gets a turn before any gets another one.
func TestTurnsGoRound(t *testing.T) {
	var h shareHeap
	x := &share{at: -1}
	var all []*served
	for range 5 {
		all = append(all, &served{share: x})
		h.want(all[len(all)-1], 0)
	}
	for i := range 20 {
		s := h[0].take()
		if s != all[i%5] {
			t.Fatalf("turn %d is another one's", i)
		}
		x.put(s)
		h.settle(x)
	}
	for range 5 {
		h[0].take()
	}
	if h.settle(x); len(h) != 0 || x.at != -1 {
		t.Error("a share without connections waits")
	}
}

// A connection that the poller lets go of goes on at once, though others keep the poller busy and there is no other processor.
func TestWhoLeavesTheBusyPollerGoesOn(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	p, err := NewPoller(NewLingers(0))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	busyPeer, busy := pair(t)
	peer, one := pair(t)
	var turns, left atomic.Int64
	go p.Serve(busy, "busy", func() Turn { turns.Add(1); return More })
	if _, err := unix.Write(busyPeer.fd, []byte{1}); err != nil {
		t.Fatal(err)
	}
	worst := int64(0)
	for range 5 {
		if _, err := unix.Write(peer.fd, []byte{1}); err != nil {
			t.Fatal(err)
		}
		if !p.Serve(one, "one", func() Turn { left.Store(turns.Load()); return Leave }) {
			t.Fatal("the poller is closed")
		}
		worst = max(worst, turns.Load()-left.Load())
	}
	if worst > 100 {
		t.Errorf("the busy connection had %d turns before the one that had left went on", worst)
	}
}
