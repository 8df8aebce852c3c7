package ipc

import "time"

// Pace has work that one tenant can ask for without end rest now and then, while other tenants are at work: letting in
// who connects in a loop, or pages of listings. Otherwise a processor is lost to others' clients, and to those who
// linger for them: on two cores one in a hundred of their requests then waited for some ms. The zero value is rested.
// Not safe for concurrent use.
type Pace struct {
	worked time.Duration // since the last rest, or the last time that there was nothing to do
	latest time.Time     // when that ended
}

const (
	paceWork = 500 * time.Microsecond // in a row, between two rests
	// PaceRest is how long a rest is.
	PaceRest = time.Millisecond
)

// Tires takes note of some work, when it began and for how long it had the processor. true: PaceRest is to pass before
// there is more.
func (x *Pace) Tires(began time.Time, took time.Duration, othersWork bool) bool {
	if began.Sub(x.latest) >= PaceRest {
		x.worked = 0
	}
	x.worked, x.latest = x.worked+took, began.Add(took)
	if x.worked < paceWork || !othersWork {
		return false
	}
	x.worked = 0
	return true
}
