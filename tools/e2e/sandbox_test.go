package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tendril/tools/e2e/rig"
)

// attack is a node whose vendor library is hostile (testdata/hostile.c), and what that goes for.
type attack struct {
	*rig.Node
	dir, state string
	name       string // of what the driver leaves behind
	greedy     bool   // it tries how much it can have, too
	plain      bool   // its daemon is plainUser's
	wanderers  int    // processes that start the next one and end, without end
	victim     *exec.Cmd
}

// poclLibrary is what the machine's own PoCL is opened as.
func poclLibrary() (string, error) {
	raw, err := os.ReadFile("/etc/OpenCL/vendors/pocl.icd")
	return strings.TrimSpace(string(raw)), err
}

func hostileNode(t *testing.T, extra ...string) *attack { return hostileNodeInside(t, nil, extra...) }

// worker0 is the first number that a daemon of root's gives workers.
const worker0 = 0x70000000

// hostileNodeInside is hostileNode with a command that the daemon and its verbs are started by.
func hostileNodeInside(t *testing.T, inside []string, extra ...string) *attack {
	t.Helper()
	need(t, "cc", noCC)
	pocl, err := poclLibrary()
	need(t, "driver", err)
	a := &attack{name: fmt.Sprintf("esc%d", time.Now().UnixNano()%1e12)}
	if a.dir, err = os.MkdirTemp("", "tendril-hostile-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(a.dir) })
	a.state = filepath.Join(a.dir, "state")
	driver, vendors := filepath.Join(a.dir, "driver"), filepath.Join(a.dir, "vendors")
	for _, err := range []error{
		os.Chmod(a.dir, 0o755), os.Mkdir(driver, 0o755), os.Mkdir(vendors, 0o755),
		os.WriteFile(filepath.Join(vendors, "hostile.icd"), []byte(filepath.Join(driver, "libhostile.so")+"\n"), 0o644),
		os.WriteFile(filepath.Join(a.dir, "other"), []byte("another tenant's"), 0o666),
		os.Chmod(filepath.Join(a.dir, "other"), 0o666), // open to everybody: only the sandbox is in the way
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := rig.Output(exec.Command("cc", "-shared", "-fPIC", "-O1", "-Wall", "-DPOCL=\""+pocl+"\"", "-o",
		filepath.Join(driver, "libhostile.so"), "testdata/hostile.c", "-ldl", "-lpthread")); err != nil {
		t.Fatal(err)
	}
	if len(inside) > 0 { // perhaps as another user, who makes it
		if err := os.Chmod(a.dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	a.Node = nodeInside(t, inside, append([]string{"TENDRIL_STATE_DIR=" + a.state, "TENDRIL_VENDORS=" + vendors,
		"TENDRIL_LISTEN=127.0.0.1:0", "TENDRIL_WARM_WORKERS=-1"}, extra...)...)
	a.plain = len(inside) > 0 && inside[2] == asPlainUser[2]
	return a
}

// startVictim starts a process as the user that the worker itself runs as.
func (a *attack) startVictim(t *testing.T) {
	t.Helper()
	a.victim = exec.Command("sleep", "infinity")
	a.victim.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	user := uint32(plainUser)
	if _, err := os.Stat(filepath.Join(a.state, "worker-ids.json")); !a.plain && errors.Is(err, fs.ErrNotExist) {
		user = worker0 // without namespaces another process of the daemon's user can be told what priority to have
	} else if !a.plain && os.Getuid() == 0 {
		var said struct{ Tenants map[string]uint32 }
		raw, err := os.ReadFile(filepath.Join(a.state, "worker-ids.json"))
		if err == nil {
			err = json.Unmarshal(raw, &said)
		}
		if err != nil || len(said.Tenants) == 0 {
			t.Fatalf("no worker has a user: %s, %v", raw, err)
		}
		for _, user = range said.Tenants {
		}
	}
	if os.Getuid() == 0 {
		a.victim.SysProcAttr.Credential = &syscall.Credential{Uid: user, Gid: user}
	}
	if err := a.victim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.victim.Process.Kill(); a.victim.Wait() })
}

// aim writes the targets, at which every worker that has the driver loaded strikes.
func (a *attack) aim(t *testing.T) {
	t.Helper()
	a.startVictim(t)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	abstract := "tendril-hostile-" + a.name
	neighbour := filepath.Join(a.dir, "neighbour.sock")
	listeners := []net.Listener{tcp}
	for _, address := range []string{"@" + abstract, neighbour} {
		l, err := net.Listen("unix", address)
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, l)
	}
	t.Cleanup(func() {
		for _, l := range listeners {
			l.Close()
		}
	})
	if err := os.Chmod(neighbour, 0o666); err != nil {
		t.Fatal(err)
	}
	keys, err := filepath.Glob(filepath.Join(a.state, "authority*"))
	if err != nil || len(keys) == 0 {
		t.Fatal("no authority's key: ", keys, err)
	}
	targets := fmt.Sprintf("name %s\ngreedy %t\nwanderers %d\ndaemon %d\nvictim %d\nstate %s\nkey %s\nother %s\ncache %s\nsocket %s\nneighbour %s\nabstract %s\nport %d\n",
		a.name, a.greedy, a.wanderers, a.PID(), a.victim.Process.Pid, a.state, keys[0], filepath.Join(a.dir, "other"),
		filepath.Join(a.state, "cache"), a.Socket(), neighbour, abstract, tcp.Addr().(*net.TCPAddr).Port)
	fresh := filepath.Join(a.dir, "driver", ".targets")
	if err := os.WriteFile(fresh, []byte(targets), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(fresh, filepath.Join(a.dir, "driver", "targets")); err != nil {
		t.Fatal(err)
	}
}

var hostileLine = regexp.MustCompile(`hostile (\d+) (held|broke|done)( \d+)?:? ?([^"]*)`)

// judge waits until the process pid has struck (0: any), and fails with what did not hold.
func (a *attack) judge(t *testing.T, pid int, min int) {
	t.Helper()
	raw := func() string {
		b, err := os.ReadFile(filepath.Join(a.Dir, "daemon.log"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	eventually(t, func() error {
		if done := regexp.MustCompile(`hostile \d+ done`).FindAllString(raw(), -1); len(done) >= min &&
			(pid == 0 || strings.Contains(raw(), fmt.Sprintf("hostile %d done", pid))) {
			return nil
		}
		return fmt.Errorf("the driver of process %d did not strike:\n%s", pid, a.Log())
	})
	attempts := 0
	for _, m := range hostileLine.FindAllStringSubmatch(raw(), -1) {
		switch n, _ := strconv.Atoi(strings.TrimSpace(m[3])); m[2] {
		case "held":
			attempts += n
			t.Logf("process %s:%s attempts failed: %s", m[1], m[3], m[4])
		case "broke":
			t.Errorf("process %s got through:%s: %s", m[1], m[3], m[4])
		}
	}
	// the victim had this test's: getpriority(2), 20 less the value
	own, _ := syscall.Getpriority(syscall.PRIO_PROCESS, 0)
	if nice, err := syscall.Getpriority(syscall.PRIO_PROCESS, a.victim.Process.Pid); err != nil || nice != own {
		t.Errorf("the victim's priority is %d now, %v", 20-nice, err)
	}
	if attempts < 105 {
		t.Errorf("%d attempts: the driver did not strike as it should", attempts)
	}
	if b, err := os.ReadFile(filepath.Join(a.dir, "other")); err != nil || string(b) != "another tenant's" {
		t.Errorf("another tenant's file: %q, %v", b, err)
	}
}

// weak skips where the node itself says that a part of the sandbox is not to be had.
func (a *attack) weak(t *testing.T) {
	t.Helper()
	out, err := a.Run(t.Context(), "status")
	if err != nil {
		t.Fatal(err)
	}
	if _, without, _ := strings.Cut(out, "fallbacks:"); strings.Contains(without, "landlock") ||
		strings.Contains(without, "seccomp") {
		t.Skipf("skipped: this kernel has not the whole sandbox:%s", without)
	}
}

// serving gives the process that serves a session.
func (a *attack) serving(t *testing.T) int {
	t.Helper()
	s, err := a.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range s.Workers {
		if w.State == "serving" {
			return w.PID
		}
	}
	t.Fatalf("no worker serves: %+v", s.Workers)
	return 0
}

// left lists the processes that the driver has left behind.
func (a *attack) left(t *testing.T) (pids []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal("which processes there are: ", err)
	}
	for _, e := range entries {
		if strings.Trim(e.Name(), "0123456789") != "" {
			continue
		}
		raw, err := os.ReadFile(filepath.Join("/proc", e.Name(), "comm"))
		switch {
		case err == nil && strings.TrimSpace(string(raw)) == a.name:
			pids = append(pids, e.Name())
		case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH): // it has ended
			t.Fatal("a process's name: ", err)
		}
	}
	return pids
}

// goes waits until nothing is left.
func (a *attack) goes(t *testing.T, what string) {
	t.Helper()
	eventually(t, func() error {
		if left := a.left(t); len(left) > 0 {
			return fmt.Errorf("processes outlive %s: %v", what, left)
		}
		return nil
	})
}

// strike has the driver in a session's worker attack, and judges.
func (a *attack) strike(t *testing.T) *program {
	t.Helper()
	a.weak(t)
	p := opened(t, a.Node)
	pid := a.serving(t)
	a.aim(t)
	a.judge(t, pid, 1)
	p.want("good", "verify") // the session goes on
	if len(a.left(t)) == 0 {
		t.Error("the driver left no process behind: it did not strike as it should:\n", a.Log())
	}
	return p
}

// cachesAreClosed looks who can get at compiled kernels.
func (a *attack) cachesAreClosed(t *testing.T) {
	t.Helper()
	caches, err := filepath.Glob(filepath.Join(a.state, "cache", "t*"))
	if err != nil || len(caches) == 0 {
		t.Fatal("no kernel caches: ", caches, err)
	}
	for _, dir := range caches {
		var st syscall.Stat_t
		if err := syscall.Lstat(dir, &st); err != nil || st.Mode&0o7777 != 0o700 || os.Getuid() == 0 &&
			st.Uid < worker0 {
			t.Errorf("%s is user %d's, mode %o, %v", dir, st.Uid, st.Mode, err)
		}
	}
}

// ends has the program end, and looks for what its session leaves once the daemon says that it is over.
func (a *attack) ends(t *testing.T, p *program, others ...*program) {
	t.Helper()
	p.cmd.Process.Kill()
	p.cmd.Wait()
	eventually(t, func() error {
		s, err := a.Status(t.Context())
		if err == nil && (len(s.Sessions) > len(others) || len(s.Workers) > len(others)) {
			err = fmt.Errorf("%d sessions and %d workers are left", len(s.Sessions), len(s.Workers))
		}
		return err
	})
	if left := a.left(t); len(left) > len(others) { // whose driver is as hostile
		t.Errorf("processes outlive the session, %d may be others': %v", len(others), left)
	}
}

// userNamespace says why the kernel grants no user namespace to who is started by inside; nil: it grants one. Without
// one nothing but the daemon's looks bounds a worker's processes, and an ordinary user's workers have no namespaces at
// all: what the driver gets through with there is not promised (docs/SECURITY.md).
func userNamespace(inside ...string) error {
	argv := slices.Concat(inside, []string{"unshare", "--user", "--map-current-user", "--pid", "--net", "--ipc", "--fork",
		"true"})
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s (%w)", strings.TrimSpace(string(out)), err)
	}
	return nil
}

func TestHostileDriver(t *testing.T) {
	need(t, "user namespace", userNamespace())
	a := hostileNode(t)
	a.greedy = true
	p := a.strike(t)
	a.cachesAreClosed(t)
	a.ends(t, p)
	// A probe loads the driver, too.
	before := strings.Count(a.Log(), " done")
	if err := syscall.Kill(a.PID(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	a.judge(t, 0, before+1)
	a.goes(t, "the probe")
}

// What a worker has started ends with the daemon, also with one that is killed.
func TestNothingOutlivesTheDaemon(t *testing.T) {
	t.Parallel()
	for how, end := range map[string]func(*attack){
		"killed":  func(a *attack) { a.Kill() },
		"stopped": func(a *attack) { _ = syscall.Kill(a.PID(), syscall.SIGTERM); <-a.Exited() },
	} {
		t.Run(how, func(t *testing.T) {
			a := hostileNode(t)
			a.strike(t)
			end(a)
			a.goes(t, "the daemon")
		})
	}
}

// What a worker has started ends with its session where another daemon takes over, or the old one is killed meanwhile,
// also what starts the next process and ends, without end.
func TestNothingOutlivesATakeover(t *testing.T) {
	t.Parallel()
	for how, death := range map[string]rig.Death{"whole": rig.Nobody, "killed": rig.Predecessor} {
		t.Run(how, func(t *testing.T) {
			a := hostileNode(t)
			a.wanderers = 4
			a.strike(t)
			first := a.left(t)
			eventually(t, func() error {
				if now := a.left(t); slices.Equal(now, first) {
					return fmt.Errorf("nobody wanders: %v", now)
				}
				return nil
			})
			if err := a.TakeOver(t.Context(), death, 20*time.Millisecond); err != nil {
				t.Fatal(err)
			}
			a.goes(t, "the takeover")
		})
	}
}

// plainUser is a user of whom nothing is known.
const plainUser = 4711

// asPlainUser starts a daemon as that user, who gets the node's directory.
var asPlainUser = []string{"sh", "-c",
	fmt.Sprintf(`export HOME=/nowhere XDG_CONFIG_HOME=/nowhere; chown %[1]d:%[1]d "${TENDRIL_SOCKET%%/*}" && exec setpriv --reuid %[1]d --regid %[1]d --clear-groups "$@"`, plainUser), "sh"}

// withoutNamespaces starts a daemon as that user in another root, where the kernel grants nobody a user namespace. The
// mounts are its own and end with it, and nothing is left.
var withoutNamespaces = []string{"sh", "-c",
	`exec unshare --mount -- sh -c 'mount --rbind / /mnt && exec chroot /mnt "$@"' sh "$@"`, "sh"}

// The same where workers begin no namespaces: the guard ends what they forked.
func TestNothingOutlivesTheDaemonWithoutNamespaces(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("skipped: only root can keep user namespaces from a daemon")
	}
	a := hostileNodeInside(t, slices.Concat(withoutNamespaces, asPlainUser))
	a.strike(t)
	if out, err := a.Run(t.Context(), "status"); err != nil || !strings.Contains(out, "process group and guard") {
		t.Fatalf("workers have namespaces, so this test shows nothing: %v\n%s", err, out)
	}
	if len(a.left(t)) == 0 {
		t.Fatal("the driver left nothing behind, so this test shows nothing")
	}
	a.Kill()
	a.goes(t, "the daemon")
}

func TestHostileDriverOfAnOrdinaryUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("skipped: TestHostileDriver is the same, where it is not root's")
	}
	need(t, "user namespace", userNamespace("setpriv", "--reuid", fmt.Sprint(plainUser), "--regid", fmt.Sprint(plainUser),
		"--clear-groups"))
	a := hostileNodeInside(t, asPlainUser)
	a.greedy = true
	a.ends(t, a.strike(t))
}

// The daemon in a cgroup that bounds processes: one tenant's bomb leaves enough of them to the daemon and to others.
func TestHostileDriverInACgroup(t *testing.T) {
	group := pidsGroup(t, 600)
	a := hostileNodeInside(t, daemonIn(filepath.Join(group, "cgroup.procs")))
	a.greedy = true
	neighbour := opened(t, a.Node)
	a.ends(t, a.strike(t), neighbour)
	neighbour.want("good", "verify")
}

// pidsGroup makes a cgroup, of version 2 or 1, that bounds processes.
func pidsGroup(t *testing.T, most int) string {
	t.Helper()
	var why []error
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/pids"} {
		dir := filepath.Join(mount, fmt.Sprintf("tendril-e2e-%d", os.Getpid()))
		err := os.Mkdir(dir, 0o755)
		if err == nil {
			t.Cleanup(func() { // after the daemon's end, and what it divided
				for _, inner := range []string{"workers", "daemon", ""} {
					_ = os.Remove(filepath.Join(dir, inner))
				}
			})
			var f *os.File
			if f, err = os.OpenFile(filepath.Join(dir, "pids.max"), os.O_WRONLY, 0); err == nil {
				_, err = fmt.Fprint(f, most)
				f.Close()
			}
			if err == nil {
				return dir
			}
		}
		why = append(why, err)
	}
	t.Skipf("skipped: no cgroup that bounds processes can be made here: %v", errors.Join(why...))
	return ""
}

// The same from another machine.
func TestHostileDriverOverTCP(t *testing.T) {
	t.Parallel()
	a := hostileNode(t)
	a.weak(t)
	server := loginTo(t, a.Node)
	p := startWith(t, a.Node, "--server", server)
	if got := p.ask("open"); !strings.HasPrefix(got, "ready") {
		t.Fatalf("open: %q\n%s", got, p.err)
	}
	pid := a.serving(t)
	a.aim(t)
	a.judge(t, pid, 1)
	p.want("good", "verify")
}

// loginTo makes the node's caller a client of its TCP door, with credentials in a directory of the test's.
func loginTo(t *testing.T, n *rig.Node) (server string) {
	t.Helper()
	n.Config = t.TempDir()
	return logIn(t, n, n.Config, "")
}
