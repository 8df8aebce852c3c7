//go:build cgo

package worker

import (
	"bytes"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
)

// output takes what kernels print: the process's standard output is a pipe of
// its own. A nil output takes nothing.
type output struct {
	fd       int // reading end, not blocking; immutable
	send     func([]byte)
	printing atomic.Bool // a program that may print was made

	mu  sync.Mutex // orders what is sent
	buf [16 << 10]byte
}

// redirect makes descriptor 1 a pipe. The driver's end blocks when the pipe is
// full: nothing a kernel printed is lost.
func redirect() (*output, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, err
	}
	defer unix.Close(fds[1])
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		return nil, err
	}
	_, _ = unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, 1<<20) // the default will do
	if err := unix.Dup3(fds[1], 1, 0); err != nil {
		unix.Close(fds[0])
		return nil, err
	}
	return &output{fd: fds[0]}, nil
}

// expect notes that a program may print: its source says so, or it has none.
func (o *output) expect(kind uint8, source []byte) {
	if o == nil || o.printing.Load() || kind == clwire.ProgramSource && !bytes.Contains(source, []byte("printf")) {
		return
	}
	o.printing.Store(true)
	go o.follow()
}

// drain sends what is in the pipe now. It never blocks on the driver.
func (o *output) drain() {
	if !o.printing.Load() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		n, err := unix.Read(o.fd, o.buf[:])
		if err == unix.EINTR {
			continue
		}
		if n <= 0 || err != nil {
			return
		}
		o.send(o.buf[:n])
	}
}

// follow empties the pipe while kernels print more than it holds. It ends with the process.
func (o *output) follow() {
	for {
		p := []unix.PollFd{{Fd: int32(o.fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, -1); err != nil && err != unix.EINTR {
			return
		}
		o.drain()
	}
}
