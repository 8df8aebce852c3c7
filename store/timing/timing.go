// Package timing counts how long things took, in buckets that are read while others add to them. It trusts its callers,
// holds no lock and starts no goroutine.
package timing

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Buckets is how many there are with a bound: 1 µs, 2 µs, 4 µs and so on up to 16.8 s. What took longer is in one more.
const Buckets = 25

// Histogram is how many things took how long. The zero value is ready. Its methods may run concurrently.
type Histogram struct {
	counts [Buckets + 1]atomic.Uint64
	ns     atomic.Uint64
}

// Counted is a Histogram at one moment.
type Counted struct {
	Counts [Buckets + 1]uint64 // of each bucket alone; the last has no bound
	Total  time.Duration       // of all
}

// Bound gives the upper bound of a bucket, which belongs to it: 0 to Buckets-1.
func Bound(bucket int) time.Duration { return time.Microsecond << bucket }

// Add counts something that took d; less than nothing counts as nothing.
func (h *Histogram) Add(d time.Duration) {
	d = max(d, 0)
	h.counts[bucketOf(d)].Add(1)
	h.ns.Add(uint64(d))
}

func bucketOf(d time.Duration) int {
	if d <= time.Microsecond {
		return 0
	}
	return min(bits.Len64(uint64((d-1)/time.Microsecond)), Buckets)
}

// Read gives what was counted so far. What is added meanwhile may be in one figure and not yet in another.
func (h *Histogram) Read() (c Counted) {
	for i := range h.counts {
		c.Counts[i] = h.counts[i].Load()
	}
	c.Total = time.Duration(h.ns.Load())
	return c
}

// Number gives how many things were counted.
func (c Counted) Number() (n uint64) {
	for _, x := range c.Counts {
		n += x
	}
	return n
}
