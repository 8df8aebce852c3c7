package engine

import "testing"

// promptDriver has ended whatever it is asked about. As a task, it is each of its commands.
type promptDriver struct{ next Native }

func (d *promptDriver) event() Native                                       { d.next++; return d.next }
func (d *promptDriver) Marker(Native, bool, []Native, bool) (Native, int32) { return d.event(), 0 }
func (d *promptDriver) Flush(Native)                                        {}
func (d *promptDriver) Finish(Native) int32                                 { return 0 }
func (d *promptDriver) Statuses(_ []Native, status []int32)                 { clear(status) }
func (d *promptDriver) Wait(Native)                                         {}
func (d *promptDriver) Profile(Native) (times [5]uint64, ok bool)           { return times, false }
func (d *promptDriver) Release([]Native)                                    {}
func (d *promptDriver) Submit(_ Native, _ []Native, want bool) (Native, int32, string) {
	if want {
		return d.event(), 0, ""
	}
	return 0, 0, ""
}
func (d *promptDriver) Keep() Task            { return d }
func (d *promptDriver) Drop()                 {}
func (d *promptDriver) Finished() func(int32) { return nil }

// deafSink counts answers.
type deafSink struct{ replies int }

func (s *deafSink) Events([]End, bool)                  {}
func (s *deafSink) Reply(uint64, int32)                 { s.replies++ }
func (s *deafSink) HostReady(uint64, int32)             {}
func (s *deafSink) Fault(uint64, uint64, int32, string) {}

// TestACommandIsOneAllocation: that of its event, also where it waits for another; a finish is two.
func TestACommandIsOneAllocation(t *testing.T) {
	d, sink := &promptDriver{}, &deafSink{}
	e := New(d, sink, Options{Submitters: true})
	defer e.Close()
	for id, outOfOrder := range map[uint64]bool{1: false, 2: true} {
		if err := e.AddQueue(id, Native(id), outOfOrder, 0, func() {}); err != nil {
			t.Fatal(err)
		}
	}
	last := uint64(100)
	c := Command{Kind: KindTask, Queue: 2, Quick: true, Task: d}
	const length = 16
	chain := func() {
		for range length {
			c.Wait = c.Wait[:0]
			if e.events.Get(last) != nil {
				c.Wait = append(c.Wait, last)
			}
			last++
			c.Event = last
			if err := e.Enqueue(&c); err != nil {
				t.Fatal(err)
			}
			e.ReleaseEvent(last - 1)
		}
		e.Tick()
	}
	if n := testing.AllocsPerRun(100, chain); n > length {
		t.Errorf("%v allocations for %d commands of a chain", n, length)
	}
	plain := Command{Kind: KindTask, Queue: 1, Quick: true, Task: d}
	finish := func() {
		if err := e.Enqueue(&plain); err != nil {
			t.Fatal(err)
		}
		if err := e.Finish(1, 7); err != nil {
			t.Fatal(err)
		}
		if e.Poll() {
			t.Fatal("somebody still waits")
		}
	}
	before := sink.replies
	if n := testing.AllocsPerRun(1000, finish); n > 2 { // the marker's event, and what waits for it
		t.Errorf("%v allocations a command and a finish", n)
	}
	if n := sink.replies - before; n != 1001 {
		t.Errorf("%d answers to 1001 questions", n)
	}
}
