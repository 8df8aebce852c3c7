package conn

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"tendril/forwarding/clwire"
	"tendril/forwarding/trace"
	"tendril/tools/e2e/await"
)

// Replies come in any order, in pieces, between others' and for requests that nobody waits for any more: each caller
// gets its own.
func TestRepliesOutOfOrder(t *testing.T) {
	r := open(t)
	w := r.w()
	const n = 20
	answers := make([]chan *Call, n)
	requests := make([]record, n)
	for i := range answers {
		answers[i] = r.ask(&clwire.Query{Object: uint64(i)})
		requests[i] = w.expect(clwire.TypeQuery)
	}
	w.reply(1<<40, success, []byte("for nobody"))
	part := func(i int, flags uint16) {
		_ = w.link.Send(&clwire.Reply{Status: int32(-i), Data: fmt.Appendf(nil, "part of %d, ", i)}, flags,
			requests[i].Request)
	}
	for i := range requests {
		part(i, clwire.FlagMore)
	}
	for _, i := range []int{7, 3, 19, 0} {
		part(i, clwire.FlagMore)
	}
	for i := n - 1; i >= 0; i-- {
		part(i, clwire.FlagUrgent)
	}
	for i, answer := range answers {
		parts := 2
		if i == 7 || i == 3 || i == 19 || i == 0 {
			parts = 3
		}
		call := <-answer
		want := bytes.Repeat(fmt.Appendf(nil, "part of %d, ", i), parts)
		if call == nil || call.Status != int32(-i) || !bytes.Equal(call.Data, want) {
			t.Errorf("request %d: %+v", i, call)
		}
	}
}

// A request that is forgotten gets no answer, and one with a function runs it once, whoever reads.
func TestBegin(t *testing.T) {
	r := open(t)
	w := r.w()
	called := make(chan int32, 2)
	_, request := r.c.Begin(func(c *Call) { called <- c.Status })
	forgotten, other := r.c.Begin(nil)
	for _, id := range []uint64{request, other} {
		if err := r.c.Send(&clwire.Finish{}, clwire.FlagUrgent, id); err != nil {
			t.Fatal(err)
		}
	}
	r.c.Forget(other)
	for range 2 {
		w.reply(w.expect(clwire.TypeFinish).Request, -7, nil)
	}
	if status := <-called; status != -7 {
		t.Errorf("the function was given %d", status)
	}
	r.quiet()
	if forgotten.Done() {
		t.Error("a forgotten request was answered")
	}
}

// quiet returns when all that the worker has said so far was taken.
func (r *rig) quiet() {
	r.t.Helper()
	done := make(chan struct{})
	go func() { r.c.WaitForNone(); close(done) }()
	r.w().reply(r.w().expect(clwire.TypeWait).Request, success, nil)
	<-done
}

func TestWaitEvents(t *testing.T) {
	r := open(t)
	w := r.w()
	ids := make([]uint64, 2*clwire.MaxWait+1)
	for i := range ids {
		ids[i] = uint64(i + 1)
	}
	for name, last := range map[string]int32{"all well": success, "one failed": -14} {
		status := make(chan int32, 1)
		go func() { status <- r.c.WaitEvents(trace.CauseWait, ids...) }()
		var asked []uint64
		for i := range 3 {
			x := w.expect(clwire.TypeWait)
			var m clwire.Wait
			if err := m.Decode(x.payload); err != nil {
				t.Fatal(err)
			}
			asked = append(asked, m.Events...)
			answer := success
			if i == 2 {
				answer = last
			}
			w.reply(x.Request, answer, nil)
		}
		if got := <-status; got != last || !slices.Equal(asked, ids) {
			t.Errorf("%s: status %d of %d events", name, got, len(asked))
		}
	}
	if got := trace.Total(r.c.opt.Counters.Counts()); got != 1+1+6 {
		t.Errorf("%d round trips were counted, want 8", got) // the worker's start, Hello and these
	}
}

func TestSendBlob(t *testing.T) {
	r := open(t)
	w := r.w()
	for name, parts := range map[string][][]byte{
		"nothing": nil, "an empty part": {{}}, "one": {pattern(3, 1)}, "a piece": {pattern(blobPiece, 2)},
		"several of many pieces": {pattern(blobPiece+1, 3), {}, pattern(3*blobPiece, 4), pattern(5, 5)},
	} {
		if err := r.c.SendBlob(9, parts...); err != nil {
			t.Fatal(err)
		}
		want, got := bytes.Join(parts, nil), []byte(nil)
		for first := true; first || len(got) < len(want); first = false {
			var m clwire.Blob
			if err := m.Decode(w.expect(clwire.TypeBlob).payload); err != nil {
				t.Fatal(err)
			}
			if m.ID != 9 || m.Offset != uint64(len(got)) || m.Total != uint64(len(want)) {
				t.Errorf("%s: a piece at %d of %d, number %d", name, m.Offset, m.Total, m.ID)
			}
			got = append(got, m.Data...)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: other bytes", name)
		}
	}
	w.nothing()
}

