package store

import (
	"cmp"
	"sort"
	"sync"
	"time"

	"tendril/store/segment"
)

// Kept is what a tenant's memory that was given up comes to, and who has it: for an administrator. The JSON travels.
type Kept struct {
	Tenant   string    `json:"tenant"` // who is charged
	Bytes    uint64    `json:"bytes"`
	Segments int       `json:"segments"`
	Since    time.Time `json:"since"` // of the oldest
	// Holders has those processes that the daemon may look into, who has most first; not whole: there may be more.
	Holders []Keeper `json:"holders"`
	Whole   bool     `json:"whole"`
}

// Keeper is a process that has some of it.
type Keeper struct {
	PID      int    `json:"pid"`
	UID      uint32 `json:"uid"`
	Program  string `json:"program"`
	Bytes    uint64 `json:"bytes"`
	Segments int    `json:"segments"`
}

const (
	keptAfter   = time.Second // memory that was given up just now is about to be unmapped
	maxKeepers  = 16          // told of one tenant
	searchTime  = time.Second
	searchEvery = 10 * time.Second // looking through all processes takes some 0.1 ms each
)

// search is the last search for who has memory that was given up.
type search struct {
	segment.Search
	limit time.Duration // of each; 0: searchTime. Immutable
	mu    sync.Mutex    // over the whole of a search; Store.mu may be taken under it
	at    time.Time
	list  []Kept
}

// Kept says, a tenant each, what was given up more than a second ago and is not free, and who has it. It looks
// through the machine's processes, every ten seconds at most: what it says may be as old as that.
func (s *Store) Kept() []Kept {
	s.search.mu.Lock()
	defer s.search.mu.Unlock()
	if time.Since(s.search.at) < searchEvery {
		return s.search.list
	}
	inodes, of := s.keptInodes()
	s.search.list = nil
	if len(inodes) > 0 {
		holders, whole := s.search.Find(inodes, cmp.Or(s.search.limit, searchTime))
		s.search.list = listKept(of, holders, whole)
		s.search.at = time.Now()
	}
	return s.search.list
}

// keptOf is a remnant as Kept sees it.
type keptOf struct {
	tenant string
	bytes  uint64
	since  time.Time
}

// keptInodes gives what has been kept for a while, by inode number.
func (s *Store) keptInodes() (inodes map[uint64]struct{}, of map[uint64]keptOf) {
	inodes, of = make(map[uint64]struct{}), make(map[uint64]keptOf)
	s.mu.Lock()
	old, steps := false, 0
	for _, r := range s.remnants {
		if old = !r.used && time.Since(r.since) >= keptAfter; old {
			break
		}
		s.breathe(&steps)
	}
	if old = old && !s.closed; old {
		s.transfers.Add(1)
		defer s.transfers.Done()
	}
	s.unlock()
	if !old {
		return inodes, of
	}
	alive, err := s.watch.Alive()
	if err != nil {
		return inodes, of
	}
	s.mu.Lock()
	defer s.unlock()
	for number, inode := range alive {
		s.breathe(&steps)
		if r := s.remnants[number]; r != nil && !r.used && time.Since(r.since) >= keptAfter {
			inodes[inode] = struct{}{}
			of[inode] = keptOf{r.tenant.name, r.bytes, r.since}
		}
	}
	return inodes, of
}

func listKept(of map[uint64]keptOf, holders []segment.Holder, whole bool) []Kept {
	byTenant := make(map[string]*Kept)
	for _, o := range of {
		k := byTenant[o.tenant]
		if k == nil {
			k = &Kept{Tenant: o.tenant, Since: o.since.UTC(), Holders: []Keeper{}, Whole: whole}
			byTenant[o.tenant] = k
		}
		k.Bytes += o.bytes
		k.Segments++
		if o.since.Before(k.Since) {
			k.Since = o.since.UTC()
		}
	}
	for _, h := range holders {
		has := make(map[string]*Keeper)
		for inode := range h.Inodes {
			o := of[inode]
			if has[o.tenant] == nil {
				has[o.tenant] = &Keeper{PID: h.PID, UID: h.UID, Program: h.Name}
			}
			has[o.tenant].Bytes += o.bytes
			has[o.tenant].Segments++
		}
		for name, keeper := range has {
			byTenant[name].Holders = append(byTenant[name].Holders, *keeper)
		}
	}
	list := make([]Kept, 0, len(byTenant))
	for _, k := range byTenant {
		sort.Slice(k.Holders, func(i, j int) bool { return k.Holders[i].Bytes > k.Holders[j].Bytes })
		if len(k.Holders) > maxKeepers {
			k.Holders, k.Whole = k.Holders[:maxKeepers], false
		}
		list = append(list, *k)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Tenant < list[j].Tenant })
	return list
}
