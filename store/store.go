// Package store is the daemon's object table: create → fill → seal → get/release → delete, over segments of shared
// memory that the daemon owns and never reads. It knows connections (Conn), and that is where references live: a
// connection that ends gives back everything it held.
//
// It trusts its caller to say truly which tenant a connection belongs to, and nothing else: ids, names, sizes and
// segment numbers come from peers and are checked here. What a peer can do with a descriptor that it received is
// limited by seals (store/segment), not by good behaviour; how long it keeps a mapping cannot be limited, so a
// segment's bytes stay charged until every connection that received it forgot it or ended, and the kernel reports that
// nobody has it (kept.go). Without such reports, which Status tells of, a peer's word has to do.
//
// Locks: Store.mu alone guards every field of Store, Conn, entry, segmentState and tenant that is not said to be
// immutable or to guard itself. It is never held while memory is populated, mapped or given back to the kernel, nor
// while a file is read or written: those take milliseconds a MiB. requests.Ledger.mu and events.Watchers.mu are leaves.
//
// Goroutines run from New to Close: fillWarmPool; janitor, which ends what has expired and gives memory back above the
// high-water mark; watchFreed, which takes the kernel's reports; scrubber, where the store scrubs by itself. A tenant
// has one while its waits and watches have something to do (attendant.go). An eviction starts some more and joins them,
// and janitor has judge.go look into processes now and then.
package store

import (
	"container/list"
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tendril/store/adaptive"
	"tendril/store/events"
	"tendril/store/handoff"
	"tendril/store/index"
	"tendril/store/object"
	"tendril/store/order"
	"tendril/store/requests"
	"tendril/store/segment"
	"tendril/store/spill"
	"tendril/store/timing"
)

// Store is one node's object table. Safe for concurrent use.
type Store struct {
	opts     Options          // immutable
	requests *requests.Ledger // immutable

	mu         adaptive.Mutex
	objects    map[object.ID]*entry // sealed and open ones, not deleted ones
	tenants    map[string]*tenant
	limits     map[string]TenantLimits  // never altered; nil: nobody has own ones
	segments   map[uint64]*segmentState // until uncharged
	conns      map[*Conn]struct{}
	waits      map[waitKey]map[*tenant]*waitSet // by what is waited for, and by whom
	pending    int                              // Pendings
	doomed     []*segment.Memory                // to be closed by unlock, which then sees what is free
	doomedMaps []*segment.Mapping
	trash      []*entry  // whose files unlock removes; claimed
	wakes      []*Waiter // whose wake unlock calls

	pauses       int   // how often a long piece of work let others have mu; tests count it
	doomedFDs    []int // of memory of GPUs
	doomedSlots  []*index.Slots
	doomedLevels []*index.Level
	looking      map[*tenant]struct{} // those with retired records in the index

	expiries  expiryHeap
	idle      list.List // empty segments that are kept for their writers, the one longest empty first
	cold      list.List // segments whose objects may all go to disk, the one longest without use first
	copies    list.List // cached copies that nobody uses, the one longest without use first
	coldBytes uint64    // of the cold ones
	copyBytes uint64    // of the copies' objects

	devices   deviceCharges       // memory of GPUs in objects
	onDevices map[*entry]struct{} // that have some
	// memory of GPUs that is kept for its maker, the one longest idle first
	idleDevices list.List
	coldDevices coldDevices      // what nobody uses of GPUs' memory
	deviceRoom  bool             // unlock tells Options.OnDeviceRoom
	ipc         map[uint64]*Conn // who has what is lent (deviceipc.go) and there, by its number; made with the first

	counts       Counts
	writes       timing.Histogram // of objects to disk
	reads        timing.Histogram // of objects back from disk
	spilled      int
	spilledBytes uint64
	shared       map[string]*order.List[*entry] // by who may read it
	followers    map[object.ID]map[*Follower]struct{}
	// files that somebody has claimed, by object; closed when what is done to them without mu has ended
	claims      map[object.ID]chan struct{}
	damaged     []string               // records that could not be read at the start
	undead      map[object.ID]struct{} // deleted ones whose files could not be removed
	behind      map[*entry]error       // whose records the disk did not take, and why, if that is known
	diskTime    time.Time              // when both are tried again
	nextID      uint64                 // last segment number given
	charged     uint64                 // bytes of segments and table entries, the warm pool's not among them
	usedBytes   uint64                 // bytes of live objects as their creators asked
	tableBytes  uint64
	opened      int // segments that have memory
	references  int
	openCount   int
	warm        []*segment.Memory
	warmMaking  uint64       // bytes that the warm pool is populating now
	short       bool         // the machine is: the warm pool waits
	machineLeft uint64       // what it could still give at machineAt, less what was taken since
	unmade      atomic.Int64 // bytes that bare connections have yet to write; changes without mu
	machineAt   time.Time
	closed      bool
	ending      bool            // see Ending
	departing   bool            // see Leave
	left        []handoff.Conn  // what connections held that ended since
	orphans     []*Conn         // for Orphans
	inherited   map[int][]*Conn // orphans that are not closed, by process
	closing     atomic.Bool     // closed, for who does not hold mu

	kick chan struct{} // wakes fillWarmPool; capacity 1
	done chan struct{} // closed when fillWarmPool has ended

	watch        *segment.Watch // immutable; nil: see watchFault. Used under mu
	watchFault   error          // why not, or why not for some segment
	unwatched    int            // segments given up that the kernel does not report
	watched      chan struct{}  // closed when watchFreed has ended
	remnants     map[int32]*remnant
	maxRemnants  int // of one tenant; immutable
	lastRemnant  int32
	reportsLost  bool
	disputed     map[int32]*remnant // of remnants, those that others than who pays were shown
	judgeAt      time.Time
	judging      bool
	search       search
	freed        chan struct{} // closed, and made again, when memory became free
	leavers      []*segmentState
	leavingBytes uint64 // of leavers

	spill     *spill.Dir        // immutable; nil: none
	keep      chan struct{}     // wakes janitor; capacity 1
	scrubTurn chan struct{}     // capacity 1; who has put its token in does a step of a scrub
	scrubEnd  func()            // immutable; ends scrubber
	scrubbed  chan struct{}     // closed when scrubber has ended
	scrubs    atomic.Bool       // scrubber does a pass
	lastScrub *object.ScrubPass // guarded by mu; nil: none yet
	kept      chan struct{}     // closed when janitor has ended
	transfers sync.WaitGroup    // between memory and disk; added to under mu while not closed
}

