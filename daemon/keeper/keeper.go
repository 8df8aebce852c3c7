// Package keeper runs the daemon's keeper, the process `tendril keeper` in which the CUDA driver is
// (forwarding/keeper): it starts it when memory of a GPU is first asked for, asks it, and ends it when nobody has asked
// for a while, or only a probe of drivers has. What the keeper makes is the daemon's from then on, as descriptors, so
// its end costs nothing: the next request starts another.
//
// Trust: the driver may crash, hang or answer nonsense. A request that is not answered in time ends the keeper; what is
// answered is checked for its form. One that does not end when it is killed holds nobody up, and as long as it is there
// no other is started. No client speaks to the keeper.
//
// Life: the keeper dies with the daemon (PDEATHSIG, bound to a thread of its own that lives as long as the keeper).
// Close ends it and joins every goroutine, but those of a keeper that does not end.
//
// Locks: a turn (turns.go) is held for a whole request, which is one step of a copy; Keeper.mu, under it, is a leaf.
package keeper

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
	"tendril/store"
	"tendril/store/object"
)

// DefaultDriver is the driver where the configuration names none.
const DefaultDriver = "libcuda.so.1"

// None as Options.Driver means that the node has no memory of GPUs in its store.
const None = "none"

// Options says how a keeper runs. Executable and Log are needed.
type Options struct {
	Executable string   // the tendril binary
	Args       []string // put before the verb; for tests
	// path or name of the CUDA driver; "" = DefaultDriver, where this node has NVIDIA's device nodes; None
	Driver      string
	RequestTime time.Duration // for one request; 0 = 1 min
	IdleTime    time.Duration // without requests, after which the keeper ends; 0 = 5 min
	EndTime     time.Duration // how long its end is waited for when it was killed; 0 = 10 s
	PinBytes    uint64        // how much host memory it may pin for copies; 0: none
	// which GPUs are offered, by UUID, and why not; nil: all
	Offers func(uuid string) (offers bool, why string)
	// whose memory it makes in place of CUDA's; nil: CUDA's
	OpenCL *OpenCL
	// its environment as it starts; nil: the daemon's. Of an OpenCL platform's: that of probes, so that its driver
	// shows what they saw
	Env func() []string
	// how much of a copy one request does: others have the keeper in between. 0 = 256 MiB first, then what takes
	// turnTime
	StepBytes uint64
	Log       logrus.FieldLogger
}

// Pauses before a keeper is started again whose two predecessors failed at one request.
const (
	firstPause   = time.Second
	longestPause = 30 * time.Second
)

// Keeper is the daemon's side of the keeper. Safe for concurrent use.
type Keeper struct {
	opts  Options         // immutable
	turns turns           // who has the turn speaks to the process
	ended chan struct{}   // closed by Close
	links sync.WaitGroup  // the processes' goroutines
	nodes func() []string // the device nodes that there are; for tests

	mu      sync.Mutex // guards what follows
	process *process   // nil: none runs
	stuck   *process   // was killed and did not end in time; nil: none
	idle    *time.Timer
	used    bool // since a process last rested, somebody else than a probe of the daemon's asked
	closed  bool
	starts  int
	fault   error // of the last request that two keepers failed at, or that found one that does not end
	wait    time.Duration
	until   time.Time // no keeper is started before
	copies  map[clwire.KeeperWay]CopyStatus
	last    uint64                      // number of the last copy
	paces   map[[2]object.Device]uint64 // by destination and source, two GPUs: the bytes that take turnTime
	// by the process: host memory that it has pinned, or with Options.OpenCL the names of memory that it has
	pinned  map[clwire.HostMemory]struct{}
	doomed  []clwire.HostMemory // of pinned: what the process is to forget
	lent    map[uint64]*process // what was lent, by its number, and which process has it
	died    []uint64            // what ended with its process, for EndedIPC
	freed   []uint64            // what the process is to take back
	forgets bool                // a goroutine of links' has it do both
}

