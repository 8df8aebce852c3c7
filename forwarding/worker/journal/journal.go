// Package journal notes what a worker was told to do, command by command, for who looks at it from outside: what each
// queue has in flight, what ended last, where the time went, and which calls of the driver are under way.
//
// It is read by a thread that never calls the driver, while other threads may hang in one: so nothing here is guarded
// by a lock that is held through such a call.
//
// Times come from a clock that the session's reader sets now and then (Tick): to ask for the time at each command
// would cost more than to note it. Bounded: each queue notes so many commands that have not ended, and counts the rest.
//
// Trust: kernels' names are the program's. Locks: Journal.mu is a leaf. No goroutines.
package journal

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tendril/forwarding/clwire"
)

// Bounds of what is noted and told.
const (
	leastRing  = 64   // entries of a queue's ring
	mostRing   = 1024 // its ring grows to this where so many commands have not ended
	mostNames  = 4096 // kernels that are told apart
	nameBytes  = 96   // of a kernel's name
	mostFlying = 64   // commands in flight that Look gives
	mostLast   = 32   // ended ones
	mostSums   = 32
	mostCalls  = 16

	leastCall = int64(10 * time.Millisecond) // a shorter call of the driver is not worth telling
)

// Label says what a command is.
type Label struct {
	Type   clwire.Type
	Kernel uint32 // from Journal.Kernel; 0: none
}

// state of an entry.
const (
	queued uint8 = iota // the worker holds it
	given               // the driver has it, or is being given it
	ended
)

// entry is one command. Times are in ns since the journal's origin.
type entry struct {
	number uint64 // in its queue, from 1 on; 0: there is none
	taken  int64
	began  int64 // when the driver was given it, or taken
	until  int64 // once ended
	took   int64 // the same
	label  Label
	status int32 // once ended
	state  uint8
}

// Queue is the journal of one command queue. A nil one notes nothing.
type Queue struct {
	j      *Journal // immutable
	id     uint64
	device uint32
	order  bool // in order: what comes before an end has ended

	// guarded by Journal.mu
	ring  []entry
	taken uint64 // number of the last command
	first uint64 // in order: the lowest number that has not ended
	idle  int64  // the end of the last that ended

	calling atomic.Uint64 // number of the command that the driver is being given; 0: none
	since   atomic.Int64  // when that call began
}

// sum is how many commands of a label there were, and how long they took.
type sum struct {
	count  uint64
	failed uint64
	took   int64 // ns
}

// Journal is one session's. Make it with New.
type Journal struct {
	origin time.Time
	clock  atomic.Int64 // ns since origin
	doing  atomic.Uint32

	mu      sync.Mutex // guards the rest; leaf
	queues  map[uint64]*Queue
	names   []string // of kernels, by number - 1
	numbers map[string]uint32
	kernels []sum               // by number
	types   map[clwire.Type]sum // of commands without a kernel
	calls   map[uint64]call     // of the driver, under way
	last    uint64              // number of the last call
}

// call is one call of the driver.
type call struct {
	what  string
	since int64
}

// New makes an empty journal.
func New() *Journal {
	return &Journal{origin: time.Now(), queues: map[uint64]*Queue{}, numbers: map[string]uint32{},
		kernels: make([]sum, 1), types: map[clwire.Type]sum{}, calls: map[uint64]call{}}
}

// Tick sets the clock.
func (j *Journal) Tick(now time.Time) { j.clock.Store(int64(now.Sub(j.origin))) }

// Now asks for the time and sets the clock.
func (j *Journal) Now() int64 {
	now := int64(time.Since(j.origin))
	j.clock.Store(now)
	return now
}

// What the reader does, besides records of a type.
const (
	Sleeping = 0       // nothing: it waits for the client
	Polling  = 1 << 16 // it asks the driver what has ended
)

// Doing notes what the reader does from now on: a record of a type, Sleeping or Polling.
func (j *Journal) Doing(what uint32) { j.doing.Store(what) }

