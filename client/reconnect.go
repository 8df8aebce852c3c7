package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"tendril/ipc/wire"
	"tendril/store/object"
)

// A connection that breaks comes back by itself with the next call, where it is one to this machine's daemon and has no session:
// to the daemon that took over (tendril daemon --takeover) with every reference, as that has the same memory; to one that was
// started after a crash without. Objects that are held stay readable in any case. What was under way when the connection broke
// answers ErrDisconnected, except for requests that alter nothing: they are repeated.

const (
	reconnectFor   = 5 * time.Second      // how long the first call tries
	firstPause     = 5 * time.Millisecond // between tries, doubled up to
	longestPause   = 400 * time.Millisecond
	firstPenalty   = time.Second // for how long calls fail at once after that, doubled up to
	longestPenalty = 30 * time.Second
)

// revival is what reconnecting needs. Guarded by Conn.reviveMu, except where said.
type revival struct {
	dial     func() (*Conn, error) // immutable; nil: this connection does not come back
	notUntil time.Time
	penalty  time.Duration
}

// generation counts the connections that this one has been. What belongs to one of them (a stream) ends with it.
func (c *Conn) generation() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gen
}

// broken reports whether the connection is to be revived before it is of use.
func (c *Conn) broken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil
}

// revive brings a broken connection back; nil where it lives. It waits with random pauses, for some seconds the first time; where
// that was in vain it answers at once for a while.
func (c *Conn) revive() error {
	c.reviveMu.Lock()
	defer c.reviveMu.Unlock()
	c.mu.Lock()
	err, ended := c.err, c.closed || c.session
	c.mu.Unlock()
	if err == nil || ended || c.revival.dial == nil || time.Now().Before(c.revival.notUntil) {
		return err
	}
	giveUp := time.Now().Add(reconnectFor)
	if c.revival.penalty > 0 {
		giveUp = time.Now() // it was in vain before: one try
	}
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		next, dialErr := c.revival.dial()
		if dialErr == nil {
			if dialErr = c.follow(next); dialErr == nil {
				c.revival.penalty, c.revival.notUntil = 0, time.Time{}
				return nil
			}
			next.Close()
		}
		if !time.Now().Before(giveUp) || c.isClosed() || errors.Is(dialErr, object.ErrPermission) || errors.Is(dialErr, object.ErrVersion) {
			c.revival.penalty = min(max(2*c.revival.penalty, firstPenalty), longestPenalty)
			c.revival.notUntil = time.Now().Add(c.revival.penalty)
			return fmt.Errorf("%w (and to connect again: %w)", err, dialErr)
		}
		time.Sleep(pause/2 + rand.N(pause)) // jittered: all clients of a daemon come back at once
	}
}

func (c *Conn) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// follow makes c the connection next, which is new and used by nobody else, with the references that the daemon gives again.
func (c *Conn) follow(next *Conn) error {
	c.mu.Lock()
	var list []*holding
	for h := c.holdings; h != nil; h = h.next {
		list = append(list, h)
	}
	c.mu.Unlock()
	again, err := next.claim(list)
	if err != nil {
		return err
	}
	c.turn <- struct{}{} // nobody reads
	c.sendMu.Lock()      // nor writes
	c.mu.Lock()
	defer func() {
		c.mu.Unlock()
		c.sendMu.Unlock()
		<-c.turn
	}()
	if c.closed {
		return c.err
	}
	c.link.Close()
	c.link, c.daemon, c.next, c.out = next.link, next.daemon, next.next, c.out[:0]
	c.err, c.unlinked, c.gen = nil, false, c.gen+1
	c.dropSpare()
	c.sortViews(list, again)
	return nil
}

// dropSpare forgets a buffer that the connection before had made ahead. mu is held.
func (c *Conn) dropSpare() {
	if k := c.spare.k; k != nil && k.finished && k.err == nil && k.view != nil {
		k.view.refs--
	}
	c.spare = spare{}
}

// sortViews keeps the views of segments that the daemon gave references in again; the others end with what still refers to them.
// What was released meanwhile is released again. mu and sendMu are held.
func (c *Conn) sortViews(list []*holding, again []bool) {
	alive := make(map[*view]bool)
	for i, h := range list {
		if !again[i] {
			continue
		}
		alive[h.view] = true
		if !h.held {
			c.release.ID = h.id
			c.out = appendOneWay(c.out, wire.Release, &c.release)
		}
	}
	c.idle = 0
	for id, v := range c.views {
		switch {
		case !alive[v]:
			delete(c.views, id)
			v.orphan = true
			if v.refs == 0 {
				v.drop()
			}
		case v.refs == 0:
			c.idle++
		}
	}
	c.setSweep()
}

// repeatable are the requests that alter nothing, or nothing that outlives the connection.
var repeatable = map[wire.Type]bool{
	wire.Get: true, wire.Create: true, wire.CreateWith: true, wire.List: true, wire.Stat: true, wire.Status: true, wire.Devices: true, wire.Sweep: true,
	wire.Published: true, wire.ListWhere: true, wire.AwaitMany: true, wire.Checksum: true, wire.ReadRange: true, wire.Top: true, wire.StreamList: true,
}

// worthRepeating reports whether a request that failed with err may go out once more, on a connection that lives.
func (c *Conn) worthRepeating(ctx context.Context, kind wire.Type, err error) bool {
	return errors.Is(err, ErrDisconnected) && repeatable[kind] && ctx.Err() == nil && c.revival.dial != nil && c.revive() == nil
}
