package conn

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
	"tendril/forwarding/forecast"
	"tendril/forwarding/link"
)

// reader takes the worker's records off the ring. Whoever waits reads: a caller polls the ring itself for a while and
// then sleeps on the socket in a plain system call, so that no wake-up of a goroutine stands between a kernel's end
// and clFinish's return (measured: 54 µs against 5.8). While nobody waits, a background goroutine sleeps there and is
// rung for what is urgent only.
//
// One caller at a time sleeps on the socket (the sleeper); others that have polled in vain park and are woken by it.
type reader struct {
	c *Conn

	rx       sync.Mutex    // taking records off the ring
	ends     clwire.Events // reused; guarded by rx
	progress bool          // something was completed since the last look; guarded by rx

	waiting  atomic.Int32 // callers in wait
	missed   atomic.Int32 // times in a row that polling was in vain
	sleeping atomic.Bool  // one of them sleeps on the socket
	parked   atomic.Int32 // others that sleep on parkCond
	parkMu   sync.Mutex
	parkCond sync.Cond

	wake      int          // eventfd that ends the sleeper's sleep
	wakeLazy  int          // eventfd that ends the background's
	poller    link.Poller  // callers poll with it
	interest  atomic.Int32 // callbacks that want the background reader to be prompt
	unhurried atomic.Int32 // callers in wait for what the worker does not call urgent
	resume    chan struct{}
	ended     chan struct{} // the background goroutine is gone
	stopping  atomic.Bool
}

// Wait returns true when it is done, false when the worker died before it was registered. It polls before it sleeps.
func (c *Conn) Wait(it *Completion) bool { return c.reader.wait(it, c.opt.Spin) }

// WaitUnhurried is Wait, for what the worker does not call urgent: an event that nobody asked it for.
func (c *Conn) WaitUnhurried(it *Completion) bool { return c.reader.waitUnhurried(it) }

// ReadPromptly has what the worker says read at once until done is called, also while no call waits.
func (c *Conn) ReadPromptly() (done func()) { return c.reader.want() }

// Poll takes what the worker has said, without waiting: for status queries, and now and then while commands are sent.
func (c *Conn) Poll() { c.reader.poll() }

// awayFor is how long the background reader stays away after it met a caller: long enough that a program which
// waits again and again does not wake it each time.
const awayFor = 10 * time.Millisecond

// Polling in vain so often in a row makes it short, for so many waits.
const (
	missesAtMost  = 2
	tryAgainAfter = 32
)

// prepare makes what a death needs, which may come before start: a lane that fails at once.
func (r *reader) prepare(c *Conn) (err error) {
	r.c = c
	r.parkCond.L = &r.parkMu
	if r.wake, err = eventFD(); err != nil {
		return err
	}
	if r.wakeLazy, err = eventFD(); err != nil {
		unix.Close(r.wake)
		return err
	}
	r.resume, r.ended = make(chan struct{}, 1), make(chan struct{})
	return nil
}

// start begins to read.
func (r *reader) start() { go r.background() }

// discard undoes prepare.
func (r *reader) discard() {
	unix.Close(r.wake)
	unix.Close(r.wakeLazy)
}

// stop joins the background goroutine. Nobody may be in wait.
func (r *reader) stop() {
	if r.stopping.Swap(true) {
		return
	}
	poke(r.wakeLazy)
	r.nudge()
	<-r.ended
	r.rx.Lock()
	defer r.rx.Unlock()
	r.discard()
	_ = r.c.link.Close() // nothing is left to lose
}

func poke(fd int) {
	one := [8]byte{1}
	_, _ = unix.Write(fd, one[:]) // fails only when the counter is full: it is readable then
}

func unpoke(fd int) {
	var b [8]byte
	_, _ = unix.Read(fd, b[:]) // fails only when nobody poked
}

// drain dispatches every record there is. The caller holds rx.
func (r *reader) drain() {
	if r.c.dead.Load() {
		return
	}
	for {
		h, payload, ok, err := r.c.link.Next()
		if err == nil && ok {
			err = r.c.dispatch(h, payload)
		}
		if err != nil {
			r.c.die(err)
			return
		}
		if !ok {
			return
		}
	}
}

// poll drains without waiting.
func (r *reader) poll() {
	if r.c.dead.Load() || r.c.link.Empty() || !r.rx.TryLock() {
		return
	}
	r.drain()
	progress := r.progress
	r.progress = false
	r.rx.Unlock()
	if progress {
		r.wakeOthers()
	}
}

