package frontdoor

import (
	"fmt"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

func (c *connection) status(f *ipc.Frame) error {
	b, err := c.srv.opts.Backend.Status(c.peer)
	if err != nil {
		return err
	}
	return c.replyLater(func() { c.replyLong(f, b) })
}

func (c *connection) devices(f *ipc.Frame) error {
	b, err := c.srv.opts.Backend.Devices()
	if err != nil {
		return err
	}
	return c.replyLater(func() { c.replyLong(f, b) })
}

func (c *connection) openSession(f *ipc.Frame) error {
	var m wire.OpenSessionRequest
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	if c.inSession() {
		return fmt.Errorf("%w: this connection has a session already", object.ErrExists)
	}
	session, snapshot, err := c.srv.opts.Backend.OpenSession(c.peer, m.LibraryVersion, m.Options)
	if err != nil {
		return err
	}
	if !c.keepSession(session) {
		c.srv.opts.Backend.CloseSession(session)
		return fmt.Errorf("%w: the connection has ended", object.ErrInvalid)
	}
	reply := wire.OpenSessionReply{Session: session, Snapshot: snapshot}
	return c.replyLater(func() { c.replyLong(f, reply.AppendTo(nil)) })
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

// closeSession ends the session, once, and reports whether this call did.
func (c *connection) closeSession() bool {
	c.stateMu.Lock()
	open := c.hasSession
	c.hasSession, c.ended = false, true
	c.stateMu.Unlock()
	if open {
		c.srv.opts.Backend.CloseSession(c.session)
	}
	return open
}

// endSession ends a session for its owner, or for the daemon's, and with it the connection that has it: the program learns it as it learns that a
// daemon is gone. One that waits for its client waits no more.
func (c *connection) endSession(f *ipc.Frame) error {
	var m wire.Number
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	for { // it may change hands between a look and the deed
		holder, a := c.srv.holderOf(m.N)
		if holder == nil && a == nil {
			return fmt.Errorf("%w: no session %d: tendril session ls", object.ErrNotFound, m.N)
		}
		var owner Peer
		if holder != nil {
			owner = holder.peerNow()
		} else {
			owner = a.peer
		}
		if !c.peer.Admin && owner.Tenant != c.peer.Tenant {
			return fmt.Errorf("%w: session %d is of another tenant", object.ErrPermission, m.N)
		}
		if holder != nil && holder.closeSession() {
			c.srv.opts.Log.WithFields(c.who()).WithField("session", m.N).Info("front door: a session is ended by request")
			if holder != c {
				holder.end()
			}
			break
		}
		if a != nil && c.srv.takeAway(a) {
			c.srv.opts.Log.WithFields(c.who()).WithField("session", m.N).Info("front door: a session that waits is ended by request")
			c.srv.stopTimer(a)
			c.srv.endAway(a)
			break
		}
	}
	return c.replyLater(func() { c.reply(f, nil) })
}

// holderOf finds the connection that has a session, or the session where it waits for its client; neither: there is no such session.
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

func (c *connection) openWorker(f *ipc.Frame) error {
	var m wire.OpenWorkerRequest
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
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

func (c *connection) closeWorker(f *ipc.Frame) error {
	var m wire.Number
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	c.srv.opts.Backend.CloseWorker(c.session, m.N)
	return c.replyLater(func() { c.reply(f, nil) })
}

func (c *connection) workerFate(f *ipc.Frame) error {
	var m wire.Number
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	alive, text, err := c.srv.opts.Backend.WorkerFate(c.session, m.N)
	if err != nil {
		return err
	}
	return c.replyLater(func() { c.reply(f, &wire.WorkerFateReply{Alive: alive, Text: text}) })
}

// reserveDevice is answered in its turn: of two the later one counts.
func (c *connection) reserveDevice(f *ipc.Frame) error {
	var m wire.ReserveDeviceRequest
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	if err := c.srv.opts.Backend.ReserveDevice(c.session, m.Worker, m.Bytes); err != nil {
		return err
	}
	c.reply(f, nil)
	return nil
}

func (c *connection) allocSegment(f *ipc.Frame) error {
	var m wire.Number
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	g, err := c.store.AllocSegment(m.N)
	if err != nil {
		return err
	}
	c.replyFD(f, &wire.AllocSegmentReply{Segment: g.ID, Bytes: g.Bytes}, g.FD)
	return nil
}

func (c *connection) freeSegment(f *ipc.Frame) error {
	var m wire.Number
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	if err := c.store.FreeSegment(m.N); err != nil {
		return err
	}
	c.reply(f, nil)
	return nil
}

func (c *connection) publishSegment(f *ipc.Frame) error {
	var m wire.PublishSegmentRequest
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	id, err := c.store.PublishSegment(store.Publication{
		Segment: m.Segment, SizeBytes: m.SizeBytes, Class: m.Class, Name: m.Name, Replace: m.Replace, Meta: m.Meta,
	})
	if err != nil {
		return err
	}
	c.reply(f, &wire.IDMessage{ID: id})
	return nil
}
