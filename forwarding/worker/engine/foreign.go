package engine

import "fmt"

// ForeignEvent makes an event of something that ends elsewhere, by SetForeign. Unlike a user event's, its end is
// reported.
func (e *Engine) ForeignEvent(id uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if id == 0 || e.events.Get(id) != nil {
		return fmt.Errorf("event %d: %w", id, ErrTaken)
	}
	e.events.Put(id, &event{id: id, user: true, foreign: true})
	return nil
}

// SetForeign ends a foreign event with 0 or a negative status. The first end counts: two sides may each know one.
func (e *Engine) SetForeign(id uint64, status int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ev := e.events.Get(id); ev != nil && ev.foreign && ev.state != stateDone {
		e.done(ev, min(status, 0))
		e.pump()
	}
}

// After calls then once all events have ended, with the status of one that failed, else 0: before the client is told of
// the ends, and by whoever learns of the last. It is called with the engine's lock held, as a Sink is: it must not
// wait, nor call the engine. The events need not exist after this call.
func (e *Engine) After(events []uint64, then func(status int32)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, id := range events {
		if e.events.Get(id) == nil {
			return fmt.Errorf("event %d: %w", id, ErrNoEvent)
		}
	}
	w := &wait{then: then}
	for _, id := range events {
		ev := e.events.Get(id)
		if ev.state == stateDone && ev.status < 0 {
			w.status = ev.status
		}
		e.attach(w, ev, true)
	}
	if w.remaining == 0 {
		then(w.status)
	}
	e.pump()
	return nil
}
