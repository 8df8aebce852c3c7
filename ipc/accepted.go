package ipc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Accepted is the daemon's end: thousands may wait on a Poller, or on the Go netpoller, and hardly one holds a thread
// (Lingers). Many frames come with one receive, and nothing is allocated a frame. One goroutine may receive while
// another sends.
type Accepted struct {
	fd      int // immutable until Close
	in      inbox
	out     message
	lingers *Lingers
	company *company // nil: it was never a Poller's; set by Serve, the first time

	// Of Receive's goroutine, and Close.
	patient   bool     // a receive that waits gives up after lingerTime
	lingering bool     // counted in lingers
	parked    *os.File // the socket's place in the netpoller, where it has one
	parkedRaw syscall.RawConn
	tryRead   func(fd uintptr) bool // readOnce, made once: a closure a call would be an allocation a call
	room      []byte                // what readOnce fills
	got       int                   // and what became of it
	gotErr    error

	mu     sync.Mutex // guards what follows and the descriptor's O_NONBLOCK; before Lingers.mu
	closed bool
}

// Lingers lets a few of a daemon's connections wait for their next request in the kernel, on a thread of their own, as
// long as none is later than some ms; the others are a Poller's. A single client in a loop is then served within 1.1
// times what two C processes take. Who lingers holds one of the runtime's processors until it is missed, so there is
// always one that nobody lingers on. While several connections of one tenant are busy none of that tenant lingers: each
// would cost a thread's waking a request. What other tenants do does not matter: who lingers does not wait behind them.
type Lingers struct {
	limit int32
	now   atomic.Int32
	began time.Time

	mu        sync.Mutex // a leaf
	companies map[string]*company
}

// company is what the connections of one tenant that a Poller has, or had, know of each other.
type company struct {
	tenant    string       // immutable
	members   int          // guarded by Lingers.mu
	lingering atomic.Int32 // how many of them linger
	crowded   atomic.Int64 // until when none of them lingers, in ns since Lingers.began
}

// NewLingers allows at most limit lingering connections, and at most GOMAXPROCS−1; 0 or less allows none.
func NewLingers(limit int) *Lingers {
	return &Lingers{limit: int32(min(limit, runtime.GOMAXPROCS(0)-1)), began: time.Now(),
		companies: make(map[string]*company)}
}

// join gives a tenant's company, to which there is a member more. The caller must part.
func (l *Lingers) join(tenant string) *company {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.companies[tenant]
	if c == nil {
		c = &company{tenant: tenant}
		l.companies[tenant] = c
	}
	c.members++
	return c
}

func (l *Lingers) part(c *company) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.members--; c.members == 0 {
		delete(l.companies, c.tenant)
	}
}

// crowd says that several connections of a company are busy now.
func (l *Lingers) crowd(c *company, now time.Time) {
	c.crowded.Store(int64(now.Sub(l.began) + crowdedFor))
}

// isCrowded takes nil for somebody who has no company.
func (l *Lingers) isCrowded(c *company) bool {
	return c != nil && int64(time.Since(l.began)) < c.crowded.Load()
}

// free reports whether another connection of a company may linger.
func (l *Lingers) free(c *company) bool { return l.now.Load() < l.limit && !l.isCrowded(c) }

// OthersWork reports whether connections of other tenants than one are busy: one that lingers, or several.
func (l *Lingers) OthersWork(tenant string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.companies {
		if c.tenant != tenant && (c.lingering.Load() > 0 || l.isCrowded(c)) {
			return true
		}
	}
	return false
}

// lingerTime bounds one stay in the kernel; the kernel rounds up to its tick.
const lingerTime = 2 * time.Millisecond

func (l *Lingers) enter(c *company) bool {
	if l.now.Add(1) <= l.limit {
		if c != nil {
			c.lingering.Add(1)
		}
		return true
	}
	l.now.Add(-1)
	return false
}

func (l *Lingers) leave(c *company) {
	l.now.Add(-1)
	if c != nil {
		c.lingering.Add(-1)
	}
}

// NewAccepted takes an accepted connection's descriptor over, which is close-on-exec and blocking. lingers is shared by
// a daemon's connections. The caller must Close.
func NewAccepted(fd int, lingers *Lingers) *Accepted {
	a := &Accepted{fd: fd, lingers: lingers}
	a.tryRead = a.readOnce
	return a
}

// Accept takes the next connection from a socket that listens, which is not blocking, for NewAccepted. EAGAIN: there is
// none.
func Accept(listener int) (fd int, err error) { return acceptNow(listener, unix.SOCK_CLOEXEC) }

