package store

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tendril/store/index"
	"tendril/store/object"
)

// The index in shared memory (index/PROTOCOL.md): a tenant whose connections asked for it has its sealed objects in a
// table that they read, and they hold references in slots that the store reads. The store does not hear of those
// references. So whenever an object is to go, to move or to change in what the index tells of it, its record is retired
// first, and a look at the slots says who is still there. Until it was found in no slot, a retired record holds a
// reference to its object (entry.refs): whatever waits for references to go waits for slots too.
//
// Looks are taken by unlock, once for everything that was retired under one hold of the lock. Where slots are many,
// the tenant's attendant looks, once for a batch of retirements or after some milliseconds, and so does who meets a
// shortage of memory: in steps, between which others have the lock.

const (
	indexEagerSlots = 256 // used slots up to which every unlock looks
	indexEagerConns = 16
	indexBatch      = 256 // retired records that wait for a look at most
	indexPause      = 2 * time.Millisecond
	indexPauseConn  = 20 * time.Microsecond  // more for each connection: looking at its slots takes a hundredth of that
	indexFew        = 8                      // retired records up to which each is compared with every slot
	indexPauseMost  = 250 * time.Millisecond // between looks for slots that stay
	indexRetry      = time.Second            // after memory for another level was refused
	// connections of another tenant whose slots somebody who is short of memory looks at
	indexOthers = 64
	// connections of a tenant whose rings one choice of what goes to disk reads
	indexRings = 256
)

