package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// built is the directory of the real program, built once for all tests.
var built string

// ownBinary makes the program of this test's own binary, which runs main under the name that it has there: so "go test
// -cover" counts what the program's processes do. What they do in tools/e2e is not counted.
func ownBinary(program string) error {
	own, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	return os.WriteFile(program, own, 0o755)
}

func TestMain(m *testing.M) {
	if own, err := os.Executable(); err == nil && testing.CoverMode() != "" && filepath.Base(own) == "tendril" {
		version = "test"
		main()
		return
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "tendril-cli-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		if err := os.Chmod(dir, 0o755); err != nil { // root's workers are other users
			panic(err)
		}
		built = dir
		if testing.CoverMode() != "" {
			if err := ownBinary(filepath.Join(dir, "tendril")); err != nil {
				panic(err)
			}
			return m.Run()
		}
		build := exec.Command("go", "build", "-ldflags", "-X main.version=test", "-o",
			filepath.Join(dir, "tendril"), ".")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// node is a running daemon and a directory for the test's files.
type node struct {
	t       *testing.T
	dir     string
	socket  string
	env     []string
	process *exec.Cmd
	log     sharedBuffer
	ended   chan struct{}
}

// startNode starts `tendril daemon` with no driver and 64 MiB; it is stopped, and must stop cleanly, at the test's end.
func startNode(t *testing.T, args ...string) *node {
	t.Helper()
	n := newNode(t)
	n.start(args...)
	t.Cleanup(n.stop)
	return n
}

// start starts the node's daemon and waits until it answers.
func (n *node) start(args ...string) {
	n.t.Helper()
	n.ended = make(chan struct{})
	n.process = exec.Command(filepath.Join(built, "tendril"), append([]string{
		"daemon", "--socket", n.socket, "--state-dir", filepath.Join(n.dir, "state"), "--capacity", "64MiB",
		"--warm-memory", "none",
		"--vendors", filepath.Join(n.dir, "vendors"), "--name", "testnode", "--listen", "none"}, args...)...)
	n.process.Stderr = &n.log
	if err := n.process.Start(); err != nil {
		n.t.Fatal(err)
	}
	go func(process *exec.Cmd, ended chan struct{}) { process.Wait(); close(ended) }(n.process, n.ended)
	await.Until(n.t, "answer of the daemon", func() bool {
		select {
		case <-n.ended:
			n.t.Fatalf("the daemon ended:\n%s", &n.log)
		default:
		}
		if _, err := os.Stat(n.socket); err != nil { // a question costs a process
			return false
		}
		code, _, _ := n.run("", "status")
		return code == 0
	})
}

// newNode is a place for a node that is not started.
func newNode(t *testing.T) *node {
	dir := t.TempDir()
	n := &node{t: t, dir: dir, socket: filepath.Join(dir, "s"), ended: make(chan struct{})}
	n.env = append(os.Environ(), "TENDRIL_SOCKET="+n.socket, "HOME="+dir, "XDG_RUNTIME_DIR="+dir, "XDG_CONFIG_HOME=",
		"TENDRIL_LIBRARY=", "TENDRIL_SERVER=", "TENDRIL_CONFIG=")
	return n
}

func (n *node) stop() {
	select {
	case <-n.ended:
		return
	default:
	}
	n.process.Process.Signal(syscall.SIGTERM)
	<-n.ended
	if code := n.process.ProcessState.ExitCode(); code != 0 {
		n.t.Errorf("the daemon ended with %v:\n%s", n.process.ProcessState, &n.log)
	}
}

// run executes one command line.
func (n *node) run(stdin string, args ...string) (code int, out, err string) {
	n.t.Helper()
	cmd := exec.Command(filepath.Join(built, "tendril"), args...)
	cmd.Env, cmd.Dir, cmd.Stdin = n.env, n.dir, strings.NewReader(stdin)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	var exit *exec.ExitError
	if failed := cmd.Run(); failed != nil && !errors.As(failed, &exit) {
		n.t.Fatal(failed)
	}
	return cmd.ProcessState.ExitCode(), o.String(), e.String()
}

// want runs a command line that must end with code and say all of texts on standard output or error.
func (n *node) want(code int, texts []string, args ...string) string {
	n.t.Helper()
	got, out, err := n.run("", args...)
	if got != code {
		n.t.Fatalf("tendril %v ended with %d, want %d\n%s%s", args, got, code, out, err)
	}
	for _, text := range texts {
		if !strings.Contains(out+err, text) {
			n.t.Errorf("tendril %v does not say %q:\n%s%s", args, text, out, err)
		}
	}
	return out
}

func (n *node) file(name string, content []byte) string {
	n.t.Helper()
	path := filepath.Join(n.dir, name)
	if err := os.WriteFile(path, content, 0o644); err != nil {
		n.t.Fatal(err)
	}
	return path
}

func pattern(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i * 2654435761 >> 13)
	}
	return b
}

