package workers

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"tendril/daemon/tenancy"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// safeBuffer is a log that the test reads while workers write.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// openDir is a directory that other users may pass through, unlike t.TempDir.
func openDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/tmp", "tendril-workers-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, d := range []string{dir, filepath.Join(dir, "vendors"), filepath.Join(dir, "cache")} {
		os.Mkdir(d, 0o755)
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// newPool makes a pool over fake drivers of these modes. At the test's end it is closed, and nothing of it may be left.
func newPool(t *testing.T, alter func(*Options), modes ...string) (*Pool, *safeBuffer) {
	t.Helper()
	dir := openDir(t)
	for i, m := range modes {
		path := filepath.Join(dir, "vendors", fmt.Sprintf("%02d.icd", i))
		if err := os.WriteFile(path, []byte(m+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	log, out := logrus.New(), &safeBuffer{}
	log.SetOutput(out)
	o := Options{
		Executable: "/proc/self/exe", Args: []string{"-fake"}, Vendors: []string{filepath.Join(dir, "vendors")},
		StateDir: dir, IDs: OwnIDs(), CacheRoot: filepath.Join(dir, "cache"), Warm: 1, Max: 8,
		ProbeTimeout: 10 * time.Minute, StartTimeout: 10 * time.Minute, Log: log,
	}
	if alter != nil {
		alter(&o)
	}
	goroutines := goleak.IgnoreCurrent()
	files := openFiles(t)
	p := New(o, me())
	t.Cleanup(func() {
		if err := ended(p); err != nil {
			t.Error(err)
		}
		await.NoneLeft(t, goroutines)
		if left := children(t); len(left) > 0 {
			t.Errorf("processes left: %v", left)
		}
		await.Until(t, fmt.Sprintf("end with no more than the %d descriptors of before", files), func() bool {
			runtime.GC() // has the pidfds closed of processes that were waited for, by a goroutine of its own
			return openFiles(t) <= files
		})
		if t.Failed() {
			t.Logf("log:\n%s", out)
		}
	})
	p.Probe()
	return p, out
}

// ended closes a pool. A process that was killed ends late where it gets no processor: Close says so after a while, and
// is asked again.
func ended(p *Pool) error {
	for began := time.Now(); ; {
		if err := p.Close(); !errors.Is(err, object.ErrBusy) || time.Since(began) > 5*time.Minute {
			return err
		}
	}
}

func me() string { return "uid:me" }

func openFiles(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// children lists this process's children, zombies too (proc(5), task/TID/children).
func children(t *testing.T) []string {
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, l := range lists {
		raw, _ := os.ReadFile(l) // a thread that ended in the meantime has none
		all = append(all, strings.Fields(string(raw))...)
	}
	return all
}

func open(t *testing.T, p *Pool, session uint64, tenant string, env ...string) (Opened, map[string]string) {
	t.Helper()
	platforms, err := p.Platforms(t.Context())
	if err != nil || len(platforms) == 0 {
		t.Fatalf("platforms: %v, %v", platforms, err)
	}
	o, err := p.Open(t.Context(), Request{Session: session, Platform: platforms[0], Tenant: tenant, Env: env})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Socket.Close(); o.Ring.Close() })
	line, err := bufio.NewReader(o.Socket).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	facts := map[string]string{}
	for _, f := range strings.Fields(line) {
		k, v, _ := strings.Cut(f, "=")
		facts[k] = v
	}
	if facts["pid"] == "" {
		t.Fatalf("the worker says %q", line)
	}
	return o, facts
}

func warmReady(p *Pool) bool {
	for _, w := range p.Workers() {
		if w.State == "warm" {
			return true
		}
	}
	return false
}

func TestDriversThatFailAreReportedAndBreakNothing(t *testing.T) {
	p, _ := newPool(t, nil, "probe-dies", "good", "probe-fails", "probe-babbles", "probe-floods",
		"/x/libtendril_opencl.so.1")
	want := []string{"exited with status 9, after saying: the driver is about to die", "",
		"exited with status 1, after saying: no such library",
		"is not one of the protocol", "wrote more than"}
	got := p.Drivers()
	if len(got) != len(want) {
		t.Fatalf("drivers: %+v", got)
	}
	for i, d := range got {
		if (want[i] == "") != (d.State == DriverReady) || !strings.Contains(d.Error, want[i]) {
			t.Errorf("driver %d: %+v, want %q", i, d, want[i])
		}
	}
	if got[1].Devices != 2 || len(got[1].Platforms) != 1 || got[1].Platforms[0] != "Fake good" {
		t.Errorf("the good driver: %+v", got[1])
	}
	pl, err := p.Platforms(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first, second := pl[0].Snapshot.Devices[0].UUID, pl[0].Snapshot.Devices[1].UUID
	if first != "00112233445566778899aabbccddeeff" || len(second) != 32 {
		t.Errorf("UUIDs %q (the device's own) and %q (made)", first, second)
	}
	open(t, p, 1, me())
}

// The time to probe a driver is that of all: it is short in a pool whose only driver hangs.
func TestDriverThatHangsIsGivenUp(t *testing.T) {
	p, _ := newPool(t, func(o *Options) { o.ProbeTimeout = 100 * time.Millisecond }, "probe-hangs")
	got := p.Drivers()
	if len(got) != 1 || got[0].State == DriverReady || !strings.Contains(got[0].Error, "did not end within 100ms") {
		t.Errorf("%+v", got)
	}
}

func TestWarmWorkerIsTakenAndReplaced(t *testing.T) {
	p, _ := newPool(t, nil, "good")
	await.Until(t, "a warm worker", func() bool { return warmReady(p) })
	warm := p.Workers()[0].PID
	_, facts := open(t, p, 1, me())
	if facts["pid"] != strconv.Itoa(warm) {
		t.Errorf("worker %s serves, %d was warm", facts["pid"], warm)
	}
	if facts["tenant"] != "uid:me" {
		t.Errorf("tenant %q", facts["tenant"])
	}
	await.Until(t, "another warm worker", func() bool { return warmReady(p) })
	var states []string
	for _, w := range p.Workers() {
		states = append(states, w.State)
		if w.MemoryBytes == 0 || w.Platform != "Fake good" {
			t.Errorf("%+v", w)
		}
	}
	if len(states) != 2 {
		t.Errorf("workers: %v", states)
	}
	if f := p.Fallbacks(); len(f) == 0 || f[len(f)-1].What != "sandbox" {
		t.Errorf("fallbacks: %v", f)
	}
}

func TestWorkerHasNoMoreThanItNeeds(t *testing.T) {
	t.Setenv("LD_PRELOAD_X", "1")
	p, _ := newPool(t, nil, "good")
	_, facts := open(t, p, 1, me(), DriverEnv(map[string]string{
		"POCL_MAX_PTHREAD_COUNT": "2", "POCL_CACHE_DIR": "/evil", "LD_PRELOAD": "/evil.so", "POCL_DEVICES": "basic",
		"CL_X": "a\x00b", "HOME": "/evil",
	})...)
	if strings.Contains(facts["env"], "evil") || strings.Contains(facts["env"], "LD_") ||
		!strings.Contains(facts["env"], "POCL_MAX_PTHREAD_COUNT=2") {
		t.Errorf("environment: %s", facts["env"])
	}
	if id, err := strconv.ParseUint(facts["uid"], 10, 32); os.Getuid() == 0 &&
		(err != nil || !OwnIDs().has(uint32(id))) {
		t.Errorf("root's worker runs as user %s, not as one of %v", facts["uid"], OwnIDs())
	}
	if !strings.HasPrefix(facts["cache"], p.opts.CacheRoot+"/") {
		t.Errorf("cache: %s", facts["cache"])
	}
}

func TestTenantsHaveUsersAndCachesOfTheirOwn(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root gives workers other users")
	}
	p, _ := newPool(t, nil, "good")
	_, a := open(t, p, 1, "uid:1001")
	_, b := open(t, p, 2, "uid:1002")
	if a["uid"] == b["uid"] || a["uid"] == "1001" || a["cache"] == b["cache"] {
		t.Errorf("%v and %v", a, b)
	}
	info, err := os.Stat(a["cache"])
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("cache: %v, %v", info, err)
	}
	await.Until(t, "a warm worker for the newest tenant alone", func() bool {
		warm := 0
		for _, w := range p.Workers() {
			if w.State == "warm" && w.Tenant == "uid:1002" {
				warm++
			} else if w.State != "serving" {
				return false
			}
		}
		return warm == 1
	})
}

func TestWorkerThatDiesIsSeen(t *testing.T) {
	p, _ := newPool(t, nil, "good")
	o, facts := open(t, p, 1, me())
	other, _ := open(t, p, 2, me())
	if alive, _, err := p.Fate(t.Context(), 1, o.ID); !alive || err != nil {
		t.Errorf("alive %v, %v", alive, err)
	}
	if _, _, err := p.Fate(t.Context(), 2, o.ID); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("another session's worker: %v", err)
	}
	if err := p.Release(2, o.ID); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("another session's worker: %v", err)
	}
	pid, err := strconv.Atoi(facts["pid"])
	if err != nil || syscall.Kill(pid, syscall.SIGKILL) != nil {
		t.Fatalf("worker %q cannot be killed: %v", facts["pid"], err)
	}
	if n, err := o.Socket.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("read %d, %v after its death", n, err)
	}
	await.Until(t, "its fate", func() bool {
		alive, text, err := p.Fate(t.Context(), 1, o.ID)
		return err == nil && !alive && text == "killed by SIGKILL"
	})
	if alive, _, err := p.Fate(t.Context(), 2, other.ID); !alive || err != nil {
		t.Errorf("the other session's worker: %v, %v", alive, err)
	}
	if err := p.Release(1, o.ID); err != nil {
		t.Error(err)
	}
	p.ReleaseSession(2)
	if _, _, err := p.Fate(t.Context(), 2, other.ID); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("after its session: %v", err)
	}
	if _, err := other.Socket.Read(make([]byte, 1)); err == nil {
		t.Error("the worker outlived its session")
	}
}

