package store

import (
	"fmt"
	"sort"
	"strings"

	"tendril/store/object"
)

// EndStream says that no more frames come: readers get what waits, then ErrEnded. With abort what waits is dropped and
// all get ErrAborted. Only a writer may.
func (c *Conn) EndStream(stream uint64, abort bool) error {
	s := c.s
	s.mu.Lock()
	defer s.unlock()
	end, err := c.endOf(stream)
	switch {
	case err != nil:
		return err
	case !end.writes:
		return fmt.Errorf("%w: stream %q was opened only to read", object.ErrPermission, end.st.name)
	case abort:
		s.removeStream(end.st)
		return nil
	}
	end.st.ended = true
	s.match(end.st)
	return nil
}

// CancelStream ends what c waits for in a stream: ErrTimeout.
func (c *Conn) CancelStream(stream uint64) error {
	c.s.mu.Lock()
	defer c.s.unlock()
	end, err := c.endOf(stream)
	if err != nil {
		return err
	}
	for w := range c.waiting {
		if w.end == end {
			w.finish(fmt.Errorf("%w: stream %q: cancelled", object.ErrTimeout, end.st.name))
		}
	}
	c.s.match(end.st)
	return nil
}

// CloseStream is the end of a StreamEnd: in good order, unlike the connection's end.
func (c *Conn) CloseStream(stream uint64) error {
	c.s.mu.Lock()
	defer c.s.unlock()
	end, err := c.endOf(stream)
	if err != nil {
		return err
	}
	delete(c.streams, stream)
	c.s.leaveStream(end, false)
	return nil
}

// leaveStreams ends what a closed connection had open and what waits. mu is held, and let go after some.
func (c *Conn) leaveStreams() {
	steps := 0
	for id, end := range c.streams {
		delete(c.streams, id)
		c.s.leaveStream(end, true)
		if steps += maxStreamWaits; steps >= lockSteps {
			steps = 0
			c.s.pause(nil)
		}
	}
}

// leaveStream takes an end away. mu is held.
func (s *Store) leaveStream(end *streamEnd, died bool) {
	st := end.st
	for w := range end.c.waiting {
		if w.end == end {
			w.finish(errConnClosed)
		}
	}
	delete(st.ends, end)
	if end.writes {
		if st.writers--; st.writers == 0 && died && !st.ended && !s.departing {
			st.broken = fmt.Errorf("%w: the last writer of stream %q, process %d, ended without ending the stream",
				object.ErrAborted, st.name, end.c.owner.PID)
		}
	}
	s.match(st)
	s.dropStream(st)
}

// dropStream forgets a stream that nobody has open and that has nothing. mu is held.
func (s *Store) dropStream(st *stream) {
	if len(st.ends) == 0 && len(st.frames) == 0 && st.unacked == 0 && !st.keep {
		s.removeStream(st)
	}
}

// removeStream ends a stream for everybody. mu is held.
func (s *Store) removeStream(st *stream) {
	if st.gone {
		return
	}
	st.gone = true
	frames := st.frames
	st.dropped += uint64(len(frames))
	st.frames, st.bytes = nil, 0
	s.letFramesGo(st.tenant, frames)
	delete(st.tenant.streams, st.name)
	s.tableBytes -= st.charge
	s.uncharge(st.tenant, st.charge)
	s.match(st)
}

// RemoveStream ends a stream of the tenant's, whoever has it open, and drops what waits in it.
func (c *Conn) RemoveStream(name string) error {
	c.s.mu.Lock()
	defer c.s.unlock()
	st := c.tenant.streams[name]
	if st == nil {
		return noStream(name)
	}
	c.s.removeStream(st)
	return nil
}

// Streams describes the tenant's streams whose name begins with prefix, by name.
func (c *Conn) Streams(prefix string) []object.StreamInfo {
	list := []object.StreamInfo{}
	c.EachStream(prefix, "", func(info object.StreamInfo) bool {
		list = append(list, info)
		return true
	})
	return list
}

