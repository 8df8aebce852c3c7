package frontdoor

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Tenants take turns, however many of one wait.
func TestTurnsGoRound(t *testing.T) {
	turns := newTurns()
	turns.free = 0
	var loud []chan struct{}
	for range 100 {
		loud = append(loud, turns.line("loud"))
	}
	quiet := turns.line("quiet")
	turns.pass()
	turns.pass()
	for what, turn := range map[string]chan struct{}{"the first": loud[0], "the other tenant's": quiet} {
		select {
		case <-turn:
		default:
			t.Errorf("%s had no turn of the first two", what)
		}
	}
	for range 100 {
		turns.pass()
	}
	<-loud[99]
	if turns.free != 1 || turns.order.Len() != 0 || len(turns.waiting) != 0 {
		t.Errorf("left: %d free, %d queues", turns.free, turns.order.Len())
	}
}

// Who takes long keeps nobody waiting, and gives its turn back once.
func TestTurnOfWhoTakesLong(t *testing.T) {
	turns := newTurns()
	turns.free = 1
	slow := turns.take("loud")
	turns.take("quiet")()
	slow()
	turns.mu.Lock()
	defer turns.mu.Unlock()
	if turns.free != 1 {
		t.Errorf("%d turns are free", turns.free)
	}
}

// Who is ready has a processor soon, though there is one alone and many pass a turn to each other.
func TestTurnsLeaveTheProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	turns := newTurns()
	turns.free = 1
	var taken, stop atomic.Int64
	done := make(chan struct{})
	for range 8 {
		go func() {
			for stop.Load() == 0 {
				over := turns.take("loud")
				taken.Add(1)
				over()
			}
			done <- struct{}{}
		}()
	}
	for taken.Load() == 0 {
		runtime.Gosched()
	}
	worst := int64(0)
	for range 20 {
		before := taken.Load()
		runtime.Gosched()
		worst = max(worst, taken.Load()-before)
	}
	stop.Store(1)
	for range 8 {
		<-done
	}
	if worst > 100 {
		t.Errorf("%d turns were taken before another goroutine had the processor", worst)
	}
}

// slowBackend's status takes its time, and notes how many are made at a time.
type slowBackend struct {
	*fakeBackend
	now, most atomic.Int64
	took      time.Duration
	status    []byte
}

func (b *slowBackend) Status(Peer) ([]byte, error) {
	b.most.Store(max(b.most.Load(), b.now.Add(1)))
	time.Sleep(b.took) // Pause: longer than others are patient
	b.now.Add(-1)
	return b.status, nil
}

// However long one takes, the next page is not begun beside it: on a busy machine there would be ever more of them.
func TestOnePageAtATime(t *testing.T) {
	b := &slowBackend{fakeBackend: newFakeBackend(), took: 5 * turnTime, status: []byte("{}")}
	d := open(t, func(o *Options) { o.Backend = b })
	var peers []*peer
	for range 16 {
		peers = append(peers, d.dial(t).hello())
	}
	for _, p := range peers {
		p.send(wire.Status, 77, nil)
	}
	for _, p := range peers {
		if _, err := p.receive(); err != nil {
			t.Fatal(err)
		}
	}
	if most := b.most.Load(); most != 1 {
		t.Errorf("%d were made at a time, want one", most)
	}
}

// After a page the next one waits for a rest while other tenants work, and is begun at once otherwise.
func TestPagesRestWhileOthersWork(t *testing.T) {
	var rests []func()
	others := false
	s := &Server{turns: newTurns(), pages: newTurns(), afterRest: func(next func()) { rests = append(rests, next) },
		othersWork: func(tenant string) bool { return others && tenant == "loud" }}
	s.pages.free = 1
	page := func() {
		over := s.PageTurn("loud")
		time.Sleep(ipc.PaceRest) // Pause: as long as many pages take
		over()
	}
	page()
	if page(); len(rests) > 0 {
		t.Fatal("pages rested though nobody else works")
	}
	others = true
	if page(); len(rests) != 1 || s.pages.free != 0 {
		t.Fatalf("others work, and after a page there are %d rests and %d turns for the next one", len(rests), s.pages.free)
	}
	if rests[0](); s.pages.free != 1 {
		t.Errorf("after the rest there are %d turns", s.pages.free)
	}
}