// What one side of a gate opens the other takes once.
func TestGates(t *testing.T) {
	r := open(t)
	w := r.w()
	opened := make(chan struct{})
	gate, taken := &Gate{}, &Gate{Then: func() { t.Error("a gate opened that was taken") }}
	then := &Gate{Then: func() { close(opened) }}
	r.c.AddGate(5, gate)
	r.c.AddGate(6, taken)
	r.c.AddGate(8, then)
	if r.c.TakeGate(6) != taken || r.c.TakeGate(6) != nil {
		t.Error("a gate is not taken once")
	}
	for _, id := range []uint64{6, 8, 5, 99} {
		w.send(&clwire.HostReady{Op: id, Status: -14})
	}
	if !r.c.Wait(&gate.Completion) || gate.Status != -14 {
		t.Errorf("the gate opened with %d", gate.Status)
	}
	<-opened
	if r.c.TakeGate(5) != nil {
		t.Error("an open gate is still there")
	}
}

// The Sink hears in the order in which the worker spoke, by whoever reads.
func TestSinkIsToldInOrder(t *testing.T) {
	r := open(t)
	r.sink.knows(func(event uint64) bool { return event != 2 })
	w := r.w()
	w.send(&clwire.Events{Ends: []clwire.EventEnd{{Event: 1, Status: 1}, {Event: 2}, {Event: 1, Status: -5}}})
	w.send(&clwire.Fault{Queue: 3, Status: -6, Text: "it broke"})
	w.send(&clwire.PeerState{Link: 4, Up: true})
	w.send(&clwire.BulkLength{Op: 5, Bytes: 10})
	w.send(&clwire.Print{Data: []byte("hello")})
	r.quiet()
	want := []string{"event 1: 1", "event 2: 0", "event 1: -5", "fault of queue 3: -6 it broke", "link 4 up: true",
		"pushed 5: 10", "print hello"}
	if got := r.sink.all(); !slices.Equal(got, want) {
		t.Errorf("the Sink heard %q", got)
	}
}

// Many threads wait at once while others only look: one sleeps on the socket, all hear of their own.
func TestManyWaitersAndPollers(t *testing.T) {
	r := open(t)
	w := r.w()
	const threads, rounds = 8, 50
	var asking sync.WaitGroup
	stop := make(chan struct{})
	for range threads {
		asking.Go(func() {
			for i := range rounds {
				call, err := r.c.Ask(&clwire.Query{Object: uint64(i)})
				if err != nil || len(call.Data) != 1 || call.Data[0] != byte(i) {
					t.Errorf("answer %+v, %v", call, err)
				}
			}
		})
	}
	var looking sync.WaitGroup
	looking.Go(func() {
		prompt := r.c.ReadPromptly()
		defer prompt()
		for {
			select {
			case <-stop:
				return
			default:
				r.c.Poll()
			}
		}
	})
	for range threads * rounds {
		x := w.expect(clwire.TypeQuery)
		var m clwire.Query
		if err := m.Decode(x.payload); err != nil {
			t.Fatal(err)
		}
		w.reply(x.Request, success, []byte{byte(m.Object)})
	}
	asking.Wait()
	close(stop)
	looking.Wait()
}

// Who waits for what the worker tells at its leisure hears of a record that is not urgent.
func TestWaitUnhurried(t *testing.T) {
	r := open(t)
	w := r.w()
	gate := &Gate{}
	r.c.AddGate(5, gate)
	done := make(chan bool, 1)
	go func() { done <- r.c.WaitUnhurried(&gate.Completion) }()
	await.Until(t, "somebody who waits",
		func() bool { return r.c.reader.unhurried.Load() == 1 && r.c.reader.sleeping.Load() })
	if err := w.link.Send(&clwire.HostReady{Op: 5}, 0, 0); err != nil {
		t.Fatal(err)
	}
	if !<-done {
		t.Error("the worker died")
	}
	if !r.c.WaitUnhurried(&gate.Completion) {
		t.Error("what is done is not done")
	}
}

// Polling that was in vain twice in a row is short, and now and then tried at length.
func TestWorthwhile(t *testing.T) {
	var r reader
	long := 0
	for range 2 * tryAgainAfter {
		if r.worthwhile(800) == 800 {
			long++
		}
		r.missed.Add(1)
	}
	if long != missesAtMost+1 {
		t.Errorf("%d of %d polls were long, want %d", long, 2*tryAgainAfter, missesAtMost+1)
	}
}

// One way records that do not fit a ring are an error for their sender, and end nothing.
func TestTooLongIsNoEnd(t *testing.T) {
	r := open(t)
	if err := r.c.Send(&clwire.Blob{ID: 1, Data: make([]byte, 1<<20)}, 0, 0); err == nil {
		t.Error("a record longer than any was sent")
	}
	if r.c.Dead() {
		t.Fatal("the worker ended of it")
	}
	r.c.SendLazy(&clwire.Release{ID: 3})
	r.c.SendOneWay(&clwire.Release{ID: 4})
	r.c.Kick()
	for _, want := range []uint64{3, 4} {
		var m clwire.Release
		if err := m.Decode(r.w().expect(clwire.TypeRelease).payload); err != nil || m.ID != want {
			t.Errorf("release of %d, %v; want %d", m.ID, err, want)
		}
	}
}

var errTest = errors.New("of the test")
