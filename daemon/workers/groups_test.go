package workers

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// fakeKernel is a hierarchy with the rules of cgroups(7), version 2: a controller's files are in a group where the
// group above hands it on, which one that holds processes may not, and a group goes when nothing is in it. It writes
// down what is done.
type fakeKernel struct {
	offers []string            // controllers that the base may hand on
	base   string              // where the daemon is at first
	procs  map[string][]string // of each group
	hands  map[string][]string // the controllers that it hands on
	breaks string              // a file that cannot be written
	done   []string
}

func newFakeKernel(offers ...string) *fakeKernel {
	return &fakeKernel{offers: offers, base: "/b", procs: map[string][]string{"/b": {strconv.Itoa(os.Getpid())}},
		hands: map[string][]string{}}
}

func (k *fakeKernel) Mkdir(dir string) error {
	if _, there := k.procs[dir]; there {
		return fs.ErrExist
	}
	if _, above := k.procs[path.Dir(dir)]; !above {
		return fs.ErrNotExist
	}
	k.procs[dir] = nil
	k.done = append(k.done, "mkdir "+dir)
	return nil
}

func (k *fakeKernel) has(dir, controller string) bool {
	if dir == k.base {
		return slices.Contains(k.offers, controller)
	}
	return slices.Contains(k.hands[path.Dir(dir)], controller)
}

func (k *fakeKernel) Put(dir, file, text string) error {
	if _, there := k.procs[dir]; !there || file == k.breaks {
		return unix.ENOENT
	}
	owner, _, _ := strings.Cut(file, ".")
	switch {
	case file == "cgroup.procs" && len(k.hands[dir]) > 0:
		return unix.EBUSY
	case file == "cgroup.procs":
		for d, list := range k.procs {
			k.procs[d] = slices.DeleteFunc(list, func(p string) bool { return p == text })
		}
		k.procs[dir] = append(k.procs[dir], text)
	case file == "cgroup.subtree_control" && !k.has(dir, text[1:]):
		return unix.ENOENT
	case file == "cgroup.subtree_control" && len(k.procs[dir]) > 0:
		return unix.EBUSY
	case file == "cgroup.subtree_control":
		k.hands[dir] = append(k.hands[dir], text[1:])
	case file == "cgroup.kill":
		k.procs[dir] = nil
	case !k.has(dir, owner):
		return unix.ENOENT
	}
	k.done = append(k.done, fmt.Sprintf("%s/%s = %s", dir, file, text))
	return nil
}

func (k *fakeKernel) Remove(dir string) error {
	for other := range k.procs {
		if path.Dir(other) == dir {
			return unix.EBUSY
		}
	}
	if _, there := k.procs[dir]; !there {
		return fs.ErrNotExist
	}
	if len(k.procs[dir]) > 0 {
		return unix.EBUSY
	}
	delete(k.procs, dir)
	k.done = append(k.done, "rmdir "+dir)
	return nil
}

// took gives what was done since it was asked before.
func (k *fakeKernel) took() string {
	text := strings.Join(k.done, "\n")
	k.done = nil
	return strings.ReplaceAll(text, "cgroup.procs = "+strconv.Itoa(os.Getpid()), "cgroup.procs = SELF")
}

func wantTook(t *testing.T, k *fakeKernel, want ...string) {
	t.Helper()
	if got := k.took(); got != strings.Join(want, "\n") {
		t.Errorf("done:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
}

// Which files are written, with what, in which order: with every controller, which the machine of a test seldom hands
// over.
func TestGroupsAreBounded(t *testing.T) {
	k := newFakeKernel("cpu", "memory", "pids", "io")
	g, err := openGroups(k, k.base,
		Limits{Processes: 100, MemoryBytes: 1 << 30, TenantProcesses: 300, TenantBytes: 2 << 30})
	if err != nil || len(g.lacks()) > 0 {
		t.Fatal(err, g.lacks())
	}
	wantTook(t, k, "mkdir /b/daemon", "mkdir /b/workers", "/b/daemon/cgroup.procs = SELF",
		"/b/cgroup.subtree_control = +pids", "/b/workers/cgroup.subtree_control = +pids",
		"/b/cgroup.subtree_control = +memory", "/b/workers/cgroup.subtree_control = +memory",
		"/b/cgroup.subtree_control = +cpu", "/b/workers/cgroup.subtree_control = +cpu", "/b/daemon/cpu.weight = 400")
	first, err := g.make("lab")
	if err != nil {
		t.Fatal(err)
	}
	above := path.Dir(first.dir)
	wantTook(t, k, "mkdir "+above, above+"/cgroup.subtree_control = +pids", above+"/cgroup.subtree_control = +memory",
		above+"/cgroup.subtree_control = +cpu",
		"mkdir "+above+"/1", above+"/pids.max = 300", above+"/memory.max = 2147483648", above+"/1/pids.max = 100",
		above+"/1/memory.max = 1073741824", above+"/1/memory.oom.group = 1")
	second, err := g.make("lab")
	if err != nil || path.Dir(second.dir) != above {
		t.Fatal(second.dir, err)
	}
	k.took()
	k.procs[first.dir] = []string{"77"}
	first.end()
	wantTook(t, k, above+"/1/cgroup.kill = 1", "rmdir "+above+"/1")
	second.end()
	wantTook(t, k, above+"/2/cgroup.kill = 1", "rmdir "+above+"/2", "rmdir "+above)
}

// A controller that is not handed over is said to lack, and the others bound all the same; a group that cannot be
// bounded is not left behind.
func TestGroupsWithoutSomeControllers(t *testing.T) {
	k := newFakeKernel("pids")
	g, err := openGroups(k, k.base, Limits{Processes: 100, MemoryBytes: 1 << 30})
	if err != nil || !slices.Equal(g.lacks(), []string{"memory", "cpu"}) {
		t.Fatal(err, g.lacks())
	}
	k.took()
	one, err := g.make("lab")
	if err != nil {
		t.Fatal(err)
	}
	above := path.Dir(one.dir)
	wantTook(t, k, "mkdir "+above, above+"/cgroup.subtree_control = +pids", "mkdir "+one.dir, one.dir+"/pids.max = 100")
	k.breaks = "pids.max"
	if x, err := g.make("other"); err == nil {
		t.Error("a worker has no bound: ", x.dir)
	}
	for dir := range k.procs {
		if strings.HasPrefix(dir, "/b/workers/") && dir != one.dir && dir != above {
			t.Error("left: ", dir)
		}
	}
}
