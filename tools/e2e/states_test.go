package e2e

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tendril/tools/e2e/rig"
)

// steered is a running testdata/states.c.
type steered struct {
	t       *testing.T
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan string
	err     rig.Buffer
}

var statesProgram = sync.OnceValues(func() (string, error) {
	out := filepath.Join(filepath.Dir(session), "states")
	_, err := rig.Output(exec.Command("cc", "-std=gnu11", "-O1", "-Wall", "-o", out, "testdata/states.c", "-lOpenCL",
		"-lpthread"))
	return out, err
})

// steer starts the program by tendril run with flags, and has it open a session with a buffer of so many MiB.
func steer(t *testing.T, n *rig.Node, env []string, mib int, flags ...string) *steered {
	t.Helper()
	need(t, "driver", hasDriver())
	program, noCC := statesProgram()
	need(t, "cc", noCC)
	p := &steered{t: t, cmd: n.Command(t.Context(), append(append([]string{"run"}, flags...), "--", program)...),
		answers: make(chan string, 100)}
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stderr = &p.err
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(p.answers)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.answers <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-read
		p.cmd.Wait()
	})
	p.tell("open %d", mib)
	p.want("open 0")
	return p
}

func (p *steered) tell(format string, args ...any) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		p.t.Fatalf("the program is gone: %v\n%s", err, p.err.String())
	}
}

// answer waits for the next line.
func (p *steered) answer() string {
	p.t.Helper()
	select {
	case line, ok := <-p.answers:
		if !ok {
			p.t.Fatalf("the program died\n%s", p.err.String())
		}
		return line
	case <-time.After(limit):
		p.t.Fatalf("no answer within %v: %s\n%s", limit, p.err.String(), rig.Hung(p.cmd))
	}
	return ""
}

func (p *steered) want(line string) {
	p.t.Helper()
	if got := p.answer(); got != line {
		p.t.Fatalf("got %q, want %q\n%s", got, line, p.err.String())
	}
}

// step is such a call, and the bytes after which it is struck.
type step struct {
	name, command string
	way           rig.Way
	after         int64
	later         time.Duration
}

// steps are the calls in the middle of which a network fails, and where that is: after how many bytes on data
// connections, one way, and how much later where they only begin something.
var steps = []step{
	{"write", "write 1", rig.ToServer, 3 << 20, 0},
	{"read", "read 1", rig.ToClient, 3 << 20, 0},
	{"map", "map 1", rig.ToClient, 5 << 20, 0},
	{"unmap", "map 1", rig.ToServer, 5 << 20, 0},
	{"build", "build 11 %d", rig.ToServer, 0, 50 * time.Millisecond},
	{"kernel", "kernel 200000000 3", rig.ToServer, 150, 30 * time.Millisecond},
	{"callback", "callback 200000000 4", rig.ToServer, 150, 30 * time.Millisecond},
}

// outages are what happens to a network for a while; TENDRIL_LONG=1 takes ten seconds for a cable, and tries each way.
func outages(p *rig.Proxy) map[string]func() {
	pulled, long := 1300*time.Millisecond, os.Getenv("TENDRIL_LONG") != ""
	if long {
		pulled = 10 * time.Second
	}
	all := map[string]func(){
		"pulled": func() {
			p.Pull()
			time.AfterFunc(pulled, p.Plug)
		},
		"cut":                     p.CutAll,
		"swallowed":               func() { p.Swallow(rig.ToServer, rig.ToClient) },
		"swallowed to the server": func() { p.Swallow(rig.ToServer) },
		"swallowed to the client": func() { p.Swallow(rig.ToClient) },
	}
	if !long {
		delete(all, "swallowed to the server")
		delete(all, "swallowed to the client")
	}
	return all
}

