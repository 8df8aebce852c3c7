package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"tendril/store/object"
)

// The kinds of events.
const (
	EventSealed   = "sealed"   // an object is to be had
	EventNamed    = "named"    // it has this name now
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

// eventQueue is how many events wait for a watcher before some are lost.
const eventQueue = 256

// Watcher receives the events of one tenant's objects whose name begins with a prefix. Made by Conn.Watch.
type Watcher struct {
	s      *Store
	tenant *tenant
	prefix string
	events chan Event
	lost   bool // guarded by Store.mu
}

// Watch begins to listen. The caller must Close.
func (c *Conn) Watch(prefix string) *Watcher {
	w := &Watcher{s: c.s, tenant: c.tenant, prefix: prefix, events: make(chan Event, eventQueue)}
	c.s.mu.Lock()
	c.s.watchers[w] = struct{}{}
	c.s.mu.Unlock()
	return w
}

// Close ends listening.
func (w *Watcher) Close() {
	w.s.mu.Lock()
	delete(w.s.watchers, w)
	w.s.mu.Unlock()
}

// Next waits for an event or ctx's end. After EventLost the queue begins anew.
func (w *Watcher) Next(ctx context.Context) (Event, error) {
	select {
	case ev := <-w.events:
		return ev, nil
	default:
	}
	w.s.mu.Lock()
	lost := w.lost && len(w.events) == 0
	if lost {
		w.lost = false
	}
	w.s.mu.Unlock()
	if lost {
		return Event{Kind: EventLost, At: time.Now().UTC()}, nil
	}
	select {
	case ev := <-w.events:
		return ev, nil
	case <-ctx.Done():
		return Event{}, fmt.Errorf("%w: watching: %w", object.ErrTimeout, ctx.Err())
	}
}

// notify tells who watches. It never blocks. mu is held.
func (s *Store) notify(kind string, e *entry) {
	for w := range s.watchers {
		if w.tenant != e.tenant || w.lost || !strings.HasPrefix(e.name, w.prefix) {
			continue
		}
		select {
		case w.events <- Event{Kind: kind, ID: e.id, Name: e.name, SizeBytes: e.size, At: time.Now().UTC()}:
		default:
			w.lost = true
		}
	}
}
