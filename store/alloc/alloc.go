// Package alloc hands out byte ranges of [0, size): the objects inside a segment, the buffers inside a slab.
// It owns no memory, only numbers. It trusts its caller for mutual exclusion (a Ranges is not safe for
// concurrent use) and for nothing else: a wrong Free is refused. No locks.
//
// Free ranges stand in a treap ordered by offset, each node knowing the longest range below it, so that the
// lowest range that fits is found in O(log n): first fit by address, which keeps the far end whole.
package alloc

import (
	"errors"
	"fmt"
)

// ErrNotAllocated is Free's answer to an offset that Alloc did not give, or that was freed already.
var ErrNotAllocated = errors.New("not allocated")

// MaxBytes is the most that one Ranges can cover.
const MaxBytes = 1 << 62

// Granule is the unit of allocation in bytes: every offset and length is a multiple of it.
const Granule = 64

// nodeIndex points into Ranges.nodes; 0 is "none".
type nodeIndex int32

// node is one free range.
type node struct {
	off, len    uint64 // bytes; multiples of Granule
	longest     uint64 // longest len in this subtree
	priority    uint32 // heap order
	left, right nodeIndex
}

// Ranges is an allocator. The zero value is empty; use New. Not safe for concurrent use.
type Ranges struct {
	size      uint64
	used      uint64
	root      nodeIndex
	spare     nodeIndex // list of unused nodes, linked by left
	seed      uint32
	nodes     []node // nodes[0] is the none node, with longest 0
	count     int
	allocated map[uint64]uint64 // offset → length; nil: the owner knows the lengths
}

// New makes an allocator over [0, size) bytes, all of it free. A tail shorter than a Granule is never used, nor
// anything beyond MaxBytes.
func New(size uint64) *Ranges {
	r := NewSized(size)
	r.allocated = make(map[uint64]uint64)
	return r
}

// NewSized is New for an owner that keeps the length of what it got, and gives it back with FreeSized: the book of
// lengths is the larger part of what Alloc and Free cost.
func NewSized(size uint64) *Ranges {
	r := &Ranges{size: min(size, MaxBytes) &^ (Granule - 1), seed: 0x9E3779B9, nodes: make([]node, 1, 16)}
	if r.size > 0 {
		r.insertFree(0, r.size)
	}
	return r
}

// Alloc takes n bytes (rounded up to a Granule; 0 counts as 1) at an offset that is a multiple of align, a power
// of two (0 and anything below Granule count as Granule). It fails only when no free range can hold them.
// Cost: O(log n), except where align is above Granule and only ranges without room to spare are left.
func (r *Ranges) Alloc(n, align uint64) (off uint64, ok bool) {
	if n > r.size || align&(align-1) != 0 {
		return 0, false
	}
	n, align = rounded(n), r.alignment(align)
	at := r.firstThatFits(n, align)
	if at == 0 {
		return 0, false
	}
	return r.carve(at, n, align), true
}

// Fits reports whether Alloc of the same would find room.
func (r *Ranges) Fits(n, align uint64) bool {
	return n <= r.size && align&(align-1) == 0 && r.firstThatFits(rounded(n), r.alignment(align)) != 0
}

func (r *Ranges) alignment(align uint64) uint64 {
	align = max(align, Granule)
	if align > r.size && align != Granule { // only offset 0 is aligned so far; keeps sums from overflowing
		align = ceilPowerOfTwo(r.size)
	}
	return align
}

func (r *Ranges) firstThatFits(n, align uint64) nodeIndex {
	at := r.firstAtLeast(r.root, n+align-Granule)
	if at == 0 && align > Granule {
		at = r.firstAligned(r.root, n, align)
	}
	return at
}

// Free gives back what Alloc gave. An offset that is not allocated is ErrNotAllocated and changes nothing.
func (r *Ranges) Free(off uint64) error {
	n, ok := r.allocated[off]
	if !ok {
		return fmt.Errorf("%w: offset %d", ErrNotAllocated, off)
	}
	delete(r.allocated, off)
	r.free(off, n)
	return nil
}

// FreeSized gives back the n bytes that Alloc of a NewSized gave at off. Bytes of which some are free already are
// ErrNotAllocated and change nothing; a length that is not that of the Alloc is not noticed otherwise.
func (r *Ranges) FreeSized(off, n uint64) error {
	if n > r.size || off > r.size-rounded(n) || off%Granule != 0 || r.anyFree(off, rounded(n)) {
		return fmt.Errorf("%w: %d bytes at offset %d", ErrNotAllocated, n, off)
	}
	r.free(off, rounded(n))
	return nil
}

// free puts an allocated range back.
func (r *Ranges) free(off, n uint64) {
	r.count--
	r.used -= n
	before, after := r.endingAt(off), r.startingAt(off+n)
	switch {
	case before != 0 && after != 0:
		n += r.nodes[after].len
		r.removeFree(r.nodes[after].off)
		r.resize(before, r.nodes[before].off, r.nodes[before].len+n)
	case before != 0:
		r.resize(before, r.nodes[before].off, r.nodes[before].len+n)
	case after != 0:
		r.resize(after, off, r.nodes[after].len+n)
	default:
		r.insertFree(off, n)
	}
}

// Used gives the bytes now allocated, rounding included.
func (r *Ranges) Used() uint64 { return r.used }

// Count gives the number of allocations.
func (r *Ranges) Count() int { return r.count }

// Size gives the bytes that the allocator was made over, less an unusable tail.
func (r *Ranges) Size() uint64 { return r.size }

// Largest gives the length in bytes of the longest free range. O(1).
func (r *Ranges) Largest() uint64 { return r.nodes[r.root].longest }

// carve takes n bytes out of the free range at, from its lowest aligned offset.
func (r *Ranges) carve(at nodeIndex, n, align uint64) uint64 {
	free := r.nodes[at]
	off := alignUp(free.off, align)
	end := free.off + free.len
	switch {
	case off > free.off:
		r.resize(at, free.off, off-free.off)
		if end > off+n {
			r.insertFree(off+n, end-off-n)
		}
	case end > off+n:
		r.resize(at, off+n, end-off-n)
	default:
		r.removeFree(free.off)
	}
	if r.allocated != nil {
		r.allocated[off] = n
	}
	r.count++
	r.used += n
	return off
}

// rounded is what n bytes take.
func rounded(n uint64) uint64 { return max((n+Granule-1)&^(Granule-1), Granule) }

func alignUp(off, align uint64) uint64 { return (off + align - 1) &^ (align - 1) }

func ceilPowerOfTwo(n uint64) uint64 {
	p := uint64(Granule)
	for p < n {
		p <<= 1
	}
	return p
}
