package adaptive

import (
	"sync"
	"testing"
)

// Who waits for a lock that is let go soon does not sleep for it; who waits for long does, in the end.
func TestTriesBeforeItSleeps(t *testing.T) {
	var m Mutex
	m.Lock()
	looks := 0
	if !m.tryFor(func() {
		if looks++; looks == tries/2 {
			m.Unlock()
		}
	}) || looks != tries/2 {
		t.Errorf("it was let go before the look %d, and not taken in %d", tries/2, looks)
	}
	looks = 0
	if m.tryFor(func() { looks++ }) || looks != tries {
		t.Errorf("it is held, and %d looks have it or did not end", looks)
	}
	if m.TryLock() {
		t.Error("it is held, and somebody else has it")
	}
	m.Unlock()
}

func TestMutex(t *testing.T) {
	var m Mutex
	var all sync.WaitGroup
	n := 0
	for range 8 {
		all.Go(func() {
			for range 10_000 {
				m.Lock()
				n++
				m.Unlock()
			}
		})
	}
	all.Wait()
	if n != 80_000 {
		t.Errorf("80,000 additions under the lock make %d", n)
	}
}
