package session

import "sync"

// unwaited lets small blocking writes to another machine return once their bytes are in their record, where nobody can
// tell: a round trip each would buy nothing but the news that they ended. A blocking write promises that its command is
// complete (§5.2.2). What could show that it is not is another queue, which does not come after it, an event that tells
// how far the queue is, and the program's own memory behind a buffer: with any of these writes are waited for, and the
// first of them that comes later waits for the writes before it. It can: with a user event that has not ended no write
// returns early, so that such a write never waits for something the program has still to do.
type unwaited struct {
	mu     sync.Mutex // see the package's lock order
	queues int        // the program's own
	gates  int        // user events that have not ended
	last   *Queue     // where there may be such a write under way
}

// unseen says whether nobody can tell a write that is under way from one that ended. unwaited.mu is held.
func (c *command) unseen() bool {
	u := &c.q.ctx.unwaited
	return c.q.ctx.remote && u.queues == 1 && u.gates == 0 && !c.want && !c.q.outOf && c.q.handle != 0 && len(c.wait) == 0 &&
		c.q.ctx.mirrors.Load() == nil && !c.q.w.watched()
}

// sendUnwaited sends a blocking write that need not be waited for; sent false: it must be.
func (c *command) sendUnwaited(b *Buffer, off uint64, data []byte) (sent bool, status Status) {
	u := &c.q.ctx.unwaited
	u.mu.Lock()
	defer u.mu.Unlock()
	if !c.unseen() {
		return false, Success
	}
	u.last = c.q
	return true, c.sendInline(b, off, data)
}

// settle makes a change after which writes would be seen to be under way, and waits for those that are.
func (c *Context) settle(change func(u *unwaited)) {
	u := &c.unwaited
	u.mu.Lock()
	change(u)
	q := u.last
	u.mu.Unlock()
	if q == nil {
		return
	}
	if status := q.finish(); status != Success {
		q.latch(status) // the program's next call of the queue tells
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.last == q {
		u.last = nil
	}
}

// opened notes that a user event has ended.
func (c *Context) opened() {
	c.unwaited.mu.Lock()
	defer c.unwaited.mu.Unlock()
	c.unwaited.gates--
}

// watched says whether the program has an event of a command that is not known to have ended.
func (w *worker) watched() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.events) > 0
}
