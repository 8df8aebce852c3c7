package ipc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// Socket is a connected stream socket used with plain blocking system calls by the calling thread (see Dialed), as a
// net.Conn, so that crypto/tls can stand on it. One goroutine may read while another writes. Close must be the last
// call; Shutdown ends the others.
type Socket struct {
	fd     int
	peer   string
	until  time.Time    // of both directions; set before they are used, or by who reads
	giveUp func() error // asked every 50 ms while a Read waits; who reads sets it
	closed atomic.Bool
	heard  atomic.Uint64 // times that something came

	keeping atomic.Bool // Write waits for nothing: rest takes what the socket has no room for
	sending sync.Mutex  // guards rest
	rest    []byte
	room    sync.RWMutex // held for reading in AwaitRoom, so that the descriptor is not given back meanwhile
}

// NewSocket takes a connected, blocking stream socket over. peer is for display.
func NewSocket(fd int, peer string) *Socket { return &Socket{fd: fd, peer: peer} }

// errPaused is how a Read that gave up looks to crypto/tls: a time-out, after which the connection is as good as
// before.
type errPaused struct{ why error }

func (e errPaused) Error() string { return e.why.Error() }
func (e errPaused) Unwrap() error { return e.why }

// Timeout reports true.
func (errPaused) Timeout() bool { return true }

// Temporary reports true: crypto/tls looks at it.
func (errPaused) Temporary() bool { return true }

// Read waits for bytes. Those that are here it takes whatever giveUp says.
func (s *Socket) Read(b []byte) (int, error) {
	bounded, flags := !s.until.IsZero() || s.giveUp != nil, 0
	if bounded {
		flags = unix.MSG_DONTWAIT
	}
	for {
		n, err := recvPlain(s.fd, b, flags)
		switch {
		case bounded && errors.Is(err, unix.EAGAIN):
			if err := s.poll(unix.POLLIN); err != nil {
				return 0, err
			}
		case err == nil && n == 0 && len(b) > 0:
			return 0, io.EOF
		case err == nil:
			s.heard.Add(1)
			return n, nil
		case !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN):
			return n, err
		}
	}
}

// poll waits until the socket is ready for events, time is up, or giveUp says so.
func (s *Socket) poll(events int16) error {
	for {
		if s.giveUp != nil {
			if err := s.giveUp(); err != nil {
				return errPaused{err}
			}
		}
		if !s.until.IsZero() && time.Now().After(s.until) {
			return os.ErrDeadlineExceeded
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: events}}, 50)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Write sends all of b.
func (s *Socket) Write(b []byte) (int, error) {
	if s.keeping.Load() {
		_, err := s.sendNow(b)
		return len(b), err
	}
	done := 0
	for done < len(b) {
		n, err := sendPlain(s.fd, b[done:])
		switch {
		case err == nil:
			done += n
		case errors.Is(err, unix.EAGAIN):
			pfd := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}
			if _, err := unix.Poll(pfd, -1); err != nil && !errors.Is(err, unix.EINTR) {
				return done, err
			}
		case !errors.Is(err, unix.EINTR):
			return done, err
		}
	}
	return done, nil
}

// sendNow takes b over and sends what there is room for; left: something is left.
func (s *Socket) sendNow(b []byte) (left bool, err error) {
	s.sending.Lock()
	defer s.sending.Unlock()
	if len(s.rest) > 0 {
		if s.rest, err = sendSome(s.fd, s.rest); err != nil || len(s.rest) > 0 {
			s.rest = append(s.rest, b...)
			return true, err
		}
	}
	b, err = sendSome(s.fd, b)
	s.rest = append(s.rest[:0], b...)
	return len(b) > 0, err
}

// Shutdown makes every call fail, also one under way.
func (s *Socket) Shutdown() { unix.Shutdown(s.fd, unix.SHUT_RDWR) }

