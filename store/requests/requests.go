// Package requests counts what requests hold in the daemon's own memory, while they wait or while their replies lie
// unread. Each byte is charged to a connection and so to its tenant. It is no part of the store's capacity, which is
// for shared memory: it has a bound of its own for a connection, a tenant and the daemon. So a peer that asks much and
// reads nothing is refused, or is not read from, and costs the others nothing.
//
// Lock order: Ledger.mu is a leaf.
package requests

import (
	"container/list"
	"context"
	"fmt"
	"sync"

	"tendril/store/object"
)

// A tenant may hold so much of the daemon's part, and a connection so much of its tenant's.
const (
	tenantRequestShare = 4
	connRequestShare   = 4
)

// Ledger counts what all requests hold. Safe for concurrent use.
type Ledger struct {
	limit uint64 // of all, in bytes; immutable

	mu      sync.Mutex // leaf
	total   uint64
	of      map[string]uint64        // by tenant
	waiting map[string]*list.Element // by tenant, in order
	order   list.List                // of *chargeQueue, the one whose turn is next first
}

// Account is one connection's part. Safe for concurrent use.
type Account struct {
	l      *Ledger // immutable
	tenant string  // immutable
	bytes  uint64  // guarded by Ledger.mu
}

// chargeQueue is who waits of one tenant, the one that came first first.
type chargeQueue struct {
	tenant string
	all    list.List // of *chargeWait
}

// chargeWait is a charge that waits.
type chargeWait struct {
	a       *Account
	n       uint64
	charged chan struct{} // closed when it is done
}

// New makes a ledger that lets all requests together hold limit bytes; a tenant's hold a quarter of it at most, and a
// connection's a quarter of that.
func New(limit uint64) *Ledger {
	return &Ledger{limit: limit, of: make(map[string]uint64), waiting: make(map[string]*list.Element)}
}

// Account makes the account of a new connection. Drop ends it.
func (l *Ledger) Account(tenant string) *Account { return &Account{l: l, tenant: tenant} }

// Limit is what all requests may hold, in bytes.
func (l *Ledger) Limit() uint64 { return l.limit }

// tenantLimit bounds one tenant's part.
func (l *Ledger) tenantLimit() uint64 { return l.limit / tenantRequestShare }

// connLimit bounds one connection's part.
func (l *Ledger) connLimit() uint64 { return l.tenantLimit() / connRequestShare }

const chargeAdvice = "read the replies, or ask for less at a time"

// refusal says why a may not hold n bytes more; nil: it may. mu is held.
func (l *Ledger) refusal(a *Account, n uint64) error {
	if n > l.connLimit() || a.bytes > l.connLimit()-n {
		return fmt.Errorf("%w: this connection's requests hold %d of %d bytes of the daemon's memory and need %d more: %s",
			object.ErrBusy, a.bytes, l.connLimit(), n, chargeAdvice)
	}
	return l.refusalBeside(a, n)
}

// refusalBeside is refusal but for the connection's own part. mu is held.
func (l *Ledger) refusalBeside(a *Account, n uint64) error {
	switch {
	case n > l.connLimit():
		return fmt.Errorf("%w: a request of %d bytes; a connection's requests may hold %d bytes of the daemon's memory: %s",
			object.ErrBusy, n, l.connLimit(), chargeAdvice)
	case l.of[a.tenant] > l.tenantLimit()-n:
		return fmt.Errorf("%w: requests of tenant %s hold %d of %d bytes of the daemon's memory and need %d more: %s",
			object.ErrBusy, a.tenant, l.of[a.tenant], l.tenantLimit(), n, chargeAdvice)
	case l.total > l.limit-n:
		return fmt.Errorf("%w: all requests hold %d of %d bytes of the daemon's memory and %d more are needed: try again later",
			object.ErrBusy, l.total, l.limit, n)
	}
	return nil
}

