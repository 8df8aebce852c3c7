package store

import (
	"slices"
	"time"

	"tendril/ipc/index"
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

// inSlots calls f with every reference in the slots of a tenant's connections. mu is held.
func (t *tenant) inSlots(f func(c *Conn, e *entry)) {
	ix := t.index
	if ix == nil {
		return
	}
	retired := ix.retired()
	for c, slots := range ix.slots {
		ix.heldIn(slots, retired, func(e *entry) { f(c, e) })
	}
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
// hold. mu is held.
type slotRefs map[*tenant]map[*entry]int

func (m slotRefs) of(e *entry) int {
	if e.tenant.index == nil {
		return 0
	}
	counts, known := m[e.tenant]
	if !known {
		counts = make(map[*entry]int)
		e.tenant.inSlots(func(_ *Conn, e *entry) { counts[e]++ })
		for _, held := range e.tenant.index.retired() {
			counts[held]--
		}
		m[e.tenant] = counts
	}
	return counts[e]
}

// info describes an object with its references in slots. mu is held.
func (m slotRefs) info(e *entry) object.Info {
	info := e.info()
	info.Refs += m.of(e)
	return info
}

// slotHolders gives a tenant's connections that hold objects in slots. mu is held.
func (t *tenant) slotHolders() map[*entry]map[*Conn]int {
	holders := make(map[*entry]map[*Conn]int)
	t.inSlots(func(c *Conn, e *entry) {
		if holders[e] == nil {
			holders[e] = make(map[*Conn]int)
		}
		holders[e][c]++
	})
	return holders
}

// addSlots adds references in slots to a list of holders: each is as old as its connection's index. mu is held.
func addSlots(list []Holder, slots map[*Conn]int, at map[*Conn]int) []Holder {
	for c, n := range slots {
		if i, listed := at[c]; listed {
			list[i].Refs += n
			continue
		}
		list = append(list, c.holder(n, c.indexed))
	}
	return list
}

func (c *Conn) holder(refs int, since time.Time) Holder {
	return Holder{PID: c.owner.PID, Program: c.owner.Name, Tenant: c.tenant.name, Refs: refs, Since: since.UTC()}
}

// indexStatus counts. mu is held.
func (s *Store) indexStatus() (st IndexStatus) {
	for _, t := range s.tenants {
		if ix := t.index; ix != nil {
			st.Connections += len(ix.slots)
			st.Objects += ix.table.Live()
			st.Bytes += ix.charged + uint64(len(ix.slots))*index.SlotsBytes
			t.inSlots(func(*Conn, *entry) { st.References++ })
		}
	}
	return st
}
