package engine

import (
	"testing"
	"time"
)

// runningDriver says of one of its commands that it runs.
type runningDriver struct {
	handDriver
	running Native
}

func (d *runningDriver) Statuses(events []Native, status []int32) {
	d.handDriver.Statuses(events, status)
	for i, e := range events {
		if e == d.running && !d.ended[e] {
			status[i] = Running
		}
	}
}

// TestLongestSeesWhatNobodyAsksFor: commands without events, in order and out of it; the clock of each begins when it
// is first seen to run.
func TestLongestSeesWhatNobodyAsksFor(t *testing.T) {
	d := &runningDriver{handDriver: handDriver{ended: map[Native]bool{}}}
	var log []string
	e := New(d, &quietSink{}, Options{})
	defer e.Close()
	e.FollowAll()
	for id, outOfOrder := range map[uint64]bool{1: false, 2: true} {
		if err := e.AddQueue(id, Native(id), outOfOrder, 0, func() {}); err != nil {
			t.Fatal(err)
		}
	}
	for _, queue := range []uint64{1, 1, 2, 2} { // native events 1 to 4
		if err := e.Enqueue(&Command{Kind: KindTask, Queue: queue,
			Task: &plainTask{&quickTask{&d.handDriver, "k", &log}}}); err != nil {
			t.Fatal(err)
		}
	}
	at := time.Unix(1000, 0)
	step := func(running Native, seconds int) time.Duration {
		d.running = running
		at = at.Add(time.Duration(seconds) * time.Second)
		return e.Longest(at)
	}
	for i, c := range []struct {
		running Native
		seconds int
		want    time.Duration
	}{{0, 1, 0}, {1, 5, 0}, {1, 3, 3 * time.Second}, {1, 1, 4 * time.Second}, {4, 9, 0}, {4, 2, 2 * time.Second}} {
		if got := step(c.running, c.seconds); got != c.want {
			t.Errorf("look %d: %v, want %v", i, got, c.want)
		}
	}
	d.ended[1] = true
	e.Tick()
	if got := step(2, 7); got != 0 {
		t.Errorf("a command that has only begun has run for %v", got)
	}
	d.endAll()
	e.Tick()
	if got := step(2, 7); got != 0 {
		t.Errorf("nothing runs, for %v", got)
	}
}

// plainTask is a quickTask that is the driver's.
type plainTask struct{ t *quickTask }

func (p *plainTask) Submit(q Native, w []Native, want bool) (Native, int32, string) {
	return p.t.Submit(q, w, want)
}
func (p *plainTask) Keep() Task            { return p }
func (p *plainTask) Drop()                 {}
func (p *plainTask) Finished() func(int32) { return nil }

type quietSink struct{}

func (*quietSink) Events([]End, bool)                  {}
func (*quietSink) Reply(uint64, int32)                 {}
func (*quietSink) HostReady(uint64, int32)             {}
func (*quietSink) Fault(uint64, uint64, int32, string) {}
