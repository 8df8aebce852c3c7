package handle

import (
	"sync"
	"sync/atomic"
	"testing"
)

func TestRefs(t *testing.T) {
	var r Refs
	if r.Retain() || r.Alive() || r.Count() != 0 {
		t.Error("what was never set is alive")
	}
	r.Set(1)
	if !r.Retain() || r.Count() != 2 || !r.Alive() {
		t.Errorf("retained once: %d", r.Count())
	}
	for i, want := range []struct{ ok, last bool }{{true, false}, {true, true}, {false, false}} {
		if ok, last := r.Release(); ok != want.ok || last != want.last {
			t.Errorf("release %d: %v %v", i, ok, last)
		}
	}
	if r.Retain() || r.Count() != 0 {
		t.Error("what is gone came back")
	}
}

// Whoever releases the last reference learns it, nobody else does.
func TestRefsLastIsOne(t *testing.T) {
	const holders = 64
	var r Refs
	r.Set(holders)
	var lasts, failures atomic.Int32
	var all sync.WaitGroup
	for range 2 * holders {
		all.Go(func() {
			switch ok, last := r.Release(); {
			case last:
				lasts.Add(1)
			case !ok:
				failures.Add(1)
			}
		})
	}
	all.Wait()
	if lasts.Load() != 1 || failures.Load() != holders {
		t.Errorf("%d were the last, %d released nothing", lasts.Load(), failures.Load())
	}
}
