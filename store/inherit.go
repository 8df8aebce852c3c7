package store

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"tendril/store/handoff"
	"tendril/store/object"
)

// Orphans returns the previous store's connections with their references, at its first call. Each is to be closed
// when its process has ended, or has come back and claimed what it still holds (Reclaim).
func (s *Store) Orphans() []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	orphans := s.orphans
	s.orphans = nil
	return orphans
}

// Owner says for whom the connection acts.
func (c *Conn) Owner() Owner { return c.owner }

// inherit puts what the store before left into the table, in which what is on disk stands already; said is of that. The
// janitor writes the records there that differ. Capacity and quotas are charged, and not asked. Before s is shared.
func (s *Store) inherit(h *handoff.State, said recordsSaid) error {
	s.nextID = max(s.nextID, h.Catalog.NextSegment)
	s.inheritRemnants(h.Catalog.Remnants)
	for i, g := range h.Catalog.Segments {
		if s.segments[g.ID] != nil || g.ID == 0 || g.ID > s.nextID || h.Memory[i].Bytes() != g.Bytes {
			return fmt.Errorf("%w: segment %d of %d bytes twice, or of another size", object.ErrProtocol, g.ID, g.Bytes)
		}
		t := s.tenantOf(g.Tenant)
		s.segments[g.ID] = &segmentState{id: g.ID, bytes: g.Bytes, tenant: t, mem: h.Memory[i],
			seen: make(map[*Conn]struct{}), once: g.Alone, sealed: true, shown: true,
			foreign: fewForeign(g.Foreign)}
		s.charged += g.Bytes
		t.charged += g.Bytes
		s.opened++
		t.opened++
	}
	h.Memory = nil                // the table's from here on
	for _, e := range s.objects { // of what is on disk: the store before knows which names they have now
		s.unbind(e)
	}
	s.makeRoom(len(h.Catalog.Objects) / handoff.ObjectBytes)
	var last *handoff.Object
	for table := h.Catalog.Objects; len(table) > 0; {
		o, rest, err := handoff.NextObject(table, last)
		if err == nil {
			err = s.inheritObject(o, said)
		}
		if err != nil {
			return err
		}
		table, last = rest, o
	}
	for _, id := range h.Catalog.Undead {
		if e := s.objects[id]; e != nil && e.state == object.Spilled {
			s.forgetEntry(e)
		}
	}
	if err := s.inheritDevices(h); err != nil {
		return err
	}
	for _, st := range h.Catalog.Streams {
		s.inheritStream(st)
	}
	for _, c := range h.Catalog.Conns {
		s.inheritConn(c)
	}
	for _, t := range s.tenants {
		for _, st := range t.streams {
			s.dropStream(st) // where nobody comes back for it
		}
	}
	s.adoptTrees(said.members)
	for _, g := range s.segments {
		if g.live == 0 {
			s.settle(g)
		}
	}
	for _, e := range s.objects {
		s.reconsider(e)
	}
	return nil
}

// makeRoom has the table grow once for so many objects, and not twenty times.
func (s *Store) makeRoom(objects int) {
	grown := make(map[object.ID]*entry, len(s.objects)+objects)
	maps.Copy(grown, s.objects)
	s.objects = grown
}

// inheritObject takes one object over. What is on disk alone stands in the table, or its file is damaged.
func (s *Store) inheritObject(o *handoff.Object, said recordsSaid) error {
	r := &o.Record
	e, g := s.objects[r.ID], s.segments[o.Segment]
	if r.ID.IsZero() || !r.Class.Valid() || e != nil && (e.state != object.Spilled || e.size != r.SizeBytes ||
		e.tenant.name != r.Tenant) {
		return fmt.Errorf("%w: object %s of %d bytes, %q of %q", object.ErrProtocol, r.ID, r.SizeBytes, r.Name, r.Tenant)
	}
	if e != nil {
		s.inheritChanges(e, o, said.names[e])
	}
	if o.Spilled {
		return nil
	}
	if (g == nil) != (r.SizeBytes == 0) ||
		g != nil && (g.tenant.name != r.Tenant || o.Offset > g.bytes || r.SizeBytes > g.bytes-o.Offset) {
		return fmt.Errorf("%w: object %s of %d bytes at %d in segment %d", object.ErrProtocol, r.ID, r.SizeBytes,
			o.Offset, o.Segment)
	}
	fresh := e == nil
	if fresh {
		e = s.inheritRecord(o)
		s.ofDevice(e, o.Device)
		if len(r.Members) > 0 {
			e.charge += membersBytes(r.Members)
			said.members[e] = r.Members
		}
		s.charged += e.charge
		e.tenant.charged += e.charge
		s.insert(e)
	} else { // a copy is on disk
		s.spilled--
		s.spilledBytes -= e.size
	}
	e.state, e.strict = object.Sealed, o.Strict
	if fresh && e.offDevice() {
		s.countAway(e, 1)
	}
	if o.Damaged {
		why := fmt.Errorf("%w: object %s is damaged: the daemon before this one found that", object.ErrStorage, r.ID)
		e.damage, e.fault = why, why
	}
	if g != nil {
		s.attach(e, g, o.Offset)
	}
	return nil
}

