package journal

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tendril/forwarding/clwire"
)

func nothing(uint64, uint64) bool { return false }

// flying lists what is in flight, and how many more.
func flying(j *Journal) string {
	told := j.Look(nothing)
	var list []string
	for _, x := range told.Flying {
		list = append(list, strings.TrimSpace(x.State+" "+x.Kind+" "+x.Kernel))
	}
	if told.More > 0 {
		list = append(list, fmt.Sprint("+", told.More))
	}
	return strings.Join(list, ", ")
}

func sums(j *Journal) string {
	counts := map[string]string{}
	for _, s := range j.Look(nothing).Sums {
		counts[s.Kind+" "+s.Kernel] = fmt.Sprintf("%d/%d", s.Count, s.Failed)
	}
	return fmt.Sprint(counts)
}

func want(t *testing.T, what, got, wanted string) {
	t.Helper()
	if got != wanted {
		t.Errorf("%s: %q, want %q", what, got, wanted)
	}
}

// TestQueueInOrder: what the worker holds is queued, what the driver was given first runs, and an end ends what came
// before it.
func TestQueueInOrder(t *testing.T) {
	j := New()
	blur := j.Kernel("blur")
	if again := j.Kernel("blur"); again != blur || blur == nil {
		t.Errorf("a kernel is %v and %v", blur, again)
	}
	q := j.Queue(7, 1, true)
	launch, copying := Label{clwire.TypeNDRange, blur}, Label{Type: clwire.TypeCopy}
	j.Doing(uint32(clwire.TypeNDRange))
	first := q.Begin(launch)
	want(t, "in the call", flying(j), "giving NDRange blur")
	q.Given()
	j.Doing(uint32(clwire.TypeCopy))
	want(t, "at the next record", flying(j), "running NDRange blur")
	second := q.Begin(copying)
	want(t, "in the next call", flying(j), "running NDRange blur, giving Copy")
	q.Given()
	other := j.Queue(8, 1, true)
	n := other.Begin(copying)
	want(t, "in another queue's", flying(j), "running NDRange blur, submitted Copy, giving Copy")
	other.Given()
	other.End(n, false, 0)
	other.Drop()
	j.Doing(Polling)
	held := q.Take(launch)
	j.Tick(time.Now().Add(time.Second)) // so that what is held last is the youngest
	want(t, "given and held", flying(j), "running NDRange blur, submitted Copy, queued NDRange blur")
	q.Give(held)
	want(t, "given late", flying(j), "running NDRange blur, submitted Copy, giving NDRange blur")
	q.Given()
	q.End(second, false, 0)
	want(t, "two ended", flying(j), "running NDRange blur")
	q.End(first, false, 0) // it is known
	q.End(held, false, -5)
	want(t, "all ended", flying(j), "")
	want(t, "sums", sums(j), "map[Copy :2/0 NDRange blur:2/1]")
	last := j.Look(nothing).Last
	if len(last) != 3 || last[0].Status != -5 || last[0].Queue != 7 || last[0].Device != 1 {
		t.Errorf("ended last: %+v", last)
	}
	refused := q.Begin(copying)
	q.Given()
	q.Fail(refused, -30)
	q.Drop()
	want(t, "the sums of a queue that is gone", sums(j), "map[Copy :3/1 NDRange blur:2/1]")
}

// TestOrderOfALook: commands of one millisecond stand by their queues, and in each as they were given, at every look.
func TestOrderOfALook(t *testing.T) {
	j := New()
	var wanted, last []string
	var queues []*Queue
	for id := range uint64(5) {
		q := j.Queue(id, 0, true)
		queues = append(queues, q)
		for n := range 6 {
			q.Take(Label{Type: []clwire.Type{clwire.TypeCopy, clwire.TypeFill, clwire.TypeNDRange}[n%3]})
			wanted = append(wanted, fmt.Sprint(id, []string{" Copy", " Fill", " NDRange"}[n%3]))
		}
	}
	look := func() (flying, ended []string) {
		told := j.Look(nothing)
		for _, x := range told.Flying {
			flying = append(flying, fmt.Sprint(x.Queue, " ", x.Kind))
		}
		for _, x := range told.Last {
			ended = append(ended, fmt.Sprint(x.Queue, " ", x.Kind))
		}
		return flying, ended
	}
	for range 20 {
		flying, _ := look()
		want(t, "in flight", strings.Join(flying, ", "), strings.Join(wanted, ", "))
	}
	for id, q := range queues {
		q.End(6, false, 0)
		for n := 5; n >= 0; n-- { // the newest first
			last = append(last, fmt.Sprint(id, []string{" Copy", " Fill", " NDRange"}[n%3]))
		}
	}
	for range 20 {
		_, ended := look()
		want(t, "ended", strings.Join(ended, ", "), strings.Join(last, ", "))
	}
}

