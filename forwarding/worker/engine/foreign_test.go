package engine

import (
	"errors"
	"slices"
	"testing"
)

// A foreign event holds what waits for it, is reported at its end, and takes one end alone; After is told of failures.
func TestForeign(t *testing.T) {
	d := &handDriver{ended: map[Native]bool{}}
	var log []string
	e := New(d, heard{&log}, Options{})
	defer e.Close()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var after []int32
	then := func(status int32) { after = append(after, status) }
	must(e.AddQueue(1, 1, false, 0, func() {}))
	must(e.ForeignEvent(5))
	must(e.ForeignEvent(6))
	if err := e.ForeignEvent(5); !errors.Is(err, ErrTaken) {
		t.Errorf("a second foreign event 5: %v", err)
	}
	if err := e.After([]uint64{5, 99}, then); !errors.Is(err, ErrNoEvent) {
		t.Errorf("After an event that is not there: %v", err)
	}
	must(e.After(nil, then))
	must(e.After([]uint64{5, 6}, then))
	must(e.Enqueue(&Command{Kind: KindTask, Queue: 1, Event: 7, Wait: []uint64{5}, Task: &quickTask{d, "a", &log}}))
	if len(log) > 0 || !slices.Equal(after, []int32{0}) {
		t.Fatalf("nothing has ended: %q, %v", log, after)
	}
	e.SetForeign(5, 0)
	e.SetForeign(5, -7)
	must(e.SetUserEvent(5, -7)) // the other end was quicker
	e.SetForeign(6, -30)
	e.SetForeign(6, 0)
	e.SetForeign(1234, 0)
	must(e.After([]uint64{6}, then))
	e.Poll()
	e.Tick()
	if want := []int32{0, -30, -30}; !slices.Equal(after, want) {
		t.Errorf("After was told %v, want %v", after, want)
	}
	for _, want := range []string{"event 5: 0", "event 6: -30", "driver a"} {
		if !slices.Contains(log, want) {
			t.Errorf("%q is missing: %q", want, log)
		}
	}
	if slices.Contains(log, "event 5: -7") {
		t.Errorf("a second end was reported: %q", log)
	}
}