// Receive waits for the next frame. io.EOF: the peer has closed, or Shutdown, or EndReceive.
// After an error only Send and Close are of use. No message brings the daemon a descriptor: the kernel closes what a
// peer sends nevertheless, and a frame that announces one is a fault.
func (a *Accepted) Receive() (Frame, error) {
	for {
		f, ok, err := a.in.next()
		if ok || err != nil {
			return f, err
		}
		if err := a.fill(); err != nil {
			return Frame{}, err
		}
	}
}

// fill is one successful receive.
func (a *Accepted) fill() error {
	a.room = a.in.room()
	return a.fillRoom()
}

// fillAtMost is fill that takes no more than n bytes from the socket.
func (a *Accepted) fillAtMost(n int) error {
	room := a.in.room()
	a.room = room[:min(n, len(room))]
	return a.fillRoom()
}

func (a *Accepted) fillRoom() error {
	for {
		err := a.receive()
		switch {
		case err == nil:
			return a.took()
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
			return err
		}
	}
}

// receive is one receive: lingering where there is room for that, parked otherwise.
func (a *Accepted) receive() error {
	if !a.mayLinger() {
		return a.park()
	}
	a.got, a.gotErr = recvPlain(a.fd, a.room, 0)
	if errors.Is(a.gotErr, unix.EAGAIN) {
		a.stopLingering()
		return a.park()
	}
	return a.gotErr
}

// mayLinger reports whether the next receive may wait on this thread, for lingerTime.
func (a *Accepted) mayLinger() bool {
	if !a.lingering && !a.lingers.enter(a.company) {
		return false
	}
	a.lingering = true
	if !a.patient {
		limit := unix.NsecToTimeval(lingerTime.Nanoseconds())
		if unix.SetsockoptTimeval(a.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit) != nil {
			a.stopLingering()
			return false
		}
		a.patient = true
	}
	a.leavePark()
	return true
}

func (a *Accepted) stopLingering() {
	if a.lingering {
		a.lingering = false
		a.lingers.leave(a.company)
	}
}

// Linger receives on this thread where that is allowed and something comes within some ms; false: the connection had
// better be a Poller's. Call it where Whole is false.
func (a *Accepted) Linger() (bool, error) {
	if a.lingers.isCrowded(a.company) {
		a.stopLingering()
		return false, nil
	}
	if !a.mayLinger() {
		return false, nil
	}
	a.room = a.in.room()
	a.got, a.gotErr = recvPlain(a.fd, a.room, 0)
	if errors.Is(a.gotErr, unix.EAGAIN) || errors.Is(a.gotErr, unix.EINTR) {
		a.stopLingering()
		return false, nil
	}
	return true, a.took()
}

// ReceiveNow takes in what is there, without waiting; false where nothing is. Whole and Receive tell of it.
func (a *Accepted) ReceiveNow() (bool, error) {
	a.room = a.in.room()
	a.got, a.gotErr = recvNow(a.fd, a.room)
	if errors.Is(a.gotErr, unix.EAGAIN) || errors.Is(a.gotErr, unix.EINTR) {
		return false, nil
	}
	return true, a.took()
}

// took takes note of a receive.
func (a *Accepted) took() error {
	switch {
	case a.gotErr != nil:
		return a.gotErr
	case a.got == 0:
		return io.EOF
	}
	a.in.end += a.got
	return nil
}

// Drained reports whether the last ReceiveNow, or BeginsWithFrame, took in all that was there.
func (a *Accepted) Drained() bool { return a.got < len(a.room) }

// SendNow is Send that sends what the peer has room for, and says how much that was: of fds all, or none where that is
// 0.
func (a *Accepted) SendNow(b []byte, fds []int) (n int, err error) {
	for n < len(b) && err == nil {
		var some int
		if some, err = a.sendSome(b[n:], fds); err == nil {
			n, fds = n+some, nil
		}
	}
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		err = nil
	}
	return n, err
}

// Admit has Receive ask before it takes more memory for a large frame, and say when that is given back. The
// connection's end says nothing. Call it before the first Receive.
func (a *Accepted) Admit(ask func(h Header, more int) error, free func(n int)) {
	a.in.admit, a.in.free = ask, free
}

// Large reports whether a large frame has begun to come: only Receive may go on then.
func (a *Accepted) Large() bool { return a.in.large() }

// Whole reports whether Receive has another frame at hand without a system call.
func (a *Accepted) Whole() bool { return a.in.whole() }

