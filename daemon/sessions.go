package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"tendril/daemon/frontdoor"
	"tendril/daemon/leases"
	"tendril/daemon/workers"
	"tendril/forwarding/clwire"
	"tendril/store/object"
)

// Bounds of what a session brings.
const (
	maxOptionsBytes  = 512 << 10
	maxSelectorBytes = 4096
	maxVersionBytes  = 256
)

// sessions is the table of OpenCL programs. Its mutex is a leaf: nothing else is taken or waited for under it.
type sessions struct {
	mu     sync.Mutex
	byID   map[uint64]*session // guarded by mu
	lastID uint64              // guarded by mu
	closed bool                // guarded by mu: none may be opened any more
}

// session is immutable but for its place in the table and what says otherwise.
type session struct {
	remote    string    // where its client is now, of another machine; guarded by sessions.mu
	until     time.Time // it has no client and waits for one; zero: it has one; guarded by sessions.mu
	id        uint64
	peer      frontdoor.Peer
	library   string
	selector  string
	env       []string
	platforms []*workers.Platform // as the session's snapshot numbers them
	lease     *leases.Lease       // nil: it shares devices
	since     time.Time
	ctx       context.Context // ends with the session
	cancel    context.CancelFunc
}

func newSessions() *sessions { return &sessions{byID: map[uint64]*session{}} }

// add numbers s and puts it into the table.
func (t *sessions) add(s *session) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return fmt.Errorf("%w: the daemon is shutting down", object.ErrBusy)
	}
	t.lastID++
	s.id = t.lastID
	t.byID[s.id] = s
	return nil
}

// get finds an open session, or ErrNotFound.
func (t *sessions) get(id uint64) (*session, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.byID[id]; s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("%w: no session %d", object.ErrNotFound, id)
}

// remove takes a session out and ends what waits for its sake; nil when there is none.
func (t *sessions) remove(id uint64) *session {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.byID[id]
	if s != nil {
		delete(t.byID, id)
		s.cancel()
	}
	return s
}

// stop lets nobody wait for a worker any more and opens no session again. The sessions stay until their connections
// end.
func (t *sessions) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, s := range t.byID {
		s.cancel()
	}
}

// of lists the sessions that use a lease.
func (t *sessions) of(l *leases.Lease) (ids []uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, s := range t.byID {
		if s.lease == l {
			ids = append(ids, id)
		}
	}
	return ids
}

// leased lists the sessions of each lease.
func (t *sessions) leased() map[*leases.Lease][]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := map[*leases.Lease][]uint64{}
	for id, s := range t.byID {
		if s.lease != nil {
			all[s.lease] = append(all[s.lease], id)
		}
	}
	return all
}

// numbered lists the sessions that use the lease with a number.
func (t *sessions) numbered(lease uint64) (ids []uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, s := range t.byID {
		if s.lease != nil && s.lease.Number == lease {
			ids = append(ids, id)
		}
	}
	return ids
}

// endSessions ends sessions, side by side: a program that does not read what it is told holds up its own end alone. One
// that has ended meanwhile is no error.
func (d *Daemon) endSessions(list []uint64, why error) {
	var ending sync.WaitGroup
	for _, session := range list {
		ending.Go(func() { _ = d.door.Load().EndSession(session, why) })
	}
	ending.Wait()
}

// away notes that a session waits for its client, or (zero) that it is back, at remote.
func (t *sessions) away(id uint64, until time.Time, remote string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.byID[id]
	if s == nil {
		return
	}
	s.until = until
	if until.IsZero() {
		s.remote = remote
	}
}

// from is the address of a session's client.
func (t *sessions) from(s *session) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return s.remote
}

