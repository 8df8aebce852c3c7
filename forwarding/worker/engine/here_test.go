package engine

import (
	"slices"
	"testing"
)

// TestBriefWaitIsInTheDriver: a wait that is foreseen to be short is one call of the driver, without an event, a marker
// or a question; where somebody else waits, or the end is not near, it is a marker that is asked about.
func TestBriefWaitIsInTheDriver(t *testing.T) {
	brief := true
	d := &handDriver{ended: map[Native]bool{}}
	var log []string
	e := New(d, heard{&log}, Options{Submitters: true, Brief: func() bool { return brief }})
	for queue := range uint64(2) {
		if err := e.AddQueue(queue+1, Native(queue+1), false, 0, func() {}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(e.Close)
	finish := func(request uint64, finished, events int, want ...string) {
		t.Helper()
		log, d.finished, d.next, d.asked = nil, 0, 0, 0
		d.put(t, e, Command{})
		d.put(t, e, Command{})
		if err := e.Finish(1, request); err != nil {
			t.Fatal(err)
		}
		if d.finished != finished || int(d.next) != events || !slices.Equal(log, want) {
			t.Errorf("request %d: %d waits, %d events, heard %q; expected %d, %d, %q", request, d.finished, d.next, log,
				finished, events, want)
		}
		d.endAll()
		e.Poll()
		clear(d.ended)
	}
	finish(7, 1, 0, "reply 7: 0")
	d.failure = -5
	finish(8, 1, 0, "reply 8: -5")
	d.failure = 0
	brief = false
	finish(9, 0, 1)
	brief = true
	finish(10, 1, 0, "reply 10: 0")
	log = nil
	if err := e.Finish(1, 11); err != nil || d.finished != 1 || !slices.Equal(log, []string{"reply 11: 0"}) {
		t.Errorf("a finish of nothing: %v, %d waits, heard %q", err, d.finished, log)
	}
	// Another thread waits for its queue, and must hear of its end at once.
	if err := e.Enqueue(&Command{Kind: KindTask, Queue: 2, Event: 40, Quick: true, Task: slowTask{d}}); err != nil {
		t.Fatal(err)
	}
	if err := e.Wait([]uint64{40}, 12); err != nil {
		t.Fatal(err)
	}
	d.put(t, e, Command{})
	if err := e.Finish(1, 13); err != nil || d.finished != 1 {
		t.Errorf("%v: %d waits in the driver beside another's", err, d.finished)
	}
}
