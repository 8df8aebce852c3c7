package workers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"tendril/tools/e2e/await"
)

// alone has workers begin no namespace: what an ordinary user gets where the kernel grants no user namespaces.
func alone(o *Options) { o.isolations = []isolation{0} }

// fakeDaemon is a daemon whose one worker leaves processes in its group. It says the group's number and waits.
func fakeDaemon(dir string) {
	o := Options{
		Executable: "/proc/self/exe", Args: []string{"-fake"}, Vendors: []string{filepath.Join(dir, "vendors")},
		StateDir: dir, IDs: OwnIDs(), CacheRoot: filepath.Join(dir, "cache"), Warm: 1, Max: 8,
		ProbeTimeout: 10 * time.Minute, StartTimeout: 10 * time.Minute, Log: logrus.New(),
	}
	alone(&o)
	p := New(o, me())
	p.Probe()
	platforms, err := p.Platforms(context.Background())
	if err != nil || len(platforms) == 0 {
		panic(fmt.Sprint(platforms, err))
	}
	opened, err := p.Open(context.Background(), Request{Session: 1, Platform: platforms[0], Tenant: me()})
	if err != nil {
		panic(err)
	}
	line, err := bufio.NewReader(opened.Socket).ReadString('\n')
	pid, _, _ := strings.Cut(strings.TrimPrefix(line, "pid="), " ")
	fmt.Println(pid, p.guardPID(), err)
	if _, err := os.Stdin.Read(make([]byte, 1)); err == nil { // a byte: an end in good order
		if err := ended(p); err != nil {
			panic(err)
		}
		return
	}
	time.Sleep(time.Hour) // Pause: until it is killed
}

// guardPID gives the guard's number; 0: there is none.
func (p *Pool) guardPID() int {
	p.guard.mu.Lock()
	defer p.guard.mu.Unlock()
	if p.guard.pipe == nil {
		return 0
	}
	return p.guard.process.Pid
}

// gone reports whether a process, or with a negative number a group, is no more, or only its remains are.
func gone(pid int) bool {
	if err := unix.Kill(pid, 0); errors.Is(err, unix.ESRCH) {
		return true
	}
	for _, state := range states(pid) {
		if state != "Z" && state != "X" {
			return false
		}
	}
	return true
}

// states gives the state of each process of a group, or of one process.
func states(pid int) (list []string) {
	all, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range all {
		raw, _ := os.ReadFile(file) // a process may end meanwhile
		_, rest, _ := strings.Cut(string(raw), ") ")
		fields := strings.Fields(rest)
		if len(fields) < 3 {
			continue
		}
		if fields[2] == strconv.Itoa(-pid) || filepath.Base(filepath.Dir(file)) == strconv.Itoa(pid) {
			list = append(list, fields[0])
		}
	}
	return list
}

