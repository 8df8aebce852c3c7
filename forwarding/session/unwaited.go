package session

import (
	"slices"
	"sync"
	"sync/atomic"

	"tendril/forwarding/clwire"
)

// unwaited lets small blocking writes to another machine return once their bytes are in their record, where nobody can
// tell: a round trip each would buy nothing but the news that they ended. A blocking write promises that its command is
// complete (§5.2.2). What could show that it is not:
//
//   - another queue, which does not come after it: the commands of other queues wait for a fence behind it, at the worker;
//   - an event that says how far the queue is, and the program's own memory behind a buffer: such writes are waited for;
//   - a command that waits for something the program has still to do: while a user event has not ended, or one that ends by
//     another worker's word and so may wait for a user event there, writes are waited for, and making one waits for those
//     before it. So a fence always comes to its end.
type unwaited struct {
	mu    sync.Mutex   // see the package's lock order
	gates atomic.Int32 // user events that have not ended; changed under mu
	under []underWay   // one a queue at most
}

// underWay is the last write of a queue that was not waited for.
type underWay struct {
	q     *Queue
	seq   uint64
	fence *Event // nil: no other queue has asked yet
}

func (x *underWay) over() bool { return x.q.doneSeq.Load() >= x.seq }

// unseen says whether nobody can tell a write that is under way from one that ended. unwaited.mu is held.
func (c *command) unseen() bool {
	ctx := c.q.ctx
	return ctx.remote && ctx.unwaited.gates.Load() == 0 && c.given == 0 && !c.want && !c.q.outOf && c.q.handle != 0 &&
		ctx.mirrors.Load() == nil && !c.q.w.watched(ctx)
}

// sendUnwaited sends a blocking write that need not be waited for; sent false: it must be.
func (c *command) sendUnwaited(b *Buffer, off uint64, data []byte) (sent bool, status Status) {
	u := &c.q.ctx.unwaited
	u.mu.Lock()
	defer u.mu.Unlock()
	if !c.unseen() {
		return false, Success
	}
	status = c.sendInline(b, off, data)
	u.forgetLocked(c.q)
	u.under = append(u.under, underWay{q: c.q, seq: c.q.sentSeq.Load()})
	return true, status
}

// forgetLocked drops what is known of a queue, and of those whose writes have ended.
func (u *unwaited) forgetLocked(q *Queue) {
	u.under = slices.DeleteFunc(u.under, func(x underWay) bool {
		gone := x.q == q || x.over()
		if gone && x.fence != nil {
			x.fence.letGo(x.q.w)
		}
		return gone
	})
}

// afterWrites adds to what a command waits for the writes of other queues that were not waited for.
func (c *command) afterWrites() Status {
	u := &c.q.ctx.unwaited
	if !c.q.ctx.remote || c.kind == cmdMarker || c.kind == cmdBarrier { // these order their own queue alone
		return Success
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range u.under {
		x := &u.under[i]
		if x.q == c.q || x.over() {
			continue
		}
		if status := x.fenceIn(c.d); status != Success {
			return status
		}
		c.wait = append(c.wait, x.fence.id)
	}
	if len(c.wait) <= maxWaitEvents {
		return Success
	}
	var status Status
	c.wait, status = c.d.foldWaits(c.q, c.wait)
	return status
}

// fenceIn puts a fence behind the write, once.
func (x *underWay) fenceIn(d *Driver) Status {
	if x.fence != nil {
		return Success
	}
	e := d.newEvent(x.q.ctx, x.q, cmdMarker)
	m := &clwire.Marker{}
	_, status := x.q.submit(m, &m.Cmd, e, nil, 0)
	if status == Success {
		x.fence = e
	}
	return status
}

// settle makes a change after which writes would be seen to be under way, and waits for those that are: of a queue, or
// (nil) of all.
func (c *Context) settle(q *Queue, change func(u *unwaited)) {
	u := &c.unwaited
	var asked []finishing
	u.mu.Lock()
	change(u)
	for _, x := range u.under {
		if x.over() || q != nil && x.q != q {
			continue
		}
		// Asked before the lock is given up: so nothing that waits for a later user event can come before the question.
		if f, status := x.q.askFinish(); status == Success {
			asked = append(asked, f)
		}
	}
	u.mu.Unlock()
	for _, f := range asked {
		if status := f.await(); status != Success {
			f.q.latch(status) // the program's next call of the queue tells
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.forgetLocked(q)
}

// opened notes that a user event has ended.
func (c *Context) opened() {
	c.unwaited.mu.Lock()
	defer c.unwaited.mu.Unlock()
	c.unwaited.gates.Add(-1)
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
