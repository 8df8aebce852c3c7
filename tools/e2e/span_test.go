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
	"tendril/forwarding/trace/tracetest"
	"tendril/tools/e2e/rig"
)

// spanProgram compiles testdata/span.c.
func spanProgram(t *testing.T) string {
	t.Helper()
	return cProgram(t, "testdata/span.c")
}

// natively runs spanProgram on the driver itself.
func natively(t *testing.T, program string, seed int) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, fmt.Sprint(seed), "120")
	cmd.Env = rig.Native()
	said, err := rig.Output(cmd)
	need(t, "driver", err)
	return said
}

// cProgram makes a program of a C file.
func cProgram(t *testing.T, source string) string {
	t.Helper()
	need(t, "cc", noCC)
	out := filepath.Join(t.TempDir(), strings.TrimSuffix(filepath.Base(source), ".c"))
	_, err := rig.Output(exec.Command("cc", "-std=gnu11", "-O1", "-Wall", "-Wno-unused-function", "-o", out,
		source, "-lOpenCL"))
	need(t, "cc", err)
	return out
}

// pushedBy runs a program over two nodes whose workers are linked, and sums up what went from worker to worker.
func pushedBy(t *testing.T, program string, env ...string) (bytes uint64, said string) {
	t.Helper()
	s, said := tracedOverTwo(t, program, env...)
	for _, p := range s.Pushes {
		if p.Lost > 0 {
			t.Errorf("pushes lost their link: %+v", p)
		}
		bytes += p.Bytes
	}
	return bytes, said
}

// tracedOverTwo runs a program over two nodes whose workers are linked, under a trace.
func tracedOverTwo(t *testing.T, program string, env ...string) (s trace.Summary, said string) {
	t.Helper()
	near := node(t)
	there, address, config := far(t)
	peersOf(t, near, there, address)
	cmd := near.Command(t.Context(), "trace", "--server", "local", "--server", address, "-o",
		filepath.Join(t.TempDir(), "out.json"), "--json", "--", program, "few")
	cmd.Env = append(append(near.Env(), "XDG_CONFIG_HOME="+config, "DT_SPAN=1"), env...)
	text, err := rig.Output(cmd)
	if err != nil {
		t.Fatal(err)
	}
	said, summary, _ := strings.Cut(text, "{")
	if err := json.Unmarshal([]byte("{"+summary), &s); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return s, said
}

// Pushes of buffers with content size buffers bring what means something alone, and the results are the same as when
// all comes.
func TestContentBetweenTwoNodes(t *testing.T) {
	t.Parallel()
	need(t, "driver", hasDriver())
	program := cProgram(t, "../difftest/tests/content.c")
	content, said := pushedBy(t, program)
	all, same := pushedBy(t, program, "DT_WHOLE=1")
	if said != same || strings.Count(said, "few ") != 8 {
		t.Errorf("%q, without content sizes %q", said, same)
	}
	const results = 10_000 * (1 + 2 + 3 + 4 + 5 + 6 + 7)
	if content < results || content > 2*results+1<<20 || all < 8*4<<20 {
		t.Errorf("%d bytes went from worker to worker, without content sizes %d", content, all)
	}
}

// Images of all kinds go from worker to worker, none of their bytes by way of the program.
func TestImagesBetweenTwoNodes(t *testing.T) {
	t.Parallel()
	need(t, "driver", hasDriver())
	s, said := tracedOverTwo(t, cProgram(t, "testdata/images.c"))
	if strings.Count(said, " right\n") != 6 {
		t.Errorf("%q", said)
	}
	var pushed, crossed uint64
	for _, p := range s.Pushes {
		pushed += p.Bytes
	}
	for _, w := range s.Wire {
		crossed += w.Bytes
	}
	if pushed < 4*4*4<<20 || crossed > 1<<20 { // four turns of four images of 4 MiB
		t.Errorf("%d bytes from worker to worker, %d on the program's links", pushed, crossed)
	}
}

// peersOf names a node as a peer of another.
func peersOf(t *testing.T, of, node *rig.Node, address string) {
	t.Helper()
	if err := of.AddPeer(t.Context(), node, address); err != nil {
		t.Fatal(err)
	}
	if out, err := of.Run(t.Context(), "peer", "ls"); err != nil || !strings.Contains(out, address) {
		t.Fatalf("%v: %s", err, out)
	}
}

// TestOneContextOverTwoNodes runs one program natively and on a context over this node's device and another node's: the
// same commands in the same order of events give the same bytes, with a link between the workers and without one.
func TestOneContextOverTwoNodes(t *testing.T) {
	t.Parallel()
	program := spanProgram(t)
	near := node(t)
	there, address, config := far(t)
	over := func(seed int, want, env string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), near.Tendril(), "run", "--server", "local", "--server", address, "--",
			program, fmt.Sprint(seed), "120")
		cmd.Env = near.Env("XDG_CONFIG_HOME="+config, env)
		got, said, err := rig.Said(cmd, limit)
		if err != nil || got != want {
			t.Fatalf("seed %d, %s: %v: %q, natively %q\n%s", seed, env, err, got, want, said)
		}
		if !strings.Contains(said, "2 devices") {
			t.Errorf("not two devices: %s", said)
		}
	}
	rounds := 2
	if testing.Short() {
		rounds = 1
	}
	over(9, natively(t, program, 9), "TENDRIL_PEERS=")
	logged(t, near, 1, "no link between two workers")
	logged(t, near, 1, "peer add HOST:PORT")
	peersOf(t, near, there, address)
	for seed := range rounds {
		want := natively(t, program, seed+1)
		over(seed+1, want, "TENDRIL_PEERS=off")
		over(seed+1, want, "TENDRIL_PEERS=on")
	}
	for _, n := range []*rig.Node{near, there} {
		logged(t, n, 1, "two workers are linked")
	}
}

// logged waits until a node's log has a text so many times. A program tells its nodes of links, and does not wait until
// they have written it.
func logged(t *testing.T, n *rig.Node, times int, text string) {
	t.Helper()
	eventually(t, func() error {
		if log := n.Log(); strings.Count(log, text) < times {
			return fmt.Errorf("the node's log does not have %q %d times:\n%s", text, times, log)
		}
		return nil
	})
}

// A trace of a context that spans has both workers, each on a clock of its own, and each one's kernels.
func TestTraceOfAContextThatSpans(t *testing.T) {
	t.Parallel()
	need(t, "driver", hasDriver())
	program, near := spanProgram(t), node(t)
	there, address, config := far(t)
	peersOf(t, near, there, address)
	out := filepath.Join(t.TempDir(), "out.json")
	cmd := near.Command(t.Context(), "trace", "--server", "local", "--server", address, "-o", out, "--json", "--",
		program, "1", "120")
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
	c, err := tracetest.Check(f)
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
	if len(s.Pushes) == 0 || s.Pushes[0].Bytes == 0 || c.Categories["push"] == 0 || len(s.Notes) > 0 &&
		strings.Contains(s.Notes[0], "no link") {
		t.Errorf("from worker to worker: %+v, %+v, %q", s.Pushes, c.Categories, s.Notes)
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
