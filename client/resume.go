package client

import (
	"context"
	"errors"
	"time"

	"tendril/ipc"
	"tendril/ipc/wire"
)

// kept is what it takes to come back to a session. The secret stands in no message and no log.
type kept struct {
	session  uint64
	secret   [32]byte
	patience time.Duration
}

// takeTime is what the daemon has to give a session back: it may have to end the connection of before.
const takeTime = 15 * time.Second

// keepSession makes the session of a connection to another machine's daemon outlive it: a call that finds the
// connection broken connects again, for up to limit, and goes on with the same session. It returns how long the daemon
// keeps it then, which may be less; 0: not at all, as over ssh. From then on calls of the session also end, or go on by
// another connection, where nothing comes for Options.Silence. It is asked for once, after session.Open.
func (c *Conn) keepSession(ctx context.Context, limit time.Duration) (time.Duration, error) {
	if !c.remote {
		return 0, nil
	}
	millis := uint32(min(max(limit, 0)/time.Millisecond, 1<<31))
	if c.redial == nil {
		millis = 0
	}
	k, err := c.roundTrip(ctx, wire.KeepSession,
		&wire.KeepSessionRequest{Millis: millis, PulseMillis: uint32(c.lookEvery().Milliseconds())})
	if err != nil {
		return 0, err
	}
	defer k.recycle()
	var m wire.KeepSessionReply
	if err := m.Decode(k.payload); err != nil {
		return 0, err
	}
	if millis == 0 {
		m.Millis = 0
	}
	c.mu.Lock()
	if m.Millis == 0 && c.silence > 0 {
		c.silence += max(limit, 0) // there is no other connection: this one may come to life again
	}
	if m.Millis > 0 {
		c.kept = &kept{c.sessionID, m.Secret, limit}
	}
	guarded := m.Millis > 0 || c.silence > 0
	if guarded {
		c.background.Add(1)
	}
	c.mu.Unlock()
	if guarded {
		go c.guard()
	}
	return time.Duration(m.Millis) * time.Millisecond, nil
}

// lookEvery is how often the guard looks whether something comes; 0: it does not.
func (c *Conn) lookEvery() time.Duration {
	if c.silence <= 0 {
		return 0
	}
	return min(max(c.silence/4, 100*time.Millisecond), 2500*time.Millisecond)
}

// guard brings the connection back as soon as it breaks: the daemon does not wait for long where it was closed, and a
// session may call nobody for hours. And it asks now and then whether the daemon is there, and breaks a connection over
// which nothing comes. It ends with the connection.
func (c *Conn) guard() {
	defer c.background.Done()
	for {
		c.mu.Lock()
		l, final := c.link, c.closed
		c.mu.Unlock()
		if final {
			return
		}
		r, ok := l.(*ipc.Remote)
		if !ok {
			return
		}
		why, err := c.watch(r)
		if err != nil {
			return
		}
		c.failLink(l, why)
		if c.isFinal() || c.revive(context.Background()) != nil {
			return
		}
	}
}

// failLink ends the connection for why, unless somebody else has found out that l is of no use, and come back. What the
// daemon said last counts as the reason: nobody may have read it.
func (c *Conn) failLink(l link, why error) {
	if why == errEnded { //nolint:errorlint // watch's own
		c.turn <- struct{}{} // who has it meets the end, too
		if c.link == l {
			c.readWaiting(l)
		}
		<-c.turn
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == l {
		c.failLocked(c.disconnected(why))
	}
}

var (
	errEnded  = errors.New("the connection was ended")
	errSilent = errors.New("nothing comes from the other machine any more")
)

// watch waits until a connection is of no use any more, and says why. Whoever closes it has ended it before, so that it
// is not closed here meanwhile.
func (c *Conn) watch(r *ipc.Remote) (why, err error) {
	c.sendMu.Lock() // not behind Close
	var w *ipc.Watch
	if c.link == r {
		w, err = r.Watch()
	}
	c.sendMu.Unlock()
	if w == nil {
		return errEnded, err
	}
	defer w.Close()
	every := c.lookEvery()
	if every == 0 {
		every = -1
	}
	silence := quiet{since: time.Now(), last: time.Now()}
	for {
		ended, err := w.Ended(every)
		if err != nil || ended {
			return errEnded, err
		}
		if every > 0 && silence.over(c, w, every) {
			return errSilent, nil
		}
	}
}

// quiet is for how long nothing has come though something was asked.
type quiet struct {
	heard uint64
	since time.Time
	last  time.Time // looked
	asked *call     // what is answered at once, by a daemon that works on no request; else it says that it does
}

// over asks, waits for the answer for a while, and looks for how long nothing has come.
func (q *quiet) over(c *Conn, w *ipc.Watch, every time.Duration) bool {
	if q.asked == nil {
		q.asked = c.askAlive()
	}
	if q.asked != nil && c.awaitWithin(context.Background(), every, q.asked) == nil {
		q.asked = nil // not recycled: see result
	}
	now := time.Now()
	stopped := now.Sub(q.last) > 2*every+max(c.silence/2, time.Second) // this process was
	heard, unread := w.Heard()
	if unread || heard != q.heard || stopped {
		q.since = now
	}
	q.heard, q.last = heard, now
	return now.Sub(q.since) >= max(c.silence, 4*every)
}

// askAlive sends a request that does nothing; nil: somebody sends just now.
func (c *Conn) askAlive() *call {
	if !c.sendMu.TryLock() {
		return nil
	}
	defer c.sendMu.Unlock()
	k := newCall(wire.Hurry)
	if c.full || c.enqueue(k, nil) != nil || c.write() != nil {
		return nil
	}
	return k
}

// leaveSession tells the daemon that the session ends with this connection, which is closed soon.
func (c *Conn) leaveSession() {
	if c.keptSession() != nil {
		c.post(0, wire.LeaveSession, nil)
		c.flushOut()
	}
}

func (c *Conn) keptSession() *kept {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kept
}

// dialer is how the connection comes back; nil: it does not.
func (c *Conn) dialer() func(context.Context) (*Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept != nil {
		return c.redial
	}
	return c.revival.dial
}

// takeSession makes this new connection the session's.
func (c *Conn) takeSession(ctx context.Context, k *kept) error {
	limited, cancel := context.WithTimeout(ctx, takeTime)
	defer cancel()
	err := c.simple(limited, wire.ResumeSession, &wire.ResumeSessionRequest{Session: k.session, Secret: k.secret})
	if limited.Err() != nil && ctx.Err() == nil {
		return c.disconnected(errSilent)
	}
	return err
}
