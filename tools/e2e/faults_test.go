package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"tendril/tools/e2e/rig"
)

// workers are the processes that serve sessions now.
func workers(t *testing.T, n *rig.Node) map[int]bool {
	t.Helper()
	s, err := n.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	serving := map[int]bool{}
	for _, w := range s.Workers {
		if w.State == "serving" {
			serving[w.PID] = true
		}
	}
	return serving
}

func failed(t *testing.T, answer string) {
	t.Helper()
	fields := append(strings.Fields(answer), "", "")
	if v, err := strconv.Atoi(fields[1]); err != nil || v >= 0 {
		t.Errorf("got %q, want an OpenCL error", answer)
	}
}

// TestWorkerCrash: a kernel's stray store kills its own session's worker. That session gets errors, its
// program can open another context, and nobody else notices.
func TestWorkerCrash(t *testing.T) {
	t.Parallel()
	n := node(t)
	bystander := opened(t, n)
	for _, how := range []string{"stray 1000000000000", "at 8 1", "at 140737488355328 1", "hog 268435456"} {
		t.Run(how, func(t *testing.T) {
			victim := opened(t, n)
			failed(t, victim.ask("%s", how))
			failed(t, victim.ask("verify"))
			failed(t, victim.ask("add 1"))
			victim.want("errors told", "errors")
			victim.want("again", "again")
			victim.want("add 0", "add 5")
			victim.want("good", "verify")
		})
	}
	bystander.want("add 0", "add 3")
	bystander.want("good", "verify")
	if _, err := n.Status(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestDivisionByZero: a device defines what it gives, or its worker dies of it; nobody else notices.
func TestDivisionByZero(t *testing.T) {
	t.Parallel()
	n := node(t)
	bystander := opened(t, n)
	p := opened(t, n)
	if answer := p.ask("div 0"); answer != "div 0" {
		failed(t, answer)
		p.want("errors told", "errors")
		p.want("again", "again")
	}
	p.want("add 0", "add 1")
	bystander.want("add 0", "add 3")
	bystander.want("good", "verify")
}

// TestKernelTime: a kernel that does not end loses its worker at the program's own limit, and at the daemon's. What the
// program hears is what it hears of every lost worker, with the reason.
func TestKernelTime(t *testing.T) {
	t.Parallel()
	free, bound := node(t), node(t, "TENDRIL_KERNEL_TIME=10s")
	for name, start := range map[string]func() *program{
		"the program's": func() *program { return startWith(t, free, "--kernel-time", "10s") },
		"the daemon's":  func() *program { return startWith(t, bound, "--kernel-time", "1h") },
	} {
		t.Run(name, func(t *testing.T) {
			p := start()
			p.ask("open")
			p.want("spin 0", "spin")
			failed(t, p.ask("add 1"))
			p.want("errors told", "errors")
			p.want("again", "again")
			p.want("add 0", "add 2")
			p.want("good", "verify")
			p.in.Close()
			p.ends()
			if said := p.err.String(); !strings.Contains(said, "--kernel-time") {
				t.Errorf("the program was told: %s", said)
			}
		})
	}
}

// TestStrayStoresStayInside: whatever a kernel writes, another session's buffers and the store's objects stay as they
// are.
func TestStrayStoresStayInside(t *testing.T) {
	t.Parallel()
	n := node(t)
	kept := t.TempDir() + "/kept"
	want := strings.Repeat("kept", 1<<18)
	if err := os.WriteFile(kept, []byte(want), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Run(t.Context(), "put", kept); err != nil {
		t.Fatal(err)
	}
	bystander := opened(t, n)
	hostile := opened(t, n)
	// Every page around its own buffer, until it leaves what is mapped.
	hostile.ask("scan 0 1000000000")
	bystander.want("good", "verify")
	got, err := n.Run(t.Context(), "get", "kept", "-o", "-")
	if err != nil || got != want {
		t.Errorf("the object in the store changed, or is gone: %v", err)
	}
}

func TestKilledWorker(t *testing.T) {
	t.Parallel()
	n := node(t)
	p := opened(t, n)
	serving := workers(t, n)
	if len(serving) != 1 {
		t.Fatalf("%d serving workers", len(serving))
	}
	p.want("spin 0", "spin") // one kernel is running
	for pid := range serving {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	failed(t, p.ask("add 1"))
	failed(t, p.ask("verify"))
	p.want("again", "again")
	p.want("good", "verify")
}

// TestKilledClient: whatever a client was doing, and though its forked child still holds its socket, all it had is
// gone.
func TestKilledClient(t *testing.T) {
	t.Parallel()
	n := node(t)
	other := opened(t, n)
	other.want("good", "verify")
	before := workers(t, n)
	for _, doing := range []string{"", "open", "open spin", "open compile", "open linger", "open spin linger"} {
		t.Run(doing, func(t *testing.T) {
			p := start(t, n)
			for _, command := range strings.Fields(doing) {
				answer := p.ask("%s 60", command)
				if child, ok := strings.CutPrefix(answer, "linger "); ok {
					pid, err := strconv.Atoi(child)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { syscall.Kill(pid, syscall.SIGKILL) })
				}
			}
			p.cmd.Process.Kill()
			p.cmd.Process.Wait()
			eventually(t, func() error {
				s, err := n.Status(t.Context())
				if err == nil && len(s.Sessions) != 1 {
					err = fmt.Errorf("sessions %v", s.Sessions)
				}
				if now := workers(t, n); err == nil && fmt.Sprint(now) != fmt.Sprint(before) {
					err = fmt.Errorf("serving workers %v, before %v", now, before)
				}
				return err
			})
		})
	}
	other.want("good", "verify")
}

// TestKilledDaemon: its workers end with it, programs get errors, and a new daemon takes the socket over.
func TestKilledDaemon(t *testing.T) {
	t.Parallel()
	n := node(t)
	p := opened(t, n)
	serving := workers(t, n)
	n.Kill()
	for pid := range serving {
		eventually(t, func() error {
			if err := syscall.Kill(pid, 0); err == nil {
				return fmt.Errorf("worker %d outlives its daemon", pid)
			}
			return nil
		})
	}
	failed(t, p.ask("add 1"))
	failed(t, p.ask("buffer 100000000"))
}

func TestForkedChildGetsAnError(t *testing.T) {
	t.Parallel()
	p := opened(t, node(t))
	p.want("child exited 7", "fork")
	p.want("add 0", "add 1")
	p.want("good", "verify")
}

func TestNoOpenCLOnTheMachine(t *testing.T) {
	t.Parallel()
	n := node(t, "TENDRIL_VENDORS="+t.TempDir())
	out, said, err := rig.Said(n.Command(t.Context(), "devices"), limit)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out+said, "pocl-opencl-icd") {
		t.Errorf("devices does not say what to install: %q", out)
	}
	if _, err := n.Run(t.Context(), "put", "doc.go", "--name", "d"); err != nil {
		t.Error(err)
	}
	need(t, "cc", noCC)
	cmd := n.Command(t.Context(), "run", "--", session)
	cmd.Stdin = strings.NewReader("open\n")
	said, err = rig.Output(cmd)
	if err == nil || strings.Contains(said, "ready") {
		t.Errorf("a program found a device where there is none: %q", said)
	}
}

// TestFullStore: clCreateBuffer fails when the memory is gone, and works again when it is back.
func TestFullStore(t *testing.T) {
	t.Parallel()
	n := node(t, "TENDRIL_CAPACITY=256MiB", "TENDRIL_WARM_MEMORY=none")
	p := opened(t, n)
	if got := p.ask("buffer %d", 1<<30); got != "buffer -4 none" && got != "buffer -61 none" {
		t.Errorf("1 GiB of 256 MiB: %q", got)
	}
	p.want("buffer 0 object", "buffer %d", 100<<20)
	if got := p.ask("buffer %d", 200<<20); got != "buffer -4 none" {
		t.Errorf("300 MiB of 256 MiB: %q", got)
	}
	p.want("add 0", "add 1")
	p.want("good", "verify")
	p.cmd.Process.Kill()
	p.cmd.Wait()
	eventually(t, idle(t.Context(), n))
	q := opened(t, n)
	q.want("buffer 0 object", "buffer %d", 200<<20)
}

// TestFateIsToldBeforeTheEnd: a program that ends at its first error leaves a line that says why.
func TestFateIsToldBeforeTheEnd(t *testing.T) {
	t.Parallel()
	n := node(t)
	for range 5 {
		need(t, "cc", noCC)
		need(t, "driver", hasDriver())
		cmd := n.Command(t.Context(), "run", "--", session)
		cmd.Stdin = strings.NewReader("open\nat 8 1\nquit\n")
		if _, complaint, err := rig.Said(cmd, limit); err != nil || strings.Count(complaint, "the worker of") != 1 {
			t.Errorf("%v: %q", err, complaint)
		}
	}
}
