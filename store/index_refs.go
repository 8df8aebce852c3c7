package store

import (
	"time"

	"tendril/store/index"
	"tendril/store/object"
)

// References in slots, for descriptions: the store counts them when it is asked, and only then.

// IndexStatus is the index in shared memory in numbers.
type IndexStatus struct {
	Connections int    `json:"connections"` // that have it
	Objects     int    `json:"objects"`     // in it, or held by a slot since they went out of it
	References  int    `json:"references"`  // in slots; Status.References counts them, too
	Bytes       uint64 `json:"bytes"`       // tables and slots; part of what is charged
}

// heldIn calls f with every reference in one connection's slots. mu is held.
func (ix *tenantIndex) heldIn(slots *index.Slots, f func(*entry)) {
	ix.held = slots.Held(ix.held[:0])
	for _, w := range ix.held {
		if e := ix.table.LastOwner(w); e != nil {
			f(e)
		}
	}
}

// slotRefs gives the references in slots, which are to be added to those in entry.refs that no retired record has.
type slotRefs map[*tenant]map[*entry]int

// slotStep is how many connections' slots are looked at in one hold of the lock.
const slotStep = 16

// add adds references in slots to descriptions of entries. mu is not held: a tenant's slots are counted once, and not
// in one hold.
func (m slotRefs) add(s *Store, seen []sight) {
	for i := range seen {
		e := seen[i].e
		counts, known := m[e.tenant]
		if !known {
			counts = s.countSlots(e.tenant)
			m[e.tenant] = counts
		}
		seen[i].info.Refs += counts[e]
	}
}

// countSlots counts one tenant's. mu is not held.
func (s *Store) countSlots(t *tenant) map[*entry]int {
	counts := make(map[*entry]int)
	s.eachInSlots(t, func(_ *Conn, e *entry) { counts[e]++ })
	return counts
}

// eachInSlots calls f with every reference in the slots of a tenant's connections, under the lock, which it lets go
// between some connections and the next. mu is not held.
func (s *Store) eachInSlots(t *tenant, f func(c *Conn, e *entry)) {
	s.mu.Lock()
	defer s.unlock()
	ix := t.index
	if ix == nil {
		return
	}
	n := 0
	for c, slots := range ix.slots { // goes on with those that are there then
		ix.heldIn(slots, func(e *entry) { f(c, e) })
		if n++; n%slotStep == 0 {
			s.pause(nil)
		}
	}
}

func (c *Conn) holder(refs int, since time.Time) object.Holder {
	return object.Holder{PID: c.owner.PID, Program: c.owner.Name, Tenant: c.tenant.name, Refs: refs, Since: since.UTC()}
}

// indexStatus counts. mu is not held: a client may have thousands of connections, each with all slots in use.
func (s *Store) indexStatus() (st IndexStatus) {
	var tenants []*tenant
	s.mu.Lock()
	for _, t := range s.tenants {
		if ix := t.index; ix != nil {
			tenants = append(tenants, t)
			st.Connections += len(ix.slots)
			st.Objects += ix.table.Live()
			st.Bytes += ix.charged + uint64(len(ix.slots))*index.SlotsBytes
		}
	}
	s.mu.Unlock()
	for _, t := range tenants {
		s.eachInSlots(t, func(*Conn, *entry) { st.References++ })
	}
	return st
}
