package link

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
)

// Something between the two ends can take all and pass nothing on: the kernel sees acknowledgements then, and no fault. So both ends of a stream say now
// and then that they are there, whatever else they do (clwire.Pulse): a goroutine of the link does, which neither a driver nor a program holds up. A
// pulse tells of every lane how much was sent and received, and for how long nothing has come; so a connection counts as lost over which something
// must have come, not one whose other end computes. The client judges, for both ways, and makes the next connection. A worker does not: its client
// may lie stopped under a debugger.

const (
	pulsesASilence = 4                       // of each end, in Options.Silence
	leastPace      = 100 * time.Millisecond  // between two pulses, whatever the other end wants
	greatestPace   = 2500 * time.Millisecond // for ends whose Silence is long
	firstPulse     = 10 * time.Second        // the other end may still be starting
)

// ErrSilent ends what has no other connection to come by.
var ErrSilent = fmt.Errorf("%w: nothing comes from the other machine any more", ErrHangup)

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

// beating is the pulses' goroutine.
type beating struct {
	s    *Stream
	last time.Time // when it looked
	wire *wire     // the stream's connection then
	mine clwire.Pulse
	ears [clwire.MaxLanes]ear
	lane [clwire.MaxLanes]*laneConn // looked at; nil: none
	wait [clwire.MaxLanes][2]awaited
}

// The two ways of awaited.
const (
	incoming = iota
	outgoing
)

// awaited is for how long a count that should rise has not.
type awaited struct {
	count uint64
	since time.Time
}

