package workers

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// A worker that begins no PID namespace can leave processes behind, in its process group, which nothing may leave. The
// daemon ends them with the worker. Where the daemon itself is killed, nobody would: its workers end by their
// parent-death signal, what they forked does not. So there is a guard, one process a daemon: the daemon tells it over a
// pipe of the groups that there are, and the guard kills these when the pipe closes without a goodbye. It is of the
// daemon's user, as workers of an ordinary user's daemon are: code that sets out to can end it first.

// guardVerb is the guard's verb: the daemon's program, started with it, calls Guard.
const guardVerb = "guard"

// What the daemon tells the guard, a line each.
const (
	guardAdd    = "+" // and the group's number
	guardRemove = "-"
	guardBye    = "bye"
)

// guardPause is the least time between the start of a guard and that of the next where nobody needs it at once:
// somebody may end each one.
const guardPause = time.Second

// guardPauseAtMost bounds the time between two tries to start one: it is twice as long after each that fails.
const guardPauseAtMost = time.Minute

// guardLimit bounds a write to the guard, which reads at once, and the wait for its end.
const guardLimit = time.Second

// Guard is what the guard does: it reads from in, the daemon's pipe, to its end.
func Guard(in io.Reader) error {
	// whoever ends the daemon by a signal to its group or unit gives it the time to say goodbye
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	return killWhatIsLeft(in)
}

// killWhatIsLeft kills the groups that it was told of and not told to forget, where nobody says goodbye.
func killWhatIsLeft(in io.Reader) error {
	groups := make(map[int]leader)
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		line := lines.Text()
		if line == guardBye {
			return nil
		}
		if number, ok := strings.CutPrefix(line, guardAdd); ok {
			if pid, err := strconv.Atoi(number); err == nil && pid > 1 {
				groups[pid].letGo()
				groups[pid] = leaderOf(pid)
			}
		} else if number, ok := strings.CutPrefix(line, guardRemove); ok {
			if pid, err := strconv.Atoi(number); err == nil {
				groups[pid].letGo()
				delete(groups, pid)
			}
		}
	}
	for pid, l := range groups {
		l.killGroup(pid)
		l.letGo()
	}
	return lines.Err()
}

// leader is a pidfd of a group's first process (pidfd_open(2)). It means the group whatever its number means by now:
// when the daemon has been killed somebody else reaps the leader, and where nothing is left of the group its number
// can be a stranger's before the guard runs. nil: there is none; the number has to do.
type leader struct{ *os.File }

func leaderOf(pid int) leader {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil { // it has been reaped, or the guard has no descriptor left
		return leader{}
	}
	return leader{os.NewFile(uintptr(fd), "pidfd")}
}

func (l leader) letGo() {
	if l.File != nil {
		l.Close()
	}
}

// pidfdSignalProcessGroup has pidfd_send_signal(2) signal the group of which the process was the first, also where that
// has been reaped: Linux 6.9 and later.
const pidfdSignalProcessGroup = 1 << 2

// killGroup kills what is left of the group with this number.
func (l leader) killGroup(pid int) {
	if l.File != nil {
		err := unix.PidfdSendSignal(int(l.Fd()), unix.SIGKILL, nil, pidfdSignalProcessGroup)
		if err == nil || errors.Is(err, unix.ESRCH) || l.replaced(pid) {
			return
		}
	}
	_ = unix.Kill(-pid, unix.SIGKILL) // nothing left is as good
}

// replaced reports whether the leader's number is another process's: nothing was left of its group then.
func (l leader) replaced(pid int) bool {
	reaped := errors.Is(unix.PidfdSendSignal(int(l.Fd()), 0, nil, 0), unix.ESRCH)
	return reaped && !errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}

// guard is the daemon's end of it.
type guard struct {
	exe  string             // immutable, but in tests
	argv []string           // immutable
	log  logrus.FieldLogger // immutable

	mu       sync.Mutex
	groups   map[int]struct{} // guarded by mu, like all below
	pipe     *os.File         // nil: there is no guard
	process  *os.Process      // the last one
	ended    chan struct{}    // closed when that has been reaped; nil: there was none
	began    time.Time        // when that was started
	again    *time.Timer      // begins the next one; nil: nothing does
	failures int              // to start one, since the last one that started
	closed   bool
}

