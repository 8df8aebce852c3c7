package store

import (
	"fmt"
	"maps"
	"time"

	"tendril/store/object"
)

// Change says what Update alters of a sealed object; nil leaves it.
type Change struct {
	Pinned *bool // true: never to disk to make room
	// from now on; the object becomes of class ttl. 0: it becomes named or, without a name, ephemeral
	TTL     *time.Duration
	Labels  map[string]string // take the place of all labels; kept
	Persist bool              // put on disk, then of class persisted
}

// Update alters a sealed object of the tenant's, by name where id is zero. What is on disk follows before it comes
// back. Errors: ErrNotFound, ErrPermission, ErrNotSealed, ErrInvalid, ErrFull, ErrQuota, ErrUnsupported, ErrStorage;
// ErrBusy (Persist, of an object that is on its way to disk: try again).
func (c *Conn) Update(id object.ID, name string, change Change) error {
	if err := checkLabels(change.Labels); err != nil {
		return err
	}
	s := c.s
	s.mu.Lock()
	defer s.unlock()
	e, err := c.find(id, name)
	switch {
	case err != nil:
		return err
	case e.tenant != c.tenant:
		return fmt.Errorf("%w: object %s belongs to tenant %s, which alone may change it", object.ErrPermission, e.id,
			e.tenant.name)
	case e.state == object.Open:
		return e.notSealed()
	case change.Persist && s.spill == nil:
		return fmt.Errorf("%w: class persisted: this node keeps no objects on disk (--spill none)",
			object.ErrUnsupported)
	}
	if err := e.inHostMemory("persist"); err != nil && change.Persist {
		return err
	}
	if err := e.takes(change); err != nil {
		return err
	}
	if err := s.relabel(e, change); err != nil {
		return err
	}
	if change.Pinned != nil {
		e.pinned = *change.Pinned
	}
	if change.TTL != nil {
		s.setTTL(e, *change.TTL)
	}
	e.stale = e.onDisk || s.claimed(e)
	defer s.collect(e)
	if change.Persist {
		if err := s.setPersisted(e); err != nil {
			return err
		}
	}
	return s.syncRecord(e)
}

// takes says why an object's class does not allow a change. mu is held.
func (e *entry) takes(change Change) error {
	if change.TTL != nil && (*change.TTL < 0 || e.class == object.Persisted || change.Persist) {
		return fmt.Errorf("%w: a time to live of %v for an object of class %s", object.ErrInvalid, *change.TTL, e.class)
	}
	return nil
}

// relabel changes labels and what they are charged, unless the object does not take the change any more. mu is held,
// and let go where memory is short.
func (s *Store) relabel(e *entry, change Change) error {
	labels := change.Labels
	if labels == nil || maps.Equal(labels, e.labels) {
		return nil
	}
	next := entry{labels: labels, grants: e.grants}
	was, is := e.recordBytes("", nil), next.recordBytes("", nil)
	if is > was {
		if err := s.reserveRoom(e.tenant, is-was, nil); err != nil {
			return err
		}
		if e.state == object.Deleted {
			s.uncharge(e.tenant, is-was)
			return fmt.Errorf("%w: object %s", object.ErrNotFound, e.id)
		}
		if err := e.takes(change); err != nil { // it was persisted meanwhile
			s.uncharge(e.tenant, is-was)
			return err
		}
		if e.recordBytes("", nil) != was { // changed meanwhile
			s.uncharge(e.tenant, is-was)
			return s.relabel(e, change)
		}
	} else {
		s.uncharge(e.tenant, was-is)
	}
	e.charge += is - was
	s.tableBytes += is - was
	e.labels = labels
	return nil
}

func (s *Store) setTTL(e *entry, ttl time.Duration) {
	s.unindex(e) // the class
	if ttl > 0 {
		e.class, e.held = object.TTL, true
		s.schedule(e, time.Now().Add(ttl))
		return
	}
	s.unschedule(e)
	if e.class == object.TTL {
		e.class, e.held = object.Ephemeral, e.kept
		if e.name != "" {
			e.class, e.held = object.Named, true
		}
	}
}

func (s *Store) setPersisted(e *entry) error {
	if err := s.persist(e, e.name, e.sealed); err != nil {
		return err
	}
	if e.state == object.Deleted {
		return fmt.Errorf("%w: object %s was deleted meanwhile", object.ErrNotFound, e.id)
	}
	e.held = true
	s.unschedule(e)
	s.unindex(e) // the class
	e.class = object.Persisted
	e.stale = true
	return nil
}