// EachStream calls f with the descriptions of the streams that Streams describes and whose name is behind after, by
// name, until it answers false. The store is not locked while f runs.
func (c *Conn) EachStream(prefix, after string, f func(object.StreamInfo) bool) {
	c.s.mu.Lock()
	var names []string // at most object.MaxStreams
	for name := range c.tenant.streams {
		if name > after && strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	c.s.mu.Unlock()
	sort.Strings(names)
	for _, name := range names {
		c.s.mu.Lock()
		st := c.tenant.streams[name]
		if st == nil {
			c.s.mu.Unlock()
			continue
		}
		info := st.info()
		c.s.mu.Unlock()
		sort.Slice(info.Users, func(i, j int) bool { return info.Users[i].PID < info.Users[j].PID })
		if !f(info) {
			return
		}
	}
}

func (st *stream) info() object.StreamInfo {
	info := object.StreamInfo{
		Name: st.name, Tenant: st.tenant.name, State: "open", Frames: len(st.frames), FramesAtMost: st.limit,
		Bytes: st.bytes, BytesAtMost: st.limitBytes,
		DropOldest: st.dropOldest, Keep: st.keep, Pushed: st.pushed, Popped: st.popped, Dropped: st.dropped,
		WaitingWriters: st.pushers.Len(), WaitingReaders: st.poppers.Len(), Created: st.created.UTC(),
		Users: []object.StreamUser{},
	}
	switch {
	case st.ended:
		info.State = "ended"
	case st.broken != nil:
		info.State = "broken"
	}
	for end := range st.ends {
		if len(info.Users) == maxHolders {
			info.MoreUsers = len(st.ends) - maxHolders
			break
		}
		info.Users = append(info.Users,
			object.StreamUser{PID: end.c.owner.PID, Program: end.c.owner.Name, Writes: end.writes, Reads: end.reads})
	}
	return info
}

// A frame that was popped can still be lost: the reader may be interrupted, or die, before it has the reply. So a peer
// that acknowledges says which frames it has: by AckFrame, or by giving back all its references to the object. When its
// connection ends, the others go back to where they were in their streams.

// maxUnacked bounds how often one connection has one object unacknowledged, as frames of the same object.
const maxUnacked = maxStreamWaits

// unacked is a frame that was popped and is not acknowledged. Guarded by Store.mu.
type unacked struct {
	st     *stream
	end    uint64 // the connection's number for the stream, through which it was popped; 0: in an earlier daemon
	number uint64
	next   *unacked // of the same object, popped before
}

// Acknowledges says that c's peer acknowledges the frames that it pops. It is called before c is used otherwise.
func (c *Conn) Acknowledges() { c.acks = true }

// AckFrame says that the peer has a frame that it popped from a stream, open on c or closed meanwhile: it does not go
// back any more. Stream 0: of whichever stream, and of several that have the object under this number the one that it
// was popped from first. ErrNotFound: there is no such frame, or it was acknowledged already.
func (c *Conn) AckFrame(stream uint64, id object.ID, number uint64) error {
	c.s.mu.Lock()
	defer c.s.unlock()
	if !c.ackedOf(id, number, func(u *unacked) bool { return stream == 0 || u.end == stream }) {
		return fmt.Errorf("%w: object %s is not a frame %d that waits to be acknowledged", object.ErrNotFound, id, number)
	}
	return nil
}

// isUnacked notes a frame that c has popped, and holds a reference for. mu is held.
func (c *Conn) isUnacked(f frame, st *stream, end uint64) {
	r := c.refs[f.e.id]
	if c.unacked >= maxUnacked && r.unackedFrames() >= maxUnacked {
		c.dropUnacked(r.oldestUnacked())
	}
	u := c.freeUnacked
	if u == nil {
		u = new(unacked)
	} else {
		c.freeUnacked = u.next
	}
	*u = unacked{st: st, end: end, number: f.number, next: r.unacked}
	r.unacked = u
	c.refs[f.e.id] = r
	c.unacked++
	st.unacked++
}

// acked drops the record of a frame of st, where there is one. mu is held.
func (c *Conn) acked(st *stream, id object.ID, number uint64) {
	c.ackedOf(id, number, func(u *unacked) bool { return u.st == st })
}

// ackedOf drops the record of a frame of a stream that is meant, of several the one popped first; it reports whether
// there was one. mu is held.
func (c *Conn) ackedOf(id object.ID, number uint64, meant func(*unacked) bool) bool {
	r := c.refs[id]
	var first **unacked
	for u := &r.unacked; *u != nil; u = &(*u).next {
		if (*u).number == number && meant(*u) {
			first = u
		}
	}
	if first == nil {
		return false
	}
	c.dropUnacked(first)
	c.refs[id] = r
	return true
}

// settleUnacked has a reference of which some were given back have no more frames than references. mu is held.
func (c *Conn) settleUnacked(r *reference) {
	for n := r.unackedFrames(); n > r.count; n-- {
		c.dropUnacked(r.oldestUnacked())
	}
}

func (r *reference) unackedFrames() (n int) {
	for u := r.unacked; u != nil; u = u.next {
		n++
	}
	return n
}

// oldestUnacked is where the record of the frame stands that was popped first. There is one.
func (r *reference) oldestUnacked() **unacked {
	u := &r.unacked
	for (*u).next != nil {
		u = &(*u).next
	}
	return u
}

// dropUnacked takes a record out of its list. mu is held.
func (c *Conn) dropUnacked(at **unacked) {
	u := *at
	*at = u.next
	st := u.st
	*u = unacked{next: c.freeUnacked}
	c.freeUnacked = u
	c.unacked--
	if st.unacked--; st.unacked == 0 {
		c.s.dropStream(st)
	}
}

// giveUnackedBack puts the frames that a closed connection has not acknowledged back to where they were. mu is held,
// and let go after some.
func (c *Conn) giveUnackedBack() {
	steps := 0
	for id := range c.refs {
		if c.unacked == 0 {
			return
		}
		for u := c.refs[id].unacked; u != nil; u = c.refs[id].unacked {
			c.giveBack(u.st, frame{c.refs[id].e, u.number})
			c.s.breathe(&steps)
		}
		c.s.breathe(&steps)
	}
}
