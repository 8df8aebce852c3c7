package workers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
)

// isolation is a set of namespaces that workers are started in. In a PID namespace everything that a worker starts ends
// with it, whatever session or group it moved to and whoever kills the worker, and no other process can be named, so
// none can be signalled, traced or given another priority. The others: no network, no message queues of others, and a
// count of processes of the worker's own (RLIMIT_NPROC counts per user namespace since Linux 5.14).
type isolation uintptr

// isolations is tried from the first to the last; the one that the kernel grants is used from then on. An ordinary user
// needs the user namespace for the others.
func isolations() []isolation {
	const all = unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC
	if os.Geteuid() != 0 {
		return []isolation{unix.CLONE_NEWUSER | all, 0}
	}
	return []isolation{unix.CLONE_NEWUSER | all, all, unix.CLONE_NEWNET | unix.CLONE_NEWIPC, 0}
}

// lacks says what an isolation goes without.
func (i isolation) lacks() []string {
	var list []string
	for _, n := range []struct {
		flag isolation
		what string
	}{
		{unix.CLONE_NEWPID, "process namespace for workers"},
		{unix.CLONE_NEWNET, "network namespace for workers"},
		{unix.CLONE_NEWUSER, "a count of each worker's own processes"},
	} {
		if i&n.flag == 0 {
			list = append(list, n.what)
		}
	}
	return list
}

// spawner starts processes from one thread that lives as long as it does: PDEATHSIG is sent when the *thread* that
// forked ends (prctl(2)), so the thread must not come and go with the scheduler's mood.
type spawner struct {
	requests chan spawnRequest
	joined   sync.WaitGroup
	once     sync.Once

	mu      sync.Mutex
	choices []isolation // guarded by mu: the first is in use; the others are left to try
	granted bool        // guarded by mu: the first has been
	refused error       // guarded by mu: why the one before the first was refused; nil = none was
}

// spawnRequest is one process to start. Its limits depend on the isolation and are put into its environment with that.
type spawnRequest struct {
	argv   []string
	exe    string
	attr   os.ProcAttr
	user   user
	limits Limits
	reply  chan spawnReply // holds one
}

type spawnReply struct {
	process *os.Process
	err     error
}

func newSpawner(choices []isolation) *spawner {
	s := &spawner{requests: make(chan spawnRequest), choices: choices}
	s.joined.Add(1)
	go s.run()
	return s
}

func (s *spawner) run() {
	defer s.joined.Done()
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	for r := range s.requests {
		p, err := s.start(r)
		r.reply <- spawnReply{p, err}
	}
}

// start tries one isolation after the other, and for ever without those that were refused. One counts as refused when
// the next start succeeds without it: other reasons give the same errors.
func (s *spawner) start(r spawnRequest) (*os.Process, error) {
	s.mu.Lock()
	choices, granted := slices.Clone(s.choices), s.granted
	s.mu.Unlock()
	var first error
	for i, choice := range choices {
		p, err := startIn(choice, granted && i == 0, r)
		switch {
		case err == nil:
			s.mu.Lock()
			s.granted = true
			if i > 0 {
				s.choices, s.refused = choices[i:], first
			}
			s.mu.Unlock()
			return p, nil
		case !refusal(err):
			return nil, err
		case first == nil:
			first = err
		}
	}
	return nil, first
}

