package journal

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"tendril/forwarding/clwire"
)

// state of a command.
const (
	queued uint64 = iota // the worker holds it
	given                // the driver has it, or is being given it
	late                 // the same, and it was queued before
	ended
)

// what is one command in a word: 32 bits of its number in the queue, 14 of its kernel's, 16 of its type, 2 of its
// state. 0: there is none.
type what uint64

func whatOf(number uint64, l Label, state uint64) what {
	x := number<<32 | uint64(l.Type)<<2 | state
	if l.Kernel != nil {
		x |= l.Kernel.number << 18
	}
	return what(x)
}

func (x what) state() uint64 { return uint64(x) & 3 }

func (x what) in(state uint64) what { return x&^3 | what(state) }

func (x what) kind() clwire.Type { return clwire.Type(x >> 2) }

func (x what) kernel() uint64 { return uint64(x) >> 18 & (1<<14 - 1) }

// number is the command's, of a queue that has come so far.
func (x what) number(taken uint64) uint64 {
	return taken - uint64(int64(int32(uint32(taken)-uint32(x>>32))))
}

// entry is one command. Times are in ns since the journal's origin.
type entry struct {
	what  word
	taken word
	began word // of a late one: when the driver was given it
}

// Queue is the journal of one command queue. A nil one notes nothing.
type Queue struct {
	j      *Journal // immutable
	id     uint64
	device uint32
	order  bool // in order: what comes before an end has ended

	taken   word // number of the last command
	first   word // all before this number have ended
	calling word // number of the command that the driver is being given; 0: none
	since   word // when that call began
	ring    atomic.Pointer[[]entry]

	// guarded by Journal.mu
	last   []gone // that ended while times were kept
	oldest int    // of last, once it is full
	idle   int64  // the end of the last of these
}

// gone is a command that has ended.
type gone struct {
	number      uint64
	label       Label
	until, took int64
	status      int32
}

// Drop ends the journal of a queue. What its commands took stays.
func (q *Queue) Drop() {
	if q == nil {
		return
	}
	q.j.mu.Lock()
	defer q.j.mu.Unlock()
	if q.j.queues[q.id] == q { // else another queue has the number
		delete(q.j.queues, q.id)
	}
}

// Tick sets the clock, and is for who carries out many commands that were held.
func (q *Queue) Tick() {
	if q != nil {
		q.j.Tick(time.Now())
	}
}

// Look is Tick if times are kept: commands are about to be seen to end.
func (q *Queue) Look() {
	if q != nil && q.j.watched() {
		q.j.Tick(time.Now())
	}
}

// Take notes a command that the worker holds, and gives its number.
func (q *Queue) Take(l Label) uint64 {
	if q == nil {
		return 0
	}
	return q.take(l, queued, uint64(q.j.clock.Load()))
}

// Begin is Take and Give.
func (q *Queue) Begin(l Label) uint64 {
	if q == nil {
		return 0
	}
	now := uint64(q.j.clock.Load())
	n := q.take(l, given, now)
	q.since.set(now)
	q.calling.set(n)
	return n
}

// Done counts a command that needed nobody.
func (q *Queue) Done(l Label) {
	if q != nil {
		q.j.sumOf(l).take()
	}
}

func (q *Queue) take(l Label, state, now uint64) uint64 {
	n := q.taken.get() + 1
	q.taken.set(n)
	ring := *q.ring.Load()
	i := n & uint64(len(ring)-1)
	if i >= uint64(len(ring)) || !q.hasEnded(what(ring[i].what.get()), n) {
		if ring = q.grow(n); ring == nil {
			q.j.types[0].take() // out of order nobody sees its end: it counts as ended
			return n
		}
		i = n & uint64(len(ring)-1)
	}
	e := &ring[i]
	e.taken.set(now)
	e.what.set(uint64(whatOf(n, l, state)))
	q.j.sumOf(l).take()
	return n
}

// hasEnded says of an entry whether it is free.
func (q *Queue) hasEnded(x what, taken uint64) bool {
	return x.state() == ended || x == 0 || x.number(taken) < q.first.get()
}

// grow makes room for a command; nil: there is none, since so many have not ended.
func (q *Queue) grow(n uint64) []entry {
	old := *q.ring.Load()
	for size := max(2*len(old), leastRing); size <= mostRing; size *= 2 {
		wider := make([]entry, size)
		for i := range old {
			e := &old[i]
			if x := what(e.what.get()); !q.hasEnded(x, n) {
				to := &wider[x.number(n)%uint64(size)]
				to.taken.set(e.taken.get())
				to.began.set(e.began.get())
				to.what.set(uint64(x))
			}
		}
		if q.hasEnded(what(wider[n%uint64(size)].what.get()), n) {
			q.ring.Store(&wider)
			return wider
		}
	}
	return nil
}

// at finds the entry of a command that has not ended; nil: there is none (any more).
func (q *Queue) at(number uint64) *entry {
	ring := *q.ring.Load()
	if len(ring) == 0 || number == 0 || number < q.first.get() {
		return nil
	}
	e := &ring[number%uint64(len(ring))]
	if x := what(e.what.get()); x == 0 || x.state() == ended || uint32(x>>32) != uint32(number) {
		return nil
	}
	return e
}

