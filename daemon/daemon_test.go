package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"tendril/cluster"
	"tendril/daemon/frontdoor"
	"tendril/forwarding/keeper"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// TestMain is also a daemon that is a process of its own, and the keeper.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-node" {
		aDaemonProcess()
	}
	if len(os.Args) == 7 && os.Args[1] == "-fake" && os.Args[2] == "keeper" {
		err := keeper.Main(context.Background(), keeper.Options{Control: os.NewFile(3, "control"), Driver: os.Args[4]})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 1 && os.Args[1] == "-fake" { // a keeper that was asked for anything else
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// What probes find.
const (
	noPlatform = `{}`
	noSandbox  = `{"fallbacks":[{"what":"landlock","why":"this kernel has none"}]}` // on a machine that has none
)

// standIn is a daemon's build that starts no driver: its probes have an answer ready, its workers and the guard end at
// once. A shell says it, in a few ms: to start this test's own binary, as for the keeper, takes 0.2 s of processor time
// under the race detector, and each of some hundred daemons starts two.
func standIn(answer string) Build {
	own, err := os.Executable()
	if err != nil {
		panic(err)
	}
	script := fmt.Sprintf(`[ "$0" = keeper ] && exec '%s' -fake keeper "$@"; { printf %%s '%s' >&3; } 2>/dev/null; exit 0`,
		own, answer)
	return Build{Version: "test", Executable: "/bin/sh", WorkerArgs: []string{"-c", script}}
}

// aConfig is a daemon in a directory of its own that knows one driver, which has no platform.
func aConfig(t testing.TB) Config {
	dir := t.TempDir()
	vendors := filepath.Join(dir, "vendors")
	if err := errors.Join(os.Mkdir(vendors, 0o755),
		os.WriteFile(filepath.Join(vendors, "none.icd"), []byte("none.so"), 0o644)); err != nil {
		t.Fatal(err)
	}
	c := Config{Listen: "127.0.0.1:0", Socket: filepath.Join(dir, "s"), StateDir: filepath.Join(dir, "state"),
		CapacityBytes: 64 << 20, WarmBytes: -1, Vendors: []string{vendors}}
	c, err := c.Defaults(aMachine(), env("HOME=/"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// withHTTP is aConfig of a daemon that serves HTTP.
func withHTTP(t testing.TB) Config {
	c := aConfig(t)
	c.HTTP = "127.0.0.1:0"
	return c
}

func newDaemon(t testing.TB, c Config) *Daemon {
	t.Helper()
	log := logrus.New()
	log.SetOutput(os.Stderr)
	log.SetLevel(logrus.WarnLevel)
	d, err := New(c, standIn(noPlatform), log)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// serve runs a daemon until the returned function is called, which checks that it went cleanly.
func serve(t *testing.T, c Config) (d *Daemon, stop func()) {
	t.Helper()
	return serveWith(t, c, noPlatform)
}

// serveWith is serve with another answer of probes.
func serveWith(t *testing.T, c Config, answer string) (d *Daemon, stop func()) {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	d = newDaemon(t, c)
	d.build.WorkerArgs = standIn(answer).WorkerArgs
	ctx, cancel := context.WithCancel(context.Background())
	up, down := make(chan struct{}), make(chan error, 1)
	d.OnReady(func() { close(up) })
	go func() { down <- d.Run(ctx) }()
	select {
	case <-up:
	case err := <-down:
		cancel()
		t.Fatal(err)
	}
	return d, func() {
		t.Helper()
		cancel()
		if err := <-down; err != nil {
			t.Error(err)
		}
		noneLeft(t, leaks)
	}
}

func TestDaemonStartsServesAndLeavesNothing(t *testing.T) {
	c := aConfig(t)
	d, stop := serve(t, c)
	devices, err := d.Devices()
	if err != nil || string(devices) != `{"platforms":[]}` {
		t.Errorf("devices: %s, %v", devices, err)
	}
	raw, err := d.Status(frontdoor.Peer{Admin: true})
	if err != nil {
		t.Fatal(err)
	}
	var s Status
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatal(err)
	}
	if s.Node.PID != os.Getpid() || len(s.Node.ID) != 32 || s.Node.Version != "test" ||
		s.Store.CapacityBytes != 64<<20 || len(s.Drivers) != 1 {
		t.Errorf("status: %s", raw)
	}
	for _, part := range []string{`"sessions":[]`, `"workers":[]`} {
		if !strings.Contains(string(raw), part) {
			t.Errorf("status lacks %s: %s", part, raw)
		}
	}
	d.Reload()
	stop()
	if _, err := os.Lstat(c.Socket); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), "tendril-cache-*"))
	for _, dir := range left {
		if dir == s.Node.CacheDir {
			t.Errorf("left: %s", dir)
		}
	}
	_, stop = serve(t, c) // and once more on the same state
	stop()
}

// A daemon that was killed leaves its temporary caches to the next one, which removes them.
func TestCachesOfAKilledDaemonAreRemoved(t *testing.T) {
	c := aConfig(t)
	left := filepath.Join(t.TempDir(), temporaryCache+"1")
	link := filepath.Join(c.StateDir, temporaryLink)
	if err := errors.Join(os.MkdirAll(filepath.Join(left, "tenant"), 0o700), os.Mkdir(c.StateDir, 0o700),
		os.Symlink(left, link)); err != nil {
		t.Fatal(err)
	}
	_, stop := serve(t, c)
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("they are left: %v", err)
	}
	stop()
	if _, err := os.Lstat(link); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the link is left: %v", err)
	}
	kept := t.TempDir() // nothing else is removed by way of a link
	if err := os.Symlink(kept, link); err != nil {
		t.Fatal(err)
	}
	_, stop = serve(t, c)
	stop()
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}

