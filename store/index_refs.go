package store

import (
	"maps"
	"slices"
	"time"

	"tendril/ipc/index"
)

// References in slots, for descriptions: the store counts them when it is asked, and only then.

// IndexStatus is the index in shared memory in numbers.
type IndexStatus struct {
	Connections int    `json:"connections"` // that have it
	Objects     int    `json:"objects"`     // in it, or held by a slot since they went out of it
	References  int    `json:"references"`  // in slots; Status.References counts them, too
	Bytes       uint64 `json:"bytes"`       // tables and slots; part of what is charged
}

// retired gives the objects of the records that are retired and not free yet. mu is held.
func (ix *tenantIndex) retired() map[index.Word]*entry {
	retired := make(map[index.Word]*entry)
	for _, r := range slices.Concat(ix.fresh, ix.kept) {
		retired[r.word] = r.e
	}
	return retired
}

// heldIn calls f with every reference in one connection's slots. mu is held.
func (ix *tenantIndex) heldIn(slots *index.Slots, retired map[index.Word]*entry, f func(*entry)) {
	ix.held = slots.Held(ix.held[:0])
	for _, w := range ix.held {
		if e, ok := ix.table.Owner(w); ok {
			f(e)
		} else if e := retired[w]; e != nil {
			f(e)
		}
	}
}

// slotRefs gives what is to be added to entry.refs for the number of references: those in slots, less those that retired records
// hold.
type slotRefs map[*tenant]map[*entry]int

// slotStep is how many connections' slots a count looks at in one hold of the lock.
const slotStep = 16

// add adds references in slots to descriptions of entries. mu is not held: a tenant's slots are counted once, and not in one hold.
func (m slotRefs) add(s *Store, seen []sight) {
	for i := range seen {
		e := seen[i].e
		counts, known := m[e.tenant]
		if !known {
			counts = s.countSlots(e.tenant)
			m[e.tenant] = counts
		}
		seen[i].info.Refs = max(seen[i].info.Refs+counts[e], 0) // they were not counted at one time
	}
}

// countSlots counts one tenant's. mu is not held.
func (s *Store) countSlots(t *tenant) map[*entry]int {
	counts := make(map[*entry]int)
	for _, r := range s.eachInSlots(t, func(_ *Conn, e *entry) { counts[e]++ }) {
		counts[r.e]--
	}
	return counts
}

// eachInSlots calls f with every reference in the slots of a tenant's connections, under the lock, which it lets go between some
// connections and the next. It gives the records that were retired. mu is not held.
func (s *Store) eachInSlots(t *tenant, f func(c *Conn, e *entry)) []retirement {
	s.mu.Lock()
	ix := t.index
	if ix == nil {
		s.mu.Unlock()
		return nil
	}
	conns := slices.Collect(maps.Keys(ix.slots))
	records := slices.Concat(ix.fresh, ix.kept)
	s.mu.Unlock()
	retired := make(map[index.Word]*entry, len(records))
	for _, r := range records {
		retired[r.word] = r.e
	}
	for step := range slices.Chunk(conns, slotStep) {
		s.mu.Lock()
		for _, c := range step {
			if slots := ix.slots[c]; slots != nil && t.index == ix { // else it has ended
				ix.heldIn(slots, retired, func(e *entry) { f(c, e) })
			}
		}
		s.mu.Unlock()
	}
	return records
}

func (c *Conn) holder(refs int, since time.Time) Holder {
	return Holder{PID: c.owner.PID, Program: c.owner.Name, Tenant: c.tenant.name, Refs: refs, Since: since.UTC()}
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
