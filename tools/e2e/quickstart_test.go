package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"tendril/tools/e2e/rig"
)

// block is a piece of a page that is run: shell or Python, on which machine, and what it prints at least.
type block struct{ kind, machine, program, prints string }

// section is a part of a page, with its blocks in their order.
type section struct {
	title  string
	blocks []block
}

var (
	sectionPattern = regexp.MustCompile(`(?m)^## (.*)\n`)
	blockPattern   = regexp.MustCompile("(?ms)^```(\\w*) ?(\\S*)\n(.*?)^```$")
)

// sectionsOf reads a page. A block of text says what the one before it prints, last.
func sectionsOf(t *testing.T, page string) (list []section) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	titles := sectionPattern.FindAllStringSubmatch(string(raw), -1)
	for i, text := range sectionPattern.Split(string(raw), -1)[1:] {
		s := section{title: titles[i][1]}
		for _, m := range blockPattern.FindAllStringSubmatch(text, -1) {
			switch {
			case m[1] == "text" && len(s.blocks) > 0:
				s.blocks[len(s.blocks)-1].prints = m[3]
			case m[2] != "":
				s.blocks = append(s.blocks, block{kind: m[1], machine: m[2], program: m[3]})
			}
		}
		list = append(list, s)
	}
	return list
}

// machines gives the names of a section's machines.
func (s section) machines() (names []string) {
	for _, b := range s.blocks {
		if !slices.Contains(names, b.machine) {
			names = append(names, b.machine)
		}
	}
	return names
}

// machine is a place with a network, a name, and directories of its own (testdata/machine.sh).
type machine struct {
	pid int
	env []string
	dir string // where blocks run: all machines of a section have it, as if files were copied
}

// network of the quick starts: a bridge, with one machine a port. Nothing else is on it.
func startMachines(t *testing.T, names []string) map[string]*machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "tendril-quick-") // workers are other users, who cannot reach t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	tag := fmt.Sprintf("tq%d-%d", os.Getpid(), len(names))
	hub := tag + "-hub"
	ip(t, "netns", "add", hub)
	t.Cleanup(func() { exec.Command("ip", "netns", "del", hub).Run() })
	ip(t, "-n", hub, "link", "add", "hub", "type", "bridge")
	ip(t, "-n", hub, "link", "set", "hub", "up")
	hosts, all := "127.0.0.1 localhost\n", map[string]*machine{}
	for i, name := range names {
		hosts += fmt.Sprintf("10.78.0.%d %s\n", i+1, name)
	}
	hostsFile := filepath.Join(dir, "hosts")
	work := filepath.Join(dir, "work")
	if err := os.WriteFile(hostsFile, []byte(hosts), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, work} {
		os.Mkdir(d, 0o755)
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for i, name := range names {
		ns := fmt.Sprintf("%s-%d", tag, i)
		ip(t, "netns", "add", ns)
		t.Cleanup(func() { exec.Command("ip", "netns", "del", ns).Run() })
		ip(t, "-n", hub, "link", "add", fmt.Sprintf("port%d", i), "type", "veth", "peer", "name", cableOf, "netns", ns)
		ip(t, "-n", hub, "link", "set", fmt.Sprintf("port%d", i), "master", "hub", "up")
		ip(t, "-n", ns, "addr", "add", fmt.Sprintf("10.78.0.%d/24", i+1), "dev", cableOf)
		patient(ns, cableOf)
		ip(t, "-n", ns, "link", "set", cableOf, "up")
		ip(t, "-n", ns, "link", "set", "lo", "up")
		all[name] = boot(t, ns, name, hostsFile, filepath.Join(dir, name), work)
	}
	return all
}

