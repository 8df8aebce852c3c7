package daemon

import (
	"context"
	"sync"
	"time"

	"tendril/cluster/fsm"
	"tendril/store/events"
	"tendril/store/object"
)

// TellNames implements frontdoor.NameTeller.
func (d *Daemon) TellNames() (stop func()) {
	x := &d.nameTelling
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.users++; x.users == 1 {
		var ctx context.Context
		ctx, x.stop = context.WithCancel(d.ctx)
		d.meta.raft.View(func(s *fsm.State) {
			_, now, _, _ := s.NameChanges(0)
			x.mark = nameMark{s, now}
		})
		d.joined.Go(func() { d.keepTellingNames(ctx) })
	}
	return sync.OnceFunc(func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.users--; x.users == 0 {
			x.stop()
		}
	})
}

// namesRest is how long it rests between two looks: the metadata remembers 1024 changes.
const namesRest = 5 * time.Millisecond

func (d *Daemon) keepTellingNames(ctx context.Context) {
	for {
		changed := d.Changed() // before the look
		if !d.tellNamesNow(ctx) {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
		select {
		case <-time.After(namesRest):
		case <-ctx.Done():
		}
	}
}

// tellNamesNow tells what has changed since the last time; false: nobody watches any more.
func (d *Daemon) tellNamesNow(ctx context.Context) bool {
	x := &d.nameTelling
	x.mu.Lock()
	defer x.mu.Unlock()
	if ctx.Err() != nil {
		return false
	}
	list, missed, all := x.mark.advance(d.meta.raft.View)
	if all {
		d.store.TellMissed("")
	}
	for _, tenant := range missed {
		d.store.TellMissed(tenant)
	}
	for _, c := range list {
		ev := events.Event{Kind: events.Unpublished, ID: object.ID(c.ID), Name: c.Name, SizeBytes: c.SizeBytes,
			At: at(c.At).UTC()}
		if c.Published {
			ev.Kind = events.Published
		}
		d.store.Tell(c.Tenant, ev)
	}
	return true
}
