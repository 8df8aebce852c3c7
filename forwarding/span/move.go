package span

import (
	"slices"
	"sync"
	"sync/atomic"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// Moves that no link between workers takes go in chunks through this process, several under way, so that both links are
// busy and memory is bounded.
const (
	chunkBytes = 4 << 20
	maxFlying  = 4
)

var chunks = sync.Pool{New: func() any { b := make([]byte, chunkBytes); return &b }}

// move carries a range of one buffer from a member to another. It starts when the range is there to be read and nobody
// writes it at its target any more, and ends its arrival's event with what came of it.
type move struct {
	d        api.Base
	src, dst uintptr // session's buffers; a reference is held of each
	from, to uintptr // session's queues, one a member, on which nothing waits
	image    *image  // nil: of a buffer, in bytes; else in rows
	content  content // of which nothing else is carried
	number   [8]byte // the content's count, on its way
	end      *arrival
	waiting  atomic.Int32 // conditions that have not come, and one for whoever still adds some

	mu     sync.Mutex
	next   uint64 // of the range not yet on its way; guarded by mu
	hi     uint64
	flying int
	failed int32 // the first failure; guarded by mu
}

// moveLocked brings a part of what a use is of to a member. The part's arrivals tell who must be waited for.
func (c *Context) moveLocked(u *use, p *part, member int, command behind) api.Status {
	b := u.b.root
	source, pending := p.source()
	m := &move{d: c.d.base, image: b.image, next: p.lo, hi: p.hi, end: &arrival{member: member}}
	var status api.Status
	if m.from, status = c.moveQueueLocked(source); status != cl.SUCCESS {
		return status
	}
	if m.to, status = c.moveQueueLocked(member); status != cl.SUCCESS {
		return status
	}
	if m.src, status = b.atLocked(source); status != cl.SUCCESS {
		return status
	}
	if m.dst, status = b.atLocked(member); status != cl.SUCCESS {
		return status
	}
	// what is waited for at the source, at the target
	var after, before []uintptr
	// of a failed command, contents are whatever they are
	if w := p.writer; w != nil && c.d.statusOf(w.event) > cl.COMPLETE {
		m.d.Flush(w.queue)
		after, m.end.behind = append(after, w.event), w.event
	}
	for _, a := range p.arrivals {
		switch {
		case a == pending:
			after = append(after, a.event)
		case a.member == member:
			before = append(before, a.event)
		}
	}
	var counted []*arrival
	m.content, counted, status = c.contentLocked(u, p, source, command)
	defer c.dropLocked(counted)
	if status != cl.SUCCESS {
		return status
	}
	m.hold()
	if !m.push(after, before) {
		if m.end.event, status = m.d.CreateUserEvent(c.members[member].context); status != cl.SUCCESS {
			m.letGo()
			return status
		}
		m.d.RetainEvent(m.end.event) // until it is set
		m.begin(after, before)
	}
	p.valid |= 1 << member
	if m.content.size != 0 {
		p.partial |= 1 << member
	}
	p.supersede(member, c.ends())
	p.arrivals = append(p.arrivals, m.end)
	m.end.refs++
	return cl.SUCCESS
}

// hold keeps the buffers until the move has ended.
func (m *move) hold() {
	m.d.RetainMemObject(m.src)
	m.d.RetainMemObject(m.dst)
	if m.content.size != 0 {
		m.d.RetainMemObject(m.content.size)
	}
}

func (m *move) letGo() {
	m.d.ReleaseMemObject(m.src)
	m.d.ReleaseMemObject(m.dst)
	if m.content.size != 0 {
		m.d.ReleaseMemObject(m.content.size)
	}
}

// push has the bytes go from worker to worker; false: there is no such way. A push whose link ends goes through this
// process after all, and ends the same event.
func (m *move) push(after, before []uintptr) bool {
	unit := uint64(1)
	if m.image != nil {
		unit = m.image.rowBytes
	}
	held := slices.Concat(after, before, m.content.after)
	for _, e := range held {
		m.d.RetainEvent(e)
	}
	over := func(status int32) {
		m.arrived(status)
		m.letGo()
		for _, e := range held {
			m.d.ReleaseEvent(e)
		}
	}
	event, ok := m.d.Push(api.Push{
		Src: m.src, Dst: m.dst, Off: m.next * unit, Size: (m.hi - m.next) * unit, After: after,
		Before: before, Ended: over,
		Content: api.PushContent{Size: m.content.size, Origin: m.content.origin, After: m.content.after},
		Lost: func(event uintptr) {
			fallback := &move{d: m.d, src: m.src, dst: m.dst, from: m.from, to: m.to, next: m.next, hi: m.hi,
				image: m.image, content: m.content, end: &arrival{event: event}}
			fallback.hold()
			m.d.RetainEvent(event)
			fallback.begin(after, before)
		},
	})
	if !ok {
		for _, e := range held {
			m.d.ReleaseEvent(e)
		}
		return false
	}
	m.end.event = event
	return true
}

// begin starts the move through this process behind the events.
func (m *move) begin(after, before []uintptr) {
	m.waiting.Store(1)
	for _, e := range after {
		m.after(e, m.met)
	}
	for _, e := range before { // what it left is written over, however it ended
		m.after(e, func(int32) { m.met(cl.COMPLETE) })
	}
	for _, e := range m.content.after {
		m.after(e, func(int32) { m.met(cl.COMPLETE) })
	}
	m.met(cl.COMPLETE)
}

// source chooses the member to read from: the writer's, else one where the bytes are already, else one where they are
// about to come, with what to wait for there.
func (p *part) source() (member int, pending *arrival) {
	if p.writer != nil && p.has(p.writer.member) {
		return p.writer.member, nil
	}
	for i := range maxMembers {
		if !p.has(i) {
			continue
		}
		a := p.arriving(i)
		if a == nil {
			return i, nil
		}
		member, pending = i, a
	}
	return member, pending
}

// arriving is the latest move into a member that may still be under way.
func (p *part) arriving(member int) (latest *arrival) {
	for _, a := range p.arrivals {
		if a.member == member && a.state.Load() == underWay {
			latest = a
		}
	}
	return latest
}

// after makes the move wait for an event of session's.
func (m *move) after(event uintptr, met func(status int32)) {
	m.waiting.Add(1)
	if m.d.SetEventCallback(event, cl.COMPLETE, met) != cl.SUCCESS {
		m.met(int32(cl.OUT_OF_RESOURCES))
	}
}

// met counts a condition as come; the last one starts the move.
func (m *move) met(status int32) {
	if status < cl.COMPLETE {
		m.fail(status)
	}
	if m.waiting.Add(-1) == 0 {
		m.measure()
	}
}

func (m *move) fail(status int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed == 0 {
		m.failed = status
	}
}

// pump keeps chunks flying, and ends the move behind the last one.
func (m *move) pump() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pumpLocked()
}

