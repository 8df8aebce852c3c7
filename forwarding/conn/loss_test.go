package conn

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
	"tendril/forwarding/trace"
)

// A worker that does not come up leaves nothing, and its daemon hears that it is not wanted, wherever it stopped.
func TestWorkerThatDoesNotComeUp(t *testing.T) {
	for name, c := range map[string]struct {
		change func(d *fakeDaemon)
		want   string
		closed bool // the daemon had started it
	}{
		"the daemon has none": {func(d *fakeDaemon) { d.opening = func() error { return errTest } },
			"start a worker for the fake: of the test", false},
		"it hangs up": {func(d *fakeDaemon) { d.hello = func(w *fakeWorker, _ uint64) { w.link.Shutdown() } },
			"the worker does not answer", true},
		"it refuses": {func(d *fakeDaemon) {
			d.hello = func(w *fakeWorker,
				request uint64) {
				w.reply(request, -5, nil)
			}
		},
			"another protocol version; install one version of tendril for both (status -5)", true},
		"another version": {func(d *fakeDaemon) {
			d.hello = func(w *fakeWorker, request uint64) {
				w.reply(request, success, (&clwire.HelloReply{Version: clwire.Version + 1}).Append(nil))
			}
		}, "another protocol version", true},
		"an answer that is none": {func(d *fakeDaemon) {
			d.hello = func(w *fakeWorker, request uint64) { w.reply(request, success, []byte{1}) }
		}, "another protocol version", true},
		"a record that is none": {func(d *fakeDaemon) {
			d.hello = func(w *fakeWorker, _ uint64) { w.send(&raw{typ: clwire.TypeEvents, payload: []byte{1}}) }
		}, "the worker does not answer", true},
	} {
		t.Run(name, func(t *testing.T) {
			r := &rig{t: t, daemon: &fakeDaemon{t: t}, sink: newSink(), log: newSink()}
			c.change(r.daemon)
			r.c = New(options(r.daemon, r.sink, r.log))
			if err := r.c.Open(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
			if got := len(r.daemon.closed) == 1 && r.daemon.closed[0] == 7; got != c.closed {
				t.Errorf("the daemon was asked to end %v", r.daemon.closed)
			}
			if w := r.w(); w != nil {
				<-w.ended
			}
		})
	}
}

// badFiles is a daemon whose worker's ring is no ring.
type badFiles struct{ *fakeDaemon }

func (d badFiles) OpenWorker(uint32) (WorkerFiles, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return WorkerFiles{}, err
	}
	unix.Close(pair[0])
	return WorkerFiles{ID: 7, Socket: os.NewFile(uintptr(pair[1]), "client"), Ring: memfd(d.t, 100)}, nil
}

func TestRingThatIsNone(t *testing.T) {
	d := badFiles{&fakeDaemon{t: t}}
	if err := New(options(d, newSink(), newSink())).Open(); err == nil {
		t.Error("it was opened")
	}
	if len(d.closed) != 1 {
		t.Error("the daemon keeps the worker")
	}
}

// What a broken worker may say: each ends it, once, and everything outstanding fails.
var hostile = map[string]clwire.Message{
	"a type of this side's":        &clwire.Finish{Queue: 1},
	"no such type":                 &raw{typ: 999},
	"a reply without a status":     &raw{typ: clwire.TypeReply, payload: []byte{1, 2}},
	"half an event":                &raw{typ: clwire.TypeEvents, payload: []byte{1, 0, 0, 0, 5}},
	"half a HostReady":             &raw{typ: clwire.TypeHostReady, payload: []byte{1}},
	"half a fault":                 &raw{typ: clwire.TypeFault, payload: []byte{1}},
	"half a length":                &raw{typ: clwire.TypeBulkLength, payload: []byte{1}},
	"bulk bytes on one node":       &clwire.BulkDone{Op: 1},
	"half of a trace":              &raw{typ: clwire.TypeTraceData, payload: []byte{1}},
	"half of a link's state":       &raw{typ: clwire.TypePeerState, payload: []byte{1}},
	"what the Sink does not know":  &clwire.PeerState{Link: 0, Up: true},
	"a reply to what nobody asked": nil, // and this one ends nothing
}

