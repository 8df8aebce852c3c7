package workers

import (
	"sync"

	"tendril/forwarding/clwire"
)

// questions are those that a worker was asked: one at a time, which all who ask meanwhile wait for. A worker that does
// not answer is not asked again. mu is a leaf.
type questions struct {
	mu     sync.Mutex
	number uint64
	open   *question // nil: there is none
	listen bool      // somebody hears the worker's packets
}

type question struct {
	number uint64
	told   clwire.WorkerCommands // read after done
	done   chan struct{}
}

// heard notes that somebody hears the worker's packets.
func (x *questions) heard() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.listen = true
}

// answered takes what a worker says; an answer that nobody asked for is nothing.
func (x *questions) answered(m *clwire.WorkerCommands) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.open != nil && x.open.number == m.Question {
		x.open.told = *m
		close(x.open.done)
		x.open = nil
	}
}
