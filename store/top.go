package store

import (
	"cmp"
	"container/heap"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"tendril/store/object"
	"tendril/store/order"
)

// Holder and Held are object's.
type (
	Holder = object.Holder
	Held   = object.Held
)

// holding is who holds one object.
type holding struct {
	of   map[*Conn]Holder
	more int // who found no place there
}

func (h *holding) add(c *Conn, refs int, since time.Time) {
	x, listed := h.of[c]
	switch {
	case !listed && len(h.of) >= maxHolders:
		h.more++
		return
	case !listed:
		x = c.holder(0, since)
	}
	if h.of == nil {
		h.of = make(map[*Conn]Holder)
	}
	x.Refs += refs
	h.of[c] = x
}

// list gives them, who held it first first.
func (h *holding) list() []Holder {
	list := slices.SortedFunc(maps.Values(h.of), func(a, b Holder) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.PID, b.PID))
	})
	return append([]Holder{}, list...)
}

// TopCursor is a place in the order of Top: behind the object of so many bytes there. The zero TopCursor is the
// beginning.
type TopCursor struct {
	size uint64
	at   order.Cursor
}

// String gives what ParseTopCursor reads; "" is the beginning.
func (c TopCursor) String() string {
	if c == (TopCursor{}) {
		return ""
	}
	return fmt.Sprintf("%x-%s", c.size, c.at)
}

// ParseTopCursor reads a cursor. Error: ErrInvalid.
func ParseTopCursor(s string) (c TopCursor, err error) {
	if s == "" {
		return c, nil
	}
	size, at, _ := strings.Cut(s, "-")
	if c.size, err = strconv.ParseUint(size, 16, 64); err == nil {
		c.at, err = order.Parse(at)
	}
	if err != nil || at == "" {
		return c, fmt.Errorf("%w: cursor %.60q: want the cursor of the last page, or none", object.ErrInvalid, s)
	}
	return c, nil
}

func (e *entry) topCursor() TopCursor { return TopCursor{e.size, e.Cursor()} }

// compare puts the larger one first.
func (c TopCursor) compare(d TopCursor) int {
	if by := cmp.Compare(d.size, c.size); by != 0 {
		return by
	}
	return c.at.Compare(d.at)
}

// Top gives the tenant's largest objects, at most limit, with who holds them and since when, and the place behind each
// for the next call. It looks at all of the tenant's objects and at all connections, but never at many in one hold of
// the lock.
func (c *Conn) Top(limit int, from TopCursor) ([]Held, []TopCursor) {
	entries := c.largest(limit, from)
	list, places := make([]Held, 0, len(entries)), make([]TopCursor, 0, len(entries))
	seen := make([]sight, 0, len(entries))
	for step := range slices.Chunk(entries, lookStep) {
		c.s.mu.Lock()
		for _, e := range step {
			seen, places = append(seen, c.s.sightOf(e)), append(places, e.topCursor())
		}
		c.s.endStep()
	}
	who := c.holders(seen)
	for i := range seen {
		list = append(list, Held{Info: seen[i].describe(), Holders: who[i].list(), MoreHolders: who[i].more})
	}
	return list, places
}

// smallest is a heap of the objects chosen so far, the one to be given up first at its top.
type smallest []*entry

func (h smallest) Len() int           { return len(h) }
func (h smallest) Less(i, j int) bool { return h[i].topCursor().compare(h[j].topCursor()) > 0 }
func (h smallest) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *smallest) Push(x any)        { *h = append(*h, x.(*entry)) }
func (h *smallest) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// largest finds the tenant's largest objects behind a place, in their order.
func (c *Conn) largest(limit int, from TopCursor) []*entry {
	var chosen smallest
	var step []*entry
	at := order.Cursor{}
	for limit > 0 {
		c.s.mu.Lock()
		step = c.tenant.entries.After(step[:0], at, walkStep)
		c.s.endStep()
		if len(step) == 0 {
			break
		}
		at = step[len(step)-1].Cursor()
		for _, e := range step { // of what is immutable
			switch {
			case from != (TopCursor{}) && from.compare(e.topCursor()) >= 0:
			case len(chosen) < limit:
				heap.Push(&chosen, e)
			case e.topCursor().compare(chosen[0].topCursor()) < 0:
				chosen[0] = e
				heap.Fix(&chosen, 0)
			}
		}
	}
	slices.SortFunc(chosen, func(a, b *entry) int { return a.topCursor().compare(b.topCursor()) })
	return chosen
}

// holders says who holds the objects, and adds what is in slots to their descriptions.
func (c *Conn) holders(seen []sight) []holding {
	s := c.s
	at := make(map[*entry]int, len(seen))
	for i, x := range seen {
		at[x.e] = i
	}
	who := make([]holding, len(seen))
	s.mu.Lock()
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for step := range slices.Chunk(conns, max(walkStep/(len(seen)+1), 1)) {
		s.mu.Lock()
		for _, other := range step {
			if len(other.refs) == 0 {
				continue
			}
			for i := range seen {
				if r, held := other.refs[seen[i].e.id]; held {
					who[i].add(other, r.count, r.since)
				}
			}
		}
		s.endStep()
	}
	// a reference there is as old as its connection's index
	s.eachInSlots(c.tenant, func(other *Conn, e *entry) {
		if i, wanted := at[e]; wanted {
			who[i].add(other, 1, other.indexed)
			seen[i].info.Refs++
		}
	})
	return who
}
