// Package journal notes what a worker was told to do, command by command, for who looks at it from outside: what each
// queue has in flight, what ended last, where the time went, and which calls of the driver are under way.
//
// It is read by a thread that never calls the driver, while other threads may hang in one: so nothing here is guarded
// by a lock that is held through such a call.
//
// Nobody pays for a view that nobody looks at: a command costs one atomic store, of a word that has all that a look
// needs of it, without a lock, a name or a look at the clock. An atomic store takes as long as all the rest: so what
// else there is to know is derived from these words, or stored when it changes. Commands are counted always; up to
// mostRun of the last may be missing until an end or a finish. How long they took, and which ended last, is kept from
// the first look on and for a minute after the last (see keptFor).
//
// Times come from a clock that is set now and then (Tick): by the session's reader, by whoever gives the driver what
// was held, and, once somebody has looked, when the driver has said what has ended. Bounded: each queue notes so many
// commands that have not ended, and counts the rest.
//
// Trust: kernels' names are the program's. Calls of Queue's methods must not overlap, for all queues of a journal: the
// engine's lock sees to that. Locks: Journal.mu is a leaf. No goroutines.
package journal

import (
	"sync"
	"sync/atomic"
	"time"

	"tendril/forwarding/clwire"
)

// Bounds of what is noted and told.
const (
	leastRing  = 64   // entries of a queue's ring; a power of two
	mostRing   = 1024 // its ring grows to this where so many commands have not ended
	mostNames  = 4096 // kernels that are told apart
	mostTypes  = 256  // of commands
	mostRun    = 64   // commands of a kind that are counted together
	nameBytes  = 96   // of a kernel's name
	mostFlying = 64   // commands in flight that Look gives
	mostLast   = 32   // ended ones
	mostSums   = 32
	mostCalls  = 16

	leastCall = int64(10 * time.Millisecond) // a shorter call of the driver is not worth telling
	keptFor   = int64(time.Minute)           // times, after somebody looked
)

// Label says what a command is.
type Label struct {
	Type   clwire.Type
	Kernel *Kernel // from Journal.Kernel; nil: none
}

// Kernel is all kernels of a name.
type Kernel struct {
	name   string // immutable
	number uint64 // immutable; from 1 on
	sum    sum
}

// sum is how many commands of a label there were, and how long they took.
type sum struct {
	taken  atomic.Uint64 // of them, some have not ended
	failed atomic.Uint64

	// guarded by Journal.mu
	timed uint64 // how many ended while times were kept
	took  int64  // ns, of those
}

// Journal is one session's. Make it with New.
type Journal struct {
	origin time.Time
	clock  atomic.Int64 // ns since origin
	until  atomic.Int64 // times are kept until then
	doing  atomic.Uint64
	giver  atomic.Uint64  // number of the queue whose Begin was last
	types  [mostTypes]sum // of commands without a kernel; 0: of those that were not noted

	mu      sync.Mutex // guards the rest; leaf
	from    int64      // when it was begun to keep times
	queues  map[uint64]*Queue
	numbers map[string]*Kernel
	kernels []*Kernel       // by number - 1
	calls   map[uint64]call // of the driver, under way
	last    uint64          // number of the last call

	did  uint32 // what doing says; the reader's
	gave uint64 // what giver says; who calls Queue's methods has it
}

// call is one call of the driver.
type call struct {
	what  string
	since int64
}

// New makes an empty journal.
func New() *Journal {
	return &Journal{origin: time.Now(), queues: map[uint64]*Queue{}, numbers: map[string]*Kernel{},
		calls: map[uint64]call{}}
}

// Tick sets the clock.
func (j *Journal) Tick(now time.Time) { j.clock.Store(int64(now.Sub(j.origin))) }

// watched says whether times are kept: somebody looked a while ago.
func (j *Journal) watched() bool { return j.until.Load() > j.clock.Load() }

// What the reader does, besides records of a type.
const (
	Sleeping = 0       // nothing: it waits for the client
	Polling  = 1 << 16 // it asks the driver what has ended
)

// Doing notes what the reader does from now on: a record of a type, Sleeping or Polling. The reader alone calls it.
func (j *Journal) Doing(what uint32) {
	if what != j.did {
		j.did = what
		j.doing.Store(uint64(what))
	}
}

// Call notes a call of the driver that may take long. The caller calls the function that comes back at its end.
func (j *Journal) Call(what string) (done func()) {
	now := time.Since(j.origin)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.last++
	number := j.last
	j.calls[number] = call{what, int64(now)}
	return func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		delete(j.calls, number)
	}
}

// Kernel gives the kernel of a name; nil: there are too many.
func (j *Journal) Kernel(name string) *Kernel {
	if len(name) > nameBytes {
		name = name[:nameBytes] + "…"
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if k := j.numbers[name]; k != nil || len(j.kernels) >= mostNames {
		return k
	}
	k := &Kernel{name: name, number: uint64(len(j.kernels) + 1)}
	j.kernels = append(j.kernels, k)
	j.numbers[name] = k
	return k
}

// Queue begins the journal of a queue.
func (j *Journal) Queue(id uint64, device uint32, inOrder bool) *Queue {
	q := &Queue{j: j, id: id, device: device, order: inOrder}
	q.ring.Store(new([]entry))
	q.setFirst(1)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.queues[id] = q
	return q
}

// sumOf is where a label's commands are counted.
func (j *Journal) sumOf(l Label) *sum {
	if l.Kernel != nil {
		return &l.Kernel.sum
	}
	return &j.types[l.Type%mostTypes]
}

// labelOf is what a what says of its command. mu is held.
func (j *Journal) labelOf(x what) Label {
	l := Label{Type: x.kind()}
	if n := x.kernel(); n > 0 {
		l.Kernel = j.kernels[n-1]
	}
	return l
}
