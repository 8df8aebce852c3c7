package store

import (
	"context"
	"fmt"
	"sync"
	"time"

	"tendril/store/object"
)

// The kinds of events. Of one object "gone" is the last.
const (
	EventSealed = "sealed" // an object can be read
	EventNamed  = "named"  // it has this name now
	// EventUnnamed: it no longer has this name. It was renamed, another one took its name, or it was deleted and a
	// composite still has it.
	EventUnnamed  = "unnamed"
	EventGone     = "gone"     // out of the table: deleted, expired, or its last reference went
	EventSpilled  = "spilled"  // on disk alone
	EventRestored = "restored" // in memory again
	EventLost     = "lost"     // the watcher was slow and missed events: List again
)

// Event is something that happened to an object. The JSON travels.
type Event struct {
	Kind      string    `json:"event"`
	ID        object.ID `json:"id"`
	Name      string    `json:"name"`
	SizeBytes uint64    `json:"size_bytes"`
	At        time.Time `json:"at"`
}

const (
	eventQueue  = 256  // events that wait for a watcher before some are lost
	eventsAhead = 4096 // events of a tenant that wait for its attendant before some are lost
	eventBytes  = 128  // what an event takes besides its name
	// watchPool is what events that wait for a tenant's watchers may take, in bytes, and each watcher adds WatchBytes.
	watchPool = 64 << 10
)

// Watcher receives the events of one tenant's objects whose name begins with a prefix. Made by Conn.Watch.
type Watcher struct {
	s      *Store
	tenant *tenant
	prefix string
	wake   func()        // immutable; nil: Next is waiting
	more   chan struct{} // capacity 1: there is something for Next

	// Guarded by watchers.mu.
	events []*Event
	lost   bool
}

// watchers is who watches a tenant's objects, by prefix: an event finds those that it concerns by its name's
// beginnings, as many as there are different lengths. The attendant goes through them under its lock, which nobody
// needs but the tenant's own watchers. Its lock is a leaf.
type watchers struct {
	mu       sync.Mutex
	byPrefix map[string]map[*Watcher]struct{}
	lengths  map[int]int // how many watchers have a prefix so long
	count    int
	queued   int // bytes of events that wait
}

// Watch begins to listen. wake, which may be nil, is called by the tenant's attendant when there is something for
// TryNext after there was nothing; it keeps the tenant's other watches waiting while it runs. The caller must Close
// before the connection's Close.
func (c *Conn) Watch(prefix string, wake func()) *Watcher {
	w := &Watcher{s: c.s, tenant: c.tenant, prefix: prefix, wake: wake, more: make(chan struct{}, 1)}
	c.tenant.watching.add(w)
	c.s.mu.Lock()
	c.tenant.watched++
	c.s.mu.Unlock()
	return w
}

// Close ends listening.
func (w *Watcher) Close() {
	w.s.mu.Lock()
	w.tenant.watched--
	w.s.mu.Unlock()
	w.tenant.watching.remove(w)
}

func (x *watchers) add(w *Watcher) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.byPrefix == nil {
		x.byPrefix, x.lengths = make(map[string]map[*Watcher]struct{}), make(map[int]int)
	}
	if x.byPrefix[w.prefix] == nil {
		x.byPrefix[w.prefix] = make(map[*Watcher]struct{})
	}
	x.byPrefix[w.prefix][w] = struct{}{}
	x.lengths[len(w.prefix)]++
	x.count++
}

func (x *watchers) remove(w *Watcher) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drop(w)
	if delete(x.byPrefix[w.prefix], w); len(x.byPrefix[w.prefix]) == 0 {
		delete(x.byPrefix, w.prefix)
	}
	if x.lengths[len(w.prefix)]--; x.lengths[len(w.prefix)] == 0 {
		delete(x.lengths, len(w.prefix))
	}
	x.count--
}

// drop takes back what waits for w. mu is held.
func (x *watchers) drop(w *Watcher) {
	for _, ev := range w.events {
		x.queued -= ev.bytes()
	}
	w.events = nil
}

func (ev *Event) bytes() int { return eventBytes + len(ev.Name) }

// TryNext gives the next event, if there is one. After EventLost the queue begins again.
func (w *Watcher) TryNext() (ev Event, ok bool) {
	x := &w.tenant.watching
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case len(w.events) > 0:
		ev, w.events[0] = *w.events[0], nil
		w.events = w.events[1:]
		x.queued -= ev.bytes()
		return ev, true
	case w.lost:
		w.lost, w.events = false, nil
		return Event{Kind: EventLost, At: time.Now().UTC()}, true
	}
	w.events = nil
	return ev, false
}

// Next waits for an event or ctx's end.
func (w *Watcher) Next(ctx context.Context) (Event, error) {
	for {
		if ev, ok := w.TryNext(); ok {
			return ev, nil
		}
		select {
		case <-w.more:
		case <-ctx.Done():
			return Event{}, fmt.Errorf("%w: watching: %w", object.ErrTimeout, ctx.Err())
		}
	}
}

// notify tells who watches, by the tenant's attendant. mu is held.
func (s *Store) notify(kind string, e *entry) { s.notifyAs(kind, e, e.name) }

// notifyAs is notify with a name that e had. mu is held.
func (s *Store) notifyAs(kind string, e *entry, name string) {
	t := e.tenant
	switch {
	case t.watched == 0:
		return
	case len(t.events) >= eventsAhead:
		t.missed = true
	default:
		t.events = append(t.events, &Event{Kind: kind, ID: e.id, Name: name, SizeBytes: e.size, At: time.Now().UTC()})
	}
	s.attend(t)
}

// tell hands events over to who watches, and wakes those. missed: there were more.
func (x *watchers) tell(events []*Event, missed bool) {
	if len(events) == 0 && !missed {
		return
	}
	var idle []*Watcher // those that have something now, and had nothing
	x.mu.Lock()
	for _, ev := range events {
		for n := range x.lengths {
			if n > len(ev.Name) {
				continue
			}
			for w := range x.byPrefix[ev.Name[:n]] {
				idle = x.push(w, ev, idle)
			}
		}
	}
	if missed {
		for _, all := range x.byPrefix {
			for w := range all {
				idle = w.lose(idle)
			}
		}
	}
	x.mu.Unlock()
	for _, w := range idle {
		select {
		case w.more <- struct{}{}:
		default:
		}
		if w.wake != nil {
			w.wake()
		}
	}
}

// push puts an event into w's queue. mu is held.
func (x *watchers) push(w *Watcher, ev *Event, idle []*Watcher) []*Watcher {
	switch {
	case w.lost:
		return idle
	case len(w.events) >= eventQueue || x.queued+ev.bytes() > watchPool+x.count*WatchBytes:
		return w.lose(idle)
	case len(w.events) == 0:
		idle = append(idle, w)
	}
	w.events = append(w.events, ev)
	x.queued += ev.bytes()
	return idle
}

// lose notes that w missed something. watchers.mu is held.
func (w *Watcher) lose(idle []*Watcher) []*Watcher {
	if w.lost {
		return idle
	}
	w.lost = true
	if len(w.events) == 0 {
		idle = append(idle, w)
	}
	return idle
}
