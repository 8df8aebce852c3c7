package store

import (
	"container/list"
	"errors"
	"fmt"
	"time"

	"tendril/store/alloc"
	"tendril/store/object"
	"tendril/store/segment"
)

// segmentState is one segment in the table. Guarded by Store.mu, except what is immutable.
type segmentState struct {
	id     uint64        // immutable
	bytes  uint64        // immutable
	tenant *tenant       // immutable: whose it is
	ranges *alloc.Ranges // immutable: nil where one object or one session has the whole segment

	mem     *segment.Memory    // nil once given up
	writer  *Conn              // nil: takes no more objects
	seen    map[*Conn]struct{} // connections that have its descriptor or mapping, as far as they say
	shown   bool               // somebody got a descriptor, whether he says that he has it or not
	kept    *remnant           // given up, and not free yet: only the kernel knows who has it
	foreign map[uint32]string  // users of other tenants that were shown it, and those tenants; made with the first
	payer   *tenant            // who is charged instead of tenant; nil: nobody
	live    int                // objects in it; a session's segment counts as one
	session bool               // a session's memory, not yet published

	publishing bool // and about to be: not the session's to free or publish meanwhile

	once   bool          // never used for a second object
	sent   bool          // sockets may have pages of it (Reading.Memory): not used for another object
	sealed bool          // for readers
	idle   bool          // stands in writer.idle
	idleAt *list.Element // and in Store.idle
	used   uint64        // bytes of the objects in it
	bucket int           // place in writer.room: bucket and index
	at     int

	counted uint64 // of ranges, in writer.room.used

	first    *entry           // the objects in it
	walk     *entry           // the next one that eachIn comes to
	usable   int              // of which may go to disk
	evicting bool             // its objects are on their way to disk
	lacking  uint64           // room on disk that its tenant did not have when that was tried; 0: it was not short
	ranked   [2]*list.Element // places in Store.cold and tenant.cold; nil: in use
	mapping  *segment.Mapping // an internal writer's
	left     time.Time        // when mem was given up
	ended    time.Time        // when the last connection that had it ended, and somebody had it still
	leaving  bool             // counted among the memory that will be back soon
	asker    *tenant          // another tenant, for whom the store has it go; nil: nobody
	emptied  time.Time        // when the last object in it went, while idle
}

// buildMemory makes populated memory of at least n bytes, out of the warm pool where that saves time. mu is not held;
// the bytes are charged already. taken is a warm segment or nil, owned here. With bare only what was warm is populated.
func (s *Store) buildMemory(taken *segment.Memory, n uint64, bare bool, stop func() bool) (*segment.Memory, error) {
	m, populated := taken, uint64(0)
	var err error
	if m == nil {
		m, err = segment.Create(s.opts.System, n)
	} else {
		populated = min(n, m.Bytes())
		err = m.Resize(n)
	}
	if err == nil && populated < n && !bare {
		err = m.Populate(populated, m.Bytes(), stop)
	}
	if err == nil {
		err = m.Fix()
	}
	if err == nil {
		return m, nil
	}
	if m != nil {
		m.Close()
	}
	return nil, err
}

// newSegment charges and builds a segment whose writer is c. mu is held on entry and on return, not in between.
func (s *Store) newSegment(c *Conn, bytes uint64) (*segmentState, error) {
	n := segment.RoundUp(bytes)
	if n == 0 {
		return nil, fmt.Errorf("%w: a segment of %d bytes", object.ErrInvalid, bytes)
	}
	if err := s.mayGiveUpMore(c.tenant); err != nil {
		return nil, err
	}
	if err := s.openOne(c); err != nil {
		return nil, err
	}
	if err := s.reserveRoom(c.tenant, n, c.isStopped); err != nil {
		s.closeOne(c.tenant)
		return nil, err
	}
	if err := s.machineRoom(n); err != nil {
		s.closeOne(c.tenant)
		s.uncharge(c.tenant, n)
		return nil, err
	}
	if c.bare {
		c.asked.Add(n)
		s.unmade.Add(int64(n))
		s.machineAt = time.Time{} // it was taken off there, too
	}
	m, n, err := s.takeMemory(c, n)
	var mapping *segment.Mapping
	if err == nil && c.internal {
		if mapping, err = m.Map(true); err != nil {
			m.Close()
		}
	}
	s.mu.Lock()
	if err == nil && c.closed {
		if mapping != nil {
			s.doomedMaps = append(s.doomedMaps, mapping)
		}
		m.Close()
		err = fmt.Errorf("%w: the connection ended", object.ErrInvalid)
	}
	if err != nil {
		s.closeOne(c.tenant)
		s.uncharge(c.tenant, n)
		return nil, err
	}
	s.nextID++
	g := &segmentState{id: s.nextID, bytes: n, tenant: c.tenant, mem: m, writer: c, seen: make(map[*Conn]struct{}, 1),
		mapping: mapping}
	s.segments[g.id] = g
	c.written[g.id] = g
	return g, nil
}

