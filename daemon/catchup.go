package daemon

import (
	"sync"
	"time"

	"tendril/daemon/frontdoor"
)

// catchUpTime is how long one question may take before the cluster counts as not answering. Who shares the next one
// waits for two of them at most.
const catchUpTime = time.Second

// catchUps are a membership's questions how far its cluster is. One is under way at most: who asks meanwhile shares the
// next one, for the answer to the first may be from before. The lock is a leaf.
type catchUps struct {
	ask   func() error               // immutable: waits until the node knows what the cluster knew at the call
	heard func(since time.Time) bool // immutable: whether the node leads, or has heard from who does

	running sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	now, next *frontdoor.CatchUp // nil: none is under way, or nobody waits for another one
	failed    error              // of the last one; nil: it was answered
	failedAt  time.Time
}

// join begins a question, or joins one that has not begun. Where the last one had no answer, and the node has heard
// from no leader since, nobody is asked: it is over at once, with the same error.
func (x *catchUps) join() *frontdoor.CatchUp {
	if at, err := x.failure(); err != nil && !x.heard(at) {
		return over(err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.closed:
		return over(frontdoor.ErrUnanswered)
	case x.now == nil:
		first := newCatchUp()
		x.now = first
		x.running.Go(func() { x.run(first) })
		return first
	case x.next == nil:
		x.next = newCatchUp()
	}
	return x.next
}

// failure gives when the last question ended, and why it had no answer; nil: it had one.
func (x *catchUps) failure() (time.Time, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.failedAt, x.failed
}

func newCatchUp() *frontdoor.CatchUp { return &frontdoor.CatchUp{Done: make(chan struct{})} }

// over is a question whose answer is known.
func over(err error) *frontdoor.CatchUp {
	q := newCatchUp()
	q.Err = err
	close(q.Done)
	return q
}

// run asks until nobody waits for an answer. Where a question had none, and the node has not heard from a leader either
// since it was asked, the next one is over with it: who waits for that has waited for this one.
func (x *catchUps) run(q *frontdoor.CatchUp) {
	for q != nil {
		began := time.Now()
		q.Err = x.ask()
		silent := q.Err != nil && !x.heard(began)
		x.mu.Lock()
		x.failed, x.failedAt = q.Err, time.Now()
		over := []*frontdoor.CatchUp{q}
		if q = x.next; q != nil && silent {
			q.Err = x.failed
			over, q = append(over, q), nil
		}
		x.now, x.next = q, nil
		x.mu.Unlock()
		for _, o := range over {
			close(o.Done)
		}
	}
}

// close has nobody ask any more. Whoever asks is answered soon: the membership has ended.
func (x *catchUps) close() {
	x.mu.Lock()
	x.closed = true
	x.mu.Unlock()
	x.running.Wait()
}
