package store

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tendril/ipc/index"
	"tendril/store/object"
)

// The index in shared memory (ipc/index/PROTOCOL.md): a tenant whose connections asked for it has its sealed objects in a
// table that they read, and they hold references in slots that the store reads. The store does not hear of those
// references. So whenever an object is to go, to move or to change in what the index tells of it, its record is retired
// first, and a look at the slots says who is still there. Until it was found in no slot, a retired record holds a
// reference to its object (entry.refs): whatever waits for references to go waits for slots too.
//
// Looks are taken by unlock, once for everything that was retired under one hold of the lock; where slots are many, once
// for a batch of retirements or after some milliseconds.

const (
	indexEagerSlots = 256 // used slots up to which every unlock looks
	indexEagerConns = 16
	indexBatch      = 256 // retired records that wait for a look at most
	indexPause      = 2 * time.Millisecond
	indexPauseConn  = 20 * time.Microsecond  // more for each connection: looking at its slots takes a hundredth of that
	indexFew        = 8                      // retired records up to which each is compared with every slot
	indexPauseMost  = 250 * time.Millisecond // between looks for slots that stay
	indexRetry      = time.Second            // after memory for another level was refused
)

// tenantIndex is one tenant's index. Guarded by Store.mu.
type tenantIndex struct {
	table   index.Table[*entry]
	slots   map[*Conn]*index.Slots
	fresh   []retirement // not looked for yet
	kept    []retirement // found in a slot at the last look
	pause   time.Duration
	next    time.Time // of the next look for kept and fresh
	charged uint64
	growing bool // another level is being made
	grown   time.Time
	held    []index.Word // what the last look found
}

// retirement is a record that no client finds any more and that one may still hold.
type retirement struct {
	word index.Word
	e    *entry
}

// slots gives c's slots in its tenant's index; nil: it has none. mu is held.
func (c *Conn) slots() *index.Slots {
	if ix := c.tenant.index; ix != nil {
		return ix.slots[c]
	}
	return nil
}

// OpenIndex gives c the index of its tenant: the descriptors of its slots (writable) and of the table's level 0 (for
// reading), owned by the caller. From now on what the connection's process has in its slots counts as referenced, until the
// connection ends. Errors: ErrExists where c has it already, ErrFull, ErrQuota, ErrUnsupported.
func (c *Conn) OpenIndex() (slotsFD, levelFD int, err error) {
	s := c.s
	if s.opts.NoIndex {
		return -1, -1, fmt.Errorf("%w: this daemon offers no index in shared memory", object.ErrUnsupported)
	}
	if err := s.chargeIndex(c, index.SlotsBytes); err != nil {
		return -1, -1, err
	}
	slots, err := index.NewSlots(s.opts.System)
	if err == nil {
		err = c.attachSlots(slots)
	}
	if err != nil {
		s.mu.Lock()
		s.uncharge(c.tenant, index.SlotsBytes)
		s.unlock()
		return -1, -1, err
	}
	return c.indexDescriptors()
}

// chargeIndex charges memory for c, which has no index yet.
func (s *Store) chargeIndex(c *Conn, n uint64) error {
	s.mu.Lock()
	defer s.unlock()
	switch {
	case c.closed:
		return errConnClosed
	case c.slots() != nil:
		return fmt.Errorf("%w: this connection has the index already", object.ErrExists)
	}
	return s.reserveRoom(c.tenant, n, c.stopped.Load)
}

// attachSlots makes slots count, and the tenant's table where there is none. Slots are closed where it fails.
func (c *Conn) attachSlots(slots *index.Slots) (err error) {
	s := c.s
	s.mu.Lock()
	defer s.unlock()
	for c.tenant.index == nil && err == nil {
		err = s.beginIndex(c)
	}
	if err == nil && (c.closed || c.slots() != nil) {
		err = errConnClosed
		s.dropIndex(c.tenant)
	}
	if err != nil {
		slots.Close()
		return err
	}
	c.tenant.index.slots[c] = slots
	c.indexed = time.Now()
	return nil
}

