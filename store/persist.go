package store

import (
	"fmt"
	"time"

	"tendril/store/object"
	"tendril/store/spill"
)

// recordsSaid is what records on disk say that an entry cannot know before the others are in the table.
type recordsSaid struct {
	members map[*entry][]object.Member // of composites
	names   map[*entry]string          // for inherit: of two that claim a name one has it
}

// openSpill opens the directory and puts into the table what a daemon before this one left there. Before s is shared.
// What their records say of the others there is noted.
func (s *Store) openSpill(said recordsSaid) error {
	dir, err := spill.Open(s.opts.SpillDir, s.opts.SpillBytes, s.opts.SpillSystem)
	if err != nil {
		return err
	}
	records, damaged, err := dir.Load()
	if err != nil {
		return err
	}
	s.spill = dir
	for _, d := range damaged {
		s.damaged = append(s.damaged, d.Error())
	}
	for _, r := range records {
		e := s.adopt(r)
		if e != nil && len(r.Members) > 0 {
			said.members[e] = r.Members
		}
		if e != nil && r.Name != "" && s.opts.Handoff != nil {
			said.names[e] = r.Name
		}
	}
	return nil
}

// IsSpillMissing reports whether persisted objects were in the directory at path (Options.SpillDir), and it is not
// there now, or is another one: a volume that is not mounted.
func IsSpillMissing(path string) (bool, error) { return spill.IsMissing(path) }

// ForgoSpill gives up what IsSpillMissing speaks of.
func ForgoSpill(path string) error { return spill.Forgo(path) }

// adopt puts an object on disk into the table, and gives it; nil where its time is over. Of two that claim a name the
// one that got it later has it.
func (s *Store) adopt(r *spill.Record) *entry {
	if !r.Expires.IsZero() && !time.Now().Before(r.Expires) && s.opts.Handoff == nil { // else that knows better
		_ = s.spill.Remove(r.ID, r.SizeBytes) // the next start tries again
		return nil
	}
	e := &entry{
		id: r.ID, size: r.SizeBytes, meta: r.Meta, tenant: s.tenantOf(r.Tenant), creatorPID: r.CreatorPID,
		creatorName: r.Creator,
		created:     r.Created, sealed: r.Sealed, class: r.Class, state: object.Spilled, held: true, labels: r.Labels,
		pinned: r.Pinned, bound: r.Bound,
		onDisk: true, expiryAt: -1, sums: r.Sums,
	}
	s.setGrants(e, r.Grants)
	e.charge = e.recordBytes(r.Name, r.Meta) + membersBytes(r.Members)
	s.charged += e.charge
	e.tenant.charged += e.charge
	e.tenant.disk += spill.RoomFor(e.size)
	s.ofDevice(e, r.Device)
	s.insert(e)
	if e.offDevice() {
		s.countAway(e, 1)
	}
	s.spilled++
	s.spilledBytes += e.size
	if other := e.tenant.names[r.Name]; r.Name != "" && (other == nil || other.named().Before(e.named())) {
		if other != nil {
			s.unbind(other)
		}
		e.name = r.Name
		e.tenant.names[r.Name] = e
	}
	if !r.Expires.IsZero() {
		s.schedule(e, r.Expires)
	}
	return e
}

// named says since when e has its name.
func (e *entry) named() time.Time {
	if e.bound.IsZero() {
		return e.sealed
	}
	return e.bound
}

// labelBytes is what one label costs besides its text.
const labelBytes = 64

// recordBytes is what an object's record is charged.
func (e *entry) recordBytes(name string, meta []byte) uint64 {
	n := entryBytes + uint64(len(name)+len(meta)+len(e.grants)*grantBytes)
	for k, v := range e.labels {
		n += labelBytes + uint64(len(k)+len(v))
	}
	return n
}

// record is what the disk is to know. mu is held.
func (e *entry) record() *spill.Record {
	return &spill.Record{
		Device: e.device(),
		ID:     e.id, SizeBytes: e.size, Tenant: e.tenant.name, Name: e.name, Class: e.class, Meta: e.meta,
		Labels: e.labels, Grants: e.grants, Members: e.memberList(), Pinned: e.pinned,
		Created: e.created.UTC(), Sealed: e.sealed.UTC(), Expires: e.expires, Bound: e.bound.UTC(),
		CreatorPID: e.creatorPID, Creator: e.creatorName,
	}
}

