// Package tracetest checks traces in tests: it reads one as a viewer does.
package tracetest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// Checked is what Check found.
type Checked struct {
	Slices, Arrows, Counters, Instants int
	Names                              map[string]int // slices of each name
	Categories                         map[string]int // slices of each category
}

// ErrTrace is wrapped by Check's complaints.
var ErrTrace = errors.New("not a trace that a viewer shows right")

// checkedEvent is event as a reader sees it.
type checkedEvent struct {
	Name string  `json:"name"`
	Cat  string  `json:"cat"`
	Ph   string  `json:"ph"`
	PID  int64   `json:"pid"`
	TID  int64   `json:"tid"`
	TS   float64 `json:"ts"`
	Dur  float64 `json:"dur"`
	ID   int64   `json:"id"`
	Args map[string]any
}

type checkedTrack struct{ pid, tid int64 }

// Check reads a trace and checks what a viewer relies on: events in the order of their begin; slices of one
// track enclose each other or do not touch; each arrow has two ends, both on a slice; counters are not negative.
func Check(r io.Reader) (*Checked, error) {
	var file struct {
		TraceEvents []checkedEvent `json:"traceEvents"`
	}
	if err := json.NewDecoder(r).Decode(&file); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrTrace, err)
	}
	c := &Checked{Names: map[string]int{}, Categories: map[string]int{}}
	tracks := map[checkedTrack][]checkedEvent{}
	arrows := map[int64][]checkedEvent{}
	before := math.Inf(-1)
	for _, e := range file.TraceEvents {
		if e.Ph != "M" && e.TS < before {
			return nil, fmt.Errorf("%w: %s at %.3f µs after one at %.3f", ErrTrace, e.Name, e.TS, before)
		}
		switch e.Ph {
		case "M":
			continue
		case "X":
			c.Slices++
			c.Names[e.Name]++
			c.Categories[e.Cat]++
			k := checkedTrack{e.PID, e.TID}
			tracks[k] = append(tracks[k], e)
		case "s", "f":
			arrows[e.ID] = append(arrows[e.ID], e)
		case "C":
			c.Counters++
			for what, v := range e.Args {
				if n, ok := v.(float64); !ok || n < 0 {
					return nil, fmt.Errorf("%w: counter %s: %s is %v", ErrTrace, e.Name, what, v)
				}
			}
		case "i":
			c.Instants++
		default:
			return nil, fmt.Errorf("%w: event %q of kind %q", ErrTrace, e.Name, e.Ph)
		}
		before = e.TS
	}
	for k, slices := range tracks {
		if err := checkNesting(k, slices); err != nil {
			return nil, err
		}
	}
	c.Arrows = len(arrows)
	return c, checkArrows(arrows, tracks)
}

// deepest is how many slices of a track may enclose a time.
const deepest = 64

// rounding is what times lose in decimals, µs.
const rounding = 0.0015

func checkNesting(k checkedTrack, list []checkedEvent) error {
	slices.SortStableFunc(list, func(a, b checkedEvent) int {
		return cmp.Or(cmp.Compare(a.TS, b.TS), cmp.Compare(b.Dur, a.Dur))
	})
	var open []checkedEvent
	for _, e := range list {
		if e.Dur < 0 {
			return fmt.Errorf("%w: %s takes %.3f µs", ErrTrace, e.Name, e.Dur)
		}
		for len(open) > 0 && open[len(open)-1].TS+open[len(open)-1].Dur <= e.TS+rounding {
			open = open[:len(open)-1]
		}
		if n := len(open); n > 0 && e.TS+e.Dur > open[n-1].TS+open[n-1].Dur+rounding {
			return fmt.Errorf("%w: process %d, track %d: %s (%.3f to %.3f µs) reaches beyond %s (%.3f to %.3f)",
				ErrTrace, k.pid, k.tid,
				e.Name, e.TS, e.TS+e.Dur, open[n-1].Name, open[n-1].TS, open[n-1].TS+open[n-1].Dur)
		}
		open = append(open, e)
	}
	return nil
}

func checkArrows(arrows map[int64][]checkedEvent, tracks map[checkedTrack][]checkedEvent) error {
	for id, ends := range arrows {
		if len(ends) != 2 || ends[0].Ph == ends[1].Ph {
			return fmt.Errorf("%w: arrow %d has %d ends", ErrTrace, id, len(ends))
		}
		for _, e := range ends {
			if !onSlice(tracks[checkedTrack{e.PID, e.TID}], e.TS) {
				return fmt.Errorf("%w: arrow %d: no slice of process %d, track %d at %.3f µs", ErrTrace, id,
					e.PID, e.TID, e.TS)
			}
		}
	}
	return nil
}

// onSlice says whether one of a track's slices, ordered by begin, covers a time.
func onSlice(list []checkedEvent, at float64) bool {
	n, _ := slices.BinarySearchFunc(list, at+rounding,
		func(e checkedEvent, t float64) int { return cmp.Compare(e.TS, t) })
	for i := n - 1; i >= max(0, n-deepest); i-- {
		if list[i].TS+list[i].Dur >= at-rounding {
			return true
		}
	}
	return false
}
