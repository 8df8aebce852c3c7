// Package adaptive has a lock that is waited for on the processor at first: the store's, which is held for some µs at a
// time. A goroutine that sleeps for a lock needs a processor of the runtime's again when it is woken, and where all are
// busy it waits for that much longer than the lock was held. It trusts its callers. Its lock is a leaf of its own: no
// other is taken under it here.
package adaptive

import (
	"runtime"
	"sync"
)

// Mutex is sync.Mutex whose Lock tries for some µs before it sleeps. The zero value is unlocked. It must not be copied
// after first use.
type Mutex struct{ mu sync.Mutex }

// tries is how often Lock looks before it sleeps: some 10 µs, several times what the store's lock is held for and less
// than a thread's waking takes.
const tries = 300

// Lock locks m; it waits while m is locked.
func (m *Mutex) Lock() {
	if !m.mu.TryLock() && (runtime.GOMAXPROCS(0) == 1 || !m.tryFor(pause)) {
		m.mu.Lock()
	}
}

// TryLock locks m unless it is locked, and reports whether it did.
func (m *Mutex) TryLock() bool { return m.mu.TryLock() }

// Unlock unlocks m, which must be locked.
func (m *Mutex) Unlock() { m.mu.Unlock() }

// tryFor tries again and again, with a pause before each time.
func (m *Mutex) tryFor(pause func()) bool {
	for range tries {
		if pause(); m.mu.TryLock() {
			return true
		}
	}
	return false
}

// pause leaves the lock's cache line to its holder for some ns.
func pause() {
	for range 20 {
		nothing()
	}
}

//go:noinline
func nothing() {}
