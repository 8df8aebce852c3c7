package engine

// The client is told of no end before those of everything that the command came after. A program that knows one command
// to have ended may look at what the others were to bring: a small read on another queue, memory of its own under a
// buffer. A sweep looks at one queue after another, and so may see a command's end and have looked at what that waited
// for too early.

// precede ends what an event's command came after. The driver has it done, or the command would not have run; of the
// same queue in order it is done already. Where the command went well, so did all that it waited for (OpenCL 3.0
// §5.11): the driver is not asked.
func (e *Engine) precede(ev *event, status int32) {
	ran := status == 0 && ev.state == stateSubmitted
	for _, d := range ev.deps {
		if ran && d.state == stateSubmitted && d.queue.outOfOrder {
			e.endWell(d)
			continue
		}
		e.endThrough(d)
	}
	for _, d := range ev.behind {
		e.endThrough(d)
	}
}

// endWell ends an event of a queue out of order that has gone well.
func (e *Engine) endWell(d *event) { e.ending(d.queue, func() { e.done(d, 0) }) }

// ending calls end, which ends events of q, and takes them out of what is live: once, behind the outermost call. Of a
// chain each event ends within the call for the one behind it.
func (e *Engine) ending(q *queue, end func()) {
	first := !q.sweeping
	q.sweeping = true
	end()
	if first {
		q.sweeping = false
		e.takeEnded(q)
	}
}

// endThrough ends an event, and what comes before it on its queue in order.
func (e *Engine) endThrough(d *event) {
	if d.state != stateSubmitted {
		return
	}
	q := d.queue
	e.ending(q, func() {
		if q.outOfOrder {
			e.endSeen(d)
			return
		}
		for _, x := range q.live {
			if !e.endSeen(x) || x == d {
				break
			}
		}
	})
}

// endSeen ends an event if the driver has it done, and reports whether it has ended.
func (e *Engine) endSeen(ev *event) bool {
	if ev.state == stateDone {
		return true
	}
	var status [1]int32
	if e.driver.Statuses([]Native{ev.native}, status[:]); status[0] > 0 {
		return false
	}
	e.done(ev, status[0])
	return true
}

// fewBehind is how many events a queue keeps before it looks which have ended.
const fewBehind = 64

// comesAfter notes what a command that nobody follows waits for.
func (q *queue) comesAfter(d *event) {
	if d.queue == q && !q.outOfOrder {
		return
	}
	if len(q.behind) >= max(q.manyBehind, fewBehind) {
		keep := q.behind[:0]
		for _, x := range q.behind {
			if x.state != stateDone {
				keep = append(keep, x)
			}
		}
		clear(q.behind[len(keep):])
		q.behind, q.manyBehind = keep, 2*len(keep)
	}
	q.behind = append(q.behind, d)
}

// putBehind gives an event that is now followed what came before it on its queue unfollowed, or by the rules of a queue
// out of order. There only a marker or barrier behind everything takes what unfollowed commands waited for: another
// command may end long before those.
func (q *queue) putBehind(ev *event) {
	if !q.outOfOrder {
		ev.behind, q.behind = q.behind, nil
		return
	}
	if ev.all {
		ev.behind, q.behind = append(q.behind, q.live...), nil
		return
	}
	b := q.barrier
	if b == ev {
		b = ev.earlier
	}
	if b != nil && b.state == stateSubmitted {
		ev.behind = append(ev.behind, b)
	}
}