// Watch makes the kernel end a TCP connection whose other machine has been silent for so long; 0: leaves it as DialTCP
// has it.
func (s *Socket) Watch(silence time.Duration) {
	if seconds := int(silence / time.Second); seconds > 0 {
		_ = unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, max(1, seconds/3))
		_ = unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, max(1, seconds/6))
		_ = unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence/time.Millisecond))
	}
}

// Close gives the descriptor back. No other call may be under way, but for a Remote's AwaitRoom after Shutdown, or
// follow; a second Close does nothing.
func (s *Socket) Close() error {
	s.room.Lock()
	defer s.room.Unlock()
	if s.closed.Swap(true) {
		return nil
	}
	return unix.Close(s.fd)
}

// Descriptor gives the socket's descriptor, which stays the Socket's.
func (s *Socket) Descriptor() int { return s.fd }

// Release gives the descriptor away: the caller closes it, the Socket must not be used any more.
func (s *Socket) Release() int {
	s.closed.Store(true)
	return s.fd
}

// SetDeadline bounds Read; the zero time lifts it.
func (s *Socket) SetDeadline(t time.Time) error { s.until = t; return nil }

// SetReadDeadline is SetDeadline.
func (s *Socket) SetReadDeadline(t time.Time) error { return s.SetDeadline(t) }

// SetWriteDeadline does nothing: crypto/tls sets one for its farewell alone, which fits into the socket's buffer.
func (s *Socket) SetWriteDeadline(time.Time) error { return nil }

// LocalAddr is for display.
func (s *Socket) LocalAddr() net.Addr { return address("") }

// RemoteAddr is for display.
func (s *Socket) RemoteAddr() net.Addr { return address(s.peer) }

type address string

// Network is "tcp".
func (address) Network() string { return "tcp" }

func (a address) String() string { return string(a) }

// DialTCP connects to host:port, trying the host's addresses in turn, each for at most limit, until ctx ends. The
// descriptor is close-on-exec, above the standard ones, without Nagle's delay, and hangs up when the peer does not
// answer for half a minute.
func DialTCP(ctx context.Context, hostPort string, limit time.Duration) (*Socket, error) {
	host, service, err := net.SplitHostPort(hostPort)
	if err != nil {
		return nil, fmt.Errorf("%w: server %q: want HOST:PORT: %w", object.ErrInvalid, hostPort, err)
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("%w: server %q: port %q", object.ErrInvalid, hostPort, service)
	}
	ips := []net.IP{net.ParseIP(host)}
	if ips[0] == nil {
		if ips, err = net.DefaultResolver.LookupIP(ctx, "ip", host); err != nil {
			return nil, err
		}
	}
	var faults []error
	for _, ip := range ips {
		s, err := dialIP(ctx, ip, int(port), limit)
		if err == nil {
			s.peer = hostPort
			return s, nil
		}
		faults = append(faults, fmt.Errorf("connect to %s: %w", net.JoinHostPort(ip.String(), service), err))
	}
	return nil, errors.Join(faults...)
}

func dialIP(ctx context.Context, ip net.IP, port int, limit time.Duration) (*Socket, error) {
	domain, to := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: port, Addr: [16]byte(ip.To16())})
	if v4 := ip.To4(); v4 != nil {
		domain, to = unix.AF_INET, &unix.SockaddrInet4{Port: port, Addr: [4]byte(v4)}
	}
	low, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	// above a program's standard descriptors (see Dial)
	fd, err := unix.FcntlInt(uintptr(low), unix.F_DUPFD_CLOEXEC, 10)
	unix.Close(low)
	if err != nil {
		return nil, err
	}
	if err := connect(ctx, fd, to, limit); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return NewSocket(fd, ""), nil
}

// connect waits for the connection and prepares the socket.
func connect(ctx context.Context, fd int, to unix.Sockaddr, limit time.Duration) error {
	err := unix.Connect(fd, to)
	if errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EINTR) {
		waiting := NewSocket(fd, "")
		waiting.until, waiting.giveUp = time.Now().Add(limit), ctx.Err
		if err = waiting.poll(unix.POLLOUT); err == nil {
			var code int
			if code, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && code != 0 {
				err = unix.Errno(code)
			}
		}
	}
	if err != nil {
		return err
	}
	return errors.Join(
		unix.SetNonblock(fd, false),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 15),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 5),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 30000),
	)
}

