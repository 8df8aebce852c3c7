package callback

import (
	"slices"
	"sync"
	"testing"

	"tendril/tools/e2e/await"
)

// TestInOrder: callbacks run one after another, in the order in which they came, also those that callbacks queue.
func TestInOrder(t *testing.T) {
	p := New()
	var order []int // no lock: the race detector sees two at a time
	done := make(chan struct{})
	for i := range 100 {
		p.Run(func() {
			order = append(order, i)
			if i == 99 {
				p.Run(func() { close(done) })
			}
		})
	}
	<-done
	if len(order) != 100 || !slices.IsSorted(order) {
		t.Errorf("order %v", order)
	}
	p.Close()
}

// TestGoroutineEnds: there is a goroutine while there are callbacks, and another one for those that come later.
func TestGoroutineEnds(t *testing.T) {
	p := New()
	for range 3 {
		ran := make(chan struct{})
		p.Run(func() { close(ran) })
		<-ran
		await.Until(t, "end of the goroutine", func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return !p.running
		})
	}
	p.Close()
}

// TestHere: only the callback that runs is here, whichever goroutine asks beside it.
func TestHere(t *testing.T) {
	p := New()
	if p.Here() {
		t.Error("no callback runs, and the caller is one")
	}
	inside, beside := make(chan bool), make(chan struct{})
	p.Run(func() {
		inside <- p.Here()
		<-beside
	})
	if !<-inside {
		t.Error("a callback is not here")
	}
	if p.Here() {
		t.Error("who looks on is taken for the callback")
	}
	close(beside)
	p.Close()
	if p.Here() {
		t.Error("the callback has ended, and the caller is it")
	}
}

// TestCloseWaits: Close drops what is queued, and returns when the callback that runs has ended. Nothing runs after it.
func TestCloseWaits(t *testing.T) {
	p := New()
	begun, end := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	var ran []string
	note := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		ran = append(ran, what)
	}
	p.Run(func() {
		close(begun)
		<-end
		note("first")
	})
	p.Run(func() { note("queued") })
	<-begun
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		p.Close()
		note("closed")
	}()
	await.Blocked(t, 1, "callback.(*Dispatcher).Close")
	close(end)
	<-closed
	p.Run(func() { note("late") })
	p.Close()
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(ran, []string{"first", "closed"}) {
		t.Errorf("ran %q", ran)
	}
}
