package ipc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

func TestMain(m *testing.M) {
	if os.Getenv("IPC_TEST_CHILD") != "" {
		child()
		return
	}
	await.Main(m)
}

// raw is a payload as it is.
type raw []byte

func (r raw) Append(b []byte) []byte { return append(b, r...) }

// pair is a connection, both ends.
func pair(t testing.TB) (*Dialed, *Accepted) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, d := NewAccepted(fds[1], NewLingers(1)), &Dialed{fd: fds[0]}
	t.Cleanup(d.Close)
	t.Cleanup(a.Close)
	return d, a
}

// frames makes a stream of frames with payloads of all sizes.
func frames(rng *rand.Rand, n int) (stream []byte, payloads [][]byte) {
	for i := range n {
		size := rng.IntN(200)
		switch rng.IntN(20) {
		case 0:
			size = rng.IntN(MaxPayload)
		case 1:
			size = MaxPayload
		}
		payload := bytes.Repeat([]byte{byte(i)}, size)
		payloads = append(payloads, payload)
		stream = AppendFrame(stream, wire.Type(i+1), 0, uint64(i), raw(payload))
	}
	return stream, payloads
}

func TestInboxAnyChunks(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 0))
		stream, want := frames(rng, 40)
		var in inbox
		for got := 0; got < len(want); {
			f, ok, err := in.next()
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				room := in.room()
				if len(room) == 0 {
					t.Fatal("no room")
				}
				n := copy(room[:min(len(room), 1+rng.IntN(100_000))], stream)
				stream = stream[n:]
				if err := in.received(n, nil); err != nil {
					t.Fatal(err)
				}
				continue
			}
			if f.Request != uint64(got) || !bytes.Equal(f.Payload, want[got]) {
				t.Fatalf("seed %d: frame %d differs", seed, got)
			}
			got++
		}
		if in.room(); len(in.buf) > largeInbox {
			t.Errorf("%d bytes kept after the last frame", len(in.buf))
		}
	}
}

func FuzzInbox(f *testing.F) {
	f.Add(AppendFrame(nil, 1, 0, 1, raw("x")), uint8(3))
	f.Add(AppendFrame(AppendFrame(nil, 1, FlagFD, 1, nil), 2, FlagMore, 2, raw("yy")), uint8(200))
	f.Fuzz(func(t *testing.T, stream []byte, chunk uint8) {
		var in inbox
		for {
			frame, ok, err := in.next()
			if err != nil {
				return
			}
			if ok {
				if len(frame.Payload) != int(frame.Length) {
					t.Fatal("payload differs from its length")
				}
				continue
			}
			if len(stream) == 0 {
				return
			}
			room := in.room()
			n := copy(room[:min(len(room), int(chunk)+1)], stream)
			stream = stream[n:]
			in.received(n, nil)
			if len(in.buf) > HeaderBytes+MaxPayload {
				t.Fatalf("inbox of %d bytes", len(in.buf))
			}
		}
	})
}