// beginIndex makes a tenant's table of one level. mu is held, and let go meanwhile.
func (s *Store) beginIndex(c *Conn) error {
	n := index.LevelBytes(0)
	if err := s.reserveRoom(c.tenant, n, c.stopped.Load); err != nil {
		return err
	}
	s.unlock()
	l, err := index.NewLevel(s.opts.System, 0)
	s.mu.Lock()
	if err == nil && c.tenant.index == nil && !c.closed && !s.closed {
		ix := &tenantIndex{slots: make(map[*Conn]*index.Slots), charged: n}
		if err = ix.table.Add(l); err == nil {
			c.tenant.index = ix
			return nil
		}
	}
	if l != nil {
		l.Close()
	}
	s.uncharge(c.tenant, n)
	if err == nil && c.tenant.index == nil {
		err = errConnClosed
	}
	return err
}

func (c *Conn) indexDescriptors() (slotsFD, levelFD int, err error) {
	c.s.mu.Lock()
	defer c.s.unlock()
	if c.closed {
		return -1, -1, errConnClosed
	}
	ix := c.tenant.index
	if slotsFD, err = c.slots().Dup(); err == nil {
		if levelFD, err = ix.table.Level(0).Dup(); err == nil {
			return slotsFD, levelFD, nil
		}
		unix.Close(slotsFD)
	}
	c.s.closeIndex(c)
	return -1, -1, err
}

// IndexLevel gives a further level's descriptor, for reading, owned by the caller. ErrNotFound: there is no such level yet;
// ErrInvalid: c has no index.
func (c *Conn) IndexLevel(n int) (fd int, err error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	ix := c.tenant.index
	switch {
	case c.closed || c.slots() == nil:
		return -1, fmt.Errorf("%w: this connection has no index", object.ErrInvalid)
	case n < 0 || n >= ix.table.Levels():
		return -1, fmt.Errorf("%w: level %d of an index that has %d", object.ErrNotFound, n, ix.table.Levels())
	}
	return ix.table.Level(n).Dup()
}

// closeIndex ends what a connection holds in its slots, and the table with the last of them. mu is held.
func (s *Store) closeIndex(c *Conn) {
	slots := c.slots()
	if slots == nil {
		return
	}
	slots.End() // before the first look that leaves them out
	s.doomedSlots = append(s.doomedSlots, slots)
	ix := c.tenant.index
	delete(ix.slots, c)
	if !s.giveUp(slots.Memory(), remnant{tenant: c.tenant, bytes: index.SlotsBytes}) {
		s.uncharge(c.tenant, index.SlotsBytes)
	}
	ix.fresh = append(ix.fresh, ix.kept...)
	ix.kept = nil
	s.lookSoon(c.tenant)
	s.dropIndex(c.tenant)
}

// dropIndex gives up a table that no connection has. mu is held.
func (s *Store) dropIndex(t *tenant) {
	ix := t.index
	if ix == nil || len(ix.slots) > 0 {
		return
	}
	s.look(t) // nobody holds anything
	t.index = nil
	delete(s.looking, t)
	for n := range ix.table.Levels() {
		l := ix.table.Level(n)
		if s.giveUp(l.Memory(), remnant{tenant: t, bytes: l.Bytes()}) {
			ix.charged -= l.Bytes()
		}
		s.doomedLevels = append(s.doomedLevels, l)
	}
	ix.table = index.Table[*entry]{} // entries still refer to ix
	s.uncharge(t, ix.charged)
}

// indexed reports whether an object is in its tenant's index. mu is held.
func (e *entry) indexed() bool { return e.word != 0 && e.inIndex == e.tenant.index && e.inIndex != nil }

