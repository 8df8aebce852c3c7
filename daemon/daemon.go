// Package daemon is one node: its configuration, and the life of everything that the other rooms provide. It loads no
// driver and imports neither the worker nor any OpenCL binding; it starts its own program again for that
// (daemon/workers).
//
// Start-up is the list in Daemon.steps, shut-down the same list backwards. Run starts, serves until its context ends
// and shuts down; several daemons can live in one process, as nothing here is global.
//
// Trust: the configuration is the administrator's; credentials come from the kernel; whatever clients, probes and
// workers send is checked where it arrives (daemon/frontdoor, daemon/workers) and in sessions.go.
//
// Locks: Daemon.opening and metadata.following before the front door's, publications.mu, follows.mu and
// metadata.following before the store's, and metadata.moving before metadata.gate and metadata.following
// (docs/design/locks.md); each other mutex here is a leaf. What no mutex guards is set by the steps before the front
// door opens and not altered afterwards.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"tendril/cluster"
	"tendril/cluster/fsm"
	"tendril/cluster/transfer"
	"tendril/daemon/frontdoor"
	"tendril/daemon/inspect"
	"tendril/daemon/keeper"
	"tendril/daemon/leases"
	"tendril/daemon/workers"
	"tendril/forwarding/clwire"
	"tendril/store"
	"tendril/store/object"
)

// Build says what program this is.
type Build struct {
	Version    string   // stamped at build time; the driver library must have the same
	Executable string   // the program to start as probe and worker; "" = /proc/self/exe
	WorkerArgs []string // put before the verb, for tests
	Alone      bool     // this process is the daemon and nothing else: it may protect itself and divide its cgroup
}

// Daemon is one node. Make it with New, then call Run once.
type Daemon struct {
	cfg   Config
	build Build
	log   logrus.FieldLogger

	ctx     context.Context // ends when Run shuts down
	cancel  context.CancelFunc
	joined  sync.WaitGroup // goroutines that end with ctx
	reprobe chan struct{}  // holds one

	state          *stateDir
	node           NodeStatus
	identity       cluster.Identity
	cacheRoot      string
	cacheTemporary bool
	startFallbacks []clwire.Fallback
	store          *store.Store
	pool           *workers.Pool
	keeper         *keeper.Keeper // starts its process when it is needed
	devices        *keeper.Devices
	sessions       *sessions
	leases         *leases.Table
	accesses       accesses
	audits         atomic.Pointer[auditLogs]
	wishes         *wishes
	platforms      func(context.Context) ([]*workers.Platform, error) // pool's, but in tests
	peering        *peering
	meta           metadata
	first          bool // a first start that has not made everything yet
	anyway         bool // what is missing of the state directory is made again
	published      publications
	replicas       replicas
	refusals       refusals
	holds          chan struct{} // closed once the store is open and what is published here is followed
	repairTime     atomic.Int64  // ns, for tests; 0 = repairAfter
	voteTime       time.Duration // for tests; 0 = stableTime and goneTime
	leaseHold      time.Duration // for tests; 0 = leaseHold
	segmentBytes   int           // for tests; 0 = raftnode's
	publishMost    fsm.Usage     // for tests; zero = fsm.MaxUsage
	entryTime      time.Duration // for tests; 0 = the front door's
	catchUpTime    time.Duration // for tests; 0 = catchUpTime
	leaseAsk       time.Duration // for tests; 0 = leaseAskTime
	endTime        time.Duration // for tests; 0 = yieldTime and asideTime
	bringing       *bringings
	damaged        chan object.Damage // what a scrub has found; holds some
	gpuRoom        chan struct{}      // memory of a GPU may have become free; holds one
	transferRate   *transfer.Rate     // nil: as fast as it goes
	pages          pageKeys
	past           pastHour
	follows        follows
	nameTelling    nameTeller
	inspect        atomic.Pointer[inspect.Server] // nil until its step; the front door may be asked before
	door           atomic.Pointer[frontdoor.Server]
	dialNode       nodeDial
	lookups        lookups
	clock          func() time.Time     // what changes of the metadata are stamped with, and tokens expire by
	patience       func() time.Duration // for tests, else 0: how much longer other nodes, and changes, are waited for
	wantsNodes     atomic.Bool          // a join is under way: other nodes have to reach this one
	opening        sync.Mutex           // one attempt to open the door for other machines at a time
	closedDoor     string               // guarded by opening: why it is not open; "" = it is, or is not wanted
	ready          func()

	wantsTakeover bool
	successors    chan *successor        // who asked to be the next daemon; holds one
	onSuccess     func(pid int)          // see OnHandover
	inherited     *inheritance           // what this daemon starts with; nil: as any
	orphans       []*store.Conn          // of processes that held something then; the front door's
	serves        bool                   // has opened the front door
	before        *predecessor           // whose that was; nil: this process's own
	leaving       *inheritance           // filled while the daemon ends in favour of another one; nil: it just ends
	again         atomic.Pointer[Daemon] // the one that goes on here after a handover that failed
	at            func(step string)      // called at some steps, for tests
}