// TestQueueOutOfOrder: each ends by itself, and a marker behind all of them ends what the driver had.
func TestQueueOutOfOrder(t *testing.T) {
	j := New()
	q := j.Queue(1, 0, false)
	var numbers []uint64
	for range 3 {
		numbers = append(numbers, q.Begin(Label{Type: clwire.TypeFill}))
		q.Given()
	}
	held := q.Take(Label{Type: clwire.TypeHost})
	q.End(numbers[1], false, 0)
	want(t, "one of three", flying(j), "submitted Fill, submitted Fill, queued Host")
	q.End(numbers[2], true, 0)
	want(t, "the marker", flying(j), "queued Host")
	q.End(held, false, 0)
	want(t, "the host's", flying(j), "")
	want(t, "sums", sums(j), "map[Fill :3/0 Host :1/0]")
}

// TestWhatTheDriverSays: it is believed of queues out of order, and behind the first of one in order.
func TestWhatTheDriverSays(t *testing.T) {
	j := New()
	q := j.Queue(3, 0, false)
	for range 2 {
		q.Begin(Label{Type: clwire.TypeFill})
		q.Given()
	}
	told := j.Look(func(queue, number uint64) bool { return queue == 3 && number == 2 })
	if len(told.Flying) != 2 || told.Flying[0].State != clwire.CommandSubmitted ||
		told.Flying[1].State != clwire.CommandRunning {
		t.Errorf("%+v", told.Flying)
	}
}

// TestBounds: of more commands in flight than are noted the oldest are kept, the rest is counted; nothing grows with
// what has ended; an answer has a bound.
func TestBounds(t *testing.T) {
	j := New()
	q := j.Queue(1, 0, true)
	var last uint64
	const n = 3 * mostRing
	for i := range n {
		last = q.Begin(Label{clwire.TypeNDRange, j.Kernel(fmt.Sprint("k", i))})
		q.Given()
	}
	told := j.Look(nothing)
	if len(told.Flying) != mostFlying || told.Flying[0].Kernel != "k0" || told.More != n-mostFlying {
		t.Errorf("%d in flight, the first %+v, and %d", len(told.Flying), told.Flying[0], told.More)
	}
	q.End(last-1, false, 0)
	if told := j.Look(nothing); len(told.Flying) != 0 || told.More != 1 {
		t.Errorf("of those that were not noted: %d and %d", len(told.Flying), told.More)
	}
	q.End(last, false, 0)
	for range n {
		q.End(q.Begin(Label{clwire.TypeNDRange, j.Kernel("again")}), false, 0)
	}
	told = j.Look(nothing)
	if len(told.Flying) != 0 || told.More != 0 || len(told.Last) != mostLast || len(told.Sums) != mostSums+1 ||
		len(*q.ring.Load()) > mostRing {
		t.Errorf("%d in flight and %d, %d ended, %d sums, a ring of %d", len(told.Flying), told.More, len(told.Last),
			len(told.Sums), len(*q.ring.Load()))
	}
	total := uint64(0)
	for _, s := range told.Sums {
		total += s.Count
	}
	if total != 2*n {
		t.Errorf("%d commands in the sums, want %d", total, 2*n)
	}
	for i := range 2 * mostNames {
		j.Kernel(fmt.Sprint("n", i))
	}
	if len(j.numbers) != mostNames || len(j.kernels) != mostNames {
		t.Errorf("%d names, %d kernels", len(j.numbers), len(j.kernels))
	}
}

