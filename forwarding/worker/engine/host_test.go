package engine

import "testing"

// readySink hears whose turn has come, under the engine's lock.
type readySink struct {
	deafSink
	ready []uint64
}

func (s *readySink) HostReady(op uint64, _ int32) { s.ready = append(s.ready, op) }

// TestHostOperationsWakeNobody: whoever enqueues a host operation, or ends what it waits for, finds its turn come. No
// submitter is woken for it.
func TestHostOperationsWakeNobody(t *testing.T) {
	for _, outOfOrder := range []bool{false, true} {
		d, sink := &handDriver{ended: map[Native]bool{}}, &readySink{}
		e := New(d, sink, Options{Submitters: true})
		if err := e.AddQueue(1, 1, outOfOrder, 0, func() {}); err != nil {
			t.Fatal(err)
		}
		q := e.queues[1]
		host := func(op uint64, wait ...uint64) {
			t.Helper()
			if err := e.Enqueue(&Command{Kind: KindHost, Queue: 1, Op: op, Event: 100 + op, Wait: wait}); err != nil {
				t.Fatal(err)
			}
		}
		came := func(what string, want int) {
			t.Helper()
			e.mu.Lock()
			defer e.mu.Unlock()
			if len(sink.ready) != want || len(q.submitter) > 0 {
				t.Errorf("out of order %v, %s: %d turns have come, want %d; %d calls of a submitter", outOfOrder, what,
					len(sink.ready), want, len(q.submitter))
			}
		}
		host(1)
		came("of an idle queue", 1)
		e.HostDone(1, 0)
		d.put(t, e, Command{Event: 50})
		host(2, 50)
		came("behind a command that runs", 1)
		d.endAll()
		e.Poll()
		came("behind its end", 2)
		if err := e.UserEvent(60); err != nil {
			t.Fatal(err)
		}
		e.HostDone(2, 0)
		host(3, 60)
		came("behind a user event", 2)
		if err := e.SetUserEvent(60, 0); err != nil {
			t.Fatal(err)
		}
		came("once it is set", 3)
		e.HostDone(3, 0)
		e.Close()
	}
}

// TestAMarkerIsFlushed: what a wait or a host operation waits for is started, also where what comes before it was
// flushed already.
func TestAMarkerIsFlushed(t *testing.T) {
	d := &flushedDriver{handDriver: handDriver{ended: map[Native]bool{}}}
	e := New(d, &deafSink{}, Options{Submitters: true})
	defer e.Close()
	if err := e.AddQueue(1, 1, false, 0, func() {}); err != nil {
		t.Fatal(err)
	}
	d.put(t, e, Command{})
	if e.Tick(); d.flushes != 1 {
		t.Fatalf("%d flushes of a command", d.flushes)
	}
	if err := e.Finish(1, 7); err != nil {
		t.Fatal(err)
	}
	if e.Poll(); d.flushes != 2 {
		t.Errorf("%d flushes behind a marker, want 2", d.flushes)
	}
	d.endAll()
	e.Poll()
}

type flushedDriver struct {
	handDriver
	flushes int
}

func (d *flushedDriver) Flush(Native) { d.flushes++ }
