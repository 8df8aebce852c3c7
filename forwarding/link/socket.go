package link

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
)

// maxFDsQueued bounds the descriptors a peer may send ahead of their records.
const maxFDsQueued = 1024

// sendByte puts one byte on the socket, with fd's duplicate if fd is not nil.
// A full socket loses a bell, which is right: the peer has bells to read.
func (c *Conn) sendByte(b byte, fd *os.File) error {
	var oob []byte
	flags := unix.MSG_NOSIGNAL
	if fd != nil {
		oob = unix.UnixRights(int(fd.Fd()))
	} else {
		flags |= unix.MSG_DONTWAIT
	}
	for {
		err := unix.Sendmsg(c.sock, []byte{b}, oob, nil, flags)
		switch {
		case err == nil, err == unix.EAGAIN && fd == nil:
			return nil
		case err == unix.EINTR:
			continue
		case err == unix.EPIPE, err == unix.ECONNRESET:
			c.hung.Store(true)
			return ErrHangup
		}
		return fmt.Errorf("send on the link's socket: %w", err)
	}
}

// SendFD sends a duplicate of f; the caller keeps f. Send it before the record
// that speaks of it.
func (c *Conn) SendFD(f *os.File) error { return c.sendByte(clwire.Descriptor, f) }

// Block sleeps until a bell, a descriptor or a hang-up comes, wake (a
// descriptor, or -1) is readable, or timeout is over (negative: none). It reads
// the socket but not wake. Call Arm before.
func (c *Conn) Block(wake int, timeout time.Duration) error {
	if c.hung.Load() {
		return ErrHangup
	}
	fds := [2]unix.PollFd{{Fd: int32(c.sock), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}}
	var ts *unix.Timespec
	if timeout >= 0 {
		t := unix.NsecToTimespec(timeout.Nanoseconds())
		ts = &t
	}
	if _, err := unix.Ppoll(fds[:], ts, nil); err != nil && err != unix.EINTR {
		return fmt.Errorf("poll the link's socket: %w", err)
	}
	if fds[0].Revents == 0 {
		return nil
	}
	return c.drain(unix.MSG_DONTWAIT)
}

// TakeFD returns the next descriptor that the peer sent; the caller owns it.
// Its record came after it, so that it waits at most for a scheduler: a peer
// that sent none within two seconds is in error.
func (c *Conn) TakeFD() (*os.File, error) {
	for deadline := time.Now().Add(2 * time.Second); len(c.fds) == 0; {
		if err := c.Block(-1, time.Until(deadline)); err != nil {
			return nil, err
		}
		if len(c.fds) == 0 && time.Now().After(deadline) {
			return nil, fmt.Errorf("%w: a record names a descriptor that was not sent", ErrCorrupt)
		}
	}
	fd := c.fds[0]
	c.fds = c.fds[1:]
	return os.NewFile(uintptr(fd), "segment"), nil
}

// drain reads what is on the socket until nothing is left.
func (c *Conn) drain(flags int) error {
	var buf [64]byte
	var oob [256]byte
	for {
		n, oobn, rflags, _, err := unix.Recvmsg(c.sock, buf[:], oob[:], flags|unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err == unix.EAGAIN {
			return nil
		}
		if err == unix.ECONNRESET || (err == nil && n == 0) {
			c.hung.Store(true)
			return ErrHangup
		}
		if err != nil {
			return fmt.Errorf("read the link's socket: %w", err)
		}
		if err := c.keepFDs(oob[:oobn], rflags); err != nil {
			return err
		}
		if n < len(buf) && oobn == 0 {
			return nil
		}
	}
}

func (c *Conn) keepFDs(oob []byte, rflags int) error {
	if len(oob) == 0 {
		return nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("%w: control message: %w", ErrCorrupt, err)
	}
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("%w: rights: %w", ErrCorrupt, err)
		}
		c.fds = append(c.fds, fds...)
	}
	if rflags&unix.MSG_CTRUNC != 0 || len(c.fds) > maxFDsQueued {
		return fmt.Errorf("%w: %d descriptors wait, the limit is %d", ErrCorrupt, len(c.fds), maxFDsQueued)
	}
	return nil
}