func TestSecondDaemonIsRefused(t *testing.T) {
	c := aConfig(t)
	_, stop := serve(t, c)
	defer stop()
	sameState := c
	sameState.Socket += "2"
	if err := newDaemon(t, sameState).Run(t.Context()); !errors.Is(err, ErrLocked) ||
		!strings.Contains(err.Error(), "state directory: ") {
		t.Errorf("on the same state: %v", err)
	}
	sameSocket := c
	sameSocket.StateDir += "2"
	if err := newDaemon(t, sameSocket).Run(t.Context()); !errors.Is(err, object.ErrBusy) ||
		!strings.Contains(err.Error(), c.Socket) {
		t.Errorf("on the same socket: %v", err)
	}
	conn, err := net.Dial("unix", c.Socket)
	if err != nil {
		t.Errorf("the first daemon's socket is gone: %v", err)
	} else {
		conn.Close()
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	c := aConfig(t)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: c.Socket}); err != nil {
		t.Fatal(err)
	}
	unix.Close(fd) // the file stays, as after kill -9
	_, stop := serve(t, c)
	stop()
}

func TestDamagedIdentityEndsTheStart(t *testing.T) {
	c := aConfig(t)
	if _, err := runOnce(t, c, func(*Daemon) {}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.StateDir, cluster.IdentityFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := newDaemon(t, c).Run(t.Context())
	if !errors.Is(err, cluster.ErrIdentity) || !strings.HasPrefix(err.Error(), "identity: ") {
		t.Errorf("got %v", err)
	}
	s, err := openStateDir(c.StateDir)
	if err != nil {
		t.Fatalf("the lock was not given back: %v", err)
	}
	s.Close()
}

func TestNewChecksItsConfiguration(t *testing.T) {
	if _, err := New(Config{}, Build{}, logrus.New()); err == nil || !strings.Contains(err.Error(), "socket") ||
		!strings.Contains(err.Error(), "capacity") {
		t.Errorf("got %v", err)
	}
}

func TestSessionsAreChecked(t *testing.T) {
	d, stop := serve(t, aConfig(t))
	defer stop()
	peer := frontdoor.Peer{PID: 1, Tenant: "uid:1", Name: "test"}
	for _, old := range []string{"", `{"protocol":0}`, `{"protocol":99}`} {
		_, _, err := d.OpenSession(context.Background(), peer, "other", []byte(old))
		if !errors.Is(err, object.ErrVersion) || !strings.Contains(err.Error(), `"other"`) {
			t.Errorf("another protocol, options %q: %v", old, err)
		}
	}
	for _, bad := range []string{"{", `{"selector":1}`, `{"selector":"` + strings.Repeat("x", maxSelectorBytes+1) +
		`"}`, strings.Repeat(" ", maxOptionsBytes+1)} {
		if _, _, err := d.OpenSession(context.Background(), peer, "test", []byte(bad)); !errors.Is(err, object.ErrInvalid) {
			t.Errorf("options %.20q: %v", bad, err)
		}
	}
	id, snap, err := d.OpenSession(context.Background(), peer, "test", []byte(`{"protocol":1,"selector":"0"}`))
	if err != nil || string(snap) != `{"platforms":[]}` {
		t.Fatalf("%s, %v", snap, err)
	}
	if list := d.sessions.list(); len(list) != 1 || list[0].Selector != "0" || list[0].Tenant != "uid:1" {
		t.Errorf("sessions: %+v", list)
	}
	for _, platform := range []uint32{0, 1 << 31} {
		if _, err := d.OpenWorker(id, platform); !errors.Is(err, object.ErrNoDevice) {
			t.Errorf("platform %d: %v", platform, err)
		}
	}
	if _, err := d.OpenWorker(id+1, 0); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("no such session: %v", err)
	}
	if _, _, err := d.WorkerFate(t.Context(), id, 7); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("no such worker: %v", err)
	}
	d.CloseWorker(id, 7)
	d.CloseSession(id)
	d.CloseSession(id)
	if _, err := d.OpenWorker(id, 0); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("a closed session: %v", err)
	}
}

// noneLeft fails where goroutines are left, but for those that Raft leaves at its end: it does not answer all of what
// waits for it then (cluster/raftnode, engine.outcome).
func noneLeft(t testing.TB, before goleak.Option) {
	t.Helper()
	await.NoneLeft(t, before, goleak.IgnoreAnyFunction("tendril/cluster/raftnode.(*engine).outcome.func1"))
}

// allocations gives how often f allocates memory. The rest of the process is counted with it where f loses the
// processor: the least of some rounds is f's own.
func allocations(f func()) float64 {
	least := testing.AllocsPerRun(100, f)
	for range 9 {
		least = min(least, testing.AllocsPerRun(100, f))
	}
	return least
}
