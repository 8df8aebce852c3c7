package main

import (
	"bytes"
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// What is under test runs in C programs that load the library, where "go test -cover" counts nothing: the 1 % that it
// tells of are this file's doing. So it is counted otherwise: TestEveryHandleIsTried demands of each function that is
// forwarded a row in testdata/handles.h, a program of TestPrograms calls each row, and make difftest compares what each
// function answers with the driver's own answer.

// built is what the tests run: made once, by the same commands as the Makefile's.
type built struct {
	dir, library, program, tendril string
	err                            error
}

var build = sync.OnceValue(func() (b built) {
	if b.dir, b.err = os.MkdirTemp("", "icd-test"); b.err != nil {
		return b
	}
	b.library, b.program, b.tendril = filepath.Join(b.dir, "libtendril_opencl.so"), filepath.Join(b.dir, "program"),
		filepath.Join(b.dir, "tendril")
	for _, argv := range [][]string{
		{"go", "build", "-buildmode=c-shared", "-ldflags", "-X runtime.godebugDefault=asyncpreemptoff=1", "-o",
			b.library, "."},
		{"go", "build", "-o", b.tendril, "tendril/tools/tendril"},
		{"cc", "-O1", "-Wall", "-o", b.program, "testdata/program.c", "-ldl", "-lpthread"},
	} {
		cmd := exec.Command(argv[0], argv[1:]...)
		if out, err := cmd.CombinedOutput(); err != nil {
			b.err = &exec.Error{Name: strings.Join(argv, " ") + "\n" + string(out), Err: err}
			return b
		}
	}
	return b
})

func TestMain(m *testing.M) {
	code := m.Run()
	if b := build(); b.dir != "" {
		os.RemoveAll(b.dir)
	}
	os.Exit(code)
}

func artifacts(t *testing.T) built {
	t.Helper()
	if testing.Short() {
		t.Skip("builds the library and starts a daemon: not with -short")
	}
	b := build()
	if b.err != nil {
		t.Fatal(b.err)
	}
	return b
}

// daemon starts one for the test and returns its socket. Without a driver the test is skipped.
func daemon(t *testing.T, b built) string {
	t.Helper()
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	cmd := exec.Command(b.tendril, "daemon", "--socket", socket, "--state-dir", filepath.Join(dir, "state"),
		"--capacity", "256MiB")
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
		if t.Failed() {
			t.Logf("daemon:\n%s", log.String())
		}
	})
	for range 600 {
		out, err := exec.Command(b.tendril, "devices", "--json", "--socket", socket).Output()
		if err == nil && bytes.Contains(out, []byte("name")) {
			return socket
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Skip("no OpenCL device answered within 30 s: install pocl-opencl-icd")
	return ""
}

func run(t *testing.T, b built, socket, name string) (stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.program, b.library, name)
	cmd.Env = append(os.Environ(), "TENDRIL_SOCKET="+socket)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Errorf("%v\n%s%s", err, out.String(), errs.String())
	}
	return errs.String()
}

func TestPrograms(t *testing.T) {
	b := artifacts(t)
	socket := daemon(t, b)
	for _, c := range []struct{ name, stderr string }{
		{"compute", ""}, {"table", ""}, {"callbacks", ""}, {"misuse", ""}, {"handles", ""}, {"unsupported", ""},
		{"threads", ""}, {"publish", "is an object already"},
		{"standard-descriptors", ""}, {"fork", "forked child"}, {"crash", "SIGSEGV"},
	} {
		t.Run(c.name, func(t *testing.T) {
			said := run(t, b, socket, c.name)
			if !strings.Contains(said, c.stderr) || c.stderr == "" && said != "" {
				t.Errorf("standard error says %q, want %q", said, c.stderr)
			}
		})
	}
}

func TestNoDaemon(t *testing.T) {
	b := artifacts(t)
	said := run(t, b, filepath.Join(t.TempDir(), "none"), "no-daemon")
	if !strings.Contains(said, "tendril daemon") || strings.Count(said, "\n") != 1 {
		t.Errorf("standard error says %q", said)
	}
}

// TestExports: whatever else the library exported could be taken for a symbol of a program's, or of another Go runtime.
func TestExports(t *testing.T) {
	b := artifacts(t)
	out, err := exec.Command("nm", "-D", "--defined-only", b.library).Output()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		fields := strings.Fields(line)
		names = append(names, fields[len(fields)-1])
	}
	if got := strings.Join(names,
		" "); got != "clGetExtensionFunctionAddress clGetPlatformInfo clIcdGetPlatformIDsKHR" {
		t.Errorf("exported: %s", got)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// matches are what the first group of a pattern finds.
func matches(pattern, text string) map[string]bool {
	found := map[string]bool{}
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		found[m[1]] = true
	}
	return found
}