// add notes n bytes more of a's. mu is held.
func (l *Ledger) add(a *Account, n uint64) {
	a.bytes += n
	l.of[a.tenant] += n
	l.total += n
}

// ChargeRequest charges n bytes that a request of this connection is about to hold, until UnchargeRequest or Drop.
// ErrBusy: the connection, its tenant or all tenants hold too much already.
func (a *Account) ChargeRequest(n uint64) error {
	l := a.l
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.refusal(a, n)
	if err == nil {
		l.add(a, n)
	}
	return err
}

// ChargeUnread is ChargeRequest for what is there already, and so cannot be refused: a reply that the peer did not take
// at once.
func (a *Account) ChargeUnread(n uint64) {
	l := a.l
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(a, n)
}

// AwaitCharge is ChargeRequest that waits until others have given enough back. What this connection holds itself does
// not count: it may give that back only by what it sends next, and so would wait for itself. One such charge at a time
// is a connection's; those of a tenant come in order. ErrBusy: n is more than a connection may ever hold. ErrTimeout:
// ctx ended; it says who holds the memory.
func (a *Account) AwaitCharge(ctx context.Context, n uint64) error {
	l := a.l
	l.mu.Lock()
	err := l.refusalBeside(a, n)
	if err == nil && l.waiting[a.tenant] != nil {
		err = fmt.Errorf("%w: others of tenant %s came first", object.ErrBusy, a.tenant)
	} else if err == nil {
		l.add(a, n)
	}
	if err == nil || n > l.connLimit() {
		l.mu.Unlock()
		return err
	}
	w := &chargeWait{a: a, n: n, charged: make(chan struct{})}
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
	l.leave(a.tenant, mine)
	l.grant() // who is behind it may want less
	return fmt.Errorf("%w: %w", object.ErrTimeout, err)
}

// join has a charge wait. mu is held.
func (l *Ledger) join(w *chargeWait) *list.Element {
	at := l.waiting[w.a.tenant]
	if at == nil {
		at = l.order.PushBack(&chargeQueue{tenant: w.a.tenant})
		l.waiting[w.a.tenant] = at
	}
	return at.Value.(*chargeQueue).all.PushBack(w)
}

// leave is the reverse. mu is held.
func (l *Ledger) leave(t string, w *list.Element) {
	at := l.waiting[t]
	q := at.Value.(*chargeQueue)
	if q.all.Remove(w); q.all.Len() == 0 {
		l.order.Remove(at)
		delete(l.waiting, t)
	}
}

// grant does the charges whose turn has come and for which there is room: it looks at one of each tenant, and goes on
// while one was done. mu is held.
func (l *Ledger) grant() {
	for left := l.order.Len(); left > 0; left-- {
		at := l.order.Front()
		q := at.Value.(*chargeQueue)
		first := q.all.Front()
		w := first.Value.(*chargeWait)
		l.order.MoveToBack(at)
		if l.refusalBeside(w.a, w.n) == nil {
			l.leave(q.tenant, first)
			l.add(w.a, w.n)
			close(w.charged)
			left = l.order.Len() + 1
		}
	}
}

// UnchargeRequest takes back what was charged. After Drop it does nothing: that took everything back.
func (a *Account) UnchargeRequest(n uint64) {
	l := a.l
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(a, min(n, a.bytes))
}

// remove is the reverse of add. mu is held.
func (l *Ledger) remove(a *Account, n uint64) {
	if n == 0 {
		return
	}
	a.bytes -= n
	l.total -= n
	if l.of[a.tenant] -= n; l.of[a.tenant] == 0 {
		delete(l.of, a.tenant)
	}
	l.grant()
}

// Drop takes back all that a connection was charged: it has ended.
func (l *Ledger) Drop(a *Account) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(a, a.bytes)
}

// Held gives what a tenant's requests hold, in bytes.
func (l *Ledger) Held(tenant string) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of[tenant]
}

// Total gives what all requests hold, in bytes.
func (l *Ledger) Total() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}
