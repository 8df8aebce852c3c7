package e2e

import (
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"testing"

	"tendril/forwarding/trace"
	"tendril/tools/e2e/rig"
)

// way starts a program, over a node's socket or as from another machine, whose round trips are counted in a file.
type way struct {
	name  string
	start func(t *testing.T, counters string, program ...string) *program
}

// TestBudgets: what programs wait for and what they hold.
func TestBudgets(t *testing.T) {
	t.Parallel()
	need(t, "cc", noCC)
	need(t, "driver", hasDriver())
	n, address, config := far(t)
	eventually(t, func() error { return warm(t, n) })
	counted := func(t *testing.T, cmd *exec.Cmd, counters string) *program {
		cmd.Env = append(cmd.Env, "TENDRIL_COUNTERS="+counters)
		return begin(t, cmd)
	}
	for _, w := range []way{
		{"unix", func(t *testing.T, counters string, program ...string) *program {
			return counted(t, n.Command(t.Context(), append([]string{"run", "--"}, program...)...), counters)
		}},
		{"tls", func(t *testing.T, counters string, program ...string) *program {
			return counted(t, n.Far(t.Context(), config,
				append([]string{"run", "--server", address, "--"}, program...)...), counters)
		}},
	} {
		t.Run("queries/"+w.name, func(t *testing.T) { queriesAreOneRoundTrip(t, w) })
		t.Run("first kernel/"+w.name, func(t *testing.T) { firstKernelsRoundTrips(t, w) })
		t.Run("buffers/"+w.name, func(t *testing.T) { buffersHaveNoDescriptors(t, n, w) })
	}
}

// warm holds once the node knows its devices and has a worker ready: what comes before is no program's doing.
func warm(t *testing.T, n *rig.Node) error {
	s, err := n.Status(t.Context())
	if err == nil && len(s.Workers) == 0 {
		err = fmt.Errorf("no worker yet: %+v", s)
	}
	return err
}

// queriesAreOneRoundTrip: all that clinfo asks of platforms and devices comes with the connection. The rest is for a
// kernel that it builds to learn the preferred size of work-groups.
func queriesAreOneRoundTrip(t *testing.T, w way) {
	need(t, "clinfo", installed("clinfo"))
	counters := filepath.Join(t.TempDir(), "counters")
	p := w.start(t, counters, "clinfo")
	watch := rig.WatchOver(p.cmd, limit)
	for p.out.Scan() { // to its end
	}
	if err := errors.Join(p.cmd.Wait(), watch.End()); err != nil {
		t.Fatalf("%v\n%s", err, p.err)
	}
	wantTrips(t, counters, map[trace.Cause]uint64{trace.CauseConnect: 1, trace.CauseStartWorker: 1, trace.CauseHello: 1,
		trace.CauseBuild: 1})
}

// firstKernelsRoundTrips: from the first call to the end of the first kernel nothing is waited for that need not be.
func firstKernelsRoundTrips(t *testing.T, w way) {
	counters := filepath.Join(t.TempDir(), "counters")
	w.start(t, counters, session).ready()
	want := map[trace.Cause]uint64{
		trace.CauseConnect: 1, trace.CauseStartWorker: 1, trace.CauseHello: 1, trace.CauseBuild: 1,
		trace.CauseFirstLaunch: 1, trace.CauseFinish: 1,
	}
	want[map[string]trace.Cause{"unix": trace.CauseSegment, "tls": trace.CauseWrite}[w.name]] = 1 // 256 KiB of contents
	wantTrips(t, counters, want)
}

// buffersHaveNoDescriptors, however many there are: neither in the program nor in the daemon nor in the worker.
func buffersHaveNoDescriptors(t *testing.T, n *rig.Node, w way) {
	p := w.start(t, filepath.Join(t.TempDir(), "counters"), session)
	p.ready()
	held := func() (all int) {
		s, err := n.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		pids := []int{p.cmd.Process.Pid, n.PID()}
		for _, w := range s.Workers {
			if w.State == "serving" {
				pids = append(pids, w.PID)
			}
		}
		if len(pids) < 3 {
			t.Fatalf("no worker serves: %+v", s.Workers)
		}
		for _, pid := range pids {
			h, err := of(pid)
			if err != nil {
				t.Fatal(err)
			}
			all += h.descriptors
		}
		return all
	}
	before := held()
	p.want("buffers 0", "buffers 100000 64")
	p.want("good", "verify") // the worker knows of all of them
	if after := held(); after > before+32 {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// wantTrips compares what a program waited for with what it had to.
func wantTrips(t *testing.T, counters string, want map[trace.Cause]uint64) {
	t.Helper()
	counts, err := trace.ReadCounters(counters)
	if err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(counts, func(_ trace.Cause, n uint64) bool { return n == 0 })
	if !maps.Equal(counts, want) {
		t.Errorf("round trips %v, want %v", counts, want)
	}
}
