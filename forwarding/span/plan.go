package span

import (
	"slices"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// use is what a command does with a byte range of a buffer.
type use struct {
	b             *Buffer
	off, n        uint64 // in b
	reads, writes bool
	whole         bool // a content size does not count
}

// place is the use's range in the root; ok false when it does not lie in b: session says so to the program.
func (u *use) place() (lo, hi uint64, ok bool) {
	if u.off > u.b.size || u.n > u.b.size-u.off {
		return 0, 0, false
	}
	lo = u.b.origin + u.off
	return lo, lo + u.n, u.n > 0
}

// planLocked readies the uses at a member, of a command behind what is given, and returns the arrivals there that it
// waits for. The caller names them in its command and then drops them: without a reference of its own, one that ends
// meanwhile would go, with its event, when another use looks at the same range.
func (c *Context) planLocked(member int, uses []use, after behind) (waits []*arrival, status api.Status) {
	for i := range uses {
		u := &uses[i]
		lo, hi, ok := u.place()
		if !ok {
			continue
		}
		root := u.b.root
		if root.mirror != nil {
			if status := root.pushLocked(member); status != cl.SUCCESS {
				c.dropLocked(waits)
				return nil, status
			}
		}
		from, to := root.parts.cut(lo, hi)
		for j := from; j < to; j++ {
			p := &root.parts[j]
			p.trim(c.ends())
			if u.reads && p.valid != 0 && !p.has(member) {
				if status := c.moveLocked(u, p, member, after); status != cl.SUCCESS {
					c.dropLocked(waits)
					return nil, status
				}
			}
			for _, a := range p.arrivals {
				if a.member == member && !slices.Contains(waits, a) {
					a.refs++
					waits = append(waits, a)
				}
			}
		}
	}
	return waits, cl.SUCCESS
}

// dropLocked lets go of what planLocked gave.
func (c *Context) dropLocked(waits []*arrival) {
	for _, a := range waits {
		c.ends().arrival(a)
	}
}

// noteLocked takes down what a command, whose event is one of session's, does to the buffers.
func (c *Context) noteLocked(q *Queue, event uintptr, uses []use) {
	c.writes++
	w := &write{member: q.member, event: event, queue: q.inner, seq: c.writes, inOrder: q.inOrder}
	for i := range uses {
		u := &uses[i]
		lo, hi, ok := u.place()
		if !ok {
			continue
		}
		root := u.b.root
		if root.mirror != nil {
			c.d.base.RetainEvent(event)
			root.mirror.pending = append(root.mirror.pending, event)
			root.mirror.devNewer = root.mirror.devNewer || u.writes
		}
		if u.writes {
			root.parts.wrote(lo, hi, w, c.ends())
			root.recountLocked(lo, hi)
		}
	}
	if w.refs > 0 {
		c.d.base.RetainEvent(event)
	}
}

// listed gives a program's wait list as events of the context.
func (c *Context) listed(w api.Waits) ([]*Event, api.Status) {
	if w.N == 0 && w.List == nil {
		return nil, cl.SUCCESS
	}
	if (w.N == 0) != (w.List == nil) {
		return nil, cl.INVALID_EVENT_WAIT_LIST
	}
	list := make([]*Event, 0, len(w.List))
	for _, h := range w.List {
		e := c.d.events.Get(h)
		switch {
		case e == nil && c.d.base.RetainEvent(h) == cl.SUCCESS: // session's, of another context
			c.d.base.ReleaseEvent(h)
			return nil, cl.INVALID_CONTEXT
		case e == nil:
			return nil, cl.INVALID_EVENT_WAIT_LIST
		case e.ctx != c:
			return nil, cl.INVALID_CONTEXT
		}
		list = append(list, e)
	}
	return list, cl.SUCCESS
}

// waitsLocked turns a wait list into one of the member's. keep keeps events that have completed, for the commands that
// mean something else with an empty list. What the command waits for anyway is left out: moves that begin behind an
// event end as it does where it fails, and never before it.
func (c *Context) waitsLocked(list []*Event, member int, keep bool, moved []*arrival) (waits []uintptr,
	status api.Status) {
	for _, e := range list {
		if !keep && e.member != member &&
			slices.ContainsFunc(moved, func(a *arrival) bool { return a.behind == e.inner }) {
			continue
		}
		inner, status := e.at(member, keep)
		if status != cl.SUCCESS {
			return nil, status
		}
		if inner != 0 {
			waits = append(waits, inner)
		}
	}
	return waits, cl.SUCCESS
}

func waitsOn(list []uintptr) api.Waits {
	if len(list) == 0 {
		return api.Waits{}
	}
	return api.Waits{N: uint32(len(list)), List: list}
}

// request is one enqueue call of a program's on its way to session.
type request struct {
	q     *Queue
	w     api.Waits
	uses  []use
	sized *Buffer // not nil: a transfer to the host of a range of it, which brings its content alone
	kind  uint32  // CL_EVENT_COMMAND_TYPE where session's command is another; 0: it is the same
	holds *Buffer // not nil: shared virtual memory whose view the command reads or writes: kept until its end
	keep  bool    // an empty wait list would mean something else: events that have completed stay in it
	call  func(w api.Waits) (uintptr, api.Status)
}

// sendLocked plans, sends and notes a command. The event that comes back is session's, a reference with it; 0 unless
// want.
func (r *request) sendLocked(want bool) (uintptr, api.Status) {
	c, q := r.q.ctx, r.q
	list, status := c.listed(r.w)
	if status != cl.SUCCESS {
		// What else is wrong comes first: session looks at the wait list last.
		if _, first := r.call(api.Waits{N: 1}); first != cl.INVALID_EVENT_WAIT_LIST {
			return 0, first
		}
		return 0, status
	}
	uses, call, after := r.uses, r.call, behind{q: q, events: list}
	if of, usable := r.sized.countLocked(q.member, after); usable {
		uses = append(uses[:len(uses):len(uses)], of)
		call = r.sized.trimmed(q.member, call)
	}
	moves, status := c.planLocked(q.member, uses, after)
	if status != cl.SUCCESS {
		return 0, status
	}
	defer c.dropLocked(moves)
	events, status := c.waitsLocked(list, q.member, r.keep, moves)
	if status != cl.SUCCESS {
		return 0, status
	}
	for _, a := range moves {
		if !slices.Contains(events, a.event) {
			events = append(events, a.event)
		}
	}
	waits := waitsOn(events)
	noted := slices.ContainsFunc(r.uses, func(u use) bool { return u.writes || u.b.root.mirror != nil })
	waits.Want = want || noted || r.holds != nil
	event, status := call(waits)
	if status != cl.SUCCESS {
		return 0, status
	}
	if noted {
		c.noteLocked(q, event, r.uses)
	}
	if b := r.holds; b != nil && b.refs.Retain() &&
		c.d.base.SetEventCallback(event, cl.COMPLETE, func(int32) { b.drop() }) != cl.SUCCESS {
		b.refs.Release()
	}
	if event != 0 && !want {
		c.d.base.ReleaseEvent(event)
		event = 0
	}
	return event, cl.SUCCESS
}

// run enqueues the command. A blocking one is sent as any other and waited for outside the lock: what it waits for may
// take another call of the program's.
func (r *request) run(blocking bool) (uintptr, api.Status) {
	if r.w.Recorded() {
		return r.recordLocked()
	}
	c := r.q.ctx
	c.mu.Lock()
	event, status := r.sendLocked(blocking || r.w.Want)
	c.mu.Unlock()
	if status != cl.SUCCESS || event == 0 {
		return 0, status
	}
	if blocking {
		if status = c.await(event); status != cl.SUCCESS || !r.w.Want {
			c.d.base.ReleaseEvent(event)
			return 0, status
		}
	}
	return c.newEvent(event, r.q.member, r.q, r.kind)
}

// await waits for an event of session's, as a blocking call does.
func (c *Context) await(event uintptr) api.Status {
	status := c.d.base.WaitForEvents(1, []uintptr{event})
	if end := c.d.statusOf(event); status != cl.SUCCESS && end < cl.COMPLETE {
		status = api.Status(end)
	}
	c.syncHost()
	return status
}