// Who asks for pages and reads none keeps nobody else from theirs.
func TestUnreadPagesHoldNoTurn(t *testing.T) {
	b := &slowBackend{fakeBackend: newFakeBackend(), status: make([]byte, 4<<20)}
	d := open(t, func(o *Options) { o.Backend = b })
	d.put(t, 3000, ugly())
	for what, ask := range map[wire.Type]ipc.Payload{wire.Status: nil, wire.List: &wire.ListRequest{},
		wire.ListPage: &wire.ListPageRequest{}} {
		silent := d.knock(t)
		defer unix.Close(silent)
		for range 16 {
			if _, err := unix.Write(silent, ipc.AppendFrame(nil, what, 0, 1, ask)); err != nil {
				t.Fatal(err)
			}
		}
		waitFor(t, func() bool { // what is sent to it fills the socket (FIONREAD)
			n, err := unix.IoctlGetInt(silent, unix.TIOCINQ)
			return err == nil && n > 100_000
		})
		if items := d.dial(t).hello().whole(wire.List, &wire.ListRequest{}); len(items) != 3000 {
			t.Errorf("beside unread answers of %v: %d objects, want 3000", what, len(items))
		}
	}
}

// A checksum of a large object takes a turn for each MiB, and so lets other tenants in.
func TestChecksumTakesTurns(t *testing.T) {
	const mib = 4
	d := open(t, nil)
	p := d.dial(t).hello()
	id := p.sealed(&wire.CreateRequest{SizeBytes: mib << 20})
	locked := func(f func()) {
		d.turns.mu.Lock()
		defer d.turns.mu.Unlock()
		f()
	}
	locked(func() { d.turns.free -= 1000 }) // from here on a turn is what this test gives
	defer locked(func() { d.turns.free += 1000 })
	answered := make(chan error, 1)
	go func() {
		_, err := p.ask(wire.Checksum, &wire.NameMessage{ID: id})
		answered <- err
	}()
	for turns := 0; ; {
		waits, done := false, false
		waitFor(t, func() bool {
			locked(func() { waits = d.turns.order.Len() > 0 })
			done = len(answered) > 0
			return waits || done
		})
		if done {
			if err := <-answered; err != nil || turns != mib {
				t.Errorf("%d turns, %v; want %d", turns, err, mib)
			}
			return
		}
		d.turns.pass()
		turns++
	}
}

// turnless is a cluster that looks whether who publishes has a turn.
type turnless struct {
	fakeCluster
	srv  atomic.Pointer[Server]
	free atomic.Int32 // turns, while one publishes
}

func (c *turnless) Publish(Peer, object.ID, string, bool) (uint64, error) {
	t := c.srv.Load().turns
	t.mu.Lock()
	defer t.mu.Unlock()
	c.free.Store(int32(t.free))
	return 7, nil
}

// Who waits for the cluster has no turn: publications of many connections go into its log together.
func TestPublishersHoldNoTurn(t *testing.T) {
	cluster := &turnless{}
	d := open(t, func(o *Options) { o.Cluster = cluster })
	cluster.srv.Store(d.Server)
	want := int32(newTurns().free)
	p := d.dial(t).hello()
	p.send(wire.Publish, 1, &wire.BindRequest{ID: object.NewID(), Name: "x"})
	if _, err := p.receive(); err != nil {
		t.Fatal(err)
	}
	if free := cluster.free.Load(); free != want {
		t.Errorf("%d turns are free while one publishes, want all %d", free, want)
	}
}
