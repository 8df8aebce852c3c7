package store

import (
	"container/list"
	"fmt"

	"golang.org/x/sys/unix"

	"tendril/store/object"
	"tendril/store/spill"
)

// A cached copy is an object of another node, under its id. The store holds it as long as there is memory to spare: who
// needs that gets it before anything goes to disk. Copies stand in Store.copies and their tenant's, the one longest
// without use first, while nobody uses them.

// cachedPlace is the place of a cached copy in Store.copies and tenant.copies; nil: not there.
type cachedPlace struct{ all, own *list.Element }

func errCopyThere(id object.ID) error {
	return fmt.Errorf("%w: object %s is here, or on its way here", object.ErrExists, id)
}

func closeFD(fd int) {
	if fd >= 0 {
		unix.Close(fd)
	}
}

// SealCopy is Seal of an object that was created with Spec.ID, whose checksums (XXH64 of each MiB, 8 bytes each) came
// with it. They are the object's from then on. Errors: as Seal; ErrInvalid: not as many as it has MiB.
func (c *Conn) SealCopy(id object.ID, sums []byte) error {
	c.s.mu.Lock()
	defer c.s.unlock()
	e, err := c.ownOpen(id)
	if err != nil {
		return err
	}
	if !spill.FitSums(e.size, sums) {
		return fmt.Errorf("%w: %d bytes of checksums for an object of %d bytes", object.ErrInvalid, len(sums), e.size)
	}
	if e.size > 0 {
		e.sums = sums
	}
	return c.seal(id, false)
}

// Sums gives the object's checksums as they have been since it was sealed, or since it was first looked at; nil: they
// are not known. They must not be altered.
func (r *Reading) Sums() []byte {
	if r.parts != nil { // who has a GPU's memory can write it
		return nil
	}
	s := r.c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.objects[r.ID]; e != nil {
		return e.sums
	}
	return nil
}

// isCopy reports whether an object may go when memory is short: not where somebody gave it a name, or a time, here, and
// not where it was asked to stay.
func (e *entry) isCopy() bool { return e.cached != nil && !e.kept && e.class == object.Ephemeral }

// KeepCopy has the store hold an ephemeral object until it is deleted: a cached copy goes no more when memory is short,
// but to disk, as any other. An object of another class stays anyway. Errors: ErrNotFound; ErrNotSealed.
func (c *Conn) KeepCopy(id object.ID) error {
	c.s.mu.Lock()
	defer c.s.unlock()
	e := c.s.objects[id]
	switch {
	case e == nil || e.tenant != c.tenant || e.state == object.Deleted:
		return fmt.Errorf("%w: object %s is not here", object.ErrNotFound, id)
	case e.state != object.Sealed:
		return fmt.Errorf("%w: object %s is not sealed yet", object.ErrNotSealed, id)
	}
	e.kept = true
	if e.class == object.Ephemeral {
		e.held = true
	}
	c.s.reconsider(e)
	return nil
}

// DropCopy is Delete of an object that is no more than a copy here: one that somebody has named or persisted, or given
// a time, stays, which is no error.
func (c *Conn) DropCopy(id object.ID) error {
	c.s.mu.Lock()
	defer c.s.unlock()
	e, err := c.lookup(id)
	if err != nil || e.class != object.Ephemeral {
		return err
	}
	return c.delete(id, "")
}

// IsKept reports whether the store holds a copy that stays (KeepCopy).
func (s *Store) IsKept(id object.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.objects[id]
	return e != nil && e.kept
}

// KeptCopies gives the tenants of the copies that stay (KeepCopy). The cost is in proportion to all objects; others
// have the lock in between.
func (s *Store) KeptCopies() map[object.ID]string {
	s.mu.Lock()
	defer s.unlock()
	kept, steps := map[object.ID]string{}, 0
	for id, e := range s.objects { // without deleted ones
		if e.kept {
			kept[id] = e.tenant.name
		}
		s.breathe(&steps)
	}
	return kept
}

// noteCopy keeps a cached copy's place: it stands where nobody uses it. mu is held.
func (s *Store) noteCopy(e *entry) {
	at := e.cached
	if at == nil {
		return
	}
	idle := e.isCopy() && e.held && e.state == object.Sealed && e.refs == 0 && !e.sealing && e.memberOf == 0 &&
		!e.pinned
	if idle == (at.all != nil) {
		return
	}
	if idle {
		at.all, at.own = s.copies.PushBack(e), e.tenant.copies.PushBack(e)
		s.copyBytes += e.size
		return
	}
	s.copies.Remove(at.all)
	e.tenant.copies.Remove(at.own)
	s.copyBytes -= e.size
	*at = cachedPlace{}
}

// dropCopies lets go of cached copies for t, or (nil) for nobody in particular, a tenant's or (nil) anybody's, until
// their memory and what is on its way back are enough, or some have gone: then who asked comes again. False: there are
// none, or enough is on its way. mu is held.
func (s *Store) dropCopies(t, of *tenant, missing uint64) (some bool) {
	copies := &s.copies
	if of != nil {
		copies = &of.copies
	}
	for steps := 0; copies.Len() > 0 && steps < lockSteps; steps++ {
		leaving := s.leaving()
		if t != nil {
			leaving = s.leavingFor(t, of)
		}
		if leaving >= missing {
			break
		}
		e := copies.Front().Value.(*entry)
		g := e.seg
		if g != nil {
			g.asker = t
		}
		s.dropCopy(e)
		if g != nil {
			g.stays()
		}
		s.counts.DroppedCopies++
		some = true
	}
	return some
}

// dropOneCopy lets go of a tenant's oldest cached copy; false: it has none that nobody uses. mu is held.
func (s *Store) dropOneCopy(t *tenant) bool {
	if t.copies.Len() == 0 {
		return false
	}
	s.dropCopy(t.copies.Front().Value.(*entry))
	return true
}

// dropCopy makes a cached copy an object that its references alone hold: those that the index shows, perhaps. mu is
// held.
func (s *Store) dropCopy(e *entry) {
	e.held = false
	s.noteCopy(e)
	s.collect(e)
}

// Room gives the capacity and what is as good as free of it, in bytes. It costs the same whatever there is, as against
// Status: other nodes ask each second.
func (s *Store) Room() (capacity, free uint64) {
	s.mu.Lock()
	defer s.unlock()
	s.takeFreed()
	capacity = s.opts.CapacityBytes
	return capacity, min(capacity, capacity-min(s.charged, capacity)+s.spare())
}

// spare gives the memory that new objects can have besides what is free: that of cached copies which nobody uses, and
// of objects that can go to disk as soon as somebody needs it. mu is held.
func (s *Store) spare() uint64 {
	if s.spill == nil {
		return s.copyBytes
	}
	limit := s.spill.LimitBytes()
	return s.copyBytes + min(s.coldBytes, limit-min(limit, s.spill.TakenBytes()))
}
