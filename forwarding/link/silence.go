package link

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
)

// ErrSilent ends what has no other connection to come by.
var ErrSilent = fmt.Errorf("%w: nothing comes from the other machine any more", ErrHangup)

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

func (b *beating) turn(now time.Time) {
	// this process was stopped: what it awaits had no time to come
	if !b.last.IsZero() && now.Sub(b.last) > b.s.pace()+max(b.s.opts.Silence/2, time.Second) {
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

// ear tells for how long nothing has come by a connection.
type ear struct {
	raw   *rawConn
	heard uint64
	since time.Time
}

// quiet asks the kernel, where that knows (TCP_INFO), and else how much was read. 0: something waits to be read. The
// connection's descriptor is open meanwhile.
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
