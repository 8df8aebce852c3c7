package rig

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"tendril/forwarding/stacks"
)

// Limit is how long a verb, a compiler, or a program that nobody talks with may say nothing on a busy machine: it ends
// a test that would wait for ever, and no other. Nothing here takes seconds.
const Limit = 5 * time.Minute

// LeftBehind is how long a command's pipes are read once it has ended: what it leaves behind may have them. On a busy
// machine who reads them may have no processor for seconds, and what was said would be lost as exec.ErrWaitDelay.
const LeftBehind = time.Minute

// ErrHung is what a command comes to that did not end in its time.
var ErrHung = errors.New("it hangs")

// hung says so, and where.
type hung struct {
	limit time.Duration
	where string
}

func (h hung) Error() string {
	return fmt.Sprintf("no end: nothing was heard of it for %v\n%s", h.limit, h.where)
}
func (h hung) Is(target error) bool { return target == ErrHung }

// Said runs cmd and returns what it wrote. One that says nothing for as long as limit is killed, and the error is an
// ErrHung that says where it was. One that goes on saying something goes on: on a busy machine all takes longer.
func Said(cmd *exec.Cmd, limit time.Duration) (out, complaint string, err error) {
	var o, c Buffer
	w := newWatch(cmd, limit)
	o.wrote, c.wrote = w.goesOn, w.goesOn
	cmd.Stdout, cmd.Stderr = &o, &c
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = LeftBehind
	}
	if err := cmd.Start(); err != nil {
		return "", "", err
	}
	w.begin()
	err = cmd.Wait()
	return o.String(), c.String(), errors.Join(w.End(), err)
}

// Buffer may be read while its writer is still there, which is so behind an exec.ErrWaitDelay. The zero value is empty.
type Buffer struct {
	mu    sync.Mutex
	b     bytes.Buffer
	wrote func() // called after each write, or nil
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	if b.wrote != nil {
		defer b.wrote()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String is what was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Await is cmd.Wait for as long as limit; then cmd is killed, and the error is an ErrHung.
func Await(cmd *exec.Cmd, limit time.Duration) error {
	w := WatchOver(cmd, limit)
	err := cmd.Wait()
	return errors.Join(w.End(), err)
}

// Watch kills a command that takes too long, after it has looked where it hangs.
type Watch struct {
	cmd   *exec.Cmd
	limit time.Duration
	fired chan struct{} // closed when it has done so
	where string        // read after fired

	mu    sync.Mutex
	timer *time.Timer
	last  time.Time // when it last showed that it goes on
	hangs bool      // fired is about to be closed
	ended bool
}

// WatchOver begins to watch a command that was started. The caller must End it.
func WatchOver(cmd *exec.Cmd, limit time.Duration) *Watch {
	w := newWatch(cmd, limit)
	w.begin()
	return w
}

func newWatch(cmd *exec.Cmd, limit time.Duration) *Watch {
	return &Watch{cmd: cmd, limit: limit, fired: make(chan struct{}), last: time.Now()}
}

func (w *Watch) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(w.limit, w.look)
}

// goesOn begins the limit anew.
func (w *Watch) goesOn() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = time.Now()
}

// look is called when the limit may be over.
func (w *Watch) look() {
	w.mu.Lock()
	left := w.limit - time.Since(w.last)
	if w.ended || left > 0 {
		if !w.ended {
			w.timer.Reset(left)
		}
		w.mu.Unlock()
		return
	}
	w.hangs = true
	w.mu.Unlock()
	w.where = Hung(w.cmd)
	close(w.fired)
}

// End returns nil if what was watched went on in time, else an ErrHung.
func (w *Watch) End() error {
	w.mu.Lock()
	w.ended = true
	w.timer.Stop()
	hangs := w.hangs
	w.mu.Unlock()
	if !hangs {
		return nil
	}
	<-w.fired
	return hung{w.limit, w.where}
}

