package frontdoor

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

// A session of another machine can outlive its connection: its client asked for that (KeepSession), and comes back
// within a time with the secret it got then and a certificate of the same holder (ResumeSession). Meanwhile what the
// session has, and what the connection held in the store, stays and is charged.

const (
	// closedGrace is how long a session waits whose connection was closed, by a FIN or RST: that is how a program that
	// is killed looks, and also a network that resets connections. A client that lives finds it out at once, too, and
	// comes back; one that ends by itself takes leave and is not waited for. It has to connect, shake hands and ask, on
	// a machine that may have much else to do; meanwhile a program that was killed keeps its worker, and pays for it.
	closedGrace = 15 * time.Second
	// surrenderTime is how long a client that comes back waits for its old connection, which the daemon may not know to
	// be dead, to let go.
	surrenderTime = 5 * time.Second
	// leastPulse is the time between two Working, whatever the client wants.
	leastPulse = 100 * time.Millisecond
)

// awaySession waits for its client.
type awaySession struct {
	session  uint64
	peer     Peer
	keeping  keeping
	attached *attached
	store    *store.Conn
	timer    *time.Timer
}

// keepSession answers with the secret.
func (c *connection) keepSessionFor(m wire.KeepSessionRequest) (ipc.Payload, error) {
	k := keeping{time: min(time.Duration(m.Millis)*time.Millisecond, c.srv.opts.ResumeTime)}
	if c.peer.Remote == "" {
		k.time = 0
	}
	if _, err := rand.Read(k.secret[:]); err != nil {
		return nil, err
	}
	if m.PulseMillis > 0 {
		k.pulse = max(time.Duration(m.PulseMillis)*time.Millisecond, leastPulse)
	}
	c.stateMu.Lock()
	c.keeping = k
	c.stateMu.Unlock()
	return &wire.KeepSessionReply{Secret: k.secret, Millis: uint32(k.time.Milliseconds())}, nil
}

// sayWorking tells a client that wants to know, now and then until done is called, that its request is worked on:
// between the two machines there may be something that takes all and passes nothing on.
func (c *connection) sayWorking(request uint64) (done func()) {
	c.stateMu.Lock()
	pulse := c.keeping.pulse
	c.stateMu.Unlock()
	if pulse == 0 || request == 0 {
		return func() {}
	}
	over := false // guarded by mu
	var timer *time.Timer
	c.mu.Lock()
	defer c.mu.Unlock()
	timer = time.AfterFunc(pulse, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if over || c.gone {
			return
		}
		c.out = ipc.AppendFrame(c.out, wire.Working, 0, request, nil)
		if c.flush() == nil {
			timer.Reset(pulse)
		}
	})
	return func() {
		timer.Stop()
		c.mu.Lock()
		defer c.mu.Unlock()
		over = true
	}
}

func (c *connection) leaveSession(none) error {
	c.stateMu.Lock()
	c.keeping.left = true
	c.stateMu.Unlock()
	return nil
}

// depart lets the session wait for its client where the connection broke, for why, and nobody has ended it. It runs in
// serve's goroutine.
func (c *connection) depart(why error) {
	defer close(c.departed)
	c.stateMu.Lock()
	k := c.keeping
	stays := c.hasSession && !c.ended && k.time > 0 && !k.left && c.ctx.Err() == nil
	if stays && object.CodeOf(why) == object.ErrProtocol.Code() {
		stays, c.why = false, fmt.Errorf("session %d was ended: its connection broke a rule: %w", c.session, why)
	}
	c.stateMu.Unlock()
	if !stays {
		return
	}
	c.cancel()
	c.endWaits()
	c.waits.Wait()
	c.dropBytes()
	patience := k.time
	if errors.Is(why, io.EOF) || errors.Is(why, io.ErrUnexpectedEOF) || errors.Is(why, unix.ECONNRESET) ||
		errors.Is(why, unix.EPIPE) {
		patience = min(patience, c.srv.opts.closedGrace)
	}
	a := &awaySession{session: c.session, peer: c.peerNow(), keeping: k, attached: c.attached, store: c.store}
	c.srv.opts.Backend.SessionAway(a.session, time.Now().Add(patience), "") // before its client can be back
	if !c.handOver(a, patience) {
		return
	}
	c.srv.opts.Log.WithFields(c.who()).WithField("session",
		a.session).WithError(why).Infof("front door: a session waits %v for its client", patience)
}

// handOver takes session and store connection from c, unless somebody has ended it.
func (c *connection) handOver(a *awaySession, patience time.Duration) bool {
	s := c.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	c.stateMu.Lock()
	defer c.stateMu.Unlock()
	if s.closed || !c.hasSession || c.ended {
		return false
	}
	c.hasSession, c.ended, c.store = false, true, nil
	s.away[a.session] = a
	a.timer = time.AfterFunc(patience, func() {
		if s.takeAway(a, fmt.Errorf("session %d waited %v for its client, which did not come back in time", a.session,
			patience)) {
			s.opts.Log.WithField("session", a.session).WithField("tenant",
				a.peer.Tenant).Info("front door: a session's client did not come back")
			s.endAway(a)
		}
		s.running.Done()
	})
	s.running.Add(1)
	return true
}

