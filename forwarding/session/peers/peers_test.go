package peers

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"tendril/forwarding/clwire"
	"tendril/forwarding/conn"
	"tendril/forwarding/session/node"
	"tendril/tools/e2e/await"
)

func TestMain(m *testing.M) { await.Main(m) }

// fakeHost runs nothing by itself: what is to run later does so when the test says.
type fakeHost struct {
	ids     uint64
	mu      sync.Mutex
	later   []func()
	refused []error
	waited  int
}

func (h *fakeHost) NewID() uint64 { h.ids++; return h.ids }

func (h *fakeHost) Later(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.later = append(h.later, f)
}

func (h *fakeHost) Connecting([2]Worker) func()    { return func() { h.waited++ } }
func (h *fakeHost) Refused(_ [2]Worker, why error) { h.refused = append(h.refused, why) }

func (h *fakeHost) run() {
	h.mu.Lock()
	due := h.later
	h.later = nil
	h.mu.Unlock()
	for _, f := range due {
		f()
	}
}

// fakeNode is a daemon that connects workers: meet says what becomes of it.
type fakeNode struct {
	node.Control // nil: nothing else of it is asked
	meet         func(how string, link uint64) error
	told         []string
}

func (n *fakeNode) OfferPeer(_, link uint64, _ int, _ bool) ([]byte, error) {
	return []byte{1}, n.meet("offer", link)
}

func (n *fakeNode) DialPeer(_, link uint64, offer []byte) error { return n.meet("dial", link) }
func (n *fakeNode) PairPeers(_, _, link uint64, _ int) error    { return n.meet("pair", link) }
func (n *fakeNode) TellPeer(_, _ uint64, up bool, with, why string) {
	n.told = append(n.told, with+": "+why)
}

type fakeWorker struct {
	id      uint64
	control node.Control
	print   []byte
	expects []*clwire.PeerExpect
	closed  int
	dead    bool
}

func newFakeWorker(id uint64, control node.Control) *fakeWorker {
	return &fakeWorker{id: id, control: control, print: make([]byte, 32)}
}

func (w *fakeWorker) ID() uint64            { return w.id }
func (w *fakeWorker) Dead() bool            { return w.dead }
func (w *fakeWorker) Packs() bool           { return true }
func (w *fakeWorker) Control() node.Control { return w.control }
func (w *fakeWorker) Name() string          { return "Fake" }
func (w *fakeWorker) Order() uint64         { return w.id }
func (w *fakeWorker) Forget(uint64)         {}
func (w *fakeWorker) Kick()                 {}

func (w *fakeWorker) Begin(func(*conn.Call)) (*conn.Call, uint64) {
	c := &conn.Call{Data: w.print}
	c.Complete()
	return c, 1
}

func (w *fakeWorker) Wait(it *conn.Completion) bool { return w.print != nil }

func (w *fakeWorker) Send(m clwire.Message, _ uint16, _ uint64) error {
	if m, ok := m.(*clwire.PeerExpect); ok {
		w.expects = append(w.expects, m)
	}
	return nil
}

func (w *fakeWorker) SendOneWay(m clwire.Message) {
	if _, ok := m.(*clwire.PeerClose); ok {
		w.closed++
	}
}

// rig is two workers, of one node or of two, whose links come up as meet says. A nil answer of its last step brings
// them up.
func rig(t *testing.T, sameNode bool, opt Options, meet func(how string) error) (*Table, *fakeHost, *[2]*fakeWorker,
	[2]*fakeNode) {
	h := &fakeHost{}
	table := New(h, opt)
	var ends [2]*fakeWorker
	try := func(how string, link uint64) error {
		err := meet(how)
		if err == nil && how != "offer" {
			for _, w := range ends {
				if err := table.State(w, &clwire.PeerState{Link: link, Up: true}); err != nil {
					t.Error(err)
				}
			}
		}
		return err
	}
	nodes := [2]*fakeNode{{meet: try}, {meet: try}}
	ends[0], ends[1] = newFakeWorker(1, nodes[0]), newFakeWorker(2, nodes[1])
	if sameNode {
		ends[1].control = nodes[0]
	}
	return table, h, &ends, nodes
}

func fine(string) error { return nil }