// tenant is what one tenant has. Guarded by Store.mu.
type tenant struct {
	name    string // immutable
	limits  TenantLimits
	names   map[string]*entry
	streams map[string]*stream // made with the first
	filling map[string]*entry  // unsealed objects that several may fill, by their name to be; made with the first
	entries order.List[*entry]
	making  int // objects that are not in entries yet
	conns   int
	charged uint64
	opened  int           // segments that have memory
	index   *tenantIndex  // nil: no connection asked for it
	devices deviceCharges // made with the first
	// what is kept of GPUs' memory; made with the first
	idleDevices map[object.Device]*idleOn
	coldDevices coldDevices // as Store.coldDevices

	remnants     int // memory given up that somebody still has
	remnantBytes uint64
	leavingBytes uint64
	// of other tenants' leavers, what the store had them let go of for this one
	promisedBytes uint64
	refused       shortage
	forgot        time.Time // when a peer last let go of memory that is not free yet

	disk     uint64    // bytes on disk
	cold     list.List // as Store.cold
	copies   list.List // as Store.copies
	restorer *Conn     // nil until something comes back from disk

	watching  events.Watchers // guards itself
	events    []*events.Event // for them, not handed over yet
	missed    bool            // more events than events may have
	woken     []*waitSet
	parting   [][]member      // of composites that are gone
	dropping  [][]frame       // of streams that were removed
	unheld    [][]retirement  // of an index that is gone
	matching  []*stream       // in which more of those who wait are to be served
	telling   []*segmentState // of which its readers are to be told that it is of no use
	deadlines pendingHeap
	attended  bool        // the attendant is there
	alarm     *time.Timer // wakes it; made with the first deadline
}

