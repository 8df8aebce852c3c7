package ipc

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// Processes watches the processes that have connections, and says when one ends: a connection ends with the process
// that opened it, though a forked child may hold the socket. A process takes one descriptor (a pidfd), however many
// connections it has, and all of them one goroutine. Safe for concurrent use.
type Processes struct {
	epoll int      // immutable until Close
	file  *os.File // the same, in the netpoller, for run
	ended chan struct{}

	mu    sync.Mutex // held while Watching.end runs; a leaf otherwise
	all   map[int32]*process
	alive map[int]*process // by number: those that have not ended, as far as anybody knows
}

// process is one of them. Guarded by Processes.mu.
type process struct {
	pid, fd int
	of      map[*Watching]struct{}
}

// Watching is one connection's watch of its process.
type Watching struct {
	all *Processes
	p   *process // guarded by Processes.mu; nil: it has ended, or Close
	end func()
}

// NewProcesses watches nobody yet. The caller must Close it.
func NewProcesses() (*Processes, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // what makes os.NewFile give it to the netpoller
		unix.Close(fd)
		return nil, fmt.Errorf("epoll: %w", err)
	}
	x := &Processes{
		epoll: fd, file: os.NewFile(uintptr(fd), "epoll"), ended: make(chan struct{}),
		all: make(map[int32]*process), alive: make(map[int]*process),
	}
	go x.run()
	return x, nil
}

// Close ends the goroutine. No Watching may be open.
func (x *Processes) Close() {
	x.file.Close()
	<-x.ended
}

// Watch calls end, once, when the process at the other end of a connection has ended, unless Close comes first. end may
// not wait, nor call Watch or Close. An error that is ESRCH says that it has ended already. The caller must Close the
// Watching.
func (x *Processes) Watch(a *Accepted, pid int, end func()) (*Watching, error) {
	fd, err := pidfdOf(a.fd, pid)
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.alive[pid]
	mine, its := hasEnded(fd, p)
	if mine {
		unix.Close(fd)
		return nil, fmt.Errorf("process %d: %w", pid, unix.ESRCH)
	}
	if p != nil && !its { // two processes that live have different numbers
		unix.Close(fd)
	} else if p, err = x.add(fd, pid); err != nil {
		return nil, err
	}
	w := &Watching{all: x, p: p, end: end}
	p.of[w] = struct{}{}
	return w, nil
}

// hasEnded reports whether the process of a pidfd has ended, and p, which may be nil.
func hasEnded(fd int, p *process) (mine, its bool) {
	list := [2]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: -1}} // a pidfd is readable then (pidfd_open(2))
	if p != nil {
		list[1] = unix.PollFd{Fd: int32(p.fd), Events: unix.POLLIN}
	}
	for {
		if _, err := unix.Poll(list[:], 0); !errors.Is(err, unix.EINTR) {
			return list[0].Revents != 0, list[1].Revents != 0
		}
	}
}

// add watches another process, and takes its pidfd over. mu is held.
func (x *Processes) add(fd, pid int) (*process, error) {
	err := unix.EpollCtl(x.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("%w: epoll takes no pidfd: %w", object.ErrFull, err)
	}
	p := &process{pid: pid, fd: fd, of: make(map[*Watching]struct{}, 1)}
	x.all[int32(fd)] = p
	if pid > 0 { // 0: in a PID namespace that is not ours to see
		x.alive[pid] = p
	}
	return p, nil
}

// remove gives a process's descriptor back. mu is held.
func (x *Processes) remove(p *process) {
	delete(x.all, int32(p.fd))
	if x.alive[p.pid] == p {
		delete(x.alive, p.pid)
	}
	// closing does not, while a child that is about to run a program has a copy
	unix.EpollCtl(x.epoll, unix.EPOLL_CTL_DEL, p.fd, nil)
	unix.Close(p.fd)
}

// Close ends the watch; end is not running, and is not called afterwards. A second Close does nothing.
func (w *Watching) Close() {
	x := w.all
	x.mu.Lock()
	defer x.mu.Unlock()
	if p := w.p; p != nil {
		w.p = nil
		if delete(p.of, w); len(p.of) == 0 {
			x.remove(p)
		}
	}
}

// Count gives how many processes are watched: that many descriptors they take.
func (x *Processes) Count() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.all)
}

// run tells of those that end, until Close.
func (x *Processes) run() {
	defer close(x.ended)
	raw, err := x.file.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(uintptr) bool { // fails with Close
		x.tell()
		return false
	})
}

// tell calls what waits for those that have ended.
func (x *Processes) tell() {
	events := make([]unix.EpollEvent, 64)
	for n := len(events); n == len(events); {
		x.mu.Lock()
		n = pollNow(x.epoll, events)
		for _, ev := range events[:n] {
			if p := x.all[ev.Fd]; p != nil {
				for w := range p.of {
					w.p = nil
					w.end()
				}
				x.remove(p)
			}
		}
		x.mu.Unlock()
	}
}
