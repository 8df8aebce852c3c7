package e2e

import (
	"context"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tendril/tools/e2e/rig"
)

// built compiles one of the differential runner's programs.
func built(t *testing.T, name string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), name)
	cc := exec.CommandContext(t.Context(), "cc", "-O1", "-w", "-o", out,
		filepath.Join("..", "difftest", "tests", name+".c"), "-lOpenCL", "-lpthread", "-lm")
	if _, err := rig.Output(cc); err != nil {
		t.Fatal(err)
	}
	return out
}

// output runs a program on the node and returns what it says.
func output(t *testing.T, n *rig.Node, args ...string) (said, complained string, err error) {
	t.Helper()
	return rig.Said(n.Command(t.Context(), append([]string{"run"}, args...)...), 2*limit) // it is cut again and again
}

func serving(n *rig.Node) bool {
	s, err := n.Status(context.Background())
	if err != nil {
		return false
	}
	for _, w := range s.Workers {
		if w.State == "serving" && w.Session != 0 {
			return true
		}
	}
	return false
}

// cutting cuts a session's connections once it has begun, for it can go on only then, again and again until it is asked
// how often it did. Between two cuts it gets on: a machine may take longer to connect than any pause.
func cutting(proxy *rig.Proxy, begun func() bool) (cuts func() int) {
	over, cut := make(chan struct{}), make(chan int)
	go func() {
		times, pause, passed, last := 0, time.Duration(rand.IntN(20))*time.Millisecond, int64(0), time.Time{}
		for begins := false; ; {
			select {
			case <-over:
				cut <- times
				return
			case <-time.After(pause):
			}
			if !begins {
				begins = begun()
				continue
			}
			if proxy.Passed() < passed+getsOn && time.Since(last) < 5*time.Second {
				pause = 20 * time.Millisecond
				continue
			}
			proxy.CutAll()
			passed, last = proxy.Passed(), time.Now()
			times++
			pause = time.Duration(200+rand.IntN(400)) * time.Millisecond
		}
	}()
	return func() int {
		close(over)
		return <-cut
	}
}

// getsOn is what a session has to pass by a proxy between two cuts, in bytes: more than it takes to come back.
const getsOn = 48 << 10

// Programs whose connections are cut again and again say what they say undisturbed.
func TestResultsWhileConnectionsAreCut(t *testing.T) {
	t.Parallel()
	n, proxy := middle(t)
	for _, name := range []string{"rects", "volume"} {
		t.Run(name, func(t *testing.T) {
			program := built(t, name)
			want, complained, err := output(t, n, "--", program)
			if err != nil {
				t.Fatalf("undisturbed: %v\n%s", err, complained)
			}
			for _, way := range [][]string{nil, {"--plaintext"}} {
				eventually(t, idle(t.Context(), n)) // the worker that serves is this run's
				cuts := cutting(proxy, func() bool { return serving(n) })
				got, complained, err := output(t, n,
					append(append([]string{"--server", proxy.Address(), "--on-loss", "60"}, way...), "--", program)...)
				t.Logf("%v: cut %d times", way, cuts())
				if err != nil || got != want {
					t.Errorf("%v: %v\nsaid:\n%s\nwant:\n%s\ncomplained:\n%s", way, err, got, want, complained)
				}
			}
		})
	}
	eventually(t, idle(t.Context(), n))
}

// A context over two devices whose workers are linked goes on while the program's connections to one of them are cut.
func TestLinkedWhileConnectionsAreCut(t *testing.T) {
	t.Parallel()
	program := spanProgram(t)
	n, proxy := middle(t)
	at, err := n.Listening(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	peersOf(t, n, n, at)
	want := natively(t, program, 5)
	cuts := cutting(proxy, func() bool { return strings.Count(n.Log(), "two workers are linked") == 2 })
	got, complained, err := output(t, n, "--server", "local", "--server", proxy.Address(), "--on-loss", "60", "--",
		program, "5", "120")
	t.Logf("cut %d times", cuts())
	if err != nil || got != want {
		t.Errorf("%v: %q, natively %q\n%s", err, got, want, complained)
	}
	logged(t, n, 2, "two workers are linked")
	eventually(t, idle(t.Context(), n))
}
