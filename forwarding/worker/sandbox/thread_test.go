package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// onThread runs f on a thread of its own, which ends with it: what f gives up nobody else misses.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and not unlocked: the runtime ends the thread
		f()
	}()
	<-done
}

// TestThreadInside: what Apply takes away is gone from the next call on, and what a driver needs is there.
// TestHostileChild tries more, behind execve.
func TestThreadInside(t *testing.T) {
	dir := t.TempDir()
	cache, secret := filepath.Join(dir, "cache"), filepath.Join(dir, "secret")
	if err := errors.Join(os.Mkdir(cache, 0o700), os.WriteFile(secret, []byte("s"), 0o600)); err != nil {
		t.Fatal(err)
	}
	var fallbacks []Fallback
	var applied, read, written, library, socket, device error
	onThread(func() {
		if fallbacks, applied = Apply(ForDriver(cache, filepath.Join(dir, "not there"))); applied != nil {
			return
		}
		_, read = os.ReadFile(secret)
		written = os.WriteFile(filepath.Join(cache, "x"), nil, 0o600)
		_, library = os.ReadDir("/usr/lib")
		_, socket = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		device = os.WriteFile("/dev/null", []byte("x"), 0)
	})
	if applied != nil {
		t.Fatal(applied)
	}
	if err := errors.Join(written, library, device); err != nil {
		t.Errorf("what a driver needs: %v", err)
	}
	weak := func(what string) bool {
		for _, f := range fallbacks {
			if strings.HasPrefix(f.What, what) {
				t.Logf("not here: %s: %s", f.What, f.Why)
				return true
			}
		}
		return false
	}
	if !weak("landlock") && !errors.Is(read, unix.EACCES) {
		t.Errorf("a file outside: %v", read)
	}
	if !weak("seccomp") && !errors.Is(socket, unix.EPERM) {
		t.Errorf("a socket: %v", socket)
	}
	if _, err := os.ReadFile(secret); err != nil {
		t.Errorf("another thread is inside, too: %v", err)
	}
}

// TestRulesAreChecked: a path that is not there is skipped, and a fault in the options is told, before anything was
// given up.
func TestRulesAreChecked(t *testing.T) {
	abi, err := landlockVersion()
	if err != nil {
		t.Skipf("skipped: this kernel has no landlock: %v", err)
	}
	r := rulesetFor(abi)
	fd, err := createRuleset(&r.attr, r.attrBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for _, x := range []struct {
		what    string
		options Options
		fault   string // "": none
	}{
		{"nothing", Options{}, ""},
		{"a file, a directory and what is not there", Options{Read: []string{"/proc/self/exe", "/usr", "/no/such/path"},
			Write: []string{t.TempDir()}, Devices: []string{"/dev/null", "/dev/no-such-device*"}}, ""},
		{"a pattern that is none", Options{Devices: []string{"/dev/["}}, `device pattern "/dev/["`},
		{"a path that is none", Options{Read: []string{"a\x00b"}}, "landlock a"},
		{"a path to write that is too long", Options{Write: []string{"/" + strings.Repeat("x", 5000)}}, "landlock /x"},
	} {
		err := r.allow(fd, x.options)
		if x.fault == "" && err != nil || x.fault != "" && (err == nil || !strings.Contains(err.Error(), x.fault)) {
			t.Errorf("%s: %v, want %q", x.what, err, x.fault)
		}
	}
	if err := addPath(-1, fd, 1); err == nil {
		t.Error("a rule was added to no ruleset")
	}
	if err := restrictSelf(-1); err == nil {
		t.Error("restricted by no ruleset")
	}
	if _, err := createRuleset(&r.attr, 1); err == nil {
		t.Error("a ruleset of one byte")
	}
}

// TestLimits: both limits are lowered, none is raised above what was allowed, and what cannot be had is said. The
// numbers are those that the test's process has, or needs never.
func TestLimits(t *testing.T) {
	limit := func(resource int) (l syscall.Rlimit) {
		if err := syscall.Getrlimit(resource, &l); err != nil {
			t.Fatal(err)
		}
		return l
	}
	files, sizes := limit(unix.RLIMIT_NOFILE), limit(unix.RLIMIT_FSIZE)
	most := min(sizes.Max, 1<<50)
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	if fallbacks := (Limits{Files: 1 << 62, FileBytes: most}).Take(); len(fallbacks) != 0 {
		t.Errorf("%+v", fallbacks)
	}
	if now := limit(unix.RLIMIT_NOFILE); now.Max != files.Max || now.Cur != files.Max {
		t.Errorf("descriptors: %+v, before %+v", now, files)
	}
	if now := limit(unix.RLIMIT_FSIZE); now.Max != most || now.Cur != most {
		t.Errorf("size of files: %+v, want %d", now, most)
	}
	if now := limit(unix.RLIMIT_NICE); now.Max != 0 {
		t.Errorf("priorities: %+v", now)
	}
	fallbacks := (Limits{OOMScore: 5000}).Take() // the scale ends at 1000
	if len(fallbacks) != 1 || fallbacks[0].What != "end before others when memory is short" || fallbacks[0].Why == "" {
		t.Errorf("%+v", fallbacks)
	}
	if now, err := os.ReadFile("/proc/self/oom_score_adj"); err != nil || string(now) != string(own) {
		t.Errorf("oom_score_adj is %q, before %q", now, own)
	}
	if err := lower(-1, 0); err == nil {
		t.Error("a resource that is none was lowered")
	}
}
