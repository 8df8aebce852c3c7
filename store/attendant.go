package store

import (
	"fmt"
	"time"

	"tendril/store/events"
	"tendril/store/object"
)

// A tenant's attendant is a goroutine that does what follows for the tenant's waits and watches from what happened
// under the lock: it looks whether a wait has ended, tells who waits, hands events to watchers, takes large trees and
// streams apart, and looks through the slots of the index. It is there while there is something to do. It holds
// Store.mu for a few steps at a time, and what its tenant made many of costs its tenant time, and nobody else.

// attendStep is how many things of a kind are done in one hold of the lock, and attendWaits how many waits are looked
// at: about 20 µs' worth, for others want the lock while thousands of them end.
const (
	attendStep  = 64
	attendWaits = 16
	maxPause    = time.Millisecond // after a step that ended many waits; it may have waited for the peer
)

// attend has a tenant's attendant look. mu is held.
func (s *Store) attend(t *tenant) {
	if t.attended || s.closed {
		return
	}
	t.attended = true
	s.transfers.Add(1)
	go s.attendTo(t)
}

// attendTo is the attendant. It ends when there is nothing left to do.
func (s *Store) attendTo(t *tenant) {
	defer s.transfers.Done()
	for {
		began := time.Now()
		s.mu.Lock()
		ended := s.endedWaits(t, began)
		happened, missed := t.events, t.missed
		t.events, t.missed = nil, false
		s.dropSome(t)
		s.tellSome(t)
		if len(ended) == 0 && len(happened) == 0 && !missed {
			if t.index != nil && t.index.due {
				s.look(t)
			}
			if !t.hasWork() {
				t.attended = false
				s.setAlarm(t)
				s.unlock()
				return
			}
		}
		s.unlock()
		for i, e := range ended {
			e.p.then(e.how(), i+1 < len(ended) && ended[i+1].p.c == e.p.c)
		}
		t.watching.Tell(happened, missed)
		if len(ended) >= attendWaits { // there are many: half of the time is the other tenants'
			time.Sleep(min(time.Since(began), maxPause))
		}
	}
}

// hasWork reports whether there is something left for the attendant. mu is held.
func (t *tenant) hasWork() bool {
	return len(t.woken)+len(t.parting)+len(t.dropping)+len(t.unheld)+len(t.matching)+len(t.telling) > 0 ||
		t.index != nil && t.index.due || len(t.events) > 0 || t.missed
}

// dropSome lets go of some of what large trees and removed streams had. mu is held.
func (s *Store) dropSome(t *tenant) {
	for steps := attendStep; steps > 0 && len(t.parting) > 0; steps-- {
		if list := t.parting[0]; len(list) > 0 {
			t.parting[0] = list[1:]
			s.part(list[0])
		} else {
			t.parting = t.parting[1:]
		}
	}
	for steps := attendStep; steps > 0 && len(t.dropping) > 0; steps-- {
		if list := t.dropping[0]; len(list) > 0 {
			t.dropping[0] = list[1:]
			list[0].e.refs--
			s.collect(list[0].e)
		} else {
			t.dropping = t.dropping[1:]
		}
	}
	for steps := attendStep; steps > 0 && len(t.unheld) > 0; steps-- {
		if list := t.unheld[0]; len(list) > 0 {
			t.unheld[0] = list[1:]
			s.unretire(list[0].e)
		} else {
			t.unheld = t.unheld[1:]
		}
	}
}

// tellSome goes on with one stream whose waiters are many, and with one segment whose readers are. mu is held, and let
// go meanwhile.
func (s *Store) tellSome(t *tenant) {
	if len(t.matching) > 0 {
		st := t.matching[0]
		t.matching = t.matching[1:]
		st.matching = false
		s.match(st)
	}
	if len(t.telling) > 0 {
		g := t.telling[0]
		t.telling = t.telling[1:]
		steps := 0
		for c := range g.seen { // goes on with those that are there then
			c.tellLeaving()
			s.breathe(&steps)
		}
	}
}