// boot starts one machine. All that runs on it ends with it.
func boot(t *testing.T, ns, name, hosts, own, work string) *machine {
	t.Helper()
	absolute, err := filepath.Abs(bin)
	if err != nil {
		t.Fatal(err)
	}
	python, err := filepath.Abs("../../client/python")
	if err != nil {
		t.Fatal(err)
	}
	init := exec.Command("ip", "netns", "exec", ns, "unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child",
		"--mount-proc", "bash", "testdata/machine.sh", name, hosts, own)
	init.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	up, err := init.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := init.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { init.Process.Kill(); init.Wait() })
	line := make([]byte, 3)
	if n, err := up.Read(line); err != nil || string(line[:n]) != "up\n" {
		t.Fatalf("%s does not come up: %q, %v", name, line[:n], err)
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", init.Process.Pid, init.Process.Pid))
	m := &machine{dir: work}
	if err == nil {
		_, err = fmt.Sscan(string(children), &m.pid)
	}
	if err != nil {
		t.Fatalf("%s has no first process: %v", name, err)
	}
	m.env = append(rig.Native(), "PATH="+absolute+":"+os.Getenv("PATH"), "HOME="+own+"/home", "PYTHONPATH="+python,
		"PYTHONDONTWRITEBYTECODE=1", "TENDRIL_LOG_LEVEL=warn", "TENDRIL_CAPACITY=64MiB", "TENDRIL_WARM_MEMORY=none")
	if out, err := m.run(t, "tendril", "version"); err != nil { // or a daemon that cannot start is waited for
		t.Fatalf("%s cannot run tendril: %s%v", name, out, err)
	}
	return m
}

// run runs one block there and gives what it printed.
func (m *machine) run(t *testing.T, argv ...string) (string, error) {
	t.Helper()
	// --root: in a chroot the mount namespace alone would lead to another root, where nothing of the test is.
	cmd := exec.CommandContext(t.Context(), "nsenter", append([]string{"--target", fmt.Sprint(m.pid), "--mount", "--root",
		"--uts", "--pid", "--net", "--wd=" + m.dir, "--"}, argv...)...)
	cmd.Env = m.env
	out, err := os.CreateTemp(t.TempDir(), "out") // a file: what goes on in the background keeps a pipe open
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Start()
	if err == nil {
		err = rig.Await(cmd, limit)
	}
	said, _ := os.ReadFile(out.Name())
	return string(said), err
}

// do runs a block as it stands on the page. A daemon that it starts is waited for, as a person does who types it.
func (m *machine) do(t *testing.T, b block) {
	t.Helper()
	argv := []string{"bash", "-euo", "pipefail", "-c", b.program}
	if b.kind == "python" {
		argv = []string{"bash", "-euc", `. ./gpu.env; exec /usr/bin/python3 -c "$1"`, "cell", b.program}
	}
	if first, rest, daemon := strings.Cut(b.program, "&\n"); daemon && strings.HasPrefix(first, "tendril daemon") {
		if out, err := m.run(t, "bash", "-euc", first+"&"); err != nil {
			t.Fatalf("%s: %s%v", b.machine, out, err)
		}
		eventually(t, func() error {
			out, err := m.run(t, "tendril", "status")
			if err != nil {
				err = fmt.Errorf("%s: %s", b.machine, out)
			}
			return err
		})
		argv[4] = rest
	}
	out, err := m.run(t, argv...)
	t.Logf("%s:\n%s%s", b.machine, b.program, out)
	if err != nil {
		t.Fatalf("%s: %v\n%s\n%s", b.machine, err, b.program, out)
	}
	for want := range strings.Lines(b.prints) {
		if !strings.Contains(out, want) {
			t.Errorf("%s: %q is not in what this printed:\n%s\n%s", b.machine, want, b.program, out)
		}
	}
}

// TestQuickStarts: each section of docs/QUICKSTART.md, as it stands there, on machines with nothing on them.
func TestQuickStarts(t *testing.T) {
	t.Parallel()
	networks(t)
	need(t, "driver", hasDriver())
	need(t, "clinfo", installed("clinfo"))
	ran := 0
	for _, s := range sectionsOf(t, "QUICKSTART.md") {
		ran += len(s.blocks)
		t.Run(s.title, func(t *testing.T) {
			if strings.Contains(fmt.Sprint(s.blocks), "pyopencl") {
				need(t, "pyopencl", exec.Command("/usr/bin/python3", "-c", "import numpy, pyopencl").Run())
			}
			machines := startMachines(t, s.machines())
			for _, b := range s.blocks {
				machines[b.machine].do(t, b)
			}
		})
	}
	if ran < 10 {
		t.Errorf("only %d blocks were found", ran)
	}
}
