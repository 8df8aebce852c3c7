package link

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"tendril/forwarding/clwire"
)

// Something between the two ends can take all and pass nothing on: the kernel sees acknowledgements then, and no fault.
// So both ends of a stream say now and then that they are there, whatever else they do (clwire.Pulse): a goroutine of
// the link does, which neither a driver nor a program holds up. A pulse tells of every lane how much was sent and
// received, and for how long nothing has come; so a connection counts as lost over which something must have come, not
// one whose other end computes. The client judges, for both ways, and makes the next connection. A worker does not: its
// client may lie stopped under a debugger.

const (
	pulsesASilence = 4                       // of each end, in Options.Silence
	leastPace      = 100 * time.Millisecond  // between two pulses, whatever the other end wants
	greatestPace   = 2500 * time.Millisecond // for ends whose Silence is long
	firstPulse     = 10 * time.Second        // the other end may still be starting
)

// pulse is what a stream knows of its peer's and its own.
type pulse struct {
	wanted atomic.Int64  // how often the peer wants to hear of this end, ns; 0: as this end likes
	sooner chan struct{} // capacity 1: it wants to hear more often
	over   chan struct{}
	beats  sync.WaitGroup

	mu   sync.Mutex // leaf
	told clwire.Pulse
	when time.Time // it was told; zero: not by this connection
}

// everyOf is how often an end with this Silence wants to hear of its peer; 0: it does not mind.
func everyOf(silence time.Duration) time.Duration {
	if silence <= 0 {
		return 0
	}
	return min(max(silence/pulsesASilence, leastPace), greatestPace)
}

// pace is how often this end says something.
func (s *Stream) pace() time.Duration {
	own, wanted := everyOf(s.opts.Silence), time.Duration(s.pulse.wanted.Load())
	switch {
	case own == 0 && wanted == 0:
		return greatestPace // to look whether it is wanted
	case own == 0 || wanted > 0 && wanted < own:
		return max(wanted, leastPace)
	}
	return own
}

// onPulse takes the peer's word. The reader calls it.
func (s *Stream) onPulse(m *clwire.Pulse) error {
	wanted := int64(time.Duration(m.EveryMillis) * time.Millisecond)
	if s.pulse.wanted.Swap(wanted) != wanted {
		select {
		case s.pulse.sooner <- struct{}{}:
		default:
		}
	}
	s.pulse.mu.Lock()
	s.pulse.told, s.pulse.when = *m, time.Now()
	s.pulse.mu.Unlock()
	if s.park < 0 { // nothing is kept to be sent again
		return nil
	}
	for i := range m.Channels[:m.Lanes] {
		if err := s.acked(i, m.Channels[i].Received); err != nil {
			return err
		}
	}
	return nil
}

// acked notes how much of a lane, or for 0 of the stream, the peer has.
func (s *Stream) acked(lane int, received uint64) error {
	if lane == 0 {
		return s.acknowledged(received)
	}
	if l := s.lanes[lane].Load(); l != nil {
		return l.acknowledged(received)
	}
	if received > 0 {
		return fmt.Errorf("%w: bytes of lane %d, which is none", ErrCorrupt, lane)
	}
	return nil
}

// beat says that this end is there, and looks whether the other is, until Close.
func (s *Stream) beat() {
	b := &beating{s: s}
	for {
		b.turn(time.Now())
		pause := time.NewTimer(s.pace())
		select {
		case <-s.pulse.over:
			pause.Stop()
			return
		case <-s.pulse.sooner:
			pause.Stop()
		case <-pause.C:
		}
	}
}

func millis(d time.Duration) uint32 { return uint32(min(d.Milliseconds(), 1<<31)) }

// forgetPulse drops what was told by the connection before.
func (s *Stream) forgetPulse() {
	s.pulse.mu.Lock()
	defer s.pulse.mu.Unlock()
	s.pulse.told.Lanes = 0
	s.pulse.when = time.Time{}
}

// sendPulse waits for nobody: a sender that is held up holds tx, and then the peer has enough to hear.
func (s *Stream) sendPulse(m *clwire.Pulse) {
	for range 3 {
		if s.tx.TryLock() {
			defer s.tx.Unlock()
			if !s.lost.Load() && !s.hung.Load() && s.tx.err == nil && s.appendLocked(m, 0, 0) == nil {
				_, _ = s.flushLocked() // a failure shows at the next Send or Next
			}
			return
		}
		time.Sleep(time.Millisecond)
	}
}
