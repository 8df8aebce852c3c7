package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"tendril/daemon"
	"tendril/forwarding/trace"
	"tendril/tools/e2e/await"
)

// TestTraceReport: what there is is shown, long rankings are cut and say so, what a program named itself does nothing
// to the terminal, and a count of nothing is no division by it.
func TestTraceReport(t *testing.T) {
	var out, errs bytes.Buffer
	c := &cli{term: terminal{out: &out, err: &errs}}
	tr := &tracer{c: c, o: &traceOptions{out: "out.json"}}
	s := &trace.Summary{Wall: 3_000_000_000, TripCount: 7,
		Threads: []trace.ThreadTime{{Process: "prog", Span: 2_000_000, InCalls: 1_000_000, Waiting: 10}, {}},
		Calls:   []trace.CallTime{{Name: "clFinish", Count: 2, Total: 2000, Longest: 1500, Bytes: 2048}},
		Stages: []trace.StageTime{{Name: "a"}, {Name: "b", Count: 1, Total: 5}, {Name: "c", Count: 1},
			{Name: "d", Count: 1}, {Name: "beyond those that are known", Count: 1}},
		Transfers: []trace.TransferTime{{Name: "write", Count: 1, Bytes: 1 << 20, Time: 1, BytesPerSecond: 1 << 30}},
		Trips: []trace.TripTime{{Cause: "build", Count: 1, Total: 9, Detail: "x", Behind: "y"}, {Cause: "own", Own: true},
			{Cause: "first", Count: 1, Behind: "z"}},
		Wire: []trace.WireBytes{{Direction: "to the worker", Worker: 1, Bytes: 10, ChunkBytes: 10, Moved: 40},
			{Direction: "from", ChunkBytes: 10, Moved: 10}},
		Pushes:  []trace.PushBytes{{From: 1, To: 2, Count: 3, Lost: 1}},
		Workers: []trace.WorkerSummary{{Number: 1, Name: "w", Clock: "2 µs"}},
		Notes:   []string{"a note\x1b]0;title\x07"}, Lost: 4, Unmatched: 5}
	for i := range 15 {
		s.Kernels = append(s.Kernels, trace.KernelTime{Name: "\x1b[2Jkernel\u202e", Launches: i, Device: int64(i)})
	}
	if err := tr.report(s); err != nil {
		t.Fatal(err)
	}
	said := errs.String()
	for _, want := range []string{"wrote out.json", "3s from the first", "prog / -", "- / -", "clFinish", "2.0 KiB", "round trips: 7",
		"x, behind y", "behind z", "and 3 more (--json has all)", `\x1b[2Jkernel\u202e`, "1.0 GiB/s", "40 B to 25 %",
		"2 µs", `a note\x1b]0;title\a`, "overwritten by newer ones (use a larger --max-size): 4", "or never reported: 5"} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	for _, wrong := range []string{"\x1b", "\u202e", "beyond those", "own", "NaN", "that did not fit"} {
		if strings.Contains(said, wrong) {
			t.Errorf("it says %q", wrong)
		}
	}
	if t.Failed() {
		t.Log(said)
	}
	errs.Reset()
	if err := tr.report(&trace.Summary{}); err != nil || !strings.Contains(errs.String(), "made no OpenCL call") {
		t.Errorf("%q, %v", errs.String(), err)
	}
	c.json = true
	var back trace.Summary
	if err := tr.report(s); err != nil || json.Unmarshal(out.Bytes(), &back) != nil || len(back.Kernels) != 15 {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// withLibrary gives a node whose programs find a driver library, which is none: programs without OpenCL run as ever.
func withLibrary(t *testing.T, args ...string) *node {
	t.Helper()
	const system = "/etc/OpenCL/vendors"
	if _, err := os.Stat(filepath.Join(system, "pocl.icd")); err != nil {
		t.Skip("PoCL is not installed:", err)
	}
	n := startNode(t, append([]string{"--vendors", system}, args...)...)
	n.want(0, []string{"uuid"}, "devices", "--json") // waits for the probe
	n.env = append(n.env, "TENDRIL_LIBRARY="+goProgram(t, "test"))
	return n
}

// TestTrace: the exit code is the program's, whatever it is, and the file is there whole; a wrong use is said before
// the program starts.
func TestTrace(t *testing.T) {
	n := withLibrary(t)
	file := filepath.Join(n.dir, "out.json")
	for code, script := range map[int]string{0: "true", 5: "exit 5", 128 + 9: "kill -9 $$", 128 + 15: "kill $$"} {
		os.Remove(file)
		n.want(code, []string{"wrote " + file, "made no OpenCL call"}, "trace", "-o", file, "--svg",
			filepath.Join(n.dir, "out.svg"), "--", "sh", "-c", script)
		if text, err := os.ReadFile(file); err != nil || !json.Valid(text) {
			t.Errorf("%s: %q, %v", script, text, err)
		}
	}
	var s trace.Summary
	if out := n.want(0, nil, "trace", "--json", "-o", file, "--", "true"); json.Unmarshal([]byte(out), &s) != nil {
		t.Errorf("--json: %q", out)
	}
	left := n.file("left", nil)
	for says, args := range map[string][]string{
		"needs a program":   {},
		"--max-size":        {"--max-size", "1KiB", "--", "touch", left},
		"--last":            {"--last", "-3s", "--", "touch", left},
		"no such directory": {"-o", filepath.Join(n.dir, "none", "x.json"), "--", "touch", left},
		"no program":        {"--", "no-such-program-anywhere"},
	} {
		code, out, errs := n.run("", append([]string{"trace"}, args...)...)
		if code == 0 || !strings.Contains(out+errs, says) {
			t.Errorf("%v: %d, %s%s", args, code, out, errs)
		}
	}
	if list, _ := filepath.Glob(filepath.Join(n.dir, ".out*")); len(list) > 0 {
		t.Errorf("left over: %v", list)
	}
}

// TestTraceWhileItRuns: SIGUSR1 writes what there is, and other signals are the program's.
func TestTraceWhileItRuns(t *testing.T) {
	n := withLibrary(t)
	file, up := filepath.Join(n.dir, "out.json"), filepath.Join(n.dir, "up")
	cmd := exec.Command(filepath.Join(built, "tendril"), "trace", "-o", file, "--", "sh", "-c",
		`trap 'exit 7' TERM; touch "$0"; while :; do sleep 0.01; done`, up) // Pause: the shell has no other wait
	var errs bytes.Buffer
	cmd.Env, cmd.Dir, cmd.Stderr = n.env, n.dir, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	there := func(path string) func() bool {
		return func() bool { _, err := os.Stat(path); return err == nil }
	}
	await.Until(t, "start of the program", there(up))
	cmd.Process.Signal(syscall.SIGUSR1)
	await.Until(t, "file while the program runs", there(file))
	cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Wait() // it is its exit code that counts
	if code := cmd.ProcessState.ExitCode(); code != 7 || !strings.Contains(errs.String(), "the program goes on") {
		t.Errorf("%d, %s", code, &errs)
	}
}

// TestLease: a program has devices for itself, is told which, and gives them back with its end.
func TestLease(t *testing.T) {
	n := withLibrary(t)
	n.want(0, []string{"nobody waits for one"}, "leases")
	for _, args := range [][]string{{"leases", "--json"}, {"leases", "ls", "--json"}, {"leases", "list", "--json"}} {
		if out := n.want(0, nil, args...); strings.TrimSpace(out) != "[]" {
			t.Errorf("no leases: %q: %q", args, out)
		}
	}
	tendril := filepath.Join(built, "tendril")
	out := n.want(6, []string{"PROGRAM"}, "lease", "-n", "all", "--", "sh", "-c",
		`"$0" leases; "$0" lease -- true; code=$?; echo "$TENDRIL_LEASE|$CUDA_VISIBLE_DEVICES|$code"; exit 6`, tendril)
	last := strings.Split(strings.TrimSpace(out), "\n")
	if got := last[len(last)-1]; !strings.HasPrefix(got, "token:") || !strings.Contains(got, "|NoDevFiles|") ||
		strings.HasSuffix(got, "|0") { // a second lease finds no device
		t.Errorf("%q", got)
	}
	for range 10 { // they are free again as soon as a program has ended
		var leased []daemon.SessionStatus
		if out := n.want(0, nil, "lease", "--", "sh", "-c", `exec "$0" session ls --json`, tendril); json.Unmarshal(
			[]byte(out), &leased) != nil || len(leased) != 1 || leased[0].Program != "sh" {
			t.Errorf("the session of a leased program: %s", out)
		}
	}
	n.want(0, []string{" sh"}, "lease", "--", "sh", "-c", `exec "$0" leases`, tendril)
	for says, args := range map[string][]string{
		"needs a program":   {},
		"--count":           {"-n", "0", "--", "true"},
		"--wait":            {"--wait=soon", "--", "true"},
		"--device":          {"--device", "speed=fast", "--", "true"},
		"none that matches": {"--device", "type=gpu", "--", "true"},
		"no program":        {"--", "no-such-program-anywhere"},
	} {
		code, out, errs := n.run("", append([]string{"lease"}, args...)...)
		if code == 0 || !strings.Contains(out+errs, says) {
			t.Errorf("%v: %d, %s%s", args, code, out, errs)
		}
	}
}

// TestWatch: events come in their order, of the prefix alone, and the command ends after as many as were asked for.
func TestWatch(t *testing.T) {
	n := startNode(t)
	n.file("a", []byte("contents"))
	cmd := exec.Command(filepath.Join(built, "tendril"), "watch", "w-", "--json", "-n", "4")
	var out, errs bytes.Buffer
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = n.env, n.dir, &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	deadline := time.After(5 * time.Minute)
	for i := 0; ; i++ { // until it has seen enough: nothing says when it begins to look
		n.want(0, nil, "put", "a", "--name", "other")
		n.want(0, nil, "put", "a", "--name", "w-1")
		n.want(0, nil, "rm", "other", "w-1")
		select {
		case err := <-ended:
			if err != nil {
				t.Fatalf("%v\n%s", err, &errs)
			}
		case <-deadline:
			t.Fatalf("no end after %d rounds: %s", i, &out)
		default:
			continue
		}
		break
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 4 || strings.Contains(out.String(), `"other"`) {
		t.Errorf("%d lines:\n%s", len(lines), &out)
	}
	for _, line := range lines {
		if !json.Valid([]byte(line)) || !strings.Contains(line, `"w-1"`) {
			t.Errorf("%s", line)
		}
	}
}

// TestOneNodesCluster: a node alone is a cluster of one, of which it says so; what needs another node is refused.
func TestOneNodesCluster(t *testing.T) {
	n := startNode(t)
	n.file("a", []byte("contents"))
	n.want(0, []string{"testnode (this one)", "leader", "authority"}, "cluster", "status")
	if out := n.want(0, nil, "cluster", "status", "--json"); !json.Valid([]byte(out)) {
		t.Errorf("%q", out)
	}
	n.want(0, nil, "put", "a", "--name", "a")
	n.want(0, nil, "publish", "a")
	n.want(0, []string{"next replica: no node"}, "place", "a")
	n.want(0, []string{"published", "as a, 1 of 1 replica at testnode\n"}, "stat", "a")
	n.want(0, []string{`"publication": {`, `"wanted": 1`, `"have": 1`, `"testnode"`}, "stat", "a", "--json")
	n.want(0, []string{"a cluster of one already"}, "cluster", "recover", "--yes")
	n.want(0, []string{`"alone": true`, `"done": false`}, "cluster", "recover", "--json")
	n.want(0, []string{"a"}, "ls", "--published")
	for says, args := range map[string][]string{
		`no node "elsewhere"`: {"drain", "elsewhere"},
		"not found":           {"unpublish", "nothing"},
		"begins with":         {"cluster", "join", "127.0.0.1:1", "--token", "nonsense"},
	} {
		code, out, errs := n.run("", args...)
		if code == 0 || !strings.Contains(out+errs, says) {
			t.Errorf("%v: %d, %s%s", args, code, out, errs)
		}
	}
	n.want(0, nil, "unpublish", "a")
	if out := n.want(0, nil, "stat", "a"); strings.Contains(out, "published") {
		t.Errorf("still published:\n%s", out)
	}
	if out := n.want(0, nil, "ls", "--published"); strings.Contains(out, "a ") {
		t.Errorf("still published:\n%s", out)
	}
	n.want(0, []string{"there is nothing to move"}, "drain")
	n.want(0, []string{`"moved": 0`, `"left": []`}, "drain", "--json")
	n.want(0, nil, "publish", "a")
	if code, out, errs := n.run("", "drain", "--json"); code == 0 || !strings.Contains(out, `"why": `) ||
		!strings.Contains(errs, "run tendril drain again") || !strings.Contains(errs, "tendril unpublish") {
		t.Errorf("with an object that can go nowhere: %d, %s%s", code, out, errs)
	}
}

// TestWhatIsMeant: what is mistyped, or cannot be, is said in words that lead on.
func TestWhatIsMeant(t *testing.T) {
	n := startNode(t)
	n.want(0, nil, "put", n.file("x", []byte("x")), "--name", "x", "--publish")
	n.want(exitUsage, []string{`--to "uid:x": want a number after uid:`}, "share", "x", "--to", "uid:x")
	n.want(exitExists, []string{"published already as", "tendril unpublish"}, "publish", "x", "--name", "y", "--replace")
	n.want(exitNotFound, []string{"See which there are with: tendril leases"}, "leases", "end", "9")
	n.want(exitUsage, []string{"--since -5m0s: want how long ago"}, "audit", "--since", "-5m")
	n.want(0, []string{"No such events."}, "audit", "--tenant", "nobody")
	n.want(0, nil, "tenant", "create", "lab")
	n.want(0, []string{"lab\n"}, "__complete", "audit", "--tenant", "la")
	n.want(0, []string{"This machine has no user no-such-user."}, "tenant", "map", "lab", "--user", "no-such-user")
	if code, _, said := n.run("", "tenant", "map", "lab", "--user", "4711"); code != 0 || said != "" {
		t.Errorf("of a number: %d, %s", code, said)
	}
	n.want(0, []string{"The cluster gets this authority."}, "cluster", "rotate")
	n.want(0, []string{`"authority"`}, "cluster", "rotate", "--json")
	n.want(0, []string{"The old authority is no longer accepted."}, "cluster", "rotate", "--finish", "--anyway")
	if code, _, said := n.run("", "cluster", "rotate", "--finish"); code != 0 || strings.Contains(said, "no longer accepted") ||
		!strings.Contains(said, "nothing was done now") {
		t.Errorf("finished again: %d, %s", code, said)
	}
}
