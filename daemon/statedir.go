package daemon

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tendril/ipc"
)

// lockFile is held under flock(2) for as long as a daemon uses the state directory; it contains the holder's pid.
const lockFile = "lock"

// ErrLocked is returned, wrapped with the holder's pid, when another daemon uses the state directory.
var ErrLocked = errors.New("another daemon uses this state directory")

// stateDir is an opened, locked state directory. Close gives the lock up; the lock also ends with the process, however
// it ends.
type stateDir struct {
	path string
	lock *os.File
}

// openStateDir makes dir (mode 0700; its parents 0755) where it is missing and locks it.
func openStateDir(dir string) (*stateDir, error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	lock, err := lockState(filepath.Join(dir, lockFile))
	if err != nil {
		return nil, err
	}
	// not before it is ours: the workers of a daemon that uses it pass through
	if err := closeToOthers(dir); err != nil {
		lock.Close()
		return nil, err
	}
	return &stateDir{path: dir, lock: lock}, nil
}

// closeToOthers changes the mode of a directory that was there before, and more open than it may be.
func closeToOthers(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("state directory %s has mode %v and it cannot be closed to others: %w", dir,
			info.Mode().Perm(), err)
	}
	return nil
}

// dyingTime bounds the wait for what a dead daemon held: its children have copies of its descriptors until they run a
// program of their own, which takes a moment, and on a busy machine a long one.
const dyingTime = 20 * time.Second

// lockState takes the lock. It waits only where the holder is dead, or was a daemon of this process: a child that has
// not yet run its program has a copy of its descriptors for a moment. The lock file is never removed: its successor
// would be another inode, and two daemons could each hold one.
func lockState(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock file: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	for until := time.Now().Add(dyingTime); errors.Is(err, unix.EWOULDBLOCK) && mayBeOver(holderPID(f)) &&
		time.Now().Before(until); {
		time.Sleep(5 * time.Millisecond)
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		defer f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s is locked by %s; stop it, or choose another with --state-dir", ErrLocked,
				path, holder(f))
		}
		return nil, fmt.Errorf("flock %s: %w", path, err)
	}
	if err := signLock(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock file %s: %w", path, err)
	}
	return f, nil
}

func mayBeOver(pid int) bool { return pid == os.Getpid() || ipc.HasEnded(pid) }

// holder names the process that wrote its pid into a lock file.
func holder(f *os.File) string {
	pid := holderPID(f)
	if pid <= 0 {
		return "a process that did not leave its pid"
	}
	return "pid " + strconv.Itoa(pid)
}

// holderPID gives that pid; 0: there is none.
func holderPID(f *os.File) int {
	raw, _ := io.ReadAll(io.NewSectionReader(f, 0, 32))
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return 0
	}
	return pid
}

// inheritStateDir is openStateDir with the lock of the daemon before, which it takes over in any case.
func inheritStateDir(dir string, lock *os.File) (*stateDir, error) {
	held, err := lock.Stat()
	if err == nil {
		var there os.FileInfo
		if there, err = os.Stat(filepath.Join(dir, lockFile)); err == nil && !os.SameFile(held, there) {
			err = fmt.Errorf("%w: the previous daemon's lock is not that of %s", ErrLocked, dir)
		}
	}
	if err == nil {
		err = signLock(lock)
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	return &stateDir{path: dir, lock: lock}, nil
}

// signLock writes this process's number into the lock file.
func signLock(f *os.File) error {
	err := f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return err
}

// Close gives the lock up.
func (s *stateDir) Close() error { return s.lock.Close() }
