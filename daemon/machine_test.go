package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"strings"
)

func TestMemoryIsTheTightestLimit(t *testing.T) {
	const meminfo = "MemTotal:       16384000 kB\nMemFree: 1 kB\n"
	const total = 16384000 << 10
	for name, x := range map[string]struct {
		files map[string]string
		want  uint64
	}{
		"nothing to read": {nil, 0},
		"no cgroup":       {map[string]string{"proc/meminfo": meminfo}, total},
		"v2 unlimited": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "max\n"}, total},
		"v2 own limit": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "1048576\n"}, 1 << 20},
		"v2 parent's limit": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/memory.max": "2097152\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, 2 << 20},
		"v2 in a container": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "4194304\n"}, 4 << 20},
		"v1": {map[string]string{"proc/meminfo": meminfo,
			"proc/self/cgroup": "4:memory:/g\n1:cpu:/\n0::/\n",
			"sys/fs/cgroup/memory/g/memory.limit_in_bytes": "8388608\n"}, 8 << 20},
		"v1 unlimited": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "4:memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, total},
		"limit over memory": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "99999999999999\n"}, total},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for file, text := range x.files {
				path := filepath.Join(root, file)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700),
					os.WriteFile(path, []byte(text), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			if got := memoryBytes(root); got != x.want {
				t.Errorf("%d bytes, want %d", got, x.want)
			}
		})
	}
}

func TestAvailableIsTheTightestLimit(t *testing.T) {
	const meminfo = "MemTotal:       16384000 kB\nMemFree: 1 kB\nMemAvailable:    8192000 kB\n"
	const available = 8192000 << 10
	for name, x := range map[string]struct {
		files map[string]string
		want  uint64
		known bool
	}{
		"nothing to read": {nil, 1<<64 - 1, false},
		"no cgroup":       {map[string]string{"proc/meminfo": meminfo}, available, true},
		"v2 unlimited": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n",
			"sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/memory.current": "5\n"}, available, true},
		"v2": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n",
			"sys/fs/cgroup/a/memory.max":     "1000000\n",
			"sys/fs/cgroup/a/memory.current": "900000\n",
			"sys/fs/cgroup/a/memory.stat":    "anon 5\ninactive_file 300000\n"}, 400000, true},
		"v1": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "4:memory:/g\n",
			"sys/fs/cgroup/memory/g/memory.limit_in_bytes": "1000000\n",
			"sys/fs/cgroup/memory/g/memory.usage_in_bytes": "1000001\n",
			"sys/fs/cgroup/memory/g/memory.stat":           "inactive_file 7\ntotal_inactive_file 1\n"}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for file, text := range x.files {
				path := filepath.Join(root, file)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700),
					os.WriteFile(path, []byte(text), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			if got, known := availableBytes(root); got != x.want || known != x.known {
				t.Errorf("%d bytes, known %v; want %d, %v", got, known, x.want, x.known)
			}
		})
	}
}

func TestProcessesThatMayBe(t *testing.T) {
	for name, x := range map[string]struct {
		files map[string]string
		want  int
	}{
		"nothing is known": {nil, 0},
		"the kernel": {map[string]string{"proc/sys/kernel/pid_max": "32768\n",
			"proc/sys/kernel/threads-max": "20000\n"}, 20000},
		"a cgroup above": {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/pids.max": "300\n",
			"sys/fs/cgroup/a/b/pids.max": "max\n",
			"proc/sys/kernel/pid_max":    "32768\n"}, 300},
		"version 1": {map[string]string{"proc/self/cgroup": "8:pids:/a\n0::/\n",
			"sys/fs/cgroup/pids/a/pids.max": "200\n"}, 200},
	} {
		root := t.TempDir()
		for file, text := range x.files {
			path := filepath.Join(root, file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700),
				os.WriteFile(path, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if got := processes(root); got != x.want {
			t.Errorf("%s: %d, want %d", name, got, x.want)
		}
	}
}

func TestWorkersLimitsFitTheMachine(t *testing.T) {
	for _, m := range []Machine{{UID: 0, MemoryBytes: 64 << 30, Processes: 1 << 22},
		{UID: 0, MemoryBytes: 256 << 20, Processes: 40}, {UID: 0, MemoryBytes: 1 << 30}} {
		m.Socket = "/s"
		c, err := Config{}.Defaults(m, env())
		if err == nil {
			err = c.Validate()
		}
		if l := c.Workers; err != nil || l.Processes <= 0 || l.TenantProcesses < l.Processes ||
			l.TenantBytes < l.MemoryBytes || l.Files <= 0 || l.FileBytes <= 0 {
			t.Errorf("%+v: %+v, %v", m, c.Workers, err)
		}
	}
}

func TestStateDirectoryHasOneDaemon(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "state")
	first, err := openStateDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := os.Chmod(dir, 0o711); err != nil { // as a daemon of root's does, for its workers
		t.Fatal(err)
	}
	_, err = openStateDir(dir)
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("a second daemon shut out the first one's workers: mode %v, %v", info.Mode(), err)
	}
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
		t.Errorf("a second daemon: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := openStateDir(dir)
	if err != nil {
		t.Fatalf("after the first one ended: %v", err)
	}
	again.Close()
}

func TestStateDirectoryIsClosedToOthers(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	s, err := openStateDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestStateDirectoryThatCannotBe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openStateDir(filepath.Join(file, "state")); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("below a file: %v", err)
	}
	link := t.TempDir()
	if err := os.Symlink("/etc/passwd", filepath.Join(link, lockFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := openStateDir(link); err == nil {
		t.Error("a lock file that is a link was followed")
	}
}
