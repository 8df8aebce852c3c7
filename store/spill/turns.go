package spill

import (
	"sync"

	"tendril/store/object"
)

// turns shares the disk: at most Parallel transfers run at once. Where more want to, the owners (tenants) get turns
// one after the other, however many transfers each asked for. A long transfer gives its turn up after each chunk when
// others wait.
type turns struct {
	mu    sync.Mutex
	free  int
	lines map[string]*line // of those who wait
	ring  []*line          // the same, the next one first
}

// line is who waits on one owner's behalf.
type line struct {
	owner string
	wait  []chan struct{}
}

func newTurns(n int) *turns { return &turns{free: n, lines: make(map[string]*line)} }

// take waits for a turn. give has to follow.
func (t *turns) take(owner string) {
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return
	}
	mine := t.queue(owner, false)
	t.mu.Unlock()
	<-mine
}

// queue notes somebody who waits, before or behind the owner's others. mu is held.
func (t *turns) queue(owner string, first bool) chan struct{} {
	l := t.lines[owner]
	if l == nil {
		l = &line{owner: owner}
		t.lines[owner] = l
		t.ring = append(t.ring, l)
	}
	mine := make(chan struct{})
	if l.wait = append(l.wait, mine); first {
		copy(l.wait[1:], l.wait)
		l.wait[0] = mine
	}
	return mine
}

// give hands a turn on.
func (t *turns) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next()
}

// next gives a turn to the line whose time has come. mu is held.
func (t *turns) next() {
	if len(t.ring) == 0 {
		t.free++
		return
	}
	l := t.ring[0]
	t.ring = t.ring[1:]
	close(l.wait[0])
	if l.wait = l.wait[1:]; len(l.wait) > 0 {
		t.ring = append(t.ring, l)
	} else {
		delete(t.lines, l.owner)
	}
}

// yield gives a turn up where others than its owner wait, and waits for another one: before the owner's transfers
// that have not begun.
func (t *turns) yield(owner string) {
	t.mu.Lock()
	if len(t.ring) == 0 || len(t.ring) == 1 && t.ring[0].owner == owner {
		t.mu.Unlock()
		return
	}
	mine := t.queue(owner, true)
	if t.ring[0].owner == owner {
		t.ring = append(t.ring[1:], t.ring[0])
	}
	t.next()
	t.mu.Unlock()
	<-mine
}

// Waiting gives how many transfers wait for their turn.
func (d *Dir) Waiting() (n int) {
	d.turns.mu.Lock()
	defer d.turns.mu.Unlock()
	for _, l := range d.turns.lines {
		n += len(l.wait)
	}
	return n
}

// Share is a Dir as one owner uses it, whose transfers wait for his turns alone. The zero Share is none.
type Share struct {
	d     *Dir
	owner string
}

// For gives an owner's share; all that name the same owner have one together.
func (d *Dir) For(owner string) Share { return Share{d, owner} }

// between asks stop, which may be nil, between chunks, where a transfer can also give its turn up.
func (s Share) between(stop func() bool) func() bool {
	begun := false
	return func() bool {
		if begun {
			s.d.turns.yield(s.owner)
		}
		begun = true
		return stop != nil && stop()
	}
}

// Write is Dir.Write.
func (s Share) Write(r *Record, src Source, durable bool, stop func() bool) error {
	if err := s.d.reserve(r.SizeBytes); err != nil {
		return err
	}
	s.d.turns.take(s.owner)
	defer s.d.turns.give()
	return s.d.write(r, src, durable, s.between(stop))
}

// Update is Dir.Update.
func (s Share) Update(r *Record) error {
	s.d.turns.take(s.owner)
	defer s.d.turns.give()
	return s.d.update(r)
}

// Restore is Dir.Restore.
func (s Share) Restore(id object.ID, dst Source, sums []byte, stop func() bool) error {
	s.d.turns.take(s.owner)
	defer s.d.turns.give()
	return s.d.restore(id, dst, sums, s.between(stop))
}

// ReadRange is Dir.ReadRange.
func (s Share) ReadRange(id object.ID, off, n uint64) ([]byte, error) {
	s.d.turns.take(s.owner)
	defer s.d.turns.give()
	return s.d.readRange(id, off, n, s.between(nil))
}
