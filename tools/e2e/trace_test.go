package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"tendril/forwarding/trace"
	"tendril/forwarding/trace/tracetest"
	"tendril/tools/e2e/rig"
)

// launches is what testdata/traced.c launches of each of its two kernels.
const launches = 200

// tracedProgram compiles testdata/traced.c.
func tracedProgram(t *testing.T) string {
	t.Helper()
	need(t, "cc", noCC)
	need(t, "driver", hasDriver())
	out := filepath.Join(t.TempDir(), "traced")
	if _, err := rig.Output(exec.Command("cc", "-std=gnu11", "-O1", "-Wall", "-o", out, "testdata/traced.c", "-lOpenCL",
		"-lpthread")); err != nil {
		t.Fatal(err)
	}
	return out
}

// checkTrace reads a trace and its summary of a program that got to its end.
func checkTrace(t *testing.T, path, summary string, atLeast int) (*tracetest.Checked, *trace.Summary) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c, err := tracetest.Check(f)
	if err != nil {
		t.Fatal(err)
	}
	for _, kernel := range []string{"left", "right"} {
		// Each launch is drawn twice: when the driver got it, and when it ran.
		if n := c.Names[kernel]; n < atLeast || n > 2*launches {
			t.Errorf("%d slices of kernel %s", n, kernel)
		}
	}
	if c.Arrows < atLeast || c.Categories["call"] < atLeast || c.Counters == 0 || c.Names["wait: blocking read"] == 0 &&
		c.Names["wait: clFinish"] == 0 {
		t.Errorf("%+v", c)
	}
	var s trace.Summary
	if summary == "" {
		return c, nil
	}
	if err := json.Unmarshal([]byte(summary), &s); err != nil {
		t.Fatalf("%v in %q", err, summary)
	}
	return c, &s
}

// runTraced runs a command that traces tracedProgram to the file out, and lets the program end once told finds all that
// it wants in the file: at the end, what a worker has not told is waited for for a second at most, or not at all. It
// gives what was written on stdout after the program's own line, and on stderr.
func runTraced(t *testing.T, cmd *exec.Cmd, out string, told func() error) (rest, said string, err error) {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watch := rig.WatchOver(cmd, limit)
	stdout := bufio.NewReader(pipe)
	if line, err := stdout.ReadString('\n'); err != nil || line != "done\n" {
		in.Close()
		cmd.Wait()
		t.Fatalf("the program's own output is not first: %q, %v\n%s", line, err, &stderr)
	}
	eventually(t, func() error {
		if err := cmd.Process.Signal(syscall.SIGUSR1); err != nil {
			return err
		}
		return told()
	})
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(stdout)
	err = errors.Join(err, cmd.Wait(), watch.End())
	return string(text), stderr.String(), err
}

// toldOfAll has every launch in a file.
func toldOfAll(out string) func() error {
	return func() error {
		f, err := os.Open(out)
		if err != nil {
			return err
		}
		defer f.Close()
		c, err := tracetest.Check(f)
		if err == nil && (c.Names["left"] != 2*launches || c.Names["right"] != 2*launches) {
			err = fmt.Errorf("%d and %d slices of the kernels", c.Names["left"], c.Names["right"])
		}
		return err
	}
}

