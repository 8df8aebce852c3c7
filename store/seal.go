package store

import (
	"errors"
	"fmt"
	"time"

	"tendril/store/events"
	"tendril/store/object"
	"tendril/store/segment"
)

// Seal makes an object of this connection immutable and binds its name. From the first seal in a segment on, the kernel
// refuses every new writable mapping of it. strict also ends the creator's: the object must have been made with
// Spec.Own, and every writable mapping of it must be gone. Errors: ErrBusy (others fill it), ErrAborted (one ended in
// the middle of that: see Forgive), ErrNotFound, ErrSealed, ErrPermission, ErrExists (the name; the object stays
// unsealed), ErrInvalid (strict without Own), ErrBusy (strict with a writable mapping left).
func (c *Conn) Seal(id object.ID, strict bool) error {
	c.s.mu.Lock()
	defer c.s.unlock()
	return c.seal(id, strict)
}

// seal is Seal. mu is held, and let go where there is something to wait for.
func (c *Conn) seal(id object.ID, strict bool) error {
	s := c.s
	e, err := c.ownOpen(id)
	if err != nil {
		return err
	}
	if err := e.ready(); err != nil {
		return err
	}
	if err := e.inHostMemory("a strict seal"); err != nil && strict {
		return err
	}
	if err := e.nameFree(e.name, false); err != nil {
		return err
	}
	s.transfers.Add(1) // until what is on disk and is not sealed after all is gone
	defer s.transfers.Done()
	defer s.collect(e) // mu is let go: the last reference may have gone meanwhile
	if err := s.prepareSeal(e, strict); err != nil {
		return err
	}
	s.closeOpen(e)
	e.state, e.strict, e.sealed = object.Sealed, strict, time.Now()
	e.held = e.class != object.Ephemeral || e.cached != nil
	if e.class == object.TTL {
		s.schedule(e, e.sealed.Add(e.ttl))
	}
	if name := e.name; name != "" {
		e.name = ""
		if err := s.bind(e, name, false); err != nil {
			// a fault of this package, never of a peer
			panic("store: a free name was taken under the lock: " + err.Error())
		}
		e.stale = false // the file knows the name
	}
	s.enindex(e)
	s.signal(e)
	s.notify(events.Sealed, e)
	return nil
}

// prepareSeal does what a seal waits for. Where it fails e is unsealed as before: another Seal may follow, or an Abort.
// mu is held, and let go meanwhile.
func (s *Store) prepareSeal(e *entry, strict bool) error {
	err := s.sealMemory(e, strict)
	if err == nil && e.creator != nil {
		err = s.sumUp(e)
	}
	if err == nil && e.creator != nil && e.class == object.Persisted {
		e.sealing = true
		err = s.persist(e, e.name, time.Now())
		e.sealing = false
	}
	switch {
	case err == nil && e.creator == nil:
		return errConnClosed
	case err == nil:
		err = e.nameFree(e.name, false)
	}
	if err != nil {
		e.sums = nil  // its creator may write again
		if e.onDisk { // the name was taken meanwhile
			s.trashFile(e)
		}
	}
	return err
}

// sealMemory puts the seals on e's segment. mu is held, and let go during a strict seal, which may wait.
func (s *Store) sealMemory(e *entry, strict bool) error {
	g := e.seg
	switch {
	case g == nil:
		return nil
	case !strict:
		if g.sealed {
			return nil
		}
		if err := g.mem.SealForReaders(); err != nil {
			return err
		}
		g.sealed = true
		return nil
	case !g.once:
		return fmt.Errorf("%w: a strict seal needs an object created with a segment of its own", object.ErrInvalid)
	case g.sealed:
		return fmt.Errorf("%w: an earlier ordinary seal failed, and the kernel allows no strict seal after it. Seal without strict, or create the object again", object.ErrInvalid)
	}
	creator := e.creator
	e.sealing = true
	s.unlock()
	if s.opts.Devices != nil {
		s.opts.Devices.Forget(g.mem.FD()) // the keeper may have it mapped
	}
	err := sealStrict(g.mem, func() bool { return s.isClosed() || creator.stopped.Load() })
	s.mu.Lock()
	e.sealing = false
	return err
}

