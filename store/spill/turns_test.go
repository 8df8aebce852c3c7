package spill

import (
	"runtime"
	"slices"
	"sync"
	"testing"
)

// waiting tells how many wait for an owner's turns.
func (t *turns) waiting(owner string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.lines[owner]; l != nil {
		return len(l.wait)
	}
	return 0
}

// TestTurns: whoever asks for much gets no more than every other turn while somebody else wants one.
func TestTurns(t *testing.T) {
	turns := newTurns(2)
	turns.take("greedy")
	turns.take("greedy")
	var order []string
	var mu sync.Mutex
	var all sync.WaitGroup
	ask := func(owner string) {
		before := turns.waiting(owner)
		all.Go(func() {
			turns.take(owner)
			mu.Lock()
			order = append(order, owner)
			mu.Unlock()
		})
		for turns.waiting(owner) == before {
			runtime.Gosched()
		}
	}
	for range 50 {
		ask("greedy")
	}
	for range 3 {
		ask("a")
	}
	ask("b")
	granted := func(n int) {
		for {
			mu.Lock()
			done := len(order) == n
			mu.Unlock()
			if done {
				return
			}
			runtime.Gosched()
		}
	}
	for n := range 54 {
		turns.give()
		granted(n + 1)
	}
	all.Wait()
	if want := []string{"greedy", "a", "b", "greedy", "a", "greedy", "a", "greedy"}; !slices.Equal(order[:8], want) {
		t.Errorf("turns went to %v, want %v", order[:8], want)
	}
	turns.give()
	turns.give()
	if turns.free != 2 || len(turns.ring)+len(turns.lines) != 0 {
		t.Errorf("at the end: %+v", turns)
	}
}

// TestYield: a long transfer lets others in between its chunks, and goes on before its owner's others begin.
func TestYield(t *testing.T) {
	turns := newTurns(1)
	turns.take("long")
	turns.yield("long") // to nobody
	began := make(chan string)
	ask := func(owner, name string, wait func(string)) {
		before := turns.waiting(owner)
		go func() { wait(owner); began <- name }()
		for turns.waiting(owner) == before {
			runtime.Gosched()
		}
	}
	ask("long", "another long one", turns.take)
	ask("short", "short", turns.take)
	ask("long", "the first long one", turns.yield)
	for _, want := range []string{"short", "the first long one", "another long one"} {
		if who := <-began; who != want {
			t.Errorf("%s has the turn, want %s", who, want)
		}
		turns.give()
	}
}
