package frontdoor

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"tendril/ipc"
	"tendril/store"
	"tendril/store/object"
)

// A local connection's requests are read and answered by the Server's poller as long as they wait for nothing
// (row.atOnce, acts); one that may wait is left to the connection's own goroutine, and with it the connection until
// that has nothing to do.

// unsent is part of what the peer did not take at once. The descriptors are owned.
type unsent struct {
	bytes []byte
	fds   []int
}

var errFault = fmt.Errorf("%w: a fault of the daemon", object.ErrInternal)

// next gives the next request: out of what the poller left or took in, or received by lingering on this thread. polled:
// the poller has the connection now.
func (c *connection) next() (polled bool, err error) {
	local, is := c.link.(*ipc.Accepted)
	if !is {
		c.frame, err = c.link.Receive()
		return false, err
	}
	if c.leftOver {
		c.leftOver = false
		return false, nil
	}
	if !local.Whole() && !local.Large() {
		came, err := local.Linger()
		if err == nil && !came && c.srv.poller.Serve(local, c.peer.Tenant, c.step, c.left) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
	c.frame, err = local.Receive()
	return false, err
}

// turnRequests is how many requests a connection has served in one turn of the poller's, if they take no longer than
// turnMost.
const (
	turnRequests = 16
	turnMost     = 10 * time.Microsecond
)

// step serves some of what came, on the poller's goroutine, or leaves the connection to its own.
func (c *connection) step(began time.Time) (turn ipc.Turn) {
	c.fault = nil
	if !c.mu.TryLock() { // whoever has it may wait for the peer
		return ipc.Leave
	}
	c.polled = true // from here on nobody does, under mu
	c.mu.Unlock()
	c.fault = errFault
	func() {
		defer c.survive()
		turn, c.fault = c.serveAtOnce(c.link.(*ipc.Accepted), began)
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.polled = false
	if c.fault != nil || len(c.unsent) > 0 {
		return ipc.Leave
	}
	return turn
}

// serveAtOnce acts on whole requests, as many as a turn is for, up to one that may wait, or that ends the connection.
// now is when the turn began.
func (c *connection) serveAtOnce(local *ipc.Accepted, now time.Time) (turn ipc.Turn, err error) {
	turn = ipc.More // something may have come since the last receive, unless this turn had one
	if !c.framed {
		frame, known, err := local.BeginsWithFrame()
		switch {
		case !known || err != nil:
			return ipc.Served, err
		case !frame:
			return ipc.Leave, nil // dataConnection reads the rest
		}
		c.framed, turn = true, ipc.Served
	}
	if !local.Whole() {
		if came, err := local.ReceiveNow(); !came || err != nil {
			return ipc.Served, err
		}
		turn = ipc.Served
	}
	var began time.Time
	for n := 0; local.Whole(); n++ {
		switch n {
		case 0:
		case 1: // most turns are one request
			began = now
		default:
			if n == turnRequests || now.Sub(began) > turnMost {
				return ipc.More, nil
			}
		}
		if c.frame, err = local.Receive(); err != nil {
			return ipc.Leave, err
		}
		if !c.isAtOnce() {
			c.leftOver = true
			return ipc.Leave, nil
		}
		if now, err = c.act(&c.frame, now); err != nil {
			return ipc.Leave, err
		}
		if c.leftOver || !c.allSent() {
			return ipc.Leave, nil
		}
	}
	switch {
	case local.Large():
		turn = ipc.Leave
	case !local.Drained():
		turn = ipc.More
	}
	return turn, c.flushIfIdle()
}

// allSent sends a large batch early; it reports whether the peer takes what it is sent.
func (c *connection) allSent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return (len(c.out) < flushBytes || c.flush() == nil) && len(c.unsent) == 0
}

// isAtOnce reports whether the request at hand waits for nothing. What comes before Hello is refused, or is it.
func (c *connection) isAtOnce() bool {
	if c.store == nil {
		return true
	}
	row, _ := c.srv.row(c.frame.Type)
	return row.atOnce != nil && row.atOnce(c, &c.frame)
}

// send sends; on the poller it keeps what the peer does not take. mu is held.
func (c *connection) send(b []byte, fds []int) error {
	if !c.polled {
		if err := c.sendUnsent(); err != nil {
			return err
		}
		return c.sendCharged(b, fds)
	}
	n := 0
	if len(c.unsent) == 0 {
		var err error
		if n, err = c.link.(*ipc.Accepted).SendNow(b, fds); err != nil || n == len(b) {
			return err
		}
	}
	rest := unsent{bytes: append([]byte(nil), b[n:]...)}
	for _, fd := range fds {
		if n > 0 {
			break // they went with the first byte
		}
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			rest.close()
			return fmt.Errorf("dup of a descriptor on its way: %w", err)
		}
		rest.fds = append(rest.fds, own)
	}
	c.unsent = append(c.unsent, rest)
	c.store.ChargeUnread(uint64(len(rest.bytes)))
	return nil
}

// sendUnsent sends what the peer did not take at once, and waits for it. mu is held.
func (c *connection) sendUnsent() (err error) {
	for _, part := range c.unsent {
		if err == nil {
			err = c.link.Send(part.bytes, part.fds)
		}
		part.close()
		c.store.UnchargeRequest(uint64(len(part.bytes)))
	}
	c.unsent = nil
	return err
}

func (u *unsent) close() {
	for _, fd := range u.fds {
		unix.Close(fd)
	}
}

// always is for requests that never wait.
func always(*connection, *ipc.Frame) bool { return true }

// acting is the store as the request at hand may use it.
type acting interface {
	Create(spec store.Spec) (store.Handle, error)
	Put(spec store.Spec, replace bool, data []byte) (store.Handle, error)
	Seal(id object.ID, strict bool) error
	SealWith(id object.ID, meta []byte) error
	Push(stream uint64, id object.ID, wait time.Duration, wake func(*store.Waiter)) (*store.Waiter, error)
	Release(id object.ID) error
	Delete(id object.ID, name string) error
	Abort(id object.ID) error
}

// acts gives the store to act on: on the poller one that waits for nothing. What would wait, store.ErrWouldWait, is
// left to the connection's own goroutine.
func (c *connection) acts() acting {
	if c.polled {
		return c.store.AtOnce()
	}
	return c.store
}
