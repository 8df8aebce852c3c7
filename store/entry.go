package store

import (
	"sync/atomic"
	"time"

	"tendril/store/events"
	"tendril/store/index"
	"tendril/store/object"
	"tendril/store/order"
)

// entryBytes is what an object's record costs the daemon, besides its name and metadata; measured with a million
// empty objects, rounded up. Charged, so that empty objects cannot fill the daemon's memory.
const entryBytes = 640

// entry is one object. Guarded by Store.mu, except what is immutable.
type entry struct {
	id          object.ID // immutable
	size        uint64    // immutable
	meta        []byte    // immutable once sealed, and never changed in place
	tenant      *tenant   // immutable
	creatorPID  int       // immutable
	creatorName string    // immutable
	created     time.Time // immutable; with id its place in tenant.entries
	seg         *segmentState
	off         uint64
	// of a GPU, in whose memory it lies, or instead in seg or on disk (deviceaway.go); nil: of none. Whether it is nil
	// is immutable once in the table
	gpu *deviceMemory

	// What takes a byte stands together: a record of more than 512 bytes costs the garbage collector more.
	class   object.Class
	state   object.State
	sealing bool // a strict seal is under way without mu
	strict  bool
	held    bool // the name holds a reference
	shared  bool // several may fill it
	pinned  bool
	usable  bool // counted in seg.usable: may go to disk
	onDisk  bool // its file is there, whole
	stale   bool // its record on disk wants writing again
	kept    bool // a copy that stays (KeepCopy)
	summed  bool // checksums are wanted from the seal on

	name    string // wanted while open, bound once sealed
	creator *Conn  // nil once sealed or gone
	refs    int    // of all connections, and of retired
	copying int32  // copies into it that are under way, while open
	retired int32  // records of the index that are retired and not free
	sealed  time.Time
	bound   time.Time // when it got the name that it has; zero: when it was sealed
	charge  uint64    // bytes charged for this record

	fillers   map[*Conn]struct{} // of a shared one: who fills it, besides the creator
	filled    chan struct{}      // closed when the last of them is done
	fillFault error              // one of them ended in the middle

	members  []member // of a composite
	depth    int      // composites above each other in it, itself among them
	tree     int      // objects in it, itself among them; 0: no composite
	memberOf int      // composites that have it

	labels map[string]string // never changed in place
	grants []string          // who else may read it, in order; never changed in place
	shadow *entry            // holds the place that e had before its first grant, for references from then

	next, prev *entry // the segment's other objects

	word    index.Word   // in the tenant's index; 0 = not there
	inIndex *tenantIndex // where word is from

	ttl      time.Duration // class ttl
	expires  time.Time     // zero: never
	expiryAt int           // place in Store.expiries; −1 = not there

	moving chan struct{}  // closed when the restore that is under way has ended
	done   *atomic.Uint64 // bytes of the transfer under way; nil: none
	fault  error          // what the disk last answered

	cached *cachedPlace // of a copy that goes when memory is short; nil: it is none

	sums   []byte // sums.go; nil: not known
	damage error  // its memory is not what it was
}

// Cursor is the object's place in the order in which objects were made.
func (e *entry) Cursor() order.Cursor { return order.At(e.created, e.id) }

func (e *entry) ref() object.Ref {
	if e.seg == nil {
		return object.Ref{}
	}
	return object.Ref{Segment: e.seg.id, SegmentBytes: e.seg.bytes, Offset: e.off}
}

// insert puts an entry, charged already, into the table. mu is held.
func (s *Store) insert(e *entry) {
	s.objects[e.id] = e
	s.counts.Created++
	e.tenant.entries.Insert(e)
	s.usedBytes += e.hostBytes()
	s.tableBytes += e.charge
}

// collect lets an object go that nothing refers to: out of the table, then its memory. mu is held.
func (s *Store) collect(e *entry) {
	if e.refs == 0 && !e.held && !e.sealing && e.memberOf == 0 {
		s.unindex(e) // and then there may be a reference
	}
	if e.refs > 0 || e.held || e.sealing || e.memberOf > 0 {
		s.reconsider(e)
		s.dropShadow(e)
		return
	}
	s.removeFromTable(e)
	s.freeMemory(e)
}

