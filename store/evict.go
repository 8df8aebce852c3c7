package store

import (
	"container/list"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"tendril/store/events"
	"tendril/store/object"
	"tendril/store/segment"
	"tendril/store/spill"
)

// Memory comes back by whole segments: a sealed segment has no holes punched into it. So segments are ranked, not
// objects: one that has only objects which nobody uses stands in Store.cold, the one longest without use first, and is
// written to disk as a whole. Its memory returns when the last client has unmapped it, which clients do within seconds.

// leavingTime is how long memory that clients still have mapped counts as coming back soon.
const leavingTime = 3 * time.Second

// reconsider notes whether an object may go to disk now. mu is held.
func (s *Store) reconsider(e *entry) {
	g := e.seg
	s.noteCopy(e)
	if e.gpu != nil && e.gpu.fd >= 0 {
		s.rankDevice(e)
		return
	}
	if s.spill == nil || g == nil || e.isCopy() {
		return
	}
	usable := e.state == object.Sealed && e.refs == 0 && (e.held || e.memberOf > 0) && !e.pinned && !e.sealing &&
		e.moving == nil && (e.damage == nil || e.onDisk)
	if usable == e.usable {
		return
	}
	e.usable = usable
	if usable {
		g.usable++
	} else {
		g.usable--
	}
	s.rank(g)
}

// rank puts a segment at the end of the cold ones, or takes it out. mu is held.
func (s *Store) rank(g *segmentState) {
	cold := g.live > 0 && g.usable == g.live && !g.session && !g.evicting
	if cold == (g.ranked[0] != nil) {
		return
	}
	if cold {
		g.ranked = [2]*list.Element{s.cold.PushBack(g), g.tenant.cold.PushBack(g)}
		s.coldBytes += g.bytes
		return
	}
	s.coldBytes -= g.bytes
	s.cold.Remove(g.ranked[0])
	g.tenant.cold.Remove(g.ranked[1])
	g.ranked = [2]*list.Element{}
}

// reserveObject is reserveRoom for another object's record; it keeps the tenant's number of objects, those that are
// being made among them: mu may be let go before they are in the table. Where it succeeds the caller calls made, under
// the hold of mu in which it calls insert or has given up.
func (s *Store) reserveObject(t *tenant, n uint64, stop func() bool) error {
	if limit := s.opts.TenantObjects; limit > 0 && t.entries.Len()+t.making >= limit && !s.dropOneCopy(t) {
		return fmt.Errorf("%w: %s has %d objects, which is its limit: delete some", object.ErrLimit, t.name, limit)
	}
	t.making++
	err := s.reserveRoom(t, n, stop)
	if err != nil {
		t.made()
	}
	return err
}

// made ends what reserveObject began. mu is held.
func (t *tenant) made() { t.making-- }

// reserveRoom is reserve that, where memory is short, first lets go of what nobody holds any more and then sends
// objects to disk. mu is held, and let go meanwhile. stop may be nil.
func (s *Store) reserveRoom(t *tenant, n uint64, stop func() bool) error {
	err := s.findRoom(t, n, stop)
	t.refused.note(n, err)
	return err
}

// shortage is since when a tenant finds no room in a full store.
type shortage struct {
	bytes       uint64 // that it asked for last
	since, last time.Time
}

// note says how another request went.
func (r *shortage) note(n uint64, err error) {
	switch {
	case err == nil && n >= r.bytes:
		*r = shortage{}
	case errors.Is(err, object.ErrFull):
		now := time.Now()
		if now.Sub(r.last) > leavingTime {
			r.since = now
		}
		r.bytes, r.last = n, now
	}
}

// isLong reports whether it has waited for as long as others may take to unmap what they have to let go of.
func (r *shortage) isLong() bool {
	return !r.last.IsZero() && time.Since(r.last) <= leavingTime && time.Since(r.since) >= leavingTime
}