// park receives on the netpoller. The place there is kept until this connection lingers.
func (a *Accepted) park() error {
	if a.parked == nil {
		file, err := a.pollable()
		if err != nil {
			return a.pollThread(unix.POLLIN)
		}
		if a.parkedRaw, err = file.SyscallConn(); err != nil {
			file.Close()
			return err
		}
		a.parked = file
	}
	if err := a.parkedRaw.Read(a.tryRead); err != nil {
		return err
	}
	return a.gotErr
}

// readOnce is one receive that does not wait; false where there is nothing yet.
func (a *Accepted) readOnce(fd uintptr) bool {
	a.got, a.gotErr = recvPlain(int(fd), a.room, unix.MSG_DONTWAIT)
	return !errors.Is(a.gotErr, unix.EAGAIN)
}

// leavePark gives the place in the netpoller back: there, each message would wake a thread for nothing while one
// lingers.
func (a *Accepted) leavePark() {
	if a.parked != nil {
		a.parked.Close()
		a.parked = nil
		a.setBlocking()
	}
}

// parkSending waits until the peer has read some. That is rare: it borrows a place in the netpoller for the time.
func (a *Accepted) parkSending() error {
	file, err := a.pollable()
	if err != nil {
		return a.pollThread(unix.POLLOUT)
	}
	defer file.Close()
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Write(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 0)
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
}

// pollThread waits up to 1 s on a thread of its own, where the machine has no descriptor left to park with. EAGAIN: try
// again.
func (a *Accepted) pollThread(events int16) error {
	_, err := unix.Poll([]unix.PollFd{{Fd: int32(a.fd), Events: events}}, 1000)
	if err == nil {
		err = unix.EAGAIN
	}
	return err
}

// pollable gives a second descriptor of the socket that is in the netpoller; os.NewFile wants it non-blocking for that.
func (a *Accepted) pollable() (*os.File, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	fd, err := unix.FcntlInt(uintptr(a.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("dup of a connection: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "connection"), nil
}

// setBlocking lets the next receive linger again.
func (a *Accepted) setBlocking() {
	a.mu.Lock()
	defer a.mu.Unlock()
	unix.SetNonblock(a.fd, false) // where it fails, the next receive parks at once
}

// Send sends all of b with fds beside its first byte. The descriptors stay the caller's. It waits while the peer does
// not read, until Shutdown.
func (a *Accepted) Send(b []byte, fds []int) error {
	for len(b) > 0 {
		n, err := a.sendSome(b, fds)
		switch {
		case err == nil:
			b, fds = b[n:], nil
		case errors.Is(err, unix.EINTR):
		case !errors.Is(err, unix.EAGAIN):
			return err
		default:
			if err := a.parkSending(); err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
				return err
			}
		}
	}
	return nil
}

func (a *Accepted) sendSome(b []byte, fds []int) (int, error) {
	if len(fds) == 0 {
		return sendPlain(a.fd, b)
	}
	return a.out.send(a.fd, b, fds, unix.MSG_DONTWAIT)
}

// Writable reports whether a Send of some KiB would not wait: three quarters of the socket's buffer are free (unix(7)).
func (a *Accepted) Writable() bool {
	n, _ := unix.Poll([]unix.PollFd{{Fd: int32(a.fd), Events: unix.POLLOUT}}, 0)
	return n > 0
}

// EndReceive makes Receive fail, also one under way; what is sent still goes. It may be called at any time, by anyone.
func (a *Accepted) EndReceive() { a.shutdown(unix.SHUT_RD) }

// Part does nothing: what was sent over a unix socket can be read, whatever becomes of the sender's end.
func (a *Accepted) Part() {}

// Shutdown makes every call fail, also one under way. It may be called at any time, by anyone.
func (a *Accepted) Shutdown() { a.shutdown(unix.SHUT_RDWR) }

func (a *Accepted) shutdown(how int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		unix.Shutdown(a.fd, how)
	}
}

// Peer asks the kernel for the process at the other end.
func (a *Accepted) Peer() (Peer, error) { return PeerOf(a.fd) }

// PeerGroups asks the kernel for that process's further groups, as they were when it connected (SO_PEERGROUPS,
// unix(7)).
func (a *Accepted) PeerGroups() ([]uint32, error) { return peerGroups(a.fd) }

// Close gives the socket back. No Receive or Send may be under way.
func (a *Accepted) Close() {
	a.stopLingering()
	a.leavePark()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		_ = a.letGo() // the descriptor is free whatever close answers
	}
}

// letGo closes the descriptor. mu is held.
func (a *Accepted) letGo() error {
	a.closed = true
	if a.company != nil {
		a.lingers.part(a.company)
	}
	return unix.Close(a.fd)
}
