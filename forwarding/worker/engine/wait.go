package engine

import (
	"fmt"
	"time"
)

// wait is one answer that is due when several events are done.
type wait struct {
	remaining int
	failed    bool
	request   uint64    // Finish and Wait
	queue     *queue    // Finish: whose latched error is the answer
	asked     time.Time // Finish
	host      *command  // a host operation that becomes ready
	then      func(status int32)
	status    int32 // for then: of an event that failed
}

// attach makes w wait for ev, urgently.
func (e *Engine) attach(w *wait, ev *event, fatal bool) {
	if ev.state == stateDone {
		w.failed = w.failed || fatal && ev.status < 0
		return
	}
	w.remaining++
	if ev.waits == nil {
		ev.waits = ev.firstWait[:0]
	}
	ev.waits = append(ev.waits, w)
	ev.hurry = ev.hurry || w.then == nil
	e.makeUrgent(ev)
}

func (e *Engine) arrive(w *wait, status int32) {
	if w.queue == nil && status < 0 {
		w.failed, w.status = true, status
	}
	if w.remaining--; w.remaining > 0 {
		return
	}
	if w.then != nil {
		e.gathers = true
		w.then(w.status)
		return
	}
	e.fired = append(e.fired, w)
}

// flush sends reports, then the answers that depend on them.
func (e *Engine) flush() {
	if e.hurry || len(e.ends) >= maxEnds {
		e.report()
	}
	if len(e.fired) == 0 {
		return
	}
	for len(e.fired) > 0 {
		e.sendEnds() // an answer may bring more
		w := e.fired[0]
		if e.fired[0] = nil; len(e.fired) > 1 {
			e.fired = e.fired[1:]
		} else {
			e.fired = e.firstFired[:0]
		}
		e.answer(w)
	}
	e.reportedAll() // not every answer leaves the process
}

// maxEnds is how many ends are gathered before they are sent.
const maxEnds = 512

// report sends the ends that there are, and nothing behind them.
func (e *Engine) report() {
	quiet := (e.early || len(e.ends) > 0) && !e.hurry
	e.early = false
	e.sendEnds()
	if quiet {
		e.reportedAll()
	}
}

func (e *Engine) reportedAll() {
	if e.opt.Reported != nil {
		e.opt.Reported()
	}
}

func (e *Engine) sendEnds() {
	if e.gathers {
		e.reported = time.Now()
	}
	for len(e.ends) > 0 {
		n := min(len(e.ends), maxEnds)
		e.sink.Events(e.ends[:n], e.hurry)
		e.ends = append(e.ends[:0], e.ends[n:]...)
	}
	e.hurry, e.gathers = false, false
}

func (e *Engine) answer(w *wait) {
	switch {
	case w.host != nil:
		e.hostReady(w)
	case w.queue != nil:
		status := w.queue.latched
		w.queue.latched = 0
		if e.opt.Brief {
			w.queue.bursts.answered(time.Since(w.asked))
		}
		e.sink.Reply(w.request, status)
	case w.failed:
		e.sink.Reply(w.request, FailedWaitList)
	default:
		e.sink.Reply(w.request, 0)
	}
}

// Finish replies when everything enqueued before is done: with 0, or with the
// first failure since the last Finish.
func (e *Engine) Finish(queue, request uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	q := e.queues[queue]
	if q == nil {
		return fmt.Errorf("queue %d: %w", queue, ErrNoQueue)
	}
	e.longhand()
	if len(q.held) == 0 && !q.submitting {
		e.usedAlone(q)
		e.finish(q, request, e.mayBeBrief(q))
	} else {
		h := &command{kind: kindFinish, queue: q, event: &event{queue: q}, request: request}
		if q.outOfOrder {
			e.orderAfter(h, true)
		}
		e.add(h)
	}
	e.pump()
	return nil
}

// finish waits for what the driver has of q. brief: FinishBrief may do it.
func (e *Engine) finish(q *queue, request uint64, brief bool) {
	brief = brief && q.bursts.foreseen() && q.fresh
	q.bursts.finish()
	q.log.Counted()
	w := &wait{request: request, queue: q}
	if e.opt.Brief {
		w.asked = time.Now()
	}
	if brief {
		e.brief = w
		return
	}
	e.await(w)
}

// await waits for all that the driver has of a finish's queue.
func (e *Engine) await(w *wait) {
	if ev := e.last(w.queue); ev != nil {
		e.attach(w, ev, false)
	}
	if w.remaining == 0 {
		e.fired = append(e.fired, w)
	}
}

