package await

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

//go:noinline
func waitsHere(m *sync.Mutex) { m.Lock() }

//go:noinline
func turnsHere(stop *atomic.Bool) {
	for !stop.Load() {
	}
}

// Who waits is told from who runs, and from who is elsewhere.
func TestBlocked(t *testing.T) {
	var m sync.Mutex
	m.Lock()
	var stop atomic.Bool
	var running sync.WaitGroup
	for range 2 {
		running.Go(func() { waitsHere(&m); m.Unlock() })
	}
	running.Go(func() { turnsHere(&stop) })
	Blocked(t, 2, "await.waitsHere")
	if n := Waiting("await.waitsHere"); n != 2 {
		t.Errorf("%d wait, and should be 2", n)
	}
	if n := Waiting("await.turnsHere"); n != 0 {
		t.Errorf("%d wait where one runs", n)
	}
	if n := Waiting("await.waits"); n != 0 {
		t.Errorf("%d are in a function that is not there", n)
	}
	stop.Store(true)
	m.Unlock()
	running.Wait()
	if n := Waiting("await.waitsHere"); n != 0 {
		t.Errorf("%d wait and should have ended", n)
	}
}

// A goroutine that ends late is no leak.
func TestNoneLeftWaits(t *testing.T) {
	here, stop := goleak.IgnoreCurrent(), make(chan struct{})
	go func() { <-stop }()
	if goleak.Find(here) == nil {
		t.Fatal("a goroutine that waits is not found")
	}
	time.AfterFunc(time.Second, func() { close(stop) }) // goleak alone gives up before
	NoneLeft(t, here)
}
