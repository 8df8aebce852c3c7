// Package callback runs the program's callbacks.
//
// Trust: a callback is the program's and may do anything, call the driver back or never return among it. Locks:
// Dispatcher.mu is a leaf, and no lock is held while a callback runs.
package callback

import (
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Dispatcher runs the program's callbacks one after another on a goroutine of its own, which lives while there are
// any. Callbacks may call the driver back, and so never run under a lock.
type Dispatcher struct {
	mu      sync.Mutex
	queue   []func()
	running bool
	closed  bool
	idle    sync.Cond
	thread  atomic.Int32 // that a callback runs on; 0: none runs
}

// New returns a dispatcher that has nothing to do, and no goroutine.
func New() *Dispatcher {
	p := &Dispatcher{}
	p.idle.L = &p.mu
	return p
}

// Run queues f. It takes a leaf lock only and may be called under any other.
func (p *Dispatcher) Run(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.queue = append(p.queue, f)
	if !p.running {
		p.running = true
		go p.loop()
	}
}

func (p *Dispatcher) loop() {
	for {
		p.mu.Lock()
		if len(p.queue) == 0 {
			p.running = false
			p.idle.Broadcast()
			p.mu.Unlock()
			return
		}
		f := p.queue[0]
		p.queue = p.queue[1:]
		p.mu.Unlock()
		p.call(f)
	}
}

// call runs a callback on a thread that here knows again: what the program calls from there comes by the same one.
func (p *Dispatcher) call(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p.thread.Store(int32(unix.Gettid()))
	defer p.thread.Store(0)
	f()
}

// Here says whether the caller is a callback of the program's, which must not wait for others.
func (p *Dispatcher) Here() bool {
	thread := p.thread.Load()
	return thread != 0 && thread == int32(unix.Gettid())
}

// Close drops what is queued and waits for the callback that runs.
func (p *Dispatcher) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.queue = true, nil
	for p.running {
		p.idle.Wait()
	}
}