// Call notes a call of the driver that may take long. The caller calls the function that comes back at its end.
func (j *Journal) Call(what string) (done func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.last++
	number := j.last
	j.calls[number] = call{what, j.Now()}
	return func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		delete(j.calls, number)
	}
}

// Kernel gives the number of a kernel's name.
func (j *Journal) Kernel(name string) uint32 {
	if len(name) > nameBytes {
		name = name[:nameBytes] + "…"
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if n := j.numbers[name]; n != 0 || len(j.names) >= mostNames {
		return n
	}
	j.names = append(j.names, name)
	j.kernels = append(j.kernels, sum{})
	n := uint32(len(j.names))
	j.numbers[name] = n
	return n
}

// Queue begins the journal of a queue.
func (j *Journal) Queue(id uint64, device uint32, inOrder bool) *Queue {
	j.mu.Lock()
	defer j.mu.Unlock()
	q := &Queue{j: j, id: id, device: device, order: inOrder, first: 1}
	j.queues[id] = q
	return q
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

// Take notes a command that the worker holds, and gives its number.
func (q *Queue) Take(l Label) uint64 { return q.take(l, queued) }

// Begin is Take and Give.
func (q *Queue) Begin(l Label) uint64 { return q.take(l, given) }

func (q *Queue) take(l Label, state uint8) uint64 {
	if q == nil {
		return 0
	}
	now := q.j.clock.Load()
	q.j.mu.Lock()
	q.taken++
	n := q.taken
	if e := q.room(); e != nil {
		*e = entry{number: n, taken: now, began: now, label: l, state: state}
	}
	q.j.mu.Unlock()
	if state == given {
		q.since.Store(now)
		q.calling.Store(n)
	}
	return n
}

// room is where the last command's entry goes; nil: there is none, since so many have not ended. j.mu is held.
func (q *Queue) room() *entry {
	if q.ring == nil {
		q.ring = make([]entry, leastRing)
	}
	for {
		e := &q.ring[q.taken%uint64(len(q.ring))]
		if e.state == ended || e.number == 0 {
			return e
		}
		if len(q.ring) >= mostRing {
			return nil
		}
		wider := make([]entry, 2*len(q.ring))
		for _, e := range q.ring {
			if e.number != 0 {
				wider[e.number%uint64(len(wider))] = e
			}
		}
		q.ring = wider
	}
}

// at finds the entry of a command; nil: there is none (any more). j.mu is held.
func (q *Queue) at(number uint64) *entry {
	if q.ring == nil || number == 0 {
		return nil
	}
	if e := &q.ring[number%uint64(len(q.ring))]; e.number == number {
		return e
	}
	return nil
}

// Give notes that the driver is being given a command that was held.
func (q *Queue) Give(number uint64) {
	if q == nil {
		return
	}
	now := q.j.Now()
	q.j.mu.Lock()
	if e := q.at(number); e != nil && e.state == queued {
		e.state, e.began = given, now
	}
	q.j.mu.Unlock()
	q.since.Store(now)
	q.calling.Store(number)
}

// Given notes that the driver has answered.
func (q *Queue) Given() {
	if q == nil {
		return
	}
	q.calling.Store(0)
}

// End notes how a command ended; and, in order, that all before it have; or, through, that the driver has none left of
// those that it was given before.
func (q *Queue) End(number uint64, through bool, status int32) {
	if q == nil {
		return
	}
	now := q.j.Now()
	q.j.mu.Lock()
	defer q.j.mu.Unlock()
	switch {
	case q.order:
		q.endOrdered(number, now, status)
	case through:
		q.endThrough(number, now, status)
	default:
		if e := q.at(number); e != nil && e.state != ended {
			q.close(e, now, now-max(q.idle, e.began), status)
			q.idle = now
		}
	}
}

// Fail notes that a command never ran.
func (q *Queue) Fail(number uint64, status int32) {
	if q == nil {
		return
	}
	now := q.j.Now()
	q.j.mu.Lock()
	defer q.j.mu.Unlock()
	if e := q.at(number); e != nil && e.state != ended {
		q.close(e, now, 0, status)
	}
}

// endOrdered ends all up to a number. Those that are seen to end together share the time since the end before, or since
// the first of them began. j.mu is held.
func (q *Queue) endOrdered(number uint64, now int64, status int32) {
	if number < q.first {
		return
	}
	from := now
	if e := q.at(q.first); e != nil {
		from = e.began
	}
	each := max(now-max(q.idle, from), 0) / int64(number-q.first+1)
	for ; q.first <= number; q.first++ {
		how := int32(0)
		if q.first == number {
			how = status
		}
		e := q.at(q.first)
		if e == nil {
			e = &entry{}
		}
		if e.state != ended { // it failed before it came to its turn
			q.close(e, now, each, how)
		}
	}
	q.idle = now
}

// endThrough is endOrdered for a queue out of order: what the worker holds has not ended. j.mu is held.
func (q *Queue) endThrough(number uint64, now int64, status int32) {
	n, from := int64(0), now
	for i := range q.ring {
		if e := &q.ring[i]; e.state == given && e.number <= number && e.number != 0 {
			n, from = n+1, min(from, e.began)
		}
	}
	for i := range q.ring {
		e := &q.ring[i]
		if e.state != given || e.number > number || e.number == 0 {
			continue
		}
		how := int32(0)
		if e.number == number {
			how = status
		}
		q.close(e, now, (now-max(q.idle, from))/n, how)
	}
	q.idle = max(q.idle, now)
}

// close books an end. j.mu is held.
func (q *Queue) close(e *entry, now, took int64, status int32) {
	e.state, e.until, e.took, e.status = ended, now, max(took, 0), min(status, 0)
	add := func(s *sum) {
		s.count++
		s.took += e.took
		if e.status < 0 {
			s.failed++
		}
	}
	if k := e.label.Kernel; k != 0 {
		add(&q.j.kernels[k])
		return
	}
	s := q.j.types[e.label.Type]
	add(&s)
	q.j.types[e.label.Type] = s
}

func seconds(ns int64) float64 { return time.Duration(max(ns, 0)).Seconds() }

// kind is a command's in words.
func kind(l Label) string { return kindOf(l.Type) }

func kindOf(t clwire.Type) string {
	if t == 0 {
		return "not noted" // there were too many at a time
	}
	return t.String()
}

// name is a kernel's. mu is held.
func (j *Journal) name(kernel uint32) string {
	if kernel == 0 || int(kernel) > len(j.names) {
		return ""
	}
	return j.names[kernel-1]
}

// Look gives what there is to tell. running says of a queue and a command's number what the driver says of it; it is
// asked under the lock and must answer at once. It never waits for the driver.
func (j *Journal) Look(running func(queue, number uint64) bool) clwire.WorkerCommands {
	now := int64(time.Since(j.origin))
	j.mu.Lock()
	defer j.mu.Unlock()
	var told clwire.WorkerCommands
	for _, q := range j.queues {
		j.lookAt(q, now, running, &told)
	}
	slices.SortFunc(told.Flying, func(a, b clwire.CommandFlying) int { return cmp.Compare(b.Seconds, a.Seconds) })
	if over := len(told.Flying) - mostFlying; over > 0 {
		told.Flying, told.More = told.Flying[:mostFlying], told.More+uint64(over)
	}
	slices.SortFunc(told.Last, func(a, b clwire.CommandEnded) int { return cmp.Compare(a.Ago, b.Ago) })
	told.Last = told.Last[:min(len(told.Last), mostLast)]
	j.sumUp(&told)
	j.callsNow(now, &told)
	return told
}

// lookAt adds a queue's commands: mostFlying of the oldest in flight, mostLast of the newest that ended. mu is held.
func (j *Journal) lookAt(q *Queue, now int64, running func(queue, number uint64) bool, told *clwire.WorkerCommands) {
	all := make([]entry, 0, len(q.ring))
	flying := uint64(0)
	for _, e := range q.ring {
		if e.number != 0 {
			all = append(all, e)
		}
		if e.number != 0 && e.state != ended {
			flying++
		}
	}
	slices.SortFunc(all, func(a, b entry) int { return cmp.Compare(a.number, b.number) })
	if q.order { // of so many no more were noted
		told.More += q.taken + 1 - q.first - flying
	}
	calling, n := q.calling.Load(), 0
	for _, e := range all {
		if e.state == ended {
			continue
		}
		if n++; n > mostFlying {
			told.More++
			continue
		}
		x := clwire.CommandFlying{Queue: q.id, Device: q.device, Kind: kind(e.label), Kernel: j.name(e.label.Kernel),
			State: clwire.CommandQueued, Seconds: seconds(now - e.taken)}
		switch {
		case e.state == given && e.number == calling:
			x.State = clwire.CommandGiving
		case e.state == given && (n == 1 && q.order || running(q.id, e.number)):
			x.State = clwire.CommandRunning
		case e.state == given:
			x.State = clwire.CommandSubmitted
		}
		told.Flying = append(told.Flying, x)
	}
	n = 0
	for _, e := range slices.Backward(all) {
		if e.state == ended && n < mostLast {
			n++
			told.Last = append(told.Last, clwire.CommandEnded{Queue: q.id, Device: q.device, Kind: kind(e.label),
				Kernel: j.name(e.label.Kernel), Status: e.status, Seconds: seconds(e.took),
				Ago: seconds(now - e.until)})
		}
	}
}

// sumUp adds where the time went, the most first; what there is no room for goes into one line. mu is held.
func (j *Journal) sumUp(told *clwire.WorkerCommands) {
	add := func(kind, kernel string, s sum) {
		if s.count > 0 {
			told.Sums = append(told.Sums, clwire.CommandSum{Kind: kind, Kernel: kernel, Count: s.count,
				Failed: s.failed, Seconds: seconds(s.took)})
		}
	}
	for n, s := range j.kernels {
		add(clwire.TypeNDRange.String(), j.name(uint32(n)), s)
	}
	for t, s := range j.types {
		add(kindOf(t), "", s)
	}
	slices.SortFunc(told.Sums, func(a, b clwire.CommandSum) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(a.Kernel, b.Kernel))
	})
	if len(told.Sums) > mostSums {
		rest := clwire.CommandSum{Kind: "others"}
		for _, s := range told.Sums[mostSums:] {
			rest.Count, rest.Failed, rest.Seconds = rest.Count+s.Count, rest.Failed+s.Failed, rest.Seconds+s.Seconds
		}
		told.Sums = append(told.Sums[:mostSums], rest)
	}
}

