package store

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"tendril/store/object"
	"tendril/store/requests"
)

// Owner says for whom a connection acts. Tenant must be true; the rest is for display.
type Owner struct {
	Tenant string
	PID    int
	Name   string
	// Principals are who it is where others share with it: "uid:N", "gid:N". They must be true.
	Principals []string
}

// Bare has Create leave the memory of c's new segments unpopulated: the caller writes to the segment's file, which
// makes the pages, and calls Written. Through a mapping, a page that the machine does not have would end the process.
// It is called before c is used otherwise.
func (c *Conn) Bare() { c.bare = true }

// Written says that n bytes in all of a bare connection's memory are written by now. The store counts the others as
// taken: nobody else is told that the machine has them. It waits for nothing.
func (c *Conn) Written(n uint64) {
	n = min(n, c.asked.Load())
	for was := c.made.Load(); was < n; was = c.made.Load() {
		if c.made.CompareAndSwap(was, n) {
			c.s.unmade.Add(int64(was) - int64(n))
		}
	}
}

// Conn is one connection's view of the store and the holder of its references. Safe for concurrent use.
type Conn struct {
	s       *Store  // immutable
	owner   Owner   // immutable
	tenant  *tenant // immutable
	stopped atomic.Bool
	// isStopped is stopped.Load, made once: a method value a call would be an allocation a call
	isStopped func() bool // immutable
	// Of a bare connection: bytes of its segments, and how many of them are written. asked changes under mu.
	asked, made atomic.Uint64
	// internal: the store's own, which brings a tenant's objects back from disk, or fills a connection's Puts. It gets
	// no descriptors; its segments are mapped writable here. keeps: empty ones stay for its next objects.
	internal, keeps bool // immutable
	bare            bool // see Bare

	*requests.Account // what its requests hold; immutable

	// Guarded by s.mu.
	refs      map[object.ID]reference
	open      map[*entry]struct{} // created here and not sealed
	seen      map[uint64]*segmentState
	written   map[uint64]*segmentState // those with writer == this
	room      roomBuckets
	idle      []*segmentState
	idleBytes uint64
	// memory of GPUs that is kept for its next objects; made with the first
	idleDevices map[fit][]*idleMemory
	ipc         map[uint64]ipcMemory // copies that are lent (deviceipc.go); made with the first
	lending     int                  // more of them that are being made
	closed      bool
	gone        chan struct{} // immutable; closed when Close has done everything

	fills      map[object.ID]*entry  // others' objects that this connection fills; made with the first
	streams    map[uint64]*streamEnd // made with the first
	lastStream uint64
	waiting    map[*Waiter]struct{} // pushes and pops under way; made with the first
	// acks: the peer acknowledges frames; how many it has not yet, and records of others, to be used again
	acks        bool
	unacked     int
	freeUnacked *unacked
	inlet       *Conn     // writes what is Put; made with the first
	indexed     time.Time // since when it has the index
}

// What a waiting request is charged, besides what its payload takes: a goroutine's stack and a timer; a record, where
// it waits without a goroutine.
const (
	WaitBytes    = 8 << 10
	PendingBytes = 2 << 10
)

// reference counts what one connection holds of one object. A deleted object is still found here.
type reference struct {
	e     *entry
	count int
	since time.Time // of the first of them
	// of frames that were popped and not acknowledged, not more than count; nil: none
	unacked *unacked
}

// Connect begins a connection. The caller must Close it.
func (s *Store) Connect(owner Owner) (*Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errStoreClosed
	}
	c := s.newConn(owner, s.tenantOf(owner.Tenant))
	c.tenant.conns++
	s.conns[c] = struct{}{}
	return c, nil
}

func (s *Store) newConn(owner Owner, t *tenant) *Conn {
	c := &Conn{
		s:       s,
		owner:   owner,
		tenant:  t,
		Account: s.requests.Account(t.name),
		gone:    make(chan struct{}),
		refs:    make(map[object.ID]reference),
		open:    make(map[*entry]struct{}),
		seen:    make(map[uint64]*segmentState),
		written: make(map[uint64]*segmentState),
	}
	c.isStopped = c.stopped.Load
	return c
}

