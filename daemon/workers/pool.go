package workers

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"tendril/forwarding/clwire"
	"tendril/store/object"
)

// errClosed is what a Pool answers once Close was called.
var errClosed = fmt.Errorf("%w: the daemon is shutting down", object.ErrNoDevice)

// maxBackoff bounds the pause after a driver failed to load in a warm worker; the first pause is firstBackoff, each next twice it.
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
	opts    Options
	spawner *spawner
	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	wake    chan struct{}  // holds one: the warmer looks again
	joined  sync.WaitGroup // the warmer, and everything else that Close waits for

	probing sync.Mutex    // held through one probe of all drivers; before mu
	probed  chan struct{} // closed once the first probe of all drivers is over
	once    sync.Once

	mu        sync.Mutex
	closed    bool                   // guarded by mu, like all below
	live      map[*process]struct{}  // everything that Close must kill and wait for
	drivers   []DriverStatus         // replaced, never altered
	platforms []*Platform            // replaced, never altered
	faults    map[string]string      // fallbacks that probes reported: what → why
	recent    Owner                  // for whom warm workers are made
	warm      []*worker              // started, perhaps not ready yet, not taken
	pause     map[*Platform]*backoff // of platforms whose warm workers fail
	serving   map[uint64]*assigned   // by number
	lastID    uint64
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
}

// New makes a Pool whose first warm workers are for first. Probe must be called before there is any platform; Close must be
// called in the end.
func New(o Options, first Owner) *Pool {
	ctx, stop := context.WithCancel(context.Background())
	p := &Pool{
		opts: o, spawner: newSpawner(), ctx: ctx, stop: stop,
		wake: make(chan struct{}, 1), probed: make(chan struct{}),
		live: map[*process]struct{}{}, faults: map[string]string{}, recent: first,
		pause: map[*Platform]*backoff{}, serving: map[uint64]*assigned{},
	}
	p.joined.Add(1)
	go p.keepWarm()
	return p
}

// Close ends every process and joins every goroutine. Calls under way fail. ErrBusy when a process does not end although it
// was killed (a driver can hold it in the kernel): it and the goroutines that wait for it are then left.
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
			return fmt.Errorf("%w: process %d does not end; its driver holds it in the kernel", object.ErrBusy, proc.pid)
		}
	}
	p.joined.Wait()
	p.probing.Lock() // a probe under way ends, since its process did
	defer p.probing.Unlock()
	p.once.Do(func() { close(p.probed) })
	p.spawner.close()
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

// Probe finds the drivers anew and probes them all, side by side. Sessions keep the platforms that they have. It returns when
// every probe has ended, in ProbeTimeout and a little at most.
func (p *Pool) Probe() {
	p.probing.Lock()
	defer p.probing.Unlock()
	if p.ctx.Err() != nil { // Close has begun, and perhaps ended
		return
	}
	defer p.once.Do(func() { close(p.probed) })
	drivers, err := Discover(p.opts.Vendors)
	if err != nil {
		p.opts.Log.WithError(err).Warn("some driver files could not be read")
	}
	states := make([]DriverStatus, len(drivers))
	for i, d := range drivers {
		states[i] = DriverStatus{ICD: d.ICD, Library: d.Library, State: DriverProbing}
	}
	p.setDrivers(slices.Clone(states))
	found := make([][]*Platform, len(drivers))
	var wg sync.WaitGroup
	for i, d := range drivers {
		wg.Go(func() { found[i], states[i] = p.probeOne(d) })
	}
	wg.Wait()
	p.setDrivers(states)
	p.setPlatforms(slices.Concat(found...))
}

func (p *Pool) setDrivers(states []DriverStatus) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drivers = states
}

func (p *Pool) probeOne(d Driver) ([]*Platform, DriverStatus) {
	st := DriverStatus{ICD: d.ICD, Library: d.Library, State: DriverReady}
	log := p.opts.Log.WithField("driver", d.ICD)
	platforms, fallbacks, err := p.probe(d, p.newest())
	if err != nil {
		st.State, st.Error = DriverFailed, err.Error()
		if p.ctx.Err() != nil {
			return nil, st
		}
		log.WithError(err).Warn("driver does not work and is left out")
		return nil, st
	}
	for _, pl := range platforms {
		st.Platforms = append(st.Platforms, pl.Name)
		st.Devices += len(pl.Snapshot.Devices)
	}
	p.noteFallbacks(fallbacks)
	log.WithField("platforms", st.Platforms).WithField("devices", st.Devices).Info("driver probed")
	return platforms, st
}

func (p *Pool) noteFallbacks(list []clwire.Fallback) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range list {
		if len(p.faults) < maxFallbacks {
			p.faults[printable([]byte(f.What))] = printable([]byte(f.Why))
		}
	}
}

