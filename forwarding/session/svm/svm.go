// Package svm finds the shared virtual memory that an address lies in (OpenCL 3.0 §5.6): a table of ranges that do not
// meet, by their first byte.
//
// Trust: addresses are whatever a program passes. Locks: Table.mu is a leaf.
package svm

import (
	"cmp"
	"slices"
	"sync"
)

// Table keeps ranges, each with what it belongs to. The zero value has none.
type Table[T any] struct {
	mu   sync.RWMutex
	list []entry[T] // by address
}

type entry[T any] struct {
	at   uintptr
	n    uint64 // bytes
	what T
}

func (t *Table[T]) searchLocked(at uintptr) (int, bool) {
	return slices.BinarySearchFunc(t.list, at, func(e entry[T], at uintptr) int { return cmp.Compare(e.at, at) })
}

// Add notes n bytes at an address, where no other range lies.
func (t *Table[T]) Add(at uintptr, n uint64, what T) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, _ := t.searchLocked(at)
	t.list = slices.Insert(t.list, i, entry[T]{at, n, what})
}

// Find gives what an address lies in, and how far from its beginning. The address right behind a range is found too: a
// program may point there. ok false: in none.
func (t *Table[T]) Find(at uintptr) (what T, off uint64, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	i, exact := t.searchLocked(at)
	if !exact {
		i--
	}
	if i < 0 || uint64(at-t.list[i].at) > t.list[i].n {
		return what, 0, false
	}
	return t.list[i].what, uint64(at - t.list[i].at), true
}

// Remove forgets the range that begins at an address, if it is wanted, and gives what it belonged to.
func (t *Table[T]) Remove(at uintptr, wanted func(T) bool) (what T, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, exact := t.searchLocked(at)
	if !exact || !wanted(t.list[i].what) {
		return what, false
	}
	what = t.list[i].what
	t.list = slices.Delete(t.list, i, i+1)
	return what, true
}
