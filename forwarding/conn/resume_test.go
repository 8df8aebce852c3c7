package conn

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// A lane that loses its connection before the resumer knows of it is looked for all the same.
func TestLaneLostBeforeItIsKnown(t *testing.T) {
	r := newResumer(nil, nil)
	lane := &link.Lane{} // without a connection
	r.noteLoss()
	<-r.lost
	if len(r.missing()) > 0 {
		t.Fatal("something is missing where there is nothing")
	}
	r.add(lane, 1)
	select {
	case <-r.lost:
	default:
		t.Error("nobody is told of a loss that came before")
	}
	if !slices.Equal(r.missing(), []int{1}) {
		t.Errorf("missing: %v", r.missing())
	}
}

// A connection that is lost comes back, and everything goes on where it was: calls, chunks under way, records. The
// contexts hear of both.
func TestConnectionsComeBack(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("tls=%v", secure), func(t *testing.T) {
			r, f := openFar(t, secure, true)
			for lane := range 3 {
				if lane > 0 {
					f.lane(lane)
				}
				answer := r.ask(&clwire.Query{})
				request := r.w().expect(clwire.TypeQuery).Request
				f.cut(lane)
				o, m := &BulkOp{Write: true}, &memory{bytes: pattern(3<<20, byte(lane))}
				r.bulk(o, m)
				o.Send(false)
				r.w().reply(request, success, []byte("there"))
				if call := <-answer; call == nil || string(call.Data) != "there" {
					t.Errorf("answer %+v", call)
				}
				r.w().send(&clwire.HostReady{Op: o.ID})
				await.Until(t, "the bytes", func() bool {
					r.c.Poll()
					data, got, _ := f.came(o.ID, o.Size)
					return got >= o.Size && bytes.Equal(data, m.bytes)
				})
				r.w().send(&clwire.BulkDone{Op: o.ID})
				r.is(o, m, success)
				await.Until(t, "all lanes", func() bool { return len(r.c.resumer.missing()) == 0 })
				if r.c.Away() {
					t.Error("a worker whose connections are back is away")
				}
			}
			heard := func(text string) func() bool {
				return func() bool {
					return slices.ContainsFunc(r.sink.all(),
						func(line string) bool { return strings.Contains(line, text) })
				}
			}
			await.Until(t, "word of the loss",
				heard("notice tendril: the connection to the worker of the fake was lost: waiting for it"))
			await.Until(t, "word of the return",
				heard("notice tendril: the connection to the worker of the fake is back after"))
		})
	}
}

// Where the daemon says that there is nothing to come back to, the worker is gone at once; where it cannot be asked,
// it is tried again.
func TestNothingToComeBackTo(t *testing.T) {
	for _, why := range []error{object.ErrNotFound, object.ErrNoDevice, object.ErrPermission} {
		r, f := openFar(t, false, true)
		tries := 0
		f.mu.Lock()
		f.refuse = func() error {
			if tries++; tries < 4 {
				return errTest // the node does not answer yet
			}
			return why
		}
		f.mu.Unlock()
		prompt := r.c.ReadPromptly()
		f.cut(0)
		r.lost()
		prompt()
		r.gone()
	}
}

// A connection that does not come back in time is given up.
func TestPatienceEnds(t *testing.T) {
	r, f := openFar(t, false, true, func(_ *fakeFar, o *Options) { o.Resume = 50 * time.Millisecond })
	f.lane(1) // their first connections come in the background
	f.lane(2)
	f.mu.Lock()
	f.dialing = func() error { return errTest }
	f.mu.Unlock()
	answer := r.ask(&clwire.Query{})
	r.w().expect(clwire.TypeQuery)
	f.cut(0)
	if call := <-answer; call == nil || call.Status != outOfResources {
		t.Errorf("answer %+v", call)
	}
	r.lost()
	r.gone()
}

