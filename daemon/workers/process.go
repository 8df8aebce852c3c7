package workers

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
)

// stderrGrace is how long a dead process's output is still waited for: a descendant that left its group may hold the
// pipe.
const stderrGrace = 200 * time.Millisecond

// outputEnd reads a process's output. Past the deadline it still takes what is there, as much as a pipe holds: whoever
// reads may have had no processor since the process ended.
type outputEnd struct {
	*os.File
	left int // bytes that it takes then
}

func (r *outputEnd) Read(b []byte) (int, error) {
	n, err := r.File.Read(b)
	if !errors.Is(err, os.ErrDeadlineExceeded) || r.left == 0 {
		return n, err
	}
	raw, wrong := r.SyscallConn()
	if wrong == nil { // it does not block: deadlines need that
		wrong = raw.Control(func(fd uintptr) { n, _ = unix.Read(int(fd), b[:min(len(b), r.left)]) })
	}
	if wrong != nil || n <= 0 {
		return 0, err
	}
	r.left -= n
	return n, nil
}

// pipeBytes is what a pipe holds (pipe(7)).
const pipeBytes = 64 << 10

// process is one probe or worker from its start to its end. It is reaped by its own goroutine; whoever made it calls
// wait, after a kill or not, before forgetting it.
type process struct {
	pid     int
	uid     uint32 // that it runs as
	started time.Time
	output  *lineLog
	group   group         // the zero value where it is in none of its own
	guard   *guard        // told of its process group where it began no PID namespace
	done    chan struct{} // closed when it is reaped and its output read

	ends   *ends  // counts it
	fate   string // how it ended; read after done
	normal bool   // it ended by itself with status 0; read after done

	mu     sync.Mutex
	reaped bool   // guarded by mu: the number may belong to another process
	killed bool   // guarded by mu: the daemon ended it
	blame  string // guarded by mu: what for; "" = nothing to speak of
}

// command is what to start.
type command struct {
	tenant string
	argv   []string
	env    []string
	user   user
	limits Limits
	extra  *os.File // becomes descriptor 3; stays the caller's
	memory *os.File // becomes descriptor 4, where it is not nil; stays the caller's
}

// launch starts c. The process's descriptors: 0 /dev/null, 1 and 2 the daemon's log, 3 c.extra, 4 c.memory.
func (p *Pool) launch(c command, log logrus.FieldLogger) (*process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	out, outEnd, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	files := []*os.File{null, outEnd, outEnd, c.extra}
	if c.memory != nil {
		files = append(files, c.memory)
	}
	started, g, err := p.spawnGrouped(c, files)
	outEnd.Close()
	if err != nil {
		out.Close()
		return nil, describe(p.opts.Executable, err)
	}
	proc := &process{
		pid: started.Pid, uid: c.user.uid, started: time.Now(), group: g, done: make(chan struct{}),
		output: &lineLog{log: log.WithField("pid", started.Pid)}, guard: p.guard, ends: &p.ends,
	}
	if p.spawner.isolation()&unix.CLONE_NEWPID == 0 {
		p.guard.add(proc.pid) // before any tenant's code runs in it
	}
	go proc.run(started, out)
	return proc, nil
}

// spawnGrouped starts c in a cgroup of its own where there is one, else without.
func (p *Pool) spawnGrouped(c command, files []*os.File) (*os.Process, group, error) {
	g, dir := p.enterGroup(c.tenant)
	if dir == nil {
		started, err := p.spawner.spawn(p.opts.Executable, c, files, nil)
		return started, g, err
	}
	defer dir.Close()
	started, err := p.spawner.spawn(p.opts.Executable, c, files, dir)
	if err == nil {
		return started, g, nil
	}
	g.end()
	started, plain := p.spawner.spawn(p.opts.Executable, c, files, nil)
	if plain == nil {
		p.opts.Log.WithError(err).WithField("tenant", c.tenant).Warn("a worker cannot be started in its cgroup")
	}
	return started, group{}, plain
}

// run lives as long as the process and joins the goroutine that reads its output.
func (p *process) run(started *os.Process, out *os.File) {
	read := make(chan struct{})
	go func() {
		defer close(read)
		p.output.run(&outputEnd{out, pipeBytes})
	}()
	waitEnd(p.pid)
	p.mu.Lock()
	// what it left in its group; its own number is still taken, so no stranger is met
	_ = unix.Kill(-p.pid, unix.SIGKILL)
	p.group.kill()
	p.guard.remove(p.pid)
	state, err := started.Wait()
	p.reaped = true
	killed, blame := p.killed, p.blame
	p.mu.Unlock()
	_ = out.SetReadDeadline(time.Now().Add(stderrGrace))
	<-read
	out.Close()
	p.fate, p.normal = ending(state, err, killed)
	switch {
	case killed && blame != "":
		p.fate = blame
	case !killed && !p.normal && p.group.short():
		p.fate = "it and its child processes exceeded a memory limit (--worker-memory, --tenant-memory): the kernel ended it"
	}
	p.ends.count(causeOf(state, killed, blame != "", !killed && !p.normal && p.group.short()))
	p.group.end()
	close(p.done)
}

