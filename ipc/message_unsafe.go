package ipc

import (
	"encoding/binary"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// controlFDs is how many descriptors one recvmsg has room for: more than any frame announces, so that a surplus is
// seen, and few, so that the kernel closes the rest (MSG_CTRUNC, unix(7)).
const controlFDs = 4

// message is the kernel's struct msghdr with what it points to, made once a connection so that a call allocates
// nothing. x/sys's own wrappers build theirs again on each call.
type message struct {
	header  unix.Msghdr
	iov     unix.Iovec
	control [unix.SizeofCmsghdr + 4*controlFDs]byte
	fds     [controlFDs]int
}

// receive is one recvmsg(2). It gives the bytes read (0: the peer has closed) and the descriptors that came, valid
// until the next call and owned by the caller, close-on-exec.
func (m *message) receive(fd int, room []byte, flags int) (n int, fds []int, err error) {
	m.prepare(room)
	m.header.Control = &m.control[0]
	m.header.SetControllen(len(m.control))
	r, _, errno := unix.Syscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&m.header)),
		uintptr(flags|unix.MSG_CMSG_CLOEXEC))
	m.iov.Base = nil
	runtime.KeepAlive(room)
	if errno != 0 {
		return 0, nil, errno
	}
	if m.header.Controllen > 0 {
		fds = m.parseFDs(m.control[:m.header.Controllen])
	}
	if m.header.Flags&unix.MSG_CTRUNC != 0 {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return 0, nil, object.ErrProtocol
	}
	return int(r), fds, nil
}

// recvPlain is one recv(2): descriptors that came along are closed by the kernel. It may wait.
func recvPlain(fd int, room []byte, flags int) (int, error) {
	n, _, errno := unix.Syscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(room))),
		uintptr(len(room)), uintptr(flags), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// recvNow is one recv(2) that does not wait, and so needs not tell the Go scheduler of it; otherwise as recvPlain.
func recvNow(fd int, room []byte) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(room))),
		uintptr(len(room)),
		unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// acceptNow is one accept4(2) on a socket that is not blocking.
func acceptNow(listener, flags int) (int, error) {
	fd, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(listener), 0, 0, uintptr(flags), 0, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// peerGroups is getsockopt(2) with SO_PEERGROUPS.
func peerGroups(fd int) ([]uint32, error) {
	groups := make([]uint32, 32)
	for {
		n := uint32(4 * len(groups))
		_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(unsafe.SliceData(groups))), uintptr(unsafe.Pointer(&n)), 0)
		switch {
		case errno == unix.ERANGE && int(n/4) > len(groups): // n is what it takes
			groups = make([]uint32, n/4)
		case errno != 0:
			return nil, errno
		default:
			return groups[:n/4], nil
		}
	}
}

// pollNow is one epoll_wait(2) that does not wait.
func pollNow(epoll int, events []unix.EpollEvent) int {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll),
		uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// yieldThread lets other threads run on this core.
func yieldThread() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// sendPlain is one send(2) that does not wait, and so needs not tell the Go scheduler of it.
func sendPlain(fd int, b []byte) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
		uintptr(len(b)),
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// send is one sendmsg(2) of b with fds beside its first byte. It may take fewer bytes than b has.
func (m *message) send(fd int, b []byte, fds []int, flags int) (n int, err error) {
	m.prepare(b)
	m.header.Control = nil
	m.header.SetControllen(0)
	if len(fds) > 0 {
		m.setFDs(fds)
	}
	r, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&m.header)),
		uintptr(flags|unix.MSG_NOSIGNAL))
	m.iov.Base = nil
	runtime.KeepAlive(b)
	if errno != 0 {
		return 0, errno
	}
	return int(r), nil
}

func (m *message) prepare(b []byte) {
	m.iov.Base = unsafe.SliceData(b)
	m.iov.SetLen(len(b))
	m.header.Iov = &m.iov
	m.header.SetIovlen(1)
	m.header.Flags = 0
}

// setFDs writes one SCM_RIGHTS control message (cmsg(3)) with at most MaxFDs descriptors.
func (m *message) setFDs(fds []int) {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&m.control[0]))
	h.Level, h.Type = unix.SOL_SOCKET, unix.SCM_RIGHTS
	h.SetLen(unix.CmsgLen(4 * len(fds)))
	for i, fd := range fds {
		binary.NativeEndian.PutUint32(m.control[unix.SizeofCmsghdr+4*i:], uint32(fd))
	}
	m.header.Control = &m.control[0]
	m.header.SetControllen(unix.CmsgSpace(4 * len(fds)))
}

// parseFDs reads the control messages that the kernel wrote; on this socket they are SCM_RIGHTS or nothing.
func (m *message) parseFDs(control []byte) []int {
	count := 0
	for len(control) >= unix.SizeofCmsghdr {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
		size := int(h.Len)
		if size < unix.SizeofCmsghdr || size > len(control) {
			break
		}
		if h.Level == unix.SOL_SOCKET && h.Type == unix.SCM_RIGHTS {
			for data := control[unix.SizeofCmsghdr:size]; len(data) >= 4 && count < controlFDs; data = data[4:] {
				m.fds[count] = int(int32(binary.NativeEndian.Uint32(data)))
				count++
			}
		}
		control = control[min(unix.CmsgSpace(size-unix.SizeofCmsghdr), len(control)):]
	}
	return m.fds[:count]
}

// waitForInput is one poll(2) without end.
func waitForInput(fd int) (int, error) {
	p := unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	n, _, errno := unix.Syscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, 0, 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
