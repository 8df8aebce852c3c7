// Package mirror keeps buffers and the program's own memory under them (CL_MEM_USE_HOST_PTR) alike. The device computes
// on the buffer's memory; the program's pages are pushed before a command uses the buffer, if the program may have
// written them, and fetched back at every synchronisation: also for programs that never map.
//
// It trusts the session, which moves the bytes. Locks: Mirror.mu is held while bytes move; it comes before those of the
// session's buffers and queues. List's is a leaf.
package mirror

import (
	"slices"
	"sync"
	"sync/atomic"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// Memory is a buffer and the program's memory under it. Both methods move all of its bytes, by the calling thread.
type Memory interface {
	Push() api.Status  // to the buffer
	Fetch() api.Status // to the program's memory
}

// Command is a command that uses the buffer.
type Command interface {
	Over() bool // it has ended, well or not
	Hold()      // its end is to be heard of, though the program lets go of its event
	Await()     // returns when it is over, or its worker is dead
}

// Mirror keeps one buffer alike.
type Mirror struct {
	memory Memory // immutable

	mu        sync.Mutex
	hostNewer bool      // the program may have written since the last push
	devNewer  bool      // a command may have written since the last fetch
	pending   []Command // those that use the buffer
	closed    bool      // the memory is the program's alone again: nothing is written there
}

// New makes the mirror of a new buffer: what the program's memory holds is still to be pushed.
func New(m Memory) *Mirror { return &Mirror{memory: m, hostNewer: true} }

func (m *Mirror) trimLocked() { m.pending = slices.DeleteFunc(m.pending, Command.Over) }

// Sync runs at each synchronisation: what commands that ended have written is fetched.
func (m *Mirror) Sync() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.trimLocked(); m.closed || len(m.pending) > 0 {
		return
	}
	m.fetchLocked()
	m.devNewer, m.hostNewer = false, true
}

// Fetch brings what the device wrote to the program's memory, for a map: commands on other queues may go on.
func (m *Mirror) Fetch() api.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fetchLocked()
}

func (m *Mirror) fetchLocked() api.Status {
	if !m.devNewer || m.closed {
		return cl.SUCCESS
	}
	return m.memory.Fetch()
}

// Written notes that the program wrote through a map.
func (m *Mirror) Written() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hostNewer = true
}

// Use prepares a command that uses the buffer. What is to be pushed is pushed at once, or, where commands still use the
// buffer, by inTurn, which has push called after them and before this one.
func (m *Mirror) Use(c Command, writes bool, inTurn func(push func() api.Status) api.Status) api.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trimLocked()
	if m.hostNewer {
		var status api.Status
		if len(m.pending) == 0 {
			status = m.memory.Push()
		} else {
			status = inTurn(m.memory.Push)
		}
		if status != cl.SUCCESS {
			return status
		}
	}
	m.hostNewer = false
	m.devNewer = m.devNewer || writes
	c.Hold()
	m.pending = append(m.pending, c)
	return cl.SUCCESS
}

// End brings the last results to the program's memory and gives it back; false: commands still use the buffer, and what
// they have to write is still to come.
func (m *Mirror) End() bool {
	m.Sync()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trimLocked()
	if len(m.pending) > 0 && m.devNewer {
		return false
	}
	m.closed = true
	return true
}

// Close gives the program's memory back, whatever is still to come.
func (m *Mirror) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
}

// Quiet says whether no command uses the buffer any more.
func (m *Mirror) Quiet() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trimLocked()
	return len(m.pending) == 0
}

// WaitQuiet waits for the commands that use the buffer now.
func (m *Mirror) WaitQuiet() {
	m.mu.Lock()
	pending := slices.Clone(m.pending)
	m.mu.Unlock()
	for _, c := range pending {
		c.Await()
	}
}

// List is the mirrors of a context. The zero value is an empty one. Reading it takes no lock.
type List struct {
	mu   sync.Mutex // leaf
	list atomic.Pointer[[]*Mirror]
}

// Add adds a mirror.
func (l *List) Add(m *Mirror) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.setLocked(append([]*Mirror{m}, l.all()...))
}

// Drop takes a mirror out.
func (l *List) Drop(m *Mirror) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.setLocked(slices.DeleteFunc(slices.Clone(l.all()), func(other *Mirror) bool { return other == m }))
}

func (l *List) setLocked(list []*Mirror) {
	if len(list) == 0 {
		l.list.Store(nil)
		return
	}
	l.list.Store(&list)
}

func (l *List) all() []*Mirror {
	if list := l.list.Load(); list != nil {
		return *list
	}
	return nil
}

// Empty says whether there are none.
func (l *List) Empty() bool { return l.list.Load() == nil }

// Sync runs at each synchronisation of the context.
func (l *List) Sync() {
	for _, m := range l.all() {
		m.Sync()
	}
}
