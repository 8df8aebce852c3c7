package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tendril/tools/e2e/rig"
)

// holdings is what a process holds of the kernel.
type holdings struct{ descriptors, mappings, children, memfds int }

func of(pid int) (holdings, error) {
	dir := "/proc/" + strconv.Itoa(pid)
	fds, err := os.ReadDir(dir + "/fd")
	if err != nil {
		return holdings{}, err
	}
	h := holdings{descriptors: len(fds)}
	for _, fd := range fds {
		if target, err := os.Readlink(dir + "/fd/" + fd.Name()); err == nil && strings.HasPrefix(target, "/memfd:") {
			h.memfds++
		}
	}
	maps, err := os.ReadFile(dir + "/maps")
	if err != nil {
		return h, err
	}
	h.mappings = strings.Count(string(maps), "/memfd:")
	tasks, err := os.ReadDir(dir + "/task")
	if err != nil {
		return h, err
	}
	for _, task := range tasks {
		children, err := os.ReadFile(filepath.Join(dir, "task", task.Name(), "children"))
		if err == nil {
			h.children += len(strings.Fields(string(children)))
		}
	}
	return h, nil
}

// shared lists what programs could leave in the places that outlive processes.
func shared(t *testing.T) []string {
	t.Helper()
	shm, err := filepath.Glob("/dev/shm/*")
	if err != nil {
		t.Fatal(err)
	}
	return shm
}

// TestNothingLeaks: sessions, objects and clients that end in every way leave the daemon as it was.
func TestNothingLeaks(t *testing.T) {
	t.Parallel()
	n := node(t)
	round := func() {
		p := opened(t, n)
		p.want("add 0", "add 1")
		p.want("good", "verify")
		p.in.Close() // an orderly end
		p.ends()
		q := opened(t, n)
		q.want("buffer 0 object", "buffer %d", 8<<20)
		q.cmd.Process.Kill()
		q.cmd.Wait()
		v := opened(t, n)
		failed(t, v.ask("stray 1000000000000"))
		v.cmd.Process.Kill()
		v.cmd.Wait()
		if _, err := n.Run(t.Context(), "put", "main_test.go", "--name", "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Run(t.Context(), "get", "x", "-o", filepath.Join(t.TempDir(), "x")); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Run(t.Context(), "rm", "x"); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the pools fill
		round()
	}
	before, files := settled(t, n, nil), shared(t)
	for range 5 {
		round()
	}
	settled(t, n, &before)
	eventually(t, func() error { // other programs of the machine have files there, too, for a moment
		left := slices.DeleteFunc(shared(t), func(file string) bool { return slices.Contains(files, file) })
		if len(left) > 0 {
			return fmt.Errorf("left in /dev/shm: %v", left)
		}
		return nil
	})
}

// spare is what a worker that waits for its session costs the daemon. There may be one or none when the test looks;
// five rounds that leak hold more.
var spare = holdings{descriptors: 4, children: 1}

// settled waits until the node is idle and holds no more than limit and a spare worker (nil: twice the same).
func settled(t *testing.T, n *rig.Node, limit *holdings) holdings {
	t.Helper()
	eventually(t, idle(t.Context(), n))
	var last holdings
	eventually(t, func() error {
		h, err := of(n.PID())
		if err != nil {
			return err
		}
		was := last
		last = h
		if limit == nil {
			if was != h {
				return fmt.Errorf("not at rest: %+v, then %+v", was, h)
			}
			return nil
		}
		if h.descriptors > limit.descriptors+spare.descriptors || h.children > limit.children+spare.children ||
			h.memfds > limit.memfds || h.mappings > limit.mappings {
			return fmt.Errorf("the daemon holds %+v, before %+v", h, *limit)
		}
		return nil
	})
	return last
}

// TestNothingStays: after the daemon has gone there is no process and no file of it.
func TestNothingStays(t *testing.T) {
	// A place of its own: other tests' daemons come and go in the usual one. Workers run as other users and read there.
	tmp := filepath.Dir(t.TempDir())
	if err := os.Chmod(tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", tmp)
	temporary, err := os.MkdirTemp("", "tendril-stays-") // other nodes of this machine have the usual one
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(temporary) })
	if err := os.Chmod(temporary, 0o777); err != nil {
		t.Fatal(err)
	}
	n, err := rig.Start(t.Context(), bin, "TMPDIR="+temporary,
		"TENDRIL_STATE_DIR="+filepath.Join(t.TempDir(), "closed"))
	if err != nil {
		t.Fatal(err)
	}
	var serving map[int]bool
	func() {
		defer func() {
			if err := n.Stop(); err != nil {
				t.Error(err)
			}
		}()
		p := opened(t, n)
		p.want("good", "verify")
		s, err := n.Status(t.Context())
		if err != nil {
			t.Error(err)
			return
		}
		serving = map[int]bool{}
		for _, w := range s.Workers {
			serving[w.PID] = true
		}
	}()
	if len(serving) == 0 {
		t.Error("there was no worker")
	}
	for pid := range maps.Keys(serving) {
		eventually(t, func() error { // one that is killed and gets no processor is there for as long
			if _, err := os.Stat("/proc/" + strconv.Itoa(pid)); err == nil {
				return fmt.Errorf("worker %d outlives its daemon", pid)
			}
			return nil
		})
	}
	left, err := os.ReadDir(temporary)
	if err != nil || len(left) > 0 {
		t.Errorf("%v stays, %v", left, err)
	}
}