// callsNow adds the calls of the driver that are under way, the oldest first. mu is held.
func (j *Journal) callsNow(now int64, told *clwire.WorkerCommands) {
	for _, c := range j.calls {
		told.Calls = append(told.Calls, clwire.DriverCall{What: c.what, Seconds: seconds(now - c.since)})
	}
	for _, q := range j.queues {
		if n := q.calling.Load(); n != 0 {
			x := clwire.DriverCall{What: "enqueue", Queue: q.id, Seconds: seconds(now - q.since.Load())}
			if e := q.at(n); e != nil {
				x.What = "enqueue " + kind(e.label)
				if name := j.name(e.label.Kernel); name != "" {
					x.What += " " + name
				}
			}
			told.Calls = append(told.Calls, x)
		}
	}
	if doing := j.doing.Load(); doing != Sleeping && doing != Polling {
		told.Calls = append(told.Calls, clwire.DriverCall{What: "record " + clwire.Type(doing).String(),
			Seconds: seconds(now - j.clock.Load())})
	}
	told.Calls = slices.DeleteFunc(told.Calls, func(c clwire.DriverCall) bool { return c.Seconds < seconds(leastCall) })
	slices.SortFunc(told.Calls, func(a, b clwire.DriverCall) int { return cmp.Compare(b.Seconds, a.Seconds) })
	told.Calls = told.Calls[:min(len(told.Calls), mostCalls)]
}
