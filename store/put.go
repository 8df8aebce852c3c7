package store

import (
	"fmt"
	"time"

	"tendril/store/events"
	"tendril/store/object"
	"tendril/store/segment"
)

// MaxPutBytes bounds the data of a Put, which is copied with the lock held: some 10 µs.
const MaxPutBytes = 64 << 10

// Put makes a sealed object of data at once, named spec.Name; with replace it takes the name from the object that has
// it. Its segment is one that only this process ever writes. c holds one reference. spec.SizeBytes is len(data).
// Errors: as Create's and Seal's; ErrUnsupported for what takes longer (class persisted, checksums, memory of its own).
func (c *Conn) Put(spec Spec, replace bool, data []byte) (Handle, error) {
	return c.put(spec, replace, data, false)
}

// put is Put, of Conn or AtOnce.
func (c *Conn) put(spec Spec, replace bool, data []byte, atOnce bool) (Handle, error) {
	spec.SizeBytes = uint64(len(data))
	if err := c.s.checkPut(spec, replace); err != nil {
		return Handle{}, err
	}
	e, s := c.newEntry(spec), c.s
	s.mu.Lock()
	defer s.unlock()
	switch {
	case c.closed:
		return Handle{}, errConnClosed
	case atOnce && !c.putsAtOnce(&spec):
		return Handle{}, ErrWouldWait
	}
	if err := e.nameFree(spec.Name, replace); err != nil {
		return Handle{}, err
	}
	if err := s.reserveObject(c.tenant, e.charge, c.isStopped); err != nil {
		return Handle{}, err
	}
	defer c.tenant.made()
	fd, err := c.placePut(e, replace, data)
	if err != nil {
		s.detach(e)
		s.uncharge(c.tenant, e.charge)
		return Handle{}, err
	}
	c.admit(e, replace)
	return Handle{ID: e.id, Ref: e.ref(), Size: e.size, Class: e.class, Meta: e.meta, FD: fd}, nil
}

func (s *Store) checkPut(spec Spec, replace bool) error {
	switch {
	case spec.SizeBytes > MaxPutBytes:
		return fmt.Errorf("%w: a put of %d bytes, at most %d: create the object and fill it", object.ErrInvalid,
			spec.SizeBytes, MaxPutBytes)
	case spec.Class == object.Persisted || spec.Checksum || spec.Own || spec.Shared:
		return fmt.Errorf("%w: a put of class persisted, with checksums or memory of its own: create the object and "+
			"fill it", object.ErrUnsupported)
	case replace && spec.Name == "":
		return fmt.Errorf("%w: replace without a name", object.ErrInvalid)
	}
	return s.checkSpec(spec)
}

// placePut finds memory for e, fills and seals it. fd is as show's. mu is held, and let go while memory is populated.
func (c *Conn) placePut(e *entry, replace bool, data []byte) (fd int, err error) {
	if c.inlet == nil {
		c.inlet = c.s.newConn(c.owner, c.tenant)
		c.inlet.internal, c.inlet.keeps = true, true
	}
	if _, err = c.inlet.place(e, false); err != nil {
		return -1, err
	}
	if c.closed { // mu was let go
		return -1, errConnClosed
	}
	if err = e.nameFree(e.name, replace); err != nil || e.seg == nil {
		return -1, err
	}
	segment.Copy(e.seg.mapping.Bytes()[e.off:][:e.size], data)
	if err = c.s.sealMemory(e, false); err != nil {
		return -1, err
	}
	return c.s.show(c, e.seg)
}

// admit lists a sealed object that is new. mu is held.
func (c *Conn) admit(e *entry, replace bool) {
	s := c.s
	e.state, e.sealed = object.Sealed, time.Now()
	e.held = e.class != object.Ephemeral
	s.insert(e)
	c.referSince(e, e.sealed)
	if e.class == object.TTL {
		s.schedule(e, e.sealed.Add(e.ttl))
	}
	name := e.name
	displaced := c.tenant.names[name]
	if e.name = ""; name != "" {
		if err := s.bind(e, name, replace); err != nil {
			// a fault of this package, never of a peer
			panic("store: a free name was taken under the lock: " + err.Error())
		}
	}
	s.enindex(e)
	s.signal(e)
	s.notify(events.Sealed, e)
	if displaced != nil {
		_ = s.syncRecord(displaced) // it says itself what was wrong
	}
}

// putsAtOnce reports whether a Put waits for nothing. mu is held.
func (c *Conn) putsAtOnce(spec *Spec) bool {
	switch {
	case c.tenant.names[spec.Name] != nil: // its record on disk may have to follow
		return false
	case spec.SizeBytes == 0:
		return c.roomAtOnce()
	}
	return c.inlet != nil && c.inlet.createsAtOnce(spec)
}

// closeInlet gives up the segments of Puts. mu is held, and let go now and then.
func (c *Conn) closeInlet(steps *int) {
	if c.inlet == nil {
		return
	}
	c.inlet.closed = true
	for _, g := range c.inlet.written {
		c.s.retire(g)
		c.s.breathe(steps)
	}
}
