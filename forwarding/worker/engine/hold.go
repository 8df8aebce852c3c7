package engine

// command is one that could not be submitted at once. Guarded by Engine.mu.
type command struct {
	kind     Kind
	queue    *queue
	task     Task
	event    *event // never nil
	deps     []*event
	blockers int
	failed   int32 // ≠ 0: never runs, ends with this
	open     bool  // a host operation waits for completion, then for HostDone
	op       uint64
	begun    Native // of a host operation: the device's time when its turn came; 0: nobody wants to know
	request  uint64 // Finish; or a verdict already given
	barrier  *event // out of order: the last barrier before it
}

// hold keeps a command until its dependencies let it go, which may be at once.
func (e *Engine) hold(q *queue, c *Command, after []*event, ev *event) {
	if ev == nil {
		ev = &event{}
	}
	ev.queue = q
	ev.number = q.log.Take(c.Label)
	h := &command{kind: c.Kind, queue: q, event: ev, op: c.Op, request: c.Request}
	if c.Task != nil {
		h.task = c.Task.Keep()
	}
	for _, d := range after {
		e.depend(h, d, waits)
	}
	if c.Gate != nil {
		e.depend(h, c.Gate.ev, gates)
	}
	if q.outOfOrder {
		h.barrier = q.barrier
		e.orderAfter(h, len(c.Wait) == 0)
	}
	if c.Kind == KindHost {
		e.hosts[c.Op] = h
	}
	if c.Kind == KindHost || h.blockers > 0 {
		ev.queued = e.mark(h) // the driver hears of it later
	}
	if c.Kind == KindBarrier && q.outOfOrder {
		ev.earlier, q.barrier = standing(q.barrier), ev
	}
	e.add(h)
}

func (e *Engine) add(h *command) {
	q := h.queue
	q.held = append(q.held, h)
	if h.blockers == 0 {
		e.release(h)
	}
	if h.request != 0 && h.kind != kindFinish && q.gated(h) {
		// The driver's verdict may be long in coming: the engine accepts.
		e.sink.Reply(h.request, 0)
		h.request = 0
	}
}

// gated says whether h, the last of q, waits for more than its turn.
func (q *queue) gated(h *command) bool {
	if q.outOfOrder || h.blockers > 0 {
		return h.blockers > 0
	}
	for _, x := range q.held {
		if x.blockers > 0 || x.kind == KindHost {
			return true
		}
	}
	return false
}

// orderAfter adds what the order of an out-of-order queue asks: everything
// after a barrier, and a barrier or marker without a list after everything.
func (e *Engine) orderAfter(h *command, noList bool) {
	q := h.queue
	all := h.kind == kindFinish || noList && (h.kind == KindBarrier || h.kind == KindMarker)
	if all {
		for _, b := range q.held {
			e.depend(h, b.event, orders)
		}
		return
	}
	if q.barrier != nil {
		e.depend(h, q.barrier, orders)
	}
}

// depend makes h wait for an event, as far as it must.
func (e *Engine) depend(h *command, d *event, how relation) {
	if how == waits {
		h.deps = append(h.deps, d)
	}
	switch {
	case d.state == stateHeld:
		d.dependents = append(d.dependents, dependent{h, how})
		h.blockers++
	case d.state == stateDone && d.status < 0 && h.failed == 0:
		if how == waits {
			h.failed = FailedWaitList
		} else if how == gates {
			h.failed = d.status
		}
	}
}

// release says that nothing blocks h any more but, in order, what stands before it.
func (e *Engine) release(h *command) {
	if h.queue.outOfOrder {
		h.queue.ready = append(h.queue.ready, h)
	}
	e.touch(h.queue)
}

func (e *Engine) touch(q *queue) {
	if !q.isDirty {
		q.isDirty = true
		e.dirty = append(e.dirty, q)
	}
}

// due returns the command to run now, or nil.
func (q *queue) due() *command {
	if q.outOfOrder {
		if len(q.ready) == 0 {
			return nil
		}
		return q.ready[0]
	}
	if len(q.held) == 0 || q.held[0].blockers > 0 || q.held[0].open {
		return nil
	}
	return q.held[0]
}

// next takes the command to run now, or nil.
func (q *queue) next() *command {
	h := q.due()
	if h != nil && q.outOfOrder {
		q.ready = q.ready[1:]
	}
	return h
}

// remove takes h out of the held list.
func (q *queue) remove(h *command) {
	if len(q.held) > 0 && q.held[0] == h {
		q.held[0] = nil
		q.held = q.held[1:]
		return
	}
	for i, x := range q.held {
		if x == h {
			q.held = append(q.held[:i], q.held[i+1:]...)
			return
		}
	}
}

// pump runs what has become free, then tells the client what happened. Every
// public method ends with it.
func (e *Engine) pump() {
	for {
		e.drain()
		for n := 0; n != len(e.fired); {
			// Ends that an answer depends on go before it; they may bring more answers.
			n = len(e.fired)
			e.sweepAll()
			e.drain()
		}
		e.flush()
		if len(e.dirty) == 0 && len(e.fired) == 0 {
			break
		}
	}
	if len(e.garbage) >= maxGarbage {
		e.collect()
	}
	if e.awake == 0 {
		e.startWaiters() // a submitter, a build or another worker brought this about
	}
}

