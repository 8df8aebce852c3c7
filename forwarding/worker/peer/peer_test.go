package peer

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
	"tendril/tools/e2e/loopback"
)

// hearer is a Worker that notes what it is told.
type hearer struct {
	mu     sync.Mutex
	up     int
	done   map[uint64]int32
	failed map[uint64]int32
	bytes  map[uint64]int
	lost   error
	told   chan struct{} // one for each call
}

func newHearer() *hearer {
	return &hearer{done: map[uint64]int32{}, failed: map[uint64]int32{}, bytes: map[uint64]int{},
		told: make(chan struct{}, 1<<18)}
}

func (h *hearer) note(f func()) {
	h.mu.Lock()
	f()
	h.mu.Unlock()
	h.told <- struct{}{}
}

func (h *hearer) Up()                             { h.note(func() { h.up++ }) }
func (h *hearer) Done(event uint64, status int32) { h.note(func() { h.done[event] = status }) }
func (h *hearer) Failed(op uint64, status int32) error {
	h.note(func() { h.failed[op] = status })
	return nil
}
func (h *hearer) Length(op, bytes uint64) error { return nil }
func (h *hearer) Bytes(op, offset uint64, data []byte) error {
	h.note(func() { h.bytes[op] += len(data) })
	return nil
}
func (h *hearer) Wait(more func() bool, sleep func() error) error {
	if more() {
		return nil
	}
	return sleep()
}
func (h *hearer) Lost(why error) { h.note(func() { h.lost = why }) }
func (h *hearer) Chunk(l *link.Lane, c clwire.LaneHeader) error {
	if err := l.Discard(int(c.Length)); err != nil {
		return err
	}
	h.note(func() { h.bytes[c.Op] += int(c.Length) })
	return nil
}

// until waits for something that the worker is told of.
func (h *hearer) until(t *testing.T, what string, is func() bool) {
	t.Helper()
	limit := time.After(5 * time.Minute)
	for {
		h.mu.Lock()
		ok := is()
		h.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-h.told:
		case <-limit:
			t.Fatalf("never: %s", what)
		}
	}
}

// ends makes connected sockets: TCP, so that a close is seen as between machines.
func ends(t *testing.T) (a, b *os.File) {
	t.Helper()
	a, b, err := loopback.Pair()
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

// pair is two ends of a link, under TLS.
func pair(t *testing.T, lanes int) (links [2]*Link, workers [2]*hearer) {
	t.Helper()
	var ids [2]*link.Identity
	for i := range ids {
		var err error
		if ids[i], err = link.NewIdentity(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range links {
		workers[i] = newHearer()
		links[i] = New(Options{Answers: i == 1, Config: ids[i].Config(ids[1-i].Fingerprint()), Lanes: lanes,
			Worker: workers[i]})
		t.Cleanup(links[i].Close)
	}
	return links, workers
}

func join(t *testing.T, links [2]*Link, lanes int) {
	t.Helper()
	for i := range lanes {
		a, b := ends(t)
		links[0].Take(i, a)
		links[1].Take(i, b)
	}
}

// TestLink sends words and chunks both ways, early and late, and counts what is left when all is over.
func TestLink(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("", func(t *testing.T) {
		links, workers := pair(t, 3)
		links[0].Tell(1, -5) // before anything is there
		join(t, links, 3)
		for i, h := range workers {
			h.until(t, "up", func() bool { return h.up == 1 })
			if len(links[i].Payload()) != 2 {
				t.Errorf("%d lanes for payload", len(links[i].Payload()))
			}
		}
		links[1].Tell(2, 0)
		for event, i := range map[uint64]int{1: 1, 2: 0} {
			if err := links[i].Expect(event); err != nil {
				t.Fatal(err)
			}
			workers[i].until(t, "an event", func() bool { _, ok := workers[i].done[event]; return ok })
		}
		if workers[1].done[1] != -5 || workers[0].done[2] != 0 {
			t.Errorf("%v, %v", workers[0].done, workers[1].done)
		}
		links[1].Ready(10) // before and behind the offer
		links[0].Offer(11, func() { links[0].Fail(11, -9) })
		links[0].Offer(10, func() {
			if err := links[0].Payload()[1].Send(clwire.LaneHeader{Op: 10, Length: 5}, []byte("bytes"),
				nil); err != nil {
				t.Error(err)
			}
		})
		links[1].Ready(11)
		links[1].Ready(12)
		links[0].Offer(12, func() { links[0].Bytes(12, 0, []byte("small")) })
		workers[1].until(t, "two pushes and a failed one", func() bool {
			return workers[1].bytes[10] == 5 && workers[1].bytes[12] == 5 && workers[1].failed[11] == -9
		})
		links[0].Close()
		workers[1].until(t, "the end", func() bool { return workers[1].lost != nil })
		if !errors.Is(workers[0].lost, ErrClosed) {
			t.Errorf("why: %v", workers[0].lost)
		}
		links[0].Offer(13, func() { t.Error("begun behind the end") })
		links[0].Tell(3, 0)
		links[0].Bytes(13, 0, []byte("late"))
		if links[0].Go(func() {}) {
			t.Error("a goroutine behind the end")
		}
	})
	for deadline := time.Now().Add(5 * time.Minute); runtime.NumGoroutine() > before; {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
		time.Sleep(time.Millisecond)
	}
}

// A stranger that shows the ticket gets nothing and spoils nothing; the worker that was meant comes in behind it.
func TestStrangerAtTheLink(t *testing.T) {
	links, workers := pair(t, 2)
	stranger, err := link.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		a, b := ends(t)
		links[1].Take(0, b)
		o := link.Options{TLS: stranger.Config(stranger.Fingerprint())}
		if l, err := link.OpenLane(link.Client, a, o); err == nil {
			l.Close()
			t.Error("a stranger came in")
		}
		a.Close()
	}
	join(t, links, 2)
	for _, h := range workers {
		h.until(t, "up", func() bool { return h.up == 1 })
	}
	a, b := ends(t)
	links[1].Take(1, b) // the lane is there: closed at once
	defer a.Close()
	if n, err := unix.Read(int(a.Fd()), make([]byte, 1)); n > 0 || err != nil && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("a second connection for a lane: %d, %v", n, err)
	}
}

// The side that dialed ends the link where TLS fails, and a link that ends waits for no handshake.
func TestLinkThatDoesNotComeUp(t *testing.T) {
	links, workers := pair(t, 2)
	a, b := ends(t)
	links[0].Take(0, a)
	b.Close()
	workers[0].until(t, "the end", func() bool { return workers[0].lost != nil })
	a, b = ends(t)
	defer a.Close()
	links[1].Take(0, b) // nobody speaks
	links[1].Close()
	if workers[1].lost == nil {
		t.Error("Close returned before Lost")
	}
}

// What the other worker may make this one keep is bounded.
func TestEarlyWordsAreBounded(t *testing.T) {
	for what, tell := range map[string]func(l *Link, n uint64){
		"events": func(l *Link, n uint64) { l.Tell(n, 0) },
		"pushes": func(l *Link, n uint64) { l.Ready(n) },
	} {
		links, workers := pair(t, 2)
		join(t, links, 2)
		workers[1].until(t, "up", func() bool { return workers[1].up == 1 })
		for n := range uint64(clwire.MaxPeerEarly + 1) {
			tell(links[0], n+1)
		}
		workers[1].until(t, what+" beyond the bound", func() bool { return workers[1].lost != nil })
		if !errors.Is(workers[1].lost, clwire.ErrRecord) {
			t.Errorf("%s: %v", what, workers[1].lost)
		}
	}
}
