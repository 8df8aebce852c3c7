package trace

import (
	"cmp"
	"math"
	"slices"
)

// point is one reading of another clock: what is to be subtracted from it to get ours at about `at` (of the other
// clock), at most bound ns wrong.
type point struct{ at, offset, bound int64 }

// offsets turns times of another clock into ours. nil points: it is the same clock.
type offsets struct {
	points []point
	bound  int64 // the largest of points'
	known  bool
}

// window is how long clocks are taken to drift too little to matter beside a round trip; drift between two windows is
// interpolated.
const window = int64(1e9)

// offsetsOf keeps the best reading of each window, and of those the ones that are not much worse than the best: a
// reading is as good as its round trip was short (Cristian, Probabilistic clock synchronization, 1989).
func offsetsOf(readings []point) offsets {
	if len(readings) == 0 {
		return offsets{}
	}
	slices.SortFunc(readings, func(a, b point) int { return cmp.Compare(a.at, b.at) })
	var best []point
	least := int64(math.MaxInt64)
	for _, p := range readings {
		least = min(least, p.bound)
		if n := len(best); n > 0 && p.at/window == best[n-1].at/window {
			if p.bound < best[n-1].bound {
				best[n-1] = p
			}
			continue
		}
		best = append(best, p)
	}
	o := offsets{known: true}
	for _, p := range best {
		if p.bound <= 4*least+1000 {
			o.points = append(o.points, p)
			o.bound = max(o.bound, p.bound)
		}
	}
	return o
}

// ours turns a time of the other clock into ours.
func (o *offsets) ours(t int64) int64 { return t - o.at(t) }

// at interpolates between the readings around t.
func (o *offsets) at(t int64) int64 {
	n := len(o.points)
	if n == 0 {
		return 0
	}
	i, _ := slices.BinarySearchFunc(o.points, t, func(p point, t int64) int { return cmp.Compare(p.at, t) })
	switch i {
	case 0:
		return o.points[0].offset
	case n:
		return o.points[n-1].offset
	}
	a, b := o.points[i-1], o.points[i]
	return a.offset + int64(float64(b.offset-a.offset)*float64(t-a.at)/float64(b.at-a.at))
}

// sane says that a time of the buffer can be calculated with.
func sane(ts ...int64) bool {
	for _, t := range ts {
		if t < 0 || t > math.MaxInt64/4 {
			return false
		}
	}
	return true
}

// clockReading is what one ClockSync tells: the worker's clock is ahead of ours by offset.
func clockReading(r *Record) (point, bool) {
	sent, answered, taken, replied := r.Time, r.X, int64(r.A), int64(r.B)
	if !sane(sent, answered, taken, replied) || answered < sent || replied < taken || replied-taken > answered-sent {
		return point{}, false
	}
	return point{
		at: taken, offset: ((taken - sent) + (replied - answered)) / 2,
		bound: ((answered - sent) - (replied - taken) + 1) / 2,
	}, true
}

// deviceReading bounds the device's clock: it stamped `queued` while clEnqueue… of the driver ran, and `end` before
// the worker saw the end.
func deviceReading(command, device *Record) (point, bool) {
	begun, given, queued := command.X, int64(command.A), device.Time
	if device.Flags&FlagProfiled == 0 || !sane(begun, given, queued) || begun == 0 || given < begun {
		return point{}, false
	}
	low, high := queued-given, queued-begun // device − worker
	return point{at: queued, offset: low + (high-low)/2, bound: (high - low + 1) / 2}, true
}