// takeAway takes a session that is to end, for why, out of those that wait, and reports whether it was there.
func (s *Server) takeAway(a *awaySession, why error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away[a.session] != a {
		return false
	}
	delete(s.away, a.session)
	s.endings.note(a.session, a.peer, a.keeping, why)
	return true
}

// stopTimer ends the wait for a session that was taken out.
func (s *Server) stopTimer(a *awaySession) {
	if a.timer.Stop() {
		s.running.Done()
	}
}

func (s *Server) endAway(a *awaySession) {
	a.store.Close()
	s.opts.Backend.CloseSession(a.session)
}

// endAwayIf ends the sessions that wait for some peers, for why (nil: nobody will ask).
func (s *Server) endAwayIf(which func(Peer) bool, why error) {
	s.mu.Lock()
	var ending []*awaySession
	for id, a := range s.away {
		if which(a.peer) {
			delete(s.away, id)
			s.endings.note(id, a.peer, a.keeping, ofSession(id, why))
			ending = append(ending, a)
		}
	}
	s.mu.Unlock()
	for _, a := range ending {
		s.stopTimer(a)
		s.endAway(a)
	}
}

// resumeSession makes a session that waits, or whose connection is dead without knowing, this connection's.
func (c *connection) resumeSession(m wire.ResumeSessionRequest) error {
	if c.inSession() || c.peer.Remote == "" {
		return fmt.Errorf("%w: ResumeSession is for another machine's connection without a session", object.ErrInvalid)
	}
	kind := c.sessionOver()
	for end := time.After(c.srv.opts.surrenderTime); ; {
		before, holder, err := c.srv.claimAway(&m, c, kind)
		if err != nil {
			return err
		}
		if holder == nil {
			before.Close() // new, and empty
			break
		}
		holder.link.Shutdown()
		select {
		case <-holder.departed:
		case <-c.ctx.Done():
			return c.ctx.Err()
		case <-end:
			return fmt.Errorf("%w: the session's old connection is still in use", object.ErrBusy)
		}
	}
	c.srv.opts.Backend.SessionAway(m.Session, time.Time{}, c.peer.Remote)
	c.srv.opts.Log.WithFields(c.who()).WithField("session", m.Session).Info("front door: a session's client is back")
	return nil
}

func (c *connection) mayBeResumed(m *wire.ResumeSessionRequest, who Peer) bool {
	c.stateMu.Lock()
	defer c.stateMu.Unlock()
	return c.hasSession && !c.ended && c.session == m.Session && c.keeping.mayResume(c.peer, who, &m.Secret)
}

// claimAway makes a session c's that waits for c's peer, and gives what c had in the store before. If a connection has
// the session still, holder is that one, and nothing is done: it may be another that came back, and broke again.
// Errors: errNotKept; why the session ended, as a case of kind.
func (s *Server) claimAway(m *wire.ResumeSessionRequest, c *connection, kind *object.Sentinel) (before *store.Conn,
	holder *connection, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.away[m.Session]; a != nil && a.keeping.mayResume(a.peer, c.peer, &m.Secret) {
		before, ok := c.adopt(a)
		if !ok {
			return nil, nil, fmt.Errorf("%w: the connection has ended", object.ErrInvalid)
		}
		delete(s.away, m.Session)
		s.stopTimer(a)
		return before, nil, nil
	}
	for other := range s.conns {
		if other != c && other.mayBeResumed(m, c.peer) {
			return nil, other, nil
		}
	}
	return nil, nil, s.endings.why(m, c.peerNow(), kind)
}

// sessionOver is the error that a peer of the connection's version is told that its session has ended with: for one of
// before wire.VersionEndings the one that ends its tries to come back.
func (c *connection) sessionOver() *object.Sentinel {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.version < wire.VersionEndings {
		return object.ErrPermission
	}
	return object.ErrAborted
}

// ofSession says why a session was ended; nil: nobody is to be told.
func ofSession(session uint64, why error) error {
	if why == nil {
		return nil
	}
	return fmt.Errorf("session %d was ended: %w", session, why)
}

// adopt gives a session and what its connection held to this one, and this one's own store connection back.
func (c *connection) adopt(a *awaySession) (before *store.Conn, ok bool) {
	c.stateMu.Lock()
	defer c.stateMu.Unlock()
	if c.ended {
		return nil, false
	}
	before = c.store
	c.store, c.session, c.hasSession, c.keeping, c.attached = a.store, a.session, true, a.keeping, a.attached
	return before, true
}
