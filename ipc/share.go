package ipc

import (
	"container/heap"
	"time"
)

// share is one tenant's part of a Poller's time: who has had least comes next, and among a tenant's connections each
// gets a turn before any gets another one. A tenant that had nothing to do has saved nothing up: it begins where the
// one stands that is being served. Of the poller's goroutine, but for what Poller.mu guards.
type share struct {
	tenant      string        // immutable
	connections int           // guarded by Poller.mu
	had         time.Duration // of the poller's time, and what it did not ask for
	at          int           // place in the heap; −1: nothing waits
	first, last *served       // whose turn it is
	latest      *served       // who had one last
	row         int           // turns of latest
}

// put has a connection wait for its turn.
func (x *share) put(s *served) {
	s.wants, s.next = true, nil
	if x.last == nil {
		x.first = s
	} else {
		x.last.next = s
	}
	x.last = s
}

// take gives the connection whose turn it is.
func (x *share) take() *served {
	s := x.first
	if x.first = s.next; x.first == nil {
		x.last = nil
	}
	s.wants, s.next = false, nil
	return s
}

// notice sees whether several of the tenant's connections are busy: s gets a turn now.
func (x *share) notice(s *served, now time.Time) {
	switch {
	case s.a == nil:
	case s != x.latest:
		x.latest, x.row = s, 0
		s.a.lingers.crowd(s.a.company, now)
	case s.a.company.lingering.Load() > 0:
		s.a.lingers.crowd(s.a.company, now)
	}
	x.row++
}

// shareHeap has the shares whose connections wait, the one that had least first.
type shareHeap []*share

func (h shareHeap) Len() int           { return len(h) }
func (h shareHeap) Less(i, j int) bool { return h[i].had < h[j].had }
func (h shareHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push implements heap.Interface.
func (h *shareHeap) Push(x any) {
	s := x.(*share)
	s.at = len(*h)
	*h = append(*h, s)
}

// Pop implements heap.Interface.
func (h *shareHeap) Pop() any {
	last := len(*h) - 1
	s := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	s.at = -1
	return s
}

// want has a connection wait for its turn. clock is what the share served last had had.
func (h *shareHeap) want(s *served, clock time.Duration) {
	s.share.put(s)
	if s.share.at < 0 {
		s.share.had = max(s.share.had, clock)
		heap.Push(h, s.share)
	}
}

// settle puts a share where it belongs after a turn.
func (h *shareHeap) settle(x *share) {
	if x.first == nil {
		heap.Remove(h, x.at)
	} else {
		heap.Fix(h, x.at)
	}
}

// moved puts a share where it belongs that has had more than before.
func (h *shareHeap) moved(x *share) {
	if x.at >= 0 {
		heap.Fix(h, x.at)
	}
}
