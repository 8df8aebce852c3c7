package keeper

import (
	"container/list"
	"sync"
)

// turns gives the keeper to one request at a time: tenants in turn, and each tenant's requests in their order. So a
// tenant with many copies holds another one up by one step, not by all of them. Safe for concurrent use.
type turns struct {
	mu      sync.Mutex // a leaf
	taken   bool
	waiting map[string]*list.List // by tenant, of chan struct{}; only those that have some
	order   list.List             // of their names: whose turn is next
}

// take waits for a turn of a tenant's; false: ended was closed before.
func (t *turns) take(tenant string, ended <-chan struct{}) bool {
	t.mu.Lock()
	if !t.taken {
		t.taken = true
		t.mu.Unlock()
		return true
	}
	came := make(chan struct{})
	of := t.waiting[tenant]
	if of == nil {
		of = list.New()
		if t.waiting == nil {
			t.waiting = map[string]*list.List{}
		}
		t.waiting[tenant] = of
		t.order.PushBack(tenant)
	}
	at := of.PushBack(came)
	t.mu.Unlock()
	select {
	case <-came:
		return true
	case <-ended:
	}
	t.mu.Lock()
	select {
	case <-came: // it came at the same time, and goes to the next one
		t.mu.Unlock()
		t.give()
		return false
	default:
	}
	defer t.mu.Unlock()
	if of.Remove(at); of.Len() == 0 {
		t.forget(tenant)
	}
	return false
}

// try takes a turn that nobody has, and nobody waits for.
func (t *turns) try() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.taken {
		return false
	}
	t.taken = true
	return true
}

// give gives the turn to the next one.
func (t *turns) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := t.order.Front()
	if first == nil {
		t.taken = false
		return
	}
	tenant := first.Value.(string)
	of := t.waiting[tenant]
	close(of.Remove(of.Front()).(chan struct{}))
	if of.Len() == 0 {
		t.forget(tenant)
	} else {
		t.order.MoveToBack(first)
	}
}

// forget takes out a tenant that waits for nothing. mu is held.
func (t *turns) forget(tenant string) {
	delete(t.waiting, tenant)
	for at := t.order.Front(); at != nil; at = at.Next() { // as many as tenants wait
		if at.Value == tenant {
			t.order.Remove(at)
			return
		}
	}
}