// refusal reports whether err may mean that there are no namespaces.
func refusal(err error) bool {
	for _, e := range []error{unix.EPERM, unix.EACCES, unix.ENOSYS, unix.EINVAL, unix.ENOSPC, unix.EUSERS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// startIn starts r in an isolation, which the kernel has granted before or not.
func startIn(choice isolation, granted bool, r spawnRequest) (*os.Process, error) {
	sys := *r.attr.Sys
	sys.Cloneflags = uintptr(choice)
	if choice&unix.CLONE_NEWUSER != 0 {
		if err := ask(choice, granted, r); err != nil {
			return nil, err
		}
		r.user.mapInto(&sys)
	}
	attr := r.attr
	attr.Sys = &sys
	attr.Env = append(slices.Clone(attr.Env), r.limits.variable(choice))
	return os.StartProcess(r.exe, r.argv, &attr)
}

// ask reports whether the kernel starts a process in an isolation now, in r's cgroup. Where it refuses one whose users
// are mapped, package syscall leaves a pipe open (Go 1.26, forkAndExecInChild): two descriptors for each start. A
// tenant whose cgroup is full of processes could have the daemon run out of them. So the kernel is asked without the
// users first. What it then starts has no program, and ends at once. Of an isolation that it has granted before only
// the user namespace is asked for: the others take far longer to make.
func ask(choice isolation, granted bool, r spawnRequest) error {
	if granted {
		choice = unix.CLONE_NEWUSER
	}
	sys := &syscall.SysProcAttr{
		Cloneflags:  uintptr(choice) | unix.CLONE_VFORK | unix.CLONE_VM, // copies no page tables
		UseCgroupFD: r.attr.Sys.UseCgroupFD, CgroupFD: r.attr.Sys.CgroupFD,
	}
	_, err := syscall.ForkExec("", []string{""}, &syscall.ProcAttr{Sys: sys})
	if errors.Is(err, unix.ENOENT) { // there was a process
		return nil
	}
	return &os.PathError{Op: "fork/exec", Path: r.exe, Err: err}
}

// mapInto has a user namespace know the process's own user and groups, and nobody else's. In there they have the same
// numbers.
func (u user) mapInto(sys *syscall.SysProcAttr) {
	sys.UidMappings = []syscall.SysProcIDMap{{ContainerID: int(u.uid), HostID: int(u.uid), Size: 1}}
	for _, g := range append([]uint32{u.gid}, u.groups...) {
		sys.GidMappings = append(sys.GidMappings, syscall.SysProcIDMap{ContainerID: int(g), HostID: int(g), Size: 1})
	}
	// which sets them; an ordinary user may not, and keeps its own
	sys.GidMappingsEnableSetgroups = sys.Credential != nil
}

// isolation is what processes are started in now.
func (s *spawner) isolation() isolation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.choices[0]
}

// fallbacks says which namespaces workers go without, and why.
func (s *spawner) fallbacks() []clwire.Fallback {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused == nil {
		return nil
	}
	why := "the kernel refuses it: " + s.refused.Error()
	if os.Geteuid() != 0 {
		why = "an ordinary user needs a user namespace for it, which the kernel refuses: " + s.refused.Error()
	}
	var list []clwire.Fallback
	for _, what := range s.choices[0].lacks() {
		list = append(list, clwire.Fallback{What: what, Why: why})
	}
	return list
}

// spawn starts c as its user, in the cgroup of a directory (nil: the daemon's). files become the descriptors 0, 1, 2,
// ….
func (s *spawner) spawn(exe string, c command, files []*os.File, group *os.File) (*os.Process, error) {
	r := spawnRequest{
		exe: exe, argv: c.argv, user: c.user, limits: c.limits,
		attr: os.ProcAttr{
			Dir:   "/",
			Env:   c.env,
			Files: files,
			Sys: &syscall.SysProcAttr{
				// A session of its own is a process group of its own, which the sandbox lets nothing leave, and a share
				// of the processors of its own where the kernel groups by sessions (sched(7), autogroup).
				Setsid:     true,
				Pdeathsig:  syscall.SIGKILL,
				Credential: c.user.credential(),
			},
		},
		reply: make(chan spawnReply, 1),
	}
	if group != nil {
		r.attr.Sys.UseCgroupFD, r.attr.Sys.CgroupFD = true, int(group.Fd())
	}
	s.requests <- r
	got := <-r.reply
	return got.process, got.err
}

// close ends the spawner's thread. No spawn may be under way or follow. Every process it started must be gone by then,
// as PDEATHSIG takes the rest.
func (s *spawner) close() {
	s.once.Do(func() { close(s.requests) })
	s.joined.Wait()
}

// user is whom a process runs as.
type user struct {
	uid, gid uint32
	groups   []uint32 // of devices; none when the daemon is not root
}

// credential is nil when the daemon is not root: its workers are what it is.
func (u user) credential() *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	return &syscall.Credential{Uid: u.uid, Gid: u.gid, Groups: u.groups}
}

// user gives whom a tenant's workers run as.
func (p *Pool) user(tenant string) (user, error) {
	if os.Geteuid() != 0 {
		return user{uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())}, nil
	}
	id, err := p.ids.of(tenant)
	return user{uid: id, gid: id, groups: deviceGroups("/dev")}, err
}

