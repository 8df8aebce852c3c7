package frontdoor

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

// A front door is handed to another daemon as its socket: who connects meanwhile waits in the socket's queue, and
// nobody finds it gone.

// Door is a front door's socket, which listens, and the lock that says whose it is. Who has it must Close it, or give
// it to Listen.
type Door struct {
	Socket *os.File
	Lock   *os.File
}

// Close gives both up. The socket's file stays. It may be nil.
func (d *Door) Close() {
	if d != nil {
		d.Socket.Close()
		d.Lock.Close()
	}
}

// Retire is Close that leaves the socket and its lock.
func (s *Server) Retire() (*Door, error) {
	socket, err := unix.FcntlInt(uintptr(s.listener.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		s.Close()
		return nil, err
	}
	lock, err := unix.FcntlInt(s.lock.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		unix.Close(socket)
		s.Close()
		return nil, err
	}
	s.listener.path = "" // its file stays
	s.Close()
	return &Door{Socket: os.NewFile(uintptr(socket), "socket"), Lock: os.NewFile(uintptr(lock), "lock of the socket")},
		nil
}

// listener makes the Door's listener; the Door's Socket is spent, also after an error.
func (d *Door) listener(path string) (*listener, error) {
	defer d.Socket.Close()
	fd, err := unix.FcntlInt(d.Socket.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	l := &listener{fd: fd, path: path}
	name, err := unix.Getsockname(fd)
	if at, is := name.(*unix.SockaddrUnix); err == nil && (!is || at.Name != path) {
		err = fmt.Errorf("%w: the previous daemon listens at %v, not at %s", object.ErrInvalid, name, path)
	}
	if err == nil { // this process is the one that clients see as the socket's (SO_PEERCRED, unix(7))
		err = errors.Join(unix.SetNonblock(fd, true), unix.Listen(fd, backlog))
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// takeover answers who wants to be the next daemon, with one end of the connection to it.
func (c *connection) takeover(f *ipc.Frame, m wire.TakeoverRequest) error {
	if c.srv.opts.Takeover == nil {
		return fmt.Errorf("%w: this daemon cannot be taken over", object.ErrUnsupported)
	}
	format, end, err := c.srv.opts.Takeover(c.peer, m.Lowest, m.Highest)
	if err != nil {
		return err
	}
	fd, err := unix.FcntlInt(end.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	end.Close()
	if err != nil {
		return err
	}
	return c.replyLater(func() { c.replyFD(f, &wire.TakeoverReply{Format: format}, fd) })
}

// orphans are the previous daemon's connections. Each keeps its references until its process ends, or until the grace
// after that process has connected again.
type orphans struct {
	grace   time.Duration // immutable
	running sync.WaitGroup

	mu    sync.Mutex
	of    map[int][]*ipc.Process       // by number: processes that have not been back
	timer map[*ipc.Process]*time.Timer // of each that is watched; nil before it is back
}

// adopt takes over one connection. It is closed at once if its process is gone or was on another machine.
func (o *orphans) adopt(conn *store.Conn) {
	pid := conn.Owner().PID
	process, err := ipc.ProcessOf(pid)
	if err != nil {
		conn.Close()
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.of[pid] = append(o.of[pid], process)
	o.timer[process] = nil
	o.running.Go(func() {
		_ = process.Wait() // it has ended, or its time is over
		conn.Close()
		o.forget(pid, process)
	})
}

// forget gives a process's descriptor back.
func (o *orphans) forget(pid int, process *ipc.Process) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if timer := o.timer[process]; timer != nil {
		timer.Stop()
	}
	delete(o.timer, process)
	o.of[pid] = slices.DeleteFunc(o.of[pid], func(p *ipc.Process) bool { return p == process })
	if len(o.of[pid]) == 0 {
		delete(o.of, pid)
	}
	process.Close()
}

// returned notes that a process has connected: what it has not claimed after the grace goes.
func (o *orphans) returned(pid int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, process := range o.of[pid] {
		o.timer[process] = time.AfterFunc(o.grace, process.Close)
	}
	delete(o.of, pid)
}

// close ends them all.
func (o *orphans) close() {
	o.mu.Lock()
	for process, timer := range o.timer {
		if timer != nil {
			timer.Stop()
		}
		process.Close()
	}
	o.mu.Unlock()
	o.running.Wait()
}