// stuck says for how long something has been due; 0: nothing is, or some of it came.
func (a *awaited) stuck(due bool, count uint64, now time.Time) time.Duration {
	if !due || count != a.count || a.since.IsZero() {
		*a = awaited{count, now}
	}
	return now.Sub(a.since)
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

func (b *beating) turn(now time.Time) {
	if !b.last.IsZero() && now.Sub(b.last) > b.s.pace()+max(b.s.opts.Silence/2, time.Second) { // this process was stopped: what it awaits had no time to come
		b.wait = [clwire.MaxLanes][2]awaited{}
	}
	b.last = now
	if !b.look(now) {
		return // no connection: another one is looked for
	}
	if b.s.opts.Silence > 0 && b.s.role == Client {
		b.judge(now)
	}
	if b.s.opts.Silence > 0 || b.s.pulse.wanted.Load() > 0 {
		b.s.sendPulse(&b.mine)
	}
}

// look gathers how far this end is.
func (b *beating) look(now time.Time) bool {
	s := b.s
	s.rx.Lock()
	received := s.received
	s.rx.Unlock()
	s.state.Lock()
	w, ok := s.w, !s.lost.Load() && !s.hung.Load()
	var quiet time.Duration
	if ok {
		quiet = b.ears[0].quiet(now, w.raw)
	}
	s.state.Unlock()
	if !ok {
		return false
	}
	if w != b.wire {
		b.wire, b.wait[0] = w, [2]awaited{}
		s.forgetPulse()
	}
	b.mine = clwire.Pulse{EveryMillis: millis(everyOf(s.opts.Silence)), PaceMillis: millis(s.pace()), Lanes: 1}
	b.mine.Channels[0] = clwire.ChannelState{Sent: s.sentTo.Load(), Received: received, QuietMillis: millis(quiet)}
	for i := 1; i < len(s.lanes); i++ {
		l := s.lanes[i].Load()
		if l == nil {
			continue
		}
		c, x := l.look(now, &b.ears[i])
		if c != b.lane[i] {
			b.lane[i], b.wait[i] = c, [2]awaited{}
		}
		b.mine.Channels[i], b.mine.Lanes = x, uint8(i+1)
	}
	return true
}

func millis(d time.Duration) uint32 { return uint32(min(d.Milliseconds(), 1<<31)) }

// forgetPulse drops what was told by the connection before.
func (s *Stream) forgetPulse() {
	s.pulse.mu.Lock()
	defer s.pulse.mu.Unlock()
	s.pulse.told.Lanes = 0
	s.pulse.when = time.Time{}
}

// judge gives up the connections over which something is due and nothing comes.
func (b *beating) judge(now time.Time) {
	s := b.s
	s.pulse.mu.Lock()
	told, when := s.pulse.told, s.pulse.when
	s.pulse.mu.Unlock()
	silence := max(s.opts.Silence, pulsesASilence*leastPace)
	if when.IsZero() && told.PaceMillis == 0 { // not by a connection before, either
		silence = max(silence, firstPulse)
	}
	// A peer whose reader has been busy all the time does not know how often it is to speak.
	silence = max(silence, pulsesASilence*min(time.Duration(told.PaceMillis)*time.Millisecond, greatestPace))
	for i := range int(b.mine.Lanes) {
		mine, theirs := &b.mine.Channels[i], &told.Channels[i]
		known := i < int(told.Lanes)
		if !known && i > 0 {
			continue // what was due by the connection before still is
		}
		in := b.wait[i][incoming].stuck(i == 0 || theirs.Sent > mine.Received, mine.Received, now)
		out := b.wait[i][outgoing].stuck(known && mine.Sent > theirs.Received, theirs.Received, now)
		if in < silence || time.Duration(mine.QuietMillis)*time.Millisecond < silence {
			in = 0
		}
		if out < silence || time.Duration(theirs.QuietMillis)*time.Millisecond < silence {
			out = 0
		}
		switch {
		case in == 0 && out == 0:
		case i == 0:
			s.giveUp(b.wire)
			return
		case b.lane[i] != nil:
			s.lanes[i].Load().giveUp(b.lane[i])
		}
	}
}

// giveUp treats a connection that lives, as far as the kernel knows, as lost.
func (s *Stream) giveUp(w *wire) {
	s.rx.Lock()
	if s.w != w {
		s.rx.Unlock()
		return
	}
	silent := ErrSilent
	s.why.CompareAndSwap(nil, &silent)
	goesOn := s.park >= 0 && s.lose()
	s.rx.Unlock()
	if !goesOn {
		s.Shutdown()
	}
}

// hangup is why the stream is at its end.
func (s *Stream) hangup() error {
	if why := s.why.Load(); why != nil && s.park < 0 {
		return *why
	}
	return ErrHangup
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

// ear tells for how long nothing has come by a connection.
type ear struct {
	raw   *rawConn
	heard uint64
	since time.Time
}

// quiet asks the kernel, where that knows (TCP_INFO), and else how much was read. 0: something waits to be read. The connection's descriptor is
// open meanwhile.
func (e *ear) quiet(now time.Time, raw *rawConn) time.Duration {
	if heard := raw.heard.Load(); raw != e.raw || heard != e.heard {
		*e = ear{raw, heard, now}
	}
	if n, err := unix.IoctlGetInt(raw.fd, unix.TIOCINQ); err != nil || n > 0 {
		e.since = now
		return 0
	}
	if info, err := unix.GetsockoptTCPInfo(raw.fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
		return time.Duration(info.Last_data_recv) * time.Millisecond
	}
	return now.Sub(e.since)
}

// look tells how far a lane is, and by which connection; nil: there is none now.
func (l *Lane) look(now time.Time, e *ear) (*laneConn, clwire.ChannelState) {
	l.state.Lock()
	defer l.state.Unlock()
	c, x := l.conn, clwire.ChannelState{Received: l.received.Load()}
	if c == nil {
		return nil, x
	}
	x.Sent = c.given.Load()
	if c.raw.waiting.Load() { // else its reader is busy with what came
		x.QuietMillis = millis(e.quiet(now, c.raw))
	}
	return c, x
}

// giveUp treats a connection that lives, as far as the kernel knows, as lost.
func (l *Lane) giveUp(c *laneConn) {
	l.state.Lock()
	defer l.state.Unlock()
	if l.conn != c {
		return
	}
	l.why = ErrSilent
	l.breakLocked(c)
	if c.users == 0 {
		c.raw.Close()
	}
}
