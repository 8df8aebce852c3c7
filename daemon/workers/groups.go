package workers

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tendril/daemon/tenancy"
)

// Where the daemon may divide its cgroup (cgroups(7), version 2; systemd's Delegate=), each worker is in one of its own
// below its tenant's:
//
//	the daemon's cgroup ── daemon                the daemon itself: a group with limits holds no processes
//	                    └─ workers ── TENANT ── NUMBER
//
// All that it starts stays there, and is ended with it at once.

const (
	daemonGroup  = "daemon"
	workersGroup = "workers"
	rmdirLimit   = 2 * time.Second // for the kernel to see that a group is empty
)

// controllers that workers are bounded with.
var controllers = []string{"pids", "memory", "cpu"}

// groups is the part of a cgroup that workers are in. mu serializes making and removing.
type groups struct {
	kernel hierarchy // immutable, as what follows
	dir    string    // of workersGroup
	has    []string  // of controllers
	limits Limits

	mu   sync.Mutex
	last uint64 // guarded by mu
}

// hierarchy is the part of a file system that shows cgroups: a test has one of its own.
type hierarchy interface {
	// Mkdir makes a cgroup, with the files that the kernel shows in it.
	Mkdir(dir string) error
	// Put writes into one of those files. It makes none.
	Put(dir, file, text string) error
	// Remove removes a cgroup, which must hold nothing.
	Remove(dir string) error
}

// linux is the kernel's hierarchy.
type linux struct{}

func (linux) Mkdir(dir string) error           { return os.Mkdir(dir, 0o755) }
func (linux) Put(dir, file, text string) error { return put(dir, file, text) }
func (linux) Remove(dir string) error          { return os.Remove(dir) }

// group is one worker's cgroup. The zero value is none.
type group struct {
	all *groups
	dir string
}

// OwnGroup finds the directory of the cgroup that this process is in and may divide. The error says why there is none.
func OwnGroup() (string, error) {
	raw, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	own, found := "", false
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			own, found = rest, true
		}
	}
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if found && unix.Statfs(mount, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			return divisible(filepath.Join(mount, own))
		}
	}
	return "", errors.New("this machine has no cgroups of version 2 at /sys/fs/cgroup")
}

// divisible checks that a cgroup is this process's alone. One that a service manager made must be handed over in as
// many words.
func divisible(dir string) (string, error) {
	if up := filepath.Dir(dir); filepath.Base(dir) == daemonGroup {
		if _, err := os.Stat(filepath.Join(up, workersGroup)); err == nil { // as the daemon before this one left it
			return up, nil
		}
	}
	if err := unix.Access(filepath.Join(dir, "cgroup.procs"), unix.W_OK); err != nil {
		return "", fmt.Errorf("the daemon may not divide its cgroup %s: %w (systemd: Delegate=yes)", dir, err)
	}
	if ext := filepath.Ext(dir); (ext == ".service" || ext == ".scope") && !delegated(dir) {
		return "", fmt.Errorf("the cgroup %s is not handed over to the daemon (systemd: Delegate=yes)", dir)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return "", err
	}
	if others := strings.Fields(string(raw)); len(others) != 1 || others[0] != strconv.Itoa(os.Getpid()) {
		return "", fmt.Errorf("there are %d processes in the daemon's cgroup %s: start it in one of its own (systemd: Delegate=yes)", len(others), dir)
	}
	return dir, nil
}

func delegated(dir string) bool {
	value := make([]byte, 8)
	for _, name := range []string{"user.delegate", "trusted.delegate"} {
		if n, err := unix.Getxattr(dir, name, value); err == nil && string(value[:n]) == "1" {
			return true
		}
	}
	return false
}

// openGroups divides a cgroup and ends what an earlier daemon left in it.
func openGroups(kernel hierarchy, base string, l Limits) (*groups, error) {
	g := &groups{kernel: kernel, dir: filepath.Join(base, workersGroup), limits: l}
	own := filepath.Join(base, daemonGroup)
	for _, dir := range []string{own, g.dir} {
		if err := kernel.Mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("divide the daemon's cgroup: %w", err)
		}
	}
	if err := kernel.Put(own, "cgroup.procs", strconv.Itoa(os.Getpid())); err != nil {
		return nil, fmt.Errorf("divide the daemon's cgroup: %w", err)
	}
	g.clear()
	for _, c := range controllers {
		if kernel.Put(base, "cgroup.subtree_control", "+"+c) == nil &&
			kernel.Put(g.dir, "cgroup.subtree_control", "+"+c) == nil {
			g.has = append(g.has, c)
		}
	}
	if slices.Contains(g.has, "cpu") {
		_ = kernel.Put(own, "cpu.weight", "400") // where processors are short the daemon goes first; 100 is everybody's
	}
	return g, nil
}

