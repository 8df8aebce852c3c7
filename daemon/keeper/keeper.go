// Package keeper runs the daemon's keeper, the process `tendril keeper` in which the CUDA driver is
// (forwarding/keeper): it starts it when memory of a GPU is first asked for, asks it, and ends it when nobody has asked
// for a while. What the keeper makes is the daemon's from then on, as descriptors, so its end costs nothing: the next
// request starts another.
//
// Trust: the driver may crash, hang or answer nonsense. A request that is not answered in time ends the keeper; what is
// answered is checked for its form. One that does not end when it is killed holds nobody up, and as long as it is there
// no other is started. No client speaks to the keeper.
//
// Life: the keeper dies with the daemon (PDEATHSIG, bound to a thread of its own that lives as long as the keeper).
// Close ends it and joins every goroutine, but those of a keeper that does not end.
//
// Locks: Keeper.turn is held for a whole request; Keeper.mu, under it, is a leaf.
package keeper

import (
	"errors"
	"fmt"
	"os"
	"slices"
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
	Log         logrus.FieldLogger
}

// copyStep is how much of a copy one request does: others have the keeper in between.
const copyStep = 256 << 20

// Pauses before a keeper is started again whose two predecessors failed at one request.
const (
	firstPause   = time.Second
	longestPause = 30 * time.Second
)

// Keeper is the daemon's side of the keeper. Safe for concurrent use.
type Keeper struct {
	opts  Options         // immutable
	turn  chan struct{}   // capacity 1; who has put its token in speaks to the process
	ended chan struct{}   // closed by Close
	links sync.WaitGroup  // the processes' goroutines
	nodes func() []string // the device nodes that there are; for tests

	mu      sync.Mutex // guards what follows
	process *process   // nil: none runs
	stuck   *process   // was killed and did not end in time; nil: none
	idle    *time.Timer
	closed  bool
	starts  int
	fault   error // of the last request that two keepers failed at, or that found one that does not end
	wait    time.Duration
	until   time.Time // no keeper is started before
}

// Status is what `tendril status` shows of the keeper.
type Status struct {
	PID    int    `json:"pid,omitempty"` // 0: none runs
	Starts int    `json:"starts"`        // of this daemon's keepers
	Fault  string `json:"fault,omitempty"`
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
	return &Keeper{opts: o, turn: make(chan struct{}, 1), ended: make(chan struct{}), nodes: deviceNodes}
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
	case k.opts.Driver == None:
		return fmt.Errorf("%w: this daemon keeps no memory of GPUs (--cuda-driver none)", object.ErrUnsupported)
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
	s := &Status{Starts: k.starts}
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
	k.turn <- struct{}{} // a request under way fails now
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
		k.opts.Log.WithField("pid", p.pid).Error("the keeper of GPU memory: " + fate)
		k.mu.Lock()
		k.stuck = p
		k.mu.Unlock()
	}
	return fate
}

// Devices lists the GPUs. Errors: ErrUnsupported, ErrNoDevice.
func (k *Keeper) Devices() ([]clwire.KeeperDevice, error) {
	reply, fd, err := k.ask(wanted, &clwire.KeeperRequest{List: &clwire.KeeperList{}})
	closeFD(fd)
	if err != nil {
		return nil, err
	}
	for _, d := range reply.Devices {
		if _, err := object.ParseDevice(d.UUID); err != nil {
			return nil, fmt.Errorf("%w: the keeper's list: %w", object.ErrNoDevice, err)
		}
	}
	return reply.Devices, nil
}

// Allocate makes zeroed memory of a device: a descriptor, which the caller owns, of real bytes, which are at least what
// is asked for. stop is asked when the keeper is free for it. Errors: ErrUnsupported (no such device), ErrFull,
// ErrNoDevice; ErrTimeout (stop).
func (k *Keeper) Allocate(device object.Device, bytes uint64, stop func() bool) (fd int, real uint64, err error) {
	reply, fd, err := k.ask(stop, &clwire.KeeperRequest{
		Allocate: &clwire.KeeperAllocate{Device: device.String(), Bytes: bytes}})
	if err == nil && (fd < 0 || reply.Bytes < bytes) {
		err = fmt.Errorf("%w: the keeper gave %d bytes for %d, as descriptor %d", object.ErrNoDevice, reply.Bytes, bytes, fd)
	}
	if err != nil {
		closeFD(fd)
		return -1, 0, err
	}
	return fd, reply.Bytes, nil
}

// wire describes a place, from done bytes on.
func wire(p store.Place, done uint64) clwire.KeeperPlace {
	w := clwire.KeeperPlace{Bytes: p.Bytes, Offset: p.Offset + done}
	if !p.Device.IsZero() {
		w.Device = p.Device.String()
	}
	return w
}

// Copy copies bytes from one place to another, one of which at least is a device's; the descriptors stay the caller's.
// stop is asked before each step. Errors: as Allocate's.
func (k *Keeper) Copy(to, from store.Place, bytes uint64, stop func() bool) error {
	for done := uint64(0); done < bytes; {
		n := min(bytes-done, copyStep)
		_, fd, err := k.ask(stop, &clwire.KeeperRequest{
			Copy: &clwire.KeeperCopy{To: wire(to, done), From: wire(from, done), Bytes: n}}, to.FD, from.FD)
		closeFD(fd)
		if err != nil {
			return err
		}
		done += n
	}
	return nil
}

