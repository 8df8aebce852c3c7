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
)

// nobody is the user and group that root's own workers run as: a driver and tenant code never run as root.
const nobody = 65534

// namespaces that a worker is cut off by when the daemon may: no network, no System V or POSIX message queues of others.
const namespaces = unix.CLONE_NEWNET | unix.CLONE_NEWIPC

// spawner starts processes from one thread that lives as long as it does: PDEATHSIG is sent when the *thread* that forked ends
// (prctl(2)), so the thread must not come and go with the scheduler's mood.
type spawner struct {
	requests chan spawnRequest
	joined   sync.WaitGroup
	once     sync.Once

	mu       sync.Mutex
	isolated error // guarded by mu: why namespaces were not to be had; nil = they were, or nothing was started yet
}

type spawnRequest struct {
	argv  []string
	exe   string
	attr  os.ProcAttr
	reply chan spawnReply // holds one
}

type spawnReply struct {
	process *os.Process
	err     error
}

func newSpawner() *spawner {
	s := &spawner{requests: make(chan spawnRequest)}
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

// start tries with namespaces once, and for ever without where they are refused.
func (s *spawner) start(r spawnRequest) (*os.Process, error) {
	if os.Geteuid() == 0 && s.notIsolated() == nil {
		sys := *r.attr.Sys
		sys.Cloneflags = namespaces
		attr := r.attr
		attr.Sys = &sys
		p, err := os.StartProcess(r.exe, r.argv, &attr)
		if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSPC) {
			return p, err
		}
		p, plain := os.StartProcess(r.exe, r.argv, &r.attr)
		if plain == nil { // so it was the namespaces
			s.mu.Lock()
			s.isolated = err
			s.mu.Unlock()
		}
		return p, plain
	}
	return os.StartProcess(r.exe, r.argv, &r.attr)
}

// notIsolated says why workers share the daemon's network, nil when they do not.
func (s *spawner) notIsolated() error {
	if os.Geteuid() != 0 {
		return errors.New("the daemon is not root, so it cannot give workers a network namespace")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isolated
}

// spawn starts argv as owner. files become the descriptors 0, 1, 2, ….
func (s *spawner) spawn(exe string, argv []string, env []string, owner Owner, files []*os.File) (*os.Process, error) {
	r := spawnRequest{
		exe: exe, argv: argv,
		attr: os.ProcAttr{
			Dir:   "/",
			Env:   env,
			Files: files,
			Sys: &syscall.SysProcAttr{
				Setpgid:    true,
				Pdeathsig:  syscall.SIGKILL,
				Credential: credential(owner),
			},
		},
		reply: make(chan spawnReply, 1),
	}
	s.requests <- r
	got := <-r.reply
	if got.err != nil {
		return nil, got.err
	}
	// A worker's core would hold its tenant's data; the limit is not worth a failed start, it can only be lowered.
	_ = unix.Prlimit(got.process.Pid, unix.RLIMIT_CORE, &unix.Rlimit{}, nil)
	return got.process, nil
}

// close ends the spawner's thread. No spawn may be under way or follow. Every process it started must be gone by then, as
// PDEATHSIG takes the rest.
func (s *spawner) close() {
	s.once.Do(func() { close(s.requests) })
	s.joined.Wait()
}

// workerUser is the user and group that a worker of owner runs as.
func workerUser(owner Owner) (uid, gid uint32) {
	if os.Geteuid() != 0 {
		return uint32(os.Geteuid()), uint32(os.Getegid())
	}
	uid, gid = owner.UID, owner.GID
	if uid == 0 {
		uid, gid = nobody, nobody
	}
	if gid == 0 {
		gid = nobody
	}
	return uid, gid
}

// credential is nil when the daemon is not root: its workers are what it is.
func credential(owner Owner) *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	uid, gid := workerUser(owner)
	return &syscall.Credential{Uid: uid, Gid: gid, Groups: deviceGroups("/dev")}
}

// deviceGroups lists the groups that open render nodes and AMD's compute node; NVIDIA's nodes are open to everyone. Only these
// groups are given to a worker, none of its tenant's others.
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

// refusedEnv stand in an allowed family but change which devices the driver shows or where it writes; the snapshot that the
// session got would no longer be true. Devices are chosen with --device.
var refusedEnv = []string{"POCL_CACHE_DIR", "POCL_DEVICES"}

// DriverEnv picks from a session's environment what its workers' drivers may see, as sorted "NAME=value": POCL_* and CL_*,
// without POCL_CACHE_DIR and POCL_DEVICES, never LD_* or anything else. (CUDA_VISIBLE_DEVICES would renumber devices that were
// already announced and is not passed either.) The result is bounded; what is over the bounds is left out.
func DriverEnv(session map[string]string) []string {
	var kept []string
	for name, value := range session {
		kv := name + "=" + value
		if len(kv) > maxEnvBytes || strings.ContainsAny(name, "=") || strings.ContainsRune(kv, 0) || slices.Contains(refusedEnv, name) {
			continue
		}
		if strings.HasPrefix(name, "POCL_") || strings.HasPrefix(name, "CL_") {
			kept = append(kept, kv)
		}
	}
	slices.Sort(kept)
	return kept[:min(len(kept), maxEnvVars)]
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
	return append(env, driver...)
}

func describe(exe string, err error) error {
	switch {
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("start %s: %w (is the program executable by every user?)", exe, err)
	case errors.Is(err, unix.EPERM) && os.Geteuid() == 0: // never as root instead: a container without capabilities is no reason
		return fmt.Errorf("start %s: %w (the daemon is root but may not become another user, CAP_SETUID and CAP_SETGID are missing; start it as an ordinary user)", exe, err)
	}
	return fmt.Errorf("start %s: %w", exe, err)
}
