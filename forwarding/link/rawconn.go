package link

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// handshakeTime bounds a TLS handshake, each of its reads and writes.
const handshakeTime = 10 * time.Second

// leastHandshake is the same for a peer that may be silent for a shorter time only.
const leastHandshake = 2 * time.Second

// errAgain is a temporary net.Error: crypto/tls keeps what it has and can be asked again.
var errAgain net.Error = again{}

type again struct{}

func (again) Error() string   { return "nothing to read now" }
func (again) Timeout() bool   { return true }
func (again) Temporary() bool { return true }

// rawConn is a connected stream socket as a net.Conn, without Go's netpoller:
// whoever calls makes the system calls, so that no goroutine has to be woken
// between the peer's answer and the caller (measured: 54 µs against 5.8).
//
// It blocks until setPolled; from then on Read returns errAgain and Write keeps
// what the kernel does not take for push. Reads belong to one goroutine at a time.
type rawConn struct {
	fd     int
	polled bool
	empty  bool // the last polled read took less than it could: the kernel had no more then

	in       []byte // read ahead under TLS; nil: not at all
	inAt     int
	inFilled int

	heard   atomic.Uint64 // times that something came
	waiting atomic.Bool   // somebody sleeps in a blocking read

	mu     sync.Mutex // leaf
	out    []byte     // what the kernel has not taken, or what gathers; guarded by mu
	gather int        // 0, or Write keeps what it gets until it is so much; guarded by mu
}

// newRawConn takes a duplicate of the socket, above the standard descriptors,
// which a program may close and reuse. The caller keeps f.
func newRawConn(f *os.File) (*rawConn, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 10)
	if err != nil {
		return nil, fmt.Errorf("duplicate a connection: %w", err)
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("connection: %w", err)
	}
	tune(fd)
	return &rawConn{fd: fd}, nil
}

// tune sets what a TCP connection should have. Over ssh it is a unix socket,
// which has none of this.
func tune(fd int) {
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 20) // s
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 5)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 8)
}

// watch makes the kernel end a TCP connection whose other machine has been silent for so long: to a keep-alive probe,
// or to what was sent (TCP_USER_TIMEOUT, tcp(7)). 0: as it is.
func (c *rawConn) watch(silence time.Duration) {
	if silence <= 0 {
		return
	}
	seconds := int(silence / time.Second)
	_ = unix.SetsockoptInt(c.fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, max(1, seconds/3))
	_ = unix.SetsockoptInt(c.fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, max(1, seconds/6))
	_ = unix.SetsockoptInt(c.fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence/time.Millisecond))
}

// limit bounds each blocking read and write from now on; 0: not at all.
func (c *rawConn) limit(d time.Duration) error {
	limit := unix.NsecToTimeval(d.Nanoseconds())
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, option, &limit); err != nil {
			return fmt.Errorf("connection: %w", err)
		}
	}
	return nil
}

// handshake runs TLS over the connection; a nil config leaves it in the clear.
func (c *rawConn) handshake(role Role, config *tls.Config) (*tls.Conn, error) {
	if config == nil {
		return nil, nil
	}
	t := tls.Server(c, config)
	if role == Client {
		t = tls.Client(c, config)
	}
	if err := t.Handshake(); err != nil {
		return nil, fmt.Errorf("TLS: %w", err)
	}
	return t, nil
}

// readAhead makes reads from the kernel large: TLS itself asks for a record at a time.
func (c *rawConn) readAhead(n int) { c.in = make([]byte, n) }

func (c *rawConn) setPolled() { c.polled = true }

// Read implements net.Conn.
func (c *rawConn) Read(p []byte) (int, error) {
	if c.in == nil {
		return c.receive(p)
	}
	if c.inAt == c.inFilled {
		n, err := c.receive(c.in)
		if err != nil {
			return 0, err
		}
		c.inAt, c.inFilled = 0, n
	}
	n := copy(p, c.in[c.inAt:c.inFilled])
	c.inAt += n
	return n, nil
}

