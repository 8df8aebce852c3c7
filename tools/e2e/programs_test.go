package e2e

import (
	"os/exec"
	"strings"
	"testing"

	"tendril/tools/e2e/rig"
)

// TestUnmodifiedPrograms: programs that were never told of Tendril.
func TestUnmodifiedPrograms(t *testing.T) {
	t.Parallel()
	need(t, "driver", hasDriver())
	n := node(t)
	t.Run("clinfo", func(t *testing.T) {
		need(t, "clinfo", installed("clinfo"))
		out, err := n.Run(t.Context(), "run", "--", "clinfo")
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"Number of platforms", "Tendril", "Device Name", "Max work group size"} {
			if !strings.Contains(out, want) {
				t.Errorf("clinfo does not say %q:\n%s", want, out)
			}
		}
		if strings.Contains(out, "Number of platforms                               2") {
			t.Errorf("clinfo sees another platform than ours:\n%s", out)
		}
	})
	t.Run("clpeak", func(t *testing.T) {
		need(t, "clpeak", installed("clpeak"))
		out, err := n.Run(t.Context(), "run", "--", "clpeak", "--kernel-latency")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out, "Kernel launch latency :") {
			t.Errorf("clpeak measured nothing:\n%s", out)
		}
	})
	t.Run("pyopencl", func(t *testing.T) {
		_, err := rig.Output(exec.Command("/usr/bin/python3", "-c", "import pyopencl, numpy"))
		need(t, "pyopencl", err)
		out, err := n.Run(t.Context(), "run", "--", "/usr/bin/python3", "testdata/smoke.py")
		if err != nil {
			t.Fatal(err)
		}
		if strings.TrimSpace(out) != "all good" {
			t.Errorf("smoke.py said %q", out)
		}
	})
	eventually(t, idle(t.Context(), n))
}

// A thread whose signal stack came and went with the program (CPython's faulthandler, so every run of pytest) can still
// call: the library's runtime sends itself no signals, which it could not take there.
func TestThreadWithoutItsSignalStack(t *testing.T) {
	t.Parallel()
	n := node(t)
	p := start(t, n)
	p.want("altstack 0", "altstack 1")
	p.ready()
	p.want("altstack 0", "altstack 0")
	p.want("copies 0", "copies 64")
	p.want("good", "verify")
}
