package session

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/conn"
	"tendril/forwarding/session/transfer"
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
	work     func() api.Status
	after    func() // nil, or runs once when the command is over, whether or not work ran
}

// copyNow does a transfer that has nothing to wait for. No message is sent.
func (c *command) copyNow(t *hostTransfer) api.Status {
	if t.shown != nil {
		t.shown.pin()
		defer t.shown.unpin()
		defer t.shown.keep()()
	}
	transfer.AwaitOthers(t.reads, c.q.w)
	status := t.now()
	c.endHere(status)
	return status
}

// copyInTurn does a blocking transfer when its turn has come.
func (c *command) copyInTurn(t *hostTransfer) api.Status {
	if c.e == nil {
		c.e = c.q.waitedEvent()
		defer c.e.letGo(c.q.w)
	}
	h := c.hostWork(t)
	return h.inTurn()
}

// copyLater leaves a transfer to a goroutine.
func (c *command) copyLater(t *hostTransfer) api.Status {
	h := c.hostWork(t)
	if !t.write {
		h.lands(c.d, &t.host)
	}
	return h.later()
}

// hostWork makes a command of this side's own of a transfer.
func (c *command) hostWork(t *hostTransfer) hostWork {
	own := *t
	h := hostWork{q: c.q, kind: c.kind, wait: c.wait, event: c.e, blocking: t.blocking}
	h.work = func() api.Status {
		transfer.AwaitOthers(own.reads, h.q.w)
		return own.now()
	}
	if t.b != nil {
		h.then(t.b.keep())
	}
	if t.shown != nil {
		h.keeps(t.shown)
	}
	return h
}

// keeps holds an object's shadow and the worker's object until the command is over: the program may unmap and release
// it before.
func (h *hostWork) keeps(owner *Buffer) {
	owner.pin()
	kept := owner.keep()
	h.then(func() {
		kept()
		owner.unpin()
	})
}

// then has f run when the command is over, before what was to run already.
func (h *hostWork) then(f func()) {
	after := h.after
	if after == nil {
		h.after = f
		return
	}
	h.after = func() {
		f()
		after()
	}
}

// over ends what the command held.
func (h *hostWork) over() {
	if h.after != nil {
		h.after()
	}
}

// inTurn carries the command out when the worker says that its turn has come, and returns then.
func (h *hostWork) inTurn() api.Status {
	q := h.q
	gate, id := &conn.Gate{}, q.d.newID()
	q.w.AddGate(id, gate)
	seq, status := h.announce(id)
	if status != cl.SUCCESS {
		q.w.TakeGate(id)
		h.over()
		return status
	}
	began := q.d.began()
	arrived := q.w.Wait(&gate.Completion)
	q.d.tripped(began, causeOfCommand(h.kind), q.w, "")
	if !arrived {
		h.over()
		return cl.OUT_OF_RESOURCES
	}
	return h.carryOut(api.Status(gate.Status), id, seq)
}

// later has the command carried out by a goroutine that starts when its turn comes: nothing waits until then, so
// that any number can be under way and none is woken for another's sake.
func (h hostWork) later() api.Status {
	w, id := h.q.w, h.q.d.newID()
	promptly, announced := w.ReadPromptly(), make(chan uint64, 1)
	ended, background := h.hosted(), &h.q.d.background
	background.Add(1) // here: the goroutine may start while Close waits
	gate := &conn.Gate{}
	gate.Then = func() {
		go func() {
			defer background.Done()
			defer promptly()
			defer ended()
			h.carryOut(api.Status(gate.Status), id, <-announced)
		}()
	}
	w.AddGate(id, gate)
	seq, status := h.announce(id)
	announced <- seq
	// A worker that died before the operation was among the others has not ended it.
	if (status != cl.SUCCESS || w.Dead()) && w.TakeGate(id) != nil {
		h.over()
		ended()
		promptly()
		background.Done()
	}
	return status
}

// hosted says until ended is called that the command may touch the program's memory. Where the worker dies, the
// command's event and the calls that fail wait for that: the program may have other uses for the memory then.
func (h *hostWork) hosted() (ended func()) {
	w := h.q.w
	w.hosting.Add(1)
	if h.event != nil {
		h.event.hosted.Store(true)
	}
	return func() {
		if h.event != nil && w.Dead() {
			h.event.fail(cl.OUT_OF_RESOURCES)
		}
		w.hosting.Add(-1)
	}
}

// timed says that the program may ask for the command's times, which the worker stamps.
func (c *command) timed() bool { return c.e.timed() }

// timed: see command.timed. A nil event is not.
func (e *Event) timed() bool { return e != nil && e.queue.props&cl.QUEUE_PROFILING_ENABLE != 0 }

// endHere ends the event of a command that the worker never heard of.
func (c *command) endHere(status api.Status) {
	if c.e == nil {
		return
	}
	c.e.id = 0
	c.e.advance(int32(min(status, 0)))
}

func (h *hostWork) announce(id uint64) (uint64, api.Status) {
	q := h.q
	q.mu.Lock()
	defer q.mu.Unlock()
	m := &q.pool.host
	m.Op = id
	return q.submitLocked(m, &m.Cmd, h.event, h.wait, 0)
}

// carryOut does the work when the command's turn has come (ready is 0 then, else what it failed of), and says so.
func (h *hostWork) carryOut(ready api.Status, id, seq uint64) api.Status {
	defer h.over()
	w, status := h.q.w, ready
	if status == cl.SUCCESS {
		status = h.work()
	}
	w.MemoryWritten()
	w.SendOneWay(&clwire.HostDone{Op: id, Status: int32(status)})
	w.Kick()
	if w.Dead() {
		return cl.OUT_OF_RESOURCES
	}
	if ready == cl.SUCCESS {
		h.q.ended(seq)
	}
	h.settle(status)
	return status
}

// settle makes the event of a finished command say so before the call returns, or the worker's word arrives.
func (h *hostWork) settle(status api.Status) {
	e := h.event
	if e == nil {
		return
	}
	if status == cl.SUCCESS && h.event.timed() && h.blocking {
		h.q.w.waitEvents(trace.CauseWait, e.id)
	}
	e.advance(int32(min(status, 0)))
}

// lands notes that the command brings bytes into the program's memory at its leisure.
func (h *hostWork) lands(d *Driver, s *hostShape) {
	x, work := d.readHazards.Add(s.ptr.Address(), &s.Side, h.q.w), h.work
	h.work = func() api.Status {
		defer d.readHazards.End(x) // before the worker hears of it
		return work()
	}
	h.then(func() { d.readHazards.End(x) })
}