// New makes an empty store and starts its warm pool. The caller must Close it.
func New(opts Options) (*Store, error) {
	opts = opts.withDefaults()
	if err := opts.Validate(); err != nil {
		opts.Handoff.Close()
		return nil, err
	}
	s := &Store{
		opts:      opts,
		requests:  requests.New(opts.RequestBytes),
		objects:   make(map[object.ID]*entry),
		tenants:   make(map[string]*tenant),
		segments:  make(map[uint64]*segmentState),
		conns:     make(map[*Conn]struct{}),
		waits:     make(map[waitKey]map[*tenant]*waitSet),
		kick:      make(chan struct{}, 1),
		done:      make(chan struct{}),
		keep:      make(chan struct{}, 1),
		shared:    make(map[string]*order.List[*entry]),
		undead:    make(map[object.ID]struct{}),
		behind:    make(map[*entry]error),
		claims:    make(map[object.ID]chan struct{}),
		followers: make(map[object.ID]map[*Follower]struct{}),
		devices:   make(deviceCharges),
		onDevices: make(map[*entry]struct{}),
		kept:      make(chan struct{}),
		scrubTurn: make(chan struct{}, 1),
		scrubbed:  make(chan struct{}),
		watched:   make(chan struct{}),
		freed:     make(chan struct{}),
	}
	s.beginWatch(opts.Handoff)
	if err := s.begin(opts.Handoff); err != nil {
		return nil, err
	}
	s.opts.Handoff = nil
	go s.fillWarmPool()
	go s.janitor()
	ctx, cancel := context.WithCancel(context.Background())
	s.scrubEnd = cancel
	go s.scrubber(ctx)
	go s.watchFreed()
	return s, nil
}

// begin fills the table with what is on disk and what a store before this one left. Before s is shared.
func (s *Store) begin(h *handoff.State) error {
	said := recordsSaid{make(map[*entry][]object.Member), make(map[*entry]string)}
	var err error
	if s.opts.SpillDir != "" {
		err = s.openSpill(said)
	}
	switch {
	case err == nil && h != nil:
		err = s.inherit(h, said)
	case err == nil:
		s.adoptTrees(said.members)
	}
	h.Close() // what was not taken over
	s.mu.Lock()
	s.unlock() // closes and removes what is of no use any more
	if err != nil {
		s.mu.Lock()
		s.closed = true // files stay
		for _, g := range s.segments {
			s.doomed = append(s.doomed, g.mem)
		}
		s.dropDevices()
		s.unlock()
		s.watch.Close()
	}
	return err
}

// Close ends every connection, gives all memory back and joins the warm pool's goroutine.
func (s *Store) Close() {
	s.end()
	s.mu.Lock()
	s.dropAll()
	s.unlock()
	s.mu.Lock() // who still gives memory back asks the watch under it
	defer s.mu.Unlock()
	s.watch.Close()
}

// Ending prepares for Close: from here on a connection that ends gives nothing back by itself. Close lets go of all at
// once: of a million objects, one by one, that takes a minute.
func (s *Store) Ending() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = true
}

// dropAll lets go of everything that is left: memory, and all that was known. mu is held, and every connection is
// closed.
func (s *Store) dropAll() {
	s.dropDevices()
	for _, g := range s.segments {
		if g.mapping != nil {
			s.doomedMaps = append(s.doomedMaps, g.mapping)
		}
		if g.mem != nil {
			s.doomed = append(s.doomed, g.mem)
		}
	}
	s.doomed = append(s.doomed, s.warm...)
	s.warm = nil
	clear(s.segments) // few
	s.objects, s.tenants, s.remnants = make(map[object.ID]*entry), make(map[string]*tenant), make(map[int32]*remnant)
	s.shared, s.expiries, s.leavers = make(map[string]*order.List[*entry]), nil, nil
	s.cold.Init()
	s.idle.Init()
	s.charged, s.usedBytes, s.tableBytes, s.leavingBytes, s.spilledBytes = 0, 0, 0, 0, 0
	s.references, s.openCount, s.spilled = 0, 0, 0
}

