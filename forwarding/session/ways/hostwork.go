package ways

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
	s        *Session
	q        Queue
	wait     []uint64 // events that may not have ended
	event    Event    // nil: nobody wants one
	blocking bool
	kind     uint32
	work     func() api.Status
	after    func() // nil, or runs once when the command is over, whether or not work ran
}

// Later has work carried out by a goroutine as a command of the queue, when its turn has come. The event may be nil.
func (s *Session) Later(q Queue, event Event, wait []uint64, work func() api.Status) api.Status {
	return hostWork{s: s, q: q, wait: wait, event: event, work: work}.later()
}

// copyNow does a transfer that has nothing to wait for. No message is sent.
func (c *Command) copyNow(t *Transfer) api.Status {
	if t.Shown != nil {
		done, status := keepShown(t.Shown)
		if status != cl.SUCCESS {
			return status
		}
		defer done()
	}
	if len(t.reads) > 0 {
		transfer.AwaitOthers(t.reads, c.Queue.Worker())
	}
	status := t.now(c.Context)
	c.endHere(status)
	return status
}

// copyInTurn does a blocking transfer when its turn has come.
func (c *Command) copyInTurn(t *Transfer) api.Status {
	if made := c.waited(); made != nil {
		defer made.LetGo()
	}
	h, status := c.hostWork(t)
	if status != cl.SUCCESS {
		return status
	}
	return h.inTurn()
}

// copyLater leaves a transfer to a goroutine.
func (c *Command) copyLater(t *Transfer) api.Status {
	h, status := c.hostWork(t)
	if status != cl.SUCCESS {
		return status
	}
	if !t.Write {
		h.lands(&t.Host)
	}
	return h.later()
}

// hostWork makes a command of this side's own of a transfer. It holds nothing if it fails.
func (c *Command) hostWork(t *Transfer) (h hostWork, status api.Status) {
	own, ctx := *t, c.Context
	h = hostWork{s: c.Session, q: c.Queue, kind: c.Kind, wait: c.Wait, event: c.Event, blocking: t.Blocking}
	w := h.q.Worker()
	h.work = func() api.Status {
		transfer.AwaitOthers(own.reads, w)
		return own.now(ctx)
	}
	if t.Buffer != nil {
		status = h.holds(t.Buffer.Keep())
	}
	if t.Shown != nil && status == cl.SUCCESS {
		status = h.holds(keepShown(t.Shown))
	}
	if status != cl.SUCCESS {
		h.over()
	}
	return h, status
}

// holds takes what Keep or keepShown gave.
func (h *hostWork) holds(done func(), status api.Status) api.Status {
	if status == cl.SUCCESS {
		h.then(done)
	}
	return status
}

// keepShown holds an object's shadow and the worker's object: the program may unmap and release it meanwhile.
func keepShown(owner Buffer) (done func(), status api.Status) {
	owner.Pin()
	kept, status := owner.Keep()
	if status != cl.SUCCESS {
		owner.Unpin()
		return nil, status
	}
	return func() { kept(); owner.Unpin() }, cl.SUCCESS
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
	w := h.q.Worker()
	gate, id := &conn.Gate{}, h.s.NewID()
	w.AddGate(id, gate)
	seq, status := h.q.SubmitHost(id, h.event, h.wait)
	if status != cl.SUCCESS {
		w.TakeGate(id)
		h.over()
		return status
	}
	began := w.Began()
	arrived := w.Wait(&gate.Completion)
	w.Tripped(began, causeOfCommand(h.kind), "")
	if !arrived {
		h.over()
		return cl.OUT_OF_RESOURCES
	}
	return h.carryOut(api.Status(gate.Status), id, seq)
}

// later has the command carried out by a goroutine that starts when its turn comes: nothing waits until then, so
// that any number can be under way and none is woken for another's sake.
func (h hostWork) later() api.Status {
	w, id := h.q.Worker(), h.s.NewID()
	promptly, announced := w.ReadPromptly(), make(chan uint64, 1)
	ended, background := h.hosted(), h.s.Background
	background.Add(1) // here: the goroutine may start while the session is being closed
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
	seq, status := h.q.SubmitHost(id, h.event, h.wait)
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
	w := h.q.Worker()
	w.Hosting(1)
	if h.event != nil {
		h.event.Host()
	}
	return func() {
		if h.event != nil && w.Dead() {
			h.event.Fail(cl.OUT_OF_RESOURCES)
		}
		w.Hosting(-1)
	}
}

// carryOut does the work when the command's turn has come (ready is 0 then, else what it failed of), and says so.
func (h *hostWork) carryOut(ready api.Status, id, seq uint64) api.Status {
	defer h.over()
	w, status := h.q.Worker(), ready
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
		h.q.Ended(seq)
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
	if status == cl.SUCCESS && e.Timed() && h.blocking {
		h.q.Worker().WaitEvents(trace.CauseWait, e.Number())
	}
	e.Advance(int32(min(status, 0)))
}

// lands notes that the command brings bytes into the program's memory at its leisure.
func (h *hostWork) lands(host *Host) {
	reads := &h.s.Reads
	x, work := reads.Add(host.Ptr.Address(), &host.Side, h.q.Worker()), h.work
	h.work = func() api.Status {
		defer reads.End(x) // before the worker hears of it
		return work()
	}
	h.then(func() { reads.End(x) })
}
