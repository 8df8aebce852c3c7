package store

import (
	"container/heap"
	"errors"
	"fmt"
	"strings"
	"time"

	"tendril/store/object"
)

// A get that waits is a Pending: a record and no goroutine, so that a hundred thousand of them cost their tenant some
// memory and the others nothing. What it waits for finds it by its name or id; ending it costs the same whatever else
// waits. All that is to be done for a tenant's Pendings is done by the tenant's attendant, one after the other
// (attendant.go): however many of them end at one moment, one goroutine of that tenant runs.

// waitKey is what a Pending waits for: an id, or a name, as its own tenant has it, or another tenant's, in
// waitKey.whose. That tenant may not be here yet, so it stands by name.
type waitKey struct {
	tenant *tenant // nil: another tenant's
	id     object.ID
	whose  string
	name   string
}

// waitSet has the Pendings of one tenant that wait for one key. Guarded by Store.mu.
type waitSet struct {
	key    waitKey
	reader *tenant
	all    []waiter
	woken  bool // out of the tables: its members are looked at soon
}

// waiter is a Pending in a waitSet: sets[i] and at[i] of it are that set and the place there.
type waiter struct {
	p *Pending
	i int
}

// Pending is a wait for some objects, all of which are to be sealed.
type Pending struct {
	c     *Conn
	until time.Time // zero: for ever
	then  Then      // called once by the attendant

	// Guarded by Store.mu.
	wanted []Wanted // what is not there yet, the one that it waits for first
	sets   [2]*waitSet
	at     [2]int
	due    int   // place in tenant.deadlines; −1: not there
	why    error // what is missing
	over   bool
}

// pendingHeap has the Pendings of a tenant that have a deadline, the next one first.
type pendingHeap []*Pending

func (h pendingHeap) Len() int           { return len(h) }
func (h pendingHeap) Less(i, j int) bool { return h[i].until.Before(h[j].until) }
func (h pendingHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].due, h[j].due = i, j
}

// Push implements heap.Interface.
func (h *pendingHeap) Push(x any) {
	p := x.(*Pending)
	p.due = len(*h)
	*h = append(*h, p)
}

// Pop implements heap.Interface.
func (h *pendingHeap) Pop() any {
	last := len(*h) - 1
	p := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	p.due = -1
	return p
}

// Then is told how a wait went: nil, or what was wrong. more: that of another wait of the same Conn follows at once, so
// that both may be answered together.
type Then func(err error, more bool)

// Wanted is one object that is waited for: by name where ID is zero.
type Wanted struct {
	ID   object.ID
	Name string
}

// Later waits for objects without a goroutine: then is called once, with nil when all are sealed (or on disk), with
// ErrTimeout at until (zero: never), or with what else is wrong. It is called by the tenant's attendant, without a
// lock, and keeps the tenant's other waits waiting while it runs. Later gives nil, and then is not called, where there
// is nothing to wait for: the error says why. It keeps list, of which there is at least one. The caller must Cancel
// before the connection's Close.
func (c *Conn) Later(list []Wanted, until time.Time, then Then) (*Pending, error) {
	s := c.s
	s.mu.Lock()
	defer s.unlock()
	p := &Pending{c: c, until: until, then: then, wanted: list, due: -1}
	switch over, err := p.advance(); {
	case over:
		return nil, err
	case s.closed:
		return nil, errStoreClosed
	}
	s.pending++
	if !until.IsZero() {
		heap.Push(&c.tenant.deadlines, p)
		if p.due == 0 {
			s.setAlarm(c.tenant)
		}
	}
	return p, nil
}

// Cancel ends a wait; false where then has been called, or is about to be.
func (p *Pending) Cancel() bool {
	p.c.s.mu.Lock()
	defer p.c.s.mu.Unlock()
	was := p.over
	p.finish()
	return !was
}

// Look has the attendant call then, with nil, whatever is there: the caller found out that there is something else to
// do.
func (p *Pending) Look() {
	s := p.c.s
	s.mu.Lock()
	defer s.unlock()
	if !p.over {
		p.leave()
		p.wanted = nil
		s.lookAgain(p)
	}
}

// pendingStep is how many objects are looked for of one wait before the next one's; the attendant looks at attendWaits
// waits in one hold of the lock.
const pendingStep = 16

