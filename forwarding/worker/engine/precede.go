package engine

// The client is told of no end before those of everything that the command came after. A program that knows one command
// to have ended may look at what the others were to bring: a small read on another queue, memory of its own under a
// buffer. A sweep looks at one queue after another, and so may see a command's end and have looked at what that waited
// for too early.

// step is an event that is about to end, and how far the engine has come with what it came after.
type step struct {
	ev      *event
	status  int32
	next    int    // place in deps, and then in behind
	through *event // nil, or on its queue in order the events up to this one are looked at
}

// keptSteps is for how many steps the room is kept.
const keptSteps = 1024

// done ends an event: its watchers are told, its dependents freed or failed. Before that it ends what the event's
// command came after. The driver has it done, or the command would not have run; of the same queue in order it is done
// already. A chain may have any length: what is about to end is in a list, and not on the stack.
//
// The caller takes the event out of its queue's live list. The others are taken out here, once.
func (e *Engine) done(ev *event, status int32) {
	if len(ev.deps) == 0 && len(ev.behind) == 0 {
		e.conclude(ev, status)
		return
	}
	base, swept := len(e.steps), len(e.swept) // an event's end may end another
	e.steps = append(e.steps, step{ev: ev, status: status})
	for len(e.steps) > base {
		top := len(e.steps) - 1
		if d, status, ok := e.before(&e.steps[top]); ok {
			e.steps = append(e.steps, step{ev: d, status: status})
			continue
		}
		s := e.steps[top]
		e.steps[top] = step{}
		e.steps = e.steps[:top]
		e.conclude(s.ev, s.status)
	}
	if base == 0 && cap(e.steps) > keptSteps {
		e.steps = nil
	}
	for len(e.swept) > swept {
		q := e.swept[len(e.swept)-1]
		e.swept = e.swept[:len(e.swept)-1]
		q.sweeping = false
		e.takeEnded(q)
	}
}

// before gives the next event that ends before a step's, with its status. Where the command went well, so did all that
// it waited for (OpenCL 3.0 §5.11): the driver is not asked about events of queues out of order.
func (e *Engine) before(s *step) (d *event, status int32, ok bool) {
	for {
		if s.through != nil {
			if d, status, ok = e.nextThrough(s); ok {
				return d, status, true
			}
		}
		n := s.next - len(s.ev.deps)
		switch {
		case n < 0:
			d = s.ev.deps[s.next]
		case n < len(s.ev.behind):
			d = s.ev.behind[n]
		default:
			return nil, 0, false
		}
		s.next++
		if d.state != stateSubmitted {
			continue
		}
		q := d.queue
		if !q.sweeping {
			q.sweeping = true
			e.swept = append(e.swept, q)
		}
		switch {
		case !q.outOfOrder:
			s.through = d
		case n < 0 && s.status == 0 && s.ev.state == stateSubmitted:
			return d, 0, true
		default:
			if status = e.statusOf(d); status <= 0 {
				return d, status, true
			}
		}
	}
}

// nextThrough gives the next event that has ended on the queue in order that a step looks at.
func (e *Engine) nextThrough(s *step) (d *event, status int32, ok bool) {
	last := s.through
	s.through = nil
	if last.state == stateDone {
		return nil, 0, false
	}
	q := last.queue
	for q.live[q.ended].state == stateDone {
		q.ended++
	}
	d = q.live[q.ended]
	if status = e.statusOf(d); status > 0 {
		return nil, 0, false
	}
	if d != last {
		s.through = last
	}
	return d, status, true
}

// statusOf asks the driver about one event.
func (e *Engine) statusOf(ev *event) int32 {
	var status [1]int32
	e.driver.Statuses([]Native{ev.native}, status[:])
	ev.queue.log.Look()
	return status[0]
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