// last returns an event that ends when everything submitted to q is done, or
// nil if nothing ever was or the driver refuses.
func (e *Engine) last(q *queue) *event {
	if !q.fresh {
		if q.tail != 0 {
			native := q.tail
			q.tail = 0
			e.follow(q, e.anEvent(q, q.given), native)
		}
		return q.tailEvent
	}
	native, status := e.driver.Marker(q.native, false, nil, true)
	q.unflushed = e.opt.Submitters
	if status != 0 {
		if q.latched == 0 {
			q.latched = status
		}
		return nil
	}
	if native != 0 {
		ev := e.anEvent(q, q.given)
		e.follow(q, ev, native)
		ev.seq = q.sent
		ev.through = true
		q.fresh = false
	}
	return q.tailEvent
}

// Wait replies when all events are done: with 0, or −14 if one failed.
func (e *Engine) Wait(events []uint64, request uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := &wait{request: request}
	for _, id := range events {
		if e.events.Get(id) == nil {
			return fmt.Errorf("event %d: %w", id, ErrNoEvent)
		}
	}
	for _, id := range events {
		e.attach(w, e.events.Get(id), true)
	}
	if w.remaining == 0 {
		e.fired = append(e.fired, w)
	}
	e.pump()
	return nil
}

// Watch asks for an urgent report when the event reaches a level (Submitted, Running, Complete).
func (e *Engine) Watch(id uint64, level int32) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	ev := e.events.Get(id)
	if ev == nil {
		return fmt.Errorf("event %d: %w", id, ErrNoEvent)
	}
	switch {
	case ev.state == stateDone && len(e.ends) == 0:
		// The client was told when nobody waited: it was not woken for that, and has not looked since.
		e.sink.Events(nil, true)
	case ev.state == stateDone:
		e.hurry = true
	case level == Submitted && ev.state == stateSubmitted:
		e.tell(End{Event: id, Status: Submitted}, true)
	case level == Submitted:
		ev.watchSubmitted = true
	default:
		if level == Running && !ev.watchRunning {
			ev.watchRunning = true
			if ev.state == stateSubmitted {
				ev.queue.running++
			}
		}
		ev.hurry = true
		e.makeUrgent(ev)
	}
	e.pump()
	return nil
}

// runHost lets the client work once everything before is done, not only submitted.
func (e *Engine) runHost(h *command) {
	h.open = true
	w := &wait{host: h}
	if h.failed == 0 {
		for _, d := range h.deps {
			e.attach(w, d, true)
		}
		q := h.queue
		if !q.outOfOrder {
			if ev := e.last(q); ev != nil {
				e.attach(w, ev, false)
			}
		} else if b := standing(h.barrier); b != nil {
			e.attach(w, b, false)
		}
	}
	if h.request != 0 {
		e.sink.Reply(h.request, 0)
		h.request = 0
	}
	if w.remaining == 0 {
		e.fired = append(e.fired, w)
	}
}

// standing skips barriers that failed and so hold nothing back.
func standing(b *event) *event {
	for b != nil && b.state == stateDone && b.status < 0 {
		b = b.earlier
	}
	return b
}

// hostReady tells the client, or ends the operation if a dependency failed.
func (e *Engine) hostReady(w *wait) {
	h := w.host
	for _, d := range h.deps {
		if d.status < 0 {
			h.failed = FailedWaitList
		}
	}
	if h.failed == 0 {
		h.begun = e.mark(h)
	}
	e.sink.HostReady(h.op, h.failed)
	if h.failed != 0 {
		e.endHost(h, h.failed)
	}
}

func (e *Engine) endHost(h *command, status int32) {
	delete(e.hosts, h.op)
	if status != 0 || !e.endTimed(h) {
		e.closeHost(h, status)
	}
}

func (e *Engine) closeHost(h *command, status int32) {
	if h.begun != 0 {
		e.garbage = append(e.garbage, h.begun)
	}
	h.queue.remove(h)
	e.done(h.event, status)
	e.touch(h.queue)
}

// HostDone ends a host operation. An operation that is not open is ignored: it
// may have failed while the client's message was under way.
func (e *Engine) HostDone(op uint64, status int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.hosts[op]
	if h == nil || !h.open {
		return
	}
	e.endHost(h, min(status, 0))
	e.pump()
}

// Flush hands Flush to the driver.
func (e *Engine) Flush(queue uint64) error {
	e.mu.Lock()
	q := e.queues[queue]
	e.mu.Unlock()
	if q == nil {
		return fmt.Errorf("queue %d: %w", queue, ErrNoQueue)
	}
	if !e.opt.Submitters { // a submitter flushes by itself
		e.driver.Flush(q.native)
	}
	return nil
}
