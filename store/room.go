package store

import (
	"math/bits"

	"tendril/store/alloc"
)

// roomBuckets holds a connection's segments for small objects by the power of two of their longest free range, so
// that finding room costs the same for one segment and for ten thousand.
type roomBuckets struct {
	buckets [48][]*segmentState // 0: full; b: longest range in [64·2^(b-1), 64·2^b)
	used    uint64              // bytes of all of them that are taken
}

func bucketOf(bytes uint64) int { return min(bits.Len64(bytes/64), len(roomBuckets{}.buckets)-1) }

// scanLimit bounds the look at segments that may or may not have room.
const scanLimit = 4

// find gives a segment with room for n bytes, or nil.
func (r *roomBuckets) find(n uint64) *segmentState {
	n = max((n+63)&^63, 64)
	first := bucketOf(n)
	for i, g := range r.buckets[first] {
		if i == scanLimit {
			break
		}
		if g.ranges.Largest() >= n {
			return g
		}
	}
	for b := first + 1; b < len(r.buckets); b++ {
		if len(r.buckets[b]) > 0 {
			return r.buckets[b][0]
		}
	}
	return nil
}

// findAligned is find for bytes at a multiple of align: a range of just n bytes may lie askew, a longer one holds them
// anyway.
func (r *roomBuckets) findAligned(n, align uint64) *segmentState {
	if g := r.find(n); g == nil || align == alloc.Granule || g.ranges.Fits(n, align) {
		return g
	}
	return r.find(n + align - alloc.Granule)
}

// add takes g in.
func (r *roomBuckets) add(g *segmentState) {
	g.counted = g.ranges.Used()
	r.used += g.counted
	g.bucket = bucketOf(g.ranges.Largest())
	g.at = len(r.buckets[g.bucket])
	r.buckets[g.bucket] = append(r.buckets[g.bucket], g)
}

// remove takes g out; a segment without ranges was never in.
func (r *roomBuckets) remove(g *segmentState) {
	if g.ranges == nil {
		return
	}
	r.used -= g.counted
	list := r.buckets[g.bucket]
	last := list[len(list)-1]
	list[g.at] = last
	last.at = g.at
	list[len(list)-1] = nil
	r.buckets[g.bucket] = list[:len(list)-1]
}

// update counts what is taken of g, and moves it to where its longest range belongs now.
func (r *roomBuckets) update(g *segmentState) {
	r.used += g.ranges.Used() - g.counted
	g.counted = g.ranges.Used()
	if bucketOf(g.ranges.Largest()) != g.bucket {
		r.remove(g)
		r.add(g)
	}
}