// wakeOthers ends the sleep of callers whose records another caller took.
func (r *reader) wakeOthers() {
	if r.sleeping.Load() {
		poke(r.wake)
	}
	r.unpark()
}

func (r *reader) unpark() {
	if r.parked.Load() > 0 {
		r.parkMu.Lock()
		defer r.parkMu.Unlock()
		r.parkCond.Broadcast()
	}
}

func (r *reader) wakeAll() {
	poke(r.wake)
	r.parkMu.Lock()
	r.parkCond.Broadcast()
	r.parkMu.Unlock()
}

// waitUnhurried is wait, for what the worker does not call urgent.
func (r *reader) waitUnhurried(c *Completion) bool {
	r.unhurried.Add(1)
	defer r.unhurried.Add(-1)
	return r.wait(c, 0)
}

// wait returns true when c is done, false when the worker died before c was registered. It polls for spin.
func (r *reader) wait(c *Completion, spin time.Duration) bool {
	if c.Done() {
		r.c.course.Forget()
		return true
	}
	r.waiting.Add(1)
	if !r.c.dead.Load() {
		r.c.link.Awake()
		soon, plan := r.firstLook(c, spin)
		switch {
		case soon:
			r.missed.Store(0)
			r.c.course.Forget()
		case r.spin(c, r.foreseen(c, plan, spin)):
			r.missed.Store(0)
			r.c.course.Ended()
		default:
			r.missed.Add(1)
			r.sleep(c)
			r.c.course.Ended()
		}
	}
	r.leave()
	r.c.AwaitSettled()
	return c.Done()
}

// firstLook polls for a moment, and for longer if there is no time to sleep, and says when the end is expected then.
func (r *reader) firstLook(c *Completion, spin time.Duration) (soon bool, plan forecast.Plan) {
	if r.spin(c, min(r.worthwhile(spin), forecast.Glance)) {
		return true, plan
	}
	if spin > 0 && runtime.NumCPU() > 1 {
		plan = r.c.course.Expect()
	}
	return plan.Sleep == 0 && r.spin(c, min(r.worthwhile(spin), forecast.FirstLook)), plan
}

// foreseen sleeps until shortly before the end, if that is foreseen, and says how long to poll then, behind the first
// look.
func (r *reader) foreseen(c *Completion, plan forecast.Plan, spin time.Duration) time.Duration {
	if plan == (forecast.Plan{}) {
		return r.worthwhile(spin) - forecast.FirstLook
	}
	if plan.Sleep > 0 && r.sleeping.CompareAndSwap(false, true) {
		until := time.Now().Add(plan.Sleep)
		sharply(func() { r.sleepOnSocket(c, until, plan.Nap) })
		r.sleeping.Store(false)
		r.unpark()
		if r.over(c) {
			r.c.course.Overslept()
		} else {
			r.c.link.Awake()
			r.c.course.Late(time.Since(until))
		}
	}
	return max(plan.Poll, spin)
}

// worthwhile shortens the polling after it was in vain twice in a row: what is awaited takes longer, or the worker
// waits for the very core that polling occupies (on a busy machine a poll that is cut short brought 145 µs down to
// 40). Now and then it tries again.
func (r *reader) worthwhile(spin time.Duration) time.Duration {
	missed := r.missed.Load()
	switch {
	case missed < missesAtMost:
		return spin
	case missed > missesAtMost+tryAgainAfter:
		r.missed.Store(missesAtMost - 1)
		return spin
	}
	return spin / 8
}

func (r *reader) over(c *Completion) bool { return c.Done() || r.c.dead.Load() }

func (r *reader) spin(c *Completion, d time.Duration) bool {
	return r.poller.Spin(d, func() bool {
		r.poll()
		return r.over(c)
	})
}

// sleep waits without polling.
func (r *reader) sleep(c *Completion) {
	for !r.over(c) {
		if r.sleeping.CompareAndSwap(false, true) {
			r.sleepOnSocket(c, time.Time{}, 0)
			r.sleeping.Store(false)
			r.unpark() // hands the socket over
			continue
		}
		r.park(c)
	}
}