func newGuard(o Options) *guard {
	return &guard{exe: o.Executable, argv: o.argv(guardVerb), log: o.Log, groups: make(map[int]struct{})}
}

// add has a group of processes killed should the daemon be. It starts the guard where there is none.
func (g *guard) add(pid int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.groups[pid] = struct{}{}
	if g.pipe != nil {
		g.tell(guardAdd, pid)
	}
	g.replace()
}

// replace starts a guard where there is none and should be. Where it cannot, it is tried again. mu is held.
func (g *guard) replace() {
	if g.closed || g.pipe != nil || len(g.groups) == 0 {
		return
	}
	err := g.start()
	if err == nil {
		g.failures = 0
		return
	}
	wait := min(guardPause<<min(g.failures, 10), guardPauseAtMost)
	g.failures++
	g.log.WithError(err).Warnf("no guard can be started: what workers start will outlive them if the daemon is killed; next try in %v",
		wait)
	g.later(wait)
}

// later begins another guard after a time, unless one is about to begin. mu is held.
func (g *guard) later(wait time.Duration) {
	if g.again == nil {
		g.again = time.AfterFunc(wait, g.beginAgain)
	}
}

// remove takes a group back. Its leader is not reaped yet: its number is still its own.
func (g *guard) remove(pid int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, there := g.groups[pid]; !there {
		return
	}
	delete(g.groups, pid)
	if g.pipe == nil { // it was noticed, and said, that the guard has ended: another follows
		return
	}
	g.tell(guardRemove, pid)
	g.replace()
}

// start starts the guard and tells it of all groups. mu is held.
func (g *guard) start() error {
	in, pipe, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		pipe.Close()
		return err
	}
	defer null.Close()
	p, err := os.StartProcess(g.exe, g.argv, &os.ProcAttr{
		Dir: "/", Env: []string{}, Files: []*os.File{in, null, null}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		pipe.Close()
		return describe(g.exe, err)
	}
	ended := make(chan struct{})
	g.pipe, g.process, g.ended, g.began = pipe, p, ended, time.Now()
	go g.await(p, pipe, ended)
	for pid := range g.groups {
		if g.pipe != nil {
			g.tell(guardAdd, pid)
		}
	}
	if g.pipe == nil {
		return fmt.Errorf("process %d does not read", p.Pid)
	}
	return nil
}

// await reaps a guard. One that ends before it was told goodbye is replaced, soon.
func (g *guard) await(p *os.Process, pipe *os.File, ended chan struct{}) {
	defer close(ended)
	_, _ = p.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pipe == pipe {
		pipe.Close()
		g.pipe = nil
	}
	if !g.closed {
		g.log.WithField("pid", p.Pid).Warn("the guard, which ends what workers leave behind should the daemon be killed, has ended; another one is started")
		g.later(guardPause - time.Since(g.began))
	}
}

// beginAgain starts another guard where one has ended and none has been started since.
func (g *guard) beginAgain() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.again = nil
	g.replace()
}

// tell writes a line. A guard that does not read is ended: it would kill groups that it should not know any more. mu is
// held.
func (g *guard) tell(what string, pid int) {
	_ = g.pipe.SetWriteDeadline(time.Now().Add(guardLimit)) // a pipe has deadlines
	if _, err := fmt.Fprintf(g.pipe, "%s%d\n", what, pid); err != nil {
		_ = g.process.Kill() // before its pipe closes; it may have ended
		g.pipe.Close()
		g.pipe = nil
	}
}

// close ends the guard, if there is one, when all processes have ended.
func (g *guard) close() {
	g.mu.Lock()
	g.closed = true
	if g.again != nil {
		g.again.Stop()
	}
	ended, process := g.ended, g.process
	if g.pipe != nil {
		_ = g.pipe.SetWriteDeadline(time.Now().Add(guardLimit))
		_, _ = g.pipe.WriteString(guardBye + "\n") // nothing is left that it could end
		g.pipe.Close()
		g.pipe = nil
	}
	g.mu.Unlock()
	if ended == nil {
		return
	}
	select {
	case <-ended:
	case <-time.After(guardLimit): // somebody has stopped it
		_ = process.Kill() // it may have ended just now
		<-ended
	}
}
