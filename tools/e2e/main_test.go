package e2e

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tendril/tools/e2e/await"
	"tendril/tools/e2e/rig"
)

const limit = rig.Limit // for one answer, and for what should end

var (
	bin     string // directory of the binaries under test
	session string // the compiled testdata/session.c, "" if it could not be
	noCC    error
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if what := os.Getenv(takeWhat); what != "" {
		fmt.Fprintln(os.Stderr, "e2e:", take(what, os.Getenv(takeOf)))
		return 1
	}
	bin = os.Getenv("TENDRIL_BIN_DIR")
	if bin == "" {
		bin = filepath.Join("..", "..", "bin")
	}
	if _, err := os.Stat(filepath.Join(bin, "tendril")); err != nil {
		if os.Getenv("TENDRIL_BIN_DIR") != "" {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			return 1
		}
		fmt.Fprintln(os.Stderr, "e2e: skipped: no binaries; make test builds them and sets TENDRIL_BIN_DIR")
		return 0
	}
	dir, err := os.MkdirTemp("", "tendril-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o711); err != nil { // other users run what is in it
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	session = filepath.Join(dir, "session")
	_, noCC = rig.Output(exec.Command("cc", "-std=gnu11", "-O1", "-Wall", "-o", session,
		"testdata/session.c", "-lOpenCL"))
	if end, err := time.ParseDuration(flag.Lookup("test.timeout").Value.String()); err == nil && end > time.Minute {
		// What hangs in a way that no test thought of says where before the package is ended.
		defer time.AfterFunc(end-30*time.Second, func() { fmt.Fprintln(os.Stderr, rig.Where(os.Getpid())) }).Stop()
	}
	return m.Run()
}

// required says what may not be missing: everything that make deps installs, where make runs the
// tests (TENDRIL_BIN_DIR is set), and what TENDRIL_REQUIRE names besides.
func required(what string) bool {
	always := []string{"cc", "driver", "clinfo", "clpeak", "pyopencl"}
	return os.Getenv("TENDRIL_BIN_DIR") != "" && slices.Contains(always, what) ||
		slices.Contains(strings.Split(os.Getenv("TENDRIL_REQUIRE"), ","), what)
}

// need skips with the reason when what is missing, or fails when it must be there.
func need(t *testing.T, what string, missing error) {
	t.Helper()
	if missing == nil {
		return
	}
	if required(what) {
		t.Fatalf("%s is required and missing: %v", what, missing)
	}
	t.Skipf("skipped: %s is missing: %v", what, missing)
}

func installed(name string) error {
	_, err := exec.LookPath(name)
	return err
}

// goBuild builds a package of this module, without cc's remarks about go-opencl's headers.
func goBuild(t *testing.T, out, pkg string) {
	t.Helper()
	cmd := exec.Command("go", "build", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_CFLAGS=-O2 -g -DCL_TARGET_OPENCL_VERSION=300")
	if _, err := rig.OutputWithin(cmd, 3*limit); err != nil { // it may have all to compile
		t.Fatal(err)
	}
}

func hasDriver() error {
	found, err := filepath.Glob("/etc/OpenCL/vendors/*.icd")
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("no *.icd in /etc/OpenCL/vendors: %w", os.ErrNotExist)
	}
	return err
}

func node(t *testing.T, extra ...string) *rig.Node {
	t.Helper()
	return nodeInside(t, nil, extra...)
}

// littleWarm: a daemon fills 256 MiB ahead of its first client, which for those that live for a second is most of what
// they do.
const littleWarm = "TENDRIL_WARM_MEMORY=16MiB"

// nodeInside is node with a command that the daemon and its verbs are started by.
func nodeInside(t *testing.T, inside []string, extra ...string) *rig.Node {
	t.Helper()
	return nodeWith(t, rig.Options{Inside: inside, Env: extra, Kernels: compiledOnce()})
}

// nodeWith is a node with little warm memory, which is stopped when the test ends.
func nodeWith(t *testing.T, o rig.Options) *rig.Node {
	t.Helper()
	o.Env = append([]string{littleWarm}, o.Env...)
	n, err := rig.StartWith(t.Context(), bin, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", n.Log())
		}
		if err := n.Stop(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// compiledOnce has a node compile the kernel that every session of testdata/session.c begins with, for the nodes of all
// tests: by each node anew it would be most of what many tests take. "": it could not, and each node does.
var compiledOnce = sync.OnceValue(func() string {
	dir := filepath.Join(filepath.Dir(session), "kernels")
	if err := compileTo(dir); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: each node compiles for itself:", err)
		return ""
	}
	return dir
})

func compileTo(dir string) error {
	if err := errors.Join(noCC, hasDriver()); err != nil {
		return err
	}
	ctx := context.Background()
	n, err := rig.Start(ctx, bin, littleWarm)
	if err != nil {
		return err
	}
	cmd := n.Command(ctx, "run", "--", session)
	cmd.Stdin = strings.NewReader("open\nadd 1\nverify\nquit\n")
	_, err = rig.Output(cmd)
	if err == nil {
		err = n.AwaitIdle(ctx)
	}
	if err == nil {
		err = n.SaveKernels(dir)
	}
	return errors.Join(err, n.Stop())
}

// far is a node that other machines may come to, its address, and the configuration directory of a user who is logged
// in there.
func far(t *testing.T) (n *rig.Node, address, config string) {
	t.Helper()
	n, config = node(t, "TENDRIL_LISTEN=127.0.0.1:0"), t.TempDir()
	return n, logIn(t, n, config, ""), config
}

// logIn logs a user in, by way of somebody else's address or, "", by the node's own.
func logIn(t *testing.T, n *rig.Node, config, by string) (address string) {
	t.Helper()
	if address = by; address == "" {
		var err error
		if address, err = n.Listening(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Login(t.Context(), config, address); err != nil {
		t.Fatal(err)
	}
	return address
}

// program is a running testdata/session.c.
type program struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
	err *strings.Builder
}

// start starts the program through tendril run. It is killed when the test ends.
func start(t *testing.T, n *rig.Node) *program {
	t.Helper()
	return startWith(t, n)
}

// startWith adds flags to tendril run.
func startWith(t *testing.T, n *rig.Node, flags ...string) *program {
	t.Helper()
	need(t, "cc", noCC)
	need(t, "driver", hasDriver())
	return begin(t, n.Command(t.Context(), append(append([]string{"run"}, flags...), "--", session)...))
}

// begin starts what may be talked with. It is killed when the test ends.
func begin(t *testing.T, cmd *exec.Cmd) *program {
	t.Helper()
	p := &program{t: t, cmd: cmd, err: &strings.Builder{}}
	p.cmd.Stderr = p.err
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
	return p
}

func opened(t *testing.T, n *rig.Node) *program {
	t.Helper()
	p := start(t, n)
	p.ready()
	return p
}

// ready has a program open its session.
func (p *program) ready() {
	p.t.Helper()
	if got := p.ask("open"); !strings.HasPrefix(got, "ready") {
		p.t.Fatalf("open: %q\n%s", got, p.err)
	}
}

// ask sends one command and returns the answer. A program that hangs ends the test.
func (p *program) ask(format string, args ...any) string {
	p.t.Helper()
	command := fmt.Sprintf(format, args...)
	if _, err := fmt.Fprintln(p.in, command); err != nil {
		p.t.Fatalf("%s: the program is gone: %v\n%s", command, err, p.err)
	}
	watch := rig.WatchOver(p.cmd, limit)
	answered := p.out.Scan()
	if err := watch.End(); err != nil {
		p.t.Fatalf("%s: %v\n%s", command, err, p.err)
	}
	if !answered {
		p.t.Fatalf("%s: the program died\n%s", command, p.err)
	}
	return p.out.Text()
}

// ends waits for a program that should end by itself.
func (p *program) ends() {
	p.t.Helper()
	ends(p.t, p.cmd)
}

// ends waits for a command that was started and should end by itself; one that hangs ends the test.
func ends(t *testing.T, cmd *exec.Cmd) error {
	t.Helper()
	err := rig.Await(cmd, limit)
	if errors.Is(err, rig.ErrHung) {
		t.Fatal(err)
	}
	return err
}

func (p *program) want(answer, format string, args ...any) {
	p.t.Helper()
	if got := p.ask(format, args...); got != answer {
		p.t.Fatalf("%s: got %q, want %q\n%s", fmt.Sprintf(format, args...), got, answer, p.err)
	}
}

// eventually waits until condition holds; it fails with what the condition last complained of. What is waited for takes
// seconds on a quiet machine, a minute beside other runs of these tests.
func eventually(t *testing.T, condition func() error) {
	t.Helper()
	for began := time.Now(); ; await.Rest(began) {
		err := condition()
		if err == nil {
			return
		}
		if time.Since(began) > limit {
			t.Fatal(err)
		}
	}
}

// idle holds once the node has no sessions, no serving workers and no session memory.
func idle(ctx context.Context, n *rig.Node) func() error {
	return func() error { return n.Idle(ctx) }
}
