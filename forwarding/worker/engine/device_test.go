package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// device is a fake driver and its hardware: queues run what they were given in
// an order of the device's choosing, as far as wait lists, queue order and
// barriers let it. It checks what the engine hands over.
type device struct {
	mu       sync.Mutex
	changed  *sync.Cond
	rnd      *rand.Rand
	queues   map[Native]*fakeQueue
	events   map[Native]*fakeEvent
	last     Native
	stop     bool
	problems []string
	running  sync.WaitGroup
	slow     bool // submissions take a while, outside any lock

	begin func(cmd int)               // a command starts, device locked
	end   func(cmd int, status int32) // it ended
	fails func(cmd int) int32         // what it ends with
}

type fakeQueue struct {
	outOfOrder bool
	pending    []*fakeCommand
}

type fakeCommand struct {
	queue   *fakeQueue
	number  int // −1: a marker of the engine's
	barrier bool
	all     bool // waits for everything before
	waits   []*fakeEvent
	event   *fakeEvent
}

type fakeEvent struct {
	native   Native
	status   int32
	released bool
	owned    bool // the engine has a handle
}

func newDevice(seed uint64) *device {
	d := &device{rnd: rand.New(rand.NewPCG(seed, 7)), queues: map[Native]*fakeQueue{}, events: map[Native]*fakeEvent{}}
	d.changed = sync.NewCond(&d.mu)
	d.begin, d.end = func(int) {}, func(int, int32) {}
	d.fails = func(int) int32 { return 0 }
	return d
}

func (d *device) problem(format string, args ...any) {
	d.problems = append(d.problems, fmt.Sprintf(format, args...))
}

func (d *device) newQueue(outOfOrder bool) Native {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last++
	d.queues[d.last] = &fakeQueue{outOfOrder: outOfOrder}
	return d.last
}

// start runs the hardware until close.
func (d *device) start() {
	d.running.Go(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for !d.stop {
			if !d.step() {
				d.changed.Wait()
			}
			if d.rnd.IntN(4) == 0 {
				d.mu.Unlock()
				// Pause: a device takes its time.
				time.Sleep(time.Duration(d.rnd.IntN(30)) * time.Microsecond)
				d.mu.Lock()
			}
		}
	})
}

func (d *device) close() {
	d.mu.Lock()
	d.stop = true
	d.changed.Broadcast()
	d.mu.Unlock()
	d.running.Wait()
}

// step runs one command that may run now.
func (d *device) step() bool {
	var can []*fakeCommand
	for n := Native(1); n <= d.last; n++ {
		if q := d.queues[n]; q != nil {
			can = append(can, q.runnable()...)
		}
	}
	if len(can) == 0 {
		return false
	}
	d.execute(can[d.rnd.IntN(len(can))])
	return true
}

func (q *fakeQueue) runnable() []*fakeCommand {
	var can []*fakeCommand
	for i, c := range q.pending {
		ready := i == 0 || !c.all
		for _, w := range c.waits {
			ready = ready && w.status <= 0
		}
		if ready {
			can = append(can, c)
		}
		if !q.outOfOrder || c.barrier {
			break
		}
	}
	return can
}

func (d *device) execute(c *fakeCommand) {
	status := int32(0)
	for _, w := range c.waits {
		if w.status < 0 {
			status = -1 // what PoCL calls a failed dependency
		}
	}
	if status == 0 && c.number >= 0 {
		d.begin(c.number)
		status = d.fails(c.number)
	}
	if c.number >= 0 {
		d.end(c.number, status)
	}
	c.event.status = status
	for i, p := range c.queue.pending {
		if p == c {
			c.queue.pending = append(c.queue.pending[:i:i], c.queue.pending[i+1:]...)
		}
	}
	d.changed.Broadcast()
}

// submit is every enqueue of the fake driver.
func (d *device) submit(queue Native, number int, barrier, all bool, waits []Native, want bool) Native {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.queues[queue]
	if q == nil {
		d.problem("no native queue %d", queue)
		return 0
	}
	c := &fakeCommand{queue: q, number: number, barrier: barrier, all: all, event: &fakeEvent{status: 3, owned: want}}
	for _, w := range waits {
		e := d.events[w]
		if e == nil || e.released {
			d.problem("command %d waits for native event %d, which is not there", number, w)
			continue
		}
		c.waits = append(c.waits, e)
	}
	q.pending = append(q.pending, c)
	d.changed.Broadcast()
	if !want {
		return 0
	}
	d.last++
	c.event.native = d.last
	d.events[d.last] = c.event
	return d.last
}

// The engine's Driver.

func (d *device) Marker(q Native, barrier bool, waits []Native, want bool) (Native, int32) {
	return d.submit(q, -1, barrier, len(waits) == 0, waits, want), 0
}

func (d *device) Flush(Native) {}

func (d *device) Finish(queue Native) int32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.queues[queue]
	if q == nil {
		d.problem("finish of native queue %d, which is not there", queue)
		return 0
	}
	for before := append([]*fakeCommand(nil), q.pending...); len(before) > 0 && !d.stop; {
		if !slices.Contains(q.pending, before[0]) {
			before = before[1:]
			continue
		}
		d.changed.Wait()
		if d.queues[queue] == nil {
			d.problem("native queue %d went in the middle of a finish", queue)
			return 0
		}
	}
	return 0
}

func (d *device) Statuses(events []Native, status []int32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, n := range events {
		e := d.events[n]
		if e == nil || e.released {
			d.problem("status of native event %d, which is not there", n)
			status[i] = -1000
			continue
		}
		status[i] = e.status
	}
}

func (d *device) Wait(n Native) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.events[n]
	if e == nil || e.released {
		d.problem("wait for native event %d, which is not there", n)
		return
	}
	for e.status > 0 && !d.stop {
		d.changed.Wait()
		if e.released {
			d.problem("native event %d was released under a waiter", n)
			return
		}
	}
}

func (d *device) Profile(n Native) ([5]uint64, bool) {
	return [5]uint64{uint64(n), 2, 3, 4, 5}, true
}

func (d *device) Release(events []Native) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range events {
		e := d.events[n]
		if e == nil || e.released {
			d.problem("release of native event %d, which is not there", n)
			continue
		}
		e.released = true
	}
}

// held counts native events that the engine has not released.
func (d *device) held() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, e := range d.events {
		if !e.released {
			n++
		}
	}
	return n
}