// Hung says where a command is, and where Tendril's processes under this one are, and kills the command with all that
// it started. To be called before cmd is waited for.
func Hung(cmd *exec.Cmd) string {
	pid := cmd.Process.Pid
	said := strings.Join(cmd.Args, " ") + "\n" + Where(pid)
	for _, p := range slices.Backward(tree(pid)) {
		_ = syscall.Kill(p, syscall.SIGKILL)
	}
	return said
}

// Bounds of a report, in bytes.
const (
	mostStackBytes  = 128 << 10 // of the goroutines of one process
	mostReportBytes = 512 << 10
)

// Where says what the threads of a process, of those under it, and of Tendril's daemons and workers under this one wait
// for, and their goroutines where they can say them (package stacks). It ends none of them.
func Where(pid int) string {
	own := tree(pid)
	all := slices.Clone(own)
	for _, p := range tree(os.Getpid()) {
		if !slices.Contains(all, p) && strings.HasPrefix(commandLine(p), "tendril ") ||
			strings.Contains(commandLine(p), "/tendril daemon") {
			all = append(all, p)
		}
	}
	slices.Sort(all)
	var b strings.Builder
	for _, p := range slices.Compact(all) {
		if p != os.Getpid() && b.Len() < mostReportBytes {
			b.WriteString(threads(p))
			b.WriteString(goroutines(p))
		}
	}
	return b.String()
}

// tree is a process and all below it, parents first.
func tree(pid int) []int {
	children := map[int][]int{}
	found, _ := filepath.Glob("/proc/[0-9]*/stat") // a bad pattern is the only error
	for _, name := range found {
		raw, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:])) // state, parent
		child, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if parent, err := strconv.Atoi(fields[1]); err == nil {
			children[parent] = append(children[parent], child)
		}
	}
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

func commandLine(pid int) string {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // "" once it has ended
	return strings.TrimSpace(strings.ReplaceAll(string(raw), "\x00", " "))
}

// threads says what those of a process are in, alike ones once (proc(5): comm, wchan, syscall, stack; the last for root
// alone).
func threads(pid int) string {
	var order []string
	count := map[string]int{}
	found, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, task := range found {
		read := func(name string) string {
			raw, _ := os.ReadFile(filepath.Join(task, name))
			return strings.TrimSpace(string(raw))
		}
		number, _, _ := strings.Cut(read("syscall"), " ")
		line := fmt.Sprintf("  %s: system call %s, in %s", read("comm"), number, read("wchan"))
		for frame := range strings.Lines(read("stack")) {
			line += " < " + strings.TrimPrefix(strings.TrimSpace(frame), "[<0>] ")
		}
		if count[line]++; count[line] == 1 {
			order = append(order, line)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "process %d: %s\n", pid, commandLine(pid))
	for _, line := range order {
		fmt.Fprintf(&b, "%s (%d)\n", line, count[line])
	}
	return b.String()
}

// goroutines asks a process for them, which must have said in its environment that it can be asked, or it would end of
// it.
func goroutines(pid int) string {
	dir := ""
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	for kv := range strings.SplitSeq(string(raw), "\x00") {
		if value, ok := strings.CutPrefix(kv, stacks.Variable+"="); ok {
			dir = value
		}
	}
	if dir == "" || !catchesSIGQUIT(pid) {
		return ""
	}
	path := stacks.Path(dir, pid)
	_ = os.Remove(path)
	if syscall.Kill(pid, syscall.SIGQUIT) != nil {
		return ""
	}
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if b, err := os.ReadFile(path); err == nil {
			_ = os.Remove(path)
			return string(b[:min(len(b), mostStackBytes)]) + "\n"
		}
	}
	return "  its goroutines do not answer\n"
}

// catchesSIGQUIT reports whether a process has a handler (proc(5), SigCgt).
func catchesSIGQUIT(pid int) bool {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(raw)) {
		if mask, ok := strings.CutPrefix(line, "SigCgt:"); ok {
			v, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			return err == nil && v>>(syscall.SIGQUIT-1)&1 == 1
		}
	}
	return false
}
