package engine

import "testing"

// slowTask is the driver's.
type slowTask struct{ d *handDriver }

func (t slowTask) Submit(_ Native, _ []Native, want bool) (Native, int32, string) {
	return t.d.submit(want), 0, ""
}
func (t slowTask) Keep() Task            { return t }
func (t slowTask) Drop()                 {}
func (t slowTask) Finished() func(int32) { return nil }

func newAsked(t *testing.T, outOfOrder bool, o Options) (*Engine, *handDriver) {
	var log []string
	return newHeard(t, &log, outOfOrder, o)
}

// newHeard is newAsked with a log of what is reported.
func newHeard(t *testing.T, log *[]string, outOfOrder bool, o Options) (*Engine, *handDriver) {
	d := &handDriver{ended: map[Native]bool{}}
	e := New(d, heard{log}, o)
	if err := e.AddQueue(1, 1, outOfOrder, 0, func() {}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e, d
}

func (d *handDriver) put(t *testing.T, e *Engine, c Command) {
	t.Helper()
	c.Kind, c.Queue, c.Quick, c.Task = KindTask, 1, true, slowTask{d}
	if err := e.Enqueue(&c); err != nil {
		t.Fatal(err)
	}
}

// TestChainIsAskedAtItsHead: of commands that wait for each other the driver is asked about the first alone, while that
// runs. How far they have come is found in few questions, and what they wait for is not asked about at all.
func TestChainIsAskedAtItsHead(t *testing.T) {
	e, d := newAsked(t, true, Options{})
	const length = 200
	for i := range uint64(length) {
		c := Command{Event: i + 1}
		if i > 0 {
			c.Wait = []uint64{i}
		}
		d.put(t, e, c)
	}
	d.asked = 0
	if e.Tick(); d.asked != 1 {
		t.Errorf("%d questions while the first runs", d.asked)
	}
	for i := range Native(length / 2) {
		d.ended[i+1] = true
	}
	d.asked = 0
	if e.Tick(); d.asked > 11 {
		t.Errorf("%d questions when half of them have ended", d.asked)
	}
	if n := len(e.queues[1].live); n != length/2 {
		t.Errorf("%d of them have not ended", n)
	}
	d.endAll()
	d.asked = 0
	if e.Tick(); d.asked > 2 {
		t.Errorf("%d questions when all have ended", d.asked)
	}
	if n := len(e.queues[1].live); n != 0 {
		t.Errorf("%d of them have not ended", n)
	}
}

// TestBurstHasFewEvents: of commands that follow each other at once, a driver behind submitters makes few events: as
// many as it takes to know that it has room.
func TestBurstHasFewEvents(t *testing.T) {
	for _, outOfOrder := range []bool{false, true} {
		e, d := newAsked(t, outOfOrder, Options{Submitters: true})
		const count = 10 * quickRoom
		for i := range count {
			d.put(t, e, Command{})
			if i%markEvery == 0 && !outOfOrder {
				d.endAll()
				e.Tick()
			}
			if q := e.queues[1]; outOfOrder && q.underWay() == quickRoom {
				break // who does not ask for events has to wait for all
			} else if len(q.held) > 0 {
				t.Fatalf("command %d is held: %d are under way", i, q.underWay())
			}
		}
		if err := e.Finish(1, 7); err != nil {
			t.Fatal(err)
		}
		if n := int(d.next); n > count/markEvery+1 {
			t.Errorf("%d events", n)
		}
		d.asked = 0
		if e.Poll(); d.asked != 1 {
			t.Errorf("%d questions a look", d.asked)
		}
		d.endAll()
		if e.Poll() {
			t.Error("somebody still waits")
		}
		if n := e.queues[1].underWay(); n != 0 {
			t.Errorf("%d commands are under way behind a finish", n)
		}
	}
}

// TestFollowedCommandsMakeRoom: a queue without order has room again once what was followed has ended.
func TestFollowedCommandsMakeRoom(t *testing.T) {
	e, d := newAsked(t, true, Options{Submitters: true})
	for i := range uint64(10 * quickRoom) {
		d.put(t, e, Command{Event: i + 1})
		if n := len(e.queues[1].held); n > 0 {
			t.Fatalf("command %d is held", i)
		}
		if i%markEvery == 0 {
			d.endAll()
			e.Tick()
		}
	}
}

// TestTwoChainsEnd: chains side by side, of which one has come further, end as far as they have come.
func TestTwoChainsEnd(t *testing.T) {
	e, d := newAsked(t, true, Options{})
	const length = 64
	for i := range uint64(2 * length) {
		c := Command{Event: i + 1}
		if i > 1 {
			c.Wait = []uint64{i - 1}
		}
		d.put(t, e, c)
	}
	for _, ends := range [][2]int{{0, 3}, {40, 5}, {41, 64}, {64, 64}} {
		for i := range Native(2 * length) {
			d.ended[i+1] = int(i/2) < ends[i%2]
		}
		e.Tick()
		for i := range uint64(2 * length) {
			if got, want := e.events.Get(i+1).state == stateDone, int(i/2) < ends[i%2]; got != want {
				t.Fatalf("%v: command %d of chain %d has ended: %v", ends, i/2, i%2, got)
			}
		}
	}
}

// TestAFamiliarFinishNeedsNoMarker: where as many commands come before each finish, the last of them has the event that
// the finish waits for. Another number is found out at its end.
func TestAFamiliarFinishNeedsNoMarker(t *testing.T) {
	const usual = 4
	e, d := newAsked(t, false, Options{Submitters: true})
	burst := func(n int) (markers int) {
		d.markers, d.flushed = 0, 0
		for range n {
			d.put(t, e, Command{})
		}
		early := d.flushed
		if err := e.Finish(1, 7); err != nil {
			t.Fatal(err)
		}
		if !e.Poll() {
			t.Errorf("a finish behind %d commands does not wait", n)
		}
		d.endAll()
		if e.Poll() {
			t.Errorf("a finish behind %d commands still waits", n)
		}
		if d.markers == 0 && (early != 1 || d.flushed != 1) {
			t.Errorf("%d flushes before the finish behind %d commands, %d in all", early, n, d.flushed)
		}
		return d.markers
	}
	for _, n := range []int{1, usual} {
		for i := range surelySame + 2 {
			if got, want := burst(n), min(1, max(0, surelySame-i)); got != want {
				t.Errorf("finish %d behind %d commands: %d markers, want %d", i, n, got, want)
			}
		}
	}
	for _, n := range []int{6, 3} {
		if got := burst(n); got != 1 {
			t.Errorf("a finish behind %d commands, where %d were usual: %d markers", n, usual, got)
		}
	}
	e.Poll()
	if d.released != int(d.next) {
		t.Errorf("%d of %d events were released", d.released, d.next)
	}
}

// toldTask is a slowTask whose end is told.
type toldTask struct {
	slowTask
	told func(int32)
}

func (t toldTask) Keep() Task            { return t }
func (t toldTask) Finished() func(int32) { return t.told }

// TestAChainIsTakenOutOnce: a command that waited for the last of a chain on another queue ends all of it. What has
// ended is taken out of that queue once, and not behind each command: all that is live is gone through for it.
func TestAChainIsTakenOutOnce(t *testing.T) {
	e, d := newAsked(t, false, Options{})
	if err := e.AddQueue(2, 2, true, 0, func() {}); err != nil {
		t.Fatal(err)
	}
	const length = 50
	ends, alone := 0, 0
	told := func(int32) {
		if ends++; !e.queues[2].sweeping {
			alone++
		}
	}
	for i := range uint64(length + 1) {
		c := Command{Kind: KindTask, Queue: 2, Event: i + 1, Task: toldTask{slowTask{d}, told}}
		if i > 0 {
			c.Wait = []uint64{i}
		}
		if i == length {
			c.Queue, c.Task = 1, slowTask{d}
		}
		if err := e.Enqueue(&c); err != nil {
			t.Fatal(err)
		}
	}
	d.endAll()
	e.Tick()
	if ends != length || alone != 0 || len(e.queues[2].live) != 0 {
		t.Errorf("%d of %d have ended, %d of them by themselves; %d are live", ends, length, alone, len(e.queues[2].live))
	}
}