// waitEnd returns when pid has ended, and leaves it a zombie so that its number and its group stay its own. Where it
// began a PID namespace, everything in there has ended before.
func waitEnd(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return
		}
	}
}

// ending says in words how a process ended.
func ending(state *os.ProcessState, err error, killed bool) (fate string, normal bool) {
	if err != nil {
		return "its end was not seen: " + err.Error(), false
	}
	status := state.Sys().(syscall.WaitStatus) // always, on Linux
	switch {
	case status.Signaled() && killed:
		return "ended by the daemon", false
	case status.Signaled():
		return "killed by " + unix.SignalName(status.Signal()), false
	case status.ExitStatus() == 0:
		return "exited", true
	// the first process of a PID namespace
	case status.ExitStatus() > 128 && unix.SignalName(syscall.Signal(status.ExitStatus()-128)) != "":
		return "killed by " + unix.SignalName(syscall.Signal(status.ExitStatus()-128)), false
	case status.ExitStatus() == clwire.ExitKernelTime:
		return "a command ran for longer than its time limit (--kernel-time)", false
	case status.ExitStatus() == clwire.ExitBuildTime:
		return "a build took longer than its time limit (--build-time)", false
	default:
		return fmt.Sprintf("exited with status %d", status.ExitStatus()), false
	}
}

// ends counts the probes and workers that ended, by cause. Its mutex is a leaf.
type ends struct {
	mu sync.Mutex
	by map[string]uint64 // guarded by mu
}

func (e *ends) count(cause string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.by == nil {
		e.by = make(map[string]uint64)
	}
	e.by[cause]++
}

// Ends gives how many probes and workers ended since the daemon's start, by cause.
func (p *Pool) Ends() map[string]uint64 {
	p.ends.mu.Lock()
	defer p.ends.mu.Unlock()
	return maps.Clone(p.ends.by)
}

// causeOf is ending in one word, of few. state is nil where the end was not seen.
func causeOf(state *os.ProcessState, killed, blamed, short bool) string {
	if state == nil {
		return "unseen"
	}
	status := state.Sys().(syscall.WaitStatus) // always, on Linux
	inside := status.Exited() && status.ExitStatus() > 128 &&
		unix.SignalName(syscall.Signal(status.ExitStatus()-128)) != ""
	switch {
	case short:
		return "memory"
	case status.Signaled() && killed && blamed:
		return "limit"
	case status.Signaled() && killed:
		return "daemon"
	case status.Signaled(), inside:
		return "signal"
	case status.ExitStatus() == 0:
		return "exit"
	case status.ExitStatus() == clwire.ExitKernelTime:
		return "kernel_time"
	case status.ExitStatus() == clwire.ExitBuildTime:
		return "build_time"
	}
	return "failure"
}

// kill ends the process and its group at once; it may be called at any time and often.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return
	}
	p.killed = true
	_ = unix.Kill(-p.pid, unix.SIGKILL)
	p.group.kill()
	_ = unix.Kill(p.pid, unix.SIGKILL) // in case it is not in its group yet, or left it
}

// killFor is kill with a reason that the session is told.
func (p *process) killFor(why string) {
	p.mu.Lock()
	if !p.killed {
		p.blame = why
	}
	p.mu.Unlock()
	p.kill()
}

// wait returns when the process is reaped.
func (p *process) wait() { <-p.done }

// waitFor waits for the process's end, no longer than limit, and reports whether it came.
func (p *process) waitFor(limit time.Duration) bool {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-p.done:
		return true
	case <-t.C:
		return false
	}
}

// wasKilled reports whether the daemon ended the process.
func (p *process) wasKilled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.killed
}

// ended reports whether the process is reaped.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// why explains a process's unwanted end with its last words. The process must have ended.
func (p *process) why() string {
	if tail := p.output.tail(); tail != "" {
		return p.fate + ", after saying: " + tail
	}
	return p.fate
}

// memoryBytes is the process's resident memory (proc(5), VmRSS), 0 once it has ended.
func (p *process) memoryBytes() uint64 {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/status")
	if err != nil || p.ended() {
		return 0
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, _ := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 44)
			return n << 10
		}
	}
	return 0
}

