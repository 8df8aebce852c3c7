package frontdoor

import (
	"errors"
	"fmt"
	"time"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

func (c *connection) status(none) (p ipc.Payload, err error) {
	c.compute(func() {
		var b []byte
		b, err = c.srv.opts.Backend.Status(c.peer)
		p = long(b)
	})
	return p, err
}

func (c *connection) devices(none) (ipc.Payload, error) {
	b, err := c.srv.opts.Backend.Devices()
	return long(b), err
}

func (c *connection) openSession(m wire.OpenSessionRequest) (ipc.Payload, error) {
	if c.inSession() {
		return nil, fmt.Errorf("%w: this connection has a session already", object.ErrExists)
	}
	session, snapshot, err := c.srv.opts.Backend.OpenSession(c.ctx, c.peer, m.LibraryVersion, m.Options)
	c.waitInLine(err)
	if err != nil {
		return nil, err
	}
	if !c.keepSession(session) {
		c.srv.opts.Backend.CloseSession(session)
		return nil, fmt.Errorf("%w: the connection has ended", object.ErrInvalid)
	}
	reply := wire.OpenSessionReply{Session: session, Snapshot: snapshot}
	return long(reply.Append(nil)), nil
}

// waitInLine keeps the place in a line that a request for a session got: it goes with the connection.
func (c *connection) waitInLine(err error) {
	var w *Waiting
	var leave func()
	if errors.As(err, &w) {
		leave = w.Leave
	}
	c.stateMu.Lock()
	ended := c.ended
	if !ended {
		c.leaveLine = leave
	}
	c.stateMu.Unlock()
	if ended && leave != nil {
		leave()
	}
}

func (c *connection) inSession() bool {
	c.stateMu.Lock()
	defer c.stateMu.Unlock()
	return c.hasSession
}

// keepSession makes a session this connection's, unless that has ended.
func (c *connection) keepSession(session uint64) bool {
	c.stateMu.Lock()
	defer c.stateMu.Unlock()
	if c.ended {
		return false
	}
	c.session, c.hasSession = session, true
	return true
}

// closeSession ends the session, once, and reports whether this call did. why is for a client that comes back later;
// nil: c.why is.
func (c *connection) closeSession(why error) bool {
	c.stateMu.Lock()
	open, leave := c.hasSession, c.leaveLine
	if why == nil {
		why = c.why
	}
	if open { // in one step with its end: who comes back finds the one or the other
		c.srv.endings.note(c.session, c.peerLocked(), c.keeping, why)
	}
	c.hasSession, c.ended, c.leaveLine = false, true, nil
	c.stateMu.Unlock()
	if leave != nil {
		leave()
	}
	if open {
		c.srv.opts.Backend.CloseSession(c.session)
	}
	return open
}

// endSession ends a session for its owner, or for the daemon's.
func (c *connection) endSession(m wire.Number) error {
	err := c.srv.endSession(c, m.N, func(owner Peer) (error, error) {
		if !c.peer.Admin && owner.Tenant != c.peer.Tenant {
			return nil, fmt.Errorf("%w: session %d is of another tenant", object.ErrPermission, m.N)
		}
		by := "its own user"
		if c.peer.Tenant != owner.Tenant {
			by = "the administrator"
		}
		return fmt.Errorf("session %d was ended by %s with tendril session end", m.N, by), nil
	})
	if err == nil {
		c.srv.opts.Log.WithFields(c.who()).WithField("session", m.N).Info("front door: a session was ended on request")
	}
	return err
}

// EndSession ends a session, whoever has it, and with it the connection that has it. The program is told why. One that
// waits for its client waits no more. ErrNotFound: there is none.
func (s *Server) EndSession(session uint64, why error) error {
	return s.endSession(nil, session, func(Peer) (error, error) { return why, nil })
}

// endSession is EndSession where may allows it for the session's owner; it says why, too. The connection that had it
// ends, unless that is asker.
func (s *Server) endSession(asker *connection, session uint64, may func(Peer) (why, no error)) error {
	for { // it may change hands between a look and the deed
		holder, a := s.holderOf(session)
		if holder == nil && a == nil {
			return fmt.Errorf("%w: no session %d", object.ErrNotFound, session)
		}
		var owner Peer
		if holder != nil {
			owner = holder.peerNow()
		} else {
			owner = a.peer
		}
		why, no := may(owner)
		if no != nil {
			return no
		}
		if holder != nil && holder.closeSessionFor(why, asker) {
			return nil
		}
		if a != nil && s.takeAway(a, why) {
			s.stopTimer(a)
			s.endAway(a)
			return nil
		}
	}
}

// farewellTime is how long a session's end waits until its program has been told why.
const farewellTime = time.Second

// closeSessionFor is closeSession, and ends the connection, unless that is asker. The peer is told why before its
// workers go, so that the program knows it when it misses them; one that does not read is not waited for. Whom the
// words do not reach is told when it comes back (endings).
func (c *connection) closeSessionFor(why error, asker *connection) bool {
	if c == asker {
		return c.closeSession(why)
	}
	told, said := make(chan struct{}), false
	go func() {
		defer close(told)
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.gone {
			c.out = errorFrame(c.out, c.version, 0, fmt.Errorf("%w: %w", object.ErrAborted, why))
			said = c.flush() == nil // the connection ends in any case
		}
	}()
	parts := false
	select {
	case <-told:
		parts = said
	case <-time.After(c.srv.opts.farewellTime):
	}
	did := c.closeSession(why)
	if parts {
		c.link.Part()
	}
	c.end(nil) // from here on nothing holds the farewell up
	<-told
	return did
}

// holderOf finds the connection that has a session, or the session where it waits for its client; neither: there is no
// such session.
func (s *Server) holderOf(session uint64) (*connection, *awaySession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.stateMu.Lock()
		has := c.hasSession && c.session == session
		c.stateMu.Unlock()
		if has {
			return c, nil
		}
	}
	return nil, s.away[session]
}

