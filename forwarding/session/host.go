package session

import (
	"tendril/forwarding/clwire"
	"tendril/forwarding/trace"
)

// hostWork is a command that this side carries out itself: reads, writes and maps. work runs when what the command
// must wait for is done; it returns 0 or the command's failure.
type hostWork struct {
	q        *Queue
	wait     []uint64 // events that may not have ended
	event    *Event   // nil: nobody wants one
	blocking bool
	kind     uint32
	prompt   bool // run by the caller if nothing is outstanding, though the call does not block
	work     func() Status
	after    func() // nil, or runs once when the command is over, whether or not work ran
}

// keeps holds an object's shadow and the worker's object until the command is over: the program may unmap and release it before.
func (h *hostWork) keeps(owner *Buffer) {
	owner.pin()
	moved, after := owner.moving(), h.after
	h.after = func() {
		moved()
		owner.unpin()
		if after != nil {
			after()
		}
	}
}

// over ends what the command held.
func (h *hostWork) over() {
	if h.after != nil {
		h.after()
	}
}

// run carries the command out. Where nothing is outstanding that it must wait for, no message is sent.
func (h *hostWork) run() Status {
	q := h.q
	if h.free() && (h.blocking || h.prompt) {
		status := h.work()
		h.endHere(status)
		h.over()
		return status
	}
	if h.blocking && h.event == nil {
		h.event = q.waitedEvent()
		defer h.event.letGo(q.w)
	}
	if !h.blocking {
		return h.runLater()
	}
	op, id := &hostOp{}, q.d.newID()
	q.w.mu.Lock()
	q.w.ops[id] = op
	q.w.mu.Unlock()
	seq, status := h.announce(id)
	if status != Success {
		q.w.takeOp(id)
		h.over()
		return status
	}
	began := q.d.began()
	arrived := q.w.reader.wait(&op.completion, q.w.spin)
	q.d.tripped(began, causeOfCommand(h.kind), q.w, "")
	if !arrived {
		h.over()
		return OutOfResources
	}
	return h.carryOut(op.status, id, seq)
}

// runLater has the command carried out by a goroutine that starts when its turn comes: nothing waits until then, so
// that any number can be under way and none is woken for another's sake.
func (h *hostWork) runLater() Status {
	w, id := h.q.w, h.q.d.newID()
	promptly, announced := w.reader.want(), make(chan uint64, 1)
	ended := h.hosted()
	op := &hostOp{}
	op.then = func() {
		go func() {
			defer promptly()
			defer ended()
			h.carryOut(op.status, id, <-announced)
		}()
	}
	w.mu.Lock()
	w.ops[id] = op
	w.mu.Unlock()
	seq, status := h.announce(id)
	announced <- seq
	// A worker that died before the operation was among the others has not ended it.
	if (status != Success || w.dead.Load()) && w.takeOp(id) != nil {
		h.over()
		ended()
		promptly()
	}
	return status
}

// hosted says until ended is called that the command may touch the program's memory. Where the worker dies, the command's event and the
// calls that fail wait for that: the program may have other uses for the memory then.
func (h *hostWork) hosted() (ended func()) {
	w := h.q.w
	w.hosting.Add(1)
	if h.event != nil {
		h.event.hosted.Store(true)
	}
	return func() {
		if h.event != nil && w.dead.Load() {
			h.event.fail(OutOfResources)
		}
		w.hosting.Add(-1)
	}
}

// free says that there is nothing to wait for and nobody to tell.
func (h *hostWork) free() bool {
	return len(h.wait) == 0 && (h.q.idle() || h.unordered()) && !h.timed()
}

// unordered says that the queue orders nothing before this command but its (empty) wait list.
func (h *hostWork) unordered() bool { return h.q.outOf && !h.q.gated.Load() }

// timed says that the program may ask for the command's times, which the worker stamps.
func (h *hostWork) timed() bool { return h.event != nil && h.q.props&queueProfiling != 0 }

// endHere ends the event of a command that the worker never heard of.
func (h *hostWork) endHere(status Status) {
	if h.event == nil {
		return
	}
	h.event.id = 0
	h.event.advance(int32(min(status, 0)))
}

func (h *hostWork) announce(id uint64) (uint64, Status) {
	q := h.q
	q.mu.Lock()
	defer q.mu.Unlock()
	m := &q.pool.host
	m.Op = id
	return q.submitLocked(m, &m.Cmd, h.event, h.wait, 0)
}

// carryOut does the work when the command's turn has come (ready is 0 then, else what it failed of), and says so.
func (h *hostWork) carryOut(ready Status, id, seq uint64) Status {
	defer h.over()
	w, status := h.q.w, ready
	if status == Success {
		status = h.work()
	}
	w.copied.Add(1)
	w.tell(&clwire.HostDone{Op: id, Status: int32(status)})
	w.link.Kick()
	if w.dead.Load() {
		return OutOfResources
	}
	if ready == Success {
		h.q.ended(seq)
	}
	h.settle(status)
	return status
}

// settle makes the event of a finished command say so before the call returns, or the worker's word arrives.
func (h *hostWork) settle(status Status) {
	e := h.event
	if e == nil {
		return
	}
	if status == Success && h.timed() && h.blocking {
		h.q.w.waitEvents(trace.CauseWait, e.id)
	}
	e.advance(int32(min(status, 0)))
}

// waitEvents waits until the worker has reported the events: 0, −14 where one failed, −5 when the worker died.
func (w *worker) waitEvents(cause trace.Cause, ids ...uint64) Status {
	for len(ids) > 0 {
		n := min(len(ids), clwire.MaxWait)
		c, err := w.askFor(cause, "", &clwire.Wait{Events: ids[:n]})
		if err != nil {
			return OutOfResources
		}
		if c.status != Success {
			return c.status
		}
		ids = ids[n:]
	}
	return Success
}
