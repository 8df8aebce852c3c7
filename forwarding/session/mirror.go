package session

import (
	"sync"

	"tendril/forwarding/clwire"
)

// mirror keeps a buffer and the program's own memory under it (CL_MEM_USE_HOST_PTR) alike. The device computes on the
// buffer's memory; the program's pages are pushed before a command uses the buffer, if the program may have written
// them, and fetched back at every synchronisation: also for programs that never map.
type mirror struct {
	b *Buffer

	mu        sync.Mutex
	hostNewer bool     // the program may have written since the last push
	devNewer  bool     // a command may have written since the last fetch
	pending   []*Event // of commands that use the buffer
	closed    bool     // the memory is the program's alone again: nothing is written there
}

func (c *Context) addMirror(m *mirror) {
	c.mirrorsMu.Lock()
	defer c.mirrorsMu.Unlock()
	list := []*mirror{m}
	if old := c.mirrors.Load(); old != nil {
		list = append(list, *old...)
	}
	c.mirrors.Store(&list)
}

func (c *Context) dropMirror(m *mirror) {
	c.mirrorsMu.Lock()
	defer c.mirrorsMu.Unlock()
	var list []*mirror
	for _, other := range *c.mirrors.Load() {
		if other != m {
			list = append(list, other)
		}
	}
	if len(list) == 0 {
		c.mirrors.Store(nil)
		return
	}
	c.mirrors.Store(&list)
}

// syncHost runs at each synchronisation: what ended is fetched.
func (c *Context) syncHost() {
	list := c.mirrors.Load()
	if list == nil {
		return
	}
	for _, m := range *list {
		m.sync()
	}
}

func (m *mirror) trimLocked() {
	kept := m.pending[:0]
	for _, e := range m.pending {
		if e.status.Load() > 0 {
			kept = append(kept, e)
		}
	}
	clear(m.pending[len(kept):])
	m.pending = kept
}

func (m *mirror) sync() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.trimLocked(); m.closed || len(m.pending) > 0 {
		return
	}
	m.fetchLocked()
	m.devNewer, m.hostNewer = false, true
}

// fetch brings what the device wrote to the program's memory, for a map: commands on other queues may go on.
func (m *mirror) fetch() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fetchLocked()
}

func (m *mirror) fetchLocked() Status {
	if !m.devNewer || m.closed {
		return Success
	}
	if m.b.image != nil {
		return m.b.whole(clwire.FromBuffer)
	}
	return m.b.load(0, m.b.host.bytes(0, m.b.size))
}

// written notes that the program wrote through a map.
func (m *mirror) written() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hostNewer = true
}

// use prepares a command on q that uses the buffer and whose end e tells. It returns an event that the command must
// wait for besides, or nil.
func (m *mirror) use(q *Queue, e *Event, wait []uint64, writes bool) (*Event, Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trimLocked()
	var push *Event
	if m.hostNewer {
		var status Status
		if push, status = m.pushLocked(q, wait); status != Success {
			return nil, status
		}
	}
	m.hostNewer = false
	m.devNewer = m.devNewer || writes
	if e != nil {
		e.hold()
		m.pending = append(m.pending, e)
	}
	return push, Success
}

// pushLocked copies the program's memory to the device: at once, or, where commands still use the buffer, in its turn.
func (m *mirror) pushLocked(q *Queue, wait []uint64) (*Event, Status) {
	push := func() Status { return m.b.store(0, m.b.host.bytes(0, m.b.size)) }
	if m.b.image != nil {
		push = func() Status { return m.b.whole(clwire.ToBuffer) }
	}
	if len(m.pending) == 0 {
		return nil, push()
	}
	e := q.d.internalEvent(q)
	h := hostWork{q: q, wait: wait, event: e, work: push}
	return e, h.run()
}

// end brings the last results to the program's memory and gives it back; false: commands still use the buffer, and what they have to write
// is still to come.
func (m *mirror) end() bool {
	m.sync()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trimLocked()
	if len(m.pending) > 0 && m.devNewer {
		return false
	}
	m.closed = true
	return true
}

// close gives the program's memory back, whatever is still to come.
func (m *mirror) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
}

func (m *mirror) quiet() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trimLocked()
	return len(m.pending) == 0
}

func (m *mirror) waitQuiet() {
	m.mu.Lock()
	pending := append([]*Event(nil), m.pending...)
	m.mu.Unlock()
	for _, e := range pending {
		if w := e.ctx.bound(); w != nil {
			w.reader.waitForAny(&e.completion)
		}
	}
}