// Status is what `tendril status` shows of the keeper.
type Status struct {
	PID    int    `json:"pid,omitempty"` // 0: none runs
	Starts int    `json:"starts"`        // of this daemon's keepers
	Fault  string `json:"fault,omitempty"`
	Driver string `json:"driver"` // path or name

	Copies []CopyStatus `json:"copies,omitempty"` // of this daemon's keepers, by way
}

// New makes a Keeper, and starts nothing. The caller must Close it.
func New(o Options) *Keeper {
	if o.RequestTime == 0 {
		o.RequestTime = time.Minute
	}
	if o.IdleTime == 0 {
		o.IdleTime = 5 * time.Minute
	}
	if o.EndTime == 0 {
		o.EndTime = 10 * time.Second
	}
	return &Keeper{opts: o, ended: make(chan struct{}), nodes: deviceNodes,
		copies: map[clwire.KeeperWay]CopyStatus{}, paces: map[[2]object.Device]uint64{},
		pinned: map[clwire.HostMemory]struct{}{},
		lent:   map[uint64]*process{}}
}

// deviceNodes gives what NVIDIA's driver makes: in /dev, and where Windows lends its GPU.
func deviceNodes() (found []string) {
	for _, path := range []string{"/dev/nvidiactl", "/dev/dxg"} {
		if _, err := os.Stat(path); err == nil {
			found = append(found, path)
		}
	}
	return found
}

// Available says why there is no memory of GPUs: ErrUnsupported. It asks nobody, and starts nothing.
func (k *Keeper) Available() error {
	switch {
	case k.opts.OpenCL != nil:
		return nil
	case k.opts.Driver == None:
		return fmt.Errorf("%w: this daemon provides no device memory (--cuda-driver none)", object.ErrUnsupported)
	case k.opts.Driver == "" && len(k.nodes()) == 0:
		return fmt.Errorf("%w: this node has no NVIDIA GPU: there is no /dev/nvidiactl (another driver is named with --cuda-driver)",
			object.ErrUnsupported)
	}
	return nil
}

// Status describes the keeper; nil where none was ever started.
func (k *Keeper) Status() *Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.starts == 0 && k.fault == nil {
		return nil
	}
	s := &Status{Starts: k.starts, Driver: k.driver()}
	for _, way := range slices.Sorted(maps.Keys(k.copies)) {
		s.Copies = append(s.Copies, k.copies[way])
	}
	if k.process != nil {
		s.PID = k.process.pid
	}
	if k.fault != nil {
		s.Fault = k.fault.Error()
	}
	return s
}

// Close ends the keeper.
func (k *Keeper) Close() {
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return
	}
	k.closed = true
	close(k.ended)
	p := k.process
	k.process = nil
	if k.idle != nil {
		k.idle.Stop()
	}
	k.mu.Unlock()
	if p != nil {
		k.end(p)
	}
	k.turns.take("", nil) // a request under way fails now
	k.mu.Lock()
	stuck := k.stuck != nil && !k.stuck.over()
	k.mu.Unlock()
	if !stuck {
		k.links.Wait()
	}
}

// end ends a process, and notes one that does not. mu is not held.
func (k *Keeper) end(p *process) (fate string) {
	fate, ended := p.end(k.opts.EndTime)
	if !ended {
		k.opts.Log.WithField("pid", p.pid).Error("the keeper of device memory: " + fate)
		k.mu.Lock()
		k.stuck = p
		k.mu.Unlock()
	}
	return fate
}

// All lists the GPUs, offered or not, for a probe: ProbeOver follows. Errors: ErrUnsupported, ErrNoDevice.
func (k *Keeper) All() ([]clwire.KeeperDevice, error) {
	reply, fd, err := k.ask(nobody, &clwire.KeeperRequest{List: &clwire.KeeperList{}})
	closeFD(fd)
	if err != nil {
		return nil, err
	}
	return reply.Devices, nil
}

