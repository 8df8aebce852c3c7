package session

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tendril/forwarding/api"
	"tendril/forwarding/clwire"
	"tendril/forwarding/conn"
	"tendril/forwarding/handle"
	"tendril/forwarding/session/callback"
	"tendril/forwarding/session/devices"
	"tendril/forwarding/session/graphs"
	"tendril/forwarding/session/lease"
	"tendril/forwarding/session/memory"
	"tendril/forwarding/session/node"
	"tendril/forwarding/session/peers"
	"tendril/forwarding/session/settings"
	"tendril/forwarding/session/svm"
	"tendril/forwarding/session/ways"
	"tendril/forwarding/trace"
)

// Config says how a Driver reaches its daemon, and what it shows.
type Config = settings.Config

// wasHandle says that a number lies where handles come from: one of an object that is gone, or of a kind that is no
// argument.
func (d *Driver) wasHandle(h uintptr) bool {
	return d.buffers.Contains(h) || d.samplers.Contains(h) || d.platforms.Contains(h) || d.devices.Contains(h) ||
		d.contexts.Contains(h) ||
		d.queues.Contains(h) || d.programs.Contains(h) || d.kernels.Contains(h) || d.events.Contains(h) ||
		d.graphs.Contains(h)
}

// Slots of address space for each kind of object.
const (
	fewSlots  = 4 << 10
	someSlots = 1 << 20
	manySlots = 16 << 20
)

var _ api.Base = (*Driver)(nil)

// Driver is one process's OpenCL. All methods may be called concurrently, also from callbacks.
type Driver struct {
	cfg Config // immutable

	platforms *handle.Table[Platform]
	devices   *handle.Table[Device]
	contexts  *handle.Table[Context]
	queues    *handle.Table[Queue]
	buffers   *handle.Table[Buffer]
	programs  *handle.Table[Program]
	kernels   *handle.Table[Kernel]
	events    *handle.Table[Event]
	samplers  *handle.Table[Sampler]
	graphs    *handle.Table[graphs.Graph[*Queue]]

	shared svm.Table[svmPart] // shared virtual memory

	ids           atomic.Uint64 // object, request, blob and host-operation numbers of the session
	slabs         *memory.Slabs
	trace         *conn.Tracer // nil: nobody traces
	tracedKernels sync.Map     // kernel number → number of its name in the trace
	counters      *trace.Counters
	callbacks     *callback.Dispatcher
	transfers     ways.Session
	background    sync.WaitGroup // goroutines that outlive the call that started them, which Close joins
	closing       chan struct{}  // closed by Close, and by WaitReports of a process that ends
	closeOnce     sync.Once
	peers         *peers.Table
	reporting     atomic.Int32 // workers whose end is being told of
	unpublished   sync.Map     // why reads' buffers cannot become Config.Publish, as it was said
	cudaSeen      sync.Once    // whether the program has CUDA loaded was looked at

	mu        sync.Mutex
	connected bool
	control   node.Control   // of this node, which memory is shared with; nil without one
	controls  []node.Control // all
	shown     []*Platform    // immutable once connected

	visible atomic.Pointer[[]*Platform] // shown, once connected
}

// WaitReports is for a process that ends: it waits until it has been said that workers ended that have, since a program
// that exits at its first error would otherwise leave nobody to say why. It waits for limit: what is not known after
// four fifths of it is said without its reason, for which there is the last fifth, however late it begins.
func (d *Driver) WaitReports(limit time.Duration) {
	last := limit / 5
	if !d.reported(time.Now().Add(limit - last)) {
		d.closeOnce.Do(func() { close(d.closing) })
		d.reported(time.Now().Add(last))
	}
}

// reported waits for the reports under way, until end at most.
func (d *Driver) reported(end time.Time) bool {
	for d.reporting.Load() > 0 {
		if !time.Now().Before(end) {
			return false
		}
		time.Sleep(time.Millisecond)
	}
	return true
}

// Leave tells the daemons of other machines that the program ends, limit at most: their sessions need not wait for it.
func (d *Driver) Leave(limit time.Duration) {
	if !d.mu.TryLock() {
		return // it is just connecting
	}
	controls := d.controls
	d.mu.Unlock()
	var said sync.WaitGroup
	for _, control := range controls {
		if r, ok := control.(interface{ Leave() }); ok {
			said.Go(r.Leave)
		}
	}
	done := make(chan struct{})
	go func() { said.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(limit):
	}
}

