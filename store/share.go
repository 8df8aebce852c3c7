package store

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tendril/store/object"
	"tendril/store/order"
	"tendril/store/segment"
)

// Everybody is the principal that every connection has.
const Everybody = "all"

const (
	maxGrants  = 64  // of one object
	grantBytes = 128 // what one is charged: its text, and its places in Store.shared
)

// checkPrincipal reads "all", "uid:N" or "gid:N".
func checkPrincipal(who string) error {
	kind, number, ok := strings.Cut(who, ":")
	if _, err := strconv.ParseUint(number, 10, 32); who == Everybody || ok && err == nil &&
		(kind == "uid" || kind == "gid") {
		return nil
	}
	return fmt.Errorf("%w: cannot share with %.40q: want uid:N, gid:N or all", object.ErrInvalid, who)
}

// Grant lets others read a sealed object of the tenant's (by name where id is zero), or with revoke lets no further
// ones: who has it keeps it until its Release. An object that lies beside others is copied, at its first grant, into a
// segment of its own, so that its readers see nothing else; whoever holds it keeps the old place. A composite is shared
// with all that it has. Errors: ErrNotFound, ErrPermission, ErrNotSealed, ErrInvalid, ErrFull, ErrQuota.
func (c *Conn) Grant(id object.ID, name, who string, revoke bool) error {
	if err := checkPrincipal(who); err != nil {
		return err
	}
	s := c.s
	s.mu.Lock()
	defer s.unlock()
	e, err := c.find(id, name)
	switch {
	case err != nil:
		return err
	case e.state == object.Open:
		return e.notSealed()
	}
	steps := 0
	return s.grantTree(e, who, revoke, &steps)
}

// grantTree is grant for an object and, where it is a composite, what it has. mu is held, and let go meanwhile.
func (s *Store) grantTree(e *entry, who string, revoke bool, steps *int) error {
	s.breathe(steps)
	for _, m := range e.members { // never changed in place
		if err := s.grantTree(m.e, who, revoke, steps); err != nil && !(revoke && errors.Is(err, object.ErrNotFound)) {
			return fmt.Errorf("member %q: %w", m.name, err)
		}
	}
	return s.grant(e, who, revoke)
}

func (s *Store) grant(e *entry, who string, revoke bool) error {
	switch {
	case e.state == object.Deleted:
		return fmt.Errorf("%w: object %s was deleted meanwhile", object.ErrNotFound, e.id)
	case !revoke && slices.Contains(e.grants, who):
		return nil
	case revoke && !slices.Contains(e.grants, who):
		return fmt.Errorf("%w: object %s is not shared with %s", object.ErrNotFound, e.id, who)
	case !revoke && len(e.grants) >= maxGrants:
		return e.hasGrants()
	}
	if err := e.inHostMemory("share, for who can read the memory of a device can write it"); err != nil && !revoke {
		return err
	}
	if revoke {
		s.setGrants(e, slices.DeleteFunc(slices.Clone(e.grants), func(g string) bool { return g == who }))
		s.uncharge(e.tenant, grantBytes)
		e.charge -= grantBytes
		s.tableBytes -= grantBytes
	} else if err := s.addGrant(e, who); err != nil {
		return err
	}
	e.stale = e.onDisk || s.claimed(e)
	s.signal(e)
	return s.syncRecord(e)
}

// hasGrants says that an object has as many as it may.
func (e *entry) hasGrants() error {
	return fmt.Errorf("%w: object %s has %d grants already: share it with a group", object.ErrInvalid, e.id, maxGrants)
}

// addGrant charges the tenant for a grant and makes it. mu is held, and let go meanwhile.
func (s *Store) addGrant(e *entry, who string) error {
	if err := s.reserveRoom(e.tenant, grantBytes, nil); err != nil {
		return err
	}
	if err := s.setApart(e); err != nil { // last: mu is held from the moment that e lies apart
		s.uncharge(e.tenant, grantBytes)
		return err
	}
	switch {
	case e.state == object.Deleted || e.charge == 0:
		s.uncharge(e.tenant, grantBytes)
		return fmt.Errorf("%w: object %s was deleted meanwhile", object.ErrNotFound, e.id)
	case slices.Contains(e.grants, who): // another call was faster
		s.uncharge(e.tenant, grantBytes)
		return nil
	case len(e.grants) >= maxGrants: // others were
		s.uncharge(e.tenant, grantBytes)
		return e.hasGrants()
	}
	grants := append(slices.Clone(e.grants), who)
	slices.Sort(grants)
	s.setGrants(e, grants)
	e.charge += grantBytes
	s.tableBytes += grantBytes
	return nil
}

// setGrants keeps Store.shared. mu is held.
func (s *Store) setGrants(e *entry, grants []string) {
	for _, who := range e.grants {
		if s.shared[who].Remove(e); s.shared[who].Len() == 0 {
			delete(s.shared, who)
		}
	}
	e.grants = grants
	for _, who := range grants {
		if s.shared[who] == nil {
			s.shared[who] = new(order.List[*entry])
		}
		s.shared[who].Insert(e)
	}
}

