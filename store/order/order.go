// Package order keeps things in the order in which they were made, and names places in that order, from which a listing
// goes on. It has no locks: whoever has a List guards it.
package order

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"tendril/store/object"
)

// Cursor is a place in the order of objects: behind the one that was created then and has this id. Neither ever
// changes, not by a restart either, so a listing that goes on from a cursor tells of every object that was there all
// the while, and of each once. The zero Cursor is the beginning.
type Cursor struct {
	created int64 // ns since 1970
	id      object.ID
}

// String gives what Parse reads; "" is the beginning.
func (c Cursor) String() string {
	if c == (Cursor{}) {
		return ""
	}
	return fmt.Sprintf("%x-%s", uint64(c.created), c.id)
}

// At gives the place of what was created then and has this id.
func At(created time.Time, id object.ID) Cursor { return Cursor{created.UnixNano(), id} }

// Parse reads a cursor. Error: ErrInvalid.
func Parse(s string) (c Cursor, err error) {
	if s == "" {
		return c, nil
	}
	created, id, _ := strings.Cut(s, "-")
	ns, err := strconv.ParseUint(created, 16, 64)
	raw, idErr := hex.DecodeString(id)
	if err != nil || idErr != nil || len(raw) != len(c.id) {
		return c, fmt.Errorf("%w: cursor %.60q: want the cursor of the last page, or none", object.ErrInvalid, s)
	}
	c.created = int64(ns)
	copy(c.id[:], raw)
	return c, nil
}

// Compare is negative where c is before d.
func (c Cursor) Compare(d Cursor) int {
	if by := cmp.Compare(c.created, d.created); by != 0 {
		return by
	}
	return bytes.Compare(c.id[:], d.id[:])
}

// Placed has a place, which never changes.
type Placed interface {
	comparable
	Cursor() Cursor
}

// chunkMost bounds a chunk: finding a place in one, and making room there, costs some tenths of a µs.
const chunkMost = 256

// List is things in order, the oldest first. The newest is added at once; anything else costs the logarithm of
// their number and a chunk's length. The zero value is empty.
type List[T Placed] struct {
	chunks []chunk[T]
	n      int
}

// chunk is a part of a List; only the only one may be empty.
type chunk[T Placed] struct {
	from    Cursor // no entry is before it, and those of the chunk before are
	entries []T
}

// Len gives the number of things.
func (l *List[T]) Len() int {
	if l == nil {
		return 0
	}
	return l.n
}

// chunkOf finds the chunk where at is or belongs.
func (l *List[T]) chunkOf(at Cursor) int {
	return max(sort.Search(len(l.chunks), func(i int) bool { return l.chunks[i].from.Compare(at) > 0 })-1, 0)
}

// Insert adds something that is not there.
func (l *List[T]) Insert(e T) {
	at := e.Cursor()
	l.n++
	if len(l.chunks) == 0 {
		l.chunks = append(l.chunks, chunk[T]{})
	}
	last := &l.chunks[len(l.chunks)-1]
	if k := len(last.entries); k == 0 {
		last.from = at
		last.entries = append(last.entries, e)
		return
	} else if last.entries[k-1].Cursor().Compare(at) < 0 {
		if k == chunkMost {
			l.chunks = append(l.chunks, chunk[T]{at, []T{e}})
		} else {
			last.entries = append(last.entries, e)
		}
		return
	}
	l.insertWithin(e, at)
}

// insertWithin is Insert of what is not the newest.
func (l *List[T]) insertWithin(e T, at Cursor) {
	i := l.chunkOf(at)
	if c := &l.chunks[i]; len(c.entries) == chunkMost {
		right := slices.Clone(c.entries[chunkMost/2:])
		clear(c.entries[chunkMost/2:])
		c.entries = c.entries[:chunkMost/2]
		l.chunks = slices.Insert(l.chunks, i+1, chunk[T]{right[0].Cursor(), right})
		if right[0].Cursor().Compare(at) < 0 {
			i++
		}
	}
	c := &l.chunks[i]
	if at.Compare(c.from) < 0 {
		c.from = at
	}
	c.entries = slices.Insert(c.entries, c.behind(at), e)
}

// behind gives the place in the chunk of the first thing behind at.
func (c *chunk[T]) behind(at Cursor) int {
	return sort.Search(len(c.entries), func(i int) bool { return c.entries[i].Cursor().Compare(at) > 0 })
}

// Remove takes something out; false: it was not there.
func (l *List[T]) Remove(e T) bool {
	if l.Len() == 0 {
		return false
	}
	i := l.chunkOf(e.Cursor())
	k := slices.Index(l.chunks[i].entries, e)
	if k < 0 {
		return false
	}
	l.n--
	l.chunks[i].entries = slices.Delete(l.chunks[i].entries, k, k+1)
	l.tidy(i)
	return true
}

// tidy joins a chunk that became small with one beside it, so that few things do not hold many chunks.
func (l *List[T]) tidy(i int) {
	c := &l.chunks[i]
	switch {
	case len(c.entries) > chunkMost/4 || len(l.chunks) == 1:
		return
	case len(c.entries) == 0:
		l.chunks = slices.Delete(l.chunks, i, i+1)
		return
	case i == 0:
		i++ // what follows comes here
	}
	left, right := &l.chunks[i-1], &l.chunks[i]
	if len(left.entries)+len(right.entries) > chunkMost/2 {
		return
	}
	left.entries = append(left.entries, right.entries...)
	l.chunks = slices.Delete(l.chunks, i, i+1)
}

// After appends to list up to n things that stand behind at.
func (l *List[T]) After(list []T, at Cursor, n int) []T {
	if l.Len() == 0 {
		return list
	}
	first := l.chunkOf(at)
	for i := first; i < len(l.chunks) && n > 0; i++ {
		entries := l.chunks[i].entries
		if i == first {
			entries = entries[l.chunks[i].behind(at):]
		}
		entries = entries[:min(n, len(entries))]
		list, n = append(list, entries...), n-len(entries)
	}
	return list
}

// All calls f with each; f alters nothing.
func (l *List[T]) All(f func(T)) {
	if l == nil {
		return
	}
	for _, c := range l.chunks {
		for _, e := range c.entries {
			f(e)
		}
	}
}
