package ipc

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// Poller waits for many of a daemon's connections on one thread and serves what comes there and then: no thread is
// woken, and no goroutine, as through the Go netpoller. After each request it looks for the next one for some µs, with
// sched_yield between looks, before it sleeps; while four clients are busy it then hardly ever does.
//
// Its time is shared out by tenants, and a tenant's by its connections (share): who floods it, over however many
// connections, delays another tenant's request by one turn. New connections are let in by the same thread, in turns
// like all else, and their tenants pay for that.
//
// What it calls may not wait. Safe for concurrent use; its lock is a leaf.
type Poller struct {
	epoll int           // immutable until Close
	stop  int           // an eventfd; immutable until Close
	ended chan struct{} // closed when run has ended

	mu     sync.Mutex
	served map[int32]*served // by descriptor
	shares map[string]*share // by tenant, of what is served
	spares [][]byte          // receive buffers of connections that came with nothing in theirs
	closed bool

	slice atomic.Int64 // how long it serves between two looks, in ns; written under mu

	// Of run's goroutine.
	spare []byte        // what connections receive into whose inbox is empty
	ready shareHeap     // those with connections to be served, the one that had least first
	clock time.Duration // what the one served last had had by then
	payer *share        // that of the last Charge
	other time.Time     // when a connection of another one had its last turn
}

// served is a connection that is left to the poller, or a socket that listens.
type served struct {
	fd    int
	a     *Accepted // nil: it listens
	step  func(began time.Time) Turn
	left  func() (over bool) // called when the poller has let go of it
	share *share
	next  *served // behind it in share's queue
	wants bool    // it stands there; of run's goroutine, as the next
	shut  bool    // the peer has closed its end, which is yet to be acted on
	paced *paced  // a socket that listens
}

// paced is what a socket that listens has besides.
type paced struct {
	Pace
	lingers *Lingers
}

// tires takes note of a turn that began then, of a socket that listens.
func (p *Poller) tires(s *served, began time.Time) bool {
	if s.paced == nil {
		return false
	}
	tenant, now := "", time.Now()
	if p.payer != nil {
		tenant = p.payer.tenant
	}
	othersWork := now.Sub(p.other) < PaceRest || s.paced.lingers.OthersWork(tenant)
	return s.paced.Tires(began, min(now.Sub(began), pollerMost), othersWork)
}

// Turn says what became of a connection's turn.
type Turn int

const (
	Served Turn = iota // all that had come was taken in and acted on
	More               // there is more to act on: the next turn is wanted
	Leave              // the connection is no longer the poller's
	Rest               // nothing more for failureRest
)

// pollerEvents: a look tells of what came since the last one, and not again of all who wait for their turn, which may
// be thousands. So who was told of a connection has to take in all that there is, and where the peer has closed its
// end, also learn that.
const pollerEvents = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET

const (
	pollerSpin  = 50 * time.Microsecond  // how long the poller looks for the next request before it sleeps
	pollerBatch = 512                    // connections that one look finds
	pollerSlice = 10 * time.Microsecond  // how long the poller serves between two looks
	pollerAlone = 100 * time.Microsecond // the same where all connections are of one tenant
	pollerMost  = 100 * time.Microsecond // what a turn counts at most: one that took longer did not have the processor
	failureRest = 50 * time.Millisecond
	// aloneFor is how many requests of one connection, and none of another of its tenant, make it worth a thread of its
	// own.
	aloneFor = 64
	// crowdedFor is for how long after another connection's request none of the tenant lingers.
	crowdedFor = time.Millisecond
)

// NewPoller starts a poller. The caller must Close it.
func NewPoller() (*Poller, error) {
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
	p := &Poller{epoll: epoll, stop: stop, ended: make(chan struct{}), served: make(map[int32]*served),
		shares: make(map[string]*share)}
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

// Serve leaves the connection of a tenant to the poller, whose goroutine calls step each time that there is something
// to receive, with when that turn began, until that gives Leave, or the poller thinks that the connection had better
// linger. Then it calls left, once: that has a goroutine go on, or closes the connection there and then, and says
// whether it did. A turn is to be short, some µs, and so is left. false: the poller has been closed, or there is no
// memory for it, and the connection stays the caller's. No Receive may be under way meanwhile.
func (p *Poller) Serve(a *Accepted, tenant string, step func(began time.Time) Turn, left func() (over bool)) bool {
	a.stopLingering()
	a.leavePark()
	if a.company == nil {
		a.company = a.lingers.join(tenant)
	}
	return p.add(&served{fd: a.fd, a: a, step: step, left: left}, tenant)
}

// Listen has the poller call step whenever somebody waits at a socket that listens, until that gives Leave or the
// poller is closed. A tenant's time for that is noted with Charge. While others are at work, those who linger too, it
// rests now and then (Pace).
func (p *Poller) Listen(fd int, lingers *Lingers, step func(began time.Time) Turn) error {
	s := &served{fd: fd, step: step, left: func() bool { return true }, paced: &paced{lingers: lingers}}
	if !p.add(s, "") {
		return fmt.Errorf("%w: epoll takes no socket that listens", object.ErrFull)
	}
	return nil
}

func (p *Poller) add(s *served, tenant string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	fd := int32(s.fd)
	p.served[fd] = s // before the first event
	if unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, s.fd, &unix.EpollEvent{Events: pollerEvents, Fd: fd}) != nil {
		delete(p.served, fd)
		return false
	}
	if s.share = p.shares[tenant]; s.share == nil {
		s.share = &share{tenant: tenant, at: -1}
		p.shares[tenant] = s.share
	}
	s.share.connections++
	p.sizeSlice()
	if s.a != nil {
		p.keep(s.a.in.strip())
	}
	return true
}