// ended is a wait that is over.
type ended struct {
	p    *Pending
	err  error // what was wrong; nil: nothing
	late bool  // its time is over, and err is what it waited for
}

// how says how the wait went.
func (e ended) how() error {
	if e.late {
		return fmt.Errorf("%w: %w", object.ErrTimeout, e.err)
	}
	return e.err
}

// endedWaits looks at some of those that were woken or whose time is over, and gives those that have ended. mu is held.
func (s *Store) endedWaits(t *tenant, now time.Time) (list []ended) {
	for steps := attendWaits; steps > 0 && len(t.deadlines) > 0 && !now.Before(t.deadlines[0].until); steps-- {
		p := t.deadlines[0]
		list = append(list, ended{p: p, err: p.why, late: true})
		p.finish()
	}
	for steps := attendWaits; steps > 0 && len(t.woken) > 0; steps-- {
		set := t.woken[0]
		if n := len(set.all); n > 0 {
			p := set.all[n-1].p
			p.leave()
			if over, err := p.advance(); over {
				p.finish()
				list = append(list, ended{p: p, err: err})
			}
		}
		if len(set.all) == 0 {
			t.woken[0] = nil
			t.woken = t.woken[1:]
		}
	}
	if len(t.woken) == 0 {
		t.woken = nil
	}
	return list
}

// setAlarm has the attendant look when the next wait's time is over. mu is held.
func (s *Store) setAlarm(t *tenant) {
	if len(t.deadlines) == 0 || t.attended {
		return // the attendant sets it when it ends
	}
	wait := time.Until(t.deadlines[0].until)
	if t.alarm == nil {
		t.alarm = time.AfterFunc(wait, func() {
			s.mu.Lock()
			defer s.unlock()
			if len(t.deadlines) > 0 {
				s.attend(t)
			}
		})
		return
	}
	t.alarm.Reset(wait)
}

// eventsAhead bounds the events of a tenant that wait for its attendant before some are lost.
const eventsAhead = 4096

// Watch begins to listen to the tenant's objects whose name begins with prefix. The tenant's attendant calls wake,
// which may be nil, as events.Watchers.Add says. The caller must Close the watcher before the connection.
func (c *Conn) Watch(prefix string, wake func()) *events.Watcher {
	return c.tenant.watching.Add(prefix, wake)
}

// notify tells who watches, by the tenant's attendant. mu is held.
func (s *Store) notify(kind string, e *entry) { s.notifyAs(kind, e, e.name) }

// notifyAs is notify with a name that e had. mu is held.
func (s *Store) notifyAs(kind string, e *entry, name string) {
	if e.tenant.watching.Any() {
		s.note(e.tenant, &events.Event{Kind: kind, ID: e.id, Name: name, SizeBytes: e.size, At: time.Now().UTC()})
	}
}

// note has a tenant's attendant tell an event, to who watches. mu is held.
func (s *Store) note(t *tenant, ev *events.Event) {
	switch {
	case !t.watching.Any():
		return
	case len(t.events) >= eventsAhead:
		t.missed = true
	default:
		t.events = append(t.events, ev)
	}
	s.attend(t)
}

// Tell has those who watch a tenant's objects told of something that is not the store's own.
func (s *Store) Tell(tenant string, ev events.Event) {
	s.mu.Lock()
	defer s.unlock()
	if t := s.tenants[tenant]; t != nil {
		s.note(t, &ev)
	}
}

// TellMissed has those who watch a tenant's objects told that they missed something; "": all who watch.
func (s *Store) TellMissed(tenant string) {
	s.mu.Lock()
	defer s.unlock()
	for name, t := range s.tenants {
		if (tenant == "" || tenant == name) && t.watching.Any() {
			t.missed = true
			s.attend(t)
		}
	}
}