// enindex makes a sealed object findable in its tenant's index, where there is one. What does not fit is had over the
// socket. mu is held.
func (s *Store) enindex(e *entry) {
	ix := e.tenant.index
	if ix == nil || s.closed || e.indexed() || e.state != object.Sealed || e.sealing || e.moving != nil || e.seg == nil && e.size > 0 || e.seg != nil && e.seg.evicting {
		return
	}
	r := index.Record{ID: e.id, Name: e.name, Bytes: e.size, Class: e.class, Meta: e.meta}
	ref := e.ref()
	r.Segment, r.Offset = ref.Segment, ref.Offset
	if w, ok := ix.table.Insert(&r, e); ok {
		e.word, e.inIndex = w, ix
	}
	if ix.table.Short() && !ix.growing && time.Since(ix.grown) > indexRetry {
		s.growIndex(e.tenant)
	}
}

// growIndex makes a table's next level in the background: that takes some 0.3 ms a MiB. mu is held.
func (s *Store) growIndex(t *tenant) {
	ix := t.index
	n := ix.table.Levels()
	bytes := index.LevelBytes(n)
	if s.reserve(t, bytes) != nil {
		ix.grown = time.Now() // further objects are had over the socket
		return
	}
	ix.growing = true
	s.transfers.Add(1)
	go func() {
		defer s.transfers.Done()
		l, err := index.NewLevel(s.opts.System, n)
		s.mu.Lock()
		defer s.unlock()
		ix.growing = false
		if err == nil && t.index == ix {
			if err = ix.table.Add(l); err == nil {
				ix.charged += bytes
				return
			}
		}
		ix.grown = time.Now()
		s.uncharge(t, bytes)
		if l != nil {
			s.doomedLevels = append(s.doomedLevels, l)
		}
	}()
}

// unindex makes an object unfindable in the index; the record holds a reference from now on until a look finds nobody. It
// does nothing for an object that is not there. mu is held, and released by unlock.
func (s *Store) unindex(e *entry) {
	if !e.indexed() {
		e.word, e.inIndex = 0, nil
		return
	}
	ix := e.inIndex
	ix.table.Retire(e.word)
	ix.fresh = append(ix.fresh, retirement{e.word, e})
	e.word, e.inIndex = 0, nil
	e.refs++
	s.lookSoon(e.tenant)
}

// lookSoon has the next unlock look at a tenant's slots.
func (s *Store) lookSoon(t *tenant) {
	if s.looking == nil {
		s.looking = make(map[*tenant]struct{})
	}
	s.looking[t] = struct{}{}
}

// lookWhereCheap looks at the slots of tenants with retired records, where that costs little or it is time. mu is held.
func (s *Store) lookWhereCheap() {
	for t := range s.looking {
		ix := t.index
		switch {
		case ix == nil:
			delete(s.looking, t)
		case len(ix.fresh) >= max(indexBatch, 4*len(ix.slots)) || len(ix.fresh) > 0 && ix.cheap():
			s.lookFresh(t)
		case len(ix.fresh) > 0:
			s.lookBy(ix)
		}
	}
}

// cheap reports whether the slots are few.
func (ix *tenantIndex) cheap() bool {
	if len(ix.slots) > indexEagerConns {
		return false
	}
	used := 0
	for _, slots := range ix.slots {
		used += slots.Used()
	}
	return used <= indexEagerSlots
}

// lookBy has keeper look before long.
func (s *Store) lookBy(ix *tenantIndex) {
	pause := ix.shortPause()
	if due := time.Now().Add(pause); ix.next.IsZero() || due.Before(ix.next) {
		ix.next, ix.pause = due, pause
		s.wakeKeeper()
	}
}

// shortPause is how long a retired record waits for the first look at most: where there are many connections looking costs more.
func (ix *tenantIndex) shortPause() time.Duration {
	return min(indexPause+time.Duration(len(ix.slots))*indexPauseConn, indexPauseMost)
}

// lookFresh looks for what was retired since the last look.
func (s *Store) lookFresh(t *tenant) {
	ix := t.index
	for len(ix.fresh) > 0 { // what goes may retire more
		list := ix.fresh
		ix.fresh = nil
		s.lookFor(t, list)
	}
	if len(ix.kept) == 0 {
		delete(s.looking, t)
		ix.next = time.Time{}
	} else if ix.next.IsZero() {
		s.lookBy(ix)
	}
}

