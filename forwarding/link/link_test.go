package link

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
	"tendril/tools/e2e/await"
)

// pair makes both ends of a link over a fresh ring.
func pair(t testing.TB) (client, worker *Conn, ring *os.File) {
	t.Helper()
	fd, err := unix.MemfdCreate("ring", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	ring = os.NewFile(uintptr(fd), "ring")
	if err := ring.Truncate(clwire.RingBytes); err != nil {
		t.Fatal(err)
	}
	if _, err := ring.WriteAt(clwire.RingHeader(), 0); err != nil {
		t.Fatal(err)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends := [2]*Conn{}
	for i, role := range []Role{Client, Worker} {
		s := os.NewFile(uintptr(fds[i]), "socket")
		if ends[i], err = New(role, ring, s); err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
	t.Cleanup(func() { ring.Close() })
	return ends[0], ends[1], ring
}

func closeBoth(t testing.TB, a, b *Conn) {
	t.Helper()
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Error(err)
	}
}

// receive waits for the next record as a worker does.
func receive(c *Conn) (clwire.Header, []byte, error) {
	for {
		h, p, ok, err := c.Next()
		if ok || err != nil {
			return h, p, err
		}
		if c.Arm(clwire.ConsumerAsleep) {
			if err := c.Block(-1, -1); err != nil {
				return h, nil, err
			}
		}
		c.Awake()
	}
}

func TestRecordsArriveInOrderAndWhole(t *testing.T) {
	client, worker, _ := pair(t)
	defer closeBoth(t, client, worker)
	const n = 20000
	sent := make(chan error, 1)
	go func() {
		r := rand.New(rand.NewPCG(1, 2))
		for i := range uint64(n) {
			data := bytes.Repeat([]byte{byte(i)}, r.IntN(3000))
			if i%500 == 0 {
				data = bytes.Repeat([]byte{byte(i)}, 60000)
			}
			if err := client.Send(&clwire.Print{Data: data}, 0, i+1); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	r := rand.New(rand.NewPCG(1, 2))
	for i := range uint64(n) {
		h, p, err := receive(worker)
		if err != nil {
			t.Fatal(err)
		}
		want := r.IntN(3000)
		if i%500 == 0 {
			want = 60000
		}
		if h.Request != i+1 || len(p) != want || (want > 0 && (p[0] != byte(i) || p[want-1] != byte(i))) {
			t.Fatalf("record %d: request %d, %d bytes, want %d", i, h.Request, len(p), want)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

func TestWorkerKeepsWhatFindsNoRoom(t *testing.T) {
	client, worker, _ := pair(t)
	defer closeBoth(t, client, worker)
	const n = 100
	for i := range uint64(n) {
		if err := worker.Send(&clwire.Print{Data: make([]byte, 20000)}, 0, i+1); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(n) {
		if _, err := worker.Flush(); err != nil {
			t.Fatal(err)
		}
		h, p, ok, err := client.Next()
		if err != nil || !ok || h.Request != i+1 || len(p) != 20000 {
			t.Fatalf("record %d: %+v, %d bytes, ok %v, %v", i, h, len(p), ok, err)
		}
	}
	if waits, err := worker.Flush(); waits || err != nil {
		t.Fatalf("still waits %v, %v", waits, err)
	}
}

// TestSpaceGoesBackTogether: a consumer writes the word that its producer reads once for many records, and where there
// are no more; the producer reads it where it has no room.
func TestSpaceGoesBackTogether(t *testing.T) {
	client, worker, _ := pair(t)
	defer closeBoth(t, client, worker)
	const n, length = 3000, 128
	record := uint64(clwire.HeaderBytes + length)
	moves, head := 0, uint64(0)
	for i := range uint64(2 * n) { // more than the ring takes
		if err := client.Send(clwire.NewBulkBytes(1, 0, make([]byte, length-16)), 0, i+1); err != nil {
			t.Fatal(err)
		}
		if i < n {
			continue
		}
		h, _, ok, err := worker.Next()
		if err != nil || !ok || h.Request != i-n+1 {
			t.Fatalf("record %d: %+v, ok %v, %v", i-n, h, ok, err)
		}
		if now := worker.rx.head.Load(); now != head {
			moves, head = moves+1, now
		}
	}
	if most := int(n*record*batch/clwire.ToWorkerBytes) + 1; moves > most {
		t.Errorf("head moved %d times for %d records, want %d at most", moves, n, most)
	}
	for range n {
		if _, _, ok, err := worker.Next(); err != nil || !ok {
			t.Fatalf("ok %v, %v", ok, err)
		}
	}
	if _, _, ok, _ := worker.Next(); ok || !worker.Empty() {
		t.Error("the ring is not empty")
	}
}

func TestBacklogIsBounded(t *testing.T) {
	client, worker, _ := pair(t)
	defer closeBoth(t, client, worker)
	for range 2 * maxBacklogBytes / 60000 {
		if err := worker.Send(&clwire.Print{Data: make([]byte, 60000)}, 0, 0); err != nil {
			if !errors.Is(err, ErrBacklog) {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("no limit")
}

// bells counts the bytes that wait on c's socket.
func bells(t *testing.T, c *Conn) int {
	t.Helper()
	n, err := unix.IoctlGetInt(c.sock, unix.TIOCINQ)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestBellsByState(t *testing.T) {
	for _, tc := range []struct {
		name   string
		state  uint32
		flags  uint16
		bytes  int
		expect int
	}{
		{"awake", clwire.ConsumerAwake, clwire.FlagUrgent, 8, 0},
		{"asleep", clwire.ConsumerAsleep, 0, 8, 1},
		{"lazy", clwire.ConsumerLazy, 0, 8, 0},
		{"lazy, urgent", clwire.ConsumerLazy, clwire.FlagUrgent, 8, 1},
		{"lazy, half full", clwire.ConsumerLazy, 0, 50000, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client, worker, _ := pair(t)
			defer closeBoth(t, client, worker)
			if tc.state != clwire.ConsumerAwake && !client.Arm(tc.state) {
				t.Fatal("an empty ring refused to be armed")
			}
			for range 4 {
				if err := worker.Send(&clwire.Print{Data: make([]byte, tc.bytes)}, tc.flags, 0); err != nil {
					t.Fatal(err)
				}
			}
			if got := bells(t, client); got != tc.expect {
				t.Errorf("%d bells, want %d", got, tc.expect)
			}
			if tc.expect == 0 && client.Arm(clwire.ConsumerAsleep) {
				t.Error("armed although records wait")
			}
		})
	}
}

func TestDescriptorsComeInOrder(t *testing.T) {
	client, worker, _ := pair(t)
	defer closeBoth(t, client, worker)
	for i := range 5 {
		f, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		f.WriteString(string(rune('a' + i)))
		if err := client.SendFD(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	for i := range 5 {
		f, err := worker.TakeFD()
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 2)
		n, err := f.ReadAt(b, 0)
		if n != 1 || err != io.EOF || b[0] != byte('a'+i) {
			t.Errorf("descriptor %d: %q %v", i, b[:n], err)
		}
		if flags, _ := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); flags&unix.FD_CLOEXEC == 0 {
			t.Error("descriptor is inherited by children")
		}
		f.Close()
	}
}

func TestHangupEndsBothDirections(t *testing.T) {
	client, worker, _ := pair(t)
	defer client.Close()
	done := make(chan error, 1)
	go func() {
		_, _, err := receive(client)
		done <- err
	}()
	await.Blocked(t, 1, "link.(*Conn).Block")
	if err := worker.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, ErrHangup) {
		t.Errorf("receiver: %v", err)
	}
	if err := client.Send(&clwire.Flush{Queue: 1}, 0, 0); !errors.Is(err, ErrHangup) {
		t.Errorf("sender: %v", err)
	}
}

func TestFullRingAndDeadPeer(t *testing.T) {
	client, worker, _ := pair(t)
	defer client.Close()
	go func() {
		await.Blocked(t, 1, "link.(*Conn).awaitRoom")
		worker.Close()
	}()
	for {
		err := client.Send(&clwire.Print{Data: make([]byte, 60000)}, 0, 0)
		if errors.Is(err, ErrHangup) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestShutdownWakesABlockedReceiver(t *testing.T) {
	client, worker, _ := pair(t)
	defer closeBoth(t, client, worker)
	done := make(chan error, 1)
	go func() {
		_, _, err := receive(client)
		done <- err
	}()
	await.Blocked(t, 1, "link.(*Conn).Block")
	client.Shutdown()
	if err := <-done; !errors.Is(err, ErrHangup) {
		t.Errorf("%v", err)
	}
}

func TestTooLong(t *testing.T) {
	client, worker, _ := pair(t)
	defer closeBoth(t, client, worker)
	if err := client.Send(&clwire.Print{Data: make([]byte, clwire.MaxRecord+1)}, 0, 0); !errors.Is(err, ErrTooLong) {
		t.Errorf("%v", err)
	}
	if err := client.Send(&clwire.Print{Data: make([]byte, clwire.MaxRecord)}, 0, 0); err != nil {
		t.Errorf("the limit itself: %v", err)
	}
}

// FuzzHostileRing lets the peer write anything into the shared memory: the
// receiver returns records or an error, and never reaches outside.
func FuzzHostileRing(f *testing.F) {
	f.Add(uint64(0), uint64(24), []byte{8, 0, 0, 0, 26, 0, 0, 0})
	f.Add(uint64(0), uint64(1<<63), []byte{255, 255, 255, 255})
	f.Add(uint64(1<<20-8), uint64(1<<20+8), []byte{})
	f.Add(uint64(1<<20-16), uint64(1<<20), []byte{8, 0, 0, 0})
	f.Fuzz(func(t *testing.T, start, tail uint64, area []byte) {
		client, worker, _ := pair(t)
		defer closeBoth(t, client, worker)
		worker.rx.next = start &^ 7
		worker.rx.seen, worker.rx.released = worker.rx.next, worker.rx.next
		worker.rx.head.Store(start &^ 7)
		worker.rx.tail.Store(tail)
		at := worker.rx.next % uint64(len(worker.rx.area))
		copy(worker.rx.area[at:], area)
		for range 100 {
			_, p, ok, err := worker.Next()
			if !ok || err != nil {
				return
			}
			if len(p) > clwire.MaxRecord {
				t.Fatalf("%d bytes", len(p))
			}
		}
	})
}

func BenchmarkSend(b *testing.B) {
	client, worker, _ := pair(b)
	defer closeBoth(b, client, worker)
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		for {
			h, _, err := receive(worker)
			if err != nil || h.Type == clwire.TypeFinish {
				return
			}
		}
	}()
	m := &clwire.NDRange{Cmd: clwire.Cmd{Queue: 1}, Kernel: 2, Dims: 1, Global: [3]uint64{1, 1, 1}}
	b.ReportAllocs()
	for b.Loop() {
		if err := client.Send(m, 0, 0); err != nil {
			b.Fatal(err)
		}
	}
	client.Send(&clwire.Finish{}, 0, 0)
	<-stop
}

func BenchmarkRoundTrip(b *testing.B) {
	client, worker, _ := pair(b)
	stop := make(chan struct{})
	echo := func(c *Conn) bool {
		var poller Poller
		for {
			var err error
			ok := poller.Spin(200*time.Microsecond, func() bool {
				_, _, ok, e := c.Next()
				err = e
				return ok || e != nil
			})
			if err != nil {
				return false
			}
			if ok {
				return true
			}
			if c.Arm(clwire.ConsumerAsleep) {
				if c.Block(-1, -1) != nil {
					return false
				}
			}
			c.Awake()
		}
	}
	go func() {
		defer close(stop)
		for echo(worker) {
			if worker.Send(&clwire.Reply{}, clwire.FlagUrgent, 1) != nil {
				return
			}
		}
	}()
	b.ReportAllocs()
	for b.Loop() {
		client.Send(&clwire.Finish{Queue: 1}, 0, 1)
		echo(client)
	}
	client.Shutdown()
	<-stop
	closeBoth(b, client, worker)
}
