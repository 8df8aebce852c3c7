package engine

import (
	"fmt"
	"slices"
	"testing"
)

// handDriver ends its commands when the test says so.
type handDriver struct {
	next  Native
	asked int // events whose status was asked for
	ended map[Native]bool

	markers, flushed, released int
	finished                   int
	fails                      int32  // what a finish says
	within                     func() // nil, or what comes while a finish blocks
}

func (d *handDriver) submit(want bool) Native {
	if !want {
		return 0
	}
	d.next++
	return d.next
}

func (d *handDriver) Marker(_ Native, _ bool, _ []Native, want bool) (Native, int32) {
	d.markers++
	return d.submit(want), 0
}
func (d *handDriver) Flush(Native) { d.flushed++ }
func (d *handDriver) Wait(Native)  {}
func (d *handDriver) Finish(Native) int32 {
	d.finished++
	d.endAll()
	if d.within != nil {
		d.within()
	}
	return d.fails
}
func (d *handDriver) Statuses(events []Native, status []int32) {
	d.asked += len(events)
	for i, e := range events {
		if status[i] = Submitted; d.ended[e] {
			status[i] = 0
		}
	}
}
func (d *handDriver) Profile(Native) (t [5]uint64, ok bool) { return t, false }
func (d *handDriver) Release(events []Native)               { d.released += len(events) }

func (d *handDriver) endAll() {
	for e := range d.next {
		d.ended[e+1] = true
	}
}

// quickTask can be done at once.
type quickTask struct {
	d    *handDriver
	name string
	log  *[]string
}

func (t *quickTask) say(what string) { *t.log = append(*t.log, what+" "+t.name) }
func (t *quickTask) Submit(_ Native, _ []Native, want bool) (Native, int32, string) {
	t.say("driver")
	return t.d.submit(want), 0, ""
}
func (t *quickTask) Now() bool             { t.say("now"); return true }
func (t *quickTask) Keep() Task            { return t }
func (t *quickTask) Drop()                 { t.say("drop") }
func (t *quickTask) Finished() func(int32) { return nil }

type heard struct{ log *[]string }

func (h heard) Events(ends []End, _ bool) {
	for _, e := range ends {
		*h.log = append(*h.log, fmt.Sprintf("event %d: %d", e.Event, e.Status))
	}
}
func (h heard) Reply(request uint64, status int32) {
	*h.log = append(*h.log, fmt.Sprintf("reply %d: %d", request, status))
}
func (h heard) HostReady(uint64, int32)             {}
func (h heard) Fault(uint64, uint64, int32, string) {}

// A prompt command is done without the driver where nothing before it is under way, and nowhere else.
func TestPrompt(t *testing.T) {
	for _, c := range []struct {
		name       string
		outOfOrder bool
		clock      Native
		want       []string
	}{
		{name: "in order", want: []string{
			"now a", "drop a", "event 1: 0", // nothing before it
			"reply 9: 0",         // nor to wait for
			"driver b", "drop b", // gated by an event: the driver's, after it
			"driver c", "drop c", // behind b
			"event 3: 0", "event 4: 0", "reply 10: 0", // the driver has ended them
			"now d", "drop d", // nothing before it any more
		}},
		{name: "out of order", outOfOrder: true},
		{name: "profiling", clock: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &handDriver{ended: map[Native]bool{}}
			var log []string
			e := New(d, heard{&log}, Options{})
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(e.AddQueue(1, 1, c.outOfOrder, c.clock, func() {}))
			put := func(name string, event uint64, wait ...uint64) {
				t.Helper()
				must(e.Enqueue(&Command{Kind: KindTask, Queue: 1, Event: event, Wait: wait,
					Task: &quickTask{d, name, &log}}))
			}
			put("a", 1)
			e.Poll()
			if c.want == nil {
				if slices.Contains(log, "now a") {
					t.Errorf("done without the driver: %q", log)
				}
				d.endAll()
				e.Poll()
				e.Close()
				return
			}
			must(e.Finish(1, 9))
			must(e.UserEvent(2))
			put("b", 3, 2)
			must(e.SetUserEvent(2, 0))
			put("c", 4)
			must(e.Finish(1, 10))
			d.endAll()
			e.Poll()
			put("d", 0)
			e.Close()
			if !slices.Equal(log, c.want) {
				t.Errorf("got %q,\nwant %q", log, c.want)
			}
		})
	}
}
