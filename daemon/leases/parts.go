package leases

import (
	"slices"
	"strings"
)

// A lease over nodes has a part at each node whose devices it has. Its record is in the cluster's metadata, and the
// part ends once this node learns that the record is gone; until then sessions use it like a lease of this node.

// over is the ticket of a lease over nodes: its place in this node's line.
func over(id string) string { return "over nodes: " + id }

// Take gives a lease over nodes as many of r.Devices as it wants (r.Count, 0: all or none) and are free, with those
// that it has already. It gives the part's devices, and why they are not more. wait: it keeps its place in the line,
// behind all that came before it and the leases over nodes of a lesser r.Order, until Settle or End.
func (t *Table) Take(r Request, wait bool) (devices []string, why string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetLocked()
	r.Ticket = over(r.ID)
	want := r.Count
	if want == 0 {
		want = len(r.Devices)
	}
	old, place := t.partLocked(r.ID), t.placeLocked(&r)
	if old != nil && (old.ended || old.uses > 1) { // its time has passed, or has come
		return slices.Clone(old.Devices), "", nil
	}
	var reasons []string
	for _, device := range r.Devices {
		busy := ""
		if !old.Has(device) {
			busy = t.busyLocked(device, t.line[:place])
		}
		if busy != "" {
			reasons = append(reasons, busy)
		} else if len(devices) < want {
			devices = append(devices, device)
		}
	}
	if r.Count == 0 && len(devices) < want {
		devices = nil
	}
	if wait {
		if err := t.waitLocked(r, place); err != nil {
			return nil, "", err
		}
	}
	t.setPartLocked(r, devices)
	slices.Sort(reasons)
	if len(devices) < want {
		why = strings.Join(slices.Compact(reasons), "; ")
	}
	return devices, why, nil
}

func (t *Table) partLocked(id string) *Lease {
	for _, l := range t.leases {
		if l.ID == id && id != "" {
			return l
		}
	}
	return nil
}

// setPartLocked makes a part's devices those given. One that sessions use stays as it is.
func (t *Table) setPartLocked(r Request, devices []string) {
	old := t.partLocked(r.ID)
	switch {
	case old != nil && (old.uses > 1 || old.home):
	case len(devices) == 0:
		t.leases = slices.DeleteFunc(t.leases, func(l *Lease) bool { return l == old })
		// Not freed: who gives back what it has just taken tells those nothing who were refused before.
	case old == nil:
		t.addLocked(r, devices)
	default:
		changed := *old
		changed.Devices = devices
		t.leases[slices.Index(t.leases, old)] = &changed
	}
}

func (t *Table) addLocked(r Request, devices []string) *Lease {
	t.last++
	l := &Lease{Number: t.last, ID: r.ID, Token: r.Token, Tenant: r.Tenant, Holder: r.Holder, Devices: devices,
		Since: t.now(), uses: 1} // the record's
	t.leases = append(t.leases, l)
	return l
}

// Keep takes all devices but these from a part that no session uses yet.
func (t *Table) Keep(id string, devices []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keepLocked(id, devices)
}

func (t *Table) keepLocked(id string, devices []string) {
	if old := t.partLocked(id); old != nil {
		t.setPartLocked(Request{ID: id}, slices.DeleteFunc(slices.Clone(old.Devices),
			func(d string) bool { return !slices.Contains(devices, d) }))
	}
}

// Settle is Keep for a lease that has been granted: it does not wait any more.
func (t *Table) Settle(id string, devices []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keepLocked(id, devices)
	t.leaveLineLocked(id)
}

func (t *Table) leaveLineLocked(id string) {
	t.leaveLocked(func(w *waiter) bool { return w.Ticket == over(id) })
}

// Open gives the part of a lease that was granted to a program of this node, which may have no device here; the caller
// counts as its first session. Its longest time begins.
func (t *Table) Open(r Request) *Lease {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leaveLineLocked(r.ID)
	l := t.partLocked(r.ID)
	if l == nil {
		l = t.addLocked(r, nil)
	}
	l.home = true
	l.uses++
	if t.longest > 0 {
		l.Until = l.Since.Add(t.longest)
	}
	return l
}

// IsHome reports whether a lease over nodes is a program's of this node, and has not been ended.
func (t *Table) IsHome(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.partLocked(id)
	return l != nil && l.home && !l.ended
}

// End ends a part: nobody joins it any more, and its devices are free once its last session has ended. nil: they are.
func (t *Table) End(id string) *Lease {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leaveLineLocked(id)
	l := t.partLocked(id)
	if l == nil || l.ended {
		return l
	}
	l.ended = true
	if t.dropLocked(l) {
		return nil
	}
	return l
}

// Parts lists the leases over nodes that have something here, or wait for that, each once; abandoned are those that a
// program of this node had, whose last session has ended.
func (t *Table) Parts() (all, abandoned []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.leases {
		if l.ID != "" {
			all = append(all, l.ID)
		}
		if l.home && l.uses == 1 && !l.ended {
			abandoned = append(abandoned, l.ID)
		}
	}
	for _, w := range t.line {
		if w.ID != "" && !slices.Contains(all, w.ID) {
			all = append(all, w.ID)
		}
	}
	return all, abandoned
}
