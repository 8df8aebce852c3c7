package ipc

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Peer is the process at the other end, as the kernel recorded it when the connection was made (SO_PEERCRED, unix(7)).
type Peer struct {
	PID int // 0: in a PID namespace that is not ours to see
	UID uint32
	GID uint32
}

// PeerOf asks the kernel for the peer of a connected unix socket.
func PeerOf(fd int) (Peer, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return Peer{}, fmt.Errorf("SO_PEERCRED: %w", err)
	}
	return Peer{PID: int(cred.Pid), UID: cred.Uid, GID: cred.Gid}, nil
}

// Process is a descriptor of a process, which no later one of the same number can be taken for.
type Process struct{ file *os.File }

// ProcessOf gives the process of a number (pidfd_open(2)); the caller must Close it. It cannot tell a process from a
// later one of the same number. One that is not there is ESRCH.
func ProcessOf(pid int) (*Process, error) {
	if pid <= 0 {
		return nil, fmt.Errorf("process %d: %w", pid, unix.ESRCH)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("pidfd of process %d: %w", pid, err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // what makes os.NewFile give it to the netpoller
		unix.Close(fd)
		return nil, fmt.Errorf("pidfd of process %d: %w", pid, err)
	}
	return &Process{file: os.NewFile(uintptr(fd), "pidfd")}, nil
}

// pidfdOf gives a pidfd of a connection's peer. It uses SO_PEERPIDFD (Linux 6.5), which cannot name a wrong process;
// older kernels get pidfd_open(2), which can where the peer died and its number was given out again in between.
func pidfdOf(socket, pid int) (int, error) {
	fd, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		if fd, err = unix.PidfdOpen(pid, 0); err != nil {
			return -1, fmt.Errorf("pidfd of process %d: %w", pid, err)
		}
	}
	return fd, nil
}

// HasEnded reports whether a process of this machine has ended or is about to, also where nobody has waited for it yet.
// One that cannot be asked about has not.
func HasEnded(pid int) bool {
	p, err := ProcessOf(pid)
	if err != nil {
		return errors.Is(err, unix.ESRCH) && pid > 0
	}
	defer p.Close()
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.file.Fd()), Events: unix.POLLIN}}, 0) // see Wait
	return err == nil && n > 0 || isExiting(pid)
}

// isExiting reports whether a process is on its way out: the kernel closes its descriptors one after the other, and
// says only then that it has ended. The seventh field behind the name in /proc/PID/stat is the task's flags, of which
// PF_EXITING says so.
func isExiting(pid int) bool {
	const flagsField, exiting = 6, 4
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if err != nil || len(fields) <= flagsField {
		return false
	}
	flags, err := strconv.ParseUint(fields[flagsField], 10, 64)
	return err == nil && flags&exiting != 0
}

// Wait returns nil once the process has ended, and an error after Close.
func (p *Process) Wait() error {
	raw, err := p.file.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool { // a pidfd is readable when its process has ended (pidfd_open(2))
		n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0
	})
}

// Close gives the descriptor back and ends a Wait under way.
func (p *Process) Close() { p.file.Close() }
