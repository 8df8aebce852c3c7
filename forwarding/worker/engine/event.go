package engine

import (
	"fmt"
	"time"
)

type state uint8

const (
	// not with the driver: a held command, a host operation, an open user event, a closed gate
	stateHeld      state = iota
	stateSubmitted       // the driver has it
	stateDone
)

// event is something that ends. Guarded by Engine.mu.
type event struct {
	id      uint64 // 0: the engine's own
	queue   *queue // nil: user event or gate
	state   state
	status  int32  // once done
	native  Native // while submitted
	number  uint64 // in the queue's log; 0: there is none
	through bool   // when it ends, all have that the driver had of the queue
	seq     int    // how many of the queue's sent have ended with it; 0: that is not known
	pins    int    // goroutines that block on native

	user           bool
	foreign        bool // also user, and reported: it ends elsewhere
	released       bool // the client dropped it
	urgent         bool // somebody waits
	hurry          bool // the client does
	watchSubmitted bool
	watchRunning   bool
	since          time.Time // first seen to run; zero: not yet, or nobody asked

	deps       []*event    // followed wait list, to tell a failure's cause
	behind     []*event    // what else it came after, on its own queue: see done
	all        bool        // out of order: a marker or barrier behind everything on its queue
	dependents []dependent // held commands
	waits      []*wait
	after      func(status int32)
	times      *[5]uint64 // of a host operation that somebody wants the times of
	queued     Native     // of a held command that somebody wants the times of: the mark of its enqueue; 0: none
	earlier    *event     // of a barrier that may fail: the one before it, which then still stands

	firstDep  [1]*event // what deps and waits begin in: most have one
	firstWait [1]*wait
}

// comesAfter adds to what the event's command waits for.
func (ev *event) comesAfter(d *event) {
	if ev.deps == nil {
		ev.deps = ev.firstDep[:0]
	}
	ev.deps = append(ev.deps, d)
}

// dependent is a held command that an event blocks.
type dependent struct {
	cmd *command
	how relation
}

type relation uint8

const (
	waits  relation = iota // in the wait list: a failure fails the command with −14
	orders                 // comes before: a failure does not matter
	gates                  // a gate: a failure fails the command with the gate's status
)

// Gate is an internal event that holds commands back, such as a build under way.
type Gate struct {
	e  *Engine
	ev *event
}

// NewGate makes a closed gate.
func (e *Engine) NewGate() *Gate { return &Gate{e, &event{}} }

// Open frees what waits, or fails it with a negative status. Later calls do nothing.
func (g *Gate) Open(status int32) {
	g.e.mu.Lock()
	defer g.e.mu.Unlock()
	if g.ev.state != stateDone {
		g.e.done(g.ev, status)
		g.e.pump()
	}
}

// UserEvent makes an event that SetUserEvent ends.
func (e *Engine) UserEvent(id uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if id == 0 || e.events.Get(id) != nil {
		return fmt.Errorf("user event %d: %w", id, ErrTaken)
	}
	e.events.Put(id, &event{id: id, user: true})
	return nil
}

// SetUserEvent ends a user event with 0 or a negative status.
func (e *Engine) SetUserEvent(id uint64, status int32) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	ev := e.events.Get(id)
	if ev != nil && ev.foreign && ev.state == stateDone {
		return nil // its other end was quicker
	}
	if ev == nil || !ev.user || ev.state == stateDone {
		return fmt.Errorf("event %d: %w", id, ErrNotUser)
	}
	e.done(ev, status)
	e.pump()
	return nil
}

// ReleaseEvent drops the client's hold; the end is still reported. It reports whether there was one.
func (e *Engine) ReleaseEvent(id uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	ev := e.events.Get(id)
	if ev == nil {
		return false
	}
	ev.released = true
	if ev.state == stateDone {
		e.events.Delete(id)
	}
	return true
}

// HasEvent says whether the id names an event.
func (e *Engine) HasEvent(id uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.events.Get(id) != nil
}

