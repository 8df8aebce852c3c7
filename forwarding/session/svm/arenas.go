package svm

import (
	"slices"
	"sync"

	"tendril/forwarding/clwire"
	"tendril/store/alloc"
)

// Sizes in bytes: allocations below SmallBytes share arenas, which have ArenaBytes. A driver's own allocation takes a
// millisecond and 2 MiB (NVIDIA 580); shared memory takes a descriptor and a mapping in each process.
const (
	SmallBytes = 256 << 10
	ArenaBytes = 2 << 20
	TypeAlign  = clwire.SVMTypeAlign // of every part, in bytes
)

// Arenas hands out parts of larger allocations, by kind: what the parts have in common. The zero value has none.
type Arenas[T comparable] struct {
	mu   sync.Mutex // leaf
	list []arena[T]
}

type arena[T comparable] struct {
	kind   uint64
	what   T
	ranges *alloc.Ranges
}

// Take gives n bytes of an arena of a kind, aligned to clwire.SVMTypeAlign; false: none has room.
func (a *Arenas[T]) Take(kind, n uint64) (what T, off uint64, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, one := range a.list {
		if one.kind != kind {
			continue
		}
		if off, ok := one.ranges.Alloc(n, clwire.SVMTypeAlign); ok {
			return one.what, off, true
		}
	}
	return what, 0, false
}

// Add makes an arena of an allocation of ArenaBytes, and gives its first n bytes, which are at offset 0.
func (a *Arenas[T]) Add(kind uint64, what T, n uint64) {
	ranges := alloc.New(ArenaBytes)
	ranges.Alloc(n, clwire.SVMTypeAlign) // it is empty: there is room, at its beginning
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = append(a.list, arena[T]{kind, what, ranges})
}

// Give takes a part back. last: nobody has a part of that arena any more, and it is no arena now.
func (a *Arenas[T]) Give(what T, off uint64) (last bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, one := range a.list {
		if one.what != what {
			continue
		}
		_ = one.ranges.Free(off) // what was given is given back once: the table has it once
		if one.ranges.Count() > 0 {
			return false
		}
		a.list = slices.Delete(a.list, i, i+1)
		return true
	}
	return true // it never was an arena
}
