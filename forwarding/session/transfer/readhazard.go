package transfer

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ReadHazards are the reads under way into the program's memory that no call waits for. A write of bytes that a read is
// still to bring takes them when its turn has come, and not when it is enqueued: a program may read a halo from one
// buffer and write it to another with an event between the two calls and no wait (§5.2.2 asks only that the program
// leaves the memory alone).
type ReadHazards struct {
	n    atomic.Int32  // of list
	mu   sync.Mutex    // leaf
	list []*ReadHazard // oldest first, as most end
}

// ReadHazard is one of them: addresses of the program's, to not included.
type ReadHazard struct {
	from, to uintptr
	worker   Worker
	over     atomic.Bool
}

// Worker is whose device a read is of.
type Worker interface {
	Dead() bool
	Away() bool // a connection to it is lost, and is being replaced
	Poll()      // takes what the worker has said
}

// Add notes a read of a worker's into a side at an address. The caller takes it back with End.
func (h *ReadHazards) Add(address uintptr, s *Side, w Worker) *ReadHazard {
	from, to := s.Span()
	x := &ReadHazard{from: address + uintptr(from), to: address + uintptr(to), worker: w}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.list = append(h.list, x)
	h.n.Add(1)
	return x
}

// End says that nothing of a read comes any more; nil is none.
func (h *ReadHazards) End(x *ReadHazard) {
	if x == nil {
		return
	}
	x.over.Store(true)
	h.mu.Lock()
	defer h.mu.Unlock()
	if i := slices.Index(h.list, x); i == 0 {
		h.list = h.list[1:]
		h.n.Add(-1)
	} else if i > 0 {
		h.list = slices.Delete(h.list, i, i+1)
		h.n.Add(-1)
	}
}

// Len is how many there are.
func (h *ReadHazards) Len() int { return int(h.n.Load()) }

// Meeting gives the reads under way that may change what a write of a side at an address is to take.
func (h *ReadHazards) Meeting(address uintptr, s *Side) (found []*ReadHazard) {
	if h.n.Load() == 0 {
		return nil
	}
	first, last := s.Span()
	from, to := address+uintptr(first), address+uintptr(last)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, x := range h.list {
		if x.from < to && from < x.to {
			found = append(found, x)
		}
	}
	return found
}

// hazardPatience bounds how long a write whose turn has come waits for reads of another worker's. The word of its own
// worker that a read has ended may be quicker than the bytes, by as long as a slow line takes for them; but if the
// program has the read wait for what comes after the write, it would wait for ever. While the connection of the read's
// worker is lost, the bytes stay there. So that time does not count. The rest counts together, however often the
// connection is lost, and for all reads of one worker.
const hazardPatience = 30 * time.Second

// AwaitOthers waits for reads of workers other than w: w's own word that a write has its turn says nothing of them.
// When w is dead nothing is left to wait for. The times are sums of pauses as they were meant: while the process or the
// machine stands still, no patience goes by.
func AwaitOthers(reads []*ReadHazard, w Worker) {
	if len(reads) == 0 {
		return
	}
	var waited time.Duration
	reached := map[Worker]time.Duration{} // for how long each was waited for while its connection was there
	for len(reads) > 0 && !w.Dead() {
		x := reads[0]
		if x.worker == w || x.over.Load() || x.worker.Dead() || reached[x.worker] >= hazardPatience {
			reads = reads[1:]
			continue
		}
		away := x.worker.Away()
		if x.worker.Poll(); x.over.Load() {
			continue
		}
		// A sixteenth of what was waited: looking less often makes a wait longer by 6 % at most, or 50 µs.
		pause := min(max(50*time.Microsecond, waited/16), 10*time.Millisecond)
		time.Sleep(pause)
		if waited += pause; !away {
			reached[x.worker] += pause
		}
	}
}