// Devices lists the GPUs that are offered. Errors: as All's.
func (k *Keeper) Devices() ([]clwire.KeeperDevice, error) {
	k.use()
	all, err := k.All()
	if err != nil {
		return nil, err
	}
	var offered []clwire.KeeperDevice
	for _, d := range all {
		device, err := object.ParseDevice(d.UUID)
		if err != nil {
			return nil, fmt.Errorf("%w: the keeper's list: %w", object.ErrNoDevice, err)
		}
		if k.offered(device) == nil {
			offered = append(offered, d)
		}
	}
	return offered, nil
}

// offered says why there are no objects on a GPU: ErrUnsupported; nil: it is offered.
func (k *Keeper) offered(device object.Device) error {
	if k.opts.Offers == nil {
		return nil
	}
	if ok, why := k.opts.Offers(device.String()); !ok {
		return fmt.Errorf("%w: this node does not offer GPU %s: %s", object.ErrUnsupported, device, why)
	}
	return nil
}

// Allocate makes zeroed memory of a device: a descriptor, which the caller owns, of real bytes, which are at least what
// is asked for. Whether who asks is gone is looked at when the keeper is free for it. Errors: ErrUnsupported (no such
// device), ErrNoDevice; ErrTimeout (who asks is gone); ErrFull, with what is free on the device in place of real.
func (k *Keeper) Allocate(who store.Asker, device object.Device, bytes uint64) (fd int, real uint64, err error) {
	if err := k.offered(device); err != nil {
		return -1, 0, err
	}
	k.use()
	return k.allocate(who, device, bytes)
}

// Sample makes memory as Allocate does, of a GPU that may not be offered, for a probe that tries a driver: ProbeOver
// follows.
func (k *Keeper) Sample(uuid string, bytes uint64) (*os.File, error) {
	device, err := object.ParseDevice(uuid)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", object.ErrUnsupported, err)
	}
	fd, _, err := k.allocate(nobody, device, bytes)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "memory of a GPU"), nil
}

func (k *Keeper) allocate(who store.Asker, device object.Device, bytes uint64) (fd int, real uint64, err error) {
	reply, fd, err := k.ask(who, &clwire.KeeperRequest{
		Allocate: &clwire.KeeperAllocate{Device: device.String(), Bytes: bytes}})
	if err == nil && fd >= 0 {
		k.holds(fd)
	}
	if err == nil && (fd < 0 || reply.Bytes < bytes || !k.isMemory(fd, reply.Bytes)) {
		err = fmt.Errorf("%w: the keeper returned %d bytes instead of %d, as descriptor %d", object.ErrNoDevice,
			reply.Bytes, bytes, fd)
	}
	switch {
	case err == nil:
		return fd, reply.Bytes, nil
	case errors.Is(err, object.ErrFull) && reply != nil:
		real = reply.Bytes // free
	}
	closeFD(fd)
	return -1, real, err
}

// isMemory reports whether a descriptor may be memory of so many bytes: a twin is a memfd, which has its size.
func (k *Keeper) isMemory(fd int, bytes uint64) bool {
	if k.opts.OpenCL == nil {
		return true
	}
	var st unix.Stat_t
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	return err == nil && unix.Fstat(fd, &st) == nil && uint64(max(st.Size, 0)) == bytes &&
		seals&fixedSize == fixedSize
}

// fixedSize are the seals of memory that nobody cuts off: who reads it is not ended by that.
const fixedSize = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

func closeFD(fd int) {
	if fd >= 0 {
		unix.Close(fd)
	}
}

// nobody asks for the daemon itself, which waits for the answer in any case.
var nobody = store.Asker{Gone: func() bool { return false }}

// ask has the keeper do something, and asks another one where it ends meanwhile: nothing of a request that was not
// answered stays. Those who wait for their turn may have gone when it comes. fd is what came with the reply; −1:
// nothing.
func (k *Keeper) ask(who store.Asker, m *clwire.KeeperRequest, files ...int) (*clwire.KeeperReply, int, error) {
	var took time.Duration
	return k.askTimed(who, &took, m, files...)
}