func (m *move) pumpLocked() {
	for m.flying < maxFlying && m.next < m.hi && m.failed == 0 {
		off := m.next
		m.next = min(off+chunkBytes, m.hi)
		if m.image != nil {
			m.next = off + m.image.box(off, m.hi).Region[1]
		}
		m.flying++
		m.carry(off, m.next-off)
	}
	if m.flying == 0 {
		m.finish(m.failed)
	}
}

// carry sends one chunk on its way: straight between memory and a link where a member computes on this process's
// memory, through a chunk of our own elsewhere.
func (m *move) carry(off, n uint64) {
	if m.image != nil {
		m.through(off, n, n*m.image.rowBytes)
		return
	}
	if at := m.d.Memory(m.dst); at != nil {
		m.read(off, n, api.HostBytes(at[off:]), m.landed)
		return
	}
	if at := m.d.Memory(m.src); at != nil {
		m.write(off, n, api.HostBytes(at[off:]), m.landed)
		return
	}
	m.through(off, n, n)
}

// through carries n by way of a chunk of this process's. A row of an image may be longer than a chunk.
func (m *move) through(off, n, bytes uint64) {
	room := chunks.Get().(*[]byte)
	if bytes > uint64(len(*room)) {
		*room = make([]byte, bytes)
	}
	m.read(off, n, api.HostBytes(*room), func(status int32) {
		if status < cl.COMPLETE {
			chunks.Put(room)
			m.landed(status)
			return
		}
		m.write(off, n, api.HostBytes(*room), func(status int32) {
			chunks.Put(room)
			m.landed(status)
		})
	})
}

func (m *move) read(off, n uint64, at api.HostPtr, then func(int32)) {
	var e uintptr
	var status api.Status
	if w := (api.Waits{Want: true, Internal: true}); m.image != nil {
		e, status = m.d.EnqueueReadImage(m.from, m.src, false, m.image.box(off, off+n), 0, 0, at, w)
	} else {
		e, status = m.d.EnqueueRead(m.from, m.src, false, off, n, at, w)
	}
	m.watch(m.from, e, status, then)
}

func (m *move) write(off, n uint64, at api.HostPtr, then func(int32)) {
	var e uintptr
	var status api.Status
	if w := (api.Waits{Want: true, Internal: true}); m.image != nil {
		e, status = m.d.EnqueueWriteImage(m.to, m.dst, false, m.image.box(off, off+n), 0, 0, at, w)
	} else {
		e, status = m.d.EnqueueWrite(m.to, m.dst, false, off, n, at, w)
	}
	m.watch(m.to, e, status, then)
}

// watch calls then at a command's end, on the goroutine of the callbacks, never before it returns.
func (m *move) watch(queue, event uintptr, status api.Status, then func(int32)) {
	if status == cl.SUCCESS {
		status = m.d.SetEventCallback(event, cl.COMPLETE, then)
		m.d.ReleaseEvent(event)
		m.d.Flush(queue)
	}
	if status != cl.SUCCESS {
		m.d.Notify(func() { then(int32(status)) })
	}
}

func (m *move) landed(status int32) {
	if status < cl.COMPLETE {
		m.fail(status)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.flying--
	m.pumpLocked()
}

// finish runs once.
func (m *move) finish(status int32) {
	m.arrived(status)
	m.d.SetUserEventStatus(m.end.event, status)
	m.d.ReleaseEvent(m.end.event)
	m.letGo()
}

// arrived notes how the move ended.
func (m *move) arrived(status int32) {
	state := arrived
	if status != cl.COMPLETE {
		state = lost
	}
	m.end.state.Store(state)
}
