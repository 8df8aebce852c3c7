// Package events hands what happens to objects to those who watch them, by the beginnings of the objects' names.
//
// A watcher that is slow loses events and is told so: nobody waits for it, and what waits for all of them is bounded.
//
// Lock order: Watchers.mu is a leaf. No goroutines.
package events

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"tendril/store/object"
)

// The kinds of events. Of one object of the store "gone" is the last.
const (
	Sealed = "sealed" // an object can be read
	Named  = "named"  // it has this name now
	// Unnamed: it no longer has this name. It was renamed, another one took its name, or it was deleted and a
	// composite still has it.
	Unnamed  = "unnamed"
	Gone     = "gone"     // out of the table: deleted, expired, or its last reference went
	Spilled  = "spilled"  // on disk alone
	Restored = "restored" // in memory again
	// Published: a name that is published in the cluster since, at whichever node. Unpublished: it is no longer.
	Published   = "published"
	Unpublished = "unpublished"
	Lost        = "lost" // the watcher was slow and missed events: List again
)

// Event is something that happened to an object. The JSON travels.
type Event struct {
	Kind      string    `json:"event"`
	ID        object.ID `json:"id"`
	Name      string    `json:"name"`
	SizeBytes uint64    `json:"size_bytes"`
	At        time.Time `json:"at"`
}

// WatchBytes is what a watcher is charged to whoever asked for it, besides its prefix.
const WatchBytes = 16 << 10

const (
	QueueEvents = 256 // that wait for a watcher before some are lost
	eventBytes  = 128 // what an event takes besides its name
	// poolBytes is what the events that wait for all Watchers may take; each watcher adds WatchBytes.
	poolBytes = 64 << 10
)

// Watchers are those who watch one tenant's objects. An event finds those that it concerns by the beginnings of its
// name, as many as there are different lengths. The zero value has no watcher. Safe for concurrent use.
type Watchers struct {
	any atomic.Bool // there is a watcher; written under mu

	mu       sync.Mutex // leaf
	byPrefix map[string]map[*Watcher]struct{}
	lengths  map[int]int // how many watchers have a prefix of that length
	count    int
	queued   int // bytes of events that wait
}

// Watcher receives the events of objects whose name begins with a prefix. Made by Watchers.Add.
type Watcher struct {
	all    *Watchers     // immutable
	prefix string        // immutable
	wake   func()        // immutable; nil: Next is waiting
	more   chan struct{} // capacity 1: there is something for Next

	// Guarded by all.mu.
	events []*Event
	lost   bool
}

// Add begins to watch. wake, which may be nil, is called by Tell when there is something for TryNext after there was
// nothing; the other watchers wait while it runs. The caller must Close the watcher.
func (x *Watchers) Add(prefix string, wake func()) *Watcher {
	w := &Watcher{all: x, prefix: prefix, wake: wake, more: make(chan struct{}, 1)}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.byPrefix == nil {
		x.byPrefix, x.lengths = make(map[string]map[*Watcher]struct{}), make(map[int]int)
	}
	if x.byPrefix[prefix] == nil {
		x.byPrefix[prefix] = make(map[*Watcher]struct{})
	}
	x.byPrefix[prefix][w] = struct{}{}
	x.lengths[len(prefix)]++
	x.count++
	x.any.Store(true)
	return w
}

// Any reports whether there is a watcher. It takes no lock.
func (x *Watchers) Any() bool { return x.any.Load() }

// Close ends watching. It is called once.
func (w *Watcher) Close() { w.all.remove(w) }

func (x *Watchers) remove(w *Watcher) {
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
	x.any.Store(x.count > 0)
}

// drop removes the events that wait for w. mu is held.
func (x *Watchers) drop(w *Watcher) {
	for _, ev := range w.events {
		x.queued -= ev.bytes()
	}
	w.events = nil
}

func (ev *Event) bytes() int { return eventBytes + len(ev.Name) }

// TryNext gives the next event, if there is one. After Lost the queue begins anew.
func (w *Watcher) TryNext() (ev Event, ok bool) {
	x := w.all
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
		return Event{Kind: Lost, At: time.Now().UTC()}, true
	}
	w.events = nil
	return ev, false
}

// Next waits for an event. Error: object.ErrTimeout at ctx's end.
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

// Tell hands events to those whom they concern, and wakes them. missed: there were more events, so all watchers get
// Lost.
func (x *Watchers) Tell(events []*Event, missed bool) {
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
func (x *Watchers) push(w *Watcher, ev *Event, idle []*Watcher) []*Watcher {
	switch {
	case w.lost:
		return idle
	case len(w.events) >= QueueEvents || x.queued+ev.bytes() > poolBytes+x.count*WatchBytes:
		return w.lose(idle)
	case len(w.events) == 0:
		idle = append(idle, w)
	}
	w.events = append(w.events, ev)
	x.queued += ev.bytes()
	return idle
}

// lose notes that w missed something. all.mu is held.
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
