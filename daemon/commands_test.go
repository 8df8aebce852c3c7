package daemon

import (
	"encoding/json"
	"math"
	"testing"

	"tendril/daemon/inspect"
	"tendril/daemon/workers"
	"tendril/forwarding/clwire"
)

// What a hostile worker says of its commands is bounded where it is added up or shown: no sum wraps around, no time is
// below 0 or beyond what a reader can show, and no device is looked up that is not there.
func TestCommandsOfAHostileWorker(t *testing.T) {
	var told inspect.Commands
	for range 2 {
		addCommands(&told, workers.Commands{Worker: 1, Platform: &workers.Platform{}, Told: clwire.WorkerCommands{
			More:   math.MaxUint64 - 1,
			Flying: []clwire.CommandFlying{{Device: math.MaxUint32, Seconds: -1}, {Seconds: math.MaxFloat64}},
			Last:   []clwire.CommandEnded{{Device: 1, Seconds: 1e300, Ago: -1e300}},
			Sums:   []clwire.CommandSum{{Count: math.MaxUint64, Seconds: 1e18}},
			Calls:  []clwire.DriverCall{{What: "\x1b[2J", Seconds: -5}},
		}})
	}
	if told.More != math.MaxUint64 {
		t.Errorf("%d more", told.More)
	}
	var seconds []float64
	for _, x := range told.InFlight {
		seconds = append(seconds, x.AgeSeconds)
		if x.Device != "" {
			t.Errorf("device %q", x.Device)
		}
	}
	ended := told.Last[0]
	seconds = append(seconds, ended.Seconds, ended.AgoSeconds, told.Sums[0].Seconds, told.Calls[0].Seconds)
	for i, x := range seconds {
		if x < 0 || x > mostSeconds {
			t.Errorf("time %d: %v s", i, x)
		}
	}
	if _, err := json.Marshal(told); err != nil {
		t.Error(err)
	}
}
