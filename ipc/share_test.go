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

// A connection that the poller lets go of goes on at once, though others keep the poller busy and there is no other
// processor.
func TestWhoLeavesTheBusyPollerGoesOn(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	p, err := NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	busyPeer, busy := pair(t)
	peer, one := pair(t)
	var turns, left atomic.Int64
	p.Serve(busy, "busy", func(time.Time) Turn { turns.Add(1); return More }, func() bool { return false })
	if _, err := unix.Write(busyPeer.fd, []byte{1}); err != nil {
		t.Fatal(err)
	}
	worst := int64(0)
	for range 200 { // one in 61 was late
		if _, err := unix.Write(peer.fd, []byte{1}); err != nil {
			t.Fatal(err)
		}
		goesOn := make(chan int64)
		goOn := func() bool {
			go func() { goesOn <- turns.Load() }()
			return false
		}
		if !p.Serve(one, "one", func(time.Time) Turn { left.Store(turns.Load()); return Leave }, goOn) {
			t.Fatal("the poller is closed")
		}
		worst = max(worst, <-goesOn-left.Load())
	}
	if worst > 100 {
		t.Errorf("the busy connection had %d turns before the one that had left went on", worst)
	}
}

// talker is a connection to a poller that takes in what comes and answers nothing.
type talker struct {
	t      *testing.T
	peer   *Dialed
	one    *Accepted
	served chan struct{} // something was taken in
	left   chan struct{} // the poller let go of it
}

func talk(t *testing.T, p *Poller, l *Lingers, tenant string) *talker {
	x := &talker{t: t, served: make(chan struct{}, 1), left: make(chan struct{}, 1)}
	x.peer, x.one = pair(t)
	x.one.lingers = l
	step := func(time.Time) Turn {
		if came, err := x.one.ReceiveNow(); err != nil || !came {
			return Served
		}
		x.one.in.start = x.one.in.end
		x.served <- struct{}{}
		return Served
	}
	if !p.Serve(x.one, tenant, step, func() bool { x.left <- struct{}{}; return false }) {
		t.Fatal("the poller is closed")
	}
	return x
}

// asks sends something and waits until it was taken in; false: the poller has let go of the connection.
func (x *talker) asks() bool {
	if _, err := unix.Write(x.peer.fd, []byte{1}); err != nil {
		x.t.Fatal(err)
	}
	select {
	case <-x.left: // after the request before, perhaps
		return false
	case <-x.served:
		return true
	}
}

// A connection that is its tenant's only busy one gets a thread of its own, though other tenants keep the poller busy;
// several of one tenant get none.
func TestOtherTenantsAreNoCrowd(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	l := NewLingers(1)
	p, err := NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for range 2 {
		peer, busy := pair(t)
		busy.lingers = l
		p.Serve(busy, "busy", func(time.Time) Turn { return More }, func() bool { return true })
		if _, err := unix.Write(peer.fd, []byte{1}); err != nil {
			t.Fatal(err)
		}
	}
	several := [2]*talker{talk(t, p, l, "several"), talk(t, p, l, "several")}
	for range 4 * aloneFor {
		if !several[0].asks() || !several[1].asks() {
			t.Fatal("one of several busy connections of a tenant was to linger")
		}
	}
	one, n := talk(t, p, l, "one"), 0
	for ; one.asks(); n++ {
		if n > 4*aloneFor {
			t.Fatalf("the tenant's only connection was not to linger after %d requests", n)
		}
	}
	one.one.Close()
	handedOn := talk(t, p, l, "handed on")
	p.Close()
	if err := handedOn.one.HandOn(func(int) error { return nil }); err != nil {
		t.Error(err)
	}
	for _, tenant := range []string{"one", "handed on"} {
		if l.companies[tenant] != nil {
			t.Errorf("%s: a tenant without connections is kept", tenant)
		}
	}
}

// The poller looks seldom while it has one tenant's connections, and often from when another one's comes until it goes.
func TestHowOftenThePollerLooks(t *testing.T) {
	p, err := NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	l := NewLingers(0)
	slice := func(want time.Duration) {
		t.Helper()
		p.mu.Lock() // who left was dropped under it
		defer p.mu.Unlock()
		if got := time.Duration(p.slice.Load()); got != want {
			t.Errorf("between two looks it serves for %v, want %v", got, want)
		}
	}
	talk(t, p, l, "one")
	talk(t, p, l, "one")
	slice(pollerAlone)
	peer, other := pair(t)
	left := make(chan struct{})
	p.Serve(other, "other", func(time.Time) Turn { return Leave }, func() bool { close(left); return false })
	slice(pollerSlice)
	if _, err := unix.Write(peer.fd, []byte{1}); err != nil {
		t.Fatal(err)
	}
	<-left
	slice(pollerAlone)
}