func TestPutGetListStatRemove(t *testing.T) {
	n := startNode(t)
	for _, size := range []int{0, 1, 4096, 5<<20 + 7} {
		name := fmt.Sprintf("f%d", size)
		path := n.file(name, pattern(size))
		n.want(0, []string{name}, "put", path)
		_, out, _ := n.run("", "get", name)
		if out != string(pattern(size)) {
			t.Errorf("%s: %d other bytes came back", name, len(out))
		}
		n.want(0, nil, "get", name, "-o", path+".copy")
		if got, err := os.ReadFile(path + ".copy"); err != nil || !bytes.Equal(got, pattern(size)) {
			t.Errorf("%s: the file holds %d other bytes, %v", name, len(got), err)
		}
		n.want(0, []string{object.Counted(size, "byte") + " (", "named", "sealed"}, "stat", name)
	}
	n.want(0, []string{"NAME", "f4096"}, "ls")
	if out := n.want(0, nil, "ls", "f1"); strings.Contains(out, "f4096") {
		t.Errorf("ls f1:\n%s", out)
	}
	n.want(0, nil, "rm", "f1", "f4096")
	n.want(4, []string{"not found", "tendril ls"}, "get", "f1")
	n.want(4, []string{"not found"}, "stat", "f1")
	n.want(4, []string{"rm f1"}, "rm", "f1")
	n.want(0, nil, "rm", "--force", "f1")
	n.want(4, []string{"f1"}, "rm", "f1", "f0") // f0 goes all the same
	n.want(4, nil, "stat", "f0")
}

// TestLongNames: a name that no object can have is said to be too long, whatever is done with it.
func TestLongNames(t *testing.T) {
	n := startNode(t)
	n.want(0, nil, "put", "/proc/version", "--name", "short")
	long := strings.Repeat("n", 300)
	for _, args := range [][]string{{"get", long}, {"get", long, "--wait", "1h"}, {"stat", long}, {"rm", long},
		{"mv", "short", long}, {"mv", long, "short"}, {"put", "/proc/version", "--name", long}, {"publish", long},
		{"publish", "short", "--name", long}, {"unpublish", long}, {"replicate", long, "--replicas", "1"}, {"place", long},
		{"stream", "pop", long, "--lines"}, {"stream", "rm", long}, {"get", strings.Repeat("n", 70_000)}} {
		code, out, errs := n.run("", args...)
		if code == 0 || !strings.Contains(errs, "255") || strings.Contains(errs, "protocol") {
			t.Errorf("%.20q: %d %q %q", args, code, out, errs)
		}
	}
}

func TestStreams(t *testing.T) {
	n := startNode(t)
	long := string(pattern(9<<20 + 3))
	for name, content := range map[string]string{"empty": "", "long": long} {
		if code, _, err := n.run(content, "put", "-", "--name", name); code != 0 {
			t.Fatal(err)
		}
		if _, out, _ := n.run("", "get", name); out != content {
			t.Errorf("%s: %d other bytes", name, len(out))
		}
	}
	if code, _, err := n.run(strings.Repeat("x", 70<<20), "put", "-", "--name", "toolong"); code != 5 ||
		!strings.Contains(err, "store") {
		t.Errorf("too long a stream: %d %s", code, err)
	}
	n.want(2, []string{"--name"}, "put", "-")
	n.want(0, nil, "put", "/proc/version", "--name", "proc") // says that it has 0 bytes, and has more
	n.want(0, []string{"Linux version"}, "get", "proc")
}