// forgetEntry ends an object whatever holds it: an abort, or the store's end. mu is held.
func (s *Store) forgetEntry(e *entry) {
	if e.creator != nil {
		if r, ok := e.creator.refs[e.id]; ok {
			delete(e.creator.refs, e.id)
			s.references -= r.count
			e.refs -= r.count
		}
	}
	e.held = false
	s.removeFromTable(e)
	s.collect(e)
}

// removeFromTable makes an object unfindable: its id, its name, its tenant's list. mu is held.
func (s *Store) removeFromTable(e *entry) {
	if e.state == object.Deleted {
		return
	}
	s.counts.Removed++
	if e.state != object.Open {
		s.notify(events.Gone, e)
		s.tellFollowers(e.id)
	}
	s.unindex(e)
	s.closeOpen(e)
	s.unbind(e)
	s.unschedule(e)
	if e.offDevice() {
		s.countAway(e, -1)
	}
	if e.state == object.Spilled {
		s.spilled--
		s.spilledBytes -= e.size
	}
	e.state = object.Deleted
	s.noteCopy(e)
	s.setGrants(e, nil)
	s.dropFile(e)
	delete(s.objects, e.id)
	e.tenant.entries.Remove(e)
	s.usedBytes -= e.hostBytes()
}

// closeOpen ends an object's time as an unsealed one. mu is held.
func (s *Store) closeOpen(e *entry) {
	if e.creator != nil {
		delete(e.creator.open, e)
		e.creator = nil
		s.openCount--
	}
	for c := range e.fillers { // an object that is given up
		c.endFilling(e)
	}
	if e.shared && e.tenant.filling[e.name] == e {
		delete(e.tenant.filling, e.name)
	}
}

// unbind takes an object's name. mu is held.
func (s *Store) unbind(e *entry) {
	if e.name != "" {
		s.unindex(e)
	}
	if e.name != "" && e.tenant.names[e.name] == e {
		delete(e.tenant.names, e.name)
	}
	e.name = ""
}

// freeMemory gives back an object's bytes and its record's charge, once. mu is held.
func (s *Store) freeMemory(e *entry) {
	if e.charge == 0 || e.moving != nil { // the restore under way comes here when it ends
		return
	}
	s.tableBytes -= e.charge
	s.uncharge(e.tenant, e.charge)
	e.charge = 0
	s.dropMembers(e)
	s.detach(e)
	s.freeDevice(e)
	s.dropShadow(e)
}

// attach puts an object into a segment, which then is in use: among the cold ones it would go to disk with an object
// that is still being filled. mu is held.
func (s *Store) attach(e *entry, g *segmentState, off uint64) {
	e.seg, e.off = g, off
	g.live++
	g.used += e.size
	e.prev, e.next = nil, g.first
	if g.first != nil {
		g.first.prev = e
	}
	g.first = e
	s.rank(g)
}

// detach gives an object's bytes back to its segment. mu is held.
func (s *Store) detach(e *entry) {
	g := e.seg
	if g == nil {
		return
	}
	s.unlink(e)
	if g.ranges != nil {
		if err := g.ranges.Free(e.off); err != nil {
			// a fault of this package, never of a peer
			panic("store: an object's range was not allocated: " + err.Error())
		}
		if g.writer != nil {
			g.writer.room.update(g)
		}
	}
	if g.live == 0 {
		s.emptied(g)
	}
}

// unlink takes an object off its segment's list; its range stays taken. mu is held.
func (s *Store) unlink(e *entry) {
	g := e.seg
	if g.walk == e {
		g.walk = e.next
	}
	if e.usable {
		e.usable = false
		g.usable--
	}
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		g.first = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	}
	e.next, e.prev, e.seg = nil, nil, nil
	g.live--
	g.used -= e.size
	s.rank(g)
}