// section is a document's part from one heading to the next of its level.
func section(t *testing.T, doc, heading string) string {
	t.Helper()
	_, rest, ok := strings.Cut(doc, "\n"+heading+"\n")
	if !ok {
		t.Fatalf("no %s", heading)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	return rest
}

// same compares what the code has with what the document says.
func same(t *testing.T, what string, code, doc map[string]bool) {
	t.Helper()
	if len(code) == 0 {
		t.Errorf("%s: none is found in the code", what)
	}
	for name := range code {
		if !doc[name] {
			t.Errorf("docs/OPENCL.md does not name the %s %s", what, name)
		}
	}
	for name := range doc {
		if !code[name] {
			t.Errorf("docs/OPENCL.md names the %s %s, the code does not", what, name)
		}
	}
}

// TestDocsOfNames compares the environment, the extensions and the functions that are had by name with docs/OPENCL.md.
func TestDocsOfNames(t *testing.T) {
	doc := read(t, "../../docs/OPENCL.md")
	env := ""
	for _, path := range []string{"trace.go", "../session/settings/env.go", "icd.go", "../../client/ssh.go"} {
		env += read(t, path)
	}
	variables := matches(`[gG]etenv\("(TENDRIL_\w+)"\)`, env)
	maps.Copy(variables, matches(`Variable = "(TENDRIL_\w+)"`, read(t, "../stacks/stacks.go")))
	same(t, "variable", variables, matches("`(TENDRIL_\\w+)`", section(t, doc, "## Environment")))
	_, list, _ := strings.Cut(read(t, "../session/devices/mask.go"), "var inKernel = ")
	list, _, _ = strings.Cut(list, "\n}")
	extensions := matches(`"(cl_\w+\*?)"`, list)
	extensions["cl_khr_command_buffer"] = true
	_, shown, _ := strings.Cut(section(t, doc, "## Extensions"), "A device has those of its native\n")
	same(t, "extension", extensions, matches("`(cl_\\w+\\*?)`", shown))
	byName := matches(`(?m)^ +\{"(cl\w+(?:KHR|TENDRIL|PoCL))"`, read(t, "stubs.c"))
	_, table, _ := strings.Cut(doc, "By name, through")
	table, _, _ = strings.Cut(table, "\n## ")
	same(t, "function", byName, matches(`\b(cl[A-Z]\w+(?:KHR|TENDRIL|PoCL))\b`, table))
}

// TestEveryHandleIsTried: testdata/handles.h has a row for each function of the table that is forwarded.
func TestEveryHandleIsTried(t *testing.T) {
	unsupported := read(t, "unsupported.h")
	refused := matches(`(?m)^UNSUPPORTED(?:_CREATE)?\((\w+)`, unsupported)
	for name := range matches(`CL_API_CALL tdl_(cl\w+)\(`, unsupported) {
		refused[name] = true
	}
	tried := matches(`(?m)^  (?:NULLROW|ROW|COMMAND|NONE)\((cl\w+)`, read(t, "testdata/handles.h"))
	table := matches(`(?m)^    \.(cl\w+) = `, read(t, "dispatch.h"))
	for name := range table {
		if !tried[name] && !refused[name] {
			t.Errorf("testdata/handles.h does not try %s", name)
		}
	}
	if len(table) == 0 || len(tried) < 90 {
		t.Errorf("%d functions in the table, %d tried: the patterns no longer fit", len(table), len(tried))
	}
}

// TestDocs compares docs/OPENCL.md with the dispatch table and the calls that are not forwarded.
func TestDocs(t *testing.T) {
	refused := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^UNSUPPORTED(?:_CREATE)?\((\w+), \w+, (\w+)`).FindAllStringSubmatch(read(t, "unsupported.h"), -1) {
		refused[m[1]] = m[2]
	}
	for _, m := range regexp.MustCompile(`CL_API_CALL tdl_(cl\w+)\(`).FindAllStringSubmatch(read(t,
		"unsupported.h"), -1) {
		refused[m[1]] = ""
	}
	documented := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(cl\\w+)` \\| ([^|]*) \\|").FindAllStringSubmatch(read(t,
		"../../docs/OPENCL.md"), -1) {
		documented[m[1]] = m[2]
	}
	table := regexp.MustCompile(`(?m)^    \.(cl\w+) = `).FindAllStringSubmatch(read(t, "dispatch.h"), -1)
	if len(table) != 149 {
		t.Errorf("%d entries in the table, cl_icd.h of OpenCL 3.0 has 149", len(table))
	}
	for _, m := range table {
		state, ok := documented[m[1]]
		code, isRefused := refused[m[1]]
		switch {
		case !ok:
			t.Errorf("docs/OPENCL.md does not list %s", m[1])
		case isRefused != strings.HasPrefix(state, "no"):
			t.Errorf("docs/OPENCL.md says of %s: %q; not forwarded: %v", m[1], state, isRefused)
		case isRefused && !strings.Contains(state, code):
			t.Errorf("docs/OPENCL.md says of %s: %q; it answers %s", m[1], state, code)
		}
	}
}