func TestNamesAndReplacement(t *testing.T) {
	n := startNode(t)
	a, b := n.file("a", []byte("first")), n.file("b", []byte("second"))
	n.want(0, nil, "put", a, "--name", "x")
	n.want(8, []string{"x", "--replace"}, "put", b, "--name", "x")
	n.want(0, []string{"first"}, "get", "x")
	n.want(0, nil, "put", b, "--name", "x", "--replace")
	n.want(0, []string{"second"}, "get", "x")
	id := n.only("x")
	n.want(0, []string{"second"}, "get", id)
	n.want(4, nil, "get", strings.Repeat("0", 31)+"1")
	n.want(0, nil, "put", a, "--name", strings.Repeat("ab", 16)) // a name that looks like an ID
	n.want(0, []string{"first"}, "get", strings.Repeat("ab", 16))
	n.want(0, nil, "rm", id)
	n.want(4, nil, "get", "x")
	n.want(0, nil, "put", a, "--name", "s", "--strict")
	n.want(0, []string{`"strict": true`}, "stat", "s", "--json")
	n.want(0, []string{"first"}, "get", "s")
	n.want(0, nil, "rm", "s")
	n.want(0, nil, "rm", strings.Repeat("ab", 16))
	for _, file := range []string{a, b, a, b} { // what is replaced goes, from the disk, too
		n.want(0, nil, "put", file, "--name", "kept", "--persist", "--replace")
	}
	n.only("kept")
}

// only waits until the node has one object, of that name, and gives its ID. An object that was replaced stays
// until the daemon has heard of the end of the processes that had it.
func (n *node) only(name string) (id string) {
	n.t.Helper()
	await.Until(n.t, "only the object "+name+" in the list", func() bool {
		var list []struct{ ID, Name string }
		if err := json.Unmarshal([]byte(n.want(0, nil, "ls", "--json")), &list); err != nil {
			n.t.Fatal(err)
		}
		if len(list) != 1 || list[0].Name != name {
			return false
		}
		id = list[0].ID
		return true
	})
	return id
}

func TestBadInput(t *testing.T) {
	n := startNode(t)
	n.want(4, []string{"absent", "no such file"}, "put", "absent")
	n.want(2, []string{"directory"}, "put", n.dir)
	big := n.file("big", nil)
	if err := os.Truncate(big, 100<<20); err != nil {
		t.Fatal(err)
	}
	n.want(5, []string{"full", "--capacity"}, "put", big)
	n.want(0, nil, "put", n.file("small", []byte("x"))) // the failure left room
	n.want(2, nil, "put")
	n.want(2, nil, "nonsense")
	n.want(2, nil, "ls", "--nonsense")
	n.want(2, nil, "run")
	n.want(2, []string{"want type=…, mem>=…"}, "run", "--device", "mem>5=2", "--", "true")
	n.want(127, []string{"never-heard-of"}, "run", "--", "never-heard-of")
	n.want(9, []string{"timed out"}, "get", "later", "--wait", "20ms", "-o", "-")
	n.want(4, nil, "get", "small", "-o", filepath.Join(n.dir, "no", "such", "dir"))
	n.want(2, []string{"--nam", "did you mean --name?"}, "put", big, "--nam", "x")
	n.want(2, []string{"did you mean --name?"}, "put", big, "-name", "x")
	n.want(2, []string{"unknown flag: --nothing-like-it\n"}, "put", big, "--nothing-like-it")
	n.want(2, []string{"a whole number"}, "put", big, "--publish", "--replicas", "two")
	n.want(2, []string{"cuda:0"}, "put", big, "--device", "gpu")
}