// askTimed is ask that says how long the keeper took for it.
func (k *Keeper) askTimed(who store.Asker, took *time.Duration, m *clwire.KeeperRequest,
	files ...int) (reply *clwire.KeeperReply, fd int, err error) {
	if err := k.Available(); err != nil {
		return nil, -1, err
	}
	if !k.turns.take(who.Tenant, k.ended) {
		return nil, -1, store.ErrDevicesEnded
	}
	defer k.endTurn()
	for range 2 {
		if who.Gone() {
			return nil, -1, fmt.Errorf("%w: the client that asked for device memory is gone", object.ErrTimeout)
		}
		var p *process
		if p, err = k.running(); err != nil {
			return nil, -1, err
		}
		if err = k.takeBack(p); err != nil {
			continue
		}
		began := time.Now()
		if reply, fd, err = p.ask(m, k.opts.RequestTime, files); err == nil {
			*took = time.Since(began)
			k.answered(reply)
			k.hasLent(p, m, reply)
			return reply, fd, k.faultOf(reply)
		}
		err = k.lost(p, err)
	}
	k.failed(err)
	return nil, -1, err
}

// faultOf makes an error of what the keeper answered.
func (k *Keeper) faultOf(r *clwire.KeeperReply) error {
	device, driver := "GPU", "CUDA"
	if k.opts.OpenCL != nil {
		device, driver = "device", "OpenCL"
	}
	switch {
	case r.Error == "":
		return nil
	case r.Fault == clwire.KeeperNoDevice:
		return fmt.Errorf("%w: memory of a %s: %.500s", object.ErrUnsupported, device, r.Error)
	case r.Fault == clwire.KeeperUnknown:
		return errUnknownCopy
	case r.Fault == clwire.KeeperFull:
		return fmt.Errorf("%w: the %s has no memory left: %.500s", object.ErrFull, device, r.Error)
	}
	return fmt.Errorf("%w: the %s driver failed: %.500s", object.ErrNoDevice, driver, r.Error)
}

// running gives the process, which it starts where there is none. The turn is held.
func (k *Keeper) running() (*process, error) {
	p, err := k.present()
	if p != nil || err != nil {
		return p, err
	}
	if p, err = k.start(); err != nil { // without mu, which the store waits for under its own lock
		return nil, fmt.Errorf("%w: start the keeper: %w", object.ErrNoDevice, err)
	}
	k.mu.Lock()
	closed := k.closed
	if !closed {
		k.process = p
		k.starts++
	}
	k.mu.Unlock()
	if closed {
		k.end(p)
		return nil, store.ErrDevicesEnded
	}
	k.opts.Log.WithField("pid", p.pid).Info("the keeper of device memory has started")
	return p, nil
}

// present gives the process; nil: running is to start one. The turn is held.
func (k *Keeper) present() (*process, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.closed:
		return nil, store.ErrDevicesEnded
	case k.process != nil && !k.process.over():
		return k.process, nil
	case k.stuck != nil && !k.stuck.over():
		k.fault = fmt.Errorf("%w: the previous keeper, process %d, was killed and has not ended: the kernel waits for the driver (see dmesg); no other keeper is started meanwhile",
			object.ErrNoDevice, k.stuck.pid)
		return nil, k.fault
	case time.Now().Before(k.until):
		return nil, fmt.Errorf("%w: the keeper failed twice and is started again in %v: %w", object.ErrNoDevice,
			time.Until(k.until).Round(time.Second), k.fault)
	}
	if k.process != nil { // it has ended by itself
		k.process.control.Close()
		k.process = nil
		k.forgotten()
	}
	k.stuck = nil
	return nil, nil
}

// start starts the process. The turn is held.
func (k *Keeper) start() (*process, error) {
	argv := append(slices.Clone(k.opts.Args), "keeper")
	if k.opts.OpenCL != nil {
		return startProcess(&k.links, k.opts.Executable, append(argv, k.opts.OpenCL.arguments()...), k.environment())
	}
	argv = append(argv, "--driver", k.driver(), "--pin", strconv.FormatUint(k.opts.PinBytes, 10))
	return startProcess(&k.links, k.opts.Executable, argv, k.environment())
}

