package client

import (
	"context"
	"fmt"

	"tendril/ipc/wire"
	"tendril/store/object"
)

// All Objects that are not released stand in a list, so that their references can be claimed again from the daemon that
// comes after this one.

// hold puts an Object on the list: the daemon gave its reference in the connection's life gen. Where that life is over
// the reference is, too: false, and the Object's place in memory is let go.
func (c *Conn) hold(o *Object, gen uint64) bool {
	c.mu.Lock()
	if c.gen == gen {
		c.list(o)
		c.mu.Unlock()
		return true
	}
	c.mu.Unlock()
	o.released.Store(true)
	c.unref(o.view)
	return false
}

// list puts an Object on the list. mu is held.
func (c *Conn) list(o *Object) {
	o.next = c.held
	if c.held != nil {
		c.held.prev = o
	}
	c.held = o
}

// unlistAlive takes an Object off the list; it reports whether its reference is to be given back now: the daemon of now
// knows it, and it is no stream's, nor may become one's.
func (c *Conn) unlistAlive(o *Object) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.unlist(o) || c.err != nil {
		return false
	}
	if o.pushed == nil {
		return true
	}
	o.pushed.pushes.aborted = true
	return o.pushed.pushes.left()
}

// listed reports whether an Object is on the list. mu is held.
func (c *Conn) listed(o *Object) bool { return o.prev != nil || c.held == o }

// unlist takes an Object off the list; false: it was not there. mu is held.
func (c *Conn) unlist(o *Object) bool {
	if !c.listed(o) {
		return false
	}
	if o.prev != nil {
		o.prev.next = o.next
	} else {
		c.held = o.next
	}
	if o.next != nil {
		o.next.prev = o.prev
	}
	o.prev, o.next = nil, nil
	return true
}

// letGo takes a released Object off the list, without a word to the daemon.
func (c *Conn) letGo(o *Object) {
	c.unref(o.view)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unlist(o)
}

// claims gives the Objects on the list and what is to be claimed for them from another daemon. here says that it has
// the same memory as the one before. mu is held.
func (c *Conn) claims(here bool) (list []*Object, claims []wire.Claim) {
	for o := c.held; o != nil; o = o.next {
		claim := wire.Claim{ID: o.id}
		if here && o.view != nil && !o.view.orphan {
			claim.Segment = o.view.id
		}
		list, claims = append(list, o), append(claims, claim)
	}
	return list, claims
}

// claim asks this new connection for references that the one before held.
func (c *Conn) claim(ctx context.Context, claims []wire.Claim) ([]wire.Verdict, error) {
	verdicts := make([]wire.Verdict, 0, len(claims))
	for len(claims) > 0 {
		step := claims[:min(len(claims), wire.MaxClaims)]
		claims = claims[len(step):]
		got, err := c.reclaim(ctx, &wire.ReclaimRequest{Claims: step})
		if err != nil {
			return nil, err
		}
		verdicts = append(verdicts, got...)
	}
	return verdicts, nil
}

func (c *Conn) reclaim(ctx context.Context, m *wire.ReclaimRequest) ([]wire.Verdict, error) {
	k, err := c.roundTrip(ctx, wire.Reclaim, m)
	if err != nil {
		return nil, err
	}
	defer k.recycle()
	var reply wire.ReclaimReply
	if err := reply.Decode(k.payload); err != nil {
		return nil, err
	}
	if len(reply.Verdicts) != len(m.Claims) {
		return nil, fmt.Errorf("%w: %d verdicts on %d claims", object.ErrProtocol, len(reply.Verdicts), len(m.Claims))
	}
	return reply.Verdicts, nil
}
