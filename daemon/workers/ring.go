package workers

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
)

// seqpacketPair makes a worker's control socket: the daemon's end, and the end that becomes the worker's descriptor 3.
func seqpacketPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "worker control"), os.NewFile(uintptr(fds[1]), "worker control")
	defer ours.Close() // FileConn duplicates it
	c, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return c.(*net.UnixConn), theirs, nil
}

// streamPair makes the socket between a client and its worker: one end each, both the caller's.
func streamPair() (client, worker *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "client end"), os.NewFile(uintptr(fds[1]), "worker end"), nil
}

// newRing makes the memfd of clwire.RingBytes that client and worker talk through. Its pages are there before it is
// handed out and its size is sealed, so that neither side can make the other fault (memfd_create(2), F_SEAL_SHRINK).
func newRing() (*os.File, error) {
	fd, err := unix.MemfdCreate("tendril-ring", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "tendril-ring")
	if err := prepareRing(fd, f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func prepareRing(fd int, f *os.File) error {
	if err := unix.Ftruncate(fd, clwire.RingBytes); err != nil {
		return os.NewSyscallError("ftruncate", err)
	}
	if err := unix.Fallocate(fd, 0, 0, clwire.RingBytes); err != nil {
		return fmt.Errorf("memory for a ring of %d bytes: %w", clwire.RingBytes, os.NewSyscallError("fallocate", err))
	}
	if _, err := f.WriteAt(clwire.RingHeader(), 0); err != nil {
		return err
	}
	seals := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return os.NewSyscallError("F_ADD_SEALS", err)
	}
	return nil
}