// clear ends what is in the groups, and removes them.
func (g *groups) clear() {
	left, _ := filepath.Glob(filepath.Join(g.dir, "*", "*", "cgroup.kill"))
	for _, kill := range left {
		group{g, filepath.Dir(kill)}.end()
	}
	tenants, _ := filepath.Glob(filepath.Join(g.dir, "*", "cgroup.procs"))
	for _, file := range tenants {
		_ = g.kernel.Remove(filepath.Dir(file))
	}
}

// lacks says which bounds no cgroup keeps.
func (g *groups) lacks() (list []string) {
	for _, c := range controllers {
		if !slices.Contains(g.has, c) {
			list = append(list, c)
		}
	}
	return list
}

// put writes into a file that the kernel shows: it makes none.
func put(dir, file, text string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

// make gives a new worker of a tenant its group.
func (g *groups) make(tenant string) (group, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	above := filepath.Join(g.dir, groupName(tenant))
	if err := g.kernel.Mkdir(above); err != nil && !errors.Is(err, fs.ErrExist) {
		return group{}, err
	}
	for _, c := range g.has {
		if err := g.kernel.Put(above, "cgroup.subtree_control", "+"+c); err != nil {
			return group{}, err
		}
	}
	g.last++
	dir := filepath.Join(above, strconv.FormatUint(g.last, 10))
	if err := g.kernel.Mkdir(dir); err != nil {
		return group{}, err
	}
	err := errors.Join(g.bound(above, g.limits.TenantProcesses, g.limits.TenantBytes),
		g.bound(dir, g.limits.Processes, g.limits.MemoryBytes))
	if err == nil && slices.Contains(g.has, "memory") {
		err = g.kernel.Put(dir, "memory.oom.group", "1") // half a worker is of no use
	}
	if err != nil {
		_ = errors.Join(g.kernel.Remove(dir), g.kernel.Remove(above)) // the latter is refused while it holds others
		return group{}, err
	}
	return group{g, dir}, nil
}

// groupName is a tenant's name as a directory's, which has 255 bytes at most.
func groupName(tenant string) string {
	name := tenancy.CacheName(tenant)
	if len(name) > 200 {
		sum := sha256.Sum256([]byte(tenant))
		name = "t" + hex.EncodeToString(sum[:])
	}
	return name
}

func (g *groups) bound(dir string, tasks int, bytes int64) (err error) {
	if slices.Contains(g.has, "pids") && tasks > 0 {
		err = g.kernel.Put(dir, "pids.max", strconv.Itoa(tasks))
	}
	if slices.Contains(g.has, "memory") && bytes > 0 {
		err = errors.Join(err, g.kernel.Put(dir, "memory.max", strconv.FormatInt(bytes, 10)))
	}
	return err
}

// open gives the directory to start a process in. The caller closes it.
func (g group) open() (int, error) {
	return unix.Open(g.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// kill ends all that is in the group at once (Linux 5.14).
func (g group) kill() {
	if g.all != nil {
		_ = g.all.kernel.Put(g.dir, "cgroup.kill", "1")
	}
}

// short reports whether the kernel ended something in the group since it had too much memory.
func (g group) short() bool {
	if g.all == nil {
		return false
	}
	raw, _ := os.ReadFile(filepath.Join(g.dir, "memory.events"))
	for line := range strings.Lines(string(raw)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			return n != "0"
		}
	}
	return false
}

// end ends all that is in the group and removes it, and its tenant's when that was the last one.
func (g group) end() {
	if g.all == nil {
		return
	}
	for end := time.Now().Add(rmdirLimit); ; time.Sleep(time.Millisecond) {
		g.kill()
		g.all.mu.Lock()
		err := g.all.kernel.Remove(g.dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			_ = g.all.kernel.Remove(filepath.Dir(g.dir)) // refused while it holds others
			g.all.mu.Unlock()
			return
		}
		g.all.mu.Unlock()
		if time.Now().After(end) {
			return
		}
	}
}