func (e *Engine) drain() {
	for len(e.dirty) > 0 {
		q := e.dirty[len(e.dirty)-1]
		e.dirty = e.dirty[:len(e.dirty)-1]
		q.isDirty = false
		if e.opt.Submitters {
			e.runHosts(q)
			e.wakeSubmitter(q)
			continue
		}
		for h := q.next(); h != nil; h = q.next() {
			if e.awake == 0 {
				q.log.Tick() // the reader, which does that, sleeps
			}
			e.run(h)
		}
		e.retire(q)
	}
}

// runHosts lets host operations go whose turn it is. That takes the driver a marker at most, as a finish does: no
// submitter is woken for it.
func (e *Engine) runHosts(q *queue) {
	ran := false
	for h := q.due(); h != nil && h.kind == KindHost && !q.submitting; h = q.due() {
		e.run(q.next())
		ran = true
	}
	if ran && e.awake == 0 {
		e.start(q)
	}
}

func (e *Engine) wakeSubmitter(q *queue) {
	if q.gone == nil {
		return
	}
	if q.due() != nil {
		select {
		case q.submitter <- struct{}{}:
		default:
		}
	}
	if len(q.held) == 0 {
		e.retire(q)
	}
}

// runSubmitter submits one queue's commands, outside the engine's lock.
func (e *Engine) runSubmitter(q *queue, submitter <-chan struct{}) {
	for range submitter {
		e.mu.Lock()
		q.log.Tick()
		some := false
		for h := q.next(); h != nil && !e.closed; h = q.next() {
			e.run(h)
			e.pump()
			some = true
		}
		native := q.native
		q.submitting = some
		e.mu.Unlock()
		if some {
			e.driver.Flush(native)
			e.mu.Lock()
			q.submitting = false
			e.retire(q)
			e.mu.Unlock()
		}
	}
}

// run carries a free command out: with the driver, or with the client.
func (e *Engine) run(h *command) {
	for _, d := range h.deps {
		// It was with the driver when h began to wait, and has failed since.
		if d.state == stateDone && d.status < 0 && h.failed == 0 {
			h.failed = FailedWaitList
		}
	}
	switch {
	case h.kind == KindHost:
		e.runHost(h)
	case h.failed != 0:
		e.fail(h)
	case h.kind == kindFinish:
		h.queue.remove(h)
		e.finish(h.queue, h.request, false)
		e.done(h.event, 0)
	default:
		e.submit(h)
	}
}

// fail ends a command that never runs.
func (e *Engine) fail(h *command) {
	h.queue.remove(h)
	if h.task != nil {
		h.task.Drop()
	}
	if h.failed != FailedWaitList {
		e.refused(h.queue, h.event, h.failed, "what the command needs could not be made", h.request)
		return
	}
	if h.request != 0 {
		e.sink.Reply(h.request, 0)
	}
	e.done(h.event, h.failed)
}

func (e *Engine) submit(h *command) {
	q := h.queue
	natives := make([]Native, 0, len(h.deps))
	for _, d := range h.deps {
		if d.state == stateSubmitted {
			natives = append(natives, d.native)
			d.pins++
			h.event.comesAfter(d)
		}
	}
	var native Native
	var status int32
	var text string
	want := e.all || h.event.id != 0 || len(h.event.dependents) > 0 || len(q.held) <= 1 || q.outOfOrder ||
		q.held[1].kind != KindTask
	q.log.Give(h.event.number)
	if e.opt.Submitters {
		q.submitting = true
		e.mu.Unlock()
	}
	if h.kind == KindTask {
		native, status, text = h.task.Submit(q.native, natives, want)
	} else {
		native, status = e.driver.Marker(q.native, h.kind == KindBarrier, natives, true)
		text, h.event.all = "marker", len(h.deps) == 0
	}
	if e.opt.Submitters {
		e.mu.Lock()
		q.submitting = false
	}
	q.log.Given()
	for _, d := range h.event.deps {
		e.unpin(d)
	}
	q.remove(h)
	e.book(h, native, status, text)
}

// book records what the driver answered for a held command.
func (e *Engine) book(h *command, native Native, status int32, text string) {
	var after func(int32)
	if h.task != nil {
		after = h.task.Finished()
		h.task.Drop()
	}
	ev := h.event
	followed := ev.id != 0 || after != nil || len(ev.dependents) > 0 || h.queue.barrier == ev
	if status == 0 && !followed {
		for _, d := range ev.deps {
			h.queue.comesAfter(d)
		}
		e.submitted(h.queue, ev.number, nil, native, 0, "", nil, h.request)
		ev.state = stateDone
		return
	}
	e.submitted(h.queue, ev.number, ev, native, status, text, after, h.request)
}

// unpin lets an event's native handle go that a submission or a waiter used.
func (e *Engine) unpin(ev *event) {
	if ev.pins--; ev.pins == 0 && ev.state == stateDone {
		e.garbage = append(e.garbage, ev.native)
	}
}
