package store

import (
	"fmt"
	"slices"
	"time"

	"tendril/store/events"
	"tendril/store/object"
)

// A composite is an object without bytes whose members are other sealed objects of its tenant. As members are there
// before it and never change, there are no cycles; how deep and how large a tree is stands in its entries and is
// bounded. A composite holds its members: one that is deleted loses its name at once and its place in the table with
// its last composite.

// memberBytes is what a member costs its composite, besides its name.
const memberBytes = 96

// member is one of a composite's members.
type member struct {
	name string
	e    *entry
}

// Compose makes a sealed composite; c holds one reference. spec.SizeBytes must be 0. Errors: Create's and Seal's;
// ErrInvalid, ErrNotFound, ErrPermission, ErrNotSealed for a member; ErrUnsupported for a tree that is too deep or too
// large.
func (c *Conn) Compose(spec Spec, members []object.Member) (object.ID, error) {
	s := c.s
	if err := checkComposite(s, spec, members); err != nil {
		return object.ID{}, err
	}
	s.mu.Lock()
	defer s.unlock()
	now := time.Now()
	e := &entry{
		id: object.NewID(), class: spec.Class, state: object.Sealed, tenant: c.tenant, creatorPID: c.owner.PID,
		creatorName: c.owner.Name,
		created:     now, sealed: now, labels: spec.Labels, meta: append([]byte(nil), spec.Meta...), ttl: spec.TTL,
		expiryAt: -1,
	}
	charge := e.recordBytes(spec.Name, spec.Meta) + membersBytes(members)
	if err := s.reserveObject(c.tenant, charge, c.isStopped); err != nil {
		return object.ID{}, err
	}
	err := c.join(e, members)
	switch {
	case c.closed:
		err = errConnClosed
	case err == nil:
		err = e.nameFree(spec.Name, false)
	}
	if err != nil {
		c.tenant.made()
		s.uncharge(c.tenant, charge)
		return object.ID{}, err
	}
	e.charge = charge
	s.insert(e)
	c.tenant.made() // before mu is let go for the disk
	s.adoptMembers(e)
	c.refer(e)
	return e.id, c.settleComposite(e, spec)
}

// settleComposite gives a composite what Seal gives an object. mu is held, and let go where it goes to disk.
func (c *Conn) settleComposite(e *entry, spec Spec) error {
	s := c.s
	if spec.Class == object.Persisted {
		err := s.persist(e, spec.Name, e.sealed)
		if err == nil && e.state == object.Deleted {
			err = fmt.Errorf("%w: object %s was deleted before the composite was complete", object.ErrAborted, e.id)
		}
		if err != nil {
			c.forgetComposite(e)
			return err
		}
	}
	e.held = e.class != object.Ephemeral
	if e.class == object.TTL {
		s.schedule(e, e.sealed.Add(e.ttl))
	}
	if spec.Name != "" {
		stale := e.stale                                    // changed while it went to disk
		if err := s.bind(e, spec.Name, false); err != nil { // taken meanwhile
			c.forgetComposite(e)
			return err
		}
		e.stale = stale // for the file knows the name
	}
	s.signal(e)
	s.notify(events.Sealed, e)
	_ = s.syncRecord(e) // it says itself what was wrong
	return nil
}

// forgetComposite takes one back that could not be settled. Others may have found it meanwhile: what they hold is
// theirs to release, as of any object that was deleted. mu is held.
func (c *Conn) forgetComposite(e *entry) {
	s := c.s
	if _, held := c.refs[e.id]; held {
		s.take1(c, e)
	}
	e.held = false
	s.removeFromTable(e)
	s.collect(e)
}

func checkComposite(s *Store, spec Spec, members []object.Member) error {
	switch {
	case spec.SizeBytes != 0 || spec.Own || spec.Shared:
		return fmt.Errorf("%w: a composite has no bytes of its own", object.ErrInvalid)
	case len(members) == 0 || len(members) > object.MaxMembers:
		return fmt.Errorf("%w: a composite of %d members: want 1 to %d", object.ErrInvalid, len(members),
			object.MaxMembers)
	}
	seen := make(map[string]bool, len(members))
	for _, m := range members {
		if err := checkBinding(m.Name); err != nil {
			return fmt.Errorf("member: %w", err)
		}
		if seen[m.Name] {
			return fmt.Errorf("%w: two members are named %q", object.ErrInvalid, m.Name)
		}
		seen[m.Name] = true
	}
	return s.checkSpec(spec)
}