// tenantIndex is one tenant's index. Guarded by Store.mu.
type tenantIndex struct {
	table   index.Table[*entry]
	slots   map[*Conn]*index.Slots
	fresh   []retirement // not looked for yet
	kept    []retirement // found in a slot at the last look
	pause   time.Duration
	next    time.Time     // of the next look for kept and fresh
	due     bool          // the attendant is to look
	looking chan struct{} // closed when the look in steps that is under way ends; nil: none is
	charged uint64
	growing bool // another level is being made
	grown   time.Time
	held    []index.Word // what unlock's last look found
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
// reading), owned by the caller. From now on what the connection's process has in its slots counts as referenced, until
// the connection ends. Errors: ErrExists where c has it already, ErrFull, ErrQuota, ErrUnsupported.
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
	return s.reserveRoom(c.tenant, n, c.isStopped)
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
	if err := s.reserveRoom(c.tenant, n, c.isStopped); err != nil {
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

// IndexLevel gives a further level's descriptor, for reading, owned by the caller. ErrNotFound: there is no such level
// yet; ErrInvalid: c has no index.
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
	if len(ix.kept) <= indexBatch {
		ix.fresh, ix.kept = append(ix.fresh, ix.kept...), nil
		s.lookSoon(c.tenant)
	} else {
		s.lookLater(c.tenant)
	}
	s.dropIndex(c.tenant)
}

// dropIndex gives up a table that no connection has. mu is held.
func (s *Store) dropIndex(t *tenant) {
	ix := t.index
	if ix == nil || len(ix.slots) > 0 {
		return
	}
	t.index = nil
	delete(s.looking, t)
	s.unhold(t, ix.fresh) // nobody holds anything
	s.unhold(t, ix.kept)
	ix.fresh, ix.kept = nil, nil
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
// socket, and what is damaged not at all. mu is held.
func (s *Store) enindex(e *entry) {
	ix := e.tenant.index
	if ix == nil || s.closed || e.indexed() || e.state != object.Sealed || e.sealing || e.moving != nil ||
		e.gpu != nil || e.damage != nil || e.seg == nil && e.size > 0 || e.seg != nil && e.seg.evicting {
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
	ix.growing = true
	s.transfers.Add(1)
	go func() {
		defer s.transfers.Done()
		if !s.roomToGrow(t, ix, bytes) {
			return
		}
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

// roomToGrow charges another level, for which nothing goes to disk; where memory is short it looks for what is retired.
// mu is not held.
func (s *Store) roomToGrow(t *tenant, ix *tenantIndex, n uint64) bool {
	s.mu.Lock()
	defer s.unlock()
	err := errStoreClosed
	if !s.closed {
		err = s.reserve(t, n)
	}
	if err != nil && !s.closed && s.lookNow(t, errors.Is(err, object.ErrFull)) {
		s.pause(nil) // closes what went
		err = s.reserve(t, n)
	}
	if err != nil {
		ix.growing, ix.grown = false, time.Now() // further objects are had over the socket
	}
	return err == nil
}

// unindex makes an object unfindable in the index; the record holds a reference from now on until a look finds nobody.
// It does nothing for an object that is not there. mu is held, and released by unlock.
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
	e.retired++
	s.reconsider(e)
	s.lookSoon(e.tenant)
}

// unretire takes a retired record's reference to its object away. mu is held.
func (s *Store) unretire(e *entry) {
	e.refs--
	e.retired--
	s.collect(e)
}

// unhold is unretire for the records of a table that is gone; of many the attendant does it. mu is held.
func (s *Store) unhold(t *tenant, list []retirement) {
	if len(list) > lockSteps && !s.closed {
		t.unheld = append(t.unheld, list)
		s.attend(t)
		return
	}
	for _, r := range list {
		s.unretire(r.e)
	}
}

// lookSoon has the next unlock look at a tenant's slots.
func (s *Store) lookSoon(t *tenant) {
	if s.looking == nil {
		s.looking = make(map[*tenant]struct{})
	}
	s.looking[t] = struct{}{}
}

// lookWhereCheap looks at the slots of tenants with retired records, where that costs little, or has the attendant look
// where it is time. mu is held.
func (s *Store) lookWhereCheap() {
	for t := range s.looking {
		ix := t.index
		switch {
		case ix == nil:
			delete(s.looking, t)
		case len(ix.fresh) == 0:
		case len(ix.fresh) <= indexBatch && ix.cheap():
			s.lookFresh(t)
		case len(ix.fresh) >= max(indexBatch, 4*len(ix.slots)):
			s.lookLater(t)
		default:
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

// lookBy has janitor look before long.
func (s *Store) lookBy(ix *tenantIndex) {
	pause := ix.shortPause()
	if due := time.Now().Add(pause); ix.next.IsZero() || due.Before(ix.next) {
		ix.next, ix.pause = due, pause
		s.wakeJanitor()
	}
}

// shortPause is how long a retired record waits for the first look at most: where there are many connections looking
// costs more.
func (ix *tenantIndex) shortPause() time.Duration {
	return min(indexPause+time.Duration(len(ix.slots))*indexPauseConn, indexPauseMost)
}

// lookLater has the attendant look. mu is held.
func (s *Store) lookLater(t *tenant) {
	t.index.due, t.index.next = true, time.Time{}
	s.attend(t)
}

// lookFresh looks for what was retired since the last look, which is little, in few slots. mu is held.
func (s *Store) lookFresh(t *tenant) {
	ix := t.index
	for looked := 0; len(ix.fresh) > 0 && looked <= indexBatch; { // what goes may retire more
		list := ix.fresh
		ix.fresh = nil
		looked += len(list)
		s.lookFor(t, list)
	}
	if len(ix.fresh) > indexBatch {
		s.lookLater(t)
	}
	s.lookedAt(t)
}

// lookedAt notes when the next look is to be. mu is held.
func (s *Store) lookedAt(t *tenant) {
	ix := t.index
	switch {
	case len(ix.fresh)+len(ix.kept) > 0:
		if ix.next.IsZero() && !ix.due {
			s.lookBy(ix)
		}
	case ix.looking == nil:
		delete(s.looking, t)
		ix.next = time.Time{}
	}
}

// lookFor lets go of those that are in no slot and keeps the others. mu is held.
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
		s.lookedFor(t, ix, r, ix.holds(r.word, many))
	}
}

// lookedFor follows from whether a look has found a record in a slot. mu is held.
func (s *Store) lookedFor(t *tenant, ix *tenantIndex, r retirement, found bool) {
	switch {
	case t.index != ix: // the table is gone
		s.unretire(r.e)
	case found:
		ix.kept = append(ix.kept, r)
		s.reconsider(r.e)
	default:
		ix.table.Free(r.word)
		s.unretire(r.e)
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

// lookPasses bounds how often one look goes on to what it made go itself.
const lookPasses = 4

// look looks for everything that is retired, in steps. mu is held, and let go meanwhile.
func (s *Store) look(t *tenant) {
	ix := t.index
	for ix != nil && t.index == ix && ix.looking != nil { // what was retired since that began is not in it
		other := ix.looking
		s.unlock()
		<-other
		s.mu.Lock()
	}
	if ix == nil || t.index != ix {
		return
	}
	ix.due, ix.looking = false, make(chan struct{})
	before := len(ix.kept)
	list := ix.kept
	ix.kept = nil
	for pass := 0; pass < lookPasses && t.index == ix && len(list)+len(ix.fresh) > 0; pass++ {
		fresh := ix.fresh
		ix.fresh = nil
		s.lookInSteps(t, ix, list, fresh)
		list = nil
	}
	close(ix.looking)
	ix.looking = nil
	if t.index != ix {
		return
	}
	ix.next = time.Time{}
	if kept := len(ix.kept); kept > 0 {
		ix.pause = min(max(2*ix.pause, ix.shortPause()), indexPauseMost)
		if kept < before {
			ix.pause = ix.shortPause()
		}
		ix.next = time.Now().Add(ix.pause)
		s.wakeJanitor()
	}
	s.lookedAt(t)
}

// lookInSteps looks for some records. Nobody can take a reference to one that was retired before: so the slots need not
// be read at one moment. mu is held, and let go meanwhile.
func (s *Store) lookInSteps(t *tenant, ix *tenantIndex, lists ...[]retirement) {
	found := s.foundInSlots(ix, lists)
	steps := 0
	for _, list := range lists {
		for _, r := range list {
			s.lookedFor(t, ix, r, found[r.word])
			s.breathe(&steps)
		}
	}
}

// foundInSlots says which records stand in a slot. mu is held, and let go meanwhile.
func (s *Store) foundInSlots(ix *tenantIndex, lists [][]retirement) map[index.Word]bool {
	found := make(map[index.Word]bool) // of all that are looked for
	var held []index.Word
	s.pause(func() {
		for _, list := range lists {
			for _, r := range list {
				found[r.word] = false
			}
		}
	})
	note := func() {
		for _, w := range held {
			if _, wanted := found[w]; wanted {
				found[w] = true
			}
		}
		held = held[:0]
	}
	n := 0
	for _, slots := range ix.slots { // goes on with those that are there then
		held = slots.Held(held)
		if n++; n%slotStep == 0 {
			s.pause(note)
		}
	}
	s.pause(note)
	return found
}

// lookNow looks for what is retired before somebody is refused memory: of t, whose memory is short, and where
// everybody's is, of others, too. Of those with many connections their attendants look: that is for them to wait for.
// any: there was something to look for. mu is held, and let go meanwhile.
func (s *Store) lookNow(t *tenant, everybody bool) (any bool) {
	var list []*tenant
	for other := range s.looking {
		switch {
		case other.index == nil:
		case other == t || everybody && len(other.index.slots) <= indexOthers:
			list = append(list, other)
		case everybody:
			s.lookLater(other)
		}
	}
	for _, other := range list {
		s.look(other)
	}
	return len(list) > 0
}

// lookInTime has those looks taken that are due and says when the next one is. mu is held.
func (s *Store) lookInTime(now time.Time) time.Duration {
	wait := keepAtMost
	for t := range s.looking {
		ix := t.index
		switch {
		case ix == nil || ix.next.IsZero():
		case !now.Before(ix.next):
			s.lookLater(t)
		default:
			wait = min(wait, ix.next.Sub(now))
		}
	}
	return wait
}

// freshenUsed prepares the choice of what goes to disk: what clients used through the index is not longest without use.
// Of a tenant with many connections it reads the rings of some, others each time. mu is held, and let go meanwhile.
func (s *Store) freshenUsed(of *tenant) {
	steps := 0
	for t := range s.indexes(of) {
		ix, rings := t.index, 0
		if ix == nil { // meanwhile
			continue
		}
		for _, slots := range ix.slots { // a map's order is another one each time
			slots.Recent(func(w index.Word) {
				if e, ok := ix.table.Owner(w); ok && e.seg != nil {
					s.freshen(e.seg)
				}
				steps++
			})
			if steps >= lockSteps {
				steps = 0
				s.pause(nil)
			}
			if rings++; rings == indexRings {
				break
			}
		}
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

// clearOfIndex retires the objects of segments that are to go to disk, and gives those segments whose objects nobody
// holds through the index. The others do not go. mu is held, and let go meanwhile.
func (s *Store) clearOfIndex(victims []*segmentState) []*segmentState {
	for _, g := range victims {
		if g.tenant.index == nil {
			continue
		}
		s.eachIn(g, func(e *entry) bool {
			if e.indexed() {
				s.unindex(e)
			}
			return true
		})
	}
	for t := range s.looking {
		if slices.ContainsFunc(victims, func(g *segmentState) bool { return g.tenant == t && g.usable != g.live }) {
			s.look(t)
		}
	}
	return slices.DeleteFunc(victims, func(g *segmentState) bool {
		if g.usable == g.live {
			return false
		}
		g.evicting = false
		g.stays()
		s.rank(g)
		return true
	})
}
