package spill

import (
	"errors"

	"golang.org/x/sys/unix"
)

// System is the file system as this package uses it; a test's own fails calls, writes short and flips bits.
type System interface {
	// Open opens or makes a file, close-on-exec, and never follows a symbolic link at the path's end.
	Open(path string, flags int) (fd int, err error)
	Pwrite(fd int, b []byte, off int64) (int, error)
	Pread(fd int, b []byte, off int64) (int, error)
	// Reserve takes room on the disk for n bytes, so that a full one shows before anything is written.
	Reserve(fd int, n int64) error
	Sync(fd int) error
	Close(fd int) error
	Rename(from, to string) error
	Remove(path string) error
}

// Linux is the real System.
type Linux struct{}

// Open implements System.
func (Linux) Open(path string, flags int) (int, error) {
	return retry(func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600) })
}

// Pwrite implements System.
func (Linux) Pwrite(fd int, b []byte, off int64) (int, error) {
	return retry(func() (int, error) { return unix.Pwrite(fd, b, off) })
}

// Pread implements System.
func (Linux) Pread(fd int, b []byte, off int64) (int, error) {
	return retry(func() (int, error) { return unix.Pread(fd, b, off) })
}

// Reserve implements System: fallocate(2). A file system without it finds out while it is written.
func (Linux) Reserve(fd int, n int64) error {
	_, err := retry(func() (int, error) { return 0, unix.Fallocate(fd, 0, 0, n) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return nil
	}
	return err
}

// Sync implements System.
func (Linux) Sync(fd int) error { return unix.Fsync(fd) }

// Close implements System.
func (Linux) Close(fd int) error { return unix.Close(fd) }

// Rename implements System.
func (Linux) Rename(from, to string) error { return unix.Rename(from, to) }

// Remove implements System.
func (Linux) Remove(path string) error { return unix.Unlink(path) }

// retry repeats a call that the Go runtime's preemption signal cut short.
func retry(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
