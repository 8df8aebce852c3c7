// Package forecast learns how long it takes from the first of some commands until the answer that is waited for, so
// that who waits can sleep until shortly before it and poll then. To wake a sleeping thread takes 35 to 100 µs; to poll
// all the time takes a core. Linux does the same for block devices (hybrid polling, io_poll_delay in sysfs-block).
//
// A program that does the same again and again sends the same commands between two waits: they are the key. What
// differs each time is not foreseen, and costs what it did before.
//
// Trust: the numbers are a program's, which misleads itself alone. Locks: Course.mu is a leaf.
package forecast

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of what is foreseen.
const (
	leastSeen   = 3                      // times that the same was seen
	leastSleep  = 150 * time.Microsecond // shorter sleeps are as good as none
	leastMargin = 25 * time.Microsecond  // before the expected end
	mostMargin  = 400 * time.Microsecond // whose end is less sure is not foreseen
	mostLate    = 300 * time.Microsecond // of a timer; a machine on which timers are later is too busy for it
	longest     = 10 * time.Second       // whoever waits longer does not notice

	atOnce = 8 * time.Microsecond // behind a wake-up: what is heard of so soon was over before

	// Glance is how long who waits polls before he asks whether he can sleep, and FirstLook how long he does where he
	// cannot: a short wait would notice what that costs.
	Glance    = 3 * time.Microsecond
	FirstLook = 20 * time.Microsecond

	// A sleep is in steps of this at least, or of a small part of it, where there are cores enough. Behind a longer one
	// a core is slow for a while: a virtual machine's host waits for its timer some 200 µs before it lets the core
	// sleep. On an H100's machine a launch took the driver 16 µs behind naps of 50 to 150 µs, and 67 behind 250.
	leastNap   = 100 * time.Microsecond
	napParts   = 64
	leastCores = 8
)

// entries is how many keys are kept; a newer one takes an older one's place.
const entries = 256

type entry struct {
	key   uint64
	seen  int
	took  spread // from the first command to the answer
	off   int    // times in a row that it was something else
	early int    // times in a row that it was over before who slept looked
}

// spread is a running mean, and that of the error.
type spread struct{ mean, dev time.Duration }

func (s *spread) add(x time.Duration) {
	off := x - s.mean
	s.mean += off / 4
	s.dev += (max(off, -off) - s.dev) / 4
}

// Course is what one connection sends and waits for. The zero value knows nothing.
type Course struct {
	// Written by who sends, for each command: so without the lock. Where two threads send at the same time one of their
	// commands may be missing from the key, which is then foreseen less well.
	key   atomic.Uint64 // of the commands so far; 0: none
	began atomic.Int64  // when the first of them was sent, as clock says

	mu    sync.Mutex
	slept bool          // through its end: the answer was heard of late
	woke  time.Duration // when a sleeper looked for its end; 0: nobody slept
	late  spread        // of timers
	book  [entries]entry
	clock func() time.Duration // of tests
}

// origin is what times are counted from: that asks for one clock, time.Now for two.
var origin = time.Now()

func (c *Course) now() time.Duration {
	if c.clock != nil {
		return c.clock()
	}
	return time.Since(origin)
}

// Plan is when to do what, from now on. The zero Plan is that nothing is foreseen.
type Plan struct {
	Sleep time.Duration // until then nothing will come; 0: it is not worth it
	Poll  time.Duration // for so long behind it the answer may come
	Nap   time.Duration // the sleep is in steps of this, so that the core stays warm; 0 without a sleep
}

// Launch takes down the launch of a kernel with so many work-items in each dimension.
func (c *Course) Launch(kernel uint64, items [3]uint64) {
	c.note(kernel, items[0]^items[1]<<20^items[2]<<40)
}

// Command takes down another command, of a kind.
func (c *Course) Command(kind uint16) { c.note(uint64(kind), 0) }

// note takes down a command: what it is, and what its time depends on.
func (c *Course) note(kind, of uint64) {
	key := c.key.Load()
	if key == 0 {
		c.began.Store(int64(c.now()))
		key = 14695981039346656037
	}
	for _, x := range [2]uint64{kind, of} {
		key = (key ^ x) * 1099511628211 // FNV-1a, by words
		key ^= key >> 29
	}
	c.key.Store(key)
}

// sinceBegan is how long ago the first of the commands was sent.
func (c *Course) sinceBegan() time.Duration { return c.now() - time.Duration(c.began.Load()) }

// Expect says what is foreseen for who waits now.
func (c *Course) Expect() Plan {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := c.key.Load()
	e := &c.book[key%entries]
	late := c.late.mean + 2*c.late.dev
	if late > mostLate { // nobody sleeps by a plan now, and learns that timers are better: it is forgotten bit by bit
		c.late.mean -= c.late.mean / 32
		c.late.dev -= c.late.dev / 32
	}
	if key == 0 || e.key != key || e.seen < leastSeen || e.took.mean > longest || late > mostLate {
		return Plan{}
	}
	margin := leastMargin + 3*e.took.dev
	if margin > mostMargin || margin > leastMargin+e.took.mean/4 {
		return Plan{}
	}
	left := e.took.mean - c.sinceBegan()
	if left < -2*margin {
		return Plan{} // it should have come
	}
	if sleep := left - margin - late; sleep >= leastSleep {
		return Plan{Sleep: sleep, Poll: late + 3*margin, Nap: nap(sleep, runtime.NumCPU())}
	}
	return Plan{Poll: left + 2*margin}
}

func nap(sleep time.Duration, cores int) time.Duration {
	if cores < leastCores {
		return sleep
	}
	return max(leastNap, sleep/napParts)
}

// Late takes down how much later than planned a sleeper woke.
func (c *Course) Late(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.late.add(min(by, mostLate)) // one that had no processor for long is not what is usual
	c.woke = c.now()
}

// Overslept says that a sleeper was woken by the answer, which had to wait for that.
func (c *Course) Overslept() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slept = true
}

// Forget says that what was waited for came so soon that there is nothing to foresee: the next command begins anew.
func (c *Course) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.beginAnew()
}

// beginAnew forgets the commands. c.mu is held.
func (c *Course) beginAnew() {
	c.key.Store(0)
	c.slept, c.woke = false, 0
}

// Ended says that what was waited for has come: the next command begins anew.
func (c *Course) Ended() {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := c.key.Load()
	if key == 0 {
		return
	}
	now := c.now()
	took := now - time.Duration(c.began.Load())
	early := c.slept || c.woke != 0 && now-c.woke < atOnce
	if early { // heard of as late as a wake-up takes: about as long as timers are late
		took = max(took-c.late.mean-leastMargin, 0)
	}
	e := &c.book[key%entries]
	if e.key != key {
		*e = entry{key: key, took: spread{mean: took}}
	}
	e.learn(took, early)
	c.beginAnew()
}

// learn takes down a time. What is something else twice in a row is learned anew, and so is what was over before it was
// looked for: how long before, nobody knows.
func (e *entry) learn(took time.Duration, early bool) {
	e.off, e.early = count(e.off, took-e.took.mean > e.took.mean/2 || e.took.mean-took > took/2), count(e.early, early)
	switch {
	case e.early == 2:
		*e = entry{key: e.key, took: spread{mean: took}}
		return
	case e.off == 2:
		*e = entry{key: e.key, took: spread{mean: took}}
	}
	e.took.add(took)
	e.seen++
}

// count counts how often in a row something was so.
func count(n int, so bool) int {
	if so {
		return n + 1
	}
	return 0
}