// look looks for everything that is retired. mu is held.
func (s *Store) look(t *tenant) {
	ix := t.index
	if ix == nil || len(ix.fresh)+len(ix.kept) == 0 {
		return
	}
	list, before := ix.kept, len(ix.kept)
	ix.kept = nil
	s.lookFor(t, list)
	s.lookFresh(t)
	if len(ix.kept) == 0 {
		return
	}
	ix.pause = min(max(2*ix.pause, ix.shortPause()), indexPauseMost)
	if len(ix.kept) < before {
		ix.pause = ix.shortPause()
	}
	ix.next = time.Now().Add(ix.pause)
}

// lookFor lets go of those that are in no slot and keeps the others.
func (s *Store) lookFor(t *tenant, list []retirement) {
	ix := t.index
	ix.held = ix.held[:0]
	for _, slots := range ix.slots {
		ix.held = slots.Held(ix.held)
	}
	many := len(list) > indexFew
	if many {
		slices.Sort(ix.held)
	}
	for _, r := range list {
		if ix.holds(r.word, many) {
			ix.kept = append(ix.kept, r)
			s.reconsider(r.e)
			continue
		}
		ix.table.Free(r.word)
		r.e.refs--
		s.collect(r.e)
	}
}

// holds reports whether the last look found a word.
func (ix *tenantIndex) holds(w index.Word, sorted bool) bool {
	if sorted {
		_, found := slices.BinarySearch(ix.held, w)
		return found
	}
	return slices.Contains(ix.held, w)
}

// lookNow looks for everything that is retired, of all tenants: memory is short. mu is held.
func (s *Store) lookNow() {
	for t := range s.looking {
		s.look(t)
	}
}

// lookInTime takes the looks that are due and says when the next one is. mu is held.
func (s *Store) lookInTime(now time.Time) time.Duration {
	wait := keepAtMost
	for t := range s.looking {
		if ix := t.index; ix != nil && !ix.next.IsZero() {
			if !now.Before(ix.next) {
				s.look(t)
			}
			if !ix.next.IsZero() {
				wait = min(wait, ix.next.Sub(now))
			}
		}
	}
	return wait
}

// passOver prepares the choice of what goes to disk: what clients used through the index is not the longest without use,
// and what they hold does not go. missing and leaving are as for victims. mu is held.
func (s *Store) passOver(of *tenant, missing, leaving uint64) {
	for t := range s.indexes(of) {
		for _, slots := range t.index.slots {
			slots.Recent(func(w index.Word) {
				if e, ok := t.index.table.Owner(w); ok && e.seg != nil {
					s.freshen(e.seg)
				}
			})
		}
	}
	for try := 0; try < maxVictims; try++ { // what is held makes way for the next ones
		if !s.clearOfIndex(of, missing, leaving) {
			return
		}
		s.lookNow()
	}
}

// indexes gives the tenants with an index, or that one.
func (s *Store) indexes(of *tenant) map[*tenant]struct{} {
	list := make(map[*tenant]struct{})
	for _, t := range s.tenants {
		if t.index != nil && (of == nil || of == t) {
			list[t] = struct{}{}
		}
	}
	return list
}

// freshen moves a segment that may go to disk behind the others. mu is held.
func (s *Store) freshen(g *segmentState) {
	if g.ranked[0] != nil {
		s.cold.MoveToBack(g.ranked[0])
		g.tenant.cold.MoveToBack(g.ranked[1])
	}
}

// clearOfIndex retires the objects of the segments that victims would take; false where none was in the index.
func (s *Store) clearOfIndex(of *tenant, missing, leaving uint64) (any bool) {
	taken := 0
	for at := s.coldOf(of).Front(); at != nil && leaving < missing && taken < maxVictims; at = at.Next() {
		g := at.Value.(*segmentState)
		leaving += g.bytes
		taken++
		for e := g.first; e != nil; e = e.next {
			if e.indexed() {
				s.unindex(e)
				any = true
			}
		}
	}
	return any
}
