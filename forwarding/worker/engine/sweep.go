package engine

import "time"

const (
	// maxGarbage is how many native events are released at once.
	maxGarbage = 64
	// sweepChunk is how many statuses are asked for in one call of the driver.
	sweepChunk = 64
	// pace is the least time between two reports that nobody waits for.
	pace = 100 * time.Microsecond
	// reportPace is the least time between two reports where other workers have their word directly: each report wakes
	// the client, which then lets go of what has ended and so wakes this process.
	reportPace = 2 * time.Millisecond
	// maxPace is the longest pause between two looks at what nobody waits for.
	maxPace = 2 * time.Millisecond
)

// sweep ends what the driver has finished of q and reports whether anything was.
func (e *Engine) sweep(q *queue) bool {
	q.sweeping = true
	ended := false
	if q.outOfOrder {
		ended = e.sweepDisordered(q)
	} else {
		ended = e.sweepOrdered(q)
	}
	q.sweeping = false
	if ended {
		e.takeEnded(q)
	}
	return ended
}

// sweepOrdered is sweep for a queue in order: behind what runs nothing has ended.
func (e *Engine) sweepOrdered(q *queue) (ended bool) {
	for chunk, at := 4, 0; at < len(q.live); chunk = sweepChunk {
		n := min(chunk, len(q.live)-at)
		some, more := e.sweepPart(q, q.live[at:at+n])
		if ended = ended || some; !more {
			break
		}
		at += n
	}
	return ended
}

// sweepDisordered is sweep for a queue out of order. The driver is not asked for what waits for another command of the
// queue: of a long chain, one question is enough. What that one waits for stands before it.
func (e *Engine) sweepDisordered(q *queue) (ended bool) {
	part, sought := e.picked[:0], false
	ask := func() {
		if len(part) > 0 {
			some, _ := e.sweepPart(q, part)
			ended = ended || some
			part = part[:0]
		}
	}
	for _, ev := range q.live {
		if ev.waitsInside(q) {
			if ask(); ev.waitsInside(q) {
				continue
			}
			if !sought {
				sought = true
				e.seekChains(q)
			}
		}
		if ev.state == stateDone {
			ended = true
			continue
		}
		if part = append(part, ev); len(part) == sweepChunk {
			ask()
		}
	}
	ask()
	e.picked = part
	clear(e.picked[:cap(e.picked)])
	return ended
}

// seekChains looks how far chains have come that have begun to end: with a command, all that it waited for has ended.
// Mostly that is the newest one. Else it is sought by halves, which is right for one chain; of several the caller finds
// the rest.
func (e *Engine) seekChains(q *queue) {
	running := e.newestInside(q, len(q.live))
	for running >= 0 && e.endInside(q, running) {
		running = e.newestInside(q, running)
	}
	for from := 0; from < running; {
		half := (from + running) / 2
		i := e.newestInside(q, half+1)
		switch {
		case i < from || e.endInside(q, i):
			from = half + 1
		default:
			running = i
		}
	}
}

// newestInside is where the newest command before a place is that waits for another of the queue; -1: there is none.
func (e *Engine) newestInside(q *queue, before int) int {
	for i := before - 1; i >= 0; i-- {
		if ev := q.live[i]; ev.state == stateSubmitted && ev.waitsInside(q) {
			return i
		}
	}
	return -1
}

// endInside asks for one command's end.
func (e *Engine) endInside(q *queue, at int) bool {
	e.sweepPart(q, q.live[at:at+1])
	return q.live[at].state == stateDone
}

// waitsInside says whether the event's command waits for another of its queue that has not been seen to end.
func (ev *event) waitsInside(q *queue) bool {
	for _, d := range ev.deps {
		if d.queue == q && d.state == stateSubmitted {
			return true
		}
	}
	return false
}

// sweepPart is sweep for so many events in a row; more: those behind may have ended, too.
func (e *Engine) sweepPart(q *queue, part []*event) (ended, more bool) {
	var room [sweepChunk]int32
	status := room[:copy(room[:], e.probe(part))] // ending one event may look at others
	q.log.Look()
	for i, ev := range part {
		switch {
		case ev.state == stateDone:
			ended = true
		case status[i] <= 0:
			e.done(ev, status[i])
			ended = true
		default:
			if e.stillRuns(ev, status[i]); !q.outOfOrder {
				return ended, false
			}
		}
	}
	return ended, true
}

// takeEnded takes out of a queue's live list what has ended.
func (e *Engine) takeEnded(q *queue) {
	keep := q.live[:0]
	for _, ev := range q.live {
		if ev.state != stateDone {
			keep = append(keep, ev)
		}
	}
	clear(q.live[len(keep):])
	q.live, q.ended = keep, 0
	e.retire(q)
}

func (e *Engine) probe(events []*event) []int32 {
	e.probes = e.probes[:0]
	for _, ev := range events {
		e.probes = append(e.probes, ev.native)
	}
	return e.ask()
}

// ask returns the statuses of probes.
func (e *Engine) ask() []int32 {
	if cap(e.statuses) < len(e.probes) {
		e.statuses = make([]int32, max(len(e.probes), sweepChunk))
	}
	status := e.statuses[:len(e.probes)]
	e.driver.Statuses(e.probes, status)
	return status
}

func (e *Engine) stillRuns(ev *event, s int32) {
	if ev.watchRunning && s <= Running {
		ev.watchRunning = false
		ev.queue.running--
		e.tell(End{Event: ev.id, Status: Running}, true)
	}
}

func (e *Engine) sweepAll() {
	for _, q := range e.open {
		if len(q.live) > 0 {
			e.sweep(q)
		}
	}
}