func (p *Pool) newest() Owner {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.recent
}

// setPlatforms replaces the platforms and ends the warm workers of the old ones.
func (p *Pool) setPlatforms(list []*Platform) {
	p.mu.Lock()
	old := p.warm
	p.platforms, p.warm, p.pause = list, nil, map[*Platform]*backoff{}
	p.mu.Unlock()
	for _, w := range old {
		w.kill()
	}
	p.nudge()
}

// Platforms gives the working platforms in a stable order. It waits for the first probe.
func (p *Pool) Platforms(ctx context.Context) ([]*Platform, error) {
	select {
	case <-p.probed:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: the drivers are still being probed", object.ErrBusy)
	case <-p.ctx.Done():
		return nil, errClosed
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.platforms, nil
}

// Drivers gives the state of each driver, in order.
func (p *Pool) Drivers() []DriverStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.drivers
}

// Fallbacks gives what workers and probes had to do without on this machine, sorted.
func (p *Pool) Fallbacks() []clwire.Fallback {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []clwire.Fallback
	if err := p.spawner.notIsolated(); err != nil {
		list = append(list, clwire.Fallback{What: "network namespace for workers", Why: err.Error()})
	}
	for what, why := range p.faults {
		list = append(list, clwire.Fallback{What: what, Why: why})
	}
	slices.SortFunc(list, func(a, b clwire.Fallback) int { return strings.Compare(a.What, b.What) })
	return list
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
		st.ID, st.Session, st.Fallbacks = s.id, s.session, s.w.fallbacks
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
		PID: w.pid, State: state, Platform: w.platform.Name, Tenant: w.key.owner.Tenant, UID: w.uid, Since: w.started,
	}
}

// Request says what worker a session wants.
type Request struct {
	Session  uint64
	Platform *Platform
	Owner    Owner
	Env      []string // from DriverEnv
}

// Opened is a worker at a session's service. Socket and Ring are the client's ends and the caller's to close.
type Opened struct {
	ID           uint64
	RingBytes    uint64
	Socket, Ring *os.File
}

// Open gives a session a worker: a warm one where there is one for this owner and environment, a fresh one otherwise, which
// takes as long as the driver takes to load. The worker is ended with Release or ReleaseSession.
//
// Errors: ErrBusy when MaxWorkers serve already; ErrNoDevice, with the reason, when the worker does not start; ctx's.
func (p *Pool) Open(ctx context.Context, r Request) (Opened, error) {
	k := key{owner: r.Owner, env: strings.Join(r.Env, "\n")}
	w, fresh, err := p.take(r.Platform, k)
	if err != nil {
		return Opened{}, err
	}
	err = w.await(ctx)
	if err != nil && !fresh && ctx.Err() == nil { // a warm one may have died in the meantime: once more, from the start
		p.discard(w)
		if w, err = p.startTracked(r.Platform, k); err != nil {
			return Opened{}, err
		}
		err = w.await(ctx)
	}
	if err != nil {
		p.discard(w)
		return Opened{}, err
	}
	o, err := p.hand(w, r)
	if err != nil {
		p.discard(w)
		return Opened{}, err
	}
	p.nudge()
	return o, nil
}

// await waits until the worker is ready or never will be.
func (w *worker) await(ctx context.Context) error {
	select {
	case <-w.ready:
	case <-ctx.Done():
		return fmt.Errorf("%w: nobody waits for the worker any more: %w", object.ErrNoDevice, ctx.Err())
	}
	if w.err != nil {
		return fmt.Errorf("%w: %w", object.ErrNoDevice, w.err)
	}
	if w.ended() {
		return fmt.Errorf("%w: the warm worker %s", object.ErrNoDevice, w.why())
	}
	return nil
}

// take finds a warm worker for k, or starts a fresh one. From now on warm workers are made for k's owner.
func (p *Pool) take(pl *Platform, k key) (w *worker, fresh bool, err error) {
	p.mu.Lock()
	if n := p.servingLocked(); n >= p.opts.Max {
		p.mu.Unlock()
		return nil, false, fmt.Errorf("%w: %d workers serve already, the most this node runs (--max-workers)", object.ErrBusy, n)
	}
	p.recent = k.owner
	i := slices.IndexFunc(p.warm, func(w *worker) bool { return w.platform == pl && w.key == k && !w.ended() })
	if i >= 0 {
		w = p.warm[i]
		p.warm = slices.Delete(p.warm, i, i+1)
		p.mu.Unlock()
		return w, false, nil
	}
	p.mu.Unlock()
	w, err = p.startTracked(pl, k)
	return w, true, err
}