func TestHostileRecordsEndTheWorker(t *testing.T) {
	for name, m := range hostile {
		t.Run(name, func(t *testing.T) {
			r := open(t)
			w := r.w()
			gate, then := &Gate{}, make(chan int32, 1)
			r.c.AddGate(5, gate)
			r.c.AddGate(6, &Gate{Then: func() { then <- 0 }})
			answer := r.ask(&clwire.Query{})
			request := w.expect(clwire.TypeQuery).Request
			if m == nil {
				w.reply(1<<50, success, []byte("?"))
				w.reply(request, success, nil)
				if call := <-answer; call == nil || call.Status != success || r.c.Dead() {
					t.Errorf("answer %+v, dead: %v", call, r.c.Dead())
				}
				return
			}
			w.send(m)
			if call := <-answer; call == nil || call.Status != outOfResources {
				t.Errorf("the call that waited got %+v", call)
			}
			if !gate.Done() || gate.Status != outOfResources {
				t.Error("a gate did not fail")
			}
			<-then
			r.lost()
			r.gone()
		})
	}
}

// gone checks what a worker answers that is gone.
func (r *rig) gone() {
	r.t.Helper()
	if !r.c.Dead() {
		r.t.Error("it is not dead")
	}
	if err := r.c.Send(&clwire.Flush{}, 0, 0); !errors.Is(err, ErrDead) {
		r.t.Errorf("Send: %v", err)
	}
	if _, err := r.c.Ask(&clwire.Query{}); !errors.Is(err, ErrDead) {
		r.t.Errorf("Ask: %v", err)
	}
	if status := r.c.WaitEvents(trace.CauseWait, 1); status != outOfResources {
		r.t.Errorf("WaitEvents: %d", status)
	}
	var never Completion
	if r.c.Wait(&never) || r.c.WaitUnhurried(&never) {
		r.t.Error("what never happens happened")
	}
	if err := r.c.AddSegment(1, os.Stdin, 1); !errors.Is(err, ErrDead) {
		r.t.Errorf("AddSegment: %v", err)
	}
	if _, err := r.c.ProtectSegment(1, os.Stdin, true); err != nil {
		r.t.Errorf("ProtectSegment: %v", err)
	}
	r.c.Poll()
	r.c.AwaitSettled()
	if how, _ := r.c.Exit(nil); how != "killed by the test" {
		r.t.Errorf("it ended: %q", how)
	}
	lost := 0
	for _, line := range r.sink.all() {
		if line == "lost, by this side: false" {
			lost++
		}
	}
	if lost != 1 {
		r.t.Errorf("the Sink heard %d times of the end", lost)
	}
}

