package ipc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// Dialed is the client's end, used with plain blocking system calls by the calling thread itself: through the Go
// netpoller a round trip costs some ten times as much, for it hands each answer from thread to thread. One goroutine
// may receive while another sends.
type Dialed struct {
	fd   int
	in   inbox
	get  message
	put  message
	spin time.Duration

	room sync.RWMutex // held for reading in AwaitRoom, so that the descriptor is not given back meanwhile
	shut bool         // guarded by room
}

// connectPause is how long connect(2) waits for room among those who wait for the daemon, until give-up is asked.
const connectPause = 50 * time.Millisecond

// Dial connects to a daemon's socket. giveUp, which may be nil, ends the wait for a daemon that accepts nobody. spin is
// how long a receive looks for its answer before it sleeps. 0, at once, is best on few or busy cores: the kernel then
// runs client and daemon in turn on one of them, which took 5.3 µs a round trip where spinning took 6.8 (2 cores,
// loaded); an idle machine of many cores may gain from some µs. A missing daemon is an error that wraps the system's
// (ENOENT, ECONNREFUSED). A socket under /tmp that belongs to neither root nor this user is ErrPermission: anybody
// could have put it there. The caller must Close.
func Dial(path string, spin time.Duration, giveUp func() error) (*Dialed, error) {
	low, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	// Above the standard descriptors: a driver library's program may have closed them, and use them again.
	fd, err := unix.FcntlInt(uintptr(low), unix.F_DUPFD_CLOEXEC, 10)
	unix.Close(low)
	if err != nil {
		return nil, fmt.Errorf("duplicate a socket: %w", err)
	}
	d := &Dialed{fd: fd, spin: spin}
	if err = connectUnix(fd, path, giveUp); err == nil {
		err = checkOwner(fd, path)
	}
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	return d, nil
}

func connectUnix(fd int, path string, giveUp func() error) error {
	pause, none := unix.NsecToTimeval(int64(connectPause)), unix.Timeval{}
	if giveUp != nil {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &pause); err != nil {
			return err
		}
	}
	for {
		err := unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN) && giveUp != nil:
			if err := giveUp(); err != nil {
				return err
			}
		case err != nil && !errors.Is(err, unix.EISCONN):
			return err
		case giveUp != nil:
			return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &none)
		default:
			return nil
		}
	}
}

// DialUnix is Dial for a data connection.
func DialUnix(path string, giveUp func() error) (*Socket, error) {
	d, err := Dial(path, 0, giveUp)
	if err != nil {
		return nil, err
	}
	return d.Socket(path), nil
}

// Socket makes a data connection to path of d, which is used no more.
func (d *Dialed) Socket(path string) *Socket { return NewSocket(d.fd, path) }

func checkOwner(fd int, path string) error {
	if !strings.HasPrefix(path, "/tmp/") {
		return nil
	}
	peer, err := PeerOf(fd)
	if err != nil {
		return err
	}
	if peer.UID != 0 && int(peer.UID) != os.Getuid() {
		return fmt.Errorf("%w: the daemon there belongs to user %d; under /tmp only your own and root's sockets are trusted", object.ErrPermission, peer.UID)
	}
	return nil
}

