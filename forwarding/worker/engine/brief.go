package engine

import "time"

// A brief finish is answered by the driver's own: the caller blocks in it (FinishBrief), instead of asking for the end
// of the last command again and again. That saves an event, a flush and the last question: 2 to 3 µs of some 20 on
// NVIDIA. It is for a queue that has been used alone and has been waited for a short time before each of the last
// finishes. While the caller is in the driver nobody polls, so nothing else may be awaited.

const (
	// briefWait is how long a wait may take that is called short. Behind longer ones the rest of a step costs more than
	// what is saved: of kernels of 100 µs a brief finish took as long as another.
	briefWait = 50 * time.Microsecond
	// surelyBrief is how many waits in a row have been short, for the next one to be expected to be.
	surelyBrief = 8
)

// usedAlone notes that a queue is used. One that others are used beside has no brief finishes: they would wait for it.
func (e *Engine) usedAlone(q *queue) {
	if e.alone != q {
		e.alone = q
		q.bursts.short = 0
	}
}

// mayBeBrief says whether a finish behind what q was given is expected to be brief.
func (e *Engine) mayBeBrief(q *queue) bool {
	return e.opt.Brief && q.bursts.short >= surelyBrief && !q.outOfOrder && q.clock == 0 && !e.all &&
		len(q.live) == 0 && len(q.held) == 0 && !q.submitting && !q.finishing && e.urgent == 0 && e.brief == nil
}

// Brief says whether somebody waits for FinishBrief.
func (e *Engine) Brief() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.brief != nil
}

// FinishBrief blocks in the driver's finish until what Brief tells of has ended, and answers. Meanwhile others may call
// the engine, and it stays theirs to poll.
func (e *Engine) FinishBrief() {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := e.brief
	if w == nil || e.urgent > 0 { // somebody waits for something else by now
		e.longhand()
		e.pump()
		return
	}
	e.brief = nil
	q := w.queue
	q.finishing, q.unflushed = true, false
	sent, given := q.sent, q.given
	e.mu.Unlock()
	status := e.driver.Finish(q.native)
	e.mu.Lock()
	q.finishing = false
	if e.closed {
		return
	}
	q.seen = max(q.seen, sent)
	if q.sent == sent {
		q.fresh = false // who waits again has nothing new to wait for
	}
	q.log.Look()
	q.log.End(given, true, min(status, 0))
	if status < 0 && q.latched == 0 {
		q.latched = status
		e.sink.Fault(0, q.id, status, "the command failed on the device")
	}
	e.fired = append(e.fired, w)
	e.retire(q)
	e.pump()
}

// longhand has a brief finish that nobody has begun with waited for as any other.
func (e *Engine) longhand() {
	if w := e.brief; w != nil {
		e.brief = nil
		e.await(w)
	}
}