// Lanes that lose their connections in turn, one while the other's comes back, are not given up when patience has gone
// by since the first loss: each new connection says that the worker can be reached, and a loss after it is another one.
func TestLanesAreCutInTurn(t *testing.T) {
	r, f := openFar(t, false, true)
	f.lane(1) // their first connections come in the background, and are none of those that are counted
	f.lane(2)
	var cuts atomic.Int32
	var middle atomic.Int64 // of all losses, ns after the resumer's start
	f.mu.Lock()
	f.dialing = func() error {
		n := cuts.Add(1)
		if n == 8 {
			middle.Store(int64(time.Since(r.c.resumer.start)))
		}
		if n <= 15 { // the other lane is lost while this one comes back
			time.Sleep(2 * flapping) // Pause: so long each connection lives
			f.cut(int(n % 2))
		}
		return nil
	}
	f.mu.Unlock()
	f.cut(0)
	await.Until(t, "connections of all lanes", func() bool {
		return cuts.Load() > 15 && len(r.c.resumer.missing()) == 0 || r.c.Dead()
	})
	if r.c.Dead() {
		t.Fatalf("it was given up after %d connections: %q", cuts.Load(), r.sink.all())
	}
	if x := &r.c.resumer.lanes; max(x[0].began, x[1].began) < time.Duration(middle.Load()) {
		t.Errorf("the last loss began at %v and %v, before the eighth of 15 at %v", x[0].began, x[1].began,
			time.Duration(middle.Load()))
	}
}

// An end by this side while the connection is lost waits for nobody.
func TestCloseWhileLost(t *testing.T) {
	r, f := openFar(t, false, true)
	asked := make(chan struct{}, 100)
	f.mu.Lock()
	f.refuse = func() error { asked <- struct{}{}; return errTest }
	f.mu.Unlock()
	if r.c.Away() {
		t.Error("a worker whose connections are there is away")
	}
	f.cut(0)
	<-asked
	if !r.c.Away() {
		t.Error("a worker whose connection is lost is not away")
	}
	r.c.Close()
	if r.c.Away() {
		t.Error("a worker that is given up is away")
	}
	if !r.said("lost, by this side: true") {
		t.Errorf("the Sink heard %q", r.sink.all())
	}
}

// The first connections are insisted upon with new tickets where the session outlives connections, and not elsewhere.
func TestFirstConnections(t *testing.T) {
	for name, c := range map[string]struct {
		keeps  bool
		fails  int // dials that fail
		refuse error
		want   bool
	}{
		"at once":                   {false, 0, nil, true},
		"nothing to insist on":      {false, 1, nil, false},
		"at the third try":          {true, 2, nil, true},
		"the daemon forgot it":      {true, 2, object.ErrNotFound, false},
		"the daemon is not reached": {true, 2, errTest, true},
	} {
		t.Run(name, func(t *testing.T) {
			r, f, o := farRig(t, false, c.keeps)
			var dials atomic.Int32
			f.dialing = func() error {
				if int(dials.Add(1)) <= c.fails {
					return errTest
				}
				return nil
			}
			f.refuse = func() error { return c.refuse }
			r.c = New(o)
			err := r.c.Open()
			if (err == nil) != c.want {
				t.Errorf("it was opened: %v", err)
			}
			if err == nil {
				r.c.Close()
				<-r.w().ended
			} else if len(f.closed) != 1 {
				t.Error("the daemon keeps the worker")
			}
			f.close()
		})
	}
}

// A lane that does not come up ends the worker; until then its operations wait.
func TestLaneDoesNotComeUp(t *testing.T) {
	r, f, o := farRig(t, false, false)
	dials := 0
	f.dialing = func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if dials++; dials > 1 {
			return errTest
		}
		return nil
	}
	r.c = New(o)
	if err := r.c.Open(); err != nil && !r.c.Dead() {
		t.Fatal(err)
	}
	r.lost()
	if !r.c.Dead() {
		t.Error("it lives without lanes")
	}
	r.c.Close()
	f.close()
}

// What a daemon of another machine gives is checked.
func TestRemoteWorkerThatDoesNotComeUp(t *testing.T) {
	for name, change := range map[string]func(f *fakeFar){
		"the daemon has none": func(f *fakeFar) { f.opening = func() error { return errTest } },
		"too few tickets":     func(f *fakeFar) { f.tickets = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			r, f, o := farRig(t, true, false)
			change(f)
			r.c = New(o)
			if err := r.c.Open(); err == nil || !strings.HasPrefix(err.Error(), "start a worker for the fake: ") {
				t.Errorf("the error is %v", err)
			}
			f.close()
		})
	}
}

func TestBulkLanes(t *testing.T) {
	for given, want := range map[int]int{1: 1, 3: 3, 1000: clwire.MaxLanes - 1} {
		if got := BulkLanes(given); got != want {
			t.Errorf("%d lanes for %d", got, given)
		}
	}
	if n := BulkLanes(0); n < 1 || n > clwire.MaxLanes-1 {
		t.Errorf("%d lanes by default", n)
	}
}
