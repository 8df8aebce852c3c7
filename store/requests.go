package store

import (
	"container/list"
	"context"
	"fmt"
	"sync"

	"tendril/store/object"
)

// What a request holds in the daemon's own memory, while it waits or while its reply lies unread, is charged to the
// connection's tenant. It is no part of Options.CapacityBytes, which is for shared memory: it has a bound of its own
// for a connection, a tenant and the daemon. So a peer that asks much and reads nothing is refused, or is not read
// from, and costs the others nothing.

// What a waiting request and a watch are charged, besides what their payload takes: a goroutine's stack and a timer; a
// record, where it waits without a goroutine; a queue of events.
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

	mu      sync.Mutex
	total   uint64
	of      map[*tenant]uint64
	waiting map[*tenant]*list.Element // by tenant, in order
	order   list.List                 // of *chargeQueue, the one whose turn is next first
}

// chargeQueue is who waits of one tenant, the one that came first first.
type chargeQueue struct {
	tenant *tenant
	all    list.List // of *chargeWait
}

// chargeWait is a charge that waits.
type chargeWait struct {
	c       *Conn
	n       uint64
	charged chan struct{} // closed when it is done
}

// requestBytesFor gives the default of Options.RequestBytes.
func requestBytesFor(capacity uint64) uint64 { return min(max(capacity/8, 64<<20), 512<<20) }

func newRequestLedger(limit uint64) *requestLedger {
	return &requestLedger{limit: limit, of: make(map[*tenant]uint64), waiting: make(map[*tenant]*list.Element)}
}

// tenantLimit bounds one tenant's part.
func (l *requestLedger) tenantLimit() uint64 { return l.limit / tenantRequestShare }

// connLimit bounds one connection's part.
func (l *requestLedger) connLimit() uint64 { return l.tenantLimit() / connRequestShare }

const chargeAdvice = "read the replies, or ask for less at a time"

// refusal says why c may not hold n bytes more; nil: it may. mu is held.
func (l *requestLedger) refusal(c *Conn, n uint64) error {
	if n > l.connLimit() || c.requests > l.connLimit()-n {
		return fmt.Errorf("%w: this connection's requests hold %d of %d bytes of the daemon's memory and need %d more: %s",
			object.ErrBusy, c.requests, l.connLimit(), n, chargeAdvice)
	}
	return l.refusalBeside(c, n)
}

// refusalBeside is refusal but for the connection's own part. mu is held.
func (l *requestLedger) refusalBeside(c *Conn, n uint64) error {
	switch {
	case n > l.connLimit():
		return fmt.Errorf("%w: a request of %d bytes; a connection's requests may hold %d bytes of the daemon's memory: %s",
			object.ErrBusy, n, l.connLimit(), chargeAdvice)
	case l.of[c.tenant] > l.tenantLimit()-n:
		return fmt.Errorf("%w: requests of tenant %s hold %d of %d bytes of the daemon's memory and need %d more: %s",
			object.ErrBusy, c.tenant.name, l.of[c.tenant], l.tenantLimit(), n, chargeAdvice)
	case l.total > l.limit-n:
		return fmt.Errorf("%w: all requests hold %d of %d bytes of the daemon's memory and %d more are needed: try again later",
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

// ChargeRequest charges n bytes that a request of this connection is about to hold, until UnchargeRequest or Close.
// ErrBusy: the connection, its tenant or all tenants hold too much already.
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

// ChargeUnread is ChargeRequest for what is there already, and so cannot be refused: a reply that the peer did not take
// at once.
func (c *Conn) ChargeUnread(n uint64) {
	l := c.s.requests
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(c, n)
}

// AwaitCharge is ChargeRequest that waits until others have given enough back. What this connection holds itself does
// not count: it may give that back only by what it sends next, and so would wait for itself. One such charge at a time
// is a connection's; those of a tenant come in order. ErrBusy: n is more than a connection may ever hold. ErrTimeout:
// ctx ended; it says who holds the memory.
func (c *Conn) AwaitCharge(ctx context.Context, n uint64) error {
	l := c.s.requests
	l.mu.Lock()
	err := l.refusalBeside(c, n)
	if err == nil && l.waiting[c.tenant] != nil {
		err = fmt.Errorf("%w: others of tenant %s came first", object.ErrBusy, c.tenant.name)
	} else if err == nil {
		l.add(c, n)
	}
	if err == nil || n > l.connLimit() {
		l.mu.Unlock()
		return err
	}
	w := &chargeWait{c: c, n: n, charged: make(chan struct{})}
	mine := l.join(w)
	l.mu.Unlock()
	select {
	case <-w.charged:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-w.charged:
		return nil
	default:
	}
	l.leave(c.tenant, mine)
	l.grant() // who is behind it may want less
	return fmt.Errorf("%w: %w", object.ErrTimeout, err)
}

// join has a charge wait. mu is held.
func (l *requestLedger) join(w *chargeWait) *list.Element {
	at := l.waiting[w.c.tenant]
	if at == nil {
		at = l.order.PushBack(&chargeQueue{tenant: w.c.tenant})
		l.waiting[w.c.tenant] = at
	}
	return at.Value.(*chargeQueue).all.PushBack(w)
}

// leave is the reverse. mu is held.
func (l *requestLedger) leave(t *tenant, w *list.Element) {
	at := l.waiting[t]
	q := at.Value.(*chargeQueue)
	if q.all.Remove(w); q.all.Len() == 0 {
		l.order.Remove(at)
		delete(l.waiting, t)
	}
}

// grant does the charges whose turn has come and for which there is room: it looks at one of each tenant, and goes on
// while one was done. mu is held.
func (l *requestLedger) grant() {
	for left := l.order.Len(); left > 0; left-- {
		at := l.order.Front()
		q := at.Value.(*chargeQueue)
		first := q.all.Front()
		w := first.Value.(*chargeWait)
		l.order.MoveToBack(at)
		if l.refusalBeside(w.c, w.n) == nil {
			l.leave(q.tenant, first)
			l.add(w.c, w.n)
			close(w.charged)
			left = l.order.Len() + 1
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
	l.grant()
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
