package frontdoor

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// A local connection's requests are read and answered by the Server's poller as long as they wait for nothing (row.atOnce); one that may
// wait is left to the connection's own goroutine, and with it the connection until that has nothing to do.

// unsent is part of what the peer did not take at once. The descriptors are owned.
type unsent struct {
	bytes []byte
	fds   []int
}

var errFault = fmt.Errorf("%w: a fault of the daemon", object.ErrInternal)

// next gives the next request: out of what the poller left or took in, or received by lingering on this thread. none: the poller
// had the connection meanwhile, and there may be something to send first.
func (c *connection) next() (none bool, err error) {
	local, is := c.link.(*ipc.Accepted)
	if !is || c.store == nil || c.srv.poller == nil {
		c.frame, err = c.link.Receive()
		return false, err
	}
	if c.leftOver {
		c.leftOver = false
		return false, nil
	}
	if !local.Whole() && !local.Large() {
		came, err := local.Linger()
		if err == nil && !came && c.srv.poller.Serve(local, c.peer.Tenant, c.step) {
			return true, c.fault
		}
		if err != nil {
			return false, err
		}
	}
	c.frame, err = local.Receive()
	return false, err
}

// turnRequests is how many requests a connection has served in one turn of the poller's, if they take no longer than turnMost.
const (
	turnRequests = 16
	turnMost     = 20 * time.Microsecond
)

// step serves some of what came, on the poller's goroutine, or leaves the connection to its own.
func (c *connection) step() (turn ipc.Turn) {
	c.fault = nil
	if !c.mu.TryLock() { // whoever has it may wait for the peer
		return ipc.Leave
	}
	c.polled = true // from here on nobody does, under mu
	c.mu.Unlock()
	c.fault = errFault
	func() {
		defer c.survive()
		turn, c.fault = c.serveAtOnce(c.link.(*ipc.Accepted))
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
func (c *connection) serveAtOnce(local *ipc.Accepted) (turn ipc.Turn, err error) {
	if !local.Whole() {
		if came, err := local.ReceiveNow(); !came || err != nil {
			return ipc.Served, err
		}
	}
	var began time.Time
	for n := 0; local.Whole(); n++ {
		switch n {
		case 0:
		case 1: // most turns are one request
			began = time.Now()
		default:
			if n == turnRequests || time.Since(began) > turnMost {
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
		if err := c.act(&c.frame); err != nil {
			return ipc.Leave, err
		}
		if !c.allSent() {
			return ipc.Leave, nil
		}
	}
	if local.Large() {
		return ipc.Leave, c.flushIfIdle()
	}
	return ipc.Served, c.flushIfIdle()
}

// allSent sends a large batch early; it reports whether the peer takes what it is sent.
func (c *connection) allSent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return (len(c.out) < flushBytes || c.flush() == nil) && len(c.unsent) == 0
}

// isAtOnce reports whether the request at hand waits for nothing.
func (c *connection) isAtOnce() bool {
	at := rows[c.frame.Type].atOnce
	return at != nil && at(c, &c.frame)
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

func createsAtOnce(c *connection, f *ipc.Frame) bool {
	var m wire.CreateRequest
	return m.Decode(f.Payload) == nil && m.Flags == 0 && c.store.FitsAtOnce(m.SizeBytes)
}

func sealsAtOnce(c *connection, f *ipc.Frame) bool {
	var m wire.SealRequest
	return m.Decode(f.Payload) == nil && !m.Strict && c.store.AtOnce(m.ID)
}

func releasesAtOnce(c *connection, f *ipc.Frame) bool {
	var m wire.IDMessage
	return m.Decode(f.Payload) == nil && c.store.ReleasesAtOnce(m.ID)
}

func deletesAtOnce(c *connection, f *ipc.Frame) bool {
	var m wire.NameMessage
	return m.Decode(f.Payload) == nil && c.store.AtOnce(m.ID)
}

func pushesAtOnce(c *connection, f *ipc.Frame) bool {
	var m wire.StreamPushRequest
	return m.Decode(f.Payload) == nil && c.store.AtOnce(m.ID)
}