// step is one thing that start-up does; stop, which may be nil, takes it back.
type step struct {
	name  string
	start func() error
	stop  func() error
}

// New makes a daemon of a configuration with its defaults filled in. It checks it and does nothing else.
func New(cfg Config, build Build, log logrus.FieldLogger) (*Daemon, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	build.Executable = orDefault(build.Executable, "/proc/self/exe")
	ctx, cancel := context.WithCancel(context.Background())
	d := &Daemon{
		cfg: cfg, build: build, log: log, ctx: ctx, cancel: cancel,
		reprobe: make(chan struct{}, 1), sessions: newSessions(), leases: leases.New(cfg.LeaseTime, time.Now),
		wishes:  newWishes(),
		peering: newPeering(), ready: func() {},
		bringing: newBringings(), damaged: make(chan object.Damage, maxDamaged),
		gpuRoom:      make(chan struct{}, 1),
		transferRate: transfer.NewRate(cfg.TransferRate),
		successors:   make(chan *successor, 1), onSuccess: func(int) {}, at: func(string) {},
		published: publications{tenants: map[string]*held{}},
		replicas:  newReplicas(), holds: make(chan struct{}), pages: pageKeys{keys: map[[32]byte]pageKey{}},
		dialNode: dialTCP, clock: time.Now, patience: func() time.Duration { return 0 },
	}
	d.platforms = func(ctx context.Context) ([]*workers.Platform, error) { return d.pool.Platforms(ctx) }
	d.lookups.look, d.lookups.again = lookNow, d.followTenants
	d.meta.init()
	return d, nil
}

// OnReady sets what is called once the node serves; before Run.
func (d *Daemon) OnReady(f func()) { d.ready = f }

// steps is the order of start-up.
func (d *Daemon) steps() []step {
	return []step{
		{"takeover", d.beginTakeover, d.endTakeover},
		{"state directory", d.openState, d.closeState},
		{"join or leave", d.finishMove, nil},
		{"state directory's parts", d.lookAtState, nil},
		{"identity", d.loadIdentity, nil},
		{"audit log", d.openAudit, d.closeAudit},
		{"authority", d.openAuthority, nil},
		{"cluster metadata", d.openMetadata, d.closeMetadata},
		{"node certificate", d.openKeyring, nil},
		{"membership", d.enter, nil},
		{"first start", d.endFirstStart, nil},
		{"descriptor limit", d.raiseLimit, nil},
		{"protection", d.protect, nil},
		{"kernel caches", d.openCaches, d.removeCaches},
		{"store", d.openStore, d.closeStore},
		{"worker pool", d.openPool, func() error { return d.pool.Close() }},
		{"drivers", d.startProbe, nil},
		{"publications", d.resumePublishing, d.stopPublishing},
		{"publications of before a join", d.resumeRepublishing, nil},
		{"front door", d.openDoor, d.closeDoor},
		{"front door for other machines", d.openRemoteDoor, nil}, // closes with the front door
		{"history", d.startHistory, nil},
		{"inspection", d.openInspect, d.closeInspect},
		{"sessions", d.letIn, func() error { d.cancel(); d.sessions.stop(); return nil }},
		{"keeper", func() error { return nil }, d.closeKeepers}, // ends who waits for it
		{"leadership", func() error { return nil }, d.yield},    // while it can still vote
	}
}