// New makes a Driver. It contacts nobody yet.
func New(cfg Config) (*Driver, error) {
	if cfg.Log == nil {
		cfg.Log = func(string) {}
	}
	if cfg.Print == nil {
		cfg.Print = func([]byte) {}
	}
	d := &Driver{cfg: cfg, callbacks: callback.New(), trace: conn.NewTracer(cfg.Trace), counters: cfg.Counters,
		closing: make(chan struct{})}
	if d.counters == nil {
		d.counters = &trace.Counters{}
	}
	d.peers = peers.New(&peersOf{d}, peers.Options{Off: cfg.NoPeers, Plaintext: cfg.Plaintext, Lanes: cfg.Lanes})
	d.slabs = memory.New(&memoryOf{d})
	d.transfers.Slabs, d.transfers.NewID, d.transfers.Background = d.slabs, d.newID, &d.background
	var errs [10]error
	d.platforms, errs[0] = handle.New[Platform](cfg.Dispatch, fewSlots)
	d.devices, errs[1] = handle.New[Device](cfg.Dispatch, fewSlots)
	d.contexts, errs[2] = handle.New[Context](cfg.Dispatch, someSlots)
	d.queues, errs[3] = handle.New[Queue](cfg.Dispatch, someSlots)
	d.buffers, errs[4] = handle.New[Buffer](cfg.Dispatch, manySlots)
	d.programs, errs[5] = handle.New[Program](cfg.Dispatch, someSlots)
	d.kernels, errs[6] = handle.New[Kernel](cfg.Dispatch, someSlots)
	d.events, errs[7] = handle.New[Event](cfg.Dispatch, manySlots)
	d.samplers, errs[8] = handle.New[Sampler](cfg.Dispatch, someSlots)
	d.graphs, errs[9] = handle.New[graphs.Graph[*Queue]](cfg.Dispatch, someSlots)
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return d, nil
}

func (d *Driver) newID() uint64 { return d.ids.Add(1) }

// Platforms returns the handles of the platforms; none without a daemon, a device or a match of the selector. The
// first call connects, and says on failure in one line why there are none.
func (d *Driver) Platforms() []uintptr {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.connected {
		d.connected = true
		if err := d.connectLocked(); err != nil {
			d.cfg.Log(fmt.Sprintf("tendril: no OpenCL platform: %v", err))
		}
		d.visible.Store(&d.shown)
	}
	hs := make([]uintptr, len(d.shown))
	for i, p := range d.shown {
		hs[i] = p.handle
	}
	return hs
}

func (d *Driver) connectLocked() error {
	if d.cfg.Disabled {
		return nil
	}
	selector, err := devices.ParseSelector(d.cfg.Selector)
	if err != nil {
		return fmt.Errorf("TENDRIL_DEVICES: %w", err)
	}
	own, err := lease.Parse(d.cfg.Lease)
	if err != nil {
		return fmt.Errorf("TENDRIL_LEASE: %w", err)
	}
	if own != nil {
		own.Nodes = d.cfg.Nodes
	}
	servers := d.cfg.Servers
	if len(servers) == 0 {
		servers = []settings.Server{{Dial: d.cfg.Dial}}
	}
	var errs []error
	for _, server := range servers {
		o := d.openSession(server, d.options(own))
		err := d.joinLocked(o, selector)
		if err != nil && server.Name != "" {
			err = fmt.Errorf("server %s: %w", server.Name, err)
		}
		errs = append(errs, err)
		if d.cfg.Nodes && o.control != nil {
			errs = append(errs, d.joinOthersLocked(o, selector))
		}
	}
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(d.shown) > 0 { // the others' devices can be used
		for _, err := range errs {
			d.cfg.Log(fmt.Sprintf("tendril: %v", err))
		}
		return nil
	}
	return errors.Join(errs...)
}

// connectedPlatforms are those shown, none before the Driver is connected. It takes no lock.
func (d *Driver) connectedPlatforms() []*Platform {
	if shown := d.visible.Load(); shown != nil {
		return *shown
	}
	return nil
}

// joinOthersLocked opens sessions with the other nodes of a daemon's cluster.
func (d *Driver) joinOthersLocked(first opened, selector *devices.Selector) error {
	with, ok := first.control.(node.InCluster)
	var own *clwire.LeaseOptions
	if at := first.snapshot.Lease; at != nil {
		own = &clwire.LeaseOptions{Token: at.Token}
		ok = ok && len(at.Nodes) > 0
	}
	if !ok {
		return nil
	}
	others, err := with.Others(d.cfg.Program, d.cfg.Silence)
	if err != nil {
		return fmt.Errorf("the other nodes of the cluster: %w", err)
	}
	if own != nil {
		others = slices.DeleteFunc(others, func(n node.Other) bool {
			return !slices.Contains(first.snapshot.Lease.Nodes, hex.EncodeToString(n.ID[:]))
		})
	}
	found := make([]opened, len(others))
	var opening sync.WaitGroup
	for i, other := range others {
		server := settings.Server{Name: other.Name, Dial: other.Dial}
		opening.Go(func() { found[i] = d.openSession(server, d.options(own)) })
	}
	opening.Wait()
	errs := make([]error, len(others))
	for i := range found {
		if errs[i] = d.joinLocked(found[i], selector); errs[i] != nil {
			errs[i] = fmt.Errorf("node %s: %w", others[i].Name, errs[i])
		}
	}
	return errors.Join(errs...)
}

