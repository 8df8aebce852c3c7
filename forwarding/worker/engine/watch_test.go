package engine

import (
	"slices"
	"testing"
)

// bells is a Sink that notes how reports of ends are sent.
type bells struct {
	quietSink
	urgent []bool
	ends   []int
}

func (b *bells) Events(ends []End, urgent bool) {
	b.urgent, b.ends = append(b.urgent, urgent), append(b.ends, len(ends))
}

// A client is not woken for the end of an event that nobody waits for. Who watches it afterwards is rung for what lies
// there.
func TestWatchOfAnEndedEvent(t *testing.T) {
	d := &handDriver{ended: map[Native]bool{}}
	var log []string
	b := &bells{}
	e := New(d, b, Options{})
	defer e.Close()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(e.AddQueue(1, 1, false, 0, func() {}))
	must(e.Enqueue(&Command{Kind: KindTask, Queue: 1, Event: 7, Task: &plainTask{&quickTask{d, "a", &log}}}))
	d.endAll()
	e.Tick()
	if !slices.Equal(b.urgent, []bool{false}) || b.ends[0] != 1 {
		t.Fatalf("an end that nobody waits for: %v of %v ends", b.urgent, b.ends)
	}
	must(e.Watch(7, Complete))
	if !slices.Equal(b.urgent, []bool{false, true}) {
		t.Errorf("who watched it afterwards was told %v of %v ends: not woken", b.urgent, b.ends)
	}
}

// Who watches for a submission hears of an end without one.
func TestWatchOfWhatIsNeverSubmitted(t *testing.T) {
	d := &handDriver{ended: map[Native]bool{}}
	var log []string
	b := &bells{}
	e := New(d, b, Options{})
	defer e.Close()
	for _, err := range []error{
		e.AddQueue(1, 1, false, 0, func() {}),
		e.UserEvent(5),
		e.Enqueue(&Command{Kind: KindTask, Queue: 1, Event: 7, Wait: []uint64{5},
			Task: &plainTask{&quickTask{d, "a", &log}}}),
		e.Watch(7, Submitted),
		e.SetUserEvent(5, -7),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(b.urgent, []bool{true}) || b.ends[0] != 1 {
		t.Errorf("its end was told by %v of %v ends: not woken", b.urgent, b.ends)
	}
}