func (t *sessions) list() []SessionStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []SessionStatus
	for _, s := range t.byID {
		list = append(list, SessionStatus{
			ID: s.id, PID: s.peer.PID, UID: s.peer.UID, Tenant: s.peer.Tenant, Program: s.peer.Name,
			Selector: s.selector, Library: s.library, Since: s.since, Peer: s.remote, Transport: transportOf(s.peer),
			WaitsUntil: s.until, shown: s.platforms,
		})
		if s.lease != nil {
			list[len(list)-1].Lease = s.lease.Number
		}
	}
	slices.SortFunc(list, func(a, b SessionStatus) int { return int(a.ID) - int(b.ID) })
	return list
}

// Devices implements frontdoor.Backend: every device of this node. It waits for the first probe of the drivers, and for
// another one where its answer may be old.
func (d *Daemon) Devices() ([]byte, error) {
	d.lookAgain()
	platforms, err := d.pool.Platforms(d.ctx)
	if err != nil {
		return nil, err
	}
	return snapshot(platforms)
}

// lookAgain has the drivers probed where what they hang on has changed, and waits for it: at most as long as a probe
// may take. What a probe itself changes (a driver makes its devices' nodes) is good for a second one.
func (d *Daemon) lookAgain() {
	limit := time.NewTimer(d.cfg.ProbeTimeout)
	defer limit.Stop()
	for range 2 {
		old, probed := d.pool.Changed()
		if !old {
			return
		}
		d.Reload()
		select {
		case <-probed:
		case <-limit.C:
			return
		case <-d.ctx.Done():
			return
		}
	}
}

func snapshot(platforms []*workers.Platform) ([]byte, error) {
	s := clwire.Snapshot{Platforms: []clwire.PlatformSnapshot{}}
	for _, p := range platforms {
		s.Platforms = append(s.Platforms, p.Snapshot)
	}
	return json.Marshal(s)
}

// OpenSession implements frontdoor.Backend. The library and the daemon's workers must speak one session protocol;
// builds that do may be mixed.
func (d *Daemon) OpenSession(ctx context.Context, p frontdoor.Peer, library string, options []byte) (uint64, []byte,
	error) {
	o, err := parseOptions(options)
	if err != nil {
		return 0, nil, err
	}
	if o.Protocol != clwire.Version {
		return 0, nil, fmt.Errorf("%w: the driver library (%.*q) speaks session protocol %d, the daemon (%q) %d; install both from the same release and restart the daemon",
			object.ErrVersion, maxVersionBytes, library, o.Protocol, d.build.Version, clwire.Version)
	}
	d.lookAgain()
	platforms, err := d.platforms(d.ctx)
	if err != nil {
		return 0, nil, err
	}
	if err := d.checkSandbox(p); err != nil { // after the first probe, which tried
		return 0, nil, err
	}
	lease, err := d.lease(ctx, p, &o, platforms)
	d.auditLease(p, o.Lease, lease, err)
	if err != nil {
		return 0, nil, err
	}
	platforms, shown := d.visible(lease, platforms)
	snap, err := json.Marshal(shown)
	if err != nil {
		d.leases.Drop(lease)
		return 0, nil, err
	}
	ctx, cancel := context.WithCancel(d.ctx) //nolint:contextcheck // a session may outlive its connection
	s := &session{
		peer: p, remote: p.Remote, library: library, selector: o.Selector, env: workers.DriverEnv(o.Env),
		platforms: platforms, lease: lease, since: time.Now(), ctx: ctx, cancel: cancel,
	}
	if err := d.sessions.add(s); err != nil {
		cancel()
		d.leases.Drop(lease)
		return 0, nil, err
	}
	log := d.log.WithField("session", s.id).WithField("tenant", p.Tenant)
	if p.Remote != "" {
		log = log.WithField("remote", p.Remote).WithField("name", p.Subject)
	} else {
		log = log.WithField("pid", p.PID)
	}
	log.Info("session opened")
	return s.id, snap, nil
}