// setApart puts e into a segment that it has alone and that is nobody's next. What is coming from disk is here first:
// it has a place, not all of its bytes, and did not know that it is to be shared. mu is held, and let go meanwhile.
func (s *Store) setApart(e *entry) error {
	for e.moving != nil {
		here := e.moving
		s.unlock()
		<-here
		s.mu.Lock()
	}
	if e.seg == nil || e.seg.once { // empty or on disk: it comes back alone
		return nil
	}
	from, err := e.seg.mem.Map(false)
	if err != nil {
		return err
	}
	defer from.Unmap()
	off := e.off
	e.refs++ // it must not go meanwhile
	s.reconsider(e)
	defer func() {
		e.refs--
		s.collect(e)
	}()
	s.transfers.Add(1)
	defer s.transfers.Done()
	copied := &entry{id: e.id, size: e.size, tenant: e.tenant}
	if _, err := s.restorerOf(e.tenant).place(copied, true); err != nil {
		return err
	}
	to, bytes := copied.seg.mapping.Bytes()[copied.off:][:e.size], from.Bytes()[off:][:e.size]
	s.unlock()
	segment.Copy(to, bytes)
	s.mu.Lock()
	err = s.sealMemory(copied, false)
	if err != nil || e.state != object.Sealed || e.seg == nil || e.seg.once { // gone, or another grant was faster
		s.detach(copied)
		return err
	}
	s.swapPlaces(e, copied)
	return nil
}

// swapPlaces gives e copied's place. Its old one stays taken while there are references from before. mu is held.
func (s *Store) swapPlaces(e, copied *entry) {
	s.unindex(e)
	old, off := e.seg, e.off
	fresh, at := copied.seg, copied.off
	e.shadow = &entry{id: e.id, size: e.size, tenant: e.tenant}
	s.attach(e.shadow, old, off)
	s.unlink(e)
	s.attach(e, fresh, at)
	s.unlink(copied)
	s.stopWriting(fresh)
	s.reconsider(e)
}

// dropShadow gives the old place back once nobody can be using it. mu is held.
func (s *Store) dropShadow(e *entry) {
	if e.shadow != nil && e.refs == 0 && !s.claimed(e) {
		s.detach(e.shadow)
		e.shadow = nil
	}
}

// mayRead reports whether an object is c's tenant's or shared with it.
func (c *Conn) mayRead(e *entry) bool {
	if e.tenant == c.tenant {
		return true
	}
	return slices.ContainsFunc(e.grants, func(who string) bool {
		return who == Everybody || who == c.tenant.name || slices.Contains(c.owner.Principals, who)
	})
}

// readable is find for who is to read: others' objects, too, where they are shared. Others' names are written
// TENANT/NAME; one that is not shared is as one that is not there. mu is held.
func (c *Conn) readable(id object.ID, name string) (*entry, error) {
	e := c.s.objects[id]
	if id.IsZero() {
		t, in := c.nameIn(name)
		if e = t.names[in]; e == nil || !c.mayRead(e) {
			return nil, notNamed(name)
		}
		return e, nil
	}
	if e != nil && c.mayRead(e) {
		return e, nil
	}
	return c.lookup(id) // says what is wrong
}

// nameIn says in whose names a name is looked for: the own ones first. mu is held.
func (c *Conn) nameIn(name string) (*tenant, string) {
	if c.tenant.names[name] == nil {
		if whose, rest, ok := strings.Cut(name, "/"); ok && c.s.tenants[whose] != nil {
			return c.s.tenants[whose], rest
		}
	}
	return c.tenant, name
}

// sharedWith gives up to n objects behind at that are shared with c, its own tenant's among them. mu is held.
func (c *Conn) sharedWith(at order.Cursor, n int) (list []*entry) {
	who := append([]string{Everybody, c.tenant.name}, c.owner.Principals...)
	n = max(n/len(who), 1)
	var until *order.Cursor // a list that gives n objects may have more behind the last of them
	for _, name := range who {
		k := len(list)
		if list = c.s.shared[name].After(list, at, n); len(list)-k == n {
			if last := list[len(list)-1].Cursor(); until == nil || last.Compare(*until) < 0 {
				until = &last
			}
		}
	}
	slices.SortFunc(list, func(a, b *entry) int { return a.Cursor().Compare(b.Cursor()) })
	list = slices.Compact(list)
	if until != nil {
		list = slices.DeleteFunc(list, func(e *entry) bool { return e.Cursor().Compare(*until) > 0 })
	}
	return list
}

func hasLabels(has, want map[string]string) bool {
	for k, v := range want {
		if have, ok := has[k]; !ok || have != v {
			return false
		}
	}
	return true
}