// An answer without an end is no answer.
func TestEndlessReply(t *testing.T) {
	kept, err := unix.Mmap(-1, 0, maxReplyBytes, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(kept)
	c := New(options(&fakeDaemon{t: t}, newSink(), newSink()))
	call, request := c.Begin(nil)
	call.Data = kept
	m := clwire.Reply{Data: []byte{1}}
	if err := c.dispatch(clwire.Header{Type: clwire.TypeReply, Request: request}, m.Append(nil)); !errors.Is(err,
		clwire.ErrRecord) {
		t.Errorf("more than %d bytes are kept for one answer: %v", maxReplyBytes, err)
	}
}

// A worker may end at any step of the client's: nobody waits for ever, and the Sink hears of it once.
func TestLossAtEachStep(t *testing.T) {
	for name, step := range map[string]func(r *rig){
		"while nobody waits": func(*rig) {},
		"while a call waits": func(r *rig) {
			answer := r.ask(&clwire.Query{})
			r.w().expect(clwire.TypeQuery)
			r.w().link.Shutdown()
			if call := <-answer; call != nil && call.Status != outOfResources {
				r.t.Errorf("it was answered: %+v", call)
			}
		},
		"while many wait": func(r *rig) {
			var answers []chan *Call
			for range 8 {
				answers = append(answers, r.ask(&clwire.Query{}))
				r.w().expect(clwire.TypeQuery)
			}
			r.w().link.Shutdown()
			for _, answer := range answers {
				if call := <-answer; call != nil && call.Status != outOfResources {
					r.t.Errorf("it was answered: %+v", call)
				}
			}
		},
		"while a reply is half there": func(r *rig) {
			answer := r.ask(&clwire.Query{})
			_ = r.w().link.Send(&clwire.Reply{Data: []byte("half")}, clwire.FlagMore|clwire.FlagUrgent,
				r.w().expect(clwire.TypeQuery).Request)
			r.w().link.Shutdown()
			if call := <-answer; call != nil && (call.Status != outOfResources || call.Data != nil) {
				r.t.Errorf("it was answered: %+v", call)
			}
		},
		"while the ring is full": func(r *rig) {
			r.w().stop.Store(true)
			<-r.w().ended
			for r.c.Send(&clwire.Blob{Data: make([]byte, 50<<10)}, 0, 0) == nil {
			}
		},
		"while memory is shown": func(r *rig) {
			r.w().link.Shutdown()
			f := memfd(r.t, 4096)
			defer f.Close()
			for i := uint64(1); r.c.AddSegment(i, f, 4096) == nil; i++ {
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := open(t)
			prompt := r.c.ReadPromptly()
			defer prompt()
			step(r)
			r.w().link.Shutdown()
			r.lost()
			r.gone()
		})
	}
}

// What a worker said before its end is heard.
func TestLastWords(t *testing.T) {
	r := open(t)
	answer := r.ask(&clwire.Query{})
	request := r.w().expect(clwire.TypeQuery).Request
	_ = r.w().link.Send(&clwire.Print{Data: []byte("goodbye")}, 0, 0)
	_ = r.w().link.Send(&clwire.Reply{Data: []byte("well")}, 0, request)
	r.w().link.Shutdown()
	if call := <-answer; call == nil || string(call.Data) != "well" {
		t.Errorf("answer %+v", call)
	}
	r.lost()
	if !r.said("print goodbye") {
		t.Error("the last words were not heard")
	}
}

// An end by this side is no fault, and happens once.
func TestClose(t *testing.T) {
	r := open(t)
	if r.c.ID() != 7 || r.c.Remote() || r.c.TraceNumber() != 0 || !r.c.Packs() {
		t.Error("the worker is another one")
	}
	r.c.MemoryWritten()
	r.c.Close()
	r.c.Close()
	if !r.said("lost, by this side: true") {
		t.Errorf("the Sink heard %q", r.sink.all())
	}
}

// A daemon that knows no end, or that the worker lives, says nothing of it.
func TestExitIsUnknown(t *testing.T) {
	r := open(t)
	r.daemon.fate = func() (bool, string, error) { return false, "text", errTest }
	if how, _ := r.c.Exit(nil); how != "" {
		t.Errorf("it ended: %q", how)
	}
	r.daemon.fate = func() (bool, string, error) { return true, "text", nil }
	if how, _ := r.c.Exit(nil); how != "" {
		t.Errorf("it ended: %q", how)
	}
}

// A worker whose socket ends long before its process does: the daemon is asked again.
func TestExitTakesItsTime(t *testing.T) {
	r := open(t)
	asked := 0
	r.daemon.fate = func() (bool, string, error) { asked++; return asked < 3, "killed late", nil }
	if how, _ := r.c.Exit(nil); how != "killed late" {
		t.Errorf("it ended: %q after %d questions", how, asked)
	}
}