// deviceGroups lists the groups that open render nodes and AMD's compute node; NVIDIA's nodes are open to everyone.
// Only these groups are given to a worker, none of its tenant's others.
func deviceGroups(dev string) []uint32 {
	nodes, _ := filepath.Glob(filepath.Join(dev, "dri/renderD*")) // the pattern is right, and nothing else fails
	var groups []uint32
	for _, node := range append(nodes, filepath.Join(dev, "kfd")) {
		var st unix.Stat_t
		if unix.Stat(node, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Mode&0o060 != 0o060 || st.Gid == 0 {
			continue
		}
		if !slices.Contains(groups, st.Gid) {
			groups = append(groups, st.Gid)
		}
	}
	return groups
}

// Bounds of the driver variables that a session may bring.
const (
	maxEnvVars  = 64
	maxEnvBytes = 4096 // name, '=' and value
)

// refusedEnv stand in an allowed family but change which devices the driver shows, what it says of them, or where it
// writes; the snapshot that the session got would no longer be true. Devices are chosen with --device.
var refusedEnv = []string{"POCL_CACHE_DIR", "POCL_DEVICES", "POCL_MEMORY_LIMIT"}

// DriverEnv picks from a session's environment what its workers' drivers may see, as sorted "NAME=value": POCL_* and
// CL_*, without POCL_CACHE_DIR, POCL_DEVICES and POCL_MEMORY_LIMIT, never LD_* or anything else.
// (CUDA_VISIBLE_DEVICES would renumber devices that were already announced: the daemon's own holds, see visibleEnv.)
// The result is bounded; what is over the bounds is left out.
func DriverEnv(session map[string]string) []string {
	var kept []string
	for name, value := range session {
		kv := name + "=" + value
		if len(kv) > maxEnvBytes || strings.ContainsAny(name, "=") || strings.ContainsRune(kv, 0) ||
			slices.Contains(refusedEnv, name) {
			continue
		}
		if strings.HasPrefix(name, "POCL_") || strings.HasPrefix(name, "CL_") {
			kept = append(kept, kv)
		}
	}
	slices.Sort(kept)
	return kept[:min(len(kept), maxEnvVars)]
}

// KeeperEnv is the environment of a keeper of an OpenCL platform's memory, which has that directory for its driver: the
// driver then shows what it showed to its probe.
func KeeperEnv(cache string) []string { return workerEnv(cache, nil) }

// CUDAKeeperEnv is the environment of the keeper of CUDA memory: KeeperEnv, and what the CUDA driver is found by and
// reads, such as where a multi-process service is. All else that whoever started the daemon has set stays with the
// daemon.
func CUDAKeeperEnv(cache string) []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return !strings.HasPrefix(kv, "CUDA_") && !strings.HasPrefix(kv, "NVIDIA_") &&
			!strings.HasPrefix(kv, "LD_LIBRARY_PATH=")
	})
	return append(env, KeeperEnv(cache)...) // of two of one name the last one counts
}

// workerEnv is a worker's whole environment.
func workerEnv(cache string, driver []string) []string {
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LANG=C.UTF-8",
		"TENDRIL_WORKER=1", // our own driver library, should a driver load it, shows no platform
		"HOME=" + cache,
		"TMPDIR=" + filepath.Join(cache, "tmp"),
		"TENDRIL_STACKS=" + filepath.Join(cache, "tmp"), // SIGQUIT has it say there where it is
		"XDG_CACHE_HOME=" + cache,
		"POCL_CACHE_DIR=" + filepath.Join(cache, "pocl"),
		"CUDA_CACHE_PATH=" + filepath.Join(cache, "cuda"),
	}
	return slices.Concat(env, allocatorEnv(), visibleEnv(), driver)
}

// mallocVariable is what the GNU C library reads its allocator's settings from (GNU C Library manual, "Tunables").
const mallocVariable = "GLIBC_TUNABLES"

// allocatorEnv gives the drivers' C library the settings that the daemon was started with, as "NAME=value"; nothing
// where there are none. The daemon chooses none itself. With huge pages and one arena for all threads, a first build by
// PoCL takes a twentieth of the page faults, but threads that launch or build at the same time wait for each other
// (docs/design/processes.md): whether that is a gain hangs on the machine and on the driver.
func allocatorEnv() []string {
	if own, set := os.LookupEnv(mallocVariable); set && len(own) <= maxEnvBytes {
		return []string{mallocVariable + "=" + own}
	}
	return nil
}

func describe(exe string, err error) error {
	switch {
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("start %s: %w (is the program executable by every user?)", exe, err)
	// never as root instead: a container without capabilities is no reason
	case errors.Is(err, unix.EPERM) && os.Geteuid() == 0:
		return fmt.Errorf("start %s: %w (the daemon is root but may not become another user, CAP_SETUID and CAP_SETGID are missing; start it as an ordinary user)", exe, err)
	}
	return fmt.Errorf("start %s: %w", exe, err)
}