// TestTimesAreKeptForWhoLooks: until somebody looks commands are counted, and nothing else; then their times are kept,
// but not those from before, and not for ever.
func TestTimesAreKeptForWhoLooks(t *testing.T) {
	for _, inOrder := range []bool{true, false} {
		j := New()
		q := j.Queue(1, 0, inOrder)
		fill := Label{Type: clwire.TypeFill}
		end := func(status int32) {
			n := q.Begin(fill)
			q.Given()
			q.Look()
			q.End(n, false, status)
		}
		sum := func() string {
			told := j.Look(nothing)
			s := told.Sums[0]
			return fmt.Sprintf("%d ended, %d failed, %d timed, %d last", s.Count, s.Failed, s.Timed, len(told.Last))
		}
		end(0)
		end(-5)
		q.Done(fill)
		running := q.Begin(fill)
		q.Given()
		q.Counted()
		j.origin = j.origin.Add(-time.Hour)
		want(t, "before the first look", sum(), "3 ended, 1 failed, 0 timed, 0 last")
		q.Look()
		q.End(running, false, 0)
		end(-5)
		want(t, "after it", sum(), "5 ended, 2 failed, 2 timed, 2 last")
		if took := j.Look(nothing).Sums[0].Seconds; took > 60 {
			t.Errorf("a command from before the look took %v s since", took)
		}
		j.origin = j.origin.Add(-2 * time.Duration(keptFor))
		q.Tick()
		end(0)
		want(t, "long after it", sum(), "6 ended, 2 failed, 2 timed, 2 last")
		end(0)
		want(t, "after the next", sum(), "7 ended, 2 failed, 3 timed, 3 last")
	}
}

// TestDisorder: a queue out of order with one command that stays takes any number of others, with and without a marker
// behind them, in the room that there is.
func TestDisorder(t *testing.T) {
	j := New()
	q := j.Queue(1, 0, false)
	q.Take(Label{Type: clwire.TypeHost})
	for i := range 5 * mostRing {
		n := q.Begin(Label{Type: clwire.TypeFill})
		q.Given()
		if i%3 > 0 {
			q.End(n, i%3 == 1, 0)
		}
	}
	q.End(5*mostRing+1, true, 0)
	want(t, "all but the first", flying(j), "queued Host")
	const inItsPlace = 5 // of the ring
	want(t, "sums", sums(j), fmt.Sprintf("map[Fill :%d/0 not noted :%d/0]", 5*mostRing-inItsPlace, inItsPlace))
	if n := len(*q.ring.Load()); n != mostRing {
		t.Errorf("a ring of %d", n)
	}
}

// TestWords: an entry tells a command's number, however many came before, its label, its state and its age.
func TestWords(t *testing.T) {
	const first = 5 * time.Hour
	var e entry
	for _, n := range []uint64{1, 1<<lowBits - 1, 1 << lowBits, 1<<32 + 5, 1<<40 - 1} {
		for _, taken := range []time.Duration{0, first, 36 * time.Hour, 40 * time.Hour, 1000 * time.Hour} {
			e.put(n, whatOf(n, Label{mostTypes - 1, &Kernel{number: mostNames}}, late, int64(taken)), int64(taken))
			x, number := e.read()
			if number != n || x.kind() != mostTypes-1 || x.kernel() != mostNames || x.state() != late {
				t.Errorf("%d: %d, type %v, kernel %d, state %d", n, number, x.kind(), x.kernel(), x.state())
			}
			for _, age := range []time.Duration{-time.Minute, 0, time.Millisecond, 30 * time.Hour} {
				if got := time.Duration(x.age(int64(taken + age))); taken+age >= 0 && got != max(age, 0) {
					t.Errorf("taken at %v, %v ago: %v", taken, age, got)
				}
			}
			e.to(ended)
			if y, number := e.read(); y.state() != ended || number != n {
				t.Errorf("%d has ended: %d, state %d", n, number, y.state())
			}
		}
	}
	for _, m := range []clwire.Type{clwire.TypeNDRange, clwire.TypeBulkLength} {
		if m >= mostTypes {
			t.Errorf("type %v is %d", m, m)
		}
	}
}

