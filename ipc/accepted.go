package ipc

import (
	"errors"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Accepted is the daemon's end, on the Go netpoller: thousands may wait and hardly one holds a thread (Lingers). Many frames come with
// one receive, and nothing is allocated a frame. One goroutine may receive while another sends.
type Accepted struct {
	conn *net.UnixConn
	raw  syscall.RawConn
	in   inbox

	lingers *Lingers

	getRoom []byte
	getN    int
	getErr  error
	tryRead func(fd uintptr) bool // made once: a closure a call would be an allocation a call

	put      message
	putBytes []byte
	putFDs   []int
	putErr   error
	tryWrite func(fd uintptr) bool
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

// NewAccepted takes an accepted connection over, also where it fails. lingers is shared by a daemon's connections. The
// caller must Close.
func NewAccepted(conn *net.UnixConn, lingers *Lingers) (*Accepted, error) {
	raw, err := conn.SyscallConn()
	if err == nil {
		err = blockFor(raw, lingerTime)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	a := &Accepted{conn: conn, raw: raw, lingers: lingers}
	a.tryRead, a.tryWrite = a.readOnce, a.writeOnce
	return a, nil
}

// Receive waits for the next frame. io.EOF: the peer has closed; os.ErrDeadlineExceeded: SetReadDeadline's.
// After an error only Send and Close are of use.
func (a *Accepted) Receive() (Frame, error) {
	for {
		f, ok, err := a.in.next()
		if ok || err != nil {
			return f, err
		}
		a.getRoom = a.in.room()
		err = a.raw.Read(a.tryRead)
		switch {
		case err != nil:
			return Frame{}, err
		case a.getErr != nil:
			return Frame{}, a.getErr
		case a.getN == 0:
			return Frame{}, io.EOF
		}
		a.in.end += a.getN
	}
}

// Whole reports whether Receive has another frame at hand without a system call.
func (a *Accepted) Whole() bool { return a.in.whole() }

// blockFor makes receives without MSG_DONTWAIT wait, for so long at most. The netpoller does not mind: every other call
// here has that flag.
func blockFor(raw syscall.RawConn, d time.Duration) error {
	var err error
	controlErr := raw.Control(func(fd uintptr) {
		if err = unix.SetNonblock(int(fd), false); err != nil {
			return
		}
		limit := unix.NsecToTimeval(d.Nanoseconds())
		err = unix.SetsockoptTimeval(int(fd), unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)
	})
	return errors.Join(controlErr, err)
}

// readOnce is one receive; false where nothing came. No message brings the daemon a descriptor: the kernel closes what a
// peer sends nevertheless, and a frame that announces one is a fault.
func (a *Accepted) readOnce(fd uintptr) bool {
	flags := unix.MSG_DONTWAIT
	if a.lingers.enter() {
		defer a.lingers.leave()
		flags = 0
	}
	for {
		a.getN, a.getErr = recvPlain(int(fd), a.getRoom, flags)
		if a.getErr != unix.EINTR {
			return a.getErr != unix.EAGAIN
		}
	}
}

// Send sends all of b with fds beside its first byte. The descriptors stay the caller's. It waits while the peer does
// not read, until Close.
func (a *Accepted) Send(b []byte, fds []int) error {
	if len(b) == 0 {
		return nil
	}
	a.putBytes, a.putFDs, a.putErr = b, fds, nil
	err := a.raw.Write(a.tryWrite)
	a.putBytes, a.putFDs = nil, nil
	if err != nil {
		return err
	}
	return a.putErr
}

func (a *Accepted) writeOnce(fd uintptr) bool {
	for len(a.putBytes) > 0 {
		var n int
		var err error
		if len(a.putFDs) == 0 {
			n, err = sendPlain(int(fd), a.putBytes)
		} else {
			n, err = a.put.send(int(fd), a.putBytes, a.putFDs, unix.MSG_DONTWAIT)
		}
		switch {
		case err == nil:
			a.putBytes, a.putFDs = a.putBytes[n:], nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return false
		default:
			a.putErr = err
			return true
		}
	}
	return true
}

// SetReadDeadline bounds the time of Receive; the zero time lifts it.
func (a *Accepted) SetReadDeadline(t time.Time) error { return a.conn.SetReadDeadline(t) }

// Shutdown makes every call fail, also one under way. It may be called at any time, by anyone.
func (a *Accepted) Shutdown() {
	a.raw.Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_RDWR) }) // wakes who lingers; fails once closed
	a.conn.Close()
}

// Close gives the socket back. No other call may be under way.
func (a *Accepted) Close() {
	a.conn.Close()
}
