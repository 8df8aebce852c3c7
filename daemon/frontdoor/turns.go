package frontdoor

import (
	"container/list"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// pageLine is whose turn the page is that is being made, beside those of tenants: it waits behind none of its tenant's
// other requests, for other tenants' pages wait behind it.
const pageLine = "\x00page"

// PageTurn is a turn for a page of a listing, also of inspection's, which comes by another door. It waits for it; the
// caller calls over at its end. One page is made at a time, however long that takes: it waits for no disk and no peer.
// If the next one were begun beside it after a while, on a busy machine hundreds would be under way. While others work
// the next one waits a while, now and then: whoever asks without end would have a processor for good.
func (s *Server) PageTurn(tenant string) (over func()) {
	alone := s.pages.wait(tenant)
	beside := s.turns.take(pageLine)
	began := time.Now()
	return func() {
		took := time.Since(began)
		beside()
		if s.pace.Tires(began, took, s.othersWork(tenant)) {
			s.afterRest(alone)
			return
		}
		alone()
	}
}

// turns lets few connections' goroutines work at a time, so that the poller finds a processor when a request comes:
// behind a thousand goroutines that all have something to do it would wait for each. Tenants take turns. Who takes
// long, for a disk or a peer perhaps, keeps nobody waiting for it: after turnTime the next one goes on beside it. The
// lock is a leaf.
type turns struct {
	mu      sync.Mutex
	free    int
	waiting map[string]*list.Element // by tenant, in order
	order   list.List                // of *turnQueue, whose turn is next first
}

// turnQueue is who waits of one tenant.
type turnQueue struct {
	tenant string
	first  []chan struct{}
}

// newTurns leaves a processor to the poller.
func newTurns() *turns {
	return &turns{free: max(1, runtime.GOMAXPROCS(0)-1), waiting: make(map[string]*list.Element)}
}

// take waits for a turn of a tenant's. The caller calls over at its end; a second call does nothing.
func (t *turns) take(tenant string) (over func()) {
	over, _ = t.begin(tenant)
	return over
}

// begin is take; handOn, instead of over, is for who goes to wait for something else at once, and need not give way.
func (t *turns) begin(tenant string) (over, handOn func()) {
	pass := t.wait(tenant)
	patience := time.AfterFunc(turnTime, pass)
	gives := true
	over = sync.OnceFunc(func() {
		if patience.Stop(); gives {
			giveWay() // a goroutine that is handed the turn runs before all that were ready earlier
		}
		pass()
	})
	return over, func() { gives = false; over() }
}

// wait is take without the patience of the others: they wait until pass is called.
func (t *turns) wait(tenant string) (pass func()) {
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
	} else {
		mine := t.line(tenant)
		t.mu.Unlock()
		<-mine
	}
	return sync.OnceFunc(t.pass)
}

// giveWay has others run that are ready, goroutines and threads: who loses the processor here loses it less often with
// a lock, for which all others would wait.
func giveWay() {
	unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) // cannot fail
	runtime.Gosched()
}

// line joins a tenant's queue. mu is held.
func (t *turns) line(tenant string) chan struct{} {
	mine := make(chan struct{})
	at := t.waiting[tenant]
	if at == nil {
		at = t.order.PushBack(&turnQueue{tenant: tenant})
		t.waiting[tenant] = at
	}
	q := at.Value.(*turnQueue)
	q.first = append(q.first, mine)
	return mine
}

// pass gives a turn to the next tenant that waits.
func (t *turns) pass() {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.order.Front()
	if at == nil {
		t.free++
		return
	}
	q := at.Value.(*turnQueue)
	close(q.first[0])
	q.first[0] = nil
	if q.first = q.first[1:]; len(q.first) == 0 {
		t.order.Remove(at)
		delete(t.waiting, q.tenant)
		return
	}
	t.order.MoveToBack(at)
}
