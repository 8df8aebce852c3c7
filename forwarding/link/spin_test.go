package link

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// Who loses the core by a yield stops polling, and does not begin again at once. On the bubble's clock no yield takes
// long but by the test's doing.
func TestPollingStopsWhereOthersNeedTheCore(t *testing.T) { synctest.Test(t, pollingStops) }

func pollingStops(t *testing.T) {
	if runtime.NumCPU() == 1 {
		t.Skip("skipped: nobody polls on one core")
	}
	var p Poller
	yields := 0
	slow := func() { yields++; time.Sleep(2 * longYield) } // Pause: as who has lost the core
	never := func() bool { return false }
	if p.spin(time.Hour, 1, slow, never) || yields != 1 {
		t.Errorf("polled on, %d yields", yields)
	}
	first := p.pause.Load()
	p.again.Store(&time.Time{})
	if p.spin(time.Hour, 1, slow, never) || yields != 2 || p.pause.Load() < min(2*first, int64(longPause)) {
		t.Errorf("%d yields, %d ns after %d ns", yields, p.pause.Load(), first)
	}
	far := time.Now().Add(time.Hour)
	p.again.Store(&far)
	if p.spin(time.Hour, 1, slow, never) || yields != 2 {
		t.Errorf("began at once, %d yields", yields)
	}
	if !p.spin(time.Hour, 1, slow, func() bool { return true }) {
		t.Error("does not see what is there already")
	}
	p.again.Store(&time.Time{})
	pause, seen := p.pause.Load(), 0
	if !p.spin(time.Hour, 1, func() {}, func() bool { seen++; return seen > 3 }) {
		t.Error("does not poll where it pays")
	}
	if p.pause.Load() >= pause {
		t.Errorf("%d ns after %d: it does not come back", p.pause.Load(), pause)
	}
}

// TestLooksBetweenYields: who polls yields each time where processors are few, and every 64th time where they are many.
func TestLooksBetweenYields(t *testing.T) { synctest.Test(t, looksBetweenYields) }

func looksBetweenYields(t *testing.T) {
	if runtime.NumCPU() == 1 {
		t.Skip("skipped: nobody polls on one core")
	}
	for processors, want := range map[int]int{2: 128, manyProcessors - 1: 128, manyProcessors: 2, 64: 2} {
		var p Poller
		looked, yields := 0, 0
		if !p.spin(time.Hour, looks(processors), func() { yields++ }, func() bool { looked++; return looked == 129 }) {
			t.Error("does not see what comes")
		}
		if looked != 129 || yields != want {
			t.Errorf("%d processors: %d looks and %d yields, want 129 and %d", processors, looked, yields, want)
		}
	}
}
