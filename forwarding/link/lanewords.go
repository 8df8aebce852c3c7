package link

import (
	"os"

	"golang.org/x/sys/unix"
)

// Write sends p as it is, for a Lane that carries something else than chunks: Read is its other end. It blocks until the
// kernel has all.
func (l *Lane) Write(p []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tls != nil {
		_, err := l.tls.Write(p)
		return hangupOr(err)
	}
	for len(p) > 0 {
		n, err := unix.SendmsgN(l.raw.fd, p, nil, nil, unix.MSG_NOSIGNAL)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil {
			return hangup(err)
		}
		p = p[n:]
	}
	return nil
}

// Pair makes two connected sockets of this machine that lanes can be made of. The caller closes both.
func Pair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "lane"), os.NewFile(uintptr(fds[1]), "lane"), nil
}
