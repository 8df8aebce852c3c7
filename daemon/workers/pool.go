package workers

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tendril/forwarding/clwire"
	"tendril/store/object"
)

// errClosed is what a Pool answers once Close was called.
var errClosed = fmt.Errorf("%w: the daemon is shutting down", object.ErrNoDevice)

// maxBackoff bounds the pause after a driver failed to load in a warm worker; the first pause is firstBackoff, each
// next twice it.
const (
	firstBackoff = 500 * time.Millisecond
	maxBackoff   = time.Minute
)

// fateLimit is how long Fate waits for the end of a worker (ipc/PROTOCOL.md, WorkerFate).
const fateLimit = time.Second

// endLimit bounds the wait for a process that was killed; it takes a moment to give back what it had mapped.
const endLimit = 10 * time.Second

// Pool owns every probe and worker process of a daemon. Its methods may be called concurrently.
type Pool struct {
	opts     Options
	spawner  *spawner
	guard    *guard
	ids      *identities     // nil when the daemon is not root
	groups   *groups         // nil where there are none
	noGroups string          // why
	caches   sync.Mutex      // held while a tenant's cache is looked up and made; before nothing
	ctx      context.Context // ends with Close
	stop     context.CancelFunc
	wake     chan struct{}  // holds one: the warmer looks again
	joined   sync.WaitGroup // the warmer, the watcher of caches, and everything else that Close waits for

	attached atomic.Uint64 // segments of the store shown to workers so far
	ends     ends
	moved    [4]atomic.Uint64 // the sums of clwire.Moved of all workers so far, in its order

	admitting chan struct{} // holds one: who finds out whether a session fits on its GPUs

	probing sync.Mutex    // held through one probe of all drivers; before mu
	probed  chan struct{} // closed once the first probe of all drivers is over
	once    sync.Once

	mu        sync.Mutex
	closed    bool                   // guarded by mu, like all below
	live      map[*process]struct{}  // everything that Close must kill and wait for
	drivers   []DriverStatus         // replaced, never altered
	platforms []*Platform            // replaced, never altered
	hidden    []Hidden               // replaced, never altered
	faults    map[string]string      // fallbacks of the last probe and of workers since: what → why
	around    *surroundings          // what the last probe hangs on; nil before the first
	looked    chan struct{}          // closed at a probe's end, then replaced
	recent    string                 // the tenant for whom warm workers are made
	wanted    time.Time              // when a session last asked for a worker, or there were new platforms
	warm      []*worker              // started, perhaps not ready yet, not taken
	pause     map[*Platform]*backoff // of platforms whose warm workers fail
	serving   map[uint64]*assigned   // by number
	lastID    uint64
	shares    shares
	admitted  map[string]map[string]int     // sessions on a GPU with memory of its own, by UUID and tenant
	left      chan struct{}                 // closed when one of them ends, or objects leave, then replaced
	tickets   map[[sha256.Size]byte]*ticket // by the hash of the ticket
	peers     peerTickets                   // likewise, of links between workers
}

// Moved gives the sums of what workers and their clients on other machines moved over lanes so far, of those that ended
// too.
func (p *Pool) Moved() clwire.Moved {
	return clwire.Moved{Sent: p.moved[0].Load(), SentWire: p.moved[1].Load(), Taken: p.moved[2].Load(),
		TakenWire: p.moved[3].Load()}
}

// addMoved adds what a worker says it moved so far. One that says less than before adds nothing.
func (p *Pool) addMoved(before, now *clwire.Moved) {
	if before == nil {
		before = &clwire.Moved{}
	}
	for i, x := range [][2]uint64{{before.Sent, now.Sent}, {before.SentWire, now.SentWire},
		{before.Taken, now.Taken}, {before.TakenWire, now.TakenWire}} {
		if x[1] > x[0] {
			p.moved[i].Add(x[1] - x[0])
		}
	}
}

type backoff struct {
	failures int
	until    time.Time
}

// assigned is a worker that was given to a session.
type assigned struct {
	w       *worker
	id      uint64
	session uint64
	plain   bool    // no TLS to its client
	remote  *opened // how its client was told to reach it; guarded by Pool.mu, nil where that cannot come back

	reserving   sync.Mutex // held through a reservation and the worker's being told; before Pool.mu
	deviceBytes uint64     // of its devices' own memory; guarded by Pool.mu
}

