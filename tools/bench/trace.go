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
	path := filepath.Join(r.dir, "counters-"+strconv.Itoa(len(r.counters)))
	r.counters = append(r.counters, path)
	return append(env, "TENDRIL_COUNTERS="+path), path
}

// roundTrips is how many the programs have made so far.
func (r *rig) roundTrips() (n uint64) {
	for _, path := range r.counters {
		if counts, err := trace.ReadCounters(path); err == nil { // else it has not loaded the library
			n += trace.Total(counts)
		}
	}
	return n
}

// roundTripsOf runs a figure and says what a round of it needed.
func (r *rig) roundTripsOf(b benchmark, run func(benchmark) (Figure, error)) (Figure, error) {
	rounds, measure := 0, b.measure
	b.measure = func() (float64, float64, error) { rounds++; return measure() }
	before := r.roundTrips()
	f, err := run(b)
	if rounds > 0 {
		f.RoundTrips = float64(r.roundTrips()-before) / float64(rounds)
	}
	return f, err
}

// tracedCall compares a cheap call of a program that is traced with one that is not, and allows for one record.
func (r *rig) tracedCall() (value, reference float64, err error) {
	if r.traced == nil {
		file := filepath.Join(r.dir, "trace.json")
		// The summary is nobody's to read: as JSON it goes where the figures went, unread.
		if r.traced, err = r.start(r.env(), r.tendril(), "trace", "--json", "-o", file, "--", filepath.Join(r.dir, "clbench")); err != nil {
			return 0, 0, err
		}
	}
	if reference, err = r.forwarded.ask("call"); err != nil {
		return 0, 0, err
	}
	value, err = r.traced.ask("call")
	return value, reference + recordAllowance, err
}

const recordAllowance = 100 // ns