func TestWorkersThatDoNotStart(t *testing.T) {
	for mode, want := range map[string]string{
		"start-dies":    "exited with status 7, after saying: cannot go on",
		"start-hangs":   "did not load start-hangs within 1s",
		"start-refuses": "could not load start-refuses: no device",
	} {
		t.Run(mode, func(t *testing.T) {
			p, _ := newPool(t, func(o *Options) {
				if mode == "start-hangs" {
					o.StartTimeout = time.Second
				}
			}, mode)
			pl, err := p.Platforms(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_, err = p.Open(t.Context(), Request{Session: 1, Platform: pl[0], Tenant: me()})
			if !errors.Is(err, object.ErrNoDevice) || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
}

func TestWarmWorkersThatDieAreNotRestartedAtOnce(t *testing.T) {
	p, log := newPool(t, nil, "start-dies")
	await.Until(t, "two failures", func() bool { return strings.Contains(log.String(), "failures=2") })
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.pause {
		if left := time.Until(b.until); b.failures < 2 || b.failures > 12 {
			t.Errorf("%d failures, %v to wait", b.failures, left)
		}
	}
}

func TestOpenEndsWithItsContext(t *testing.T) {
	p, _ := newPool(t, func(o *Options) { o.Warm = -1 }, "start-hangs")
	pl, err := p.Platforms(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err = p.Open(ctx, Request{Session: 1, Platform: pl[0], Tenant: me()}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestWorkersAreBounded(t *testing.T) {
	p, _ := newPool(t, func(o *Options) { o.Max = 1 }, "good")
	o, _ := open(t, p, 1, me())
	pl, _ := p.Platforms(t.Context())
	if _, err := p.Open(t.Context(), Request{Session: 2, Platform: pl[0], Tenant: me()}); !errors.Is(err,
		object.ErrBusy) {
		t.Errorf("a second worker: %v", err)
	}
	if err := p.Release(1, o.ID); err != nil {
		t.Error(err)
	}
	open(t, p, 2, me())
}

func TestLogIsBounded(t *testing.T) {
	p, log := newPool(t, nil, "chatty")
	open(t, p, 1, me())
	p.ReleaseSession(1)
	await.Until(t, "the line that says what was left out",
		func() bool { return strings.Contains(log.String(), "were left out") })
	if n := strings.Count(log.String(), "msg=\"line "); n == 0 || n > 4*lineBurst {
		t.Errorf("%d lines", n)
	}
}

func TestReprobeKeepsSessions(t *testing.T) {
	p, _ := newPool(t, nil, "good")
	before, err := p.Platforms(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	o, _ := open(t, p, 1, me())
	if err := os.WriteFile(filepath.Join(p.opts.Vendors[0], "99.icd"), []byte("second"), 0o644); err != nil {
		t.Fatal(err)
	}
	p.Probe()
	after, err := p.Platforms(t.Context())
	if err != nil || len(after) != 2 || len(before) != 1 {
		t.Fatalf("platforms %d, then %d, %v", len(before), len(after), err)
	}
	if alive, _, err := p.Fate(t.Context(), 1, o.ID); !alive || err != nil {
		t.Errorf("the session's worker: %v %v", alive, err)
	}
	w, err := p.Open(t.Context(), Request{Session: 1, Platform: before[0], Tenant: me()})
	if err != nil {
		t.Fatal(err)
	}
	w.Socket.Close()
	w.Ring.Close()
}

func TestCloseDuringProbeAndOpen(t *testing.T) {
	p, _ := newPool(t, nil, "start-hangs")
	pl, err := p.Platforms(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			_, err := p.Open(t.Context(), Request{Session: uint64(i), Platform: pl[0], Tenant: me()})
			if !errors.Is(err, object.ErrNoDevice) {
				t.Errorf("open during close: %v", err)
			}
		})
	}
	wg.Go(p.Probe)
	await.Until(t, "workers that start", func() bool { return len(p.Workers()) > 0 })
	if err := ended(p); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

func TestRingCannotBeResized(t *testing.T) {
	r, err := newRing()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Truncate(0); !errors.Is(err, unix.EPERM) {
		t.Errorf("truncate: %v", err)
	}
	if flags, err := unix.FcntlInt(r.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %d, %v", flags, err)
	}
}

// A tenant that fills the disk loses its workers and its cache; others and the node do not.
func TestCachesAreBounded(t *testing.T) {
	p, log := newPool(t, func(o *Options) { o.CacheBytes, o.CacheLook = 1<<20, 10*time.Millisecond }, "good")
	o, _ := open(t, p, 1, me())
	neighbour, _ := open(t, p, 2, "uid:other")
	dir := filepath.Join(p.opts.CacheRoot, tenancy.CacheName("uid:me"))
	fill := filepath.Join(dir, "tmp", "fill")
	if err := os.WriteFile(fill, make([]byte, 512<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	p.checkUse(filepath.Base(dir))
	if alive, fate, err := p.Fate(t.Context(), 1, o.ID); !alive || err != nil {
		t.Fatalf("below the limit: %q, %v", fate, err)
	}
	if err := os.WriteFile(fill, make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "its worker's end", func() bool {
		alive, fate, err := p.Fate(t.Context(), 1, o.ID)
		return err == nil && !alive && strings.Contains(fate, "kernel cache")
	})
	await.Until(t, "its cache's end", func() bool {
		_, err := os.Stat(fill)
		return errors.Is(err, os.ErrNotExist)
	})
	if alive, fate, err := p.Fate(t.Context(), 2, neighbour.ID); !alive || err != nil {
		t.Errorf("another tenant's worker: %q, %v", fate, err)
	}
	open(t, p, 3, me())
	if !strings.Contains(log.String(), "grown too large") {
		t.Error("the log says nothing of it")
	}
	// Many empty files take room, too; and what a daemon before this one left is looked at.
	for i := range 300 {
		if err := os.WriteFile(fmt.Sprintf("%s/tmp/%d", dir, i), nil, 0o600); err != nil {
			break // it is being removed already
		}
	}
	await.Until(t, "the end of a cache of many files", func() bool {
		_, err := os.Stat(filepath.Join(dir, "tmp", "0"))
		return errors.Is(err, os.ErrNotExist)
	})
}

// The end of a worker is in the log when it ends, with the cause; and once, though its client closes it while its
// session ends.
func TestWorkersEndIsLogged(t *testing.T) {
	p, log := newPool(t, nil, "good")
	o, _ := open(t, p, 1, me())
	s, err := p.find(1, o.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(s.w.pid, syscall.SIGSEGV); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the log of its end", func() bool { return strings.Contains(log.String(), "worker ended") })
	var ends sync.WaitGroup
	for range 2 { // both have found it
		ends.Go(func() { p.end(s) })
	}
	ends.Wait()
	if err := ended(p); err != nil || strings.Count(log.String(), "worker ended") != 1 ||
		!strings.Contains(log.String(), "SIGSEGV") {
		t.Error(err, log)
	}
}
