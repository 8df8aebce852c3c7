package workers

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"tendril/tools/e2e/await"
)

// holders counts other processes that have a file open or mapped, by its inode.
func holders(t *testing.T, f *os.File) (pids []string) {
	t.Helper()
	var want syscall.Stat_t
	if err := syscall.Fstat(int(f.Fd()), &want); err != nil {
		t.Fatal(err)
	}
	inode := strconv.FormatUint(want.Ino, 10)
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		if filepath.Base(dir) == strconv.Itoa(os.Getpid()) {
			continue
		}
		maps, _ := os.ReadFile(dir + "/maps") // a process may end meanwhile
		held := false
		for line := range strings.Lines(string(maps)) {
			fields := strings.Fields(line)
			held = held || len(fields) > 5 && fields[4] == inode && strings.HasPrefix(fields[5], "/memfd:")
		}
		fds, _ := filepath.Glob(dir + "/fd/*")
		for _, fd := range fds {
			var st syscall.Stat_t
			held = held || syscall.Stat(fd, &st) == nil && st.Ino == want.Ino && st.Dev == want.Dev
		}
		if held {
			pids = append(pids, filepath.Base(dir))
		}
	}
	return pids
}

// What a session's code forked into another session and group ends with the session, however that ends.
func TestNothingOutlivesItsSession(t *testing.T) {
	for how, end := range map[string]func(p *Pool, o Opened) error{
		"released": func(p *Pool, o Opened) error { return p.Release(1, o.ID) },
		"its worker ends": func(p *Pool, o Opened) error {
			if _, err := o.Socket.WriteString("k"); err != nil {
				return err
			}
			var err error
			await.Until(t, "its worker's end", func() bool { // Fate waits for a second
				var alive bool
				alive, _, err = p.Fate(t.Context(), 1, o.ID)
				return !alive
			})
			return err
		},
		"the pool closes": func(p *Pool, _ Opened) error { return ended(p) },
	} {
		t.Run(how, func(t *testing.T) {
			p, _ := newPool(t, nil, "escapes")
			o, _ := open(t, p, 1, me())
			if got := len(holders(t, o.Ring)); got < 3 {
				t.Fatalf("%d processes hold the session's memory: the worker did not leave any behind", got)
			}
			if err := end(p, o); err != nil {
				t.Fatal(err)
			}
			left := holders(t, o.Ring)
			for _, pid := range left { // those of a daemon that cannot
				if n, err := strconv.Atoi(pid); err == nil {
					_ = syscall.Kill(n, syscall.SIGKILL)
				}
			}
			if len(left) > 0 {
				t.Errorf("%d processes still hold the session's memory: %v", len(left), left)
			}
		})
	}
}

func TestWorkersHaveNamespaces(t *testing.T) {
	p, _ := newPool(t, nil, "good")
	_, facts := open(t, p, 1, me())
	if f := p.spawner.fallbacks(); len(f) > 0 {
		t.Skipf("skipped: not to be had here: %+v", f)
	}
	for _, ns := range []string{"pid", "net", "ipc", "user"} {
		theirs, err := os.Readlink("/proc/" + facts["pid"] + "/ns/" + ns)
		if err != nil {
			t.Fatal(err)
		}
		if own, err := os.Readlink("/proc/self/ns/" + ns); err != nil || own == theirs {
			t.Errorf("the worker is in the %s namespace of the daemon, %s (%v)", ns, own, err)
		}
	}
}
