package main

import (
	"path/filepath"
	"strconv"

	"tendril/forwarding/trace"
)

// counted gives a program a file in which the driver library counts its round trips, and says which; "" is none.
func (r *rig) counted(env []string) ([]string, string) {
	if env == nil {
		return nil, "" // no program of Tendril's
	}
	path := filepath.Join(r.dir, "counters-"+strconv.Itoa(r.counters))
	r.counters++
	return append(env, "TENDRIL_COUNTERS="+path), path
}

// tripsSoFar is what a counters file says; 0 while its program has not loaded the library.
func tripsSoFar(path string) float64 {
	counts, err := trace.ReadCounters(path)
	if err != nil {
		return 0
	}
	return float64(trace.Total(counts))
}

// roundTripsOf runs a figure and says what a step of the measured program needed, the first round, which starts it,
// left out.
func (r *rig) roundTripsOf(b benchmark, run func(benchmark) (Figure, error)) (Figure, error) {
	rounds, measure := 0, b.measure
	b.measure = func() (float64, float64, error) {
		if rounds++; rounds == 2 {
			r.trips = 0
		}
		return measure()
	}
	r.trips = 0
	f, err := run(b)
	f.RoundTrips = r.trips / float64(max(rounds-1, 1))
	return f, err
}

// tracedCall compares a cheap call of a program that is traced with one that is not, and allows for one record.
func (r *rig) tracedCall() (value, reference float64, err error) {
	if reference, err = r.forwarded.reference("call"); err != nil {
		return 0, 0, err
	}
	value, err = r.traced.ask("call")
	return value, reference + recordAllowance, err
}

const recordAllowance = 100 // ns