func TestTrace(t *testing.T) {
	t.Parallel()
	program, n := tracedProgram(t), node(t)
	out := filepath.Join(t.TempDir(), "out.json")
	text, said, err := runTraced(t, n.Command(t.Context(), "trace", "-o", out, "--svg", out+".svg", "--json", "--",
		program), out, toldOfAll(out))
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	if b, err := os.ReadFile(out + ".svg"); err != nil || !bytes.Contains(b, []byte("queue")) ||
		!bytes.HasSuffix(b, []byte("</svg>\n")) {
		t.Errorf("the picture: %d bytes, %v", len(b), err)
	}
	c, s := checkTrace(t, out, text, 2*launches)
	if c.Names["left"] != 2*launches || s.Unmatched != 0 || s.Lost != 0 || s.Torn != 0 || s.Dropped != 0 {
		t.Errorf("%d slices, %d halves alone, %d lost, %d torn, %d dropped", c.Names["left"], s.Unmatched, s.Lost,
			s.Torn, s.Dropped)
	}
	if len(s.Kernels) != 2 || s.Kernels[0].Launches != launches || s.Kernels[1].Launches != launches ||
		s.Kernels[0].Device <= 0 {
		t.Errorf("kernels: %+v", s.Kernels)
	}
	verdicts := map[string]int{}
	for _, trip := range s.Trips {
		if trip.Cause == trace.CauseFirstLaunch.String() {
			verdicts[trip.Detail] += trip.Count
		}
	}
	if verdicts["left"] != 1 || verdicts["right"] != 1 || len(verdicts) != 2 {
		t.Errorf("first launches: %v", verdicts)
	}
	if len(s.Workers) != 1 || !strings.HasPrefix(s.Workers[0].Clock, "the program's clock") {
		t.Errorf("workers: %+v", s.Workers)
	}
	if len(s.Threads) != 3 {
		t.Errorf("threads: %+v", s.Threads)
	}
	eventually(t, idle(t.Context(), n))
}

// A program that crashes leaves its trace, and its exit code.
func TestTraceOfACrash(t *testing.T) {
	t.Parallel()
	program, n := tracedProgram(t), node(t)
	out := filepath.Join(t.TempDir(), "out.json")
	text, said, err := runTraced(t, n.Command(t.Context(), "trace", "-o", out, "--json", "--", program, "crash"), out,
		toldOfAll(out))
	exit := (*exec.ExitError)(nil)
	if !errors.As(err, &exit) || exit.ExitCode() != 128+int(syscall.SIGSEGV) {
		t.Fatalf("exit: %v\n%s", err, said)
	}
	checkTrace(t, out, text, 2*launches)
	eventually(t, idle(t.Context(), n))
}

// SIGUSR1 writes the file while the program runs; small files and short times drop what is old.
func TestTraceInBetween(t *testing.T) {
	t.Parallel()
	program, n := tracedProgram(t), node(t)
	out := filepath.Join(t.TempDir(), "out.json")
	cmd := n.Command(t.Context(), "trace", "-o", out, "--max-size", "1MiB", "--", program)
	_, said, err := runTraced(t, cmd, out, func() error { // what the worker saw comes a little later
		b, err := os.ReadFile(out)
		if err != nil {
			return err
		}
		if !bytes.Contains(b, []byte(`"cat":"device"`)) {
			return errors.New("no command of the worker's is in the file")
		}
		// The file has room for the newest part alone: it may be one thread's.
		if c, _ := checkTrace(t, out, "", 0); c.Names["left"]+c.Names["right"] == 0 || c.Arrows == 0 {
			t.Errorf("%+v", c)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	for _, want := range []string{"the program goes on", "calls by time", "clEnqueueNDRangeKernel",
		"first launch verdict"} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
	info, err := os.Stat(out)
	if err != nil || info.Size() > 1<<20 {
		t.Errorf("%v, %v", info, err)
	}
}

// A session of another machine, with TLS: both halves on one clock within a bound that is shown.
func TestTraceThroughTheNetwork(t *testing.T) {
	t.Parallel()
	program := tracedProgram(t)
	n, at, laptop := far(t)
	out := filepath.Join(t.TempDir(), "out.json")
	text, said, err := runTraced(t, n.Far(t.Context(), laptop, "trace", "--server", at, "-o", out, "--json", "--", program),
		out, toldOfAll(out))
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	c, s := checkTrace(t, out, text, 2*launches)
	if len(s.Workers) != 1 || !strings.HasPrefix(s.Workers[0].Clock, "clock ±") {
		t.Errorf("workers: %+v", s.Workers)
	}
	chunks := 0
	for _, w := range s.Wire {
		chunks += w.Chunks
	}
	if chunks == 0 || c.Names["chunk"] == 0 {
		t.Errorf("no chunk on a lane: %+v", s.Wire)
	}
	over := map[string]uint64{}
	for _, tr := range s.Transfers {
		over[tr.Name] = tr.Bytes
	}
	if over["clEnqueueWriteBuffer, over the network"] != 2<<20 ||
		over["clEnqueueReadBuffer, over the network"] != 2<<20 {
		t.Errorf("transfers: %+v", s.Transfers)
	}
}
