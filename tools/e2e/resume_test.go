package e2e

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"tendril/tools/e2e/rig"
)

// built compiles one of the differential runner's programs.
func built(t *testing.T, name string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), name)
	cc := exec.CommandContext(t.Context(), "cc", "-O1", "-w", "-o", out, filepath.Join("..", "difftest", "tests", name+".c"), "-lOpenCL", "-lpthread", "-lm")
	if said, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	return out
}

// output runs a program on the node and returns what it says.
func output(t *testing.T, n *rig.Node, args ...string) (said, complained string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	cmd := n.Command(ctx, append([]string{"run"}, args...)...)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err = cmd.Run()
	return out.String(), complaint.String(), err
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

// Programs whose connections are cut again and again say what they say undisturbed.
func TestResultsWhileConnectionsAreCut(t *testing.T) {
	n, proxy := middle(t)
	for _, name := range []string{"rects", "volume"} {
		t.Run(name, func(t *testing.T) {
			program := built(t, name)
			want, complained, err := output(t, n, "--", program)
			if err != nil {
				t.Fatalf("undisturbed: %v\n%s", err, complained)
			}
			for _, way := range [][]string{nil, {"--plaintext"}} {
				over, cut := make(chan struct{}), make(chan int)
				go func() {
					cuts := 0
					for !serving(n) { // only a session that has begun can go on
						time.Sleep(20 * time.Millisecond)
						select {
						case <-over:
							cut <- cuts
							return
						default:
						}
					}
					for {
						select {
						case <-over:
							cut <- cuts
							return
						case <-time.After(time.Duration(200+rand.IntN(400)) * time.Millisecond):
							proxy.CutAll()
							cuts++
						}
					}
				}()
				got, complained, err := output(t, n, append(append([]string{"--server", proxy.Address()}, way...), "--", program)...)
				close(over)
				t.Logf("%v: cut %d times", way, <-cut)
				if err != nil || got != want {
					t.Errorf("%v: %v\nsaid:\n%s\nwant:\n%s\ncomplained:\n%s", way, err, got, want, complained)
				}
			}
		})
	}
	eventually(t, idle(t.Context(), n))
}
