package fsm

import (
	"cmp"
	"container/heap"
	"slices"
)

// maxNameChanges bounds what a State remembers of published names that came and went. Where there are more, the tenant
// of which most is remembered forgets its oldest: so none has another's forgotten that has fewer.
const maxNameChanges = 1024

// NameChange is a name that was published, or is published no longer.
type NameChange struct {
	Published bool // else it is no longer
	Tenant    string
	Name      string
	ID        UUID // the object's
	SizeBytes uint64
	At        int64 // Unix ns

	number uint64 // of all changes, from 1
}

// nameChanges are the last ones, in this State's life: nothing of them is in a snapshot.
type nameChanges struct {
	count   uint64 // of all so far
	held    int    // that are remembered
	lost    uint64 // the last one of a tenant that is remembered no longer
	tenants map[string]*tenantChanges
	most    changesHeap // the same: first the one of which most is remembered
}

// tenantChanges are one tenant's, at least one.
type tenantChanges struct {
	tenant string
	last   []NameChange
	lost   uint64 // the last one that is remembered no longer; 0: there is none
	place  int    // in the heap
}

// noteName remembers that an object's name is published, or is no longer.
func (s *State) noteName(o *Object, published bool) {
	x := &s.nameChanges
	x.count++
	t := x.tenants[o.Tenant]
	if t == nil {
		if x.tenants == nil {
			x.tenants = map[string]*tenantChanges{}
		}
		t = &tenantChanges{tenant: o.Tenant}
		x.tenants[o.Tenant] = t
		heap.Push(&x.most, t)
	}
	t.last = append(t.last, NameChange{published, o.Tenant, o.Name, o.ID, o.SizeBytes, s.now, x.count})
	heap.Fix(&x.most, t.place)
	if x.held++; x.held > maxNameChanges {
		x.forget()
	}
}

// forget forgets the oldest change of the tenant of which most is remembered.
func (x *nameChanges) forget() {
	t := x.most[0]
	t.lost = t.last[0].number
	t.last[0] = NameChange{}
	t.last = t.last[1:]
	x.held--
	if len(t.last) > 0 {
		heap.Fix(&x.most, t.place)
		return
	}
	heap.Remove(&x.most, t.place)
	delete(x.tenants, t.tenant)
	x.lost = max(x.lost, t.lost)
}

// NameChanges gives what came behind the first n changes of published names in this State's life, in order, and how
// many there are now. missed are the tenants of which some of them are remembered no longer; all: others may be, too.
func (s *State) NameChanges(n uint64) (list []NameChange, now uint64, missed []string, all bool) {
	x := &s.nameChanges
	if n == x.count {
		return nil, n, nil, false
	}
	for tenant, t := range x.tenants {
		if t.lost > n {
			missed = append(missed, tenant)
		}
		at, _ := slices.BinarySearchFunc(t.last, n+1,
			func(c NameChange, n uint64) int { return cmp.Compare(c.number, n) })
		list = append(list, t.last[at:]...)
	}
	slices.SortFunc(list, func(a, b NameChange) int { return cmp.Compare(a.number, b.number) })
	slices.Sort(missed)
	return list, x.count, missed, n > x.count || x.lost > n
}

// changesHeap has the tenant with the most changes first: a heap.Interface.
type changesHeap []*tenantChanges

// Len implements heap.Interface.
func (h changesHeap) Len() int { return len(h) }

// Less implements heap.Interface.
func (h changesHeap) Less(i, j int) bool { return len(h[i].last) > len(h[j].last) }

// Swap implements heap.Interface.
func (h changesHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push implements heap.Interface.
func (h *changesHeap) Push(x any) {
	t := x.(*tenantChanges)
	t.place = len(*h)
	*h = append(*h, t)
}

// Pop implements heap.Interface.
func (h *changesHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return t
}
