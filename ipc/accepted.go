package ipc

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Accepted is the daemon's end: thousands may wait on the Go netpoller and hardly one holds a thread (Lingers). Many
// frames come with one receive, and nothing is allocated a frame. One goroutine may receive while another sends.
type Accepted struct {
	fd       int // immutable until Close
	in       inbox
	out      message
	lingers  *Lingers
	deadline time.Time // of Receive; its goroutine's

	mu     sync.Mutex // guards what follows and the descriptor's O_NONBLOCK; a leaf
	closed bool
}

// Lingers lets a few of a daemon's connections wait for their next request in the kernel, on a thread of their own, for
// some ms before they park on the netpoller: a client in a loop is then served within 1.1 times what two C processes
// take, through the netpoller within 1.5 times. Who lingers holds one of the runtime's processors until it is missed, so
// there is always one that nobody lingers on.
type Lingers struct {
	limit int32
	now   atomic.Int32
}

// NewLingers allows at most limit lingering connections, and at most GOMAXPROCS−1; 0 or less allows none.
func NewLingers(limit int) *Lingers {
	return &Lingers{limit: int32(min(limit, runtime.GOMAXPROCS(0)-1))}
}

// lingerTime bounds one stay in the kernel; the kernel rounds up to its tick.
const lingerTime = 2 * time.Millisecond

func (l *Lingers) enter() bool {
	if l.now.Add(1) <= l.limit {
		return true
	}
	l.now.Add(-1)
	return false
}

func (l *Lingers) leave() { l.now.Add(-1) }

// NewAccepted takes an accepted connection over: conn is closed, also where this fails. lingers is shared by a daemon's
// connections. The caller must Close.
func NewAccepted(conn *net.UnixConn, lingers *Lingers) (*Accepted, error) {
	defer conn.Close() // its place in the netpoller: there each message would wake a thread for nothing while one lingers
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	a := &Accepted{fd: -1, lingers: lingers}
	controlErr := raw.Control(func(fd uintptr) { a.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(controlErr, err); err != nil {
		return nil, fmt.Errorf("dup of a connection: %w", err)
	}
	limit := unix.NsecToTimeval(lingerTime.Nanoseconds())
	err = unix.SetsockoptTimeval(a.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)
	if err = errors.Join(err, unix.SetNonblock(a.fd, false)); err != nil {
		unix.Close(a.fd)
		return nil, fmt.Errorf("receive time of a connection: %w", err)
	}
	return a, nil
}

// Receive waits for the next frame. io.EOF: the peer has closed, or Shutdown; os.ErrDeadlineExceeded: SetDeadline's.
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
	room := a.in.room()
	for {
		n, err := a.receive(room)
		switch {
		case err == nil && n == 0:
			return io.EOF
		case err == nil:
			a.in.end += n
			return nil
		case errors.Is(err, unix.EINTR):
		case !errors.Is(err, unix.EAGAIN):
			return err
		default:
			if err := a.park(unix.POLLIN, a.deadline); err != nil {
				return err
			}
		}
	}
}

// receive is one recv: lingering where there is room for that, and otherwise without waiting.
func (a *Accepted) receive(room []byte) (int, error) {
	if !a.lingers.enter() {
		return recvPlain(a.fd, room, unix.MSG_DONTWAIT)
	}
	defer a.lingers.leave()
	return recvPlain(a.fd, room, 0)
}

// Whole reports whether Receive has another frame at hand without a system call.
func (a *Accepted) Whole() bool { return a.in.whole() }

// park waits on the netpoller until the socket is ready for what events say, or has ended. It borrows a place there for
// the time: five short system calls, once an idle spell.
func (a *Accepted) park(events int16, deadline time.Time) error {
	file, err := a.pollable()
	if err != nil {
		return err
	}
	defer file.Close()
	defer a.setBlocking()
	if err := file.SetDeadline(deadline); err != nil {
		return err
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	ready := func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, 0)
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	}
	if events == unix.POLLIN {
		return raw.Read(ready)
	}
	return raw.Write(ready)
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
			if err := a.park(unix.POLLOUT, time.Time{}); err != nil {
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

// SetDeadline bounds the time of Receive, to some ms; the zero time lifts it. Only Receive's goroutine may call it.
func (a *Accepted) SetDeadline(t time.Time) { a.deadline = t }

// Shutdown makes every call fail, also one under way. It may be called at any time, by anyone.
func (a *Accepted) Shutdown() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		unix.Shutdown(a.fd, unix.SHUT_RDWR)
	}
}

// Close gives the socket back. No Receive or Send may be under way.
func (a *Accepted) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.closed = true
		unix.Close(a.fd)
	}
}
