package timing

import (
	"sync"
	"testing"
	"time"
)

// A bucket's bound belongs to it, as Prometheus' le says, and all that was added is in one bucket.
func TestBuckets(t *testing.T) {
	for d, want := range map[time.Duration]int{-time.Second: 0, 0: 0, 1: 0, time.Microsecond: 0,
		time.Microsecond + 1: 1, 2 * time.Microsecond: 1, 2*time.Microsecond + 1: 2, time.Millisecond: 10,
		Bound(Buckets - 1): Buckets - 1, Bound(Buckets-1) + 1: Buckets, time.Hour: Buckets} {
		if got := bucketOf(d); got != want {
			t.Errorf("%v is in bucket %d, want %d", d, got, want)
		}
	}
}

func TestAddedConcurrently(t *testing.T) {
	var h Histogram
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() {
			for i := range 1000 {
				h.Add(time.Duration(i) * time.Microsecond)
			}
		})
	}
	running.Wait()
	if c := h.Read(); c.Number() != 4000 || c.Total != 4*999*500*time.Microsecond {
		t.Errorf("%d things that took %v", c.Number(), c.Total)
	}
}