// to sets an entry's state.
func (e *entry) to(state uint64) { e.what.set(uint64(what(e.what.get()).in(state))) }

// Give notes that the driver is being given a command that was held.
func (q *Queue) Give(number uint64) {
	if q == nil {
		return
	}
	now := uint64(q.j.clock.Load())
	if e := q.at(number); e != nil && what(e.what.get()).state() == queued {
		e.began.set(now)
		e.to(late)
	}
	q.since.set(now)
	q.calling.set(number)
}

// Given notes that the driver has answered.
func (q *Queue) Given() {
	if q != nil {
		q.calling.set(0)
	}
}

// Fail notes that a command never ran.
func (q *Queue) Fail(number uint64, status int32) {
	if q == nil {
		return
	}
	e := q.at(number)
	if e == nil {
		return
	}
	e.to(ended)
	q.j.mu.Lock()
	defer q.j.mu.Unlock()
	l := q.j.labelOf(what(e.what.get()))
	q.j.sumOf(l).fail()
	if q.j.watched() {
		q.close(gone{number: number, label: l, until: q.j.clock.Load(), status: min(status, -1)})
	}
}

// End notes how a command ended; and, in order, that all before it have; or, through, that the driver has none left of
// those that it was given before.
func (q *Queue) End(number uint64, through bool, status int32) {
	if q == nil || number < q.first.get() {
		return
	}
	if status < 0 {
		q.failed(number)
	}
	if q.j.watched() {
		q.endTimed(number, through, status)
	}
	switch {
	case q.order:
		q.first.set(number + 1)
	case through:
		q.endThrough(number)
	default:
		if e := q.at(number); e != nil {
			e.to(ended)
		}
		if number == q.first.get() {
			q.advance()
		}
	}
}

// failed counts a command that ran and failed.
func (q *Queue) failed(number uint64) {
	q.j.mu.Lock()
	defer q.j.mu.Unlock()
	if e := q.at(number); e != nil {
		q.j.sumOf(q.j.labelOf(what(e.what.get()))).fail()
	} else if q.order {
		q.j.types[0].fail()
	}
}

// upTo goes through what has not ended up to a number, in no order.
func (q *Queue) upTo(number uint64, f func(n uint64, e *entry)) {
	ring, first := *q.ring.Load(), q.first.get()
	if number-first < uint64(len(ring)) {
		for n := first; n <= number; n++ {
			if e := q.at(n); e != nil {
				f(n, e)
			}
		}
		return
	}
	taken := q.taken.get()
	for i := range ring {
		x := what(ring[i].what.get())
		if n := x.number(taken); n <= number && !q.hasEnded(x, taken) {
			f(n, &ring[i])
		}
	}
}

// endThrough ends, out of order, what the driver had up to a number. What the worker holds has not ended.
func (q *Queue) endThrough(number uint64) {
	q.upTo(number, func(_ uint64, e *entry) {
		if what(e.what.get()).state() != queued {
			e.to(ended)
		}
	})
	q.advance()
}

// advance sees, out of order, how far all have ended.
func (q *Queue) advance() {
	first, taken := q.first.get(), q.taken.get()
	for first <= taken && q.at(first) == nil {
		first++
	}
	q.first.set(first)
}

// endTimed is what else there is to an end while times are kept: those that are seen to end together share the time
// since the end before, or since the first of them began.
func (q *Queue) endTimed(number uint64, through bool, status int32) {
	q.j.mu.Lock()
	defer q.j.mu.Unlock()
	now := q.j.clock.Load()
	began, ends := now, make([]gone, 0, 8)
	add := func(n uint64, e *entry) {
		x, since := what(e.what.get()), e.taken.get()
		switch x.state() {
		case queued:
			if n != number && !q.order {
				return
			}
		case late:
			since = e.began.get()
		}
		began = min(began, int64(since))
		end := gone{number: n, label: q.j.labelOf(x), until: now}
		if n == number {
			end.status = min(status, 0)
		}
		ends = append(ends, end)
	}
	if q.order || through {
		q.upTo(number, add)
	} else if e := q.at(number); e != nil {
		add(number, e)
	}
	count := uint64(len(ends))
	if q.order { // some may not have been noted
		count = max(count, number+1-q.first.get())
	}
	if count == 0 {
		return
	}
	each := max(now-max(q.idle, q.j.from, began), 0) / int64(count)
	slices.SortFunc(ends, func(a, b gone) int { return cmp.Compare(a.number, b.number) })
	for _, end := range ends {
		end.took = each
		q.close(end)
	}
	rest := count - uint64(len(ends))
	q.j.types[0].timed += rest
	q.j.types[0].took += int64(rest) * each
	q.idle = now
}

// close books an end. j.mu is held.
func (q *Queue) close(g gone) {
	s := q.j.sumOf(g.label)
	s.timed++
	s.took += g.took
	if len(q.last) < mostLast {
		q.last = append(q.last, g)
		return
	}
	q.last[q.oldest] = g
	q.oldest = (q.oldest + 1) % mostLast
}