// Send sends all of b. An error leaves the connection unusable.
func (d *Dialed) Send(b []byte) error {
	for len(b) > 0 {
		n, err := sendPlain(d.fd, b)
		if errors.Is(err, unix.EAGAIN) {
			n, err = d.put.send(d.fd, b, nil, 0) // waits
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		b = b[n:]
	}
	return nil
}

// SendNow sends what the socket has room for: it never waits. It has taken n bytes of b. full: there was not room for
// all, see AwaitRoom. An error leaves the connection unusable.
func (d *Dialed) SendNow(b []byte) (n int, full bool, err error) {
	rest, err := sendSome(d.fd, b)
	return len(b) - len(rest), len(rest) > 0, err
}

// sendSome sends what the socket has room for, and gives the rest.
func sendSome(fd int, b []byte) ([]byte, error) {
	for len(b) > 0 {
		n, err := sendPlain(fd, b)
		if errors.Is(err, unix.EAGAIN) {
			return b, nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return b, err
		}
		b = b[n:]
	}
	return nil, nil
}

// AwaitRoom waits until SendNow may send more, the connection has ended, or give-up, which is asked every 50 ms where
// it is not nil, answers with the error to return; with orInput also until something may be read. It may be called
// beside everything.
func (d *Dialed) AwaitRoom(orInput bool, giveUp func() error) error {
	d.room.RLock()
	defer d.room.RUnlock()
	if d.shut {
		return nil
	}
	return awaitRoom(d.fd, orInput, giveUp)
}

// awaitRoom waits for room in a socket, for input if that is wanted, or for its end.
func awaitRoom(fd int, orInput bool, giveUp func() error) error {
	events := int16(unix.POLLOUT)
	if orInput {
		events |= unix.POLLIN
	}
	for {
		if giveUp != nil {
			if err := giveUp(); err != nil {
				return err
			}
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, 50)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Receive waits for the next frame: spinning first, then asleep in the kernel, until Shutdown or until give-up, which
// is asked every 50 ms where it is not nil and answers with the error to return. io.EOF: the daemon has closed.
func (d *Dialed) Receive(giveUp func() error) (Frame, error) {
	for {
		f, ok, err := d.in.next()
		if ok || err != nil {
			return f, err
		}
		if err := d.fill(giveUp); err != nil {
			return Frame{}, err
		}
	}
}

// fill is one successful recvmsg.
func (d *Dialed) fill(giveUp func() error) error {
	room := d.in.room()
	var began time.Time
	if d.spin <= 0 && giveUp == nil { // a look would be in vain mostly
		if err := d.sleep(); err != nil {
			return err
		}
	}
	for {
		n, fds, err := d.get.receive(d.fd, room, unix.MSG_DONTWAIT)
		switch {
		case err == nil && n > 0:
			return d.in.received(n, fds)
		case err == nil:
			return io.EOF
		case errors.Is(err, unix.EINTR):
		case !errors.Is(err, unix.EAGAIN):
			return err
		case d.spin > 0 && began.IsZero():
			began = time.Now()
		case d.spin > 0 && time.Since(began) < d.spin:
		default:
			if err := d.await(giveUp); err != nil {
				return err
			}
		}
	}
}

// await sleeps until there is something to read, or giveUp, which may be nil, says so.
func (d *Dialed) await(giveUp func() error) error {
	if giveUp == nil {
		return d.sleep()
	}
	return d.poll(giveUp)
}

// sleep waits until there is something to read. It is poll(2), not a receive that waits: that is woken a second time,
// for nothing, when the daemon takes the request out of its socket (both wait on the socket's one queue, but poll for
// input alone).
func (d *Dialed) sleep() error {
	for {
		if _, err := waitForInput(d.fd); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// poll sleeps until there is something to read, and asks giveUp now and then.
func (d *Dialed) poll(giveUp func() error) error {
	for {
		if err := giveUp(); err != nil {
			return err
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLIN}}, 50)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Waiting reports whether Receive would return at once.
func (d *Dialed) Waiting() bool {
	if d.in.whole() {
		return true
	}
	n, _ := unix.Poll([]unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLIN}}, 0)
	return n > 0
}

// Shutdown makes every call on the connection fail, also one that sleeps, and tells the daemon. It may be called at any
// time before Close, by anyone.
func (d *Dialed) Shutdown() { unix.Shutdown(d.fd, unix.SHUT_RDWR) }

// Close gives the socket back. No other call may be under way, but for an AwaitRoom after Shutdown, or follow.
func (d *Dialed) Close() {
	d.room.Lock()
	d.shut = true
	unix.Close(d.fd)
	d.room.Unlock()
	d.in.closeFDs()
}
