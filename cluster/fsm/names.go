package fsm

import (
	"cmp"
	"slices"
)

// nameKey is a published name: of one tenant's objects each has another.
type nameKey struct{ tenant, name string }

func compareNames(a, b nameKey) int {
	return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.name, b.name))
}

// chunkNames bounds a chunk of a nameList.
const chunkNames = 256

// nameList is names in order, in chunks of which none is empty: to add or remove one, or to find a place, costs the
// logarithm of their number and a chunk's length. The zero value is empty.
type nameList struct{ chunks [][]nameKey }

// chunkOf finds the chunk where a name is or belongs.
func (l *nameList) chunkOf(k nameKey) int {
	i, found := slices.BinarySearchFunc(l.chunks, k, func(c []nameKey, k nameKey) int { return compareNames(c[0], k) })
	if found {
		return i
	}
	return max(i-1, 0)
}

// add puts in a name that is not there.
func (l *nameList) add(k nameKey) {
	if len(l.chunks) == 0 {
		l.chunks = append(l.chunks, []nameKey{k})
		return
	}
	i := l.chunkOf(k)
	at, _ := slices.BinarySearchFunc(l.chunks[i], k, compareNames)
	c := slices.Insert(l.chunks[i], at, k)
	l.chunks[i] = c
	if len(c) <= chunkNames {
		return
	}
	half := len(c) / 2
	if at == len(c)-1 { // names that come in order leave full chunks behind
		half = at
	}
	l.chunks = slices.Insert(l.chunks, i+1, slices.Clone(c[half:]))
	l.chunks[i] = slices.Clone(c[:half]) // the old array has room for twice as many
}

// remove takes a name out.
func (l *nameList) remove(k nameKey) {
	if len(l.chunks) == 0 {
		return
	}
	i := l.chunkOf(k)
	at, found := slices.BinarySearchFunc(l.chunks[i], k, compareNames)
	if !found {
		return
	}
	if l.chunks[i] = slices.Delete(l.chunks[i], at, at+1); len(l.chunks[i]) == 0 {
		l.chunks = slices.Delete(l.chunks, i, i+1)
	}
}

// from calls f with the names from k on, in order, until f answers false.
func (l *nameList) from(k nameKey, f func(nameKey) bool) {
	if len(l.chunks) == 0 {
		return
	}
	first := l.chunkOf(k)
	for i, c := range l.chunks[first:] {
		if i == 0 {
			at, _ := slices.BinarySearchFunc(c, k, compareNames)
			c = c[at:]
		}
		for _, k := range c {
			if !f(k) {
				return
			}
		}
	}
}

// bind gives an object its name, which no other has.
func (s *State) bind(k nameKey, id UUID) {
	if _, there := s.names[k]; !there {
		s.ordered.add(k)
	}
	s.names[k] = id
}

// unbind takes a name away.
func (s *State) unbind(k nameKey) {
	delete(s.names, k)
	s.ordered.remove(k)
}
