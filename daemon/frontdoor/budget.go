package frontdoor

import (
	"context"
	"errors"
	"fmt"

	"tendril/ipc"
	"tendril/store"
	"tendril/store/object"
)

// What a connection has in the daemon's memory: up to 64 KiB that it received and some more that it is to be sent,
// whatever it does; and what is charged to its tenant (store.ChargeRequest): a large frame that comes, a page, what
// waits, and what its peer does not take.

// admit allows memory for a frame of more than 64 KiB, which is about to be received; it waits while the tenant's
// requests hold too much, but not for ever: they may be waits and watches of the tenant's own, which nobody ends. It
// runs where frames are received, never on the poller's goroutine.
func (c *connection) admit(h ipc.Header, more int) error {
	if c.store == nil {
		return fmt.Errorf("%w: %v of %d bytes before Hello", object.ErrProtocol, h.Type, h.Length)
	}
	if row, known := c.srv.row(h.Type); known && h.Length > row.maxPayload {
		return &breach{h.Request,
			fmt.Errorf("%w: %v of %d bytes, at most %d", object.ErrProtocol, h.Type, h.Length, row.maxPayload)}
	}
	err := c.awaitCharge(uint64(more))
	if errors.Is(err, object.ErrBusy) {
		return ipc.Refuse(h.Request, err)
	}
	return err
}

// awaitCharge is the store's AwaitCharge that waits for Options.ChargeTime. ErrBusy: there was no room so long.
func (c *connection) awaitCharge(n uint64) error {
	ctx, cancel := context.WithTimeout(c.ctx, c.srv.opts.ChargeTime)
	defer cancel()
	err := c.store.AwaitCharge(ctx, n)
	if errors.Is(err, object.ErrTimeout) && c.ctx.Err() == nil {
		return fmt.Errorf("%w: waited %v: %v", object.ErrBusy, c.srv.opts.ChargeTime, err)
	}
	return err
}

// sendCharged sends, and waits for the peer: what that does not take at once is charged meanwhile. mu is held.
func (c *connection) sendCharged(b []byte, fds []int) error {
	if local, is := c.link.(*ipc.Accepted); is {
		n, err := local.SendNow(b, fds)
		if err != nil || n == len(b) {
			return err
		}
		if b = b[n:]; n > 0 {
			fds = nil
		}
	}
	if charged := c.storeNow(); charged != nil {
		charged.ChargeUnread(uint64(len(b)))
		defer charged.UnchargeRequest(uint64(len(b)))
	}
	return c.link.Send(b, fds)
}

// storeNow is store for goroutines other than serve's: where the connection breaks, depart takes it away meanwhile.
func (c *connection) storeNow() *store.Conn {
	c.stateMu.Lock()
	defer c.stateMu.Unlock()
	return c.store
}
