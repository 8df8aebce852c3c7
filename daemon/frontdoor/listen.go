package frontdoor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"tendril/ipc"
	"tendril/store/object"
)

// maxSocketPath is the room in struct sockaddr_un (unix(7)), less the final zero.
const maxSocketPath = 107

// listenUnix makes the socket: for everybody when tenancy rests on user ids (root), else for its user alone. The lock
// file beside it tells a daemon that lives from a socket file that was left behind, without a race between two
// daemons that start at once.
func listenUnix(path string, everybody bool) (*listener, *os.File, error) {
	if len(path) > maxSocketPath {
		return nil, nil, fmt.Errorf("%w: socket path %s has %d bytes, at most %d", object.ErrInvalid, path, len(path),
			maxSocketPath)
	}
	dirMode, mode := os.FileMode(0o700), os.FileMode(0o600)
	if everybody {
		dirMode, mode = 0o755, 0o666
	}
	if err := socketDir(filepath.Dir(path), dirMode); err != nil {
		return nil, nil, err
	}
	lock, err := lockFile(path)
	if err != nil {
		return nil, nil, err
	}
	listener, err := listenLocked(path, mode)
	if err != nil {
		lock.Close()
		return nil, nil, err
	}
	return listener, lock, nil
}

func listenLocked(path string, mode os.FileMode) (*listener, error) {
	if err := removeStale(path); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l := &listener{fd: fd}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		l.Close()
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.path = path
	if err := errors.Join(os.Chmod(path, mode), unix.Listen(fd, backlog)); err != nil {
		l.unlink()
		l.Close()
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}

// backlog is how many may wait to be let in; the kernel has a bound of its own (net.core.somaxconn).
const backlog = 1 << 15

// listener is a socket that listens, for ipc.Poller: none of Go's, whose netpoller would be woken for each peer, too.
type listener struct {
	fd   int
	path string // of its file; "": not ours to remove
}

// unlink removes the socket's file.
func (l *listener) unlink() {
	if l.path != "" {
		os.Remove(l.path) // fails where it has been removed
	}
}

// Close closes the socket. Nobody may use it any more.
func (l *listener) Close() { unix.Close(l.fd) }

// socketDir makes the directory, or checks that an existing one under /tmp is not somebody else's.
func socketDir(dir string, mode os.FileMode) error {
	err := os.Mkdir(dir, mode)
	if errors.Is(err, os.ErrNotExist) {
		err = os.MkdirAll(dir, mode)
	}
	if err == nil {
		return os.Chmod(dir, mode) // whatever the umask took
	}
	if !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("directory of the socket: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fmt.Errorf("directory of the socket %s: %w", dir, err)
	}
	if filepath.Dir(dir) == "/tmp" && (int(st.Uid) != os.Getuid() || st.Mode&unix.S_IFMT != unix.S_IFDIR) {
		return fmt.Errorf("%w: %s belongs to user %d: remove it, or choose another socket",
			object.ErrPermission, dir, st.Uid)
	}
	return nil
}

func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock of the socket: %w", err)
	}
	locked := func() bool { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil }
	if !locked() && !afterDeath(path, locked) {
		f.Close()
		return nil, fmt.Errorf("%w: another daemon serves %s: stop it, or choose another socket", object.ErrBusy, path)
	}
	return f, nil
}

// dyingTime bounds the wait for what a dead daemon held: its children have copies of its descriptors until they run a
// program of their own, which takes a moment, and on a busy machine a long one.
const dyingTime = 20 * time.Second

// afterDeath waits until done, as long as nobody who lives serves the socket; false: somebody does, or it takes too
// long.
func afterDeath(path string, done func() bool) bool {
	for until := time.Now().Add(dyingTime); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		if done() {
			return true
		}
		if servedByTheLiving(path) {
			return false
		}
	}
	return false
}

// servedByTheLiving reports whether the process that listens on the socket lives. A dead one's child still has its
// socket, and answers nobody.
func servedByTheLiving(path string) bool {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return false
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		return true
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred,
			credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || credErr != nil {
		return true
	}
	return !ipc.HasEnded(int(cred.Pid))
}

// removeStale removes a socket file that nobody answers.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("socket %s: %w", path, err)
	}
	if info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("%w: %s exists and is not a socket: remove it, or choose another path",
			object.ErrExists, path)
	}
	refused := func() bool {
		var conn net.Conn
		if conn, err = net.Dial("unix", path); err == nil {
			conn.Close()
			return false
		}
		return true
	}
	if !refused() && !afterDeath(path, refused) {
		return fmt.Errorf("%w: another daemon serves %s: stop it, or choose another socket", object.ErrBusy, path)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("socket %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("stale socket: %w", err)
	}
	return nil
}