// park waits for the sleeper, which is woken once: this caller's polling has taken its announcement back.
func (r *reader) park(c *Completion) {
	r.parked.Add(1)
	defer r.parked.Add(-1)
	r.parkMu.Lock()
	defer r.parkMu.Unlock()
	poke(r.wake)
	// Whoever takes our record, or gives the socket up, sees parked and takes parkMu after this look.
	if !r.over(c) && r.sleeping.Load() {
		r.parkCond.Wait()
	}
}

// sleepOnSocket returns when it is over, or it is late; the zero time is never. With an end, it sleeps in naps.
func (r *reader) sleepOnSocket(c *Completion, late time.Time, nap time.Duration) {
	for !r.over(c) {
		left := time.Duration(-1)
		if !late.IsZero() {
			if left = time.Until(late); left <= 0 {
				return
			}
			left = min(left, nap)
		}
		r.rx.Lock()
		r.drain()
		r.progress = false
		armed := !r.over(c) && r.c.link.Arm(r.wakeFor())
		r.rx.Unlock()
		r.unpark()
		if armed {
			if err := r.c.link.Block(r.wake, left); err != nil {
				r.readRestThenDie(err)
				return
			}
			unpoke(r.wake)
		}
	}
}

// sharply runs f, which sleeps, without the slack that timers have: 50 µs.
func sharply(f func()) {
	if slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err == nil &&
		unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) == nil {
		defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0) }() // it was so before
	}
	f()
}

// wakeFor is what a sleeper wants to be woken for: what somebody waits for is urgent, and the ends of a chain's
// events, told every 100 µs, are not. Woken for each of these reports, it kept the core from the commands.
func (r *reader) wakeFor() uint32 {
	if r.unhurried.Load() > 0 {
		return clwire.ConsumerAsleep
	}
	return clwire.ConsumerLazy
}

// readRestThenDie takes what a worker said before its end, and ends it.
func (r *reader) readRestThenDie(err error) {
	r.rx.Lock()
	r.drain()
	r.rx.Unlock()
	r.c.die(err)
}

// leave hands the ring to the sleeper, or to the background reader.
func (r *reader) leave() {
	if r.waiting.Add(-1) > 0 {
		if r.sleeping.Load() {
			poke(r.wake) // it arms again: this caller took the announcement back
		}
		return
	}
	if r.c.dead.Load() {
		return
	}
	r.armLazy()
	if r.interest.Load() > 0 {
		r.nudge()
	}
}

// armLazy announces that only urgent records need a bell from now on.
func (r *reader) armLazy() {
	r.rx.Lock()
	defer r.rx.Unlock()
	for r.waiting.Load() == 0 && !r.c.dead.Load() && !r.c.link.Arm(clwire.ConsumerLazy) {
		r.drain()
	}
}

func (r *reader) nudge() {
	select {
	case r.resume <- struct{}{}:
	default:
	}
}

// want makes the background reader prompt until the returned function is called.
func (r *reader) want() (done func()) {
	if r.interest.Add(1) == 1 {
		r.nudge()
	}
	return func() { r.interest.Add(-1) }
}

// background reads while no caller waits. It ends with the worker.
func (r *reader) background() {
	defer close(r.ended)
	timer := time.NewTimer(awayFor)
	defer timer.Stop()
	for !r.stopping.Load() && !r.c.dead.Load() {
		if r.waiting.Load() > 0 {
			timer.Reset(awayFor)
			select {
			case <-r.resume:
			case <-timer.C:
			}
			continue
		}
		r.armLazy()
		err := r.c.link.Block(r.wakeLazy, -1)
		r.backgroundTurn(err)
	}
}

func (r *reader) backgroundTurn(err error) {
	switch {
	case err != nil:
		r.readRestThenDie(err)
	case r.waiting.Load() == 0:
		r.poll()
	case r.sleeping.Load():
		poke(r.wake) // the bell just read may have been the sleeper's
	}
}

// aboveStandard is the lowest descriptor that is kept: a program may close 0 to 2 and open files there.
const aboveStandard = 10

// eventFD makes a descriptor for wake-ups above the standard ones.
func eventFD() (int, error) {
	low, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, fmt.Errorf("eventfd: %w", err)
	}
	defer unix.Close(low)
	fd, err := unix.FcntlInt(uintptr(low), unix.F_DUPFD_CLOEXEC, aboveStandard)
	if err != nil {
		return -1, fmt.Errorf("duplicate an eventfd: %w", err)
	}
	return fd, nil
}
