package frontdoor

import (
	"errors"
	"fmt"
	"time"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

// A node serves before it has entered its cluster: until then what it knows of published objects is from before its
// start, or nothing. A request that needs more than the store has waits for the entry, but not for long, for the other
// nodes may not be there. Then it is answered by what is known, and says so where that is nothing.

// entryTimes is for how many EntryTimes after the start requests wait at all: a node that is cut off answers at once.
const entryTimes = 5

// NotEntered is what is missing until the node has entered.
const NotEntered = "this node was started and has not reached its cluster yet, so it does not know what is published: " +
	"try again; tendril cluster status shows which nodes answer"

// hasEntered reports whether the node knows what its cluster knows. One without a cluster does.
func (s *Server) hasEntered() bool {
	if s.opts.Cluster == nil {
		return true
	}
	select {
	case <-s.opts.Cluster.Entered():
		return true
	default:
		return false
	}
}

// isEntering reports whether it is worth waiting for the entry.
func (s *Server) isEntering() bool { return !s.hasEntered() && time.Now().Before(s.entryBy) }

// awaitEntry waits for the entry where that is worth it, at most as long. mu is not held.
func (c *connection) awaitEntry(most time.Duration) {
	if !c.srv.isEntering() {
		return
	}
	patience := time.NewTimer(min(most, c.srv.opts.EntryTime))
	defer patience.Stop()
	select {
	case <-c.srv.opts.Cluster.Entered():
	case <-patience.C:
	case <-c.ctx.Done():
	case <-c.srv.ended:
	}
}

// mustEnter waits for the entry, and says what is missing without it. mu is not held.
func (c *connection) mustEnter() error {
	c.awaitEntry(c.srv.opts.EntryTime)
	if c.srv.hasEntered() {
		return nil
	}
	return fmt.Errorf("%w: %s", object.ErrTimeout, NotEntered)
}

// unsure adds to an object that was not found that it may be published all the same.
func (c *connection) unsure(err error) error {
	if !errors.Is(err, object.ErrNotFound) || c.srv.hasEntered() {
		return err
	}
	return fmt.Errorf("%w (%s)", err, NotEntered)
}

// onceEntered runs a request in a goroutine of its own, after the entry. do runs under mu. mu is held.
func (c *connection) onceEntered(most time.Duration, do func()) error {
	return c.later(store.WaitBytes, func() {
		c.awaitEntry(most)
		c.mu.Lock()
		defer c.mu.Unlock()
		do()
		c.flush() // a failure is met by serve
	})
}

// getEntered is getOrWait after the entry. mu is held.
func (c *connection) getEntered(h ipc.Header, m wire.GetRequest, give give) error {
	began, most := time.Now(), c.srv.opts.EntryTime
	if m.WaitMS > 0 {
		most = time.Duration(m.WaitMS) * time.Millisecond
	}
	return c.onceEntered(most, func() {
		c.getOn(h, m, began, func(f *ipc.Frame, m wire.GetRequest) error { return c.giveOrWait(f, m, give) })
	})
}

// getOn goes on with a Get that has waited since it began. mu is held.
func (c *connection) getOn(h ipc.Header, m wire.GetRequest, began time.Time,
	get func(*ipc.Frame, wire.GetRequest) error) {
	err := errEnded
	if c.ctx.Err() == nil { // else what it would hold is given up already
		if waited := time.Since(began); m.WaitMS > 0 {
			m.WaitMS = max(1, m.WaitMS-uint32(min(waited.Milliseconds(), int64(m.WaitMS))))
		}
		err = get(&ipc.Frame{Header: h}, m)
	}
	if err != nil {
		c.out = errorFrame(c.out, c.version, h.Request, err)
	}
}

// What another node has just published this node may not know of yet: a follower learns with a delay what its cluster
// has agreed on. So nobody is told that something is not there before this node has asked its cluster. Who asked for it
// waits meanwhile, in a goroutine of its own, charged and counted as a Get that waits. What is found is answered at
// once, and a node that is alone asks nobody.

// ErrUnanswered says why what was not found may be published all the same.
var ErrUnanswered = errors.New("this node's cluster did not answer, so it does not know what is published elsewhere: " +
	"try again; tendril cluster status shows which nodes answer")

// missed begins to ask the cluster about what was not found, if that is what err says. nil: there is nothing to ask, or
// the node has not entered its cluster yet, which is said as well.
func (s *Server) missed(err error) *CatchUp {
	if !errors.Is(err, object.ErrNotFound) || s.opts.Cluster == nil || !s.hasEntered() {
		return nil
	}
	return s.opts.Cluster.CatchUp()
}

// awaitCluster waits for the cluster's word, and says why it is not there: each question ends soon. mu is not held.
func (c *connection) awaitCluster(q *CatchUp) error {
	select {
	case <-q.Done:
		return q.Err
	case <-c.ctx.Done():
	case <-c.srv.ended:
	}
	return errEnded
}

// LessSure adds to an object that was not found why it may be there all the same.
func LessSure(err, unsure error) error {
	if unsure == nil || !errors.Is(err, object.ErrNotFound) {
		return err
	}
	return fmt.Errorf("%w (%v)", err, unsure)
}

// onceCaughtUp runs a request in a goroutine of its own, once the cluster has answered, or does not. Where as many
// requests as may are waiting, the one at hand waits here, and nothing more is read meanwhile: a client that asks ahead
// is not refused. do runs under mu. mu is held, and may be let go meanwhile.
func (c *connection) onceCaughtUp(f *ipc.Frame, q *CatchUp, do func(unsure error)) error {
	if f == &c.frame && c.waiting.Load() >= maxWaits {
		return c.caughtUpHere(q, do)
	}
	return c.later(store.WaitBytes, func() {
		unsure := c.awaitCluster(q)
		c.mu.Lock()
		defer c.mu.Unlock()
		do(unsure)
		c.flush() // a failure is met by serve
	})
}

// caughtUpHere is onceCaughtUp for the request at hand, on serve's goroutine. mu is held, and let go meanwhile.
func (c *connection) caughtUpHere(q *CatchUp, do func(unsure error)) error {
	if c.polled {
		return store.ErrWouldWait // nothing was done
	}
	if c.flush() != nil {
		return nil // loop meets sendErr at its next flush
	}
	c.mu.Unlock()
	unsure := c.awaitCluster(q)
	c.mu.Lock()
	do(unsure)
	return nil
}

// getCaughtUp goes on with a Get that found nothing. mu is held.
func (c *connection) getCaughtUp(f *ipc.Frame, m wire.GetRequest, give give, q *CatchUp) error {
	h, began := f.Header, time.Now()
	return c.onceCaughtUp(f, q, func(unsure error) {
		c.getOn(h, m, began, func(f *ipc.Frame, m wire.GetRequest) error {
			m, err := c.lookElsewhere(f, m, give, give(c, f, m.ID, m.Name))
			return c.orWait(f, m, give, LessSure(err, unsure))
		})
	})
}