// end closes every connection and joins the goroutines.
func (s *Store) end() {
	s.mu.Lock()
	s.closed = true
	s.closing.Store(true)
	conns := make([]*Conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
	s.wakeWarmPool()
	s.wakeJanitor()
	s.scrubEnd()
	s.watch.Interrupt()
	<-s.done
	<-s.kept
	<-s.scrubbed
	<-s.watched
	s.transfers.Wait()
}

// unlock releases mu, then wakes whose turn has come in a stream and closes what was doomed under it: closing frees
// pages, some 0.1 s a GiB.
func (s *Store) unlock() {
	if len(s.looking) > 0 {
		s.lookWhereCheap()
	}
	doomed, maps, trash, wakes := s.doomed, s.doomedMaps, s.trash, s.wakes
	s.doomed, s.doomedMaps, s.trash, s.wakes = nil, nil, nil, nil
	fds := s.doomedFDs
	s.doomedFDs = nil
	slots, levels := s.doomedSlots, s.doomedLevels
	s.doomedSlots, s.doomedLevels = nil, nil
	room := s.deviceRoom
	s.deviceRoom = false
	s.mu.Unlock()
	for _, w := range wakes {
		w.wake(w)
	}
	for _, l := range levels {
		l.Close()
	}
	for _, l := range slots {
		l.Close()
	}
	for _, m := range maps {
		m.Unmap() // fails only for a mapping that is none
	}
	for _, m := range doomed {
		if s.opts.Devices != nil {
			s.opts.Devices.Forget(m.FD())
		}
		m.Close()
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
	if len(doomed)+len(slots)+len(levels) > 0 {
		s.mu.Lock()
		s.takeFreed()
		s.mu.Unlock()
	}
	s.emptyTrash(trash)
	if room && s.opts.OnDeviceRoom != nil {
		s.opts.OnDeviceRoom()
	}
}

// lockSteps is how many objects, references or segments are gone through in one hold of the lock by what has many to go
// through.
const lockSteps = 128

// breathe counts a step and lets others have the lock after some. mu is held, and let go meanwhile; a loop over a map
// goes on with what is there then.
func (s *Store) breathe(steps *int) {
	if *steps++; *steps%lockSteps == 0 {
		s.pause(nil)
	}
}

// pause lets others have the lock, and does something meanwhile that needs none; f may be nil. mu is held, and let go.
func (s *Store) pause(f func()) {
	s.pauses++
	s.unlock()
	if f != nil {
		f()
	}
	runtime.Gosched() // or the next Lock would be faster than who waits
	s.mu.Lock()
}

// reserve charges n bytes to t and the store, making room where it can: first out of the warm pool, then out of
// segments that are kept for their writers. mu is held.
func (s *Store) reserve(t *tenant, n uint64) error {
	limit := s.mostBytes(t)
	if !s.hasRoom(n) || limit > 0 && t.charged+n > limit {
		s.takeFreed()
	}
	if limit > 0 && (n > limit || t.charged > limit-n) {
		return fmt.Errorf("%w: %s has %d of %d bytes and needs %d more: delete objects%s",
			object.ErrQuota, t.name, t.charged, limit, n, t.keptNote())
	}
	if !s.hasRoom(n) {
		s.shrinkWarm(n)
	}
	if !s.hasRoom(n) {
		s.retireIdle(t, n)
	}
	if !s.hasRoom(n) {
		return fmt.Errorf("%w: %d of %d bytes are in use and %d more are needed: delete objects, or give the daemon more memory%s",
			object.ErrFull, s.charged, s.opts.CapacityBytes, n, t.keptNote())
	}
	s.charged += n
	t.charged += n
	if s.charged > s.opts.HighBytes {
		s.wakeJanitor()
	}
	return nil
}

func (s *Store) hasRoom(n uint64) bool {
	taken := s.taken() + s.warmMaking
	return taken <= s.opts.CapacityBytes && n <= s.opts.CapacityBytes-taken
}

// uncharge takes back what reserve charged. mu is held.
func (s *Store) uncharge(t *tenant, n uint64) {
	s.charged -= n
	t.charged -= n
	s.dropTenant(t)
	if s.warmShort() {
		s.wakeWarmPool()
	}
}

// tenantOf finds or makes a tenant's record. mu is held.
func (s *Store) tenantOf(name string) *tenant {
	t := s.tenants[name]
	if t == nil {
		t = &tenant{name: name, names: make(map[string]*entry), limits: s.limits[name]}
		s.tenants[name] = t
	}
	return t
}

// dropTenant forgets a tenant that has nothing, so that a stream of tenants does not fill the daemon. mu is held.
func (s *Store) dropTenant(t *tenant) {
	if t.conns == 0 && t.entries.Len() == 0 && t.charged == 0 && t.disk == 0 && s.tenants[t.name] == t {
		delete(s.tenants, t.name)
	}
}