// sizeSlice says how long to serve between two looks: a look costs a tenth of a turn, and shows a single tenant's
// poller nobody who waits for another's turns to end. mu is held.
func (p *Poller) sizeSlice() {
	slice := pollerSlice
	if _, listens := p.shares[""]; len(p.shares) == 1 || listens && len(p.shares) == 2 {
		slice = pollerAlone
	}
	p.slice.Store(int64(slice))
}

// maxSpares bounds Poller.spares.
const maxSpares = 16

// keep takes a receive buffer that is not needed; it may be nil. mu is held.
func (p *Poller) keep(b []byte) {
	if b != nil && len(p.spares) < maxSpares {
		p.spares = append(p.spares, b)
	}
}

// lend gives a connection whose inbox is empty something to receive into.
func (p *Poller) lend(s *served) {
	if s.a == nil || s.a.in.buf != nil {
		return
	}
	if p.spare == nil {
		p.mu.Lock()
		if n := len(p.spares); n > 0 {
			p.spare, p.spares[n-1] = p.spares[n-1], nil
			p.spares = p.spares[:n-1]
		}
		p.mu.Unlock()
	}
	s.a.in.buf, p.spare = p.spare, nil
}

// Charge has a tenant pay for what a turn of a socket that listens did for it. Only step may call it.
func (p *Poller) Charge(tenant string, took time.Duration) {
	p.mu.Lock()
	share := p.shares[tenant]
	p.mu.Unlock()
	if share != nil {
		share.had = max(share.had, p.clock) + min(took, pollerMost)
		p.ready.moved(share)
		p.payer = share
	}
}

// drop lets go of a connection, and says whether it is over.
func (p *Poller) drop(s *served) (over bool) {
	p.mu.Lock()
	delete(p.served, int32(s.fd))
	if s.share.connections--; s.share.connections == 0 {
		delete(p.shares, s.share.tenant)
		p.sizeSlice()
	}
	p.mu.Unlock()
	unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, s.fd, nil) // fails only for one that is not there
	return s.left()
}

// rest leaves a socket alone for a while.
func (p *Poller) rest(s *served, long time.Duration) {
	unix.EpollCtl(p.epoll, unix.EPOLL_CTL_MOD, s.fd, &unix.EpollEvent{Fd: int32(s.fd)})
	time.AfterFunc(long, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.closed && p.served[int32(s.fd)] == s {
			unix.EpollCtl(p.epoll, unix.EPOLL_CTL_MOD, s.fd, &unix.EpollEvent{Events: pollerEvents, Fd: int32(s.fd)})
		}
	})
}

// run serves until Close.
func (p *Poller) run() {
	defer close(p.ended)
	defer p.dropAll()
	events := make([]unix.EpollEvent, pollerBatch)
	now := time.Now()
	for {
		n := 0
		if len(p.ready) == 0 {
			n = p.wait(events)
			now = later(now)
		} else {
			n = pollNow(p.epoll, events)
		}
		if !p.note(events[:n]) {
			return
		}
		for began := now; len(p.ready) > 0 && now.Sub(began) < time.Duration(p.slice.Load()); {
			now = p.turn(now)
		}
	}
}

// later is time.Now for who has an earlier time: it reads one clock instead of two.
func later(t time.Time) time.Time { return t.Add(time.Since(t)) }

// note lets those that have something wait for their turn; false where the poller was closed.
func (p *Poller) note(events []unix.EpollEvent) bool {
	if len(events) == 0 {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ev := range events {
		s := p.served[ev.Fd]
		if s == nil {
			continue
		}
		s.shut = s.shut || ev.Events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
		if !s.wants {
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
	share.notice(s, began)
	p.lend(s)
	turn := s.step(began)
	if turn == Served && s.shut { // the end comes with the next receive
		turn = More
	}
	mine := true // not another goroutine's by now
	switch {
	case turn == Leave || turn == Served && share.row > aloneFor && s.a != nil && s.a.lingers.free(s.a.company):
		share.latest = nil
		mine = p.drop(s)
	case turn == Rest:
		p.rest(s, failureRest)
	case turn == More && p.tires(s, began):
		p.rest(s, PaceRest)
	case turn == More:
		share.put(s)
	}
	if mine && s.a != nil {
		if b := s.a.in.strip(); b != nil {
			p.spare = b
		}
	}
	ended := later(began)
	if s.a != nil && share != p.payer {
		p.other = ended
	}
	share.had += min(ended.Sub(began), pollerMost)
	p.ready.settle(share)
	if !mine {
		// Its goroutine waits for this processor, which a busy poller keeps for 10 ms otherwise. Twice: every 61st time
		// the runtime looks among those that gave way first, and finds the poller.
		runtime.Gosched()
		runtime.Gosched()
	}
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
		s.left()
	}
}