func parseOptions(raw []byte) (clwire.SessionOptions, error) {
	var o clwire.SessionOptions
	if len(raw) > maxOptionsBytes {
		return o, fmt.Errorf("%w: session options of %d bytes, at most %d", object.ErrInvalid, len(raw),
			maxOptionsBytes)
	}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &o); err != nil {
			return o, fmt.Errorf("%w: session options: %w", object.ErrInvalid, err)
		}
	}
	if len(o.Selector) > maxSelectorBytes {
		return o, fmt.Errorf("%w: a device selector of %d bytes, at most %d", object.ErrInvalid, len(o.Selector),
			maxSelectorBytes)
	}
	return o, checkLease(o.Lease)
}

// CloseSession implements frontdoor.Backend: the session's workers are gone when it returns.
func (d *Daemon) CloseSession(id uint64) {
	s := d.sessions.remove(id)
	if s == nil {
		return
	}
	d.pool.ReleaseSession(id)
	d.leases.Leave(id)
	d.leases.Drop(s.lease)
	if s.lease != nil {
		d.auditBy(s.peer, "lease.leave", s.peer.Tenant, d.leaseName(s.lease), nil)
	}
	if s.lease != nil && s.lease.ID != "" {
		d.wishes.look()
	}
	d.peering.forget(id)
	d.log.WithField("session", id).WithField("tenant", s.peer.Tenant).Info("session closed")
}

// transportOf says how a session's data flows.
func transportOf(p frontdoor.Peer) string {
	if p.Remote == "" {
		return "shared memory"
	}
	return "tcp"
}

// OpenWorker implements frontdoor.Backend.
func (d *Daemon) OpenWorker(id uint64, platform uint32) (frontdoor.Worker, error) {
	s, request, err := d.workerRequest(id, platform)
	if err != nil {
		return frontdoor.Worker{}, err
	}
	charge, err := d.store.ChargeUntilFree(s.peer.Tenant, clwire.RingBytes) // so that no driver is loaded for nothing
	if err != nil {
		return frontdoor.Worker{}, fmt.Errorf("memory for a worker's ring: %w", err)
	}
	defer charge.Drop()
	w, err := d.pool.Open(s.ctx, request)
	if err != nil {
		d.log.WithError(err).WithField("session", id).WithField("tenant",
			s.peer.Tenant).Warn("cannot give a session a worker")
		return frontdoor.Worker{}, err
	}
	// closed meanwhile, and its workers released before this one was there
	if _, err := d.sessions.get(id); err != nil {
		w.Socket.Close()
		w.Ring.Close()
		d.pool.ReleaseSession(id)
		return frontdoor.Worker{}, err
	}
	charge.Watch(int(w.Ring.Fd()))
	return frontdoor.Worker{ID: w.ID, RingBytes: w.RingBytes, Socket: w.Socket, Ring: w.Ring}, nil
}

// workerRequest checks what a session asks for.
func (d *Daemon) workerRequest(id uint64, platform uint32) (*session, workers.Request, error) {
	s, err := d.sessions.get(id)
	if err != nil {
		return nil, workers.Request{}, err
	}
	if uint64(platform) >= uint64(len(s.platforms)) {
		return nil, workers.Request{},
			fmt.Errorf("%w: platform %d of %d", object.ErrNoDevice, platform, len(s.platforms))
	}
	if err := d.share(s, s.platforms[platform]); err != nil {
		return nil, workers.Request{}, err
	}
	return s, workers.Request{
		Session: id, Platform: s.platforms[platform], Env: s.env,
		Tenant: s.peer.Tenant, NoCompress: d.cfg.Compress == compressOff,
	}, nil
}

// CloseWorker implements frontdoor.Backend.
func (d *Daemon) CloseWorker(session, worker uint64) {
	if err := d.pool.Release(session, worker); err != nil {
		d.log.WithError(err).Debug("a worker to close was not there")
	}
}

// ReserveDevice implements frontdoor.Backend.
func (d *Daemon) ReserveDevice(session, worker, bytes uint64) error {
	return d.pool.Reserve(session, worker, bytes)
}

// WorkerFate implements frontdoor.Backend.
func (d *Daemon) WorkerFate(ctx context.Context, session, worker uint64) (alive bool, text string, err error) {
	return d.pool.Fate(ctx, session, worker)
}
