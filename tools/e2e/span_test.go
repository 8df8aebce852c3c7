package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tendril/tools/e2e/rig"
)

// TestOneContextOverTwoNodes runs one program natively and on a context over this node's device and another node's: the
// same commands in the same order of events give the same bytes.
func TestOneContextOverTwoNodes(t *testing.T) {
	need(t, "cc", noCC)
	near := node(t)
	_, address, config := far(t)
	program := filepath.Join(t.TempDir(), "span")
	_, err := rig.Output(exec.Command("cc", "-std=gnu11", "-O1", "-Wall", "-o", program, "testdata/span.c", "-lOpenCL"))
	need(t, "cc", err)
	rounds := 2
	if testing.Short() {
		rounds = 1
	}
	for seed := range rounds {
		args := []string{fmt.Sprint(seed + 1), "120"}
		native := exec.CommandContext(t.Context(), program, args...)
		native.Env = rig.Native()
		want, err := rig.Output(native)
		need(t, "driver", err)
		over := exec.CommandContext(t.Context(), near.Tendril(), append([]string{"run", "--server", "local", "--server", address, "--", program}, args...)...)
		over.Env = append(near.Env(), "XDG_CONFIG_HOME="+config)
		var said strings.Builder
		over.Stderr = &said
		got, err := over.Output()
		if err != nil || string(got) != want {
			t.Fatalf("seed %d: %v: %q, natively %q\n%s", seed+1, err, got, want, said.String())
		}
		if !strings.Contains(said.String(), "2 devices") {
			t.Errorf("not two devices: %s", said.String())
		}
	}
	if _, err := os.Stat(near.Socket()); err != nil {
		t.Error(err)
	}
}