// TestLookWhileOthersGoOn: who looks sees commands that were there, whatever the writer does meanwhile.
func TestLookWhileOthersGoOn(t *testing.T) {
	j := New()
	ordered, disordered, k := j.Queue(1, 0, true), j.Queue(2, 0, false), j.Kernel("k")
	var over atomic.Bool
	var writer sync.WaitGroup
	writer.Go(func() {
		defer over.Store(true)
		held := disordered.Take(Label{Type: clwire.TypeHost})
		for i := range 3 << lowBits { // until an entry's number needs its high bits
			j.Doing(uint32(clwire.TypeNDRange))
			n, m := ordered.Begin(Label{clwire.TypeNDRange, k}), disordered.Begin(Label{clwire.TypeNDRange, k})
			ordered.Given()
			disordered.Given()
			disordered.End(m, false, 0)
			if i%7 == 6 {
				j.Tick(time.Now())
				ordered.End(n, false, 0)
			}
		}
		disordered.Give(held)
		disordered.Given()
		disordered.End(held, false, 0)
		j.Doing(Polling)
	})
	for !over.Load() {
		told := j.Look(nothing)
		j.until.Store(0) // times would be kept, and slow the writer down
		if len(told.Flying) > 10 || told.More > 0 {
			t.Errorf("%d in flight and %d", len(told.Flying), told.More)
		}
		for _, x := range told.Flying {
			if is := x.Kind + " " + x.Kernel; is != "NDRange k" && (is != "Host " || x.Queue != 2) || x.Seconds > 60 {
				t.Errorf("in flight: %+v", x)
			}
		}
	}
	writer.Wait()
	ordered.End(ordered.taken, false, 0)
	if told := j.Look(nothing); len(told.Flying) != 0 || told.More != 0 || len(told.Calls) != 0 {
		t.Errorf("after the end: %+v", told)
	}
	total := uint64(0)
	for _, s := range j.Look(nothing).Sums {
		total += s.Count
	}
	if total != 6<<lowBits+1 {
		t.Errorf("%d commands in the sums", total)
	}
}

// TestEveryRunIsCounted: commands are counted before they end, but for the last ones.
func TestEveryRunIsCounted(t *testing.T) {
	j := New()
	q := j.Queue(1, 0, true)
	for range 5*mostRun + 1 {
		q.Done(Label{Type: clwire.TypeFill})
	}
	want(t, "of one kind", sums(j), fmt.Sprintf("map[Fill :%d/0]", 5*mostRun))
	q.Done(Label{Type: clwire.TypeCopy})
	want(t, "and one of another", sums(j), fmt.Sprintf("map[Fill :%d/0]", 5*mostRun+1))
	q.Counted()
	want(t, "behind a finish", sums(j), fmt.Sprintf("map[Copy :1/0 Fill :%d/0]", 5*mostRun+1))
}

// BenchmarkCommand is what a command costs that nobody looks at, or somebody: noted, and its end seen with that of a
// hundred.
func BenchmarkCommand(b *testing.B) {
	for _, watched := range []bool{false, true} {
		b.Run(fmt.Sprintf("watched=%v", watched), func(b *testing.B) {
			j := New()
			q, label := j.Queue(1, 0, true), Label{clwire.TypeNDRange, j.Kernel("k")}
			if watched {
				j.Look(nothing)
			}
			for i := range b.N {
				j.Doing(uint32(clwire.TypeNDRange))
				n := q.Begin(label)
				if q.Given(); i%100 == 99 {
					q.Look()
					q.End(n, false, 0)
				}
			}
		})
	}
}

// TestCalls: what does not come back from the driver is told, and what does come back soon is not. The clock is the
// bubble's: it stands still while the test runs.
func TestCalls(t *testing.T) { synctest.Test(t, calls) }

func calls(t *testing.T) {
	j := New()
	q := j.Queue(1, 0, true)
	done := j.Call("clBuildProgram")
	j.Doing(uint32(clwire.TypeNDRange))
	q.Begin(Label{clwire.TypeNDRange, j.Kernel("blur")})
	if calls := j.Look(nothing).Calls; len(calls) != 0 {
		t.Errorf("calls that have only begun: %+v", calls)
	}
	j.origin = j.origin.Add(-time.Minute) // a minute goes by
	var all []string
	for _, c := range j.Look(nothing).Calls {
		all = append(all, c.What)
		if c.Seconds < 59 {
			t.Errorf("%+v", c)
		}
	}
	if len(all) != 2 || !strings.Contains(strings.Join(all, ","), "enqueue NDRange blur") {
		t.Errorf("calls: %q", all)
	}
	done()
	q.Given()
	j.Doing(uint32(clwire.TypeCreateBuffer))
	if calls := j.Look(nothing).Calls; len(calls) != 1 || calls[0].What != "record CreateBuffer" {
		t.Errorf("the reader's: %+v", calls)
	}
	j.Doing(Polling)
	if calls := j.Look(nothing).Calls; len(calls) != 0 {
		t.Errorf("after all came back: %+v", calls)
	}
}

// TestNoQueue: a queue that nobody notes.
func TestNoQueue(t *testing.T) {
	var q *Queue
	q.Give(q.Take(Label{}))
	q.Given()
	q.End(q.Begin(Label{}), true, 0)
	q.Fail(1, -1)
	q.Drop()
}