// strictPauses are the waits between tries of a strict seal, about a second in all. The kernel refuses one for moments
// also where the creator has unmapped the segment: while it has a page in hand itself (it moves pages, and looks which
// are used), or while a child of the creator's has the mapping between fork and exec. Each refusal for a page takes the
// kernel 0.15 s more.
var strictPauses = [...]time.Duration{time.Millisecond, 4 * time.Millisecond, 16 * time.Millisecond,
	64 * time.Millisecond, 256 * time.Millisecond, 650 * time.Millisecond}

// sealStrict seals memory once what is in the way has gone, or answers ErrBusy where it stays. stop is asked before
// each wait.
func sealStrict(m *segment.Memory, stop func() bool) error {
	err := m.SealStrict()
	for _, pause := range strictPauses {
		if !errors.Is(err, object.ErrBusy) || stop() {
			break
		}
		time.Sleep(pause)
		err = m.SealStrict()
	}
	return err
}

// Bind names a sealed object; an ephemeral one becomes named: the name holds it until Delete. An object has one name;
// another one moves. A name that is taken is ErrExists, or with replace is taken from its object, at once for all: that
// one is ephemeral from then on, unless it has a time to live, also where it was persisted.
func (c *Conn) Bind(id object.ID, name string, replace bool) error {
	if err := checkBinding(name); err != nil {
		return err
	}
	s := c.s
	s.mu.Lock()
	defer s.unlock()
	e, err := c.lookup(id)
	if err != nil {
		return err
	}
	if e.state == object.Open {
		return fmt.Errorf("%w: object %s: only a sealed object can have a name", object.ErrNotSealed, id)
	}
	return s.rebind(e, name, replace)
}

func checkBinding(name string) error {
	if name == "" {
		return fmt.Errorf("%w: an empty name", object.ErrInvalid)
	}
	return checkName(name)
}

// rebind names a sealed object. mu is held, and let go while what is on disk follows: its own record, then that of the
// object which had the name, or that one's end. Between the two both claim it, and the later claim counts.
func (s *Store) rebind(e *entry, name string, replace bool) error {
	displaced := e.tenant.names[name]
	if displaced == e {
		displaced = nil
	}
	if displaced != nil {
		displaced.refs++ // until the name is the other one's for good
		s.reconsider(displaced)
	}
	err := s.rename(e, name, replace)
	if displaced != nil {
		displaced.refs--
		s.collect(displaced)
		err = errors.Join(err, s.syncRecord(displaced))
	}
	return err
}

// rename is rebind for e alone.
func (s *Store) rename(e *entry, name string, replace bool) error {
	if err := s.bind(e, name, replace); err != nil {
		return err
	}
	s.unindex(e) // the name, the class
	if e.class == object.Ephemeral {
		e.class = object.Named
	}
	e.held = true
	s.enindex(e)
	s.signal(e)
	s.notify(events.Named, e)
	s.reconsider(e)
	return s.syncRecord(e)
}

// nameFree says whether e may have the name. mu is held.
func (e *entry) nameFree(name string, replace bool) error {
	if other := e.tenant.names[name]; name != "" && other != nil && other != e && !replace {
		return fmt.Errorf("%w: the name %q belongs to object %s: choose another, delete that object, or replace it",
			object.ErrExists, name, other.id)
	}
	return nil
}

// bind moves name to e. mu is held.
func (s *Store) bind(e *entry, name string, replace bool) error {
	if err := e.nameFree(name, replace); err != nil {
		return err
	}
	if other := e.tenant.names[name]; other != nil && other != e {
		s.notify(events.Unnamed, other)
		s.unbind(other)
		other.stale = other.onDisk || s.claimed(other)
		if other.class == object.Named || other.class == object.Persisted { // its name was how to find it
			// only references keep it, also across a restart or a handover
			other.class, other.held = object.Ephemeral, false
		}
		e.refs++ // other may be a composite, and all that holds e
		s.collect(other)
		e.refs--
	}
	if e.name != "" && e.name != name {
		s.notify(events.Unnamed, e)
	}
	s.unbind(e)
	e.name, e.bound = name, time.Now()
	e.stale = e.onDisk || s.claimed(e)
	e.tenant.names[name] = e
	return nil
}