// Run starts the node, serves until ctx ends, and shuts down. The error is the first step's that failed, with its name,
// or what went wrong while shutting down; nil after a clean end.
func (d *Daemon) Run(ctx context.Context) error {
	defer d.cancel()
	steps := d.steps()
	for i, s := range steps {
		if err := s.start(); err != nil {
			d.cancel()
			return errors.Join(fmt.Errorf("%s: %w", s.name, explainMetadata(err)), d.unwind(steps[:i]))
		}
		d.log.WithField("step", s.name).Debug("started")
	}
	d.log.WithFields(logrus.Fields{"node": d.node.Name, "socket": d.cfg.Socket,
		"version": d.build.Version}).Info("node is up")
	d.ready()
	for {
		select {
		case next := <-d.successors:
			if over, err := d.handOver(ctx, next, steps); over {
				return err
			}
			continue
		case <-ctx.Done():
		}
		d.log.Info("node goes down")
		d.store.Ending()
		return d.unwind(steps)
	}
}

// unwind takes steps back, last first, and goes on past failures.
func (d *Daemon) unwind(steps []step) error {
	var faults []error
	for i := len(steps) - 1; i >= 0; i-- {
		s := steps[i]
		if s.stop == nil {
			continue
		}
		if err := s.stop(); err != nil {
			faults = append(faults, fmt.Errorf("stop %s: %w", s.name, err))
		}
		d.log.WithField("step", s.name).Debug("stopped")
	}
	d.joined.Wait()
	return errors.Join(faults...)
}

// Reload asks for a new look at the drivers and at the node's certificate, in the background; sessions keep what they
// have. It never blocks, and may be called at any time.
func (d *Daemon) Reload() {
	if again := d.again.Load(); again != nil {
		again.Reload()
		return
	}
	select {
	case d.reprobe <- struct{}{}:
	default: // one is due already
	}
}

// beginTakeover fetches what a daemon before this one leaves.
func (d *Daemon) beginTakeover() (err error) {
	if d.wantsTakeover {
		d.inherited, err = d.inheritFrom()
	}
	return err
}

// endTakeover gives up what no step has taken.
func (d *Daemon) endTakeover() error {
	if d.inherited != nil {
		d.inherited.close()
	}
	if d.before != nil {
		d.before.close()
	}
	select {
	case late := <-d.successors:
		late.link.Close()
	default:
	}
	return nil
}

func (d *Daemon) openState() (err error) {
	if d.inherited != nil {
		d.state, err = inheritStateDir(d.cfg.StateDir, d.inherited.stateLock)
		d.inherited.stateLock = nil
		return err
	}
	d.state, err = openStateDir(d.cfg.StateDir)
	return err
}

func (d *Daemon) closeState() error {
	if d.leaving != nil {
		d.leaving.stateLock = d.state.lock
		return nil
	}
	return d.state.Close()
}

func (d *Daemon) loadIdentity() (err error) {
	d.identity, err = cluster.LoadIdentity(d.cfg.StateDir, d.cfg.NodeName)
	if d.inherited != nil { // the same memory: what was published of it is there
		d.identity.Incarnation = d.inherited.incarnation
	}
	d.node = NodeStatus{
		ID: d.identity.Node.String(), Name: d.identity.Name, Incarnation: d.identity.Incarnation.String(),
		Version: d.build.Version, PID: os.Getpid(), UID: os.Geteuid(), Since: time.Now(),
		Socket: d.cfg.Socket, StateDir: d.cfg.StateDir,
	}
	return err
}

