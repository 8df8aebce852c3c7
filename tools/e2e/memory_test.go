package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/tools/e2e/rig"
)

// cgroup makes a memory cgroup that ends with the test. It gives the file that takes processes and one that says what
// they use, in bytes.
func cgroup(t *testing.T, limit uint64) (procs, usage string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("skipped: only root can make a cgroup")
	}
	for _, kind := range [][3]string{
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"},
		{"/sys/fs/cgroup", "memory.max", "memory.current"},
	} {
		dir := filepath.Join(kind[0], fmt.Sprintf("tendril-e2e-%d", os.Getpid()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() {
			for range 500 { // until the processes are gone
				if unix.Rmdir(dir) != unix.EBUSY {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
			continue // a plain directory: what is written there limits nobody
		}
		if os.WriteFile(filepath.Join(dir, kind[1]), []byte(strconv.FormatUint(limit, 10)), 0o644) == nil {
			return filepath.Join(dir, "cgroup.procs"), filepath.Join(dir, kind[2])
		}
	}
	t.Skip("skipped: no memory cgroup can be made here (neither version 1 nor 2 is writable)")
	return "", ""
}

// daemonIn begins command lines so that the daemon alone enters the cgroup that procs belongs to. Under version 2 its
// verbs could not: a daemon that makes cgroups for its workers moves itself one level down, and the kernel lets
// processes be at the ends of the tree only (cgroup-v2.rst, "No Internal Process Constraint").
func daemonIn(procs string) []string {
	return []string{"sh", "-c", `[ "$2" != daemon ] || echo $$ >"$0" || exit; exec "$@"`, procs}
}

func number(t *testing.T, file string) uint64 {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestMemoryOfTheDaemon: a daemon whose cgroup has less than the capacity that it was promised refuses, with words,
// what would have the kernel end it; and what is deleted really goes back to the kernel.
func TestMemoryOfTheDaemon(t *testing.T) {
	t.Parallel()
	procs, usage := cgroup(t, 400<<20)
	n, err := rig.StartWith(t.Context(), bin, rig.Options{Inside: daemonIn(procs), Env: []string{"TENDRIL_CAPACITY=2GiB",
		"TENDRIL_SPILL=none", "TENDRIL_WARM_MEMORY=none", "TENDRIL_WARM_WORKERS=-1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Stop(); err != nil {
			t.Error(err)
		}
	}()
	file := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(file, make([]byte, 48<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := number(t, usage)
	put := 0
	for ; put < 40; put++ {
		if _, err = n.Run(t.Context(), "put", file, "--name", fmt.Sprint("m", put)); err != nil {
			break
		}
	}
	if err == nil || put < 3 || !strings.Contains(err.Error(), "store is full") ||
		!strings.Contains(err.Error(), "machine has") {
		t.Fatalf("%d objects of 48 MiB in a cgroup of 400, then: %v", put, err)
	}
	if full := number(t, usage); full < uint64(put)*40<<20 { // the rest of the group gave way
		t.Errorf("%d objects of 48 MiB are charged %d bytes to the daemon's cgroup", put, full)
	}
	for i := range put {
		if _, err := n.Run(t.Context(), "rm", fmt.Sprint("m", i)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error {
		if now := number(t, usage); now > empty+64<<20 {
			return fmt.Errorf("the cgroup uses %d bytes after all was deleted, %d before", now, empty)
		}
		return nil
	})
	if _, err := n.Run(t.Context(), "put", file, "--name", "again"); err != nil {
		t.Errorf("with memory again: %v", err)
	}
}