// inheritChanges takes over what the store before knows of an object on disk: the disk may not have taken all of it.
// It is called nameOnDisk there. What differs the janitor writes.
func (s *Store) inheritChanges(e *entry, o *handoff.Object, nameOnDisk string) {
	r := &o.Record
	bound := e.bound.Equal(r.Bound) || e.bound.IsZero() // it got the name it was sealed with, a moment later
	same := nameOnDisk == r.Name && e.class == r.Class && e.pinned == r.Pinned && bound &&
		e.expires.Equal(r.Expires) && maps.Equal(e.labels, r.Labels) && slices.Equal(e.grants, r.Grants)
	e.class, e.pinned, e.bound, e.labels = r.Class, r.Pinned, r.Bound, r.Labels
	e.kept, e.held = o.Kept, o.Kept || r.Class != object.Ephemeral
	if e.stale = !same; e.stale {
		s.isBehind(e, nil)
	}
	if !slices.Equal(e.grants, r.Grants) {
		s.setGrants(e, r.Grants)
	}
	if r.Sums != nil {
		e.sums = r.Sums
	}
	if r.Name != "" {
		e.name = r.Name
		e.tenant.names[r.Name] = e
	}
	s.unschedule(e)
	if o.Left > 0 {
		s.schedule(e, time.Now().Add(o.Left))
	}
	was := e.charge
	e.charge = e.recordBytes(r.Name, e.meta) + membersBytes(r.Members)
	for _, sum := range []*uint64{&s.charged, &s.tableBytes, &e.tenant.charged} {
		*sum += e.charge - was
	}
}

// inheritRecord makes the entry of an object that is in memory alone.
func (s *Store) inheritRecord(o *handoff.Object) *entry {
	r := &o.Record
	e := &entry{
		id: r.ID, size: r.SizeBytes, meta: r.Meta, tenant: s.tenantOf(r.Tenant), creatorPID: r.CreatorPID,
		creatorName: r.Creator, created: r.Created, sealed: r.Sealed, class: r.Class, labels: r.Labels,
		held: o.Kept || r.Class != object.Ephemeral, kept: o.Kept, pinned: r.Pinned, bound: r.Bound, sums: r.Sums,
		expiryAt: -1,
	}
	s.setGrants(e, r.Grants)
	e.charge = e.recordBytes(r.Name, r.Meta)
	if r.Name != "" {
		e.name = r.Name
		e.tenant.names[r.Name] = e
	}
	if o.Left > 0 {
		s.schedule(e, time.Now().Add(o.Left))
	}
	return e
}

func (s *Store) inheritConn(h handoff.Conn) {
	c := s.newConn(Owner{Tenant: h.Tenant, PID: h.PID, Name: h.Name}, s.tenantOf(h.Tenant))
	c.refs = make(map[object.ID]reference, handoff.CountRefs(h.Refs))
	for r := range handoff.Refs(h.Refs) {
		e := s.objects[r.ID]
		if _, twice := c.refs[r.ID]; e == nil || r.Count == 0 || twice {
			continue
		}
		c.refs[r.ID] = reference{e: e, count: r.Count, since: r.Since}
		e.refs += r.Count
		s.references += r.Count
	}
	for _, f := range slices.Backward(h.Unacked) {
		r, st := c.refs[f.ID], c.tenant.streams[f.Stream]
		if r.e != nil && st != nil && f.Number > 0 && f.Number <= st.pushed && r.unackedFrames() < r.count {
			c.isUnacked(frame{r.e, f.Number}, st, 0)
		}
	}
	c.tenant.conns++
	s.conns[c] = struct{}{}
	s.orphans = append(s.orphans, c)
	if s.inherited == nil {
		s.inherited = make(map[int][]*Conn)
	}
	s.inherited[h.PID] = append(s.inherited[h.PID], c)
}

// fromOrphan moves one reference to e from an orphan of c's process to c. mu is held.
func (c *Conn) fromOrphan(e *entry) {
	for _, orphan := range c.s.inherited[c.owner.PID] {
		if _, held := orphan.refs[e.id]; held && orphan.tenant == c.tenant {
			c.s.take1(orphan, e)
			return
		}
	}
}

// disown removes an orphan that is closed from the table. mu is held.
func (c *Conn) disown() {
	pid := c.owner.PID
	rest := slices.DeleteFunc(c.s.inherited[pid], func(orphan *Conn) bool { return orphan == c })
	if len(rest) == 0 {
		delete(c.s.inherited, pid)
	} else {
		c.s.inherited[pid] = rest
	}
}

func (s *Store) inheritStream(h handoff.Stream) {
	t := s.tenantOf(h.Tenant)
	if t.streams == nil {
		t.streams = make(map[string]*stream)
	}
	st := &stream{
		tenant: t, name: h.Name, created: h.Created, charge: streamBytes + uint64(len(h.Name)), limit: h.Limit,
		limitBytes: h.LimitBytes,
		dropOldest: h.DropOldest, keep: h.Keep, ended: h.Ended, pushed: h.Pushed, popped: h.Popped, dropped: h.Dropped,
		ends: make(map[*streamEnd]struct{}),
	}
	if h.Broken != "" {
		st.broken = errors.Join(object.ErrAborted, errors.New(h.Broken))
	}
	for _, f := range h.Frames {
		if e := s.objects[f.ID]; e != nil {
			e.refs++
			st.frames = append(st.frames, frame{e, f.Number})
			st.bytes += e.size
		}
	}
	s.charged += st.charge
	t.charged += st.charge
	s.tableBytes += st.charge
	t.streams[h.Name] = st
}