// worker is a process that was started as `tendril worker`, with its control socket.
type worker struct {
	*process
	control  *net.UnixConn
	platform *Platform
	key      key
	ready    chan struct{} // closed when it is ready, or will never be

	err       error             // why it will never be; read after ready
	fallbacks []clwire.Fallback // read after ready

	charged, gone bool      // its tenant is charged for it; it has ended; guarded by Pool.mu
	serves        *assigned // to the session that it was given to; nil: none; guarded by Pool.mu

	tasks, bytes atomic.Int64 // of it and all that it started, at the last look

	questions questions

	packets atomic.Int64                 // that the daemon still hears of it, once it serves another machine
	granted chan struct{}                // capacity 1: there are more of them
	moved   atomic.Pointer[clwire.Moved] // as it said last
}

// explain says why a worker is of no use any more: what it said, or how it ended. It must have ended.
func (w *worker) explain() string {
	<-w.ready
	if w.err != nil {
		return w.err.Error()
	}
	return w.why()
}

// key says for whom a worker was started: only its equal may take it.
type key struct {
	tenant string
	env    string // driver variables, one a line
}

// argv begins the command line of a worker or a probe.
func (o *Options) argv(verb string) []string {
	argv := append([]string{"tendril"}, o.Args...)
	if argv = append(argv, verb); o.NoInPlace {
		argv = append(argv, "--no-in-place")
	}
	return argv
}

func joined(numbers []int) string {
	words := make([]string, len(numbers))
	for i, n := range numbers {
		words[i] = strconv.Itoa(n)
	}
	return strings.Join(words, ",")
}

// startWorker starts a worker for k on a platform. cache is the tenant's directory.
func (p *Pool) startWorker(pl *Platform, k key, u user, cache string) (*worker, error) {
	control, theirs, err := seqpacketPair()
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	defer theirs.Close()
	argv := append(p.opts.argv("worker"), "--icd", pl.Driver.ICD, "--cache", cache, "--platform",
		strconv.Itoa(pl.Snapshot.Index))
	if pl.Places != nil {
		argv = append(argv, "--only", joined(pl.Places))
	}
	var driver []string
	if k.env != "" {
		driver = strings.Split(k.env, "\n")
	}
	c := command{tenant: k.tenant, argv: argv, env: workerEnv(cache, driver), user: u, limits: p.opts.Limits,
		extra: theirs}
	proc, err := p.launch(c, p.opts.Log.WithField("worker", pl.Name))
	if err != nil {
		control.Close()
		return nil, err
	}
	w := &worker{process: proc, control: control, platform: pl, key: k, ready: make(chan struct{}),
		granted: make(chan struct{}, 1)}
	go w.awaitReady(p.opts.StartTimeout)
	return w, nil
}

// awaitReady hears the one packet that a worker may send. Whatever it sends later, when a tenant's code may run in it,
// is not read. It closes ready, and the control socket once the process is gone.
func (w *worker) awaitReady(limit time.Duration) {
	w.fallbacks, w.err = w.hear(limit)
	if w.err != nil {
		w.kill()
	}
	close(w.ready)
	w.wait()
	w.control.Close()
}

func (w *worker) hear(limit time.Duration) ([]clwire.Fallback, error) {
	_ = w.control.SetReadDeadline(time.Now().Add(limit))
	raw, err := readPacket(w.control)
	if err != nil {
		var slow net.Error
		if errors.As(err, &slow) && slow.Timeout() {
			return nil, fmt.Errorf("the worker did not load %s within %v", w.platform.Driver.Library, limit)
		}
		w.wait()
		return nil, fmt.Errorf("the worker ended while it loaded %s: %s", w.platform.Driver.Library, w.why())
	}
	var m clwire.WorkerMessage
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, fmt.Errorf("the worker's first packet (%d bytes) is not one of the protocol: %w", len(raw), err)
	}
	switch {
	case m.Failed != nil:
		return nil, fmt.Errorf("the worker could not load %s: %s", w.platform.Driver.Library,
			printable([]byte(m.Failed.Error)))
	case m.Ready == nil:
		return nil, fmt.Errorf("the worker's first packet says neither ready nor failed")
	}
	return m.Ready.Fallbacks[:min(len(m.Ready.Fallbacks), maxFallbacks)], nil
}

// maxFallbacks bounds what one worker may list.
const maxFallbacks = 32

// assign gives the worker its session. socket and ring stay the caller's.
func (w *worker) assign(a clwire.WorkerAssign, socket, ring *os.File) error {
	raw, err := json.Marshal(clwire.DaemonMessage{Assign: &a})
	if err != nil {
		return err
	}
	return w.tell(raw, int(socket.Fd()), int(ring.Fd()))
}

// tell sends one packet with descriptors, which stay the caller's.
func (w *worker) tell(raw []byte, fds ...int) error {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_ = w.control.SetWriteDeadline(time.Now().Add(assignLimit))
	if _, _, err := w.control.WriteMsgUnix(raw, rights, nil); err != nil {
		return fmt.Errorf("tell worker %d: %w", w.pid, err)
	}
	return nil
}

// assignLimit bounds a write that only a stopped process could hold up.
const assignLimit = 5 * time.Second