// TestLinkOfOneNode: one attempt serves whoever asks, from either end.
func TestLinkOfOneNode(t *testing.T) {
	table, h, w, nodes := rig(t, true, Options{}, fine)
	l := table.Of(w[0], w[1])
	if l == nil || table.Of(w[1], w[0]) != l {
		t.Fatal("no link, or two")
	}
	if h.waited != 1 || len(h.refused) != 0 || len(nodes[0].told) != 2 {
		t.Errorf("waited %d times, refused %v, told %q", h.waited, h.refused, nodes[0].told)
	}
	if m := w[1].expects[0]; !m.Answers || !m.Plaintext || m.Packed || w[0].expects[0].Answers {
		t.Errorf("within a node the second answers, in clear: %+v", m)
	}
}

// TestOtherDirection: where one node cannot dial the other, that one dials.
func TestOtherDirection(t *testing.T) {
	dials := 0
	table, _, w, _ := rig(t, false, Options{}, func(how string) error {
		if how == "dial" {
			if dials++; dials == 1 {
				return errors.New("no route")
			}
		}
		return nil
	})
	if table.Of(w[0], w[1]) == nil {
		t.Fatal("no link")
	}
	if first, second := w[0].expects[0], w[0].expects[1]; first.Answers || !second.Answers || !second.Packed {
		t.Errorf("%+v, then %+v", first, second)
	}
	if w[0].closed != 1 || w[1].closed != 1 {
		t.Error("the first attempt was not given up")
	}
}

// TestWhyNot: each reason for which there is no link is said, and final ones end it.
func TestWhyNot(t *testing.T) {
	refuse := func(string) error { return errors.New("no route") }
	for _, c := range []struct {
		why    string
		opt    Options
		meet   func(string) error
		change func(table *Table, w [2]*fakeWorker)
		final  bool
	}{
		{"are off", Options{Off: true}, fine, nil, true},
		{"one way: no route; the other way: no route", Options{}, refuse, nil, false},
		{"a daemon connects no workers", Options{}, fine, func(_ *Table, w [2]*fakeWorker) { w[1].control = nil }, true},
		{"answers 0 and 3 bytes", Options{}, fine, func(_ *Table, w [2]*fakeWorker) { w[0].print = make([]byte, 3) }, true},
		{"worker", Options{}, fine, func(_ *Table, w [2]*fakeWorker) { w[0].print = nil }, false},
		{"links already", Options{}, fine, func(table *Table, w [2]*fakeWorker) { table.made[w[0]] = clwire.MaxPeerLinks },
			true},
	} {
		table, h, w, _ := rig(t, false, c.opt, c.meet)
		if c.change != nil {
			c.change(table, *w)
		}
		if table.Of(w[0], w[1]) != nil || len(h.refused) == 0 || !strings.Contains(h.refused[0].Error(), c.why) {
			t.Errorf("%s: %v", c.why, h.refused)
		}
		if p := table.byPair[[2]Worker{w[0], w[1]}]; p.final != c.final || p.tries != 1 {
			t.Errorf("%s: final %v after %d tries", c.why, p.final, p.tries)
		}
	}
}

// TestLinkEnds: what was to come over it is brought about otherwise, once, by the end that waits for it.
func TestLinkEnds(t *testing.T) {
	table, h, w, nodes := rig(t, false, Options{}, fine)
	l := table.Of(w[0], w[1])
	var lost []uint64
	expect := func(event uint64, at *fakeWorker) bool {
		return l.Expect(event, at, func() { lost = append(lost, event) })
	}
	if expect(10, w[0]) || expect(11, w[0]) || expect(12, w[1]) {
		t.Error("over before it ended")
	}
	l.Ended(10)
	down := &clwire.PeerState{Link: l.ID, Text: "cut"}
	if err := table.State(w[0], down); err != nil {
		t.Fatal(err)
	}
	if table.Of(w[0], w[1]) != nil {
		t.Error("a link that ended")
	}
	if h.run(); len(lost) != 1 || lost[0] != 11 || w[1].closed != 1 {
		t.Errorf("lost %v, the other end was told %d times", lost, w[1].closed)
	}
	if len(h.refused) != 1 || !strings.HasSuffix(nodes[0].told[1], "cut") {
		t.Errorf("refused %v, told %q", h.refused, nodes[0].told)
	}
	if !expect(13, w[0]) || expect(14, w[1]) {
		t.Error("only one end has said that it is over")
	}
	if err := table.State(w[1], down); err != nil {
		t.Fatal(err)
	}
	if h.run(); len(lost) != 3 || len(h.refused) != 1 {
		t.Errorf("lost %v, refused %v", lost, h.refused)
	}
}

