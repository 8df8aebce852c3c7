//go:build cgo

package worker

import (
	"sync"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
)

// hands are threads that send reads' bytes, or wait for a device that takes a write's, making room for others
// (link.GiveWay), and then wait for more to do. A goroutine that starts anew costs three system calls for that, and
// wakes a thread which then wakes the next one's: with four lanes the last began four wake-ups late. These sleep in the
// kernel, and wake side by side.
//
// They end with the worker's process; tests close them before.
//
// Locks: hands.mu is a leaf.
type hands struct {
	mu     sync.Mutex
	idle   []*hand
	count  int // of all of them
	closed bool
}

// hand is one of them. Whoever takes it off idle sets do, and rings.
type hand struct {
	bell int    // an eventfd
	do   func() // nil: it ends
}

// run has do run on one of them, or on a new one that work counts.
func (h *hands) run(work *sync.WaitGroup, do func()) {
	if one := h.take(); one != nil {
		one.ring(do)
		return
	}
	work.Go(func() { link.GiveWay(func() { h.serve(do) }) })
}

// take returns one that has nothing to do; nil: there is none, and the caller makes one.
func (h *hands) take() *hand {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.idle)
	if n == 0 {
		h.count++
		return nil
	}
	one := h.idle[n-1]
	h.idle = h.idle[:n-1]
	return one
}

func (one *hand) ring(do func()) {
	one.do = do
	_, _ = unix.Write(one.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // fails only when the counter is full
}

// serve runs do, and then what it is rung for.
func (h *hands) serve(do func()) {
	defer h.gone()
	do()
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return // a new one each time
	}
	defer unix.Close(bell)
	for one := (&hand{bell: bell}); h.rest(one); {
		if one.await(); one.do == nil {
			return
		}
		one.do()
		one.do = nil // what it holds is not kept until the next read
	}
}

func (h *hands) gone() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count--
}

// await sleeps until the bell rings.
func (one *hand) await() {
	var count [8]byte
	for {
		if _, err := unix.Read(one.bell, count[:]); err != unix.EINTR {
			return
		}
	}
}

// rest puts a hand among those that wait; false: it is not needed any more.
func (h *hands) rest(one *hand) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || len(h.idle) == clwire.MaxLanes {
		return false
	}
	h.idle = append(h.idle, one)
	return true
}
