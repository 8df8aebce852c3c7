package daemon

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestRoundsAfterALongIdleTime: a leader that had nothing to look after for a day looks at once when something changes,
// by a clock that the test has.
func TestRoundsAfterALongIdleTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &membership{}
		m.ctx, m.cancel = context.WithCancel(t.Context())
		change, looks := make(chan struct{}), []time.Time{}
		m.running.Go(func() {
			m.rounds(func() <-chan struct{} { return change }, func() bool {
				looks = append(looks, time.Now())
				return true
			})
		})
		time.Sleep(24 * time.Hour) // Pause: on the bubble's clock
		synctest.Wait()
		if len(looks) != 1 {
			t.Errorf("%d looks while nothing changed", len(looks))
		}
		changed, old := time.Now(), change
		change = make(chan struct{})
		close(old)
		time.Sleep(time.Minute) // Pause: on the bubble's clock
		m.cancel()
		m.running.Wait()
		if len(looks) != 2 || looks[1].Sub(changed) > repairEvery {
			t.Errorf("it changed at %v, and the looks were at %v", changed, looks)
		}
	})
}

// TestRoundsRestInProportion: looks that take long take a fifth of the time, and changes wait meanwhile.
func TestRoundsRestInProportion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &membership{}
		m.ctx, m.cancel = context.WithTimeout(t.Context(), 59*time.Second)
		defer m.cancel()
		looks := 0
		m.rounds(func() <-chan struct{} { return nil }, func() bool {
			looks++
			time.Sleep(time.Second) // Pause: what a look takes, on the bubble's clock
			return false
		})
		if looks != 12 {
			t.Errorf("%d looks of a second in 59 s", looks)
		}
	})
}