// conclude is done without what ends before.
func (e *Engine) conclude(ev *event, status int32) {
	ev.note(status)
	var end End
	if ev.state == stateSubmitted {
		status, end = e.settle(ev, status)
	}
	if ev.times != nil {
		end.Profile, end.HasProfile = *ev.times, true
	}
	if ev.queued != 0 {
		e.queuedAt(ev, &end)
	}
	ev.state, ev.status = stateDone, status
	if ev.id != 0 && (!ev.user || ev.foreign) {
		end.Event, end.Status = ev.id, status
		e.tell(end, ev.hurry || ev.watchSubmitted) // it may end without having been submitted
		e.gathers = e.gathers || ev.foreign
	}
	if ev.released {
		e.events.Delete(ev.id)
	}
	for _, w := range ev.waits {
		e.arrive(w, status)
	}
	ev.waits, ev.deps, ev.behind = nil, nil, nil
	ev.firstWait, ev.firstDep = [1]*wait{}, [1]*event{}
	if status == 0 {
		ev.earlier = nil
	}
	e.unblock(ev)
}

// note tells the queue's log how the event's command ended.
func (ev *event) note(status int32) {
	switch {
	case ev.number == 0:
	case status < 0 && ev.state == stateHeld:
		ev.queue.log.Fail(ev.number, status) // it never ran: what comes before it may still do
	default:
		ev.queue.log.End(ev.number, ev.all || ev.through, status)
	}
}

// settle takes a natively submitted event away from the driver.
func (e *Engine) settle(ev *event, status int32) (int32, End) {
	var end End
	if status < 0 {
		status = e.failedRunning(ev, status)
	}
	if ev.queue.clock != 0 && ev.id != 0 && status == 0 {
		end.Profile, end.HasProfile = e.driver.Profile(ev.native)
	}
	if ev.urgent {
		ev.queue.urgent--
		e.urgent--
	}
	if ev.watchRunning {
		ev.queue.running--
	}
	if ev.pins == 0 {
		e.garbage = append(e.garbage, ev.native)
	}
	ev.queue.seen = max(ev.queue.seen, ev.seq)
	if ev.after != nil {
		e.early = e.early || len(e.ends) > 0
		e.sendEnds() // it may tell the client that this one has ended
		ev.after(status)
		ev.after = nil
	}
	return status, end
}

// failedRunning books a failure that the driver found after it took the
// command: a dependency's, whatever the driver calls it, or the device's own.
func (e *Engine) failedRunning(ev *event, status int32) int32 {
	if e.anyFailed(ev.deps) {
		return FailedWaitList
	}
	if ev.queue.latched == 0 {
		ev.queue.latched = status
		e.sink.Fault(ev.id, ev.queue.id, status, "the command failed on the device")
	}
	return status
}

// anyFailed also asks the driver: a dependency's end may not have been seen yet.
func (e *Engine) anyFailed(deps []*event) bool {
	for _, d := range deps {
		status := [1]int32{d.status}
		if d.state == stateSubmitted {
			e.driver.Statuses([]Native{d.native}, status[:])
		}
		if status[0] < 0 {
			return true
		}
	}
	return false
}

// tell queues a report.
func (e *Engine) tell(end End, urgent bool) {
	e.ends = append(e.ends, end)
	e.hurry = e.hurry || urgent
}

// unblock frees the dependents of an event that was submitted or is done.
func (e *Engine) unblock(ev *event) {
	deps := ev.dependents
	ev.dependents = nil
	for _, d := range deps {
		c := d.cmd
		if ev.state == stateDone && ev.status < 0 && c.failed == 0 {
			switch d.how {
			case waits:
				c.failed = FailedWaitList
			case gates:
				c.failed = ev.status
			}
		}
		c.blockers--
		if c.blockers == 0 {
			e.release(c)
		}
	}
}

// makeUrgent marks an event that somebody waits for.
func (e *Engine) makeUrgent(ev *event) {
	if ev.urgent || ev.state == stateDone {
		return
	}
	ev.urgent = true
	if ev.state == stateSubmitted {
		ev.queue.urgent++
		e.urgent++
	}
}