func (d *Daemon) raiseLimit() error {
	limit, err := raiseFileLimit(d.filesWanted())
	if err != nil {
		d.startFallbacks = append(d.startFallbacks, clwire.Fallback{What: "descriptor limit", Why: err.Error()})
	}
	d.node.FileLimit = limit
	if most, want := d.connections(), orDefault(d.cfg.Connections, DefaultConnections); most < want {
		why := fmt.Sprintf("the limit of open files is %d, of which each connection takes one or more: %d connections are let in; raise it (ulimit -Hn, LimitNOFILE=)",
			limit, most)
		d.startFallbacks = append(d.startFallbacks,
			clwire.Fallback{What: fmt.Sprintf("%d connections", want), Why: why})
		if d.cfg.Connections > 0 {
			d.log.Warn(why)
		}
	}
	return nil
}

// A local connection takes a descriptor of the daemon's, its process another one, however many connections it has, its
// slots in the index a third. The front door counts them. A segment with memory takes one, which the store counts.
// Connections may take two thirds of what is left after otherFiles, or after a sixteenth of the limit where that is
// more; what they cannot use is for segments, too.
const (
	connectionFiles = 3
	otherFiles      = 512
	leastConns      = 16
	leastSegments   = 64
)

// filesWanted is what as many connections take as were asked for, each of a process of its own that has the index, and
// as many segments as are then left or were asked for.
func (d *Daemon) filesWanted() uint64 {
	conns := connectionFiles * uint64(orDefault(d.cfg.Connections, DefaultConnections))
	files := conns + max(conns/2, 2*uint64(d.cfg.QuotaSegments))
	return otherFiles + files + files/8 // a sixteenth and more
}

// objectFiles is how many descriptors connections and segments may take together; 0: the limit is not known.
func (d *Daemon) objectFiles() uint64 {
	limit := d.node.FileLimit
	return limit - min(limit, max(otherFiles, limit/16))
}

// connections is how many connections the limit of open files allows, at most as many as were asked for.
func (d *Daemon) connections() int {
	want := orDefault(d.cfg.Connections, DefaultConnections)
	if d.node.FileLimit == 0 { // not known
		return want
	}
	return int(min(uint64(want), max(uint64(d.connectionsFiles()), leastConns)))
}

// connectionsFiles is how many descriptors connections may take together; 0: the limit is not known.
func (d *Daemon) connectionsFiles() int {
	want := connectionFiles * uint64(orDefault(d.cfg.Connections, DefaultConnections))
	return int(min(want, d.objectFiles()/3*2))
}

// segmentFiles is how many segments may have memory; 0: no bound, for the limit is not known.
func (d *Daemon) segmentFiles() int {
	if d.node.FileLimit == 0 {
		return 0
	}
	return max(int(d.objectFiles())-d.connectionsFiles(), leastSegments)
}

// tenantSegments is how many of them may be one tenant's.
func (d *Daemon) tenantSegments() int {
	all := d.segmentFiles()
	return min(orDefault(d.cfg.QuotaSegments, max(1, all/2)), max(1, all-all/8))
}

// tenantConnections is how many of them one tenant may have.
func (d *Daemon) tenantConnections() int {
	all := d.connections()
	return min(orDefault(d.cfg.TenantConns, max(1, all/2)), max(1, all-all/8))
}

// openCaches prepares the directory under which workers keep compiled kernels. When the daemon is root its workers are
// other users, who must be able to pass through the state directory; where one above it is closed to them, caches last
// only as long as the daemon.
func (d *Daemon) openCaches() error {
	d.removeLeftCaches()
	d.cacheRoot = filepath.Join(d.cfg.StateDir, "cache")
	if os.Geteuid() == 0 {
		if err := os.Chmod(d.cfg.StateDir, 0o711); err != nil {
			return err
		}
		if err := workers.Reachable(d.cfg.StateDir); err != nil {
			return d.openTemporaryCaches(err)
		}
	}
	if err := os.MkdirAll(d.cacheRoot, 0o711); err != nil {
		return err
	}
	d.node.CacheDir = d.cacheRoot
	return os.Chmod(d.cacheRoot, 0o711)
}

