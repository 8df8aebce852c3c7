package frontdoor

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"tendril/ipc/wire"
	"tendril/store/timing"
)

// tallies count what was asked for, by message; made once and then only added to.
type tallies [tallied]tally

// tallied is one more than the greatest number of a message that is counted by itself; the others are under 0.
const tallied = 256

// tally is one kind of message.
type tally struct {
	took   timing.Histogram
	failed atomic.Uint64
}

// add counts a request that was dealt with. One that waits for something is dealt with once it waits.
func (t *tallies) add(kind wire.Type, known bool, took time.Duration, failed bool) {
	if !known || kind >= tallied {
		kind = 0
	}
	t[kind].took.Add(took)
	if failed {
		t[kind].failed.Add(1)
	}
}

// Tally is what was asked for with one kind of message since the daemon's start.
type Tally struct {
	Message string // its name in PROTOCOL.md, or "unknown"
	Took    timing.Counted
	Failed  uint64
}

// Tallies gives those of all messages that were ever asked for, by name.
func (s *Server) Tallies() (list []Tally) {
	for kind := range s.tallies {
		x := Tally{Message: "unknown", Took: s.tallies[kind].took.Read(), Failed: s.tallies[kind].failed.Load()}
		if kind > 0 {
			x.Message = wire.Type(kind).String()
		}
		if x.Took.Number() > 0 {
			list = append(list, x)
		}
	}
	slices.SortFunc(list, func(a, b Tally) int { return strings.Compare(a.Message, b.Message) })
	return list
}

// Broken gives how many connections ended because the peer broke the protocol, since the daemon's start.
func (s *Server) Broken() uint64 { return s.broken.Load() }