func (p *Pool) servingLocked() int {
	n := 0
	for _, s := range p.serving {
		if !s.w.ended() {
			n++
		}
	}
	return n
}

// startTracked starts a worker that Close knows of, and a goroutine that sees it off.
func (p *Pool) startTracked(pl *Platform, k key) (*worker, error) {
	cache, err := tenantCache(p.opts.CacheRoot, k.owner)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", object.ErrNoDevice, err)
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, errClosed
	}
	p.joined.Add(1) // under mu, so that Close either sees it or was seen
	p.mu.Unlock()
	w, err := startWorker(p.spawner, p.opts, pl, k, cache)
	if err != nil {
		p.joined.Done()
		return nil, fmt.Errorf("%w: %w", object.ErrNoDevice, err)
	}
	if !p.track(w.process) { // Close began in the meantime
		w.kill()
	}
	go p.seeOff(w)
	return w, nil
}

// seeOff lives as long as a worker does.
func (p *Pool) seeOff(w *worker) {
	defer p.joined.Done()
	<-w.ready
	p.noteFallbacks(w.fallbacks)
	w.wait()
	p.untrack(w.process)
	p.nudge()
}

// hand connects a ready worker to its session.
func (p *Pool) hand(w *worker, r Request) (Opened, error) {
	client, theirs, err := streamPair()
	if err != nil {
		return Opened{}, err
	}
	defer theirs.Close()
	ring, err := newRing()
	if err != nil {
		client.Close()
		return Opened{}, err
	}
	p.mu.Lock()
	p.lastID++
	id := p.lastID
	p.serving[id] = &assigned{w: w, id: id, session: r.Session}
	delete(p.pause, w.platform) // it got as far as a session, so its driver is well
	p.mu.Unlock()
	err = w.assign(clwire.WorkerAssign{Session: r.Session, Worker: id, Tenant: r.Owner.Tenant, RingBytes: clwire.RingBytes}, theirs, ring)
	if err != nil {
		p.mu.Lock()
		delete(p.serving, id)
		p.mu.Unlock()
		client.Close()
		ring.Close()
		return Opened{}, fmt.Errorf("%w: %w", object.ErrNoDevice, err)
	}
	p.opts.Log.WithField("session", r.Session).WithField("worker", id).WithField("pid", w.pid).Info("worker serves")
	return Opened{ID: id, RingBytes: clwire.RingBytes, Socket: client, Ring: ring}, nil
}

// discard ends a worker and waits for its end.
func (p *Pool) discard(w *worker) {
	w.kill()
	if !w.waitFor(endLimit) {
		p.opts.Log.WithField("pid", w.pid).Error("a worker does not end although it was killed; its driver holds it in the kernel")
	}
}

// find gives the worker number id of session, or ErrNotFound.
func (p *Pool) find(session, id uint64) (*assigned, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.serving[id]
	if s == nil || s.session != session {
		return nil, fmt.Errorf("%w: session %d has no worker %d", object.ErrNotFound, session, id)
	}
	return s, nil
}

// Fate says whether a worker is alive and how it ended otherwise. Since a client asks when its socket hung up, it waits up to a
// second for the end. ErrNotFound when the session has no such worker.
func (p *Pool) Fate(session, id uint64) (alive bool, text string, err error) {
	s, err := p.find(session, id)
	if err != nil {
		return false, "", err
	}
	select {
	case <-s.w.done:
		return false, s.w.fate, nil
	case <-time.After(fateLimit):
		return true, "", nil
	case <-p.ctx.Done():
		return true, "", nil
	}
}

// Release ends one worker of a session and waits for its end. ErrNotFound when the session has no such worker.
func (p *Pool) Release(session, id uint64) error {
	s, err := p.find(session, id)
	if err != nil {
		return err
	}
	p.end(s)
	return nil
}

// ReleaseSession ends all workers of a session and waits for their end.
func (p *Pool) ReleaseSession(session uint64) {
	p.mu.Lock()
	var mine []*assigned
	for _, s := range p.serving {
		if s.session == session {
			mine = append(mine, s)
		}
	}
	p.mu.Unlock()
	for _, s := range mine {
		s.w.kill()
	}
	for _, s := range mine {
		p.end(s)
	}
}

func (p *Pool) end(s *assigned) {
	p.discard(s.w)
	p.mu.Lock()
	delete(p.serving, s.id)
	p.mu.Unlock()
	log := p.opts.Log.WithField("session", s.session).WithField("worker", s.id).WithField("pid", s.w.pid)
	if s.w.ended() {
		log.WithField("fate", s.w.fate).Info("worker ended")
	}
}