var (
	errStoreClosed = fmt.Errorf("%w: the store is closing", object.ErrInternal)
	errConnClosed  = fmt.Errorf("%w: the connection has ended", object.ErrInvalid)
)

// ClosesAtOnce reports whether Close has nothing to give back.
func (c *Conn) ClosesAtOnce() bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return len(c.refs)+len(c.open)+len(c.seen)+len(c.written)+len(c.idle)+len(c.fills)+len(c.streams)+
		len(c.idleDevices)+len(c.ipc)+c.lending == 0 &&
		c.slots() == nil && c.inlet == nil
}

// Stop makes a call of this connection that populates memory, or waits to seal it, give up soon. Close still has to
// follow.
func (c *Conn) Stop() { c.stopped.Store(true) }

// Close aborts the connection's unsealed objects, releases its references and lets go of its segments, a few at a time:
// others have the lock in between. A second Close waits for the first. Waiting gets end when their context does.
func (c *Conn) Close() {
	c.Stop()
	s := c.s
	s.mu.Lock()
	if c.closed {
		s.mu.Unlock()
		<-c.gone
		return
	}
	c.letGo()
	s.unlock()
	s.requests.Drop(c.Account)
	close(c.gone)
}

// letGo ends what the connection has. mu is held.
func (c *Conn) letGo() {
	s := c.s
	c.closed = true
	for w := range c.waiting { // before others have the lock: no frame comes any more
		w.finish(errConnClosed)
	}
	c.Written(math.MaxUint64)
	c.dropIdleOf()
	for number := range c.ipc {
		c.freeIPC(number)
	}
	c.disown()
	if s.departing {
		c.keepSlots()
	}
	s.closeIndex(c)
	all := (s.ending || s.closed) && !s.departing // Close lets go of everything at once
	if !s.departing && !all {
		c.giveUnackedBack()
	}
	c.leaveStreams()
	c.leaveFills()
	steps := 0
	for e := range c.open {
		s.forgetEntry(e)
		s.breathe(&steps)
	}
	if s.departing {
		c.leave()
	}
	if s.departing || all {
		c.refs = make(map[object.ID]reference)
	}
	for id, r := range c.refs {
		delete(c.refs, id)
		s.references -= r.count
		r.e.refs -= r.count
		s.collect(r.e)
		s.breathe(&steps)
	}
	if all {
		c.written, c.seen = make(map[uint64]*segmentState), make(map[uint64]*segmentState)
	}
	for _, g := range c.written {
		if g.session {
			g.live = 0
		}
		s.retire(g)
		s.breathe(&steps)
	}
	c.closeInlet(&steps)
	for _, g := range c.seen {
		s.unsee(c, g)
		if g.kept != nil && len(g.seen) == 0 {
			g.ended = time.Now()
		}
		s.breathe(&steps)
	}
	delete(s.conns, c)
	c.tenant.conns--
	s.dropTenant(c.tenant)
}

// Forget notes that the connection has unmapped a segment and closed its descriptor. Its own segment takes no more
// objects; a session's segment is freed. Unknown segments are ErrNotFound.
func (c *Conn) Forget(id uint64) error {
	s := c.s
	s.mu.Lock()
	defer s.unlock()
	g, ok := c.seen[id]
	if !ok {
		return fmt.Errorf("%w: segment %d is not known to this connection", object.ErrNotFound, id)
	}
	if g.writer == c {
		if g.session {
			g.live = 0
		}
		s.retire(g)
	}
	s.unsee(c, g)
	return nil
}

// Sweep lists the segments that the connection has received and that are of no use any more: it should unmap them
// and call Forget. The cost is in proportion to the connection's segments.
func (c *Conn) Sweep() []uint64 {
	c.s.mu.Lock()
	defer c.s.unlock()
	for _, w := range []*Conn{c, c.inlet} {
		for w != nil && len(w.idle) > 0 && time.Since(w.idle[0].emptied) > idleTime {
			c.s.retire(w.idle[0])
		}
	}
	var gone []uint64
	steps := 0
	for id, g := range c.seen {
		if g.mem == nil {
			gone = append(gone, id)
		}
		c.s.breathe(&steps)
	}
	return gone
}