// What a worker forked ends with a daemon that is killed, also where an ordinary user's workers begin no namespaces; so
// does the guard that sees to it, and both end with a daemon that stops.
func TestNothingOutlivesAKilledDaemon(t *testing.T) {
	for _, killed := range []bool{true, false} {
		t.Run(fmt.Sprintf("killed=%v", killed), func(t *testing.T) {
			dir := openDir(t)
			if err := os.WriteFile(filepath.Join(dir, "vendors", "0.icd"), []byte("stays\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			daemon := exec.Command("/proc/self/exe", "-daemon", dir)
			daemon.Stderr = os.Stderr
			if os.Geteuid() == 0 {
				const plain = 4711
				for _, name := range []string{dir, filepath.Join(dir, "vendors"), filepath.Join(dir, "cache")} {
					if err := os.Chown(name, plain, plain); err != nil {
						t.Fatal(err)
					}
				}
				daemon.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: plain, Gid: plain}}
			}
			end, err := daemon.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := daemon.StdoutPipe()
			if err == nil {
				err = daemon.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			defer daemon.Process.Kill()
			var worker, guard int
			var said string
			if n, err := fmt.Fscan(out, &worker, &guard, &said); err != nil || worker < 2 || guard < 2 {
				t.Fatalf("%d of 3: worker %d, guard %d, %s: %v", n, worker, guard, said, err)
			}
			defer unix.Kill(-worker, unix.SIGKILL)
			await.Until(t, "the worker's children run", func() bool { return len(states(-worker)) >= 4 })
			if killed {
				err = daemon.Process.Kill()
			} else {
				_, err = end.Write([]byte{1})
			}
			if err != nil {
				t.Fatal(err)
			}
			_ = daemon.Wait()
			await.Until(t, "the worker's group ends", func() bool { return gone(-worker) })
			await.Until(t, "the guard ends", func() bool { return gone(guard) })
		})
	}
}

// A guard that somebody ends is replaced, and the next one knows all groups; one that is stopped holds nobody up.
func TestGuardIsReplaced(t *testing.T) {
	p, log := newPool(t, alone, "stays")
	one, _ := open(t, p, 1, me())
	first := p.guardPID()
	if first == 0 {
		t.Fatal("there is no guard")
	}
	if err := unix.Kill(first, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the guard's end is noticed", func() bool { return strings.Contains(log.String(), "the guard") })
	two, _ := open(t, p, 2, me())
	await.Until(t, "another guard", func() bool { return p.guardPID() != 0 && p.guardPID() != first })
	p.guard.mu.Lock()
	if len(p.guard.groups) < 2 {
		t.Errorf("the guard knows %d groups", len(p.guard.groups))
	}
	p.guard.mu.Unlock()
	if err := unix.Kill(p.guardPID(), unix.SIGSTOP); err != nil { // Close does not wait for it
		t.Fatal(err)
	}
	if err := errors.Join(p.Release(1, one.ID), p.Release(2, two.ID)); err != nil {
		t.Error(err)
	}
}

// A guard that somebody ends is replaced although no worker comes or goes: the daemon may be killed next.
func TestGuardIsReplacedByItself(t *testing.T) {
	p, _ := newPool(t, func(o *Options) { alone(o); o.Warm = 0 }, "stays")
	one, _ := open(t, p, 1, me())
	for range 3 {
		before := p.guardPID()
		if before == 0 {
			t.Fatal("there is no guard")
		}
		if err := unix.Kill(before, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		await.Until(t, "another guard", func() bool { return p.guardPID() != 0 && p.guardPID() != before })
	}
	if err := p.Release(1, one.ID); err != nil {
		t.Error(err)
	}
}

// A guard that is found not to read when it is told of a worker is replaced there and then, not with the next worker.
func TestGuardThatDoesNotReadIsReplaced(t *testing.T) {
	p, _ := newPool(t, func(o *Options) { alone(o); o.Warm = 0 }, "stays")
	one, _ := open(t, p, 1, me())
	first := p.guardPID()
	if first == 0 {
		t.Fatal("there is no guard")
	}
	deafen := func() {
		t.Helper()
		in, pipe, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		in.Close()
		p.guard.mu.Lock()
		defer p.guard.mu.Unlock()
		if p.guard.pipe == nil {
			t.Fatal("there is no guard")
		}
		kept := p.guard.pipe
		t.Cleanup(func() { kept.Close() }) // when its guard was ended: at its pipe's end that kills all groups
		p.guard.pipe = pipe
	}
	deafen()
	two, _ := open(t, p, 2, me())
	second := p.guardPID()
	if second == 0 || second == first {
		t.Errorf("told of a worker, guard %d did not read: now it is %d", first, second)
	}
	deafen()
	if err := p.Release(2, two.ID); err != nil {
		t.Error(err)
	}
	if third := p.guardPID(); third == 0 || third == second {
		t.Errorf("told of a worker's end, guard %d did not read: now it is %d", second, third)
	}
	if err := p.Release(1, one.ID); err != nil {
		t.Error(err)
	}
}

// The guard kills the groups that it was told of and not told to forget, unless it is told goodbye.
func TestGuardKillsWhatIsLeft(t *testing.T) {
	sleeper := func() *exec.Cmd {
		c := exec.Command("sleep", "600")
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Process.Kill(); c.Wait() })
		return c
	}
	left, removed, spared := sleeper(), sleeper(), sleeper()
	pid := func(c *exec.Cmd) int { return c.Process.Pid }
	if err := killWhatIsLeft(strings.NewReader(fmt.Sprintf("+%d\n+0\n+1\n+-1\nnonsense\nbye\n", pid(spared)))); err != nil {
		t.Error(err)
	}
	text := fmt.Sprintf("+%d\n+%d\n+0\n+1\n+-1\nnonsense\n-%d\n", pid(left), pid(removed), pid(removed))
	if err := killWhatIsLeft(strings.NewReader(text)); err != nil {
		t.Error(err)
	}
	await.Until(t, "the group that is left ends", func() bool { return gone(pid(left)) })
	if gone(pid(removed)) || gone(pid(spared)) {
		t.Error("the guard killed a group that it was not to kill")
	}
}

// What is left of a group is killed though its first process has been reaped. A stranger who has that one's number by
// now is not, on a kernel of before Linux 6.9 either.
func TestGuardMeansTheGroupThatItWasToldOf(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-numbers")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID} // where nobody else takes numbers
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, unix.EPERM) {
		t.Skip("no PID namespace is granted here: ", err)
	}
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// numbers is what TestGuardMeansTheGroupThatItWasToldOf runs as the first process of a PID namespace.
func numbers() error {
	begin := func(out io.Writer, name string, arg ...string) (*exec.Cmd, error) {
		c := exec.Command(name, arg...)
		c.Stdout = out
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		return c, c.Start()
	}
	said, say, err := os.Pipe()
	if err != nil {
		return err
	}
	left, err := begin(say, "sh", "-c", "sleep 600 & echo; exec sleep 600")
	if err == nil {
		_, err = said.Read(make([]byte, 1)) // now there is somebody to be left behind
	}
	if err != nil {
		return err
	}
	empty, err := begin(nil, "sleep", "600")
	if err != nil {
		return err
	}
	older, number := leaderOf(empty.Process.Pid), empty.Process.Pid
	in, pipe := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- killWhatIsLeft(in) }()
	for _, pid := range []int{left.Process.Pid, number, 0} { // who writes the third has had the second read, and done
		if _, err := fmt.Fprintf(pipe, "%s%d\n", guardAdd, pid); err != nil {
			return err
		}
	}
	for _, c := range []*exec.Cmd{left, empty} {
		if err := c.Process.Kill(); err != nil {
			return err
		}
		_ = c.Wait() // killed
	}
	var stranger *exec.Cmd
	for stranger == nil { // the threads of this program take numbers too
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(number-1)), 0); err != nil {
			return err
		}
		if stranger, err = begin(nil, "sleep", "600"); err != nil {
			return err
		}
		if stranger.Process.Pid != number {
			_ = stranger.Process.Kill() // it runs
			_ = stranger.Wait()
			stranger = nil
		}
	}
	if !older.replaced(number) {
		return errors.New("an older kernel's guard would kill the stranger")
	}
	pipe.Close()
	if err := <-ended; err != nil {
		return err
	}
	var child unix.WaitStatus // what the group's first process left behind has become ours
	if pid, err := unix.Wait4(-left.Process.Pid, &child, 0, nil); err != nil || child.Signal() != unix.SIGKILL {
		return fmt.Errorf("the rest of the group: process %d: %v, %v", pid, child, err)
	}
	if err := unix.Kill(number, unix.SIGTERM); err != nil {
		return err
	}
	_ = stranger.Wait()
	if status := stranger.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != unix.SIGTERM {
		return fmt.Errorf("the stranger: %v", stranger.ProcessState)
	}
	return nil
}

// A guard that cannot be started is started as soon as it can, though no worker comes or goes meanwhile.
func TestGuardThatDoesNotStartIsStartedLater(t *testing.T) {
	p, log := newPool(t, func(o *Options) { alone(o); o.Warm = 0 }, "stays")
	one, _ := open(t, p, 1, me())
	first := p.guardPID()
	if first == 0 {
		t.Fatal("there is no guard")
	}
	p.guard.mu.Lock()
	exe := p.guard.exe
	p.guard.exe = "/nonexistent"
	p.guard.mu.Unlock()
	if err := unix.Kill(first, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the failure is said", func() bool { return strings.Contains(log.String(), "no guard can be started") })
	if pid := p.guardPID(); pid != 0 {
		t.Fatalf("guard %d was started", pid)
	}
	p.guard.mu.Lock()
	p.guard.exe = exe
	p.guard.mu.Unlock()
	await.Until(t, "a guard", func() bool { return p.guardPID() != 0 })
	if err := p.Release(1, one.ID); err != nil {
		t.Error(err)
	}
}
