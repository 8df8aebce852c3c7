package store

import (
	"context"
	"fmt"
	"sync"

	"tendril/store/object"
)

// What a request holds in the daemon's own memory, while it waits or while its reply lies unread, is charged to the connection's
// tenant. It is no part of Options.CapacityBytes, which is for shared memory: it has a bound of its own for a connection, a tenant and
// the daemon. So a peer that asks much and reads nothing is refused, or is not read from, and costs the others nothing.

// What a waiting request and a watch are charged, besides what their payload takes: a goroutine's stack and a timer; a record, where
// it waits without a goroutine; a queue of events.
const (
	WaitBytes    = 8 << 10
	PendingBytes = 2 << 10
	WatchBytes   = 16 << 10
)

// A tenant may hold so much of the daemon's part, and a connection so much of its tenant's.
const (
	tenantRequestShare = 4
	connRequestShare   = 4
)

// requestLedger counts. Its lock is a leaf.
type requestLedger struct {
	limit uint64 // of all, in bytes; immutable

	mu    sync.Mutex
	total uint64
	of    map[*tenant]uint64
	freed chan struct{} // closed when some is given back; nil: nobody waits for that
}

// requestBytesFor gives the default of Options.RequestBytes.
func requestBytesFor(capacity uint64) uint64 { return min(max(capacity/8, 64<<20), 512<<20) }

func newRequestLedger(limit uint64) *requestLedger {
	return &requestLedger{limit: limit, of: make(map[*tenant]uint64)}
}

// tenantLimit bounds one tenant's part.
func (l *requestLedger) tenantLimit() uint64 { return l.limit / tenantRequestShare }

// connLimit bounds one connection's part.
func (l *requestLedger) connLimit() uint64 { return l.tenantLimit() / connRequestShare }

const chargeAdvice = "read the replies, or ask for less at a time"

// refusal says why c may not hold n bytes more; nil: it may. mu is held.
func (l *requestLedger) refusal(c *Conn, n uint64) error {
	if n > l.connLimit() || c.requests > l.connLimit()-n {
		return fmt.Errorf("%w: this connection's requests hold %d of %d bytes of the daemon's memory and ask for %d more: %s",
			object.ErrBusy, c.requests, l.connLimit(), n, chargeAdvice)
	}
	return l.refusalBeside(c, n)
}

// refusalBeside is refusal but for the connection's own part. mu is held.
func (l *requestLedger) refusalBeside(c *Conn, n uint64) error {
	switch {
	case n > l.connLimit():
		return fmt.Errorf("%w: a request of %d bytes, where a connection's may hold %d of the daemon's memory: %s",
			object.ErrBusy, n, l.connLimit(), chargeAdvice)
	case l.of[c.tenant] > l.tenantLimit()-n:
		return fmt.Errorf("%w: requests of tenant %s hold %d of %d bytes of the daemon's memory and ask for %d more: %s",
			object.ErrBusy, c.tenant.name, l.of[c.tenant], l.tenantLimit(), n, chargeAdvice)
	case l.total > l.limit-n:
		return fmt.Errorf("%w: all requests hold %d of %d bytes of the daemon's memory and %d more are asked for: try again later",
			object.ErrBusy, l.total, l.limit, n)
	}
	return nil
}

// add notes n bytes more of c's. mu is held.
func (l *requestLedger) add(c *Conn, n uint64) {
	c.requests += n
	l.of[c.tenant] += n
	l.total += n
}

// ChargeRequest charges n bytes that a request of this connection is about to hold, until UnchargeRequest or Close. ErrBusy: the
// connection, its tenant or all tenants hold too much already.
func (c *Conn) ChargeRequest(n uint64) error {
	l := c.s.requests
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.refusal(c, n)
	if err == nil {
		l.add(c, n)
	}
	return err
}

// ChargeUnread is ChargeRequest for what is there already, and so cannot be refused: a reply that the peer did not take at once.
func (c *Conn) ChargeUnread(n uint64) {
	l := c.s.requests
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(c, n)
}

// AwaitCharge is ChargeRequest that waits until others have given enough back. What this connection holds itself does not count: it may
// give that back only by what it sends next, and so would wait for itself. One such charge at a time is a connection's. ErrBusy: n is more
// than a connection may ever hold. ErrTimeout: ctx ended.
func (c *Conn) AwaitCharge(ctx context.Context, n uint64) error {
	l := c.s.requests
	for {
		l.mu.Lock()
		err := l.refusalBeside(c, n)
		if err == nil {
			l.add(c, n)
		}
		if err == nil || n > l.connLimit() {
			l.mu.Unlock()
			return err
		}
		if l.freed == nil {
			l.freed = make(chan struct{})
		}
		freed := l.freed
		l.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", object.ErrTimeout, err)
		}
	}
}

// UnchargeRequest takes back what was charged. After Close it does nothing: that took everything back.
func (c *Conn) UnchargeRequest(n uint64) {
	l := c.s.requests
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(c, min(n, c.requests))
}

// remove is the reverse of add. mu is held.
func (l *requestLedger) remove(c *Conn, n uint64) {
	if n == 0 {
		return
	}
	c.requests -= n
	l.total -= n
	if l.of[c.tenant] -= n; l.of[c.tenant] == 0 {
		delete(l.of, c.tenant)
	}
	if l.freed != nil {
		close(l.freed)
		l.freed = nil
	}
}

// drop takes back all that c was charged.
func (l *requestLedger) drop(c *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(c, c.requests)
}

// held gives what a tenant's requests hold, and with nil all requests.
func (l *requestLedger) held(t *tenant) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t == nil {
		return l.total
	}
	return l.of[t]
}