func (c *connection) openWorker(f *ipc.Frame, m wire.OpenWorkerRequest) error {
	w, err := c.srv.opts.Backend.OpenWorker(c.session, m.Platform)
	if err != nil {
		return err
	}
	defer w.Socket.Close()
	defer w.Ring.Close()
	reply := wire.OpenWorkerReply{Worker: w.ID, RingBytes: w.RingBytes}
	return c.replyLater(func() {
		c.scratch.fds = [2]int{int(w.Socket.Fd()), int(w.Ring.Fd())}
		c.sendWith(f, &reply, ipc.FlagFD2, c.scratch.fds[:2])
	})
}

func (c *connection) closeWorker(m wire.Number) error {
	c.srv.opts.Backend.CloseWorker(c.session, m.N)
	return nil
}

// workerFate may wait for a worker's end, and holds no other request of the connection up meanwhile. mu is held.
func (c *connection) workerFate(f *ipc.Frame, m wire.Number) error {
	header, session := ipc.Frame{Header: f.Header}, c.session
	return c.later(store.WaitBytes, func() {
		alive, text, err := c.srv.opts.Backend.WorkerFate(c.ctx, session, m.N)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.answer(&header, &wire.WorkerFateReply{Alive: alive, Text: text}, err)
	})
}

// sessionCommands may wait for workers, and holds no other request of the connection up meanwhile. mu is held.
func (c *connection) sessionCommands(f *ipc.Frame, m wire.Number) error {
	observer, ok := c.srv.opts.Backend.(Observer)
	if !ok {
		return fmt.Errorf("%w: this daemon does not know what sessions do", object.ErrUnsupported)
	}
	header := ipc.Frame{Header: f.Header}
	return c.later(store.WaitBytes, func() {
		b, err := observer.SessionCommands(c.ctx, c.peerNow(), m.N)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.answer(&header, long(b), err)
	})
}

// reserveDevice is answered in its turn: of two the later one counts.
func (c *connection) reserveDevice(m wire.ReserveDeviceRequest) error {
	return c.srv.opts.Backend.ReserveDevice(c.session, m.Worker, m.Bytes)
}

func (c *connection) allocSegment(f *ipc.Frame, m wire.Number) error {
	g, err := c.store.AllocSegment(m.N)
	if err != nil {
		return err
	}
	c.replyFD(f, &wire.AllocSegmentReply{Segment: g.ID, Bytes: g.Bytes}, g.FD)
	return nil
}

func (c *connection) freeSegment(m wire.Number) error { return c.store.FreeSegment(m.N) }

func (c *connection) publishSegment(m wire.PublishSegmentRequest) (ipc.Payload, error) {
	id, err := c.store.PublishSegment(store.Publication{
		Segment: m.Segment, SizeBytes: m.SizeBytes, Class: m.Class, Name: m.Name, Replace: m.Replace, Meta: m.Meta,
	})
	return &wire.IDMessage{ID: id}, err
}

// attached are the last attempts that a session succeeded in. Guarded by connection.stateMu.
type attached struct {
	answers [maxWaits]struct {
		attempt uint64
		reply   wire.AttachReply
	}
	next int
}
