package link

import (
	"runtime"
	"testing"
	"time"
)

// Who loses the core by a yield stops polling, and does not begin again at once.
func TestPollingStopsWhereOthersNeedTheCore(t *testing.T) {
	if runtime.NumCPU() == 1 {
		t.Skip("skipped: nobody polls on one core")
	}
	var p Poller
	yields := 0
	slow := func() { yields++; time.Sleep(2 * longYield) }
	never := func() bool { return false }
	if p.spin(time.Hour, slow, never) || yields != 1 {
		t.Errorf("polled on, %d yields", yields)
	}
	if again := p.again.Load(); again == nil || !again.After(time.Now().Add(-longPause)) {
		t.Fatalf("polls again at %v", again)
	}
	far := time.Now().Add(time.Hour)
	p.again.Store(&far)
	if p.spin(time.Hour, slow, never) || yields != 1 {
		t.Errorf("began at once, %d yields", yields)
	}
	if !p.spin(time.Hour, slow, func() bool { return true }) {
		t.Error("does not see what is there already")
	}
	p.again.Store(&time.Time{})
	seen := 0
	if !p.spin(time.Hour, func() {}, func() bool { seen++; return seen > 3 }) {
		t.Error("does not poll where it pays")
	}
}