func (k *Keeper) environment() []string {
	if k.opts.Env == nil {
		return nil
	}
	return k.opts.Env()
}

// driver is what the keeper loads.
func (k *Keeper) driver() string {
	if k.opts.OpenCL != nil {
		return k.opts.OpenCL.ICD
	}
	return cmp.Or(k.opts.Driver, DefaultDriver)
}

// answered notes a request that was answered. The turn is held.
func (k *Keeper) answered(r *clwire.KeeperReply) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fault, k.wait, k.until = nil, 0, time.Time{}
	if r.Pinned == nil {
		return
	}
	clear(k.pinned)
	for _, key := range r.Pinned.Memory {
		if !slices.Contains(k.doomed, key) {
			k.pinned[key] = struct{}{}
		}
	}
}

// endTurn lets others have the turn, and from then on counts the time without requests: rest needs the turn.
func (k *Keeper) endTurn() {
	k.turns.give()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed || k.process == nil {
		return
	}
	if k.idle == nil {
		k.idle = time.AfterFunc(k.opts.IdleTime, k.rest)
	} else {
		k.idle.Reset(k.opts.IdleTime)
	}
}

// use notes that somebody else than a probe asks.
func (k *Keeper) use() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.used = true
}

// ProbeOver ends a keeper that only a probe has asked, which has no more questions: a node whose GPUs nobody keeps
// objects on has none.
func (k *Keeper) ProbeOver() {
	k.mu.Lock()
	used := k.used
	k.mu.Unlock()
	if !used {
		k.rest()
	}
}

// forgotten notes that what the process had went with it. mu is held.
func (k *Keeper) forgotten() {
	clear(k.pinned)
	if len(k.lent) > 0 {
		k.opts.Log.WithField("handles", len(k.lent)).Warn("the memory behind CUDA handles ended with the keeper that had it")
	}
	k.died = slices.AppendSeq(k.died, maps.Keys(k.lent))
	clear(k.lent)
	k.freed = nil
}

// rest ends a keeper that nobody has asked for a while: its context takes memory of the GPU. One of an OpenCL platform
// that has memory of objects stays, and one that has lent some: that memory would go with it.
func (k *Keeper) rest() {
	if !k.turns.try() {
		return // a request is under way, and sets the timer again
	}
	defer k.turns.give()
	k.mu.Lock()
	if k.opts.OpenCL != nil && len(k.pinned) > 0 || len(k.lent) > 0 {
		k.mu.Unlock() // its last Forget is a request, after which the timer is set again
		return
	}
	p := k.process
	k.process, k.used = nil, false
	k.forgotten()
	k.mu.Unlock()
	if p != nil {
		k.end(p)
		k.opts.Log.WithField("pid", p.pid).Info("the keeper of device memory rests")
	}
}

// abandon lets a keeper end whose devices have other keepers now: what it has is made anew there.
func (k *Keeper) abandon() {
	k.mu.Lock()
	defer k.mu.Unlock()
	clear(k.pinned)
	if k.idle != nil && !k.closed {
		k.idle.Reset(0)
	}
}

// lost ends a process that did not answer, and says how it went. The turn is held.
func (k *Keeper) lost(p *process, why error) error {
	slow := errors.Is(why, os.ErrDeadlineExceeded)
	fate := k.end(p)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.process == p {
		k.process = nil
	}
	k.forgotten()
	if k.closed {
		return store.ErrDevicesEnded
	}
	if slow && k.stuck != p {
		fate = fmt.Sprintf("it did not answer within %v, and was ended", k.opts.RequestTime)
	}
	k.opts.Log.WithField("pid", p.pid).Warn("the keeper of device memory is gone: " + fate)
	return fmt.Errorf("%w: the keeper of device memory is gone: %s (%w)", object.ErrNoDevice, fate, why)
}

// failed notes a request that two keepers failed at: the next one waits.
func (k *Keeper) failed(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fault, k.wait = err, min(max(2*k.wait, firstPause), longestPause)
	k.until = time.Now().Add(k.wait)
}
