package engine

// A host operation's times. The device knows nothing of it, and a program may compare its times with those of the
// device's commands: so the device is asked for the time when the operation's turn comes, and when it is over, by
// markers on a queue that has nothing else to do. Until the second has come the operation is not over.
//
// Any command that the engine holds was enqueued before the driver hears of it: a marker taken then says when.

// mark asks the device for its time; 0: nobody wants to know.
func (e *Engine) mark(h *command) Native {
	if h.queue.clock == 0 || h.event.id == 0 {
		return 0
	}
	native, status := e.driver.Marker(h.queue.clock, false, nil, true)
	if status != 0 {
		return 0
	}
	e.driver.Flush(h.queue.clock)
	return native
}

// endTimed ends an operation that went well when its second mark has come; false: it has no marks.
func (e *Engine) endTimed(h *command) bool {
	if h.begun == 0 {
		return false
	}
	last := e.mark(h)
	if last == 0 {
		return false
	}
	mark := &event{queue: h.queue, urgent: true}
	mark.after = func(int32) {
		h.event.times = e.times(h.begun, last)
		e.closeHost(h, 0)
	}
	h.queue.fresh = h.queue.fresh || h.queue.outOfOrder
	e.follow(h.queue, mark, last)
	return true
}

// times are those of what began and ended with two marks: queued, submitted, started, ended, complete. nil: the driver
// has none.
func (e *Engine) times(begun, ended Native) *[5]uint64 {
	b, ok := e.driver.Profile(begun)
	l, too := e.driver.Profile(ended)
	if !ok || !too {
		return nil
	}
	return &[5]uint64{b[0], b[1], b[3], l[3], l[4]}
}

// queuedAt gives a command's times that of its enqueue, and the mark back.
func (e *Engine) queuedAt(ev *event, end *End) {
	if q, ok := e.driver.Profile(ev.queued); ok && end.HasProfile {
		end.Profile[0] = min(end.Profile[0], q[0])
	}
	e.garbage = append(e.garbage, ev.queued)
	ev.queued = 0
}