// TestLinkIsMadeAnew: behind a pause, in the background.
func TestLinkIsMadeAnew(t *testing.T) {
	table, h, w, _ := rig(t, true, Options{}, fine)
	l := table.Of(w[0], w[1])
	if err := table.State(w[0], &clwire.PeerState{Link: l.ID, Text: "cut"}); err != nil {
		t.Fatal(err)
	}
	h.run()
	p := table.byPair[[2]Worker{w[0], w[1]}]
	for _, want := range []*Link{nil, nil} { // broken; within the pause
		if table.Of(w[0], w[1]) != want {
			t.Fatal("a link at once")
		}
	}
	p.mu.Lock()
	p.again = p.again.Add(-2 * pause)
	p.mu.Unlock()
	for anew := table.Of(w[0], w[1]); anew == nil || anew == l; {
		anew = table.Of(w[0], w[1])
	}
}

// TestStateOfOthers: a worker that speaks of a link that is not its own is at fault.
func TestStateOfOthers(t *testing.T) {
	table, _, w, _ := rig(t, true, Options{}, fine)
	l := table.Of(w[0], w[1])
	for _, c := range []struct {
		w    *fakeWorker
		link uint64
	}{{w[0], l.ID + 1}, {newFakeWorker(3, nil), l.ID}} {
		if err := table.State(c.w, &clwire.PeerState{Link: c.link}); !errors.Is(err, clwire.ErrRecord) {
			t.Errorf("%d: %v", c.link, err)
		}
	}
}

// sizes gives how much a table knows.
func (t *Table) sizes() [3]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return [3]int{len(t.byPair), len(t.byID), len(t.made)}
}

// TestForget: nothing is kept of a worker that has died, and of its links nothing once the other end has said that it
// has them no more; what that end waited for is done otherwise then, not before.
func TestForget(t *testing.T) {
	table, h, w, nodes := rig(t, true, Options{}, fine)
	for i := range 3 * clwire.MaxPeerLinks { // workers come and go: there is no end to it
		if i > 0 {
			w[0], w[1] = newFakeWorker(uint64(2*i+1), nodes[0]), newFakeWorker(uint64(2*i+2), nodes[0])
		}
		a, b := w[0], w[1]
		l := table.Of(a, b)
		if l == nil {
			t.Fatalf("no link between the workers of round %d", i)
		}
		otherwise := false
		if l.Expect(5, a, func() { otherwise = true }) {
			t.Fatal("the link is over")
		}
		b.dead = true
		table.Forget(b)
		if h.run(); otherwise {
			t.Fatal("what was on its way is done otherwise before its end said anything")
		}
		if table.Of(a, b) != nil {
			t.Fatal("a link to a dead worker")
		}
		for range 2 {
			if err := table.State(a, &clwire.PeerState{Link: l.ID, Text: "gone"}); err != nil {
				t.Fatal(err)
			}
		}
		if h.run(); !otherwise {
			t.Fatal("what was to come from the dead worker is waited for still")
		}
		a.dead = true
		table.Forget(a)
		if n := table.sizes(); n != [3]int{} {
			t.Fatalf("after %d pairs of workers the table has %v", i+1, n)
		}
	}
	if err := table.State(w[0], &clwire.PeerState{Link: 1 << 40}); err == nil {
		t.Error("a link that there never was")
	}
}

// TestCloseJoins: a try that nobody waits for ends with the table.
func TestCloseJoins(t *testing.T) {
	trying := make(chan struct{}, 1)
	hold := make(chan struct{})
	calls := 0
	table, _, w, _ := rig(t, true, Options{}, func(string) error {
		if calls++; calls > 1 {
			trying <- struct{}{}
			<-hold
		}
		return errors.New("no")
	})
	if table.Of(w[0], w[1]) != nil {
		t.Fatal("a link")
	}
	table.mu.Lock()
	for _, p := range table.byPair {
		p.again = time.Time{}
	}
	table.mu.Unlock()
	if table.Of(w[0], w[1]) != nil {
		t.Fatal("a link")
	}
	<-trying
	closed := make(chan struct{})
	go func() { table.Close(); close(closed) }()
	select {
	case <-closed:
		t.Error("Close did not wait")
	default:
	}
	close(hold)
	<-closed
	if calls != 2 {
		t.Errorf("%d tries", calls)
	}
}
