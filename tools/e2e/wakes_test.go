package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"tendril/tools/e2e/rig"
)

// Whoever waits for an event is woken, however the wait was begun and whenever the event ends: before, while or after
// somebody looks. TENDRIL_LONG=1 tries for some minutes.
func TestNobodyWaitsForEver(t *testing.T) {
	t.Parallel()
	need(t, "cc", noCC)
	need(t, "driver", hasDriver())
	n, address, config := far(t)
	program := filepath.Join(t.TempDir(), "wakes")
	if _, err := rig.Output(exec.Command("cc", "-std=gnu11", "-O1", "-Wall", "-o", program, "testdata/wakes.c",
		"-lOpenCL", "-lpthread")); err != nil {
		t.Fatal(err)
	}
	tries := 1
	if os.Getenv("TENDRIL_LONG") != "" {
		tries = 20
	}
	for name, flags := range map[string][]string{
		"unix": nil, "tls": {"--server", address}, "span": {"--server", "local", "--server", address},
	} {
		t.Run(name, func(t *testing.T) {
			for try := range tries {
				threads, seed := 1+try%3, rand.IntN(1<<30) // where one thread waits alone nothing else wakes it
				cmd := n.Command(t.Context(), append(append([]string{"run"}, flags...), "--", program, fmt.Sprint(seed),
					"60", fmt.Sprint(threads))...)
				cmd.Env = append(cmd.Env, "XDG_CONFIG_HOME="+config)
				if out, complaint, err := rig.Said(cmd, limit); err != nil ||
					out != fmt.Sprintf("done %d\n", 60*threads) {
					t.Fatalf("seed %d, %d threads: %v: %s%s", seed, threads, err, out, complaint)
				}
			}
		})
	}
}
