package ipc

import (
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Accepted is the daemon's end, on the Go netpoller: thousands may wait and none holds a thread. Many frames come with
// one recvmsg, and nothing is allocated a frame. One goroutine may receive while another sends.
type Accepted struct {
	conn *net.UnixConn
	raw  syscall.RawConn
	in   inbox
	spin time.Duration

	get     message
	getRoom []byte
	getN    int
	getFDs  []int
	getErr  error
	tryRead func(fd uintptr) bool // made once: a closure a call would be an allocation a call

	put      message
	putBytes []byte
	putFDs   []int
	putErr   error
	tryWrite func(fd uintptr) bool
}

// NewAccepted takes an accepted connection over. spin is how long a receive looks again before it parks; 0 parks at
// once. The caller must Close.
func NewAccepted(conn *net.UnixConn, spin time.Duration) (*Accepted, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	a := &Accepted{conn: conn, raw: raw, spin: spin}
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
		if err := a.in.received(a.getN, a.getFDs); err != nil {
			return Frame{}, err
		}
	}
}

// Whole reports whether Receive has another frame at hand without a system call.
func (a *Accepted) Whole() bool { return a.in.whole() }

func (a *Accepted) readOnce(fd uintptr) bool {
	var began time.Time
	for {
		a.getN, a.getFDs, a.getErr = a.get.receive(int(fd), a.getRoom, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(a.getErr, unix.EINTR):
		case !errors.Is(a.getErr, unix.EAGAIN):
			return true
		case a.spin <= 0:
			return false
		case began.IsZero():
			began = time.Now()
		case time.Since(began) > a.spin:
			return false
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
		n, err := a.put.send(int(fd), a.putBytes, a.putFDs, unix.MSG_DONTWAIT)
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
func (a *Accepted) Shutdown() { a.conn.Close() }

// Close gives the socket and unclaimed descriptors back. No other call may be under way.
func (a *Accepted) Close() {
	a.conn.Close()
	a.in.closeFDs()
}