func closeFD(fd int) {
	if fd >= 0 {
		unix.Close(fd)
	}
}

// wanted is a stop of who waits for the answer in any case.
func wanted() bool { return false }

// ask has the keeper do something, and asks another one where it ends meanwhile: nothing of a request that was not
// answered stays. Those who wait for their turn may have gone when it comes (stop). fd is what came with the reply; −1:
// nothing.
func (k *Keeper) ask(stop func() bool, m *clwire.KeeperRequest, files ...int) (reply *clwire.KeeperReply, fd int,
	err error) {
	if err := k.Available(); err != nil {
		return nil, -1, err
	}
	select {
	case k.turn <- struct{}{}:
		defer k.endTurn()
	case <-k.ended:
		return nil, -1, store.ErrDevicesEnded
	}
	for range 2 {
		if stop() {
			return nil, -1, fmt.Errorf("%w: who asked for memory of a GPU is gone", object.ErrTimeout)
		}
		var p *process
		if p, err = k.running(); err != nil {
			return nil, -1, err
		}
		if reply, fd, err = p.ask(m, k.opts.RequestTime, files); err == nil {
			k.answered()
			return reply, fd, faultOf(reply)
		}
		err = k.lost(p, err)
	}
	k.failed(err)
	return nil, -1, err
}

// faultOf makes an error of what the keeper answered.
func faultOf(r *clwire.KeeperReply) error {
	switch {
	case r.Error == "":
		return nil
	case r.Fault == clwire.KeeperNoDevice:
		return fmt.Errorf("%w: memory of a GPU: %.500s", object.ErrUnsupported, r.Error)
	case r.Fault == clwire.KeeperFull:
		return fmt.Errorf("%w: the GPU has no memory left: %.500s", object.ErrFull, r.Error)
	}
	return fmt.Errorf("%w: the CUDA driver failed: %.500s", object.ErrNoDevice, r.Error)
}

// running gives the process, which it starts where there is none. The turn is held.
func (k *Keeper) running() (*process, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.closed:
		return nil, store.ErrDevicesEnded
	case k.process != nil && !k.process.over():
		return k.process, nil
	case k.stuck != nil && !k.stuck.over():
		k.fault = fmt.Errorf("%w: the keeper before, process %d, was killed and does not end: the kernel waits for the driver, which dmesg may tell of; no other is started meanwhile",
			object.ErrNoDevice, k.stuck.pid)
		return nil, k.fault
	case time.Now().Before(k.until):
		return nil, fmt.Errorf("%w: the keeper failed twice and is started again in %v: %w", object.ErrNoDevice,
			time.Until(k.until).Round(time.Second), k.fault)
	}
	if k.process != nil { // it has ended by itself
		k.process.control.Close()
		k.process = nil
	}
	k.stuck = nil
	p, err := k.start()
	if err != nil {
		return nil, fmt.Errorf("%w: start the keeper: %w", object.ErrNoDevice, err)
	}
	k.process = p
	k.starts++
	k.opts.Log.WithField("pid", p.pid).Info("the keeper of GPU memory has started")
	return p, nil
}

// start starts the process. mu is held.
func (k *Keeper) start() (*process, error) {
	driver := k.opts.Driver
	if driver == "" {
		driver = DefaultDriver
	}
	argv := append(slices.Clone(k.opts.Args), "keeper", "--driver", driver)
	return startProcess(&k.links, k.opts.Executable, argv)
}

// answered notes a request that was answered. The turn is held.
func (k *Keeper) answered() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fault, k.wait, k.until = nil, 0, time.Time{}
}

// endTurn lets others have the turn, and from then on counts the time without requests: rest needs the turn.
func (k *Keeper) endTurn() {
	<-k.turn
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

// rest ends a keeper that nobody has asked for a while: its context takes memory of the GPU.
func (k *Keeper) rest() {
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	default:
		return // a request is under way, and sets the timer again
	}
	k.mu.Lock()
	p := k.process
	k.process = nil
	k.mu.Unlock()
	if p != nil {
		k.end(p)
		k.opts.Log.WithField("pid", p.pid).Info("the keeper of GPU memory rests")
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
	if k.closed {
		return store.ErrDevicesEnded
	}
	if slow && k.stuck != p {
		fate = fmt.Sprintf("it did not answer within %v, and was ended", k.opts.RequestTime)
	}
	k.opts.Log.WithField("pid", p.pid).Warn("the keeper of GPU memory is gone: " + fate)
	return fmt.Errorf("%w: the keeper of GPU memory is gone: %s (%w)", object.ErrNoDevice, fate, why)
}

// failed notes a request that two keepers failed at: the next one waits.
func (k *Keeper) failed(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fault, k.wait = err, min(max(2*k.wait, firstPause), longestPause)
	k.until = time.Now().Add(k.wait)
}
