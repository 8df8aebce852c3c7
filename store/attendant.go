package store

import (
	"fmt"
	"time"

	"tendril/store/object"
)

// A tenant's attendant is a goroutine that does what follows for the tenant's waits and watches from what happened under the lock:
// it looks whether a wait has ended, tells who waits, hands events to watchers, and takes large trees and streams apart. It is there while there is something to do. It
// holds Store.mu for a few steps at a time, and what its tenant made many of costs its tenant time, and nobody else.

// attendStep is how many waits are looked at in one hold of the lock.
const attendStep = 64

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
		s.mu.Lock()
		ended := s.endedWaits(t, time.Now())
		events, missed := t.events, t.missed
		t.events, t.missed = nil, false
		s.dropSome(t)
		if len(ended) == 0 && len(events) == 0 && !missed && len(t.woken)+len(t.parting)+len(t.dropping) == 0 {
			t.attended = false
			s.setAlarm(t)
			s.unlock()
			return
		}
		s.unlock()
		for _, e := range ended {
			e.p.then(e.err)
		}
		t.watching.tell(events, missed)
	}
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
}

// ended is a wait that is over and how it went.
type ended struct {
	p   *Pending
	err error
}

// endedWaits looks at some of those that were woken or whose time is over, and gives those that have ended. mu is held.
func (s *Store) endedWaits(t *tenant, now time.Time) (list []ended) {
	for steps := attendStep; steps > 0 && len(t.deadlines) > 0 && !now.Before(t.deadlines[0].until); steps-- {
		p := t.deadlines[0]
		list = append(list, ended{p, fmt.Errorf("%w: %w", object.ErrTimeout, p.why)})
		p.finish()
	}
	for steps := attendStep; steps > 0 && len(t.woken) > 0; steps-- {
		set := t.woken[0]
		for p := range set.all {
			p.leave()
			if over, err := p.advance(); over {
				p.finish()
				list = append(list, ended{p, err})
			}
			break
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
