package workers

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/tools/e2e/await"
)

// A worker that takes too much with what it started is ended and says what for; another tenant's goes on.
func TestWorkersThatTakeTooMuchAreEnded(t *testing.T) {
	for _, x := range []struct {
		mode   string
		limits Limits
		flag   string
	}{
		{"bomb", Limits{Processes: 60}, "--worker-processes"},
		{"bomb", Limits{TenantProcesses: 60}, "--tenant-processes"},
		{"herd", Limits{MemoryBytes: 64 << 20}, "--worker-memory"},
		{"herd", Limits{TenantBytes: 64 << 20}, "--tenant-memory"},
	} {
		t.Run(x.flag, func(t *testing.T) {
			p, _ := newPool(t, func(o *Options) { o.Warm, o.Limits, o.LimitsLook = -1, x.limits, 10*time.Millisecond },
				"good", x.mode)
			platforms, err := p.Platforms(t.Context())
			if err != nil || len(platforms) != 2 {
				t.Fatal(platforms, err)
			}
			neighbour, _ := open(t, p, 1, "uid:other")
			o, err := p.Open(t.Context(), Request{Session: 2, Platform: platforms[1], Tenant: me()})
			if err != nil {
				t.Fatal(err)
			}
			defer o.Socket.Close()
			defer o.Ring.Close()
			w := p.serving[o.ID].w
			await.Until(t, "its end", w.ended)
			if !strings.Contains(w.fate, x.flag) {
				t.Errorf("it ended otherwise: %q", w.fate)
			}
			if n := p.Ends(); n["limit"]+n["memory"] != 1 {
				t.Errorf("counted as %v", n)
			}
			if alive, why, err := p.Fate(t.Context(), 1, neighbour.ID); !alive || err != nil {
				t.Errorf("another tenant's worker: %q, %v", why, err)
			}
		})
	}
}

// A look that takes long, on a machine that a bomb has taken, is soon followed by the next one all the same.
func TestSlowLooksFollowEachOther(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		time.Millisecond: 50 * time.Millisecond, 2 * time.Second: 5 * time.Second, time.Minute: 5 * time.Second,
	} {
		if got := pauseAfter(took); got != want {
			t.Errorf("after one of %v the next one comes after %v, want %v", took, got, want)
		}
	}
}

// Pages that a fork has in common with its parent are not memory that it takes.
func TestForksAreNotChargedTwice(t *testing.T) {
	p, _ := newPool(t, func(o *Options) {
		o.Warm, o.LimitsLook = -1, time.Hour // the test looks
		o.Limits = Limits{MemoryBytes: 96 << 20}
	}, "forks")
	o, facts := open(t, p, 1, me())
	pid, err := strconv.Atoi(facts["pid"])
	if err != nil {
		t.Fatal(err)
	}
	if rough := lookAt(pid, 1000, false); rough.bytes < 96<<20 || len(rough.children) < 4 {
		t.Fatalf("the worker did not fork as it should: %+v", rough)
	}
	for range 3 {
		p.checkLimits()
	}
	if alive, why, err := p.Fate(t.Context(), 1, o.ID); !alive || err != nil {
		t.Errorf("it was ended for pages that its children share: %q, %v", why, err)
	}
}

// cgroupOfOurOwn makes a cgroup of version 2 for the test's process, which goes back in the end.
func cgroupOfOurOwn(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Skip("skipped: ", err)
	}
	for line := range strings.Lines(string(raw)) {
		own, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
			var st unix.Statfs_t
			if unix.Statfs(mount, &st) != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
				continue
			}
			home := filepath.Join(mount, own)
			dir := filepath.Join(home, "tendril-test-"+strconv.Itoa(os.Getpid()))
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Skip("skipped: no cgroup can be made here: ", err)
			}
			t.Cleanup(func() {
				err := put(home, "cgroup.procs", strconv.Itoa(os.Getpid()))
				for _, d := range []string{"workers", "daemon", "."} {
					if e := os.Remove(filepath.Join(dir, d)); err == nil {
						err = e
					}
				}
				if err != nil {
					t.Error("a cgroup is left: ", err)
				}
			})
			return dir
		}
	}
	t.Skip("skipped: this machine has no cgroups of version 2")
	return ""
}

// Each worker is in a cgroup of its own, in which everything ends and which goes then; what an earlier daemon left goes
// at the start.
func TestWorkersHaveCgroups(t *testing.T) {
	base := cgroupOfOurOwn(t)
	stale := filepath.Join(base, workersGroup, "tlab", "7")
	if err := os.MkdirAll(stale, 0o755); err != nil {
		t.Fatal(err)
	}
	p, _ := newPool(t, func(o *Options) {
		o.Warm, o.Group, o.Limits = -1, base,
			Limits{Processes: 100, MemoryBytes: 1 << 30}
	}, "escapes")
	if p.groups == nil {
		t.Fatal("no cgroups: ", p.noGroups)
	}
	t.Logf("bounds: %+v; done without: %+v", p.Bounds(), p.lacking())
	if _, err := os.Stat(stale); !os.IsNotExist(err) {
		t.Errorf("the cgroup of a worker before is still there: %v", err)
	}
	o, facts := open(t, p, 1, me())
	raw, err := os.ReadFile("/proc/" + facts["pid"] + "/cgroup")
	dir := p.serving[o.ID].w.group.dir
	if err != nil || dir == "" ||
		!strings.Contains(string(raw), filepath.Join("workers", "tuid_3ame", filepath.Base(dir))) {
		t.Fatalf("the worker is in %s, not in %s (%v)", raw, dir, err)
	}
	inside, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil || len(strings.Fields(string(inside))) < 3 {
		t.Errorf("the cgroup holds %q, %v: not what the worker started", inside, err)
	}
	for _, c := range p.groups.has {
		file := map[string]string{"pids": "pids.max", "memory": "memory.max", "cpu": "cpu.weight"}[c]
		want := map[string]string{"pids": "100", "memory": "1073741824", "cpu": "100"}[c]
		if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("%s is %q, %v, want %s", file, got, err, want)
		}
	}
	if err := p.Release(1, o.ID); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(base, workersGroup, "*", "cgroup.procs")); len(left) > 0 || err != nil {
		t.Errorf("cgroups are left: %v, %v", left, err)
	}
}
