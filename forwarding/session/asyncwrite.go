package session

import (
	"slices"
	"sync"
	"sync/atomic"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// asyncWrites lets small blocking writes to another machine return once their bytes are in their record, where nobody
// can tell: a round trip each would buy nothing but the news that they ended. A blocking write promises that its
// command is complete (§5.2.2). What could show that it is not:
//
//   - another queue, which does not come after it: the commands of other queues wait for a fence behind it, at the
//     worker;
//   - an event that says how far the queue is, and the program's own memory behind a buffer: such writes are waited
//     for;
//   - a command that waits for something the program has still to do: while a user event has not ended, or one that
//     ends by another worker's word and so may wait for a user event there, writes are waited for, and making one
//     waits for those before it. So a fence always comes to its end.
type asyncWrites struct {
	mu         sync.Mutex   // see the package's lock order
	userEvents atomic.Int32 // that have not ended; changed under mu
	list       []asyncWrite // one a queue at most
}

// asyncWrite is the last write of a queue that was not waited for.
type asyncWrite struct {
	q     *Queue
	seq   uint64
	fence *Event // nil: no other queue has asked yet
}

func (x *asyncWrite) over() bool { return x.q.doneSeq.Load() >= x.seq }

// visible says whether the state of a context's queues would show the program that a write is still under way.
func (u *asyncWrites) visible(ctx *Context) bool {
	return u.userEvents.Load() != 0 || !ctx.mirrors.Empty()
}

// inlineAsync sends a blocking write that is not waited for. sent false: the program could see that.
func (c *command) inlineAsync(t *hostTransfer) (sent bool, status api.Status) {
	if status := t.b.ensureRemote(c.q.w); status != cl.SUCCESS {
		return true, status
	}
	ctx := c.q.ctx
	u := &ctx.asyncWrites
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.visible(ctx) || c.q.w.watched(ctx) {
		return false, cl.SUCCESS
	}
	status = c.sendInline(t)
	u.forgetLocked(c.q)
	u.list = append(u.list, asyncWrite{q: c.q, seq: c.q.sentSeq.Load()})
	return true, status
}

// forgetLocked drops what is known of a queue, and of those whose writes have ended.
func (u *asyncWrites) forgetLocked(q *Queue) {
	u.list = slices.DeleteFunc(u.list, func(x asyncWrite) bool {
		gone := x.q == q || x.over()
		if gone && x.fence != nil {
			x.fence.letGo(x.q.w)
		}
		return gone
	})
}

// afterWrites adds to what a command waits for the writes of other queues that were not waited for.
func (c *command) afterWrites() api.Status {
	u := &c.q.ctx.asyncWrites
	// these order their own queue alone
	if !c.q.ctx.remote || c.kind == cl.COMMAND_MARKER || c.kind == cl.COMMAND_BARRIER {
		return cl.SUCCESS
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range u.list {
		x := &u.list[i]
		if x.q == c.q || x.over() {
			continue
		}
		if status := x.fenceIn(c.d); status != cl.SUCCESS {
			return status
		}
		c.wait = append(c.wait, x.fence.id)
	}
	if len(c.wait) <= maxWaitEvents {
		return cl.SUCCESS
	}
	var status api.Status
	c.wait, status = c.d.foldWaits(c.q, c.wait)
	return status
}

// fenceIn puts a fence behind the write, once.
func (x *asyncWrite) fenceIn(d *Driver) api.Status {
	if x.fence != nil {
		return cl.SUCCESS
	}
	e := d.newEvent(x.q.ctx, x.q, cl.COMMAND_MARKER)
	m := &clwire.Marker{}
	_, status := x.q.submit(m, &m.Cmd, e, nil, 0)
	if status == cl.SUCCESS {
		x.fence = e
	}
	return status
}

// makeVisible makes a change after which writes would be seen to be under way, and waits for those that are: of a
// queue, or (nil) of all.
func (c *Context) makeVisible(q *Queue, change func(u *asyncWrites)) {
	u := &c.asyncWrites
	var asked []finishing
	u.mu.Lock()
	change(u)
	for _, x := range u.list {
		if x.over() || q != nil && x.q != q {
			continue
		}
		// Asked before the lock is given up: so nothing that waits for a later user event can come before the question.
		if f, status := x.q.askFinish(); status == cl.SUCCESS {
			asked = append(asked, f)
		}
	}
	u.mu.Unlock()
	for _, f := range asked {
		if status := f.await(); status != cl.SUCCESS {
			f.q.latch(status) // the program's next call of the queue tells
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.forgetLocked(q)
}

// userEventEnded notes that a user event has ended.
func (c *Context) userEventEnded() {
	c.asyncWrites.mu.Lock()
	defer c.asyncWrites.mu.Unlock()
	c.asyncWrites.userEvents.Add(-1)
}

// watched says whether the program has an event of a context's command that is not known to have ended.
func (w *worker) watched(ctx *Context) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.ctx == ctx && e.handle != 0 {
			return true
		}
	}
	return false
}