func (d *Daemon) openTemporaryCaches(why error) error {
	dir, err := os.MkdirTemp("", temporaryCache)
	if err != nil {
		return err
	}
	if err := os.Symlink(dir, filepath.Join(d.cfg.StateDir, temporaryLink)); err != nil {
		d.log.WithError(err).Warnf("%s will stay behind if this daemon is killed", dir)
	}
	d.cacheRoot, d.cacheTemporary, d.node.CacheDir = dir, true, dir
	d.startFallbacks = append(d.startFallbacks, clwire.Fallback{
		What: "kernel caches that outlive the daemon",
		Why:  why.Error() + "; workers run as other users and could not reach them",
	})
	return os.Chmod(dir, 0o711)
}

func (d *Daemon) removeCaches() error {
	if !d.cacheTemporary {
		return nil
	}
	d.removeLeftCaches()
	return os.RemoveAll(d.cacheRoot)
}

const (
	temporaryCache = "tendril-cache-"
	temporaryLink  = "temporary-cache" // in the state directory: where the caches of a daemon are that was killed
)

// removeLeftCaches removes what an earlier daemon of this state directory could not.
func (d *Daemon) removeLeftCaches() {
	link := filepath.Join(d.cfg.StateDir, temporaryLink)
	left, err := os.Readlink(link)
	if err == nil && strings.HasPrefix(filepath.Base(left), temporaryCache) {
		err = os.RemoveAll(left)
	}
	if err = errors.Join(err, os.Remove(link)); err != nil && !errors.Is(err, os.ErrNotExist) {
		d.log.WithError(err).Warn("the kernel caches of an earlier daemon are left")
	}
}

func (d *Daemon) openStore() (err error) {
	d.at("opening the store")
	cache := filepath.Join(d.cacheRoot, "keeper") // no tenant's has that name (tenancy.CacheName)
	for _, dir := range []string{"tmp", "pocl", "cuda"} {
		if err := os.MkdirAll(filepath.Join(cache, dir), 0o700); err != nil {
			return err
		}
	}
	keepers := keeper.Options{Executable: d.build.Executable, Args: d.build.WorkerArgs,
		Driver: d.cfg.CUDADriver, PinBytes: uint64(max(d.cfg.PinBytes, 0)), Log: d.log,
		Env:    func() []string { return workers.CUDAKeeperEnv(cache) },
		Offers: func(uuid string) (bool, string) { return d.pool.OffersGPU(uuid) }}
	d.keeper = keeper.New(keepers)
	keepers.Env = func() []string { return workers.KeeperEnv(cache) }
	d.devices = keeper.NewDevices(d.keeper, keepers, d.openCLPlatforms,
		func() []keeper.OpenCL { return openCLOf(d.pool.Offered()) })
	o := store.Options{
		Devices: d.devices, DeviceKind: d.devices.Kind,
		TenantDeviceBytes: d.cfg.QuotaDevice, IdleDeviceBytes: uint64(max(d.cfg.IdleDevice, 0)),
		CapacityBytes: d.cfg.CapacityBytes, TenantBytes: d.cfg.QuotaBytes, WarmBytes: uint64(max(d.cfg.WarmBytes, 0)),
		TenantSpillBytes: d.cfg.QuotaSpill, TenantObjects: d.cfg.QuotaObjects, NoIndex: d.cfg.NoIndex,
		Segments: d.segmentFiles(), TenantSegments: d.tenantSegments(),
		HighBytes: d.cfg.HighBytes, RequestBytes: d.cfg.RequestBytes,
		OnDeviceRoom: func() {
			select {
			case d.gpuRoom <- struct{}{}:
			default: // who waits looks again in any case
			}
		},
		Available: func() (uint64, bool) { return availableBytes("/") }, ScrubEvery: d.cfg.ScrubEvery,
		ScrubRate: d.cfg.ScrubRate,
		OnDamage: func(x object.Damage) {
			d.log.WithFields(logrus.Fields{"object": x.ID, "name": x.Name,
				"tenant": x.Tenant, "why": x.Why}).Error("an object is damaged in " + x.Where)
			select {
			case d.damaged <- x:
			default: // another pass finds it again
			}
		},
	}
	if has := memoryBytes("/"); has > 0 && o.CapacityBytes > has {
		d.log.Warnf("the capacity is %d bytes and this machine, or its cgroup, has %d: the store will be full before it is reached; start with a smaller --capacity", o.CapacityBytes, has)
	}
	if d.cfg.NoHuge {
		o.HugeFromBytes = store.NoHuge
	}
	if d.cfg.SpillBytes >= 0 {
		o.SpillDir, o.SpillBytes = filepath.Join(d.cfg.StateDir, objectsFolder), d.spillBytes()
	}
	if d.inherited != nil {
		o.Handoff, d.inherited.handoff = d.inherited.handoff, nil
	}
	if d.store, err = store.New(o); err != nil {
		return err
	}
	for _, damaged := range d.store.Status().Damaged {
		d.log.WithField("file", damaged).Warn("an object on disk cannot be read")
	}
	d.boundTenants()
	return nil
}

