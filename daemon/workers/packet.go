package workers

import (
	"io"
	"net"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
)

// readPacket waits for one packet of a worker's control socket, no longer than its deadline, and reads it. io.EOF: the
// worker has closed its end. Packets have some hundred bytes. So the kernel is asked first how long this one is: a
// buffer for the longest would be zeroed for each of a session's packets, and kept while nothing comes. One goroutine
// at a time reads.
func readPacket(c *net.UnixConn) ([]byte, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var packet []byte
	var n int
	var fault error
	err = raw.Read(func(fd uintptr) bool {
		if n, fault = recv(int(fd), nil, unix.MSG_PEEK|unix.MSG_TRUNC); fault != nil || n == 0 {
			return fault != unix.EAGAIN
		}
		packet = make([]byte, min(n, clwire.MaxControlBytes))
		n, fault = recv(int(fd), packet, 0)
		return true
	})
	switch {
	case err != nil:
		return nil, err
	case fault != nil:
		return nil, fault
	case n == 0:
		return nil, io.EOF
	}
	return packet[:n], nil
}

// recv is recvfrom(2), again where a signal comes between.
func recv(fd int, into []byte, flags int) (n int, err error) {
	for {
		n, _, err = unix.Recvfrom(fd, into, flags)
		if err != unix.EINTR {
			return n, err
		}
	}
}
