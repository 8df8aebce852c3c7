package store

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"tendril/store/object"
)

// Cursor is a place in the order of objects: behind the one that was created then and has this id. Neither ever
// changes, not by a restart either, so a listing that goes on from a cursor tells of every object that was there all
// the while, and of each once. The zero Cursor is the beginning.
type Cursor struct {
	created int64 // ns since 1970
	id      object.ID
}

// String gives what ParseCursor reads; "" is the beginning.
func (c Cursor) String() string {
	if c == (Cursor{}) {
		return ""
	}
	return fmt.Sprintf("%x-%s", uint64(c.created), c.id)
}

// ParseCursor reads a cursor. Error: ErrInvalid.
func ParseCursor(s string) (c Cursor, err error) {
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

func (c Cursor) compare(d Cursor) int {
	if by := cmp.Compare(c.created, d.created); by != 0 {
		return by
	}
	return bytes.Compare(c.id[:], d.id[:])
}

// cursor gives the place of an object.
func (e *entry) cursor() Cursor { return Cursor{e.created.UnixNano(), e.id} }

// chunkMost bounds a chunk: finding a place in one, and making room there, costs some tenths of a µs.
const chunkMost = 256

// entryList is objects in order, the oldest first. The newest is added at once; anything else costs the logarithm of
// their number and a chunk's length. The zero value is empty.
type entryList struct {
	chunks []chunk
	n      int
}

// chunk is a part of an entryList; only the only one may be empty.
type chunk struct {
	from    Cursor // no entry is before it, and those of the chunk before are
	entries []*entry
}

// len gives the number of objects.
func (l *entryList) len() int {
	if l == nil {
		return 0
	}
	return l.n
}

// chunkOf finds the chunk where at is or belongs.
func (l *entryList) chunkOf(at Cursor) int {
	return max(sort.Search(len(l.chunks), func(i int) bool { return l.chunks[i].from.compare(at) > 0 })-1, 0)
}

// insert adds an object, which is not there.
func (l *entryList) insert(e *entry) {
	at := e.cursor()
	l.n++
	if len(l.chunks) == 0 {
		l.chunks = append(l.chunks, chunk{})
	}
	last := &l.chunks[len(l.chunks)-1]
	if k := len(last.entries); k == 0 {
		last.from = at
		last.entries = append(last.entries, e)
		return
	} else if last.entries[k-1].cursor().compare(at) < 0 {
		if k == chunkMost {
			l.chunks = append(l.chunks, chunk{at, []*entry{e}})
		} else {
			last.entries = append(last.entries, e)
		}
		return
	}
	l.insertWithin(e, at)
}

// insertWithin is insert of what is not the newest.
func (l *entryList) insertWithin(e *entry, at Cursor) {
	i := l.chunkOf(at)
	if c := &l.chunks[i]; len(c.entries) == chunkMost {
		right := slices.Clone(c.entries[chunkMost/2:])
		clear(c.entries[chunkMost/2:])
		c.entries = c.entries[:chunkMost/2]
		l.chunks = slices.Insert(l.chunks, i+1, chunk{right[0].cursor(), right})
		if right[0].cursor().compare(at) < 0 {
			i++
		}
	}
	c := &l.chunks[i]
	if at.compare(c.from) < 0 {
		c.from = at
	}
	c.entries = slices.Insert(c.entries, c.behind(at), e)
}

// behind gives the place in the chunk of the first object behind at.
func (c *chunk) behind(at Cursor) int {
	return sort.Search(len(c.entries), func(i int) bool { return c.entries[i].cursor().compare(at) > 0 })
}

// remove takes an object out; false: it was not there.
func (l *entryList) remove(e *entry) bool {
	if l.len() == 0 {
		return false
	}
	i := l.chunkOf(e.cursor())
	k := slices.Index(l.chunks[i].entries, e)
	if k < 0 {
		return false
	}
	l.n--
	l.chunks[i].entries = slices.Delete(l.chunks[i].entries, k, k+1)
	l.tidy(i)
	return true
}

// tidy joins a chunk that became small with one beside it, so that few objects do not hold many chunks.
func (l *entryList) tidy(i int) {
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

// after appends to list up to n objects that stand behind at.
func (l *entryList) after(list []*entry, at Cursor, n int) []*entry {
	if l.len() == 0 {
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

// all calls f with each; f alters nothing.
func (l *entryList) all(f func(*entry)) {
	if l == nil {
		return
	}
	for _, c := range l.chunks {
		for _, e := range c.entries {
			f(e)
		}
	}
}

// CursorOf gives the place of an object that was described.
func CursorOf(info object.Info) Cursor { return Cursor{info.Created.UnixNano(), info.ID} }
