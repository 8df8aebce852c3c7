package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"tendril/client"
	"tendril/client/admin"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// aDaemonProcess is what TestMain runs with the argument "-node": a daemon under HANDOVER_DIR, until its standard input
// ends. It kills itself at the step that HANDOVER_KILL names.
func aDaemonProcess() {
	log := logrus.New()
	log.SetOutput(os.Stderr)
	log.SetLevel(logrus.ErrorLevel)
	d, err := New(configUnder(os.Getenv("HANDOVER_DIR")), standIn(noPlatform), log)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	d.at = func(step string) {
		if step == os.Getenv("HANDOVER_KILL") {
			leaveAChild()
			unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	}
	d.voteTime, _ = time.ParseDuration(os.Getenv("CLUSTER_VOTE_TIME"))
	if os.Getenv("HANDOVER_TAKE") != "" {
		d.TakeOver()
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.OnReady(func() { fmt.Println("ready"); workInProcess(d) })
	go func() {
		os.Stdin.Read(make([]byte, 1))
		cancel()
	}()
	if err := d.Run(ctx); err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// leaveAChild makes a child that has every descriptor of this process for a while, as one has that is on its way to
// another program.
func leaveAChild() {
	if os.Getenv("HANDOVER_CHILD") == "" {
		return
	}
	cmd := exec.Command("sleep", "0.5")
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, link := range links {
		if n, err := strconv.Atoi(filepath.Base(link)); err == nil && n > 2 {
			if dup, err := unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 0); err == nil {
				cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(dup), link))
			}
		}
	}
	if err := cmd.Start(); err != nil {
		panic(err)
	}
}

func configUnder(dir string) Config {
	c := Config{Listen: orDefault(os.Getenv("HANDOVER_LISTEN"), "none"), NodeName: os.Getenv("HANDOVER_NAME"),
		Socket: filepath.Join(dir, "s"), StateDir: filepath.Join(dir, "state"),
		CapacityBytes: 64 << 20, WarmBytes: -1, Vendors: []string{filepath.Join(dir, "vendors")}}
	c, err := c.Defaults(aMachine(), env("HOME=/"))
	if err != nil {
		panic(err)
	}
	return c
}

// nodeProcess is a daemon in a process of its own.
type nodeProcess struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error        // once it has ended
	said  bytes.Buffer // likewise
}

func startNodeProcess(t *testing.T, dir, kill string, take bool, more ...string) *nodeProcess {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-node")
	cmd.Env = append(append(os.Environ(), "HANDOVER_DIR="+dir, "HANDOVER_KILL="+kill,
		"TMPDIR="+dir), more...) // a killed one leaves its caches there
	if take {
		cmd.Env = append(cmd.Env, "HANDOVER_TAKE=1")
	}
	p := &nodeProcess{cmd: cmd, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.said, os.Stderr
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		stdin.Close()
		<-p.ended
	})
	return p
}

