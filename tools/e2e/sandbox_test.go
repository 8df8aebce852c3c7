package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"tendril/tools/e2e/rig"
)

// attack is a node whose vendor library is hostile (testdata/hostile.c), and what that goes for.
type attack struct {
	*rig.Node
	dir, state string
	victim     *exec.Cmd
}

// poclLibrary is what the machine's own PoCL is opened as.
func poclLibrary() (string, error) {
	raw, err := os.ReadFile("/etc/OpenCL/vendors/pocl.icd")
	return strings.TrimSpace(string(raw)), err
}

func hostileNode(t *testing.T, extra ...string) *attack {
	t.Helper()
	need(t, "cc", noCC)
	pocl, err := poclLibrary()
	need(t, "driver", err)
	a := &attack{}
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
	if _, err := rig.Output(exec.Command("cc", "-shared", "-fPIC", "-O1", "-Wall", "-DPOCL=\""+pocl+"\"", "-o", filepath.Join(driver, "libhostile.so"), "testdata/hostile.c", "-ldl", "-lpthread")); err != nil {
		t.Fatal(err)
	}
	a.Node = node(t, append([]string{"TENDRIL_STATE_DIR=" + a.state, "TENDRIL_VENDORS=" + vendors, "TENDRIL_LISTEN=127.0.0.1:0"}, extra...)...)
	a.victim = exec.Command("sleep", "600")
	if os.Getuid() == 0 { // as root's workers run
		a.victim.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	if err := a.victim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.victim.Process.Kill(); a.victim.Wait() })
	return a
}

// aim writes the targets, at which every worker that has the driver loaded strikes.
func (a *attack) aim(t *testing.T) {
	t.Helper()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	abstract := fmt.Sprintf("tendril-hostile-%d", os.Getpid())
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
	targets := fmt.Sprintf("daemon %d\nvictim %d\nstate %s\nkey %s\nother %s\ncache %s\nsocket %s\nneighbour %s\nabstract %s\nport %d\n",
		a.PID(), a.victim.Process.Pid, a.state, keys[0], filepath.Join(a.dir, "other"), filepath.Join(a.state, "cache"), a.Socket(), neighbour, abstract, tcp.Addr().(*net.TCPAddr).Port)
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
		if done := regexp.MustCompile(`hostile \d+ done`).FindAllString(raw(), -1); len(done) >= min && (pid == 0 || strings.Contains(raw(), fmt.Sprintf("hostile %d done", pid))) {
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
	if attempts < 90 {
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
	if _, without, _ := strings.Cut(out, "done without:"); strings.Contains(without, "landlock") || strings.Contains(without, "seccomp") {
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

func TestHostileDriver(t *testing.T) {
	a := hostileNode(t)
	a.weak(t)
	p := opened(t, a.Node)
	pid := a.serving(t)
	a.aim(t)
	a.judge(t, pid, 1)
	p.want("good", "verify") // the session goes on
	// A probe loads the driver, too.
	before := strings.Count(a.Log(), " done")
	if err := syscall.Kill(a.PID(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	a.judge(t, 0, before+1)
}

// The same from another machine.
func TestHostileDriverOverTCP(t *testing.T) {
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
	config := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", config)
	return logIn(t, n, config, "")
}