// TestMisplacedTokens: no error shows a token that was given where none belongs.
func TestMisplacedTokens(t *testing.T) {
	n := startNode(t)
	token := "tdl_" + strings.Repeat("0a1b2c", 10)
	for _, line := range []string{"login TOKEN", "login host TOKEN", "cluster join host TOKEN", "get TOKEN", "logout TOKEN",
		"token revoke TOKEN", "--server TOKEN ls", "run --server TOKEN -- true", "doctor --server TOKEN",
		"put --name x --ttl TOKEN file", "TOKEN", "ls --TOKEN"} {
		code, out, said := n.run("", strings.Fields(strings.ReplaceAll(line, "TOKEN", token))...)
		if code != 2 || strings.Contains(out+said, token[:20]) {
			t.Errorf("%s: %d: %s%s", line, code, out, said)
		}
	}
	n.want(1, []string{"driver library"}, "run", "--", "echo", token) // a program's own arguments may be anything
}

func TestUnreadableFile(t *testing.T) {
	path := filepath.Join(built, "closed")
	if err := os.WriteFile(path, []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(built, "tendril"), "put", path)
	if os.Getuid() == 0 { // root reads everything
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, _ := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 6 || !strings.Contains(string(out), path+": permission denied") {
		t.Errorf("%v: %s", cmd.ProcessState, out)
	}
}

func TestGetWaitsForAnObject(t *testing.T) {
	n := startNode(t)
	path := n.file("later", []byte("here"))
	done := make(chan string)
	go func() {
		_, out, err := n.run("", "get", "later", "--wait", "5m", "-o", "-")
		done <- out + err
	}()
	n.want(0, nil, "put", path)
	if got := <-done; got != "here" {
		t.Errorf("got %q", got)
	}
}

func TestNoDaemon(t *testing.T) {
	n := newNode(t)
	path := n.file("x", []byte("x"))
	for _, args := range [][]string{{"ls"}, {"put", path}, {"get", "x", "-o", "-"}, {"stat", "x"}, {"rm", "x"},
		{"status"}, {"devices"}, {"env"}, {"run", "--", "true"}} {
		n.want(3, []string{n.socket, "tendril daemon"}, args...)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: n.socket}); err != nil { // nobody listens
		t.Fatal(err)
	}
	n.want(3, []string{"tendril daemon"}, "ls")
}

func TestSecondDaemonSaysWhoIsThere(t *testing.T) {
	n := startNode(t)
	state := []string{"--state-dir", filepath.Join(n.dir, "state"), "--capacity", "64MiB"}
	n.want(1, []string{"state directory", fmt.Sprint("pid ", n.process.Process.Pid)},
		append([]string{"daemon", "--socket", n.socket + "2"}, state...)...)
	n.want(1, []string{"another daemon", n.socket}, "daemon", "--state-dir", filepath.Join(n.dir, "state2"),
		"--capacity", "64MiB")
	n.want(2, []string{"--quota", "lots", "loud"}, "daemon", "--capacity", "64MiB", "--quota", "lots",
		"--log-level", "loud")
	n.want(2, []string{"capacity", "loud"}, "daemon", "--capacity", "1k", "--log-level", "loud")
	n.want(0, nil, "ls")
}

func TestKilledDaemonIsReplaced(t *testing.T) {
	n := startNode(t)
	n.process.Process.Kill()
	<-n.ended
	n.want(3, []string{"tendril daemon"}, "ls")
	again := exec.Command(filepath.Join(built, "tendril"), n.process.Args[1:]...)
	if err := again.Start(); err != nil {
		t.Fatal(err)
	}
	defer again.Wait()
	defer again.Process.Signal(syscall.SIGTERM)
	await.Until(t, "second daemon that serves", func() bool { code, _, _ := n.run("", "ls"); return code == 0 })
}

// varying replaces what differs from run to run.
var varying = regexp.MustCompile(`"(id|incarnation|created|sealed|since|go|arch|socket|state_dir|cache_dir|library|library_version|` +
	`cpu_by|ended_by|memory_by|processes_by)": "[^"]*"|` +
	`"(pid|creator_pid|file_limit|uid|segment|offset|charged_bytes|segment_bytes|idle_bytes|table_bytes|leaving_bytes|tenant_leaving_bytes|kept_bytes|` +
	`segments|connections|references|refs|memory_bytes|goroutines|open_segments|segment_limit|tenant_segment_limit|files|processes|tenant_bytes|tenant_processes)": \d+|` +
	`"machine_short": (true|false)|uid:\d+`)

