package span

import (
	"slices"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// A content size buffer spares moves and transfers to the host the bytes that mean nothing. Its number is looked at by
// the worker that has the bytes, when their turn comes; so it must have been written there by then, by a command that
// the one which wants the bytes comes behind in any case. Where that is not certain all bytes go: a command never waits
// for another on account of a hint.

// contentBytes is how long the number is.
const contentBytes = 8

// content is what counts the bytes of a move that mean something.
type content struct {
	size   uintptr   // session's buffer at the source; 0: all do
	origin uint64    // of the content in the move's buffer
	after  []uintptr // session's events at the source behind which the number is there, however they end
}

// behind is what a command runs behind.
type behind struct {
	q      *Queue // nil: known of none
	events []*Event
}

// SetContentSizeBuffer is clSetContentSizeBufferPoCL; 0 for size ends it. A number within the same buffer is not
// heeded, nor are buffers over the program's memory.
func (d *Driver) SetContentSizeBuffer(buffer, size uintptr) api.Status {
	b := d.buffers.Get(buffer)
	if b == nil {
		return d.base.SetContentSizeBuffer(buffer, size)
	}
	of := d.buffers.Get(size)
	switch {
	case b.image != nil, size != 0 && (of == nil || of.image != nil || of.size < contentBytes):
		return cl.INVALID_MEM_OBJECT
	case size != 0 && of.ctx != b.ctx:
		return cl.INVALID_CONTEXT
	}
	if of != nil && (of.root == b.root || of.root.mirror != nil || b.root.mirror != nil) {
		of = nil
	}
	b.ctx.mu.Lock()
	defer b.ctx.mu.Unlock()
	b.setContentLocked(of)
	return cl.SUCCESS
}

// setContentLocked changes whose number counts the buffer's content. What it counted last no longer holds.
func (b *Buffer) setContentLocked(of *Buffer) {
	if old := b.content; old != nil {
		old.root.counted = slices.DeleteFunc(old.root.counted, func(x *Buffer) bool { return x == b })
		b.completeLocked()
	}
	if b.content = of; of != nil {
		of.root.counted = append(of.root.counted, b)
	}
}

// completeLocked has members that got the content alone get the bytes again when they need them.
func (b *Buffer) completeLocked() {
	for i := range b.root.parts {
		p := &b.root.parts[i]
		if rest := p.valid &^ p.partial; rest != 0 {
			p.valid, p.partial = rest, 0
		}
	}
}

// recountLocked notes that a range of this root was written: numbers in it count anew.
func (b *Buffer) recountLocked(lo, hi uint64) {
	for _, x := range b.counted {
		if at := x.content.origin; lo < at+contentBytes && at < hi {
			x.completeLocked()
		}
	}
}

// numberLocked is the use of the number that counts the buffer's content, with what moves it; ok false: there is none.
func (b *Buffer) numberLocked() (u use, ok bool) {
	if b == nil || b.content == nil || !b.content.refs.Alive() {
		return use{}, false
	}
	return use{b: b.content, n: contentBytes, reads: true, whole: true}, true
}

// countLocked is the use that a transfer to the host at a member has of the buffer's number; ok false: all bytes go.
func (b *Buffer) countLocked(member int, command behind) (u use, ok bool) {
	if u, ok = b.numberLocked(); !ok {
		return use{}, false
	}
	lo, hi, _ := u.place()
	from, to := u.b.root.parts.cut(lo, hi)
	for i := from; i < to; i++ {
		p := &u.b.root.parts[i]
		if p.valid == 0 || !p.has(member) && !command.isBehind(b.ctx, p.writer, nil) {
			return use{}, false
		}
	}
	return u, true
}

// trimmed is a call that leaves out what the number at a member does not count. The hint ends with the call, as no
// other command can know whether the number there is the newest.
func (b *Buffer) trimmed(member int, call func(api.Waits) (uintptr, api.Status)) func(api.Waits) (uintptr, api.Status) {
	return func(w api.Waits) (uintptr, api.Status) {
		d := b.ctx.d.base
		inner, status := b.atLocked(member)
		if status != cl.SUCCESS {
			return 0, status
		}
		size, status := b.content.atLocked(member)
		if status != cl.SUCCESS {
			return 0, status
		}
		if status = d.SetContentSizeBuffer(inner, size); status != cl.SUCCESS {
			return 0, status
		}
		defer d.SetContentSizeBuffer(inner, 0)
		return call(w)
	}
}

// contentLocked readies the number that counts the bytes of a part at the source of its move. The caller drops waits,
// whose events the content names, when the move has begun.
func (c *Context) contentLocked(u *use, p *part, source int, command behind) (m content, waits []*arrival,
	status api.Status) {
	if u.whole {
		return content{}, nil, cl.SUCCESS
	}
	count, ok := u.b.root.numberLocked()
	if !ok {
		count, ok = u.b.numberLocked()
		m.origin = u.b.origin
	}
	if !ok {
		return m, nil, cl.SUCCESS
	}
	lo, hi, _ := count.place()
	from, to := count.b.root.parts.cut(lo, hi)
	for i := from; i < to; i++ {
		n := &count.b.root.parts[i]
		if n.valid == 0 || !command.isBehind(c, n.writer, p.writer) {
			return content{}, nil, cl.SUCCESS
		}
		if n.writer != nil && n.writer.member == source && c.d.statusOf(n.writer.event) > cl.COMPLETE {
			c.d.base.Flush(n.writer.queue)
			m.after = append(m.after, n.writer.event)
		}
	}
	if waits, status = c.planLocked(source, []use{count}, command); status != cl.SUCCESS {
		return content{}, nil, status
	}
	for _, a := range waits {
		m.after = append(m.after, a.event)
	}
	m.size, status = count.b.atLocked(source)
	return m, waits, status
}

// isBehind says whether a command, which needs what beside wrote, runs behind a write in any case.
func (a behind) isBehind(c *Context, w, beside *write) bool {
	switch {
	case w == nil || w == beside || c.d.statusOf(w.event) <= cl.COMPLETE:
		return true
	case beside != nil && w.inOrder && w.queue == beside.queue && w.seq < beside.seq:
		return true
	case a.q != nil && w.inOrder && w.queue == a.q.inner:
		return true
	}
	return slices.ContainsFunc(a.events, func(e *Event) bool { return e.inner == w.event })
}

// measure learns how much of the range means something, where that is known, and starts the move.
func (m *move) measure() {
	if m.content.size == 0 {
		m.pump()
		return
	}
	w := api.Waits{Want: true, Internal: true}
	e, status := m.d.EnqueueRead(m.from, m.content.size, false, 0, contentBytes, api.HostBytes(m.number[:]), w)
	m.watch(m.from, e, status, func(status int32) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if n := le.Uint64(m.number[:]); status == cl.COMPLETE && n < m.hi {
			m.hi = max(m.next, min(m.hi, m.content.origin+n))
		}
		m.pumpLocked()
	})
}
