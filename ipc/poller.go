package ipc

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Poller waits for many of a daemon's connections on one thread and serves what comes there and then: no thread is woken, and no
// goroutine, as through the Go netpoller. After each request it looks for the next one for some µs, with sched_yield between looks, before
// it sleeps; while four clients are busy it then hardly ever does.
//
// Its time is shared out by tenants, and a tenant's by its connections (share): who floods it, over however many connections, delays
// another tenant's request by one turn.
//
// What it calls may not wait. Safe for concurrent use; its lock is a leaf.
type Poller struct {
	epoll   int           // immutable until Close
	stop    int           // an eventfd; immutable until Close
	lingers *Lingers      // immutable
	ended   chan struct{} // closed when run has ended

	mu     sync.Mutex
	served map[int32]*served // by descriptor
	shares map[string]*share // by tenant, of what is served
	closed bool

	// Of run's goroutine.
	ready shareHeap     // those with connections to be served, the one that had least first
	clock time.Duration // what the one served last had had by then
	last  *served
	row   int // turns of last
}

// served is a connection that is left to the poller.
type served struct {
	a     *Accepted
	step  func() Turn
	over  chan struct{} // closed when the poller has let go of it
	share *share
	next  *served // behind it in share's queue
	wants bool    // it stands there; of run's goroutine
}

// Turn says what became of a connection's turn.
type Turn int

const (
	Served Turn = iota // all that had come was acted on
	More               // there is more to act on: the next turn is wanted
	Leave              // the connection is no longer the poller's
)

const (
	pollerSpin  = 50 * time.Microsecond // how long the poller looks for the next request before it sleeps
	pollerBatch = 512                   // connections that one look finds
	pollerSlice = 20 * time.Microsecond // how long the poller serves between two looks
	// aloneFor is how many requests of one connection, and none of another, make it worth a thread of its own.
	aloneFor = 64
	// crowdedFor is for how long after another connection's request nobody lingers.
	crowdedFor = time.Millisecond
)

// NewPoller starts a poller. The connections share lingers with it. The caller must Close it.
func NewPoller(lingers *Lingers) (*Poller, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, stop, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(stop)})
	}
	if err != nil {
		unix.Close(epoll)
		unix.Close(stop)
		return nil, fmt.Errorf("epoll: %w", err)
	}
	p := &Poller{epoll: epoll, stop: stop, lingers: lingers, ended: make(chan struct{}), served: make(map[int32]*served), shares: make(map[string]*share)}
	go p.run()
	return p, nil
}

// Close ends every Serve and the poller's goroutine. A second Close does nothing.
func (p *Poller) Close() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		<-p.ended
		return
	}
	p.closed = true
	p.mu.Unlock()
	unix.Write(p.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // fails only where it is signalled already
	<-p.ended
	unix.Close(p.epoll)
	unix.Close(p.stop)
}

// Serve leaves the connection of a tenant to the poller, whose goroutine calls step each time that there is something to receive, until
// that gives Leave, or the poller thinks that the connection had better linger. A turn is to be short, some µs. Serve returns then; at
// once, false, where the poller has been closed. No Receive may be under way meanwhile.
func (p *Poller) Serve(a *Accepted, tenant string, step func() Turn) bool {
	a.stopLingering()
	a.leavePark()
	s := &served{a: a, step: step, over: make(chan struct{})}
	if !p.add(s, tenant) {
		return false
	}
	<-s.over
	return true
}

func (p *Poller) add(s *served, tenant string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	fd := int32(s.a.fd)
	if unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, s.a.fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: fd}) != nil {
		return false // no memory for it: the connection waits by itself
	}
	p.served[fd] = s
	if s.share = p.shares[tenant]; s.share == nil {
		s.share = &share{tenant: tenant, at: -1}
		p.shares[tenant] = s.share
	}
	s.share.connections++
	return true
}

// drop lets go of a connection.
func (p *Poller) drop(s *served) {
	p.mu.Lock()
	delete(p.served, int32(s.a.fd))
	if s.share.connections--; s.share.connections == 0 {
		delete(p.shares, s.share.tenant)
	}
	p.mu.Unlock()
	unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, s.a.fd, nil) // fails only for one that is not there
	close(s.over)
	runtime.Gosched() // its goroutine waits for this processor, which a busy poller keeps for 10 ms otherwise
}

// run serves until Close.
func (p *Poller) run() {
	defer close(p.ended)
	defer p.dropAll()
	events := make([]unix.EpollEvent, pollerBatch)
	for {
		n := 0
		if len(p.ready) == 0 {
			n = p.wait(events)
		} else {
			n = pollNow(p.epoll, events)
		}
		if !p.note(events[:n]) {
			return
		}
		began := time.Now()
		for now := began; len(p.ready) > 0 && now.Sub(began) < pollerSlice; {
			now = p.turn(now)
		}
	}
}

// note lets those that have something wait for their turn; false where the poller was closed.
func (p *Poller) note(events []unix.EpollEvent) bool {
	if len(events) == 0 {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ev := range events {
		if s := p.served[ev.Fd]; s != nil && !s.wants {
			p.ready.want(s, p.clock)
		}
	}
	return !p.closed
}

// turn gives the connection whose turn it is one, and says when it ended.
func (p *Poller) turn(began time.Time) time.Time {
	share := p.ready[0]
	p.clock = share.had
	s := share.take()
	if s != p.last {
		p.last, p.row = s, 0
		p.lingers.crowd()
	} else if p.lingers.now.Load() > 0 {
		p.lingers.crowd()
	}
	p.row++
	turn := s.step()
	ended := time.Now()
	share.had += ended.Sub(began)
	if turn == Leave || turn == Served && p.row > aloneFor && p.lingers.free() {
		p.last = nil
		p.ready.settle(share)
		p.drop(s)
		return ended
	}
	if turn == More {
		share.put(s)
	}
	p.ready.settle(share)
	return ended
}

// wait gives what is ready: looking at first, then asleep.
func (p *Poller) wait(events []unix.EpollEvent) int {
	if n := pollNow(p.epoll, events); n > 0 || runtime.GOMAXPROCS(0) == 1 {
		return n
	}
	for began := time.Now(); time.Since(began) < pollerSpin; {
		yieldThread()
		if n := pollNow(p.epoll, events); n > 0 {
			return n
		}
	}
	for {
		n, err := unix.EpollWait(p.epoll, events, -1)
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0)
		}
	}
}

// dropAll lets go of what is left.
func (p *Poller) dropAll() {
	p.mu.Lock()
	list := p.served
	p.served = nil
	p.mu.Unlock()
	for _, s := range list {
		close(s.over)
	}
}
