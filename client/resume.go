package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tendril/ipc/wire"
	"tendril/store/object"
)

// kept is what it takes to come back to a session. The secret stands in no message and no log.
type kept struct {
	session  uint64
	secret   [32]byte
	patience time.Duration
}

// KeepSession makes the session of a connection to another machine's daemon outlive it: a call that finds the connection broken connects again, for
// up to limit, and goes on with the same session. It returns how long the daemon keeps it then, which may be less; 0: not at all. It is
// asked for once, after OpenSession.
func (c *Conn) KeepSession(limit time.Duration) (time.Duration, error) {
	c.mu.Lock()
	able := c.remote && c.redial != nil
	c.mu.Unlock()
	if !able {
		return 0, nil
	}
	millis := uint32(min(max(limit, 0)/time.Millisecond, 1<<31))
	k, err := c.roundTrip(context.Background(), wire.KeepSession, &wire.KeepSessionRequest{Millis: millis})
	if err != nil {
		return 0, err
	}
	defer k.recycle()
	var m wire.KeepSessionReply
	if err := m.Decode(k.payload); err != nil {
		return 0, err
	}
	if m.Millis > 0 {
		c.mu.Lock()
		c.kept = &kept{c.sessionID, m.Secret, limit}
		c.background.Add(1)
		c.mu.Unlock()
		go c.guard()
	}
	return time.Duration(m.Millis) * time.Millisecond, nil
}

// guard brings the connection back as soon as it breaks: the daemon does not wait for long where it was closed, and a session may call
// nobody for hours. It ends with the connection.
func (c *Conn) guard() {
	defer c.background.Done()
	for {
		c.sendMu.Lock()
		l := c.link
		c.sendMu.Unlock()
		r, ok := l.(interface{ AwaitEnd() error })
		if !ok || c.isFinal() || r.AwaitEnd() != nil {
			return
		}
		c.sendMu.Lock()
		if c.link == l { // nobody else has found out and come back
			c.fail(c.disconnected(errEnded))
		}
		c.sendMu.Unlock()
		if c.revive(context.Background()) != nil {
			return
		}
	}
}

var errEnded = errors.New("the connection was ended")

// LeaveSession tells the daemon that the session ends with this connection, which is closed soon.
func (c *Conn) LeaveSession() {
	if c.keptSession() != nil {
		c.post(0, wire.LeaveSession, nil)
		c.flushOut()
	}
}

// ResumeWorker gives tickets for new connections to a worker of OpenRemoteWorker, one for each of the lanes (ascending), in the place of those that
// were lost. Errors: object.ErrNoDevice, with its fate, for a worker that has ended; ErrNotFound.
func (c *Conn) ResumeWorker(worker uint64, lanes []int) ([][32]byte, error) {
	m := &wire.ResumeWorkerRequest{Worker: worker}
	for _, lane := range lanes {
		m.Lanes |= 1 << lane
	}
	k, err := c.roundTrip(context.Background(), wire.ResumeWorker, m)
	if err != nil {
		return nil, err
	}
	defer k.recycle()
	var reply wire.ResumeWorkerReply
	if err := reply.Decode(k.payload); err != nil {
		return nil, err
	}
	if len(reply.Tickets) != len(lanes) {
		return nil, fmt.Errorf("%w: %d tickets for %d lanes", object.ErrProtocol, len(reply.Tickets), len(lanes))
	}
	return reply.Tickets, nil
}

func (c *Conn) keptSession() *kept {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kept
}

// dialer is how the connection comes back; nil: it does not.
func (c *Conn) dialer() func() (*Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept != nil {
		return c.redial
	}
	return c.revival.dial
}

// takeSession makes this new connection the session's.
func (c *Conn) takeSession(k *kept) error {
	return c.simple(wire.ResumeSession, &wire.ResumeSessionRequest{Session: k.session, Secret: k.secret})
}