// findRoom is reserveRoom.
func (s *Store) findRoom(t *tenant, n uint64, stop func() bool) error {
	looked, vain := false, 0
	var cannot error // why some of t's own memory cannot go to disk
	for {
		err := s.reserve(t, n)
		if err == nil || s.closed || stop != nil && stop() {
			return err
		}
		full := errors.Is(err, object.ErrFull)
		// reserve gave up some of the empty segments: enough, unless they are many and small
		if !looked && s.lookNow(t, full) || full && s.idle.Len() > 0 && s.leavingFor(t, nil) < s.missing(n) {
			looked = true
			s.pause(nil) // closes what went
			continue
		}
		of, missing := (*tenant)(nil), s.missing(n) // of: whose memory would help; nil: anybody's
		if errors.Is(err, object.ErrQuota) {
			limit := s.mostBytes(t)
			if limit == 0 || t.charged+n <= limit { // it was raised meanwhile
				continue
			}
			of, missing = t, t.charged+n-limit
			if n > limit {
				return err
			}
		} else if n > s.opts.CapacityBytes {
			return err
		}
		if s.dropCopies(t, of, missing) {
			s.pause(nil) // closes what went
			continue
		}
		if s.spill == nil || vain > maxVictims {
			return err
		}
		s.freshenUsed(of)
		victims, more := s.victims(of, missing, s.leavingFor(t, of))
		if len(victims) == 0 && more {
			vain++
			s.pause(nil)
			continue
		}
		if len(victims) == 0 {
			if s.reserve(t, n) == nil { // mu was let go
				return nil
			}
			return withDisk(err, cannot)
		}
		for _, g := range victims {
			g.asker = t
		}
		gone, why := s.evict(victims, s.spill.For(t.name), stop)
		if own := (*ownFault)(nil); errors.As(why, &own) {
			if own.tenant == t { // what another tenant has is not t's to know
				cannot = why
			}
		} else if why != nil {
			return withDisk(err, why)
		}
		if gone == 0 {
			vain++
		}
		s.pause(nil) // closes what went: only then the kernel says that it is free
	}
}

// withDisk says why memory is short, and why what could go to disk cannot; cannot may be nil.
func withDisk(short, cannot error) error {
	if cannot == nil {
		return short
	}
	return fmt.Errorf("%w (and to disk: %w)", short, cannot)
}

// ownFault is why a segment cannot go to disk where the next one may: an object in it is damaged, or its tenant has no
// room on disk. Neither keeps anybody else from memory, and neither is met again as long as nothing changes.
type ownFault struct {
	error
	tenant *tenant // whose the segment is
}

func (f *ownFault) Unwrap() error { return f.error }

// missing gives how many bytes would have to go for n more to fit. mu is held.
func (s *Store) missing(n uint64) uint64 {
	taken := s.taken() + s.warmMaking
	if taken+n <= s.opts.CapacityBytes {
		return 0
	}
	return taken + n - s.opts.CapacityBytes
}

// leaving gives the bytes that will be back as soon as clients unmap them. mu is held.
func (s *Store) leaving() uint64 {
	for len(s.leavers) > 0 && (!s.leavers[0].leaving || time.Since(s.leavers[0].left) >= leavingTime) {
		s.backAgain(s.leavers[0])
		s.leavers[0] = nil
		s.leavers = s.leavers[1:]
	}
	return s.leavingBytes
}

// leavingFor gives those of leaving that t may count on where memory is short, of it alone or (nil) everywhere: its
// own, and what others have to let go of for its sake. What others let go of by themselves is no hope for t: their next
// objects may take it, and who keeps it mapped, and gives up more before that counts no longer, would keep t from ever
// getting what can be had. For the same reason t counts on the others for so long alone. mu is held.
func (s *Store) leavingFor(t, of *tenant) uint64 {
	s.leaving()
	switch {
	case of != nil:
		return of.leavingBytes
	case t.refused.isLong():
		return t.leavingBytes
	}
	return t.leavingBytes + t.promisedBytes
}

// willBeBack counts memory that was given up just now as leaving. mu is held.
func (s *Store) willBeBack(g *segmentState) {
	s.leaving() // the list does not grow without somebody who shortens it
	g.leaving = true
	s.leavers = append(s.leavers, g)
	s.leavingBytes += g.bytes
	g.tenant.leavingBytes += g.bytes
	if g.asker == g.tenant {
		g.asker = nil
	}
	if g.asker != nil {
		g.asker.promisedBytes += g.bytes
	}
}

// backAgain is the reverse: it is back, or somebody keeps it. mu is held.
func (s *Store) backAgain(g *segmentState) {
	if g.leaving {
		g.leaving = false
		s.leavingBytes -= g.bytes
		g.tenant.leavingBytes -= g.bytes
		if g.asker != nil {
			g.asker.promisedBytes -= g.bytes
		}
	}
}

// stays is the end of an attempt to have a segment go: nobody counts on it. mu is held.
func (g *segmentState) stays() {
	if g.mem != nil {
		g.asker = nil
	}
}

// maxVictims bounds what is mapped at once; who needs more comes again.
const maxVictims = 64

// coldOf gives a tenant's cold segments, or everybody's. mu is held.
func (s *Store) coldOf(of *tenant) *list.List {
	if of != nil {
		return &of.cold
	}
	return &s.cold
}