// New makes a Pool whose first warm workers are for first. Probe must be called before there is any platform; Close
// must be called in the end.
func New(o Options, first string) *Pool {
	ctx, stop := context.WithCancel(context.Background())
	choices := o.isolations
	if choices == nil {
		choices = isolations()
	}
	p := &Pool{
		opts: o, spawner: newSpawner(choices), guard: newGuard(o), ctx: ctx, stop: stop,
		wake: make(chan struct{}, 1), probed: make(chan struct{}), looked: make(chan struct{}),
		live: map[*process]struct{}{}, faults: map[string]string{}, recent: first,
		pause: map[*Platform]*backoff{}, serving: map[uint64]*assigned{}, tickets: map[[sha256.Size]byte]*ticket{},
		peers:  newPeerTickets(),
		shares: newShares(o.Max), admitted: map[string]map[string]int{},
		left: make(chan struct{}), admitting: make(chan struct{}, 1),
	}
	if os.Geteuid() == 0 {
		p.openIDs()
	}
	p.openGroups()
	if o.CacheBytes > 0 {
		p.joined.Add(1)
		go p.watchCaches(p.leftCaches())
	}
	p.joined.Add(2)
	go p.watchLimits()
	go p.keepWarm()
	return p
}

// openIDs reads which tenant has which user. Where that is lost, caches are too: a number may come to another tenant.
func (p *Pool) openIDs() {
	var err error
	p.ids, err = openIdentities(p.opts.StateDir, p.opts.IDs)
	var unclaimed error
	if p.ids.claims, unclaimed = openClaims(p.opts.Claims, p.opts.StateDir); unclaimed != nil {
		p.opts.Log.WithError(unclaimed).Warn("user ids of tenants' workers may be those of another daemon of this machine: give each a --worker-uid-range")
	}
	if err == nil {
		return
	}
	p.opts.Log.WithError(err).Warn("the table of tenants' user ids is lost: tenants get new ones, and kernel caches start empty")
	entries, _ := os.ReadDir(p.opts.CacheRoot)
	for _, e := range entries {
		_ = p.dropCache(e.Name()) // what stays is another user's, and is dropped when its tenant comes
	}
}

// Close ends every process and joins every goroutine. Calls under way fail. ErrBusy when a process does not end
// although it was killed (a driver can hold it in the kernel): it and the goroutines that wait for it are then left.
func (p *Pool) Close() error {
	p.stop()
	p.mu.Lock()
	p.closed = true
	var left []*process
	for proc := range p.live {
		left = append(left, proc)
	}
	p.mu.Unlock()
	for _, proc := range left {
		proc.kill()
	}
	for _, proc := range left {
		if !proc.waitFor(endLimit) {
			return fmt.Errorf("%w: process %d was killed and has not ended within %v: "+
				"its driver holds it in the kernel, or it gets no processor", object.ErrBusy, proc.pid, endLimit)
		}
	}
	p.joined.Wait()
	p.probing.Lock() // a probe under way ends, since its process did
	defer p.probing.Unlock()
	p.once.Do(func() { close(p.probed) })
	p.spawner.close()
	p.guard.close()
	return nil
}

// track makes Close end and wait for proc. It reports false when Close has begun: the caller ends proc itself.
func (p *Pool) track(proc *process) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.live[proc] = struct{}{}
	return true
}

func (p *Pool) untrack(proc *process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.live, proc)
}

// Workers lists the processes that serve or wait to, by state and number.
func (p *Pool) Workers() []Status {
	p.mu.Lock()
	var list []Status
	for _, w := range p.warm {
		state := "starting"
		select {
		case <-w.ready:
			state = "warm"
		default:
		}
		list = append(list, w.status(state))
	}
	var procs []*process
	for _, w := range p.warm {
		procs = append(procs, w.process)
	}
	for _, s := range p.serving {
		if s.w.ended() {
			continue
		}
		state := "serving"
		if s.w.wasKilled() {
			state = "ending" // the kernel takes its memory back
		}
		st := s.w.status(state)
		st.ID, st.Session, st.Fallbacks, st.DeviceBytes = s.id, s.session, s.w.fallbacks, s.deviceBytes
		list = append(list, st)
		procs = append(procs, s.w.process)
	}
	p.mu.Unlock()
	for i := range list {
		list[i].MemoryBytes = procs[i].memoryBytes()
	}
	slices.SortFunc(list, func(a, b Status) int { return a.PID - b.PID })
	return list
}

func (w *worker) status(state string) Status {
	return Status{
		PID: w.pid, State: state, Platform: w.platform.Name, Tenant: w.key.tenant, UID: w.uid, Since: w.started,
		Moved:     w.moved.Load(),
		Processes: int(w.tasks.Load()), OwnBytes: uint64(w.bytes.Load()),
	}
}
