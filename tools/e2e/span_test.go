package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tendril/forwarding/trace"
	"tendril/tools/e2e/rig"
)

// spanProgram compiles testdata/span.c.
func spanProgram(t *testing.T) string {
	t.Helper()
	need(t, "cc", noCC)
	out := filepath.Join(t.TempDir(), "span")
	_, err := rig.Output(exec.Command("cc", "-std=gnu11", "-O1", "-Wall", "-o", out, "testdata/span.c", "-lOpenCL"))
	need(t, "cc", err)
	return out
}

// TestOneContextOverTwoNodes runs one program natively and on a context over this node's device and another node's: the
// same commands in the same order of events give the same bytes.
func TestOneContextOverTwoNodes(t *testing.T) {
	program := spanProgram(t)
	near := node(t)
	_, address, config := far(t)
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

// A trace of a context that spans has both workers, each on a clock of its own, and each one's kernels.
func TestTraceOfAContextThatSpans(t *testing.T) {
	need(t, "driver", hasDriver())
	program, near := spanProgram(t), node(t)
	_, address, config := far(t)
	out := filepath.Join(t.TempDir(), "out.json")
	cmd := near.Command(t.Context(), "trace", "--server", "local", "--server", address, "-o", out, "--json", "--", program, "1", "120")
	cmd.Env = append(near.Env(), "XDG_CONFIG_HOME="+config)
	text, err := rig.Output(cmd)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c, err := trace.CheckPerfetto(f)
	if err != nil {
		t.Fatal(err)
	}
	if c.Names["mix_"] == 0 || c.Names["iota"] == 0 || c.Arrows == 0 {
		t.Errorf("%+v", c)
	}
	var s trace.Summary
	if err := json.Unmarshal([]byte(text[strings.Index(text, "{"):]), &s); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	if len(s.Workers) != 2 {
		t.Fatalf("workers: %+v", s.Workers)
	}
	clocks := map[bool]int{}
	crossed := map[uint32]uint64{}
	for _, w := range s.Workers {
		clocks[strings.HasPrefix(w.Clock, "clock ±")]++
	}
	for _, w := range s.Wire {
		crossed[w.Worker] += w.Bytes
	}
	if clocks[true] != 1 || clocks[false] != 1 || len(crossed) != 2 {
		t.Errorf("workers %+v, bytes %v", s.Workers, crossed)
	}
	for _, k := range s.Kernels {
		if k.Launches == 0 || k.Device <= 0 {
			t.Errorf("%+v", k)
		}
	}
}
