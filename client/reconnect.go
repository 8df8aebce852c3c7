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

// A connection that breaks comes back by itself with the next call, where it is one to this machine's daemon and has no
// session: (one that is kept comes back to its server: session.Keep) to the daemon that took over (tendril daemon
// --takeover) with every reference, as that has the same memory; to one that was started after a crash with those to
// objects that are on disk. Objects that are held stay readable in any case. What was under way when the connection
// broke answers ErrDisconnected, except for requests that alter nothing: they are repeated.
//
// Each connection that a Conn has been is a life of it, counted by gen. What belongs to one (an unsealed buffer, an
// open stream) ends with it: a call that names its life is refused in another.

const (
	reconnectFor   = 5 * time.Second      // how long the first call tries
	firstPause     = 5 * time.Millisecond // between tries, doubled up to
	longestPause   = 400 * time.Millisecond
	firstPenalty   = time.Second // for how long calls fail at once after that, doubled up to
	longestPenalty = 30 * time.Second
)

// revival is what reconnecting needs. Guarded by turn, except where said.
type revival struct {
	dial     func(context.Context) (*Conn, error) // immutable; nil: this connection does not come back
	turn     chan struct{}                        // capacity 1; who has put its token in reconnects. Before all locks
	notUntil time.Time
	penalty  time.Duration
}

// revive brings a broken connection back; nil where it lives. It waits with random pauses, for some seconds the first
// time; where that was in vain it answers at once for a while.
func (c *Conn) revive(ctx context.Context) error {
	if c.dialer() == nil {
		return c.broken()
	}
	select {
	case c.revival.turn <- struct{}{}:
		defer func() { <-c.revival.turn }()
	case <-ctx.Done():
		return fmt.Errorf("connecting again: %w", ctx.Err())
	}
	err := c.broken()
	if err == nil || c.isFinal() || time.Now().Before(c.revival.notUntil) {
		return err
	}
	giveUp := time.Now().Add(reconnectFor)
	if k := c.keptSession(); k != nil {
		giveUp = time.Now().Add(k.patience)
	}
	if c.revival.penalty > 0 {
		giveUp = time.Now() // it was in vain before: one try
	}
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		dialErr := c.comeBack(ctx)
		if dialErr == nil {
			c.revival.penalty, c.revival.notUntil = 0, time.Time{}
			return nil
		}
		if given := ended(ctx); given != nil {
			return fmt.Errorf("connecting again: %w", given)
		}
		if c.isFinal() { // what later calls are told, too
			return c.broken()
		}
		if !time.Now().Before(giveUp) || errors.Is(dialErr, object.ErrPermission) ||
			errors.Is(dialErr, object.ErrVersion) {
			c.revival.penalty = min(max(2*c.revival.penalty, firstPenalty), longestPenalty)
			c.revival.notUntil = time.Now().Add(c.revival.penalty)
			return fmt.Errorf("%w (and connecting again failed: %w)", err, dialErr)
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)): // jittered: all clients of a daemon come back at once
		case <-ctx.Done():
			return fmt.Errorf("connecting again: %w", ctx.Err())
		}
	}
}

// comeBack is one try.
func (c *Conn) comeBack(ctx context.Context) error {
	dial := c.dialer()
	next, err := dial(ctx)
	if err != nil {
		return err
	}
	if k := c.keptSession(); k != nil {
		err = next.takeSession(ctx, k)
		c.endSession(err)
	}
	if err == nil {
		err = c.follow(ctx, next)
	}
	if err != nil {
		next.Close()
	}
	return err
}

// endSession notes that there is no session to come back to, which later calls learn too, where err, from takeSession,
// says so.
func (c *Conn) endSession(err error) {
	told := errors.Is(err, object.ErrAborted)
	if !told && !errors.Is(err, object.ErrPermission) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept = nil
	switch {
	case c.err == nil:
	case told: // the last message of the daemon's, which the connection before may have lost
		c.err = &EndedError{c.socket, err}
	default:
		c.err = fmt.Errorf("%w, and its session is over: %w", c.err, err)
	}
}

// broken says why the connection is of no use; nil: it lives.
func (c *Conn) broken() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// isFinal reports whether a broken connection stays so.
func (c *Conn) isFinal() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed || c.session && c.kept == nil
}

// noReturn ends reconnecting: what is about to be opened does not outlive the connection.
func (c *Conn) noReturn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session = true
}

