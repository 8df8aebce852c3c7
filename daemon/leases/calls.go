package leases

import "slices"

// Who waits need not ask again and again: the table tells when it is worth it. Of each device only the first in the
// line is told, because nobody else gets it.

// calls are leases over nodes whose program is perhaps another node's: the daemon tells that node.
type calls struct {
	due  map[string]struct{} // their identifiers
	more chan struct{}       // capacity 1: there is one
}

// wake tells who waits. Table.mu is held.
func (w *waiter) wake() {
	if w.woken != nil {
		close(w.woken)
		w.woken = nil
	}
}

// enough is how many free devices make it worth asking again: of a lease over nodes other nodes may have the rest.
func (w *waiter) enough() int {
	switch {
	case w.Count == 0:
		return len(w.Devices)
	case w.ID != "":
		return 1
	}
	return w.Count
}

// freedLocked notes that devices, or places in the line, have become free, and tells whom they suffice.
func (t *Table) freedLocked() {
	t.freed++
	t.callLocked()
}

func (t *Table) callLocked() {
	taken := map[string]bool{}
	for _, l := range t.leases {
		for _, device := range l.Devices {
			taken[device] = true
		}
	}
	for _, s := range t.shared {
		for _, device := range s.devices {
			taken[device] = true
		}
	}
	for _, w := range t.line {
		free := 0
		for _, device := range w.Devices {
			if !taken[device] {
				free++
			}
		}
		if free > 0 && free >= w.enough() {
			t.tellLocked(w)
		}
		for _, device := range w.Devices {
			taken[device] = true
		}
	}
}

// tellLocked tells one who waits.
func (t *Table) tellLocked(w *waiter) {
	if w.ID == "" {
		w.wake()
		return
	}
	if t.calls.due == nil {
		t.calls.due = map[string]struct{}{}
	}
	t.calls.due[w.ID] = struct{}{}
	select {
	case t.calls.more <- struct{}{}:
	default:
	}
}

// Worth gives what is closed when it is worth asking again with a ticket: at once, where it is in no line.
func (t *Table) Worth(ticket, tenant string) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.line, func(w *waiter) bool { return w.Ticket == ticket && w.Tenant == tenant })
	if i < 0 {
		over := make(chan struct{})
		close(over)
		return over
	}
	w := t.line[i]
	if w.woken == nil {
		w.woken = make(chan struct{})
	}
	woken := w.woken
	t.callLocked() // they may have become free since it asked
	return woken
}

// Called gives what is sent to when Calls has something.
func (t *Table) Called() <-chan struct{} { return t.calls.more }

// Calls gives the leases over nodes for which there are free devices here since the last time.
func (t *Table) Calls() (ids []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id := range t.calls.due {
		ids = append(ids, id)
	}
	t.calls.due = nil
	slices.Sort(ids)
	return ids
}