// options are a session's.
func (d *Driver) options(own *clwire.LeaseOptions) clwire.SessionOptions {
	return clwire.SessionOptions{Protocol: clwire.Version, Selector: d.cfg.Selector, Env: d.cfg.Env, Lease: own}
}

// joinLocked shows the platforms of a session that was opened, or says why it was not.
func (d *Driver) joinLocked(o opened, selector *devices.Selector) error {
	if o.err != nil {
		return o.err
	}
	d.controls = append(d.controls, o.control)
	if _, remote := o.control.(node.Remote); remote {
		devices.Distance(o.snapshot)
	} else {
		d.control = o.control
	}
	return d.showLocked(o.control, o.keeps, o.snapshot, selector.Select(o.snapshot))
}

// opened is a session, or why there is none.
type opened struct {
	control  node.Control // nil: there is none
	snapshot *clwire.Snapshot
	keeps    bool // the session outlives its connection
	err      error
}

// openSession connects to a daemon and opens a session there.
func (d *Driver) openSession(server settings.Server, options clwire.SessionOptions) opened {
	control, err := server.Dial()
	if err != nil {
		return opened{err: err}
	}
	var snapshot *clwire.Snapshot
	keeps := false
	began := d.began()
	snapshot, err = lease.Open(func(options []byte) ([]byte, error) {
		return control.OpenSession(d.cfg.Version, options)
	}, options, d.cfg.LeaseWait, d.cfg.Log)
	if remote, ok := control.(node.Remote); ok && err == nil && (d.cfg.Resume > 0 || d.cfg.Silence > 0) {
		var granted time.Duration
		granted, err = remote.KeepSession(d.cfg.Resume)
		keeps = granted > 0 && d.cfg.Resume > 0
	}
	d.tripped(began, trace.CauseConnect, nil, server.Name)
	if err != nil {
		control.Close()
		return opened{err: fmt.Errorf("the daemon opens no session: %w", err)}
	}
	return opened{control, snapshot, keeps, nil}
}

// showLocked makes the shadows of the chosen platforms and devices, in the selector's order.
func (d *Driver) showLocked(control node.Control, keeps bool, snapshot *clwire.Snapshot,
	choices []devices.Choice) error {
	byIndex := map[int]*Platform{}
	for _, choice := range choices {
		p := byIndex[choice.Platform]
		if p == nil {
			p = newPlatform(d, control, keeps, uint32(choice.Platform), &snapshot.Platforms[choice.Platform])
			h, err := d.platforms.Put(p)
			if err != nil {
				return err
			}
			p.handle = h
			byIndex[choice.Platform] = p
			d.shown = append(d.shown, p)
		}
		if err := p.addDevice(uint32(choice.Device),
			snapshot.Platforms[choice.Platform].Devices[choice.Device]); err != nil {
			return err
		}
	}
	if len(choices) == 0 && snapshot.Leased > 0 {
		return fmt.Errorf("all devices of this node that would do are leased or waited for (%d); see: tendril leases; to wait for one: tendril run --lease 1 --wait",
			snapshot.Leased)
	}
	if len(snapshot.Platforms) > 0 && len(choices) == 0 {
		return fmt.Errorf("no device matches TENDRIL_DEVICES=%q; see: tendril devices", d.cfg.Selector)
	}
	return nil
}

// Close ends the session: workers, memory, the connection. Programs never call it (a driver library lives as long as
// its process); tests do.
func (d *Driver) Close() {
	d.mu.Lock()
	controls := d.controls
	d.mu.Unlock()
	d.trace.Close()
	d.closeOnce.Do(func() { close(d.closing) })
	var workers []*worker
	for _, p := range d.connectedPlatforms() {
		if w := p.takeWorker(); w != nil {
			w.End()
			workers = append(workers, w)
		}
	}
	d.peers.Close()
	d.background.Wait()
	d.callbacks.Close()
	for _, w := range workers {
		w.Close()
	}
	d.slabs.Close()
	for _, control := range controls {
		control.Close()
	}
}
