package session

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// landings are the reads under way into the program's memory that no call waits for. A write whose bytes are still to land
// takes them when its turn has come, and not when it is enqueued: a program may read a halo from one buffer and write it to
// another with an event between the two calls and no wait (§5.2.2 asks only that the program leaves the memory alone).
type landings struct {
	n    atomic.Int32 // of list
	mu   sync.Mutex   // leaf
	list []*landing   // oldest first, as most end
}

// landing is one of them: addresses of the program's, to not included.
type landing struct {
	from, to uintptr
	w        *worker
	over     completion
}

// span is where the program's side of a transfer lies, gaps included.
func (s *hostShape) span() (from, to uintptr) {
	at := s.ptr.address
	if !s.rect {
		return at, at + uintptr(s.size)
	}
	last := s.box.offset(s.region[1]-1, s.region[2]-1) + s.region[0]
	return at + uintptr(s.box.offset(0, 0)), at + uintptr(last)
}

// add notes a read of a worker's. The caller takes it back with end.
func (l *landings) add(s *hostShape, w *worker) *landing {
	x := &landing{w: w}
	x.from, x.to = s.span()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, x)
	l.n.Add(1)
	return x
}

// end says that nothing of a read comes any more; nil is none.
func (l *landings) end(x *landing) {
	if x == nil {
		return
	}
	x.over.done.Store(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.list, x); i == 0 {
		l.list = l.list[1:]
		l.n.Add(-1)
	} else if i > 0 {
		l.list = slices.Delete(l.list, i, i+1)
		l.n.Add(-1)
	}
}

// meeting gives the reads under way that may change what a write is to take.
func (l *landings) meeting(s *hostShape) (found []*landing) {
	if l.n.Load() == 0 {
		return nil
	}
	from, to := s.span()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.list {
		if x.from < to && from < x.to {
			found = append(found, x)
		}
	}
	return found
}

// farPatience bounds how long a write whose turn has come waits for a read of another worker's. Its own worker's word that
// the read has ended may be quicker than the bytes; but if the program has the read wait for what comes after the write, it
// would wait for ever.
const farPatience = time.Second

// awaitOthers waits for reads that a worker's word says nothing of.
func awaitOthers(reads []*landing, w *worker) {
	for end := time.Now().Add(farPatience); len(reads) > 0 && time.Now().Before(end); {
		x := reads[0]
		if x.w == w || x.over.done.Load() || x.w.dead.Load() {
			reads = reads[1:]
			continue
		}
		if x.w.reader.poll(); !x.over.done.Load() {
			time.Sleep(50 * time.Microsecond)
		}
	}
}

// settled says whether what a write is to take is there already: no read is about to land in it, and the program holds back
// no command of the context, as it may to fill the memory first.
func (c *command) settled(s *hostShape) bool {
	return c.q.ctx.unwaited.gates.Load() == 0 && c.d.landings.meeting(s) == nil
}

// lands notes that the command brings bytes into the program's memory at its leisure.
func (h *hostWork) lands(d *Driver, s hostShape) {
	if h.blocking {
		return
	}
	x, work, after := d.landings.add(&s, h.q.w), h.work, h.after
	h.work = func() Status {
		defer d.landings.end(x) // before the worker hears of it
		return work()
	}
	h.after = func() {
		d.landings.end(x)
		if after != nil {
			after()
		}
	}
}

// takes has the command take bytes from where reads of other workers may be about to land.
func (h *hostWork) takes(d *Driver, s hostShape) {
	reads := d.landings.meeting(&s)
	if reads == nil {
		return
	}
	work := h.work
	h.work = func() Status {
		awaitOthers(reads, h.q.w)
		return work()
	}
}