// throughProxy is a node that is reached through a proxy, and the environment of programs that are logged in there.
func throughProxy(t *testing.T, extra ...string) (n *rig.Node, p *rig.Proxy, env []string) {
	t.Helper()
	n = node(t, append([]string{"TENDRIL_LISTEN=127.0.0.1:0"}, extra...)...)
	at, err := n.Listening(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if p, err = rig.NewProxy(at); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	config := t.TempDir()
	logIn(t, n, config, p.Address())
	return n, p, []string{"XDG_CONFIG_HOME=" + config, "TENDRIL_COMPRESS=off"} // the proxy strikes after so many bytes
}

// A network that fails in the middle of a call delays it, whatever the failure is: cable pulled, connections cut, or
// everything swallowed by something that acknowledges it. The results are exact, a callback comes once.
func TestOutagesInEveryState(t *testing.T) {
	t.Parallel()
	n, proxy, env := throughProxy(t)
	built := os.Getpid()
	for name, strike := range outages(proxy) {
		t.Run(name, func(t *testing.T) {
			p := steer(t, n, append(env, "TENDRIL_DEADLINE=1"), 8, "--server", proxy.Address())
			for _, s := range steps {
				began, tries := time.Now(), 1
				for built++; !p.struckIn(s, proxy, strike, built); built++ { // each source is in no cache
					if tries++; tries > 20 {
						t.Fatalf("%s was always over before it was struck", s.name)
					}
				}
				t.Logf("%s: %v, %d tries", s.name, time.Since(began).Round(time.Millisecond), tries)
			}
			p.tell("quit")
			ends(t, p.cmd)
		})
	}
	eventually(t, idle(t.Context(), n))
}

// struckIn has a program do a step, which must come to its end, and reports whether the network failed meanwhile. A
// machine under load may be done with a kernel or a build before a proxy's timer comes to it.
func (p *steered) struckIn(s step, proxy *rig.Proxy, strike func(), seed int) bool {
	p.t.Helper()
	var struck atomic.Bool
	hit := func() {
		struck.Store(true)
		strike()
	}
	if s.later > 0 {
		proxy.AfterArm(s.way, s.after, s.later, hit)
	} else {
		proxy.Arm(s.way, s.after, hit)
	}
	command := s.command
	if strings.Contains(command, "%d") {
		command = fmt.Sprintf(command, seed)
	}
	p.tell("%s", command)
	word, _, _ := strings.Cut(command, " ")
	p.want(word + " 0")
	return struck.Load()
}

// Where a session is not to wait, what is swallowed ends in errors.
func TestSwallowedSessionEndsInErrors(t *testing.T) {
	t.Parallel()
	n, proxy, env := throughProxy(t)
	p := steer(t, n, append(env, "TENDRIL_DEADLINE=10"), 8, "--server", proxy.Address(), "--on-loss", "0")
	p.tell("write 1")
	p.want("write 0")
	proxy.Arm(rig.ToClient, 3<<20, func() { proxy.Swallow(rig.ToServer, rig.ToClient) })
	p.tell("read 1")
	p.fails("read")
	p.tell("write 1")
	p.fails("write")
	p.tell("build 1 1")
	p.fails("build")
	p.tell("quit")
	ends(t, p.cmd)
	if said := p.err.String(); !strings.Contains(said, "nothing comes from the other machine") {
		t.Errorf("standard error does not say why: %s", said)
	}
	proxy.CutAll() // the daemon hears of the end
	eventually(t, idle(t.Context(), n))
}

// fails wants an OpenCL error.
func (p *steered) fails(word string) {
	p.t.Helper()
	got := p.answer()
	fields := append(strings.Fields(got), "", "")
	if status, err := strconv.Atoi(fields[1]); fields[0] != word || err != nil || status >= 0 {
		p.t.Errorf("got %q, want an OpenCL error of %s\n%s", got, word, p.err.String())
	}
}

// stuckStates are what a program can be in the middle of, for ever.
var stuckStates = []string{"write", "read", "map", "build", "kernel", "finish", "callback"}

// stuckPrograms are programs in all of these. All are open before the first one is stuck: some take a processor each.
func stuckPrograms(t *testing.T, n *rig.Node, env []string, flags []string) map[string]*steered {
	t.Helper()
	programs := map[string]*steered{}
	for _, state := range stuckStates {
		programs[state] = steer(t, n, env, 1, flags...)
	}
	for _, state := range stuckStates {
		programs[state].tell("stuck %s", state)
		programs[state].want("in " + state)
	}
	return programs
}

// servingPIDs are the workers that serve now.
func servingPIDs(t *testing.T, n *rig.Node, atLeast int) (pids []int) {
	t.Helper()
	eventually(t, func() error {
		pids = pids[:0]
		for pid := range workers(t, n) {
			pids = append(pids, pid)
		}
		if len(pids) < atLeast {
			return fmt.Errorf("%d workers serve, not %d", len(pids), atLeast)
		}
		return nil
	})
	return pids
}

func gone(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		eventually(t, func() error {
			if err := syscall.Kill(pid, 0); err == nil {
				return fmt.Errorf("worker %d is still there", pid)
			}
			return nil
		})
	}
}