// Remote is the client's end of a connection to another machine's daemon: frames over a net.Conn that stands on a
// Socket, and never a descriptor. One goroutine may receive while another sends.
type Remote struct {
	conn   net.Conn
	socket *Socket
	in     inbox
}

// NewRemote makes a Remote of conn (TLS, or socket itself). The caller must Close.
func NewRemote(conn net.Conn, socket *Socket) *Remote { return &Remote{conn: conn, socket: socket} }

// Watch is another look at a connection's socket, for somebody who reads nothing of it. It may be used, by one
// goroutine, beside everything and behind Close. The caller must Close it.
type Watch struct {
	socket *Socket
	fd     int // a duplicate
}

// Watch duplicates the socket; not behind Close.
func (r *Remote) Watch() (*Watch, error) {
	fd, err := unix.FcntlInt(uintptr(r.socket.fd), unix.F_DUPFD_CLOEXEC, 10)
	if err != nil {
		return nil, fmt.Errorf("duplicate a connection: %w", err)
	}
	return &Watch{r.socket, fd}, nil
}

// Close gives the duplicate back.
func (w *Watch) Close() { unix.Close(w.fd) }

// Ended waits until the peer, or Shutdown, has ended the connection, but not longer than limit (negative: as long as it
// takes).
func (w *Watch) Ended(limit time.Duration) (bool, error) {
	millis := -1
	if limit >= 0 {
		millis = int(limit.Milliseconds())
	}
	p := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, millis)
	if errors.Is(err, unix.EINTR) {
		return false, nil
	}
	return n > 0, err
}

// Heard counts how often something was read, and says whether something waits to be.
func (w *Watch) Heard() (times uint64, unread bool) {
	n, err := unix.IoctlGetInt(w.fd, unix.TIOCINQ)
	return w.socket.heard.Load(), err == nil && n > 0
}

// Send sends all of b. An error leaves the connection unusable.
func (r *Remote) Send(b []byte) error {
	_, err := r.conn.Write(b)
	return err
}

// SendNow takes all of b and sends what the socket has room for, as Dialed.SendNow does: full says that something is
// left, which the next SendNow sends, also one of nothing. Send must not be used any more.
func (r *Remote) SendNow(b []byte) (n int, full bool, err error) {
	r.socket.keeping.Store(true)
	if len(b) > 0 {
		if n, err = r.conn.Write(b); err != nil {
			return n, false, err
		}
	}
	full, err = r.socket.sendNow(nil)
	return n, full, err
}

// AwaitRoom waits until SendNow may send more, as Dialed.AwaitRoom does.
func (r *Remote) AwaitRoom(orInput bool, giveUp func() error) error {
	r.socket.room.RLock()
	defer r.socket.room.RUnlock()
	if r.socket.closed.Load() {
		return nil
	}
	return awaitRoom(r.socket.fd, orInput, giveUp)
}

// GiveUp makes a wait for bytes ask giveUp every 50 ms, and end with its error; nil ends that. For who reads.
func (s *Socket) GiveUp(giveUp func() error) { s.giveUp = giveUp }

// Receive waits for the next frame, as Dialed.Receive does.
func (r *Remote) Receive(giveUp func() error) (Frame, error) {
	r.socket.giveUp = giveUp
	f, err := receiveFrame(r.conn, &r.in)
	var paused errPaused
	if errors.As(err, &paused) {
		err = paused.why
	}
	return f, err
}

// Shutdown makes every call on the connection fail, also one that sleeps.
func (r *Remote) Shutdown() { r.socket.Shutdown() }

// Close gives the socket back. No other call may be under way or follow.
func (r *Remote) Close() { r.socket.Close() }