// victims takes cold segments, a tenant's or anybody's, the coldest first, until their bytes and those on their way
// back are enough. Those whose tenant has no room for them on disk go behind the others; more: there were so many of
// them that it ended there. Where there is none, twins of what nobody uses on OpenCL devices become some. mu is held.
func (s *Store) victims(of *tenant, missing, leaving uint64) (list []*segmentState, more bool) {
	list, more = s.coldest(of, missing, leaving)
	if len(list) == 0 && !more && leaving < missing && s.adoptTwins(of, missing-leaving) {
		return s.coldest(of, missing, leaving)
	}
	return list, more
}

// coldest is victims of those that are segments already. mu is held.
func (s *Store) coldest(of *tenant, missing, leaving uint64) (list []*segmentState, more bool) {
	cold := s.coldOf(of)
	left := cold.Len()
	for steps := 0; left > 0 && leaving < missing && len(list) < maxVictims; steps++ {
		if steps == lockSteps {
			return list, true
		}
		left--
		g := cold.Front().Value.(*segmentState)
		if s.lacksDisk(g) {
			s.cold.MoveToBack(g.ranked[0])
			g.tenant.cold.MoveToBack(g.ranked[1])
			continue
		}
		leaving += g.bytes
		g.evicting = true
		s.rank(g)
		list = append(list, g)
	}
	return list, false
}

// lacksDisk reports whether a segment was met that has no room on disk, and its tenant has no more now. mu is held.
func (s *Store) lacksDisk(g *segmentState) bool {
	limit := s.mostOnDisk(g.tenant)
	return g.lacking > 0 && limit > 0 && (g.lacking > limit || g.tenant.disk > limit-g.lacking)
}

// evict sends segments to disk, several at once, and says how many it took on: those that nobody holds through the
// index. mu is held, and let go meanwhile. The error is the first one, an ownFault only where there is no other; the
// segments that it does not concern are gone nevertheless. share is of the tenant that needs the memory, whosever
// the objects are.
func (s *Store) evict(victims []*segmentState, share spill.Share, stop func() bool) (n int, first error) {
	s.transfers.Add(1)
	defer s.transfers.Done()
	victims = s.clearOfIndex(victims)
	jobs := make([]*eviction, len(victims))
	for i, g := range victims {
		jobs[i] = s.newEviction(g)
	}
	s.unlock()
	var running sync.WaitGroup
	next := atomic.Int64{}
	for range min(spill.Parallel, len(jobs)) {
		running.Go(func() {
			for i := next.Add(1) - 1; int(i) < len(jobs); i = next.Add(1) - 1 {
				jobs[i].run(s, share, stop)
			}
		})
	}
	running.Wait()
	s.mu.Lock()
	for _, j := range jobs {
		err := s.finishEviction(j)
		if own := (*ownFault)(nil); err != nil && (first == nil || errors.As(first, &own)) {
			first = err
		}
	}
	steps := 0
	for _, j := range jobs {
		for _, f := range j.files {
			_ = s.writeStale(f.e) // renamed meanwhile; the object says what was wrong
			s.breathe(&steps)
		}
	}
	return len(jobs), first
}

// eachIn calls f with the objects of a segment that is evicting, until f answers false. Those that are put into it
// meanwhile may be left out. mu is held, and let go after some.
func (s *Store) eachIn(g *segmentState, f func(*entry) bool) {
	steps := 0
	for g.walk = g.first; g.walk != nil; s.breathe(&steps) {
		e := g.walk
		g.walk = e.next
		if !f(e) {
			break
		}
	}
	g.walk = nil
}

// eviction is one segment on its way to disk.
type eviction struct {
	g     *segmentState
	view  *segment.Mapping // nil: the segment is gone
	files []*outgoing
	// others are claims on the files of further objects. What comes next looks again when they have ended.
	others []chan struct{}
	err    error // of the whole
}

// outgoing is one object on its way to disk.
type outgoing struct {
	e       *entry
	record  *spill.Record
	off     uint64
	durable bool
	done    *atomic.Uint64
	sums    []byte // that it must have; nil: not known
	tried   bool   // otherwise err is of the whole segment, or of another object in it
	err     error
	damaged bool // err says that its memory is not what it was
}

// newEviction says what is to be written. Who has claimed the file of one object of the segment has claimed no other
// that an eviction waits for, and waits for nobody, so that waiting for it ends. mu is held, and let go meanwhile.
func (s *Store) newEviction(g *segmentState) *eviction {
	j := &eviction{g: g}
	g.lacking = 0
	if g.mem == nil { // its objects were deleted meanwhile
		return j
	}
	if j.view, j.err = g.mem.Map(false); j.err != nil {
		return j
	}
	s.eachIn(g, func(e *entry) bool {
		switch {
		case e.onDisk:
		case s.claimed(e):
			j.others = append(j.others, s.claims[e.id])
		default:
			if err := s.roomOnDisk(e); err != nil {
				g.lacking = spill.RoomFor(e.size)
				e.fault = err
				j.err = &ownFault{err, g.tenant}
				return false
			}
			j.files = append(j.files, s.beginWriting(e, false))
		}
		return true
	})
	return j
}

