package engine

import "testing"

// gathering is a Sink as a stream's is: what is not urgent stays until something urgent, or Reported, sends it.
// HostReady may send nothing.
type gathering struct{ kept, sent int }

func (g *gathering) Events(ends []End, urgent bool) {
	if g.kept += len(ends); urgent {
		g.send()
	}
}
func (g *gathering) Reply(uint64, int32)                 { g.send() }
func (g *gathering) HostReady(uint64, int32)             {}
func (g *gathering) Fault(uint64, uint64, int32, string) { g.send() }
func (g *gathering) send()                               { g.sent += g.kept; g.kept = 0 }

// Whatever the engine says, nothing of it is left lying at the end of a call.
func TestReportsAreSent(t *testing.T) {
	d, g, log := &handDriver{ended: map[Native]bool{}}, &gathering{}, []string(nil)
	e := New(d, g, Options{Reported: g.send})
	defer e.Close()
	step := func(what string, sent int, err error) {
		t.Helper()
		if err != nil || g.kept != 0 || g.sent != sent {
			t.Fatalf("%s: %d ends sent, want %d, and %d lie; %v", what, g.sent, sent, g.kept, err)
		}
	}
	enqueue := func(event uint64, kind Kind) error {
		return e.Enqueue(&Command{Kind: kind, Queue: 1, Event: event, Op: event, Task: &quickTask{d, "t", &log}})
	}
	step("queue", 0, e.AddQueue(1, 1, true, 0, func() {}))
	step("task", 0, enqueue(2, KindTask))
	d.endAll()
	e.Tick()
	step("Tick", 1, nil)
	step("task", 1, enqueue(3, KindTask))
	d.endAll()
	e.Look()
	step("Look", 2, nil)
	step("task", 2, enqueue(4, KindTask))
	d.endAll()
	e.Park()
	e.Unpark()
	step("Park", 3, nil)
	step("task", 3, enqueue(5, KindTask))
	step("Wait", 3, e.Wait([]uint64{5}, 100))
	d.endAll()
	e.Poll()
	step("answer", 4, nil)
	step("task", 4, enqueue(6, KindTask))
	d.endAll()
	step("host operation behind what has ended unseen", 5,
		e.Enqueue(&Command{Kind: KindHost, Queue: 1, Event: 7, Op: 7}))
}