func golden(t *testing.T, name, got string) {
	t.Helper()
	got = varying.ReplaceAllStringFunc(got, func(m string) string {
		if strings.HasPrefix(m, "uid:") {
			return "uid:N"
		}
		key, _, _ := strings.Cut(m, ":")
		return key + `: "…"`
	})
	wantFile(t, filepath.Join("testdata", name+".json"), got)
}

// wantFile compares with a file of testdata.
func wantFile(t *testing.T, path, got string) {
	t.Helper()
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is now (UPDATE_GOLDEN=1 accepts it):\n%s", path, got)
	}
}

func TestJSONShapes(t *testing.T) {
	n := startNode(t)
	golden(t, "ls-empty", n.want(0, nil, "ls", "--json"))
	golden(t, "put", n.want(0, nil, "put", n.file("x", []byte("hello")), "--json"))
	golden(t, "ls", n.want(0, nil, "ls", "--json"))
	golden(t, "stat", n.want(0, nil, "stat", "x", "--json"))
	golden(t, "devices-none", n.want(0, nil, "devices", "--json"))
	golden(t, "version", n.want(0, nil, "version", "--json"))
	golden(t, "status", stripFallbacks(t, n.want(0, nil, "status", "--json")))
}

// stripFallbacks takes out what depends on the machine.
func stripFallbacks(t *testing.T, raw string) string {
	var s map[string]any
	if err := json.Unmarshal([]byte(raw), &s); err != nil {
		t.Fatal(err)
	}
	if _, ok := s["fallbacks"].([]any); !ok {
		t.Errorf("fallbacks: %v", s["fallbacks"])
	}
	delete(s, "fallbacks")
	if bounds, ok := s["bounds"].(map[string]any); ok {
		delete(bounds, "users") // root's daemon alone
		delete(bounds, "cgroup")
	}
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b) + "\n"
}

func TestNoDriver(t *testing.T) {
	n := startNode(t)
	n.want(0, []string{"pocl-opencl-icd"}, "devices")
	n.want(0, []string{"drivers: none", "testnode"}, "status")
	n.want(0, []string{"tendril test"}, "version")
}

func TestDriverThatDoesNotLoad(t *testing.T) {
	n := startNode(t)
	if err := os.Mkdir(filepath.Join(n.dir, "vendors"), 0o755); err != nil {
		t.Fatal(err)
	}
	n.file("vendors/broken.icd", []byte("/no/such/driver.so\n"))
	n.process.Process.Signal(syscall.SIGHUP)
	await.Until(t, "status that reports the driver", func() bool {
		_, out, _ := n.run("", "status")
		return strings.Contains(out, "failed") && strings.Contains(out, "broken.icd")
	})
	n.want(0, []string{"No OpenCL device"}, "devices")
}

func TestEveryVerbHasHelpWithAnExample(t *testing.T) {
	n := newNode(t)
	for _, verb := range []string{"daemon", "status", "version", "put", "get", "ls", "stat", "rm", "devices", "run",
		"env", "session", "session ls", "session end", "token", "token create", "token ls", "token revoke",
		"certificate", "certificate ls", "certificate revoke", "tenant", "tenant create", "tenant ls", "tenant map",
		"tenant quota", "tenant disable", "tenant enable", "tenant rm", "audit", "login",
		"ui", "config show", "compose", "stream", "stream push", "stream pop", "stream ls", "stream rm"} {
		n.want(0, []string{"Examples:", "  tendril " + verb}, append(strings.Fields(verb), "--help")...)
	}
	n.want(0, []string{"Exit codes"}, "--help")
	for _, shell := range []string{"bash", "zsh", "fish"} {
		n.want(0, []string{"tendril"}, "completion", shell)
	}
}

func TestRunRefusesProgramsThatGainRights(t *testing.T) {
	n := startNode(t)
	path := n.file("setuid", []byte("#!/bin/sh\n"))
	for mode, want := range map[os.FileMode]string{0o755 | os.ModeSetuid: "setuid", 0o755 | os.ModeSetgid: "setgid"} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		n.want(1, []string{want, "ignores"}, "run", "--", path)
	}
}

