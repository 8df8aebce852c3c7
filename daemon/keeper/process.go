package keeper

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
)

// process is one `tendril keeper`.
type process struct {
	pid     int
	process *os.Process // knows its end: no stranger is signalled
	control *net.UnixConn
	done    chan struct{} // closed when it is reaped
	fate    string        // how it ended; read after done
	said    *tail
}

// tail keeps the end of what is written to it. Safe for concurrent use.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// tailBytes is how much of what a keeper says is kept.
const tailBytes = 1 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b[max(0, len(b)-tailBytes):]...)
	t.text = append([]byte(nil), t.text[max(0, len(t.text)-tailBytes):]...)
	return len(b), nil
}

// String gives it as one printable line.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.TrimSpace(strings.ToValidUTF8(string(t.text), "?")))
}

// startProcess starts a keeper from a thread that waits for it: PDEATHSIG is sent when the *thread* that forked ends
// (prctl(2)). links counts the goroutine of that thread. env nil: this process's.
func startProcess(links *sync.WaitGroup, executable string, argv, env []string) (*process, error) {
	control, theirs, err := controlPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	p := &process{control: control, done: make(chan struct{}), said: &tail{}}
	cmd := exec.Command(executable, argv...)
	cmd.Args[0] = "tendril"
	cmd.Dir, cmd.Env = "/", env
	cmd.Stdout, cmd.Stderr = p.said, p.said // drivers greet
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 5 * time.Second // what it started may hold its output
	started := make(chan error, 1)
	links.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := cmd.Start()
		if err == nil {
			p.pid, p.process = cmd.Process.Pid, cmd.Process
		}
		started <- err
		if err == nil {
			p.reap(cmd)
		}
	})
	if err := <-started; err != nil {
		control.Close()
		return nil, err
	}
	return p, nil
}

func (p *process) reap(cmd *exec.Cmd) {
	err := cmd.Wait()
	p.fate = "it exited"
	if err != nil {
		p.fate = "it ended: " + err.Error()
	}
	if said := p.said.String(); said != "" {
		p.fate += ", after saying: " + said
	}
	close(p.done)
}

// controlPair makes the socket: this end, and the keeper's.
func controlPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	mine, theirs := os.NewFile(uintptr(fds[0]), "keeper"), os.NewFile(uintptr(fds[1]), "keeper")
	defer mine.Close()
	conn, err := net.FileConn(mine)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return conn.(*net.UnixConn), theirs, nil // a unix socket's, always
}

// over reports whether the process has ended.
func (p *process) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// end kills the process and waits for its end, for a bounded time: it has nothing that anybody needs, but the kernel
// keeps a process within a call of a driver that hangs. It says how it ended; ended false: it has not.
func (p *process) end(limit time.Duration) (fate string, ended bool) {
	p.control.Close()
	_ = p.process.Kill() // it may have ended
	select {
	case <-p.done:
		return p.fate, true
	case <-time.After(limit):
		return fmt.Sprintf("process %d does not end though it was killed: the kernel waits for the driver", p.pid), false
	}
}

// ask is one round trip. The caller owns fd; −1: none came. An error means that the process is of no use any more.
func (p *process) ask(m *clwire.KeeperRequest, limit time.Duration, files []int) (*clwire.KeeperReply, int, error) {
	raw, err := json.Marshal(m)
	if err != nil {
		return nil, -1, err
	}
	_ = p.control.SetDeadline(time.Now().Add(limit))
	if _, _, err := p.control.WriteMsgUnix(raw, unix.UnixRights(files...), nil); err != nil {
		return nil, -1, err
	}
	packet, rights := make([]byte, clwire.MaxControlBytes), make([]byte, unix.CmsgSpace(4*4))
	n, nc, flags, _, err := p.control.ReadMsgUnix(packet, rights)
	fd := takeOne(rights[:nc])
	if err == nil && n == 0 {
		err = io.EOF
	}
	reply := &clwire.KeeperReply{}
	if err == nil {
		err = json.Unmarshal(packet[:n], reply)
	}
	if err == nil && flags&unix.MSG_CTRUNC != 0 {
		err = fmt.Errorf("a descriptor was lost: the limit of open files is too low")
	}
	if err != nil {
		closeFD(fd)
		return nil, -1, err
	}
	return reply, fd, nil
}

// takeOne gives the one descriptor that came; those beyond are closed. −1: none.
func takeOne(control []byte) int {
	fd := -1
	messages, _ := unix.ParseSocketControlMessage(control)
	for i := range messages {
		some, _ := unix.ParseUnixRights(&messages[i])
		for _, one := range some {
			closeFD(fd)
			fd = one
		}
	}
	return fd
}