func membersBytes(members []object.Member) (n uint64) {
	for _, m := range members {
		n += memberBytes + uint64(len(m.Name))
	}
	return n
}

// join finds e's members. mu is held.
func (c *Conn) join(e *entry, members []object.Member) error {
	e.tree = 1
	for _, m := range members {
		part, err := c.lookup(m.ID)
		switch {
		case err != nil:
			return fmt.Errorf("member %q: %w", m.Name, err)
		case part.state == object.Open:
			return fmt.Errorf("member %q: %w", m.Name, part.notSealed())
		case e.class == object.Persisted && part.class != object.Persisted:
			return fmt.Errorf("%w: member %q is of class %s, but the composite is persisted: persist the member first",
				object.ErrInvalid, m.Name, part.class)
		}
		if err := e.add(m.Name, part); err != nil {
			return err
		}
	}
	return nil
}

// add makes part a member, as far as e alone is concerned.
func (e *entry) add(name string, part *entry) error {
	e.depth = max(e.depth, part.depth+1)
	e.tree += max(part.tree, 1)
	if e.depth > object.MaxDepth || e.tree > object.MaxTree {
		return fmt.Errorf("%w: a composite of depth %d with %d objects: at most %d and %d", object.ErrUnsupported,
			e.depth, e.tree, object.MaxDepth, object.MaxTree)
	}
	e.members = append(e.members, member{name, part})
	return nil
}

// adoptMembers lets e hold its members. mu is held.
func (s *Store) adoptMembers(e *entry) {
	for _, m := range e.members {
		m.e.memberOf++
		s.reconsider(m.e)
	}
}

// dropMembers is the reverse, once; of a large tree the attendant does it. mu is held.
func (s *Store) dropMembers(e *entry) {
	members := e.members
	e.members = nil
	if e.tree > lockSteps && !s.closed {
		e.tenant.parting = append(e.tenant.parting, members)
		s.attend(e.tenant)
		return
	}
	for _, m := range members {
		s.part(m)
	}
}

// part takes a member from its composite. mu is held.
func (s *Store) part(m member) {
	m.e.memberOf--
	s.collect(m.e)
}

// letGo ends a sealed object's own life: it is out of the table, or where a composite has it a member and nothing else.
// mu is held.
func (s *Store) letGo(e *entry) {
	e.held = false
	if e.memberOf == 0 {
		s.removeFromTable(e)
	} else {
		if e.name != "" {
			s.notify(events.Unnamed, e)
		}
		s.unindex(e) // the class
		s.unbind(e)
		s.unschedule(e)
		e.class, e.pinned = object.Ephemeral, false
		e.stale = e.onDisk || s.claimed(e)
	}
	s.collect(e)
}

func (e *entry) memberList() (list []object.Member) {
	for _, m := range e.members {
		list = append(list, object.Member{Name: m.name, ID: m.e.id})
	}
	return list
}

// adoptTrees joins composites that were on disk with their members, and lets members go that no composite has any more.
// Before s is shared.
func (s *Store) adoptTrees(composites map[*entry][]object.Member) {
	order := make([]*entry, 0, len(composites))
	for e := range composites {
		order = append(order, e)
	}
	// members are older than what has them
	slices.SortFunc(order, func(a, b *entry) int { return a.sealed.Compare(b.sealed) })
	for _, e := range order {
		e.tree = 1
		for _, m := range composites[e] {
			part := s.objects[m.ID]
			err := fmt.Errorf("%w: member %q, object %s, is not on disk", object.ErrStorage, m.Name, m.ID)
			if part != nil && part.tenant == e.tenant && !part.sealed.After(e.sealed) && part != e {
				err = e.add(m.Name, part)
			}
			if err != nil {
				e.fault = err
			}
		}
		s.adoptMembers(e)
	}
	for _, e := range s.objects {
		if e.class == object.Ephemeral && !e.kept {
			e.held = false
			s.collect(e)
		}
	}
}