// roomOnDisk keeps the tenant's share of the disk. mu is held.
func (s *Store) roomOnDisk(e *entry) error {
	n, limit := spill.RoomFor(e.size), s.mostOnDisk(e.tenant)
	if limit > 0 && (n > limit || e.tenant.disk > limit-n) {
		return fmt.Errorf("%w: %s has %d of %d bytes on disk and needs %d more: delete objects", object.ErrQuota,
			e.tenant.name, e.tenant.disk, limit, n)
	}
	return nil
}

func (s *Store) beginWriting(e *entry, durable bool) *outgoing {
	s.claimFile(e.id)
	delete(s.undead, e.id) // what stayed of an earlier one is written over
	e.stale = false
	e.done = new(atomic.Uint64)
	e.tenant.disk += spill.RoomFor(e.size)
	return &outgoing{e: e, record: e.record(), off: e.off, durable: durable, done: e.done, sums: e.sums}
}

// run writes what is to be written, without mu. The memory cannot go meanwhile: it is mapped.
func (j *eviction) run(s *Store, share spill.Share, stop func() bool) {
	for _, ended := range j.others { // older than this one's claims
		<-ended
	}
	if j.view == nil {
		return
	}
	defer j.view.Unmap()
	for _, f := range j.files {
		if j.err == nil {
			j.err = f.write(s, j.view, share, stop)
		}
		if j.err != nil && !f.tried {
			f.err = j.err
		}
	}
}

// write writes one object.
func (f *outgoing) write(s *Store, view *segment.Mapping, share spill.Share, stop func() bool) error {
	src := spill.Source{Bytes: view.Bytes()[f.off:][:f.record.SizeBytes], Aligned: f.off%segment.PageBytes == 0,
		Sums: f.sums}
	began := time.Now()
	f.err = share.Write(f.record, src, f.durable, func() bool {
		f.done.Add(spill.ChunkBytes)
		return stop != nil && stop() || s.isClosed()
	})
	f.tried = true
	s.writes.Add(time.Since(began))
	if damage := (*spill.DamageError)(nil); errors.As(f.err, &damage) {
		f.damaged = true
		s.tellDamage(f.e.damaged(f.record.Name, "memory", f.err))
		return &ownFault{f.err, f.e.tenant}
	}
	return f.err
}

// endWriting notes how it went. mu is held.
func (s *Store) endWriting(f *outgoing) {
	e := f.e
	e.done = nil
	if f.err == nil {
		e.onDisk, e.fault, e.sums = true, nil, f.record.Sums
	} else {
		e.tenant.disk -= spill.RoomFor(e.size)
		if f.tried && !errors.Is(f.err, object.ErrTimeout) {
			e.fault = f.err
		}
	}
	if f.damaged && e.state != object.Deleted {
		s.foundDamaged(e, f.err)
	}
	s.yieldFile(e)
}

// finishEviction lets the memory go if nobody asked for the objects meanwhile. mu is held, and let go meanwhile.
func (s *Store) finishEviction(j *eviction) error {
	g, steps := j.g, 0
	for _, f := range j.files {
		if j.err != nil && !f.tried {
			f.err = j.err
		}
		s.endWriting(f)
		s.breathe(&steps)
	}
	if j.err == nil && s.mayGo(g) {
		s.stopWriting(g) // not for its writer's next objects: it is to go
		s.eachIn(g, func(e *entry) bool {
			if !e.mayGo() { // somebody asked for it just now: what is left stays
				return false
			}
			s.toDisk(e)
			return !s.closed
		})
	}
	g.evicting = false
	g.stays()
	s.rank(g)
	if g.live == 0 {
		return nil
	}
	return j.err
}

// mayGo reports whether all objects of a segment that is evicting may leave memory. mu is held, and let go meanwhile.
func (s *Store) mayGo(g *segmentState) bool {
	all := true
	s.eachIn(g, func(e *entry) bool {
		all = e.mayGo()
		return all
	})
	return all && !s.closed && g.live > 0 && g.usable == g.live
}

// mayGo reports whether an object may leave memory now. mu is held.
func (e *entry) mayGo() bool { return e.usable && e.onDisk && !e.indexed() }

// toDisk leaves an object on disk alone. The segment's last one takes the segment with it. mu is held.
func (s *Store) toDisk(e *entry) {
	e.state = object.Spilled
	s.notify(events.Spilled, e)
	s.spilled++
	s.spilledBytes += e.size
	s.counts.Evicted++
	s.counts.EvictedBytes += e.size
	s.detach(e)
}