// persist puts an object on disk, under a name that it may not have yet, before it counts as persisted. mu is held, and
// let go meanwhile: the object may be deleted when it comes back, and then is on disk no longer.
func (s *Store) persist(e *entry, name string, sealed time.Time) error {
	s.transfers.Add(1)
	defer s.transfers.Done()
	e.refs++ // neither gone nor on its way to disk meanwhile; the caller collects
	s.reconsider(e)
	defer func() {
		e.refs--
		s.reconsider(e)
	}()
	s.awaitFile(e)
	if e.onDisk {
		return nil
	}
	if err := s.roomOnDisk(e); err != nil {
		return err
	}
	e.sealed = sealed
	f := s.beginWriting(e, true)
	f.record.Class, f.record.Name = object.Persisted, name
	j := &eviction{files: []*outgoing{f}}
	if e.seg != nil {
		j.view, j.err = e.seg.mem.Map(false)
	}
	s.unlock()
	if e.size == 0 {
		f.err = s.spill.For(e.tenant.name).Write(f.record, spill.Source{}, true, nil)
	} else {
		j.run(s, s.spill.For(e.tenant.name), nil)
	}
	s.mu.Lock()
	if f.err == nil {
		f.err = j.err
	}
	s.endWriting(f)
	return f.err
}

// syncRecord writes the record of an object on disk again where it changed. What a store did not write that leaves
// everything to a successor, the successor writes. mu is held, and let go meanwhile.
func (s *Store) syncRecord(e *entry) error {
	switch {
	case !e.stale || s.closed && s.departing:
		return nil
	case s.closed:
		return errStoreClosed
	}
	s.transfers.Add(1)
	defer s.transfers.Done()
	return s.writeStale(e)
}

// writeStale is syncRecord for who counts as a transfer, which the store's end waits for: what changed while an object
// went to disk is known after a restart, too.
func (s *Store) writeStale(e *entry) error {
	for e.stale && e.onDisk { // what goes to disk just now is seen to by who takes it there
		if s.claimed(e) {
			s.awaitFile(e)
		} else if err := s.rewriteRecord(e); err != nil {
			return err
		}
	}
	return nil
}

// rewriteRecord writes the record of an object on disk, which nobody has claimed, again. mu is held, and let go
// meanwhile.
func (s *Store) rewriteRecord(e *entry) error {
	s.claimFile(e.id)
	e.stale = false
	fresh, sums := e.record(), e.sums
	s.unlock()
	old, err := s.spill.Read(e.id.String())
	if err == nil && sums != nil { // the new record must not call sound what is not
		err = spill.Compare(e.id, old.Sums, sums)
	}
	if err == nil {
		fresh.Sums = old.Sums
		err = s.spill.For(e.tenant.name).Update(fresh)
	}
	s.mu.Lock()
	gone := e.state == object.Deleted
	if err != nil && !gone {
		e.stale, e.fault = true, err // the next change tries again, and the janitor
		s.isBehind(e, err)
	} else {
		s.isWritten(e)
	}
	s.yieldFile(e)
	if err != nil && !gone {
		return fmt.Errorf("the change is not on disk: %w", err)
	}
	return nil
}

// describeStorage fills in what disk, time and labels say. mu is held.
func (e *entry) describeStorage(info *object.Info) {
	info.Labels, info.Pinned, info.OnDisk = e.labels, e.pinned, e.onDisk
	info.Grants = e.grants
	if !e.expires.IsZero() {
		at := e.expires.UTC()
		info.Expires = &at
	}
	info.Checksum = e.sums != nil && e.size > 0
	if e.fault != nil {
		info.Fault = e.fault.Error()
	}
	if e.done != nil {
		info.Moving = &object.Transfer{To: "disk", DoneBytes: min(e.done.Load(), e.size)}
		if e.moving != nil {
			info.Moving.To = "memory"
		}
	}
}