// advance looks for what is wanted, as far as one hold of the lock may go, and has p wait for what is missing. over:
// there is nothing to wait for any more. mu is held.
func (p *Pending) advance() (over bool, err error) {
	c := p.c
	if c.closed {
		return true, errConnClosed
	}
	for range pendingStep {
		if len(p.wanted) == 0 {
			return true, nil
		}
		w := p.wanted[0]
		e, err := c.readable(w.ID, w.Name)
		switch {
		case err == nil && e.state != object.Open:
			p.wanted = p.wanted[1:]
			continue
		case err == nil:
			err = e.notSealed()
		case !errors.Is(err, object.ErrNotFound):
			return true, err
		}
		p.why = err
		p.join(w)
		return false, nil
	}
	p.why = fmt.Errorf("%w: %d of the objects were not looked up in time", object.ErrNotFound, len(p.wanted))
	c.s.lookAgain(p)
	return false, nil
}

// join puts p where what it waits for finds it. mu is held.
func (p *Pending) join(w Wanted) {
	c := p.c
	own, other := waitKey{tenant: c.tenant, id: w.ID}, waitKey{id: w.ID}
	foreign := !w.ID.IsZero()
	if w.ID.IsZero() {
		own.name = w.Name
		other.whose, other.name, foreign = strings.Cut(w.Name, "/")
	}
	p.enter(0, c.s.waitSetOf(own, c.tenant))
	if foreign {
		p.enter(1, c.s.waitSetOf(other, c.tenant))
	}
}

// enter puts p into a set. mu is held.
func (p *Pending) enter(i int, set *waitSet) {
	p.sets[i], p.at[i] = set, len(set.all)
	set.all = append(set.all, waiter{p, i})
}

// remove takes the member at a place out. mu is held.
func (set *waitSet) remove(at int) {
	last := len(set.all) - 1
	moved := set.all[last]
	set.all[at], moved.p.at[moved.i] = moved, at
	set.all[last] = waiter{}
	set.all = set.all[:last]
}

// waitSetOf finds or makes a set. mu is held.
func (s *Store) waitSetOf(key waitKey, reader *tenant) *waitSet {
	readers := s.waits[key]
	if readers == nil {
		readers = make(map[*tenant]*waitSet, 1)
		s.waits[key] = readers
	}
	set := readers[reader]
	if set == nil {
		set = &waitSet{key: key, reader: reader}
		readers[reader] = set
	}
	return set
}

// leave takes p out of the sets that it is in. mu is held.
func (p *Pending) leave() {
	for i, set := range p.sets {
		if set == nil {
			continue
		}
		p.sets[i] = nil
		set.remove(p.at[i])
		if len(set.all) == 0 && !set.woken {
			p.c.s.dropWaitSet(set)
		}
	}
}

func (s *Store) dropWaitSet(set *waitSet) {
	readers := s.waits[set.key]
	if delete(readers, set.reader); len(readers) == 0 {
		delete(s.waits, set.key)
	}
}

// finish takes p out of everything: then is not called by anybody who has not said so yet. mu is held.
func (p *Pending) finish() {
	if p.over {
		return
	}
	p.over = true
	p.leave()
	if t := p.c.tenant; p.due >= 0 {
		heap.Remove(&t.deadlines, p.due)
		if len(t.deadlines) == 0 && t.alarm != nil {
			t.alarm.Stop()
		}
	}
	p.c.s.pending--
}

// signal has those looked at who wait for e, by id and by name; others' only where e is shared. What it costs does not
// depend on how many they are. mu is held.
func (s *Store) signal(e *entry) {
	if s.pending == 0 {
		return
	}
	s.wake(waitKey{tenant: e.tenant, id: e.id})
	if e.name != "" {
		s.wake(waitKey{tenant: e.tenant, name: e.name})
	}
	if len(e.grants) > 0 {
		s.wake(waitKey{id: e.id})
		s.wake(waitKey{whose: e.tenant.name, name: e.name})
	}
}

// wake hands those who wait for a key over to their tenants' attendants. mu is held.
func (s *Store) wake(key waitKey) {
	for reader, set := range s.waits[key] { // one a tenant
		set.woken = true
		reader.woken = append(reader.woken, set)
		s.attend(reader)
	}
	delete(s.waits, key)
}

// lookAgain has the attendant look at p once more. mu is held.
func (s *Store) lookAgain(p *Pending) {
	t := p.c.tenant
	p.enter(0, &waitSet{reader: t, woken: true})
	t.woken = append(t.woken, p.sets[0])
	s.attend(t)
}
