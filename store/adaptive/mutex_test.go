package adaptive

import (
	"runtime"
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

// The holder lets others run, so that they find the lock locked: with one processor they sleep for it at once, with
// several they look for a while.
func TestMutex(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, processors := range []int{1, 4} {
		runtime.GOMAXPROCS(processors)
		var m Mutex
		var all sync.WaitGroup
		n := 0
		for range 8 {
			all.Go(func() {
				for range 1000 {
					m.Lock()
					before := n
					runtime.Gosched()
					n = before + 1
					m.Unlock()
				}
			})
		}
		all.Wait()
		if n != 8000 {
			t.Errorf("%d processors: 8000 additions under the lock make %d", processors, n)
		}
	}
}