// goProgram builds an empty program with a version stamp; for findLibrary and libraryVersion it serves as a library.
func goProgram(t *testing.T, stamp string) string {
	dir := t.TempDir()
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte("package main\n\nvar stamp = \"\"\n\nfunc main() { println(stamp) }\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, libraryName)
	if text, err := exec.Command("go", "build", "-ldflags", "-X main.stamp="+stampMark+stamp+";", "-o", out,
		source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return out
}

func TestLibraryIsChecked(t *testing.T) {
	n := startNode(t)
	n.want(1, []string{"driver library is missing", "make build"}, "run", "--", "true")
	n.want(4, []string{"no such file"}, "run", "--library", "absent.so", "--", "true")
	for _, build := range []string{"test", "other"} { // builds may be mixed: the session compares protocols
		library := goProgram(t, build)
		n.want(7, []string{"has no device", "tendril devices"}, "run", "--library", library, "--", "true")
		_, _, errs := n.run("", "run", "--library", library, "--", "true")
		if strings.Contains(errs, "is version other, this command is version test") != (build == "other") {
			t.Error(errs)
		}
	}
}

// TestLibraryVersion: the stamp is found wherever it lies, also over the end of what is read at once. The mark alone,
// as in this program, is none.
func TestLibraryVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lib")
	for _, before := range []int{0, 1<<20 - 130, 1<<20 - len(stampMark), 1<<20 - 3, 1 << 20, 3<<20 - 20} {
		for text, want := range map[string]string{stampMark + "1.2-dirty;": "1.2-dirty", stampMark: "",
			stampMark + ";" + stampMark + "x y;" + stampMark + "3;": "3", "": ""} {
			if err := os.WriteFile(path, append(bytes.Repeat([]byte{'t'}, before), text...), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := libraryVersion(path); got != want {
				t.Errorf("%q behind %d bytes: %q, want %q", text, before, got, want)
			}
		}
	}
}

func TestRunBecomesTheProgram(t *testing.T) {
	const system = "/etc/OpenCL/vendors"
	if _, err := os.Stat(filepath.Join(system, "pocl.icd")); err != nil {
		t.Skip("PoCL is not installed:", err)
	}
	n := startNode(t, "--vendors", system)
	n.want(0, []string{"uuid"}, "devices", "--json") // waits for the probe
	n.env = append(n.env, "TENDRIL_LIBRARY="+goProgram(t, "test"), "OCL_ICD_FILENAMES=other", "TENDRIL_PUBLISH=stale")
	code, out, errs := n.run("", "run", "--device", "0", "--", "sh", "-c",
		`echo "$TENDRIL_SOCKET,$TENDRIL_DEVICES,$TENDRIL_PUBLISH,$OCL_ICD_FILENAMES"; cat "$OCL_ICD_VENDORS"/*; exit 5`)
	library := n.env[len(n.env)-3][len("TENDRIL_LIBRARY="):]
	if want := n.socket + ",0,," + library + "\n" + library + "\n"; code != 5 || out != want {
		t.Errorf("code %d, got %q, want %q\n%s%s", code, out, want, errs, &n.log)
	}
	n.want(0, []string{"export OCL_ICD_VENDORS='", "export TENDRIL_DEVICES='type=cpu'"}, "env", "--device", "type=cpu")
	n.want(7, []string{"matches none"}, "env", "--device", "type=gpu")
}

func TestGetRefusesATerminal(t *testing.T) {
	n := startNode(t)
	n.want(0, nil, "put", n.file("x", []byte{0, 1}))
	for name, want := range map[string]int{"x": exitUsage, "absent": exitNotFound} { // what is not there is said first
		var errs bytes.Buffer
		term := terminal{in: os.Stdin, out: io.Discard, err: &errs, isOut: true}
		code := run(t.Context(), term, []string{"--socket", n.socket, "get", name})
		if code != want || strings.Contains(errs.String(), "-o FILE") != (want == exitUsage) {
			t.Errorf("get %s: code %d: %s", name, code, &errs)
		}
	}
}
