package session

import (
	"slices"
	"sync"
	"sync/atomic"
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
type landing struct{ from, to uintptr }

// span is where the program's side of a transfer lies, gaps included.
func (s *hostShape) span() landing {
	at := s.ptr.address
	if !s.rect {
		return landing{at, at + uintptr(s.size)}
	}
	last := s.box.offset(s.region[1]-1, s.region[2]-1) + s.region[0]
	return landing{at + uintptr(s.box.offset(0, 0)), at + uintptr(last)}
}

// add notes a read. The caller takes it back with end.
func (l *landings) add(s *hostShape) *landing {
	x := s.span()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, &x)
	l.n.Add(1)
	return &x
}

// end says that nothing of a read comes any more; nil is none.
func (l *landings) end(x *landing) {
	if x == nil {
		return
	}
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

// meet says whether a read that is under way may change what a write is to take.
func (l *landings) meet(s *hostShape) bool {
	if l.n.Load() == 0 {
		return false
	}
	mine := s.span()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.list {
		if x.from < mine.to && mine.from < x.to {
			return true
		}
	}
	return false
}

// settled says whether what a write is to take is there already: no read is about to land in it, and the program holds back
// no command of the context, as it may to fill the memory first.
func (c *command) settled(s *hostShape) bool {
	return c.q.ctx.unwaited.gates.Load() == 0 && !c.d.landings.meet(s)
}

// lands notes that the command brings bytes into the program's memory at its leisure.
func (h *hostWork) lands(d *Driver, s hostShape) {
	if h.blocking {
		return
	}
	x, work, after := d.landings.add(&s), h.work, h.after
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