func (d *Daemon) closeStore() error {
	if d.leaving != nil {
		d.leaving.handoff = d.store.Handoff()
		return nil
	}
	d.store.Close()
	return nil
}

// spillBytes bounds what goes to disk where nobody said so.
func (d *Daemon) spillBytes() uint64 {
	if d.cfg.SpillBytes > 0 {
		return uint64(d.cfg.SpillBytes)
	}
	limit := 4 * d.cfg.CapacityBytes
	var fs unix.Statfs_t
	if err := unix.Statfs(d.cfg.StateDir, &fs); err == nil {
		limit = min(limit, fs.Bavail*uint64(fs.Bsize)/2)
	}
	return max(limit, 1)
}

func (d *Daemon) openPool() error {
	choice, err := workers.ParseChoice(d.cfg.Devices)
	if err != nil {
		return err
	}
	self := d.localTenant(uint32(os.Geteuid()), uint32(os.Getegid()))
	group, noGroup := d.ownGroup()
	d.pool = workers.New(workers.Options{
		Group: group, NoGroup: noGroup,
		Executable: d.build.Executable, Args: d.build.WorkerArgs, Node: d.node.ID, Vendors: d.cfg.Vendors,
		CacheRoot: d.cacheRoot, CacheBytes: d.cfg.KernelCache,
		StateDir: d.cfg.StateDir, IDs: d.cfg.WorkerIDs, Claims: workers.ClaimsDir,
		Limits: d.cfg.Workers, Wait: d.cfg.WorkerWait,
		WarmTime: d.cfg.WarmTime,
		Warm:     d.cfg.WarmWorkers, Max: d.cfg.MaxWorkers, DeviceBytes: d.deviceBytesOf,
		KernelTime:   d.cfg.KernelTime,
		BuildTime:    d.cfg.BuildTime,
		SessionBytes: uint64(max(d.cfg.SessionDevice, 0)), Objects: d.objectsOn, GPURoom: d.gpuRoom,
		GPUs: d.keeper.All, GPUMemory: d.keeper.Sample, GPUsDone: d.keeper.ProbeOver,
		NoInPlace:    d.cfg.NoInPlace,
		Devices:      choice,
		ProbeTimeout: d.cfg.ProbeTimeout, StartTimeout: d.cfg.StartTimeout, Log: d.log,
	}, self)
	return nil
}

// openCLPlatforms are the platforms whose devices objects may lie in, for keeper.Devices.
func (d *Daemon) openCLPlatforms(ctx context.Context) ([]keeper.OpenCL, error) {
	platforms, err := d.pool.Platforms(ctx)
	return openCLOf(platforms), err
}

func openCLOf(platforms []*workers.Platform) (list []keeper.OpenCL) {
	for _, p := range platforms {
		o := keeper.OpenCL{ICD: p.Driver.ICD, Platform: p.Snapshot.Index, Devices: map[string]int{}}
		for i, x := range p.Snapshot.Devices {
			if o.Devices[x.UUID] = i; p.Places != nil {
				o.Devices[x.UUID] = p.Places[i]
			}
		}
		list = append(list, o)
	}
	return list
}

func (d *Daemon) closeKeepers() error {
	d.keeper.Close()
	d.devices.Close()
	return nil
}

