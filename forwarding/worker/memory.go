//go:build cgo

package worker

import (
	"sync"
	"time"

	"tendril/forwarding/cl"
	"tendril/forwarding/opencl"
)

// limitWait is how long a creation beyond the limit waits for a higher one: the daemon sent it before it answered the
// client, but on another way than the client's record.
const limitWait = 2 * time.Second

// deviceMemory counts what a session's buffers and images take of its devices' own memory, and keeps the daemon's
// limit.
type deviceMemory struct {
	mu      sync.Mutex // leaf
	changed sync.Cond
	limited bool
	limit   uint64 // bytes
	taken   uint64
	wait    time.Duration // limitWait; tests have others
}

func newDeviceMemory() *deviceMemory {
	m := &deviceMemory{wait: limitWait}
	m.changed.L = &m.mu
	return m
}

// bound says whether there is a limit; it is 0 until setLimit.
func (m *deviceMemory) bound(limited bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limited = limited
}

func (m *deviceMemory) setLimit(n uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limit = n
	m.changed.Broadcast()
}

// take books n bytes for b.
func (m *deviceMemory) take(b *buffer, n uint64) opencl.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.short(n) && !m.waitFor(n) {
		return cl.MEM_OBJECT_ALLOCATION_FAILURE
	}
	m.taken += n
	b.memory, b.charged = m, n
	return cl.SUCCESS
}

func (m *deviceMemory) short(n uint64) bool {
	return m.limited && (n > m.limit || m.taken > m.limit-n)
}

// waitFor waits until n bytes fit, no longer than wait. mu is held.
func (m *deviceMemory) waitFor(n uint64) bool {
	over := false
	t := time.AfterFunc(m.wait, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		over = true
		m.changed.Broadcast()
	})
	defer t.Stop()
	for m.short(n) && !over {
		m.changed.Wait()
	}
	return !m.short(n)
}

func (m *deviceMemory) give(n uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taken -= n
	m.changed.Broadcast()
}
