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

// what is one command in a word. 0: there is none. From the least bit on:
//
//	 2  state
//	 8  type (mostTypes)
//	13  kernel, by its number (mostNames); 0: none
//	14  the low bits of its number in the queue
//	27  when it was taken, in ms since the journal's origin; that begins anew after 37 hours
type what uint64

const (
	lowBits  = 14 // of a command's number
	timeBits = 27

	typeAt   = 2
	kernelAt = typeAt + 8
	lowAt    = kernelAt + 13
	timeAt   = lowAt + lowBits
)

// whatOf makes the word of a command that was taken at a time, in ns.
func whatOf(number uint64, l Label, state uint64, taken int64) what {
	ms := uint64(taken / int64(time.Millisecond))
	x := ms<<timeAt | number&(1<<lowBits-1)<<lowAt | uint64(l.Type%mostTypes)<<typeAt | state
	if l.Kernel != nil {
		x |= l.Kernel.number << kernelAt
	}
	return what(x)
}

func (x what) state() uint64 { return uint64(x) & 3 }

func (x what) in(state uint64) what { return x&^3 | what(state) }

func (x what) kind() clwire.Type { return clwire.Type(x >> typeAt & (mostTypes - 1)) }

func (x what) kernel() uint64 { return uint64(x) >> kernelAt & (1<<(lowAt-kernelAt) - 1) }

func (x what) low() uint64 { return uint64(x) >> lowAt & (1<<lowBits - 1) }

// age is how long ago the command was taken, in ns; 0 for what was taken after now.
func (x what) age(now int64) int64 {
	const all, future = 1 << timeBits, 1 << (timeBits - 4)
	ms := uint64(now/int64(time.Millisecond)) - uint64(x)>>timeAt
	if ms &= all - 1; ms >= all-future {
		return 0
	}
	return int64(ms) * int64(time.Millisecond)
}

// entry is one command. Times are in ns since the journal's origin.
type entry struct {
	what atomic.Uint64
	high atomic.Uint64 // of the number, for which what has no room; it changes only while what is 0

	// of whoever calls Queue's methods
	number       uint64
	taken, began int64 // began of a late one: when the driver was given it
}

// put notes a command.
func (e *entry) put(number uint64, x what, taken int64) {
	if number>>lowBits != e.number>>lowBits {
		e.what.Store(0)
		e.high.Store(number >> lowBits)
	}
	e.number, e.taken = number, taken
	e.what.Store(uint64(x))
}

// read is for who looks, while others go on: the command and its number; 0: none, or one that changes at this moment.
func (e *entry) read() (what, uint64) {
	x := e.what.Load()
	high := e.high.Load()
	if x != e.what.Load() {
		return 0, 0
	}
	return what(x), high<<lowBits | what(x).low()
}

// hasEnded says of an entry of a queue of which all before first have ended whether it is free.
func (e *entry) hasEnded(first uint64) bool {
	x := what(e.what.Load())
	return x == 0 || x.state() == ended || e.number < first
}

// Queue is the journal of one command queue. A nil one notes nothing.
type Queue struct {
	j      *Journal // immutable
	id     uint64
	device uint32
	order  bool // in order: what comes before an end has ended

	first   atomic.Uint64 // all before this number have ended
	missing atomic.Uint64 // number of the last command that was not noted
	calling atomic.Uint64 // number of the held command that the driver is being given; 0: none
	since   atomic.Int64  // when that call began
	ring    atomic.Pointer[[]entry]

	// of whoever calls the methods
	taken  uint64 // number of the last command
	from   uint64 // what first says
	called bool   // calling is not 0
	same   *sum   // of the last commands
	many   uint64 // so many of them are not counted there yet

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
	q.count(nil, 0)
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
	return q.take(l, queued, q.j.clock.Load())
}

// Begin is Take and Give.
func (q *Queue) Begin(l Label) uint64 {
	if q == nil {
		return 0
	}
	if q.j.gave != q.id {
		q.j.gave = q.id
		q.j.giver.Store(q.id)
	}
	return q.take(l, given, q.j.clock.Load())
}

// Done counts a command that needed nobody.
func (q *Queue) Done(l Label) {
	if q != nil {
		q.count(q.j.sumOf(l), 1)
	}
}

func (q *Queue) take(l Label, state uint64, now int64) uint64 {
	n := q.taken + 1
	q.taken = n
	ring := *q.ring.Load()
	i := n & uint64(len(ring)-1)
	if i >= uint64(len(ring)) || !ring[i].hasEnded(q.from) {
		if ring = q.grow(n); ring == nil {
			q.missing.Store(n)
			q.j.types[0].taken.Add(1) // out of order nobody sees its end: it counts as ended
			return n
		}
		i = n & uint64(len(ring)-1)
	}
	ring[i].put(n, whatOf(n, l, state, now), now)
	q.count(q.j.sumOf(l), 1)
	return n
}

// Counted has all commands counted that were noted.
func (q *Queue) Counted() {
	if q != nil {
		q.count(nil, 0)
	}
}

