package client

import (
	"context"

	"tendril/ipc/wire"
	"tendril/store/object"
)

// holding is a reference of this process's: an Object's, or an unsealed Buffer's. All of them stand in a list, so that they can be
// claimed again from the daemon that comes after this one.
type holding struct {
	id         object.ID
	view       *view // nil: an empty object
	held       bool
	prev, next *holding
}

// hold puts h on the list.
func (c *Conn) hold(h *holding, id object.ID, v *view) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h.id, h.view, h.held = id, v, true
	h.prev, h.next = nil, c.holdings
	if c.holdings != nil {
		c.holdings.prev = h
	}
	c.holdings = h
}

// letGo takes h off the list. A second call does nothing.
func (c *Conn) letGo(h *holding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !h.held {
		return
	}
	h.held = false
	if h.prev != nil {
		h.prev.next = h.next
	} else {
		c.holdings = h.next
	}
	if h.next != nil {
		h.next.prev = h.prev
	}
	h.prev, h.next = nil, nil
}

// claim asks a new connection for the references in list. It gives which are held again.
func (c *Conn) claim(list []*holding) ([]bool, error) {
	again := make([]bool, 0, len(list))
	for len(list) > 0 {
		step := list[:min(len(list), wire.MaxClaims)]
		list = list[len(step):]
		var m wire.ReclaimRequest
		for _, h := range step {
			claim := wire.Claim{ID: h.id}
			if h.view != nil {
				claim.Segment = h.view.id
			}
			m.Claims = append(m.Claims, claim)
		}
		k, err := c.roundTrip(context.Background(), wire.Reclaim, &m)
		if err != nil {
			return nil, err
		}
		var reply wire.ReclaimReply
		err = reply.Decode(k.payload)
		if err == nil && len(reply.Held) != len(step) {
			err = object.ErrProtocol
		}
		k.recycle()
		if err != nil {
			return nil, err
		}
		again = append(again, reply.Held...)
	}
	return again, nil
}
