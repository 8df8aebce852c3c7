package store

import (
	"fmt"
	"time"

	"tendril/store/events"
	"tendril/store/object"
)

// SessionSegment is memory that a session works in.
type SessionSegment struct {
	ID    uint64
	Bytes uint64 // what it really has: whole pages
	FD    int    // writable until PublishSegment; owned by the caller
}

// AllocSegment gives c populated, zeroed memory of at least n bytes that is no object. It lives until FreeSegment,
// PublishSegment or the connection's end.
func (c *Conn) AllocSegment(n uint64) (SessionSegment, error) {
	s := c.s
	if n == 0 || n > s.opts.CapacityBytes {
		return SessionSegment{}, fmt.Errorf("%w: a session's segment of %d bytes in a store of %d", object.ErrInvalid,
			n, s.opts.CapacityBytes)
	}
	s.mu.Lock()
	defer s.unlock()
	if c.closed {
		return SessionSegment{}, errConnClosed
	}
	g, err := s.newSegment(c, n)
	// its worker is about to unmap some
	for until := time.Now().Add(freeingTime); err != nil && s.awaitFreed(err, c.tenant, until); {
		g, err = s.newSegment(c, n)
	}
	if err != nil {
		return SessionSegment{}, err
	}
	g.session, g.live = true, 1
	fd, err := s.show(c, g)
	if err != nil {
		s.freeSession(c, g)
		return SessionSegment{}, err
	}
	return SessionSegment{ID: g.id, Bytes: g.bytes, FD: fd}, nil
}

// FreeSegment gives a session's segment back. The client unmaps it before or at once after.
func (c *Conn) FreeSegment(id uint64) error {
	s := c.s
	s.mu.Lock()
	defer s.unlock()
	g, err := c.sessionSegment(id)
	if err != nil {
		return err
	}
	s.freeSession(c, g)
	return nil
}

func (c *Conn) sessionSegment(id uint64) (*segmentState, error) {
	if g := c.written[id]; g != nil && g.session && !g.publishing {
		return g, nil
	}
	return nil, fmt.Errorf("%w: segment %d does not belong to this session", object.ErrNotFound, id)
}

func (s *Store) freeSession(c *Conn, g *segmentState) {
	g.live = 0
	s.stopWriting(g)
	s.unsee(c, g)
}

// Publication is what PublishSegment is asked for.
type Publication struct {
	Segment   uint64
	SizeBytes uint64 // of the object, from the segment's start
	Class     object.Class
	Name      string
	Replace   bool // take the name from the object that has it
	Meta      []byte
}

// PublishSegment moves a session's segment into an object that nobody can write, and that is the session's no longer. c
// holds one reference, as after Create. The session's client and worker have no mapping of it that can be written any
// more, and then nothing is copied; where one is left, anybody's, the object is a copy (sealPublished). Errors:
// ErrNotFound (segment), ErrInvalid, ErrUnsupported, ErrExists (the name), ErrFull, ErrQuota: nothing changed, but that
// the memory may be sealed where another took the name meanwhile.
func (c *Conn) PublishSegment(p Publication) (object.ID, error) {
	s := c.s
	if p.Class == object.TTL || p.Class == object.Persisted {
		return object.ID{}, fmt.Errorf("%w: publishing as class %s: publish it as named, then change its class",
			object.ErrUnsupported, p.Class)
	}
	if err := s.checkSpec(Spec{SizeBytes: p.SizeBytes, Class: p.Class, Name: p.Name, Meta: p.Meta}); err != nil {
		return object.ID{}, err
	}
	s.mu.Lock()
	defer s.unlock()
	g, err := c.sessionSegment(p.Segment)
	if err != nil {
		return object.ID{}, err
	}
	if p.SizeBytes == 0 || p.SizeBytes > g.bytes {
		return object.ID{}, fmt.Errorf("%w: an object of %d bytes in a segment of %d", object.ErrInvalid,
			p.SizeBytes, g.bytes)
	}
	now := time.Now()
	e := &entry{
		id: object.NewID(), size: p.SizeBytes, class: p.Class, state: object.Sealed, strict: true, tenant: c.tenant,
		creatorPID: c.owner.PID, creatorName: c.owner.Name, created: now, sealed: now, held: p.Class == object.Named,
		meta: append([]byte(nil), p.Meta...), expiryAt: -1,
	}
	e.charge = e.recordBytes(p.Name, p.Meta)
	if err := e.nameFree(p.Name, p.Replace); err != nil {
		return object.ID{}, err
	}
	if err := s.reserveObject(c.tenant, e.charge, nil); err != nil {
		return object.ID{}, err
	}
	memory, err := s.sealPublished(c, g)
	if err == nil {
		err = e.nameFree(p.Name, p.Replace) // mu was let go
	}
	c.tenant.made() // or given up
	if err != nil {
		s.giveUpCopy(memory, g)
		s.uncharge(c.tenant, e.charge)
		return object.ID{}, err
	}
	memory.sealed, memory.session, memory.live = true, false, 0
	memory.mem.LendReadOnly()
	s.attach(e, memory, 0)
	s.insert(e)
	c.refer(e)
	s.stopWriting(memory)
	s.unsee(c, memory)
	if memory != g {
		s.freeSession(c, g)
	}
	displaced := c.tenant.names[p.Name]
	if p.Name != "" {
		if err := s.bind(e, p.Name, p.Replace); err != nil {
			panic("store: a free name was taken under the lock: " + err.Error())
		}
	}
	s.enindex(e)
	s.signal(e)
	s.notify(events.Sealed, e)
	if displaced != nil {
		_ = s.syncRecord(displaced) // it says itself what was wrong
	}
	return e.id, nil
}
