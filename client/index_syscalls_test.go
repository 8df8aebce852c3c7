package client_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/client"
	"tendril/store"
	"tendril/store/object"
)

func init() { processes["index loop"] = indexLoop }

// indexLoop says which thread it is, gets and releases the object "looped" so many times as INDEX_LOOP says, and says
// how often that was through the index.
func indexLoop() {
	if err := loopOverIndex(); err != nil {
		fmt.Println("failed:", err)
	}
}

func loopOverIndex() error {
	rounds, err := strconv.Atoi(os.Getenv("INDEX_LOOP"))
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	debug.SetGCPercent(-1)
	c, err := client.Dial(context.Background(), client.Options{})
	if err != nil {
		return err
	}
	defer c.Close()
	first, err := c.GetByName(context.Background(), "looped", 0)
	if err != nil {
		return err
	}
	first.Release()
	say(fmt.Sprintf("begin %d\n", unix.Gettid()))
	through, err := getAndRelease(c, first.ID(), rounds)
	if err != nil {
		return err
	}
	say(fmt.Sprintf("end %d\n", through))
	return nil
}

// getAndRelease tells how many of so many gets were through the index and found the right bytes.
func getAndRelease(c *client.Conn, id object.ID, rounds int) (through int, err error) {
	for i := range rounds {
		o, err := loopedGet(c, id, i)
		if err != nil {
			return through, err
		}
		if o.ThroughIndex() && o.Bytes()[i%len(o.Bytes())] == 7 {
			through++
		}
		o.Release()
	}
	return through, nil
}

// loopedGet gets the object by its name and by its id in turn.
func loopedGet(c *client.Conn, id object.ID, i int) (*client.Object, error) {
	if i%2 == 0 {
		return c.GetByName(context.Background(), "looped", 0)
	}
	return c.Get(context.Background(), id, 0)
}

// say writes without the runtime's help, so that strace shows where the loop begins and ends.
func say(line string) { unix.Write(1, []byte(line)) }

// runtimeCalls are what Go's allocator and scheduler ask the kernel for, now and then: memory, and threads to wake,
// also the one that waits in epoll, by its eventfd (runtime.netpollBreak).
var runtimeCalls = regexp.MustCompile(`^(futex|mmap|munmap|madvise|nanosleep|sched_yield|rt_sig\w+|tgkill)\(|^<\.\.\. ` +
	`|^write\(\d+, "\\1(\\0){7}", 8`)

// TestNoSystemCall has strace watch a process that gets and releases an object a million times through the index: the
// client enters the kernel not once, and Go's runtime once in ten gets at most. (The C client, which has no runtime, is
// shown to make no system call at all: client/c/tests/index.sh.) Without the index it does, which shows that the
// watching works.
func TestNoSystemCall(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace is not installed (Debian package strace)")
	}
	if out, err := exec.Command(strace, "-f", "-o", os.DevNull, "true").CombinedOutput(); err != nil {
		t.Skipf("strace may not watch processes here: %v: %s", err, out)
	}
	n := startNode(t, store.Options{})
	c := n.dial(t)
	content := make([]byte, 4096)
	for i := range content {
		content[i] = 7
	}
	must(c.Put(context.Background(), content, client.CreateOptions{Name: "looped", Class: object.Named}))(t).Release()
	million := 1_000_000
	if testing.Short() {
		million = 100_000
	}
	through, calls := traced(t, strace, n.socket, "on", million)
	own := slices.DeleteFunc(slices.Clone(calls), runtimeCalls.MatchString)
	t.Logf("%d gets, %d system calls of the runtime", through, len(calls)-len(own))
	if through != million || len(own) > 0 || len(calls) > million/10 {
		t.Errorf("%d of %d gets were through the index; of %d system calls between the first and the last the client's own are %q",
			through, million, len(calls), own)
	}
	if through, calls := traced(t, strace, n.socket, "off", 100); through != 0 || len(calls) < 100 {
		t.Errorf("without the index: %d gets through it, %d system calls for 100 gets", through, len(calls))
	}
}

// traced runs indexLoop under strace. It gives how many gets were through the index, and the system calls of the loop's
// thread while it ran.
func traced(t *testing.T, strace, socket, use string, rounds int) (through int, calls []string) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "strace")
	cmd := exec.Command(strace, "-f", "-qq", "-o", log, os.Args[0])
	cmd.Env = append(os.Environ(), "CLIENT_TEST_PROCESS=index loop", "TENDRIL_SOCKET="+socket, "TENDRIL_INDEX="+use,
		"INDEX_LOOP="+strconv.Itoa(rounds), "GODEBUG=asyncpreemptoff=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var tid int
	if _, err := fmt.Sscanf(string(out), "begin %d\nend %d\n", &tid, &through); err != nil {
		t.Fatalf("the loop said %q: %v", out, err)
	}
	return through, between(t, log, tid)
}

var straceLine = regexp.MustCompile(`^(\d+) +(.*)$`)

// between gives a thread's lines in strace's log after the one that writes "begin" and before the one that writes
// "end".
func between(t *testing.T, log string, tid int) (calls []string) {
	t.Helper()
	f, err := os.Open(log)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	begun := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		m := straceLine.FindStringSubmatch(lines.Text())
		switch {
		case m == nil || m[1] != strconv.Itoa(tid):
		case strings.Contains(m[2], `"begin `):
			begun = true
		case strings.HasPrefix(m[2], "<... write resumed"): // that line's other half
		case strings.Contains(m[2], `"end `):
			return calls
		case begun:
			calls = append(calls, m[2])
		}
	}
	t.Fatalf("thread %d does not end in strace's log", tid)
	return nil
}