// openOne counts another segment with memory in for c's tenant. Where that has as many as it may, an empty one makes
// way, or one whose objects can go to disk. mu is held, and let go meanwhile.
func (s *Store) openOne(c *Conn) error {
	var cannot error
	for try := 0; ; try++ {
		why := s.mayOpen(c.tenant)
		switch {
		case why == nil:
			s.opened++
			c.tenant.opened++
			return nil
		case s.closed || c.stopped.Load() || try > maxVictims:
			return why
		case s.retireIdleOf(c), s.dropIdleFile(c.tenant), s.dropOneCopy(c.tenant):
			continue
		case s.spill == nil:
			return why
		}
		victims, _ := s.victims(c.tenant, 1, 0)
		if len(victims) == 0 {
			return withDisk(why, cannot)
		}
		_, cannot = s.evict(victims, s.spill.For(c.tenant.name), c.isStopped)
		if own := (*ownFault)(nil); cannot != nil && !errors.As(cannot, &own) {
			return withDisk(why, cannot)
		}
	}
}

// closeOne is the reverse. mu is held.
func (s *Store) closeOne(t *tenant) {
	s.opened--
	t.opened--
}

// mayOpen says why a tenant may have no further segment with memory; nil: it may. mu is held.
func (s *Store) mayOpen(t *tenant) error {
	all := s.opts.Segments
	switch {
	case all == 0:
		return nil
	case t.opened >= s.opts.TenantSegments:
		return fmt.Errorf("%w: %s has %s of memory, each a descriptor of the daemon's, which is its limit: "+
			"delete objects that have memory of their own (large, strict or shared ones), close connections that write "+
			"small ones (each has a segment), or give tenants more (--quota-segments)",
			object.ErrLimit, t.name, object.Counted(t.opened, "segment"))
	case s.opened >= all || s.opened >= all-all/8 && t.opened >= max(1, all/64):
		return fmt.Errorf("%w: %d of %d segments of memory are in use, each a descriptor of the daemon's, and the last "+
			"ones are reserved for tenants that have few; %s has %d: delete objects that have memory of their own, "+
			"close connections that write, or raise the daemon's limit of open files (ulimit -Hn, LimitNOFILE=)",
			object.ErrLimit, s.opened, all, t.name, t.opened)
	}
	return nil
}

// retireIdleOf gives up an empty segment of c's, or of its tenant's where one is among the first. mu is held.
func (s *Store) retireIdleOf(c *Conn) bool {
	if len(c.idle) > 0 {
		s.retire(c.idle[0])
		return true
	}
	steps := 0
	for at := s.idle.Front(); at != nil && steps < lockSteps; at = at.Next() {
		if g := at.Value.(*segmentState); g.tenant == c.tenant {
			s.retire(g)
			return true
		}
		steps++
	}
	return false
}

// takeMemory makes n charged bytes real, or somewhat more in huge pages: it gives what is charged now. mu is held on
// entry, not on return.
func (s *Store) takeMemory(c *Conn, n uint64) (*segment.Memory, uint64, error) {
	if n >= s.opts.HugeFromBytes && !c.internal {
		s.unlock()
		m, err := segment.CreateHuge(s.opts.System, n, c.isStopped)
		s.mu.Lock()
		if err == nil {
			err = s.reserve(c.tenant, m.Bytes()-n)
			if err == nil {
				n = m.Bytes()
				err = m.Fix()
			}
			if err == nil {
				s.unlock()
				return m, n, nil
			}
			m.Close() // at the edge of a quota: ordinary pages fit
		}
	}
	warm := s.takeWarm(n)
	s.unlock()
	m, err := s.buildMemory(warm, n, c.bare, c.isStopped)
	return m, n, err
}

// show lets c know g. Where c does not have it yet, fd is a descriptor that the caller owns; otherwise −1. mu is held.
func (s *Store) show(c *Conn, g *segmentState) (fd int, err error) {
	if _, seen := g.seen[c]; seen || c.internal {
		return -1, nil
	}
	if fd, err = g.mem.Dup(); err != nil {
		return -1, err
	}
	g.shown = true
	if c.tenant != g.tenant {
		g.showForeign(c)
	}
	g.seen[c] = struct{}{}
	c.seen[g.id] = g
	return fd, nil
}

// unsee takes c's knowledge of g away: its descriptor and mapping are gone. mu is held.
func (s *Store) unsee(c *Conn, g *segmentState) {
	delete(g.seen, c)
	delete(c.seen, g.id)
	s.settle(g)
}

// stopWriting takes g from its writer. mu is held.
func (s *Store) stopWriting(g *segmentState) {
	c := g.writer
	if c == nil {
		return
	}
	c.room.remove(g)
	c.dropIdle(g)
	delete(c.written, g.id)
	g.writer = nil
	if g.mapping != nil {
		s.doomedMaps = append(s.doomedMaps, g.mapping)
		g.mapping = nil
	}
}