// handoverDir is a directory for daemons that follow each other, with a short path.
func handoverDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	vendors := filepath.Join(dir, "vendors")
	if err := errors.Join(os.Mkdir(vendors, 0o755),
		os.WriteFile(filepath.Join(vendors, "none.icd"), []byte("none.so"), 0o644)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// reached calls until the client has its daemon again. One that came in vain comes again after 30 s at the latest.
func reached(t *testing.T, call func() error) {
	t.Helper()
	var err error
	await.Until(t, "the client has its daemon again", func() bool {
		err = call()
		return !errors.Is(err, client.ErrDisconnected)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// soon is dialSoon, where the process must not end before it serves.
func (p *nodeProcess) soon(t *testing.T, dir string) (c *client.Conn) {
	t.Helper()
	await.Until(t, "the process serves its socket", func() bool {
		select {
		case <-p.ended:
			t.Fatalf("it has ended: %v\n%s", p.err, &p.said)
		default:
		}
		var err error
		c, err = client.Dial(context.Background(), client.Options{Socket: filepath.Join(dir, "s")})
		return err == nil
	})
	t.Cleanup(func() { c.Close() })
	return c
}

func dialSoon(t *testing.T, socket string) (c *client.Conn) {
	t.Helper()
	await.Until(t, "somebody serves the socket", func() bool {
		var err error
		c, err = client.Dial(context.Background(), client.Options{Socket: socket})
		return err == nil
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// belongings are what a client has before a handover.
type belongings struct {
	c                      *client.Conn
	socket                 string
	ephemeral, named, disk *client.Object
}

func settle(t *testing.T, socket string) *belongings {
	t.Helper()
	b := &belongings{c: dialSoon(t, socket), socket: socket}
	put := func(text string, o client.CreateOptions) *client.Object {
		obj, err := b.c.Put(context.Background(), []byte(text), o)
		if err != nil {
			t.Fatal(err)
		}
		return obj
	}
	b.ephemeral = put("ephemeral", client.CreateOptions{})
	b.named = put(strings.Repeat("named", 1<<18), client.CreateOptions{Name: "named", Class: object.Named})
	b.disk = put("on disk", client.CreateOptions{Name: "disk", Class: object.Persisted})
	return b
}

// check looks at everything. survived says that no memory was lost.
func (b *belongings) check(t *testing.T, survived bool) {
	t.Helper()
	reached(t, func() error { _, err := b.c.StatByName(context.Background(), "disk"); return err })
	for o, want := range map[*client.Object]string{b.ephemeral: "ephemeral", b.named: strings.Repeat("named", 1<<18),
		b.disk: "on disk"} {
		if string(o.Bytes()) != want {
			t.Errorf("%q has other bytes", want[:5])
		}
	}
	if b.disk.Gone() || b.ephemeral.Gone() == survived || b.named.Gone() == survived {
		t.Errorf("gone: %v %v %v, survived %v", b.ephemeral.Gone(), b.named.Gone(), b.disk.Gone(), survived)
	}
	other := dialSoon(t, b.socket)
	defer other.Close()
	wanted := map[object.ID]string{b.disk.ID(): "on disk"}
	if survived {
		wanted[b.ephemeral.ID()], wanted[b.named.ID()] = "ephemeral", strings.Repeat("named", 1<<18)
	}
	for id, want := range wanted {
		o, err := other.Get(context.Background(), id, 0)
		if err != nil || !bytes.Equal(o.Bytes(), []byte(want)) {
			t.Errorf("another client gets %q: %v", want[:5], err)
			continue
		}
		o.Release()
	}
}

// inSlot gives an object that a slot of the index alone holds.
func inSlot(t *testing.T, c *client.Conn) *client.Object {
	t.Helper()
	made, err := c.Put(context.Background(), []byte("pinned"), client.CreateOptions{})
	if err == nil {
		err = admin.Of(c).IndexState(context.Background())
	}
	if err != nil {
		t.Fatal(err)
	}
	o := made
	for range 3 { // the first goes over the socket
		again, err := c.Get(context.Background(), made.ID(), 0)
		if err != nil {
			t.Fatal(err)
		}
		o.Release()
		o = again
	}
	return o
}

func TestTakeover(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	c := aConfig(t)
	first, up := newDaemon(t, c), make(chan struct{})
	first.OnReady(func() { close(up) })
	ended := make(chan error, 1)
	go func() { ended <- first.Run(context.Background()) }()
	<-up
	b := settle(t, c.Socket)
	fast, err := client.Dial(context.Background(), client.Options{Socket: c.Socket, Index: client.IndexOn})
	if err != nil {
		t.Fatal(err)
	}
	defer fast.Close()
	pinned := inSlot(t, fast)
	if _, err := b.c.Publish(context.Background(), b.named.ID(), "", false); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for round := range 3 {
		_, served := takeOver(t, ctx, c)
		if err := <-ended; err != nil {
			t.Errorf("round %d: the daemon before: %v", round, err)
		}
		ended = served
		b.check(t, true)
		// its holder has not come back
		if o, err := b.c.Get(context.Background(), pinned.ID(), 0); err != nil || string(o.Bytes()) != "pinned" {
			t.Errorf("round %d: an object that was held in a slot of the index: %v", round, err)
		} else {
			o.Release()
		}
		if err := fast.Sweep(context.Background()); !errors.Is(err, client.ErrDisconnected) {
			t.Errorf("a sweep of the connection before: %v", err)
		}
		reached(t, func() error { _, err := fast.StatByName(context.Background(), "named"); return err })
		if pinned.Gone() || string(pinned.Bytes()) != "pinned" {
			t.Errorf("round %d: gone %v", round, pinned.Gone())
		}
		published, err := b.c.Published(context.Background(), "")
		if err != nil || !strings.Contains(string(published), `"here":true`) {
			t.Errorf("published: %s, %v", published, err)
		}
	}
	b.c.Close()
	pinned.Release()
	fast.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(c.Socket); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
	noneLeft(t, leaks)
}

// Whoever of the two is killed, and wherever in the handover, one of them serves in the end, with what is on disk in
// any case, and with the memory unless the one that had it was killed before it had given it away.
func TestKilledInTheHandover(t *testing.T) {
	if testing.Short() {
		t.Skip("starts two dozen daemons")
	}
	for _, kill := range []struct {
		successor bool
		step      string
		survives  bool
	}{
		{false, "met", false}, {false, "ended", false}, {false, "fixtures", false},
		{false, "delivered", true}, {false, "ready", true}, {false, "go", true},
		{true, "connected", true}, {true, "fixtures come", true}, {true, "all come", true}, {true, "started", true},
		{true, "confirmed", true},
	} {
		t.Run(fmt.Sprintf("successor=%v/%s", kill.successor, strings.ReplaceAll(kill.step, " ", "_")),
			func(t *testing.T) {
				t.Parallel()
				dir := handoverDir(t)
				socket := filepath.Join(dir, "s")
				victim := map[bool]string{kill.successor: kill.step}
				before := startNodeProcess(t, dir, victim[false], false)
				b := settle(t, socket)
				after := startNodeProcess(t, dir, victim[true], true)
				killed, other := before, after
				if kill.successor {
					killed, other = after, before
				}
				<-killed.ended
				other.serves(t, socket)
				b.check(t, kill.survives)
				if pid := b.c.Daemon().PID; pid != other.cmd.Process.Pid {
					t.Errorf("process %d serves, not %d", pid, other.cmd.Process.Pid)
				}
				other.watchesNoDead(t)
			})
	}
}

// A daemon that is killed leaves children on their way to another program, with copies of its locks and sockets.
// Whoever comes after waits for them: who takes over, and who is started anew.
func TestKilledWithAChildOnItsWay(t *testing.T) {
	t.Setenv("HANDOVER_CHILD", "1")
	for _, take := range []bool{true, false} {
		dir := handoverDir(t)
		before := startNodeProcess(t, dir, "met", false)
		b := settle(t, filepath.Join(dir, "s"))
		after := startNodeProcess(t, dir, "", true)
		<-before.ended
		if !take {
			after.cmd.Process.Kill()
			<-after.ended
			after = startNodeProcess(t, dir, "", false)
		}
		after.serves(t, b.socket)
		b.check(t, false)
	}
}

// serves waits until somebody serves the socket; p must not end before.
func (p *nodeProcess) serves(t *testing.T, socket string) {
	t.Helper()
	select {
	case <-p.ended:
		t.Fatalf("the other one ended, too: %v\n%s", p.err, &p.said)
	case <-dialed(socket):
	}
}

// watchesNoDead waits until p has no descriptor of a process that is gone.
func (p *nodeProcess) watchesNoDead(t *testing.T) {
	t.Helper()
	dead := 0
	await.Until(t, "it keeps no descriptors of processes that are gone", func() bool {
		dead = 0
		infos, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", p.cmd.Process.Pid))
		for _, info := range infos {
			if text, err := os.ReadFile(info); err == nil && bytes.Contains(text, []byte("\nPid:\t-1\n")) {
				dead++
			}
		}
		return dead == 0
	})
}

// dialed is closed when somebody serves the socket.
func dialed(socket string) chan struct{} {
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			if c, err := client.Dial(context.Background(), client.Options{Socket: socket}); err == nil {
				c.Close()
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return served
}

// takeOver starts a daemon that takes the running one over, and returns when it is up; served says how it ended.
func takeOver(t *testing.T, ctx context.Context, c Config) (next *Daemon, served chan error) {
	t.Helper()
	next, up := newDaemon(t, c), make(chan struct{})
	next.TakeOver()
	next.OnReady(func() { close(up) })
	served = make(chan error, 1)
	go func() { served <- next.Run(ctx) }()
	select {
	case <-up:
	case err := <-served:
		t.Fatal(err)
	}
	return next, served
}

// A takeover that fails for a reason of its own leaves the daemon as it was, and a second one succeeds.
func TestRefusedTakeover(t *testing.T) {
	c := aConfig(t)
	_, stop := serve(t, c)
	b := settle(t, c.Socket)
	elsewhere := c
	elsewhere.StateDir += "2"
	next := newDaemon(t, elsewhere)
	next.TakeOver()
	if err := next.Run(t.Context()); !errors.Is(err, object.ErrInvalid) || !strings.Contains(err.Error(), c.StateDir) {
		t.Errorf("with another state directory: %v", err)
	}
	b.check(t, true)
	b.c.Close()
	stop()
	alone := newDaemon(t, c) // nobody is there to be taken over
	alone.TakeOver()
	ctx, cancel := context.WithCancel(context.Background())
	alone.OnReady(cancel)
	if err := alone.Run(ctx); err != nil {
		t.Errorf("without a daemon before: %v", err)
	}
}

// A successor that cannot start gives the node back.
func TestTakeoverThatFails(t *testing.T) {
	c := aConfig(t)
	_, stop := serve(t, c)
	b := settle(t, c.Socket)
	for _, damage := range []string{"state directory", "store", "front door"} {
		next := newDaemon(t, c)
		next.TakeOver()
		next.at = func(step string) {
			if step != "all come" {
				return
			}
			switch damage {
			case "state directory":
				next.cfg.StateDir += "2"
			case "store":
				next.cfg.CapacityBytes = 1
			case "front door":
				next.cfg.Socket += "2"
			}
		}
		if err := next.Run(t.Context()); err == nil {
			t.Errorf("%s: no error", damage)
		}
		b.check(t, true)
	}
	b.c.Close()
	stop()
}

// Somebody who takes the ports for other machines and for inspection between two daemons ends neither: the node goes on
// with all that it has, without them.
func TestTakeoverWhosePortsAreTaken(t *testing.T) {
	c := aConfig(t)
	first, up := newDaemon(t, c), make(chan struct{})
	first.OnReady(func() { close(up) })
	ended := make(chan error, 1)
	go func() { ended <- first.Run(context.Background()) }()
	<-up
	b := settle(t, c.Socket)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	c.Listen, c.HTTP = taken.Addr().String(), taken.Addr().String()
	c.origins = map[string]string{"listen": "flag", "http": "flag"}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	next, served := takeOver(t, ctx, c)
	if err := <-ended; err != nil {
		t.Errorf("the daemon before: %v", err)
	}
	b.check(t, true)
	if why := next.whyClosed(); !strings.Contains(why, c.Listen) {
		t.Errorf("why there is no door for other machines: %q", why)
	}
	b.c.Close()
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// A daemon that is killed while its successor connects is gone, and no reason to fail.
func TestKilledBeforeItsAnswer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	door, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	door.(*net.UnixListener).SetUnlinkOnClose(false)
	go func() { // ends with the connection
		for range 2 { // as the kernel does for it; a moment later it does so with the socket
			if c, err := door.Accept(); err == nil {
				c.Close()
			}
		}
		door.Close()
	}()
	if p, err := findPredecessor(path, "test"); p != nil || err != nil {
		t.Errorf("found %v, %v", p, err)
	}
}