func (c *rawConn) receive(p []byte) (int, error) {
	flags := 0
	if c.polled {
		if c.empty { // spares a system call a message; what came since, a poll shows
			c.empty = false
			return 0, errAgain
		}
		flags = unix.MSG_DONTWAIT
	} else {
		c.waiting.Store(true)
		defer c.waiting.Store(false)
	}
	for {
		n, _, err := unix.Recvfrom(c.fd, p, flags)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN && c.polled:
			return 0, errAgain
		case err == unix.EAGAIN:
			return 0, os.ErrDeadlineExceeded
		case err != nil, n == 0 && len(p) > 0:
			return 0, hangup(err)
		default:
			c.empty = c.polled && n < len(p)
			c.heard.Add(1)
			return n, nil
		}
	}
}

// hangup maps the errors of a connection that ended. err nil: end of file.
func hangup(err error) error {
	switch {
	case err == nil, errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE), errors.Is(err, unix.ETIMEDOUT),
		errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.ENOTCONN),
		errors.Is(err, unix.ENETDOWN):
		return ErrHangup
	}
	return fmt.Errorf("connection: %w", err)
}

// Write implements net.Conn.
func (c *rawConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.polled {
		c.out = append(c.out, p...)
		return len(p), nil
	}
	if c.gather == 0 {
		return c.transmitAll(p)
	}
	if len(c.out) > 0 && len(c.out)+len(p) > c.gather {
		if err := c.sendGathered(); err != nil {
			return 0, err
		}
	}
	c.out = append(c.out, p...)
	return len(p), nil
}

// gathers makes the writes that follow go to the kernel together, n bytes at once at most where each is smaller, and
// with gathered at the latest.
func (c *rawConn) gathers(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gather = n
}

// gathered sends what writes have left since gathers, and ends that. A connection of which a write has failed must not
// be used any more.
func (c *rawConn) gathered() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gather = 0
	return c.sendGathered()
}

func (c *rawConn) sendGathered() error {
	_, err := c.transmitAll(c.out)
	c.out = c.out[:0]
	return err
}

// transmitAll blocks until the kernel has all of p.
func (c *rawConn) transmitAll(p []byte) (at int, err error) {
	for at < len(p) {
		n, err := c.transmit(p[at:], 0)
		if err != nil {
			return at, err
		}
		at += n
	}
	return at, nil
}

// transmit sends what the kernel takes; 0 when it takes nothing now.
func (c *rawConn) transmit(p []byte, flags int) (int, error) {
	for {
		n, err := unix.SendmsgN(c.fd, p, nil, nil, flags|unix.MSG_NOSIGNAL)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN && flags&unix.MSG_DONTWAIT != 0:
			return 0, nil
		case err == unix.EAGAIN:
			return 0, os.ErrDeadlineExceeded
		case err != nil:
			return 0, hangup(err)
		default:
			return n, nil
		}
	}
}

// push hands what was written, then p, to the kernel without waiting, and
// returns how many bytes are still here. p is copied if it has to stay.
func (c *rawConn) push(p []byte) (left int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.out) > 0 {
		n, err := c.transmit(c.out, unix.MSG_DONTWAIT)
		if err != nil {
			return len(c.out), err
		}
		if n == 0 {
			break
		}
		if c.out = c.out[:copy(c.out, c.out[n:])]; len(c.out) > 0 {
			break // the kernel is full
		}
	}
	for len(c.out) == 0 && len(p) > 0 {
		n, err := c.transmit(p, unix.MSG_DONTWAIT)
		if err != nil {
			return len(p), err
		}
		if n == 0 {
			break
		}
		p = p[n:]
	}
	c.out = append(c.out, p...)
	return len(c.out), nil
}

func (c *rawConn) shutdown() { _ = unix.Shutdown(c.fd, unix.SHUT_RDWR) } // fails only when the peer is gone already

// Close implements net.Conn.
func (c *rawConn) Close() error { return unix.Close(c.fd) }

// LocalAddr, RemoteAddr and the deadlines implement net.Conn; TLS uses none of them here.
func (c *rawConn) LocalAddr() net.Addr              { return nil }
func (c *rawConn) RemoteAddr() net.Addr             { return nil }
func (c *rawConn) SetDeadline(time.Time) error      { return nil }
func (c *rawConn) SetReadDeadline(time.Time) error  { return nil }
func (c *rawConn) SetWriteDeadline(time.Time) error { return nil }