// Client, worker and daemon are killed in each state of a program: the others hear of it, nothing hangs, and nothing is
// left.
func TestKilledInEveryState(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, n *rig.Node, env, flags []string) {
		bystander := steer(t, n, env, 1, flags...)
		settled := func() error {
			s, err := n.Status(t.Context())
			if err == nil && (len(s.Sessions) != 1 || len(workers(t, n)) != 1) {
				err = fmt.Errorf("besides the bystander's: sessions %+v, workers %v", s.Sessions, workers(t, n))
			}
			return err
		}
		before := descriptorsOf(t, n)
		signal := syscall.SIGKILL
		client := func(t *testing.T) {
			programs := stuckPrograms(t, n, env, flags)
			pids := servingPIDs(t, n, len(programs)+1)
			for _, p := range programs {
				syscall.Kill(-p.cmd.Process.Pid, signal)
			}
			eventually(t, settled)
			still := workers(t, n)
			for _, pid := range pids {
				if !still[pid] {
					gone(t, []int{pid})
				}
			}
		}
		t.Run("client", client)
		signal = syscall.SIGINT
		t.Run("client, by Ctrl-C", client)
		t.Run("worker", func(t *testing.T) {
			programs := stuckPrograms(t, n, env, flags)
			own := servingPIDs(t, n, len(programs)+1)
			for pid := range bystanders(t, n, programs) {
				for _, other := range own {
					if other != pid {
						syscall.Kill(other, syscall.SIGKILL)
					}
				}
			}
			for state, p := range programs {
				p.fails("stuck")
				p.tell("open 1") // in a new context, with a new worker
				p.want("open 0")
				p.tell("write 5")
				p.want("write 0")
				p.tell("quit")
				ends(t, p.cmd)
				if said := p.err.String(); !strings.Contains(said, "the worker of") {
					t.Errorf("%s: the program was not told: %s", state, said)
				}
			}
			eventually(t, settled)
		})
		bystander.tell("write 9")
		bystander.want("write 0")
		bystander.tell("read 9")
		bystander.want("read 0")
		eventually(t, func() error {
			if now := descriptorsOf(t, n); now > before+spare.descriptors { // of a worker that had not begun
				return fmt.Errorf("the daemon has %d descriptors, %d before", now, before)
			}
			return nil
		})
		t.Run("daemon", func(t *testing.T) {
			if flags != nil {
				flags = append(flags, "--on-loss", "1")
			}
			programs := stuckPrograms(t, n, env, flags)
			pids := servingPIDs(t, n, len(programs)+1)
			n.Kill()
			for _, p := range programs {
				p.fails("stuck")
				p.tell("write 1")
				p.fails("write")
			}
			gone(t, pids)
		})
	})
}

// bothWays runs a test over the unix socket and as from another machine, with a node of its own each: env and flags are
// for tendril run.
func bothWays(t *testing.T, f func(t *testing.T, n *rig.Node, env, flags []string)) {
	for _, transport := range []string{"unix", "tls"} {
		t.Run(transport, func(t *testing.T) {
			n, at, config := far(t)
			var flags []string
			if transport == "tls" {
				flags = []string{"--server", at}
			}
			f(t, n, []string{"XDG_CONFIG_HOME=" + config}, flags)
		})
	}
}

// bystanders are the workers of sessions that none of these programs has.
func bystanders(t *testing.T, n *rig.Node, programs map[string]*steered) map[int]bool {
	t.Helper()
	s, err := n.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	least := uint64(1<<64 - 1) // the first session that was opened
	for _, w := range s.Workers {
		if w.State == "serving" && w.Session < least {
			least = w.Session
		}
	}
	pids := map[int]bool{}
	for _, w := range s.Workers {
		if w.State == "serving" && w.Session == least {
			pids[w.PID] = true
		}
	}
	if len(pids) != 1 {
		t.Fatalf("%d workers of the first session, besides %d programs", len(pids), len(programs))
	}
	return pids
}

func descriptorsOf(t *testing.T, n *rig.Node) int {
	t.Helper()
	h, err := of(n.PID())
	if err != nil {
		t.Fatal(err)
	}
	return h.descriptors
}