// emptied keeps a segment that holds no object any more for its writer's next ones, or gives it up. mu is held.
func (s *Store) emptied(g *segmentState) {
	c := g.writer
	if c == nil || c.internal && !c.keeps || g.once || g.sent || g.session || s.closed ||
		g.bytes > s.opts.WriterCacheBytes {
		s.retire(g)
		return
	}
	c.idle = append(c.idle, g)
	c.idleBytes += g.bytes
	g.idle, g.emptied = true, time.Now()
	g.idleAt = s.idle.PushBack(g)
	for c.idleBytes > s.opts.WriterCacheBytes || len(c.idle) > maxIdleSegments {
		s.retire(c.idle[0])
	}
}

// retire gives a segment up for good: no more objects; its memory goes when the last object and mapping are gone.
// mu is held.
func (s *Store) retire(g *segmentState) {
	s.stopWriting(g)
	s.settle(g)
}

// tellSlots tells processes that may ask for nothing over the socket that there is something to sweep; where a segment
// has many readers the attendant does it. mu is held.
func (s *Store) tellSlots(g *segmentState) {
	if len(g.seen) > lockSteps && !s.closed {
		g.tenant.telling = append(g.tenant.telling, g)
		s.attend(g.tenant)
		return
	}
	for c := range g.seen {
		c.tellLeaving()
	}
}

func (c *Conn) tellLeaving() {
	if slots := c.slots(); slots != nil {
		slots.Leave()
	}
}

// settle does what follows from a segment without writer and objects, and from one that nobody has. mu is held.
func (s *Store) settle(g *segmentState) {
	if g.writer != nil || g.live > 0 {
		return
	}
	if g.mem != nil {
		s.leave(g)
	} else if g.kept != nil && len(g.seen) == 0 {
		g.tenant.forgot = time.Now()
		s.takeFreed() // who unmapped it before he said so has it reported by now
	}
	if len(g.seen) == 0 && g.kept == nil && s.segments[g.id] == g {
		delete(s.segments, g.id)
		s.backAgain(g)
		s.uncharge(g.charged(), g.bytes)
	}
}

// charged gives who is charged for a segment.
func (g *segmentState) charged() *tenant {
	if g.payer != nil {
		return g.payer
	}
	return g.tenant
}

// leave gives up the memory of a segment. unlock closes it. mu is held.
func (s *Store) leave(g *segmentState) {
	if g.shown && s.giveUp(g.mem, remnant{tenant: g.tenant, bytes: g.bytes, g: g, foreign: g.foreign}) {
		g.kept = s.remnants[s.lastRemnant]
		s.dispute(g.kept)
		if len(g.seen) == 0 {
			g.tenant.forgot = time.Now()
		}
	}
	s.doomed = append(s.doomed, g.mem)
	g.mem = nil
	s.closeOne(g.tenant)
	g.left = time.Now()
	s.willBeBack(g)
	s.tellSlots(g)
}

// retireIdle gives up segments kept for writers, for t or (nil) nobody in particular, until n bytes would fit, or so
// many that others may want the lock: then more is true. Their clients still have them mapped: the memory comes back
// when they sweep. mu is held.
func (s *Store) retireIdle(t *tenant, n uint64) (more bool) {
	steps := 0
	for freed := uint64(0); freed < n && s.idle.Len() > 0; steps++ {
		if steps == lockSteps {
			return true
		}
		g := s.idle.Front().Value.(*segmentState)
		freed += g.bytes
		g.asker = t
		s.retire(g)
	}
	return false
}

// idleTime is how long an empty segment waits for its writer's next object before the writer's next sweep returns it.
const idleTime = 10 * time.Second

// maxIdleSegments bounds the search for a segment to use again.
const maxIdleSegments = 64

// dropIdle takes g off the list of empty segments. mu is held.
func (c *Conn) dropIdle(g *segmentState) {
	if !g.idle {
		return
	}
	for i, other := range c.idle {
		if other == g {
			c.idle = append(c.idle[:i], c.idle[i+1:]...)
			break
		}
	}
	c.idleBytes -= g.bytes
	c.s.idle.Remove(g.idleAt)
	g.idle, g.idleAt = false, nil
}

// findWhole finds the smallest empty segment of c's own that holds n bytes without wasting a quarter. mu is held.
func (c *Conn) findWhole(n uint64) (best *segmentState) {
	for _, g := range c.idle {
		if g.ranges == nil && g.bytes >= n && g.bytes-n/4 <= n+segment.PageBytes &&
			(best == nil || g.bytes < best.bytes) {
			best = g
		}
	}
	return best
}

// reuseWhole takes what findWhole finds. mu is held.
func (c *Conn) reuseWhole(n uint64) *segmentState {
	best := c.findWhole(n)
	if best != nil {
		c.dropIdle(best)
	}
	return best
}
