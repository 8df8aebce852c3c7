// Package await lets a test wait for a state instead of sleeping.
package await

import (
	"runtime"
	"strings"
	"testing"
	"time"
)

// limit is how long a state may take on a busy machine: it ends a test that would wait for ever, and no other.
const limit = 5 * time.Minute

// Pauses between two looks: a look may cost a node more than what it waits for does.
const (
	leastPause = time.Millisecond
	mostPause  = 25 * time.Millisecond
	pausePart  = 16 // of the time that it has taken so far
)

// Until waits until a state is there. what names it.
func Until(t testing.TB, what string, there func() bool) {
	t.Helper()
	for began := time.Now(); !there(); Rest(began) {
		if time.Since(began) > limit {
			t.Fatalf("it did not come within %v: %s", limit, what)
		}
	}
}

// Rest is the pause between two looks at what is waited for since began.
func Rest(began time.Time) {
	time.Sleep(min(max(time.Since(began)/pausePart, leastPause), mostPause))
}

// Blocked waits until n goroutines at least are inside a function and cannot go on: they wait for a lock, a channel,
// the network, or in a system call. function is the end of its name, such as "link.(*Conn).Block".
func Blocked(t testing.TB, n int, function string) {
	t.Helper()
	Until(t, "goroutine that waits in "+function, func() bool { return Waiting(function) >= n })
}

// Waiting gives how many goroutines Blocked counts.
func Waiting(function string) int {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	n := 0
	for _, g := range strings.Split(string(stacks), "\n\n") {
		head, frames, _ := strings.Cut(g, "\n")
		if !strings.Contains(head, "[running") && !strings.Contains(head, "[runnable") &&
			strings.Contains(frames, function+"(") {
			n++
		}
	}
	return n
}