// count counts commands of a sum: those of a run together, when another one follows, an end or a finish.
func (q *Queue) count(s *sum, n uint64) {
	if s != q.same || q.many == mostRun {
		if q.same != nil {
			q.same.taken.Add(q.many)
		}
		q.same, q.many = s, 0
	}
	q.many += n
}

// setFirst notes that all before a number have ended.
func (q *Queue) setFirst(n uint64) {
	q.from = n
	q.first.Store(n)
}

// grow makes room for a command; nil: there is none, since so many have not ended.
func (q *Queue) grow(n uint64) []entry {
	old := *q.ring.Load()
	for size := max(2*len(old), leastRing); size <= mostRing; size *= 2 {
		wider := make([]entry, size)
		for i := range old {
			if e := &old[i]; !e.hasEnded(q.from) {
				to := &wider[e.number%uint64(size)]
				to.put(e.number, what(e.what.Load()), e.taken)
				to.began = e.began
			}
		}
		if wider[n%uint64(size)].hasEnded(q.from) {
			q.ring.Store(&wider)
			return wider
		}
	}
	return nil
}

// at finds the entry of a command that has not ended; nil: there is none (any more).
func (q *Queue) at(number uint64) *entry {
	ring := *q.ring.Load()
	if len(ring) == 0 || number == 0 {
		return nil
	}
	if e := &ring[number%uint64(len(ring))]; e.number == number && !e.hasEnded(q.from) {
		return e
	}
	return nil
}

// to sets an entry's state.
func (e *entry) to(state uint64) { e.what.Store(uint64(what(e.what.Load()).in(state))) }

// Give notes that the driver is being given a command that was held.
func (q *Queue) Give(number uint64) {
	if q == nil {
		return
	}
	now := q.j.clock.Load()
	if e := q.at(number); e != nil && what(e.what.Load()).state() == queued {
		e.began = now
		e.to(late)
	}
	q.since.Store(now)
	q.calling.Store(number)
	q.called = true
}

// Given notes that the driver has answered. Behind Begin the reader does it, by what it does next: see look.giving.
func (q *Queue) Given() {
	if q != nil && q.called {
		q.called = false
		q.calling.Store(0)
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
	q.count(nil, 0)
	q.j.mu.Lock()
	defer q.j.mu.Unlock()
	l := q.j.labelOf(what(e.what.Load()))
	q.j.sumOf(l).failed.Add(1)
	if q.j.watched() {
		q.close(gone{number: number, label: l, until: q.j.clock.Load(), status: min(status, -1)})
	}
}

// End notes how a command ended; and, in order, that all before it have; or, through, that the driver has none left of
// those that it was given before.
func (q *Queue) End(number uint64, through bool, status int32) {
	if q == nil || number < q.from {
		return
	}
	q.count(nil, 0)
	if status < 0 {
		q.failed(number)
	}
	if q.j.watched() {
		q.endTimed(number, through, status)
	}
	switch {
	case q.order:
		q.setFirst(number + 1)
	case through:
		q.endThrough(number)
	case number == q.from:
		q.advance(number + 1)
	default:
		if e := q.at(number); e != nil {
			e.to(ended)
		}
	}
}

// failed counts a command that ran and failed.
func (q *Queue) failed(number uint64) {
	q.j.mu.Lock()
	defer q.j.mu.Unlock()
	if e := q.at(number); e != nil {
		q.j.sumOf(q.j.labelOf(what(e.what.Load()))).failed.Add(1)
	} else if q.order {
		q.j.types[0].failed.Add(1)
	}
}

// upTo goes through what has not ended up to a number, in no order.
func (q *Queue) upTo(number uint64, f func(n uint64, e *entry)) {
	ring, first := *q.ring.Load(), q.from
	if number-first < uint64(len(ring)) {
		for n := first; n <= number; n++ {
			if e := q.at(n); e != nil {
				f(n, e)
			}
		}
		return
	}
	for i := range ring {
		if e := &ring[i]; e.number <= number && !e.hasEnded(first) {
			f(e.number, e)
		}
	}
}

// endThrough ends, out of order, what the driver had up to a number. What the worker holds has not ended.
func (q *Queue) endThrough(number uint64) {
	q.upTo(number, func(_ uint64, e *entry) {
		if what(e.what.Load()).state() != queued {
			e.to(ended)
		}
	})
	q.advance(q.from)
}

// advance sees, out of order, how far all have ended: before first they have.
func (q *Queue) advance(first uint64) {
	for first <= q.taken && q.at(first) == nil {
		first++
	}
	q.setFirst(first)
}

// endTimed is what else there is to an end while times are kept: those that are seen to end together share the time
// since the end before, or since the first of them began.
func (q *Queue) endTimed(number uint64, through bool, status int32) {
	q.j.mu.Lock()
	defer q.j.mu.Unlock()
	now := q.j.clock.Load()
	began, ends := now, make([]gone, 0, 8)
	add := func(n uint64, e *entry) {
		x, since := what(e.what.Load()), e.taken
		switch x.state() {
		case queued:
			if n != number && !q.order {
				return
			}
		case late:
			since = e.began
		}
		began = min(began, since)
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
		count = max(count, number+1-q.from)
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