// objectsOn is what objects of the store have of a GPU's memory, for workers.Options.
func (d *Daemon) objectsOn(tenant, uuid string, most uint64) uint64 {
	device, err := object.ParseDevice(uuid)
	if err != nil {
		return 0
	}
	return d.store.LeaveOnDevice(tenant, device, most)
}

// ownGroup gives the cgroup to divide: it is the process's, so only one that is the daemon alone has one.
func (d *Daemon) ownGroup() (dir, why string) {
	if !d.build.Alone {
		return "", "the daemon is not alone in its process"
	}
	dir, err := workers.OwnGroup()
	if err != nil {
		why = err.Error()
	}
	return dir, why
}

// daemonScore is the daemon's oom_score_adj: when memory is short the kernel ends something else. Workers put up their
// own.
const daemonScore = -900

// protect has the kernel end other processes first.
func (d *Daemon) protect() error {
	if !d.build.Alone {
		return nil
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(daemonScore)), 0); err != nil {
		d.startFallbacks = append(d.startFallbacks, clwire.Fallback{
			What: "protection of the daemon when memory runs out",
			Why:  err.Error() + " (systemd: OOMScoreAdjust=-900); the kernel ends its workers first in any case",
		})
	}
	return nil
}

// startProbe does not wait: a driver that hangs must not keep the store from serving. Its goroutine ends with d.ctx; a
// probe under way ends with the pool.
func (d *Daemon) startProbe() error {
	d.Reload()
	d.joined.Go(func() {
		for {
			select {
			case <-d.reprobe:
				d.pool.Probe()
				d.publishDevices()
				d.reloadCertificate()
			case <-d.ctx.Done():
				return
			}
		}
	})
	return nil
}

func (d *Daemon) openDoor() error {
	inherited := (*frontdoor.Door)(nil)
	if d.inherited != nil {
		inherited, d.inherited.door = d.inherited.door, nil
	}
	door, err := frontdoor.Listen(frontdoor.Options{
		Inherited: inherited, Orphans: d.orphans, Closed: true, Takeover: d.takeover,
		Socket: d.cfg.Socket, Store: d.store, Backend: d, Tenant: d.localTenant, Refuses: d.refuses,
		Admin:   d.administers,
		Cluster: d, Peers: d, Nodes: d, Elsewhere: d, Transfers: d.serveTransfers, TransfersTLS: d.transfersTLS(),
		GPUs: func() (any, error) { list, err := d.keeper.Devices(); return notNil(list), err },
		TLS:  d.doorTLS(), Remote: remotePeer, Void: d.void,
		DaemonVersion: d.build.Version, Incarnation: object.ID(d.identity.Incarnation), Log: d.log,
		ResumeTime: max(0, d.cfg.ResumeTime), MaxConnections: d.connections(), TenantConnections: d.tenantConnections(),
		MaxFiles: d.connectionsFiles(), EntryTime: d.entryTime,
	})
	if err == nil {
		d.door.Store(door)
		if d.cfg.LeaseTime > 0 {
			d.joined.Go(d.endLeases)
		}
		if d.cfg.LeaseIdle > 0 {
			d.joined.Go(d.endIdleLeases)
		}
		d.joined.Go(d.tendLeases)
		d.joined.Go(d.followCalls)
	}
	return err
}

func (d *Daemon) closeDoor() (err error) {
	if d.leaving != nil {
		d.leaving.door, err = d.door.Load().Retire()
		return err
	}
	if d.before != nil && !d.serves { // the socket is the daemon's before, which goes on
		door, err := d.door.Load().Retire()
		door.Close()
		return err
	}
	d.door.Load().Close()
	return nil
}

// letIn opens the front door, once a daemon before this one has agreed.
func (d *Daemon) letIn() error {
	if d.inherited != nil && d.inherited.confirm != nil {
		if err := d.inherited.confirm(); err != nil {
			return err
		}
	}
	d.serves = true
	d.door.Load().Open()
	if d.before != nil {
		d.before.close() // there is no more to say
	}
	d.at("serving")
	return nil
}
