package ways

import (
	"slices"
	"sync"
	"sync/atomic"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// AsyncWrites lets blocking writes return once their bytes are in their record, or in staging memory, where nobody can
// tell: a round trip each would buy nothing but the news that they ended. A blocking write promises that its command is
// complete (§5.2.2). What could show that it is not:
//
//   - another queue, which does not come after it: the commands of other queues wait for a fence behind it, at the
//     worker;
//   - an event that says how far the queue is, and the program's own memory behind a buffer: such writes are waited
//     for;
//   - a command that waits for something the program has still to do: while a user event has not ended, or one that
//     ends by another worker's word and so may wait for a user event there, writes are waited for, and making one
//     waits for those before it. So a fence always comes to its end.
//
// The zero value is ready for use.
type AsyncWrites struct {
	mu         sync.Mutex            // before the queue's lock and the connection's
	userEvents atomic.Int32          // that have not ended; changed under mu
	list       []asyncWrite          // one a queue at most
	whose      atomic.Pointer[owner] // of the writes in list; nil: there are none. Changed under mu
	named      int                   // commands that name fences and may not have been sent; changed under mu
	dropped    []Event               // fences that go once there are none of those
}

// owner is the one queue whose writes there are; nil: there are several. A program with one queue is spared the lock.
type owner struct{ q Queue }

var several owner

// asyncWrite is the last write of a queue that was not waited for.
type asyncWrite struct {
	q     Queue
	seq   uint64
	fence Event // nil: no other queue has asked yet
}

func (x *asyncWrite) over() bool { return x.q.Passed(x.seq) }

// UserEvents is how many user events of the context have not ended.
func (u *AsyncWrites) UserEvents() int { return int(u.userEvents.Load()) }

// UserEventMade notes a new user event. Writes that would be seen to be under way have ended when it returns.
func (u *AsyncWrites) UserEventMade() { u.MakeVisible(nil, func() { u.userEvents.Add(1) }) }

// UserEventEnded notes that a user event has ended.
func (u *AsyncWrites) UserEventEnded() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.userEvents.Add(-1)
}

// visible says whether the state of a context's queues would show the program that a write is still under way.
func (c *Context) visible() bool { return c.AsyncWrites.UserEvents() != 0 || !c.Mirrors.Empty() }

// inlineAsync is async for a small write in its record. It is all in one function: see CarryOut.
func (c *Command) inlineAsync(t *Transfer) (sent bool, status api.Status) {
	if status := t.Buffer.Reach(c.Queue); status != cl.SUCCESS {
		return true, status
	}
	u := &c.AsyncWrites
	u.mu.Lock()
	defer u.mu.Unlock()
	if c.visible() || c.Queue.Watched() {
		return false, cl.SUCCESS
	}
	status = c.Queue.SubmitInline(t.Buffer.Number(), t.Device.Offset, t.Host.Ptr.Bytes(0, t.Host.Size), c.Event, c.Wait)
	u.noteLocked(c.Queue, c.Queue.Sent())
	return true, status
}

// async sends a blocking write and does not wait for its end. sent false: the program could notice, so it was not sent.
func (c *Command) async(send func() api.Status) (sent bool, status api.Status) {
	u := &c.AsyncWrites
	u.mu.Lock()
	defer u.mu.Unlock()
	if c.visible() || c.Queue.Watched() {
		return false, cl.SUCCESS
	}
	status = send()
	u.noteLocked(c.Queue, c.Queue.Sent())
	return true, status
}

// asyncTogether is async for a write of n commands that nothing comes between. Whoever looks for the write finds it
// before it is sent, and then waits for the queue.
func (c *Command) asyncTogether(n uint64, send func(Submitter)) (sent bool) {
	u := &c.AsyncWrites
	u.mu.Lock()
	if c.visible() || c.Queue.Watched() {
		u.mu.Unlock()
		return false
	}
	of := c.Queue // not c, which the closure would keep
	of.Together(func(q Submitter) {
		u.noteLocked(of, of.Sent()+n)
		u.mu.Unlock()
		send(q)
	})
	return true
}

// noteLocked notes a queue's last write.
func (u *AsyncWrites) noteLocked(q Queue, seq uint64) {
	if len(u.list) == 1 && u.list[0].q == q && u.list[0].fence == nil {
		u.list[0].seq = seq
		return
	}
	u.forgetLocked(q)
	u.list = append(u.list, asyncWrite{q: q, seq: seq})
	u.ownLocked()
}

// ownLocked notes whose writes list has.
func (u *AsyncWrites) ownLocked() {
	switch len(u.list) {
	case 0:
		u.whose.Store(nil)
	case 1:
		if o := u.whose.Load(); o == nil || o.q != u.list[0].q {
			u.whose.Store(&owner{u.list[0].q})
		}
	default:
		u.whose.Store(&several)
	}
}

// forgetLocked drops what is known of a queue, and of those whose writes have ended.
func (u *AsyncWrites) forgetLocked(q Queue) {
	u.list = slices.DeleteFunc(u.list, func(x asyncWrite) bool {
		gone := x.q == q || x.over()
		switch {
		case !gone || x.fence == nil:
		case u.named > 0:
			u.dropped = append(u.dropped, x.fence)
		default:
			x.fence.LetGo()
		}
		return gone
	})
}

// Before adds to what a command of a queue waits for the writes of other queues that were not waited for. named: the
// caller calls Sent once the command was sent, or is not; until then the worker has the fences.
func (u *AsyncWrites) Before(q Queue, wait []uint64) (_ []uint64, named bool, status api.Status) {
	if o := u.whose.Load(); o == nil || o.q == q { // a write that another thread is about to make is not before it
		return wait, false, cl.SUCCESS
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	before := len(wait)
	for i := range u.list {
		x := &u.list[i]
		if x.q == q || x.over() {
			continue
		}
		if status := x.fenceIn(); status != cl.SUCCESS {
			return wait[:before], false, status
		}
		wait = append(wait, x.fence.Number())
	}
	if named = len(wait) > before; named {
		u.named++
	}
	return wait, named, cl.SUCCESS
}

// Sent ends what Before began.
func (u *AsyncWrites) Sent() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.named--; u.named > 0 {
		return
	}
	for _, fence := range u.dropped {
		fence.LetGo()
	}
	u.dropped = nil
}

// fenceIn puts a fence behind the write, once.
func (x *asyncWrite) fenceIn() api.Status {
	if x.fence != nil {
		return cl.SUCCESS
	}
	e, m := x.q.NewEvent(cl.COMMAND_MARKER), &clwire.Marker{}
	_, status := x.q.Submit(m, &m.Cmd, e, nil, nil)
	if status == cl.SUCCESS {
		x.fence = e
	}
	return status
}

// MakeVisible makes a change after which writes would be seen to be under way, and waits for those that are: of a
// queue, or (nil) of all.
func (u *AsyncWrites) MakeVisible(q Queue, change func()) {
	var asked []func()
	u.mu.Lock()
	change()
	for _, x := range u.list {
		if x.over() || q != nil && x.q != q {
			continue
		}
		// Asked before the lock is given up: so nothing that waits for a later user event can come before the question.
		if await, status := x.q.AskFinish(); status == cl.SUCCESS {
			asked = append(asked, await)
		}
	}
	u.mu.Unlock()
	for _, await := range asked {
		await()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.forgetLocked(q)
	u.ownLocked()
}