func TestBothWays(t *testing.T) {
	d, a := pair(t)
	rng := rand.New(rand.NewPCG(1, 1))
	stream, want := frames(rng, 60)
	sent := make(chan error, 1)
	go func() { sent <- d.Send(stream) }()
	for i, payload := range want {
		f, err := a.Receive()
		if err != nil || f.Request != uint64(i) || !bytes.Equal(f.Payload, payload) {
			t.Fatalf("frame %d: %v", i, err)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	go func() { sent <- a.Send(stream, nil) }()
	for i, payload := range want {
		f, err := d.Receive(nil)
		if err != nil || f.Request != uint64(i) || !bytes.Equal(f.Payload, payload) {
			t.Fatalf("frame %d: %v", i, err)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	a.Shutdown()
	if _, err := d.Receive(nil); !errors.Is(err, io.EOF) {
		t.Errorf("after the daemon's end: %v", err)
	}
	if err := d.Send([]byte("x")); !errors.Is(err, unix.EPIPE) {
		t.Errorf("send after the daemon's end: %v", err)
	}
}

func TestDescriptorsTravelWithTheirFrame(t *testing.T) {
	d, a := pair(t)
	before := openFDs(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	plain := AppendFrame(nil, 9, 0, 1, raw("plain"))
	for _, step := range []struct {
		flag uint16
		fds  []int
	}{{FlagFD, []int{int(r.Fd())}}, {0, nil}, {FlagFD2, []int{int(w.Fd()), int(r.Fd())}}} {
		if err := a.Send(AppendFrame(nil, 9, step.flag, 2, raw("fd")), step.fds); err != nil {
			t.Fatal(err)
		}
		if err := a.Send(plain, nil); err != nil {
			t.Fatal(err)
		}
		f, err := d.Receive(nil)
		if err != nil || f.NumFDs != len(step.fds) {
			t.Fatalf("%d descriptors, want %d: %v", f.NumFDs, len(step.fds), err)
		}
		for i, fd := range step.fds {
			if !sameFile(t, fd, f.FDs[i]) {
				t.Error("another file came")
			}
			if flags, _ := unix.FcntlInt(uintptr(f.FDs[i]), unix.F_GETFD, 0); flags&unix.FD_CLOEXEC == 0 {
				t.Error("a received descriptor is not close-on-exec")
			}
		}
		f.CloseFDs()
		if f, err = d.Receive(nil); err != nil || f.NumFDs != 0 {
			t.Fatalf("the frame behind it: %d descriptors, %v", f.NumFDs, err)
		}
	}
	r.Close()
	w.Close()
	if after := openFDs(t); after != before {
		t.Errorf("descriptors: %d before, %d after", before, after)
	}
}

func TestFaultsEndTheConnection(t *testing.T) {
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fd := int(null.Fd())
	frame := func(flags uint16) []byte { return AppendFrame(nil, 1, flags, 1, nil) }
	for name, stream := range map[string]struct {
		b   []byte
		fds []int
	}{
		"announced and not sent": {frame(FlagFD), nil},
		"both flags":             {frame(FlagFD | FlagFD2), []int{fd, fd}},
		"unknown flag":           {frame(16), nil},
		"length of 2^32":         {bytes.Repeat([]byte{0xff}, HeaderBytes), nil},
		"length over max":        {[]byte{1, 0, 0x10, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}, nil},
		"five at once":           {frame(FlagFD), []int{fd, fd, fd, fd, fd}},
		"never announced":        {bytes.Repeat(frame(0), 3), []int{fd, fd, fd, fd}},
	} {
		t.Run(name, func(t *testing.T) {
			before := openFDs(t)
			d, a := pair(t)
			var rights []byte
			if stream.fds != nil {
				rights = unix.UnixRights(stream.fds...)
			}
			toDaemon := func() error {
				if err := unix.Sendmsg(d.fd, stream.b, rights, nil, 0); err != nil {
					return err
				}
				d.Shutdown()
				var err error
				for err == nil {
					_, err = a.Receive()
				}
				return err
			}
			toClient := func() error {
				for range 2 {
					if err := unix.Sendmsg(a.fd, stream.b, rights, nil, 0); err != nil {
						return err
					}
				}
				var err error
				for err == nil {
					_, err = d.Receive(func() error { return unix.ETIMEDOUT })
				}
				return err
			}
			if err := toClient(); !errors.Is(err, object.ErrProtocol) {
				t.Errorf("client: %v, want ErrProtocol", err)
			}
			want := error(object.ErrProtocol)
			if name == "never announced" {
				want = io.EOF // the kernel closed them, and the frames are sound
			}
			if err := toDaemon(); !errors.Is(err, want) {
				t.Errorf("daemon: %v, want %v", err, want)
			}
			a.Close()
			d.Close()
			d.fd = -1
			if after := openFDs(t); after != before {
				t.Errorf("descriptors: %d before, %d after", before, after)
			}
		})
	}
}

func TestReceiveGivesUp(t *testing.T) {
	d, a := pair(t)
	want := errors.New("enough")
	asked := 0
	_, err := d.Receive(func() error {
		if asked++; asked > 2 {
			return want
		}
		return nil
	})
	if !errors.Is(err, want) {
		t.Errorf("got %v", err)
	}
	done := make(chan error)
	go func() {
		_, err := a.Receive()
		done <- err
	}()
	a.EndReceive()
	if err := <-done; !errors.Is(err, io.EOF) {
		t.Errorf("Receive after EndReceive: %v", err)
	}
	go func() {
		_, err := d.Receive(nil)
		done <- err
	}()
	d.Shutdown()
	if err := <-done; !errors.Is(err, io.EOF) {
		t.Errorf("Receive after Shutdown: %v", err)
	}
}

// TestNothingIsAllocatedAFrame guards the hot path on both ends, for a connection that lingers and one that parks.
func TestNothingIsAllocatedAFrame(t *testing.T) {
	for name, limit := range map[string]int{"lingering": 1, "parked": 0} {
		t.Run(name, func(t *testing.T) { nothingIsAllocated(t, limit) })
	}
}

func nothingIsAllocated(t *testing.T, limit int) {
	d, a := pair(t)
	a.lingers = NewLingers(limit)
	request := AppendFrame(nil, 1, 0, 1, raw("0123456789"))
	got := testing.AllocsPerRun(200, func() {
		if err := d.Send(request); err != nil {
			t.Error(err)
		}
		if _, err := a.Receive(); err != nil {
			t.Error(err)
		}
		if err := a.Send(request, nil); err != nil {
			t.Error(err)
		}
		if _, err := d.Receive(nil); err != nil {
			t.Error(err)
		}
	})
	if got > 0 {
		t.Errorf("%v allocations a round trip", got)
	}
}

// child is a process that connects twice, forks another one that keeps the first socket, and dies.
func child() {
	d, err := Dial(os.Getenv("IPC_TEST_CHILD"), 0, nil)
	if err == nil {
		_, err = Dial(os.Getenv("IPC_TEST_CHILD"), 0, nil)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	child := exec.Command("sleep", "3600")
	child.ExtraFiles = []*os.File{os.NewFile(uintptr(d.fd), "socket")}
	if err := child.Start(); err != nil {
		os.Exit(1)
	}
	fmt.Println(child.Process.Pid)
	select {}
}

func TestProcessEndsThoughAForkHoldsTheSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "IPC_TEST_CHILD="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var links [2]*Accepted
	for i := range links {
		conn, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		file, err := conn.File()
		conn.Close()
		if err != nil {
			t.Fatal(err)
		}
		fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		links[i] = NewAccepted(fd, NewLingers(0))
		defer links[i].Close()
	}
	_, own := pair(t)
	before := openFDs(t)
	all, err := NewProcesses()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan int, 8)
	var watching []*Watching
	for i, link := range append(links[:], links[1]) {
		peer, err := link.Peer()
		if err != nil || peer.PID != cmd.Process.Pid || int(peer.UID) != os.Getuid() {
			t.Fatalf("%+v, %v; want process %d", peer, err, cmd.Process.Pid)
		}
		w, err := all.Watch(link, peer.PID, func() { ended <- i })
		if err != nil {
			t.Fatal(err)
		}
		watching = append(watching, w)
	}
	watching[2].Close()
	if got := all.Count(); got != 1 {
		t.Errorf("%d processes are watched, want 1", got)
	}
	var child int
	if _, err := fmt.Fscan(out, &child); err != nil {
		t.Fatal(err)
	}
	defer unix.Kill(child, unix.SIGKILL)
	number, copied := 0, 0
	all.mu.Lock()
	for fd := range all.all {
		number = int(fd)
	}
	all.mu.Unlock()
	if copied, err = unix.Dup(number); err != nil { // as a child of ours has that is about to run a program
		t.Fatal(err)
	}
	cmd.Process.Kill()
	if a, b := <-ended, <-ended; a+b != 1 {
		t.Errorf("heard of the ends of %d and %d, want 0 and 1", a, b)
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(links[0].fd), Events: unix.POLLIN}}, 20); n != 0 {
		t.Errorf("the socket hung up by itself (%v): this test shows nothing", err)
	}
	if _, err := all.Watch(links[0], cmd.Process.Pid, nil); !errors.Is(err, unix.ESRCH) {
		t.Errorf("a process that has ended: %v, want ESRCH", err)
	}
	w, err := all.Watch(own, os.Getpid(), func() { t.Error("the end of a process was told as that of the next one") })
	if err != nil || all.all[int32(number)] == nil {
		t.Errorf("%v; is it not number %d? then this test shows nothing", err, number)
	}
	all.tell()
	w.Close()
	unix.Close(copied)
	for _, w := range watching {
		w.Close()
	}
	if got := all.Count(); got != 0 {
		t.Errorf("%d processes are watched at the end", got)
	}
	all.Close()
	if after := openFDs(t); after != before {
		t.Errorf("descriptors: %d before, %d after", before, after)
	}
	if all, err = NewProcesses(); err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	cmd.Wait()
	if _, err := all.Watch(links[0], cmd.Process.Pid, nil); !errors.Is(err, unix.ESRCH) {
		t.Errorf("a process that is gone: %v, want ESRCH", err)
	}
	if len(ended) > 0 {
		t.Error("an end was told twice, or after Close")
	}
}

// Where a daemon is looked for: what was named alone, then the user's own, then the system's.
func TestSockets(t *testing.T) {
	const system = "/run/tendril/tendril.sock"
	for _, x := range []struct {
		told, runtime string
		uid           int
		want          []string
	}{
		{"/x/y", "/run/user/5", 5, []string{"/x/y"}},
		{"/x/y", "", 0, []string{"/x/y"}},
		{"", "/run/user/5", 5, []string{"/run/user/5/tendril/tendril.sock", system}},
		{"", "", 5, []string{"/tmp/tendril-5/tendril.sock", system}},
		{"", "/run/user/0", 0, []string{system}},
		{"", "", 0, []string{system}},
	} {
		getenv := func(name string) string {
			return map[string]string{"TENDRIL_SOCKET": x.told, "XDG_RUNTIME_DIR": x.runtime}[name]
		}
		if got := socketsOf(getenv, x.uid); !slices.Equal(got, x.want) {
			t.Errorf("%+v: %q", x, got)
		}
	}
}

// The first that answers is it; who answers nowhere is told of all that were tried, and to start a daemon only where
// nobody has one.
func TestLookup(t *testing.T) {
	dir := t.TempDir()
	here, stale, none := filepath.Join(dir, "here"), filepath.Join(dir, "stale"), filepath.Join(dir, "none")
	for _, path := range []string{here, stale} {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		if err != nil {
			t.Fatal(err)
		}
		if l.SetUnlinkOnClose(false); path == stale {
			l.Close()
		} else {
			defer l.Close()
		}
	}
	for _, list := range [][]string{{here}, {none, here}, {stale, here}, {here, none}} {
		d, at, err := lookup(list, 0, nil)
		if err != nil || at != here {
			t.Fatalf("%q: %q, %v", list, at, err)
		}
		d.Close()
	}
	_, _, err := lookup([]string{none, stale}, 0, nil)
	var nobody *NoDaemonError
	if !errors.As(err, &nobody) || !errors.Is(err, unix.ENOENT) || !errors.Is(err, unix.ECONNREFUSED) ||
		nobody.Denied() || !strings.Contains(nobody.Advice(), "tendril daemon") {
		t.Fatal(err)
	}
	if want := "no daemon answers at " + none + " (no such file or directory) or " + stale +
		" (connection refused)"; err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	nobody.Tried[1].Why = fmt.Errorf("connect: %w", unix.EACCES)
	if !nobody.Denied() || strings.Contains(nobody.Advice(), "tendril daemon") {
		t.Errorf("%v: %s", err, nobody.Advice())
	}
}

func sameFile(t testing.TB, a, b int) bool {
	var x, y unix.Stat_t
	if unix.Fstat(a, &x) != nil || unix.Fstat(b, &y) != nil {
		t.Fatal("fstat")
	}
	return x.Ino == y.Ino && x.Dev == y.Dev
}

func openFDs(t testing.TB) int {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}