// Poll ends what is done of the queues that somebody waits for, and reports whether somebody still waits. Where nobody
// does it lets go of what has ended.
func (e *Engine) Poll() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.urgent == 0 {
		e.collect() // while nothing is asked for
		return false
	}
	for _, q := range e.open {
		e.start(q)
		if q.urgent > 0 && (len(q.live) == 1 || e.awaitedEnded(q)) { // one is asked for once
			e.sweep(q)
		}
	}
	e.pump()
	return e.urgent > 0
}

// Awaited says whether somebody waits for an end.
func (e *Engine) Awaited() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.urgent > 0
}

// awaitedEnded asks the driver for what somebody waits for alone: a look at each event of a chain would take its lock
// from the thread that is about to end it, for every look.
func (e *Engine) awaitedEnded(q *queue) bool {
	if q.running > 0 {
		return true // somebody waits for a beginning
	}
	e.probes = e.probes[:0]
	for _, ev := range q.live {
		if !ev.urgent {
			continue
		}
		if e.probes = append(e.probes, ev.native); !q.outOfOrder || len(e.probes) == q.urgent {
			break // in order the first ends first
		}
	}
	for _, status := range e.ask() {
		if status <= 0 {
			return true
		}
	}
	return false
}

// Tick ends and reports what is done, waited for or not. The caller calls it
// now and then while it is busy, at most every 100 µs.
func (e *Engine) Tick() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.look()
	e.report()
	e.collect()
}

// Look is Tick for who calls it over and over: what nobody waits for may be reported a little later.
func (e *Engine) Look() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.look()
	e.sendDue()
}

// start makes the driver start what was submitted past a submitter.
func (e *Engine) start(q *queue) {
	if q.unflushed {
		q.unflushed = false
		e.driver.Flush(q.native)
	}
}

// look sweeps everything.
func (e *Engine) look() {
	e.longhand()
	for _, q := range e.open {
		e.start(q)
	}
	e.sweepAll()
	e.pump()
}

// sendDue reports, unless it is better to gather for a while; the pacer then sends.
func (e *Engine) sendDue() {
	if !e.gathers || e.hurry || time.Since(e.reported) >= reportPace {
		e.report()
	}
}

// Park reports what is done. The caller may sleep until Unpark: where nobody else polls, the rest is left to waiters,
// which block in the driver. A new engine has one caller that polls.
func (e *Engine) Park() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.awake--
	e.look()
	e.sendDue()
	e.collect()
	if e.awake == 0 {
		e.startWaiters()
	}
}

// Unpark says that a caller polls (again): it calls Poll, and Tick now and then, until it Parks. Waiters finish what
// they are at.
func (e *Engine) Unpark() {
	e.mu.Lock()
	e.awake++
	e.mu.Unlock()
}

// startWaiters sees that somebody follows the driver while the caller sleeps:
// a waiter for each queue that somebody waits for, the pacer for the rest, reports too.
func (e *Engine) startWaiters() {
	if e.closed {
		return
	}
	for _, q := range e.open {
		if q.urgent > 0 && !q.waiting {
			q.waiting = true
			e.work.Go(func() { e.waitFor(q) })
		}
	}
	if !e.pacing && e.unattended() {
		e.pacing = true
		e.work.Go(e.keepPace)
	}
}

// unattended says whether there is more to do than waiters do.
func (e *Engine) unattended() bool {
	return len(e.ends) > 0 || e.unfollowed()
}

// unfollowed says whether there is more to follow than waiters block on.
func (e *Engine) unfollowed() bool {
	for _, q := range e.open {
		if len(q.live) > min(q.urgent, 1) || q.running > 0 {
			return true
		}
	}
	return false
}

// collect releases native events in one call.
func (e *Engine) collect() {
	if len(e.garbage) > 0 {
		e.driver.Release(e.garbage)
		e.garbage = e.garbage[:0]
	}
}

// waitFor blocks on what somebody waits for of one queue, one event at a time.
// It does not block on the others: waking for each of a chain of short commands
// would cost the driver's threads more than the commands do.
func (e *Engine) waitFor(q *queue) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for q.urgent > 0 && !e.closed {
		for _, ev := range q.live {
			if ev.urgent {
				e.block(ev)
				break
			}
		}
		e.sweep(q)
		e.pump()
		e.collect()
	}
	q.waiting = false
}

// keepPace looks after events that nobody blocks on.
func (e *Engine) keepPace() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for pause := pace; !e.closed && e.unattended(); {
		if !e.unfollowed() {
			pause = reportPace
		}
		e.pauseFor(pause)
		ended := false
		for _, q := range e.open {
			ended = e.sweep(q) || ended
		}
		e.pump()
		e.sendDue()
		e.collect()
		if pause = min(2*pause, maxPace); ended {
			pause = pace
		}
	}
	e.pacing = false
}

// block waits for one event without the lock. A driver may wake before the status says so.
func (e *Engine) block(ev *event) {
	ev.pins++
	native := ev.native
	e.mu.Unlock()
	e.driver.Wait(native)
	e.mu.Lock()
	e.unpin(ev)
}

func (e *Engine) pauseFor(d time.Duration) {
	e.mu.Unlock()
	time.Sleep(d)
	e.mu.Lock()
}

// Close stops and joins the engine's goroutines and drops what was held. What
// the driver still has stays its own. The driver must let go of blocked waits:
// a process that cannot be sure of that exits instead.
func (e *Engine) Close() {
	e.mu.Lock()
	e.closed = true
	for _, q := range e.open {
		if q.submitter != nil {
			close(q.submitter)
			q.submitter = nil
		}
		q.gone = nil
	}
	e.mu.Unlock()
	e.work.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, q := range e.open {
		for _, h := range q.held {
			if h.task != nil {
				h.task.Drop()
			}
		}
		q.held, q.ready = nil, nil
	}
	e.collect()
}