// follow makes c the connection next, which is new and used by nobody else, with the references that the daemon gives
// again. After an error next is to be closed.
func (c *Conn) follow(ctx context.Context, next *Conn) error {
	c.mu.Lock()
	c.rescueHeld()
	list, claims := c.claims(next.daemon.Incarnation == c.daemon.Incarnation)
	c.mu.Unlock()
	verdicts, err := next.claim(ctx, claims)
	if err != nil {
		return err
	}
	c.turn <- struct{}{} // nobody reads
	c.sendMu.Lock()      // nor writes
	c.mu.Lock()
	var unused []*view
	defer func() {
		c.mu.Unlock()
		c.sendMu.Unlock()
		<-c.turn
		for _, v := range unused {
			v.drop()
		}
	}()
	if c.closed {
		return c.err
	}
	c.link.Close()
	c.link, c.daemon, c.speaks, c.next, c.out = next.link, next.daemon, next.speaks, next.next, c.out[:0]
	c.sent, c.full = 0, false
	c.err, c.unlinked, c.gen = nil, false, c.gen+1
	c.dropSpare()
	c.closeIndex()
	unused = c.sort(list, verdicts)
	c.setSweep()
	if len(c.out) > 0 {
		c.setFlush()
	}
	return nil
}

// dropSpare forgets a buffer that the connection before had made ahead. mu is held.
func (c *Conn) dropSpare() {
	if k := c.spare.k; k != nil && k.finished && k.err == nil && k.view != nil {
		k.view.refs--
	}
	c.spare = spare{}
}

// sort keeps the views of segments that the daemon gave references in again; the others end with what still refers to
// them, and those that nothing refers to are returned, to be unmapped. What was released meanwhile is released again.
// mu and sendMu are held.
func (c *Conn) sort(list []*Object, verdicts []wire.Verdict) (unused []*view) {
	alive := make(map[*view]bool)
	for i, o := range list {
		v := verdicts[i]
		o.pushed = nil // into a stream of the life before; the reference is a new one
		if v == wire.Held && o.view != nil {
			alive[o.view] = true
		}
		switch {
		case v == wire.Gone:
			o.gone.Store(true)
			c.unlist(o)
		case !c.listed(o): // its Release found the connection broken
			c.release.ID = o.id
			c.out = appendOneWay(c.out, wire.Release, &c.release)
		}
	}
	c.idle = 0
	for id, v := range c.views {
		switch {
		case !alive[v]:
			delete(c.views, id)
			v.orphan = true
			if !v.used() {
				unused = append(unused, v)
			}
		case v.refs == 0:
			c.idle++
		}
	}
	return unused
}

// repeatable are the requests that alter nothing, or nothing that outlives the connection.
var repeatable = map[wire.Type]bool{
	wire.Get: true, wire.Create: true, wire.CreateWith: true, wire.List: true, wire.Stat: true, wire.Status: true,
	wire.Devices:   true,
	wire.Published: true, wire.ListWhere: true, wire.AwaitMany: true, wire.Checksum: true, wire.ReadRange: true,
	wire.Top:        true,
	wire.StreamList: true, wire.Tokens: true, wire.ReserveDevice: true, wire.WorkerFate: true, wire.ResumeWorker: true,
	wire.ListPage: true, wire.StreamPage: true, wire.PublishedPage: true, wire.TokenPage: true, wire.PeerPage: true,
	wire.CertificatePage: true, wire.TenantPage: true,
	wire.TopPage:          true,
	wire.SessionPage:      true,
	wire.AllPage:          true,
	wire.GPUs:             true,
	wire.ClusterStatus:    true,
	wire.Access:           true,
	wire.Leases:           true,
	wire.CreateDevice:     true,
	wire.GetDevice:        true,
	wire.IPCHandle:        true,
	wire.Place:            true,
	wire.Replicate:        true,
	wire.AttachObject:     true, // the daemon knows the attempt
	wire.OpenRemoteWorker: true, // of a kept session: a worker that nobody knows of ends with it
}

// worthRepeating reports whether a request that failed with err may go out once more, on a connection that lives.
func (c *Conn) worthRepeating(ctx context.Context, kind wire.Type, err error) bool {
	return errors.Is(err, ErrDisconnected) && repeatable[kind] && ctx.Err() == nil && c.dialer() != nil &&
		c.revive(ctx) == nil
}
