package link

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Yield gives the core to whoever waits for it: a poller must never keep a
// driver's thread from running. It does not tell Go's scheduler (a system call
// of under a microsecond).
func Yield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// A yield that took longer gave the core to somebody who had work for it, for a slice of 3 ms or so: who polls on is
// served last on a busy machine, who sleeps is served first when woken.
const (
	longYield = 500 * time.Microsecond
	longPause = 100 * time.Millisecond
)

// Where there are so many processors, whoever wants one mostly finds another: who polls looks several times before it
// yields. On an H100's machine a look at the driver took 0.3 to 2 µs and a yield half a microsecond; without yields an
// empty kernel and clFinish took 1 µs less.
const (
	manyProcessors = 8
	looksAYield    = 64
)

// looks is how often a poller of this machine looks for each time that it yields.
func looks(processors int) int {
	if processors < manyProcessors {
		return 1
	}
	return looksAYield
}

// Poller polls before its owner sleeps, unless polling has just been seen not to pay: after a long yield nobody polls
// for as long as that took, after the next for twice as long, and so on; each poll that is not in vain halves it. The
// zero value is ready; several goroutines may use one.
type Poller struct {
	again atomic.Pointer[time.Time] // nil, or when polling may pay again
	pause atomic.Int64              // ns
}

// Spin polls done until it holds or d is over, and reports whether it held. It gives up where a yield took long. On a
// single core it does not poll: nobody else could run meanwhile.
func (p *Poller) Spin(d time.Duration, done func() bool) bool {
	return p.spin(d, looks(runtime.NumCPU()), Yield, done)
}

func (p *Poller) spin(d time.Duration, looks int, yield func(), done func() bool) bool {
	if done() {
		return true
	}
	if d <= 0 || runtime.NumCPU() == 1 {
		return false
	}
	start := time.Now()
	if until := p.again.Load(); until != nil && start.Before(*until) {
		return false
	}
	looked := 1
	for past := time.Duration(0); past < d; past = time.Since(start) { // which asks for one clock, time.Now for two
		lost := false
		if looked%looks == 0 {
			yield()
			took := time.Since(start) - past
			if lost = took >= longYield; lost {
				p.lose(time.Now(), took)
			}
		}
		looked++
		if done() {
			if pause := p.pause.Load(); !lost && pause > 0 {
				p.pause.Store(pause / 2)
			}
			return true
		}
		if lost {
			return false
		}
	}
	return false
}

func (p *Poller) lose(now time.Time, took time.Duration) {
	pause := min(max(2*time.Duration(p.pause.Load()), took), longPause)
	p.pause.Store(int64(pause))
	until := now.Add(pause)
	p.again.Store(&until)
}
