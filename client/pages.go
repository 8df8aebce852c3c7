package client

import (
	"bytes"

	"tendril/store/segment"
)

// shutFromBytes is the size from which an object's pages are made read-only at its seal. A smaller one shares its pages
// with others that are still filled, and two system calls would cost more than its filling.
const shutFromBytes = 64 << 10

// pageShut says of a page that this process can no longer store to it. Any other value is how many unsealed buffers
// begin or end there.
const pageShut = 0x80

// pageTable knows of each page of a segment that this process fills who uses it: a page of sealed objects alone may be
// shut, one of an unsealed buffer must be open. A buffer's inner pages are its own.
type pageTable struct {
	pages []uint8 // pageShut, or a count: at most 64 objects lie in a page
}

func newPageTable(bytes uint64) pageTable {
	return pageTable{make([]uint8, (bytes+segment.PageBytes-1)/segment.PageBytes)}
}

// pageRange is [first, last] of a segment's pages; last < first: none.
type pageRange struct{ first, last int }

func (r pageRange) empty() bool { return r.last < r.first }

// bytes gives what the range covers in a mapping with pages of unit bytes: those that have a part of it, or those that
// have nothing else.
func (r pageRange) bytes(unit uint64, outward bool) (from, to uint64) {
	from, to = uint64(r.first)*segment.PageBytes, uint64(r.last+1)*segment.PageBytes
	if outward {
		return from / unit * unit, (to + unit - 1) / unit * unit
	}
	from, to = (from+unit-1)/unit*unit, to/unit*unit
	return from, max(from, to)
}

// span gives the pages that have a byte of [off, off+n). n is not 0.
func (t *pageTable) span(off, n uint64) pageRange {
	return pageRange{int(off / segment.PageBytes), int((off + n - 1) / segment.PageBytes)}
}

// begin notes an unsealed buffer. What comes back is to be opened, and then said to opened.
func (t *pageTable) begin(off, n uint64) pageRange {
	r := t.span(off, n)
	shut := pageRange{0, -1}
	if i := bytes.IndexByte(t.pages[r.first:r.last+1], pageShut); i >= 0 {
		shut = pageRange{r.first + i, r.first + bytes.LastIndexByte(t.pages[r.first:r.last+1], pageShut)}
	}
	for p := shut.first; p <= shut.last; p++ {
		t.pages[p] &^= pageShut
	}
	t.count(r, 1)
	return shut
}

// end is the reverse of begin: the buffer was sealed or given up.
func (t *pageTable) end(off, n uint64) { t.count(t.span(off, n), ^uint8(0)) }

func (t *pageTable) count(r pageRange, by uint8) {
	t.pages[r.first] += by
	if r.last != r.first {
		t.pages[r.last] += by
	}
}

// shut notes that a sealed object's pages are to be shut, but for a first or last one that an unsealed buffer has a
// part of.
func (t *pageTable) shut(off, n uint64) pageRange {
	r := t.span(off, n)
	if t.pages[r.first]&^pageShut != 0 {
		r.first++
	}
	if !r.empty() && t.pages[r.last]&^pageShut != 0 {
		r.last--
	}
	for p := r.first; p <= r.last; p++ {
		t.pages[p] |= pageShut
	}
	return r
}

// openAll notes that every page is open.
func (t *pageTable) openAll() {
	for i := range t.pages {
		t.pages[i] &^= pageShut
	}
}
