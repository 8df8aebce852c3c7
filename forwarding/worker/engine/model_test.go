package engine

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"tendril/tools/e2e/await"
)

// world checks the engine against the plainest reading of the specification:
// what must have ended before a command may run, and how each must end.
type world struct {
	t     *testing.T
	d     *device
	e     *Engine
	rnd   *rand.Rand
	mu    sync.Mutex // guards what follows; the device's lock may be held
	cmds  []*modelCommand
	bad   []string
	told  map[uint64]int32
	times map[uint64]int
	reply map[uint64]int32
	level map[uint64][]int32
	due   []uint64 // host operations that are ready
	asked map[uint64]promise
	drops map[int]int
	fins  map[int]int
}

type modelCommand struct {
	kind     Kind
	queue    int
	event    uint64
	before   []int // commands that must have ended before it runs
	barrier  int   // −1, or the last barrier before it, which counts unless it failed
	wait     []int // of these, whose failure fails it; indices of cmds
	own      int32 // what it ends with if it runs: 0, or an error of the driver
	atSubmit bool  // own is the answer of the enqueue
	user     bool
	status   int32
	known    bool // status is decided (user events and hosts: when the test decides)
	ended    bool
	op       uint64
}

// promise is what a reply must mean.
type promise struct {
	all  []int // ended by then
	wait bool
}

func (w *world) fault(format string, args ...any) {
	w.bad = append(w.bad, fmt.Sprintf(format, args...))
}

// expected is how a command must end, once its dependencies are decided.
func (w *world) expected(i int) int32 {
	c := w.cmds[i]
	if c.known {
		return c.status
	}
	s := c.own
	for _, p := range c.wait {
		if w.expected(p) < 0 {
			s = FailedWaitList
		}
	}
	return s
}

// task is the driver's part of one model command.
type task struct {
	w      *world
	c      *modelCommand
	number int
	kept   bool
	loose  bool // the record's memory is gone
}

func (t *task) Submit(q Native, waits []Native, want bool) (Native, int32, string) {
	c := t.c
	if t.loose {
		t.w.locked(func() { t.w.fault("command %d was submitted from memory that is gone", t.number) })
	}
	if t.w.d.slow {
		time.Sleep(time.Duration(t.number%7) * 10 * time.Microsecond) // Pause: as slow drivers take
	}
	if c.atSubmit {
		t.w.locked(func() { c.ended = true })
		return 0, c.own, "refused"
	}
	return t.w.d.submit(q, t.number, false, false, waits, want || t.Finished() != nil), 0, ""
}

func (t *task) Keep() Task {
	k := *t
	k.kept = true
	return &k
}

func (t *task) Drop() { t.w.locked(func() { t.w.drops[t.number]++ }) }

func (t *task) Finished() func(int32) {
	if t.number%5 != 0 {
		return nil
	}
	return func(int32) { t.w.locked(func() { t.w.fins[t.number]++ }) }
}

func (w *world) locked(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// begin is called by the device when a command starts to run.
func (w *world) begin(i int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.preceding(i) {
		if !w.over(p) {
			w.fault("command %d runs before %d has ended", i, p)
		}
	}
	for _, p := range w.cmds[i].wait {
		if w.failed(p) {
			w.fault("command %d runs although %d failed", i, p)
		}
	}
}

func (w *world) end(i int, _ int32) { w.locked(func() { w.cmds[i].ended = true }) }

// The engine's Sink.

func (w *world) Events(ends []End, _ bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range ends {
		if e.Status > 0 {
			w.level[e.Event] = append(w.level[e.Event], e.Status)
			continue
		}
		w.told[e.Event] = e.Status
		w.times[e.Event]++
		for i, c := range w.cmds {
			if c.event == e.Event && e.Status == 0 && c.kind != KindHost {
				w.toldBefore(e.Event, i, map[int]bool{})
			}
			if c.event == e.Event && c.kind != KindTask {
				c.ended = true
			}
			if c.event == e.Event && c.kind == KindTask && !c.ended && e.Status != FailedWaitList {
				w.fault("event %d is reported before it ended", e.Event)
			}
			if c.event == e.Event {
				c.ended = true
			}
		}
	}
}

// toldBefore checks that the ends of all that command i came after were reported before event's.
func (w *world) toldBefore(event uint64, i int, seen map[int]bool) {
	for _, p := range w.cmds[i].before { // whether an earlier barrier counts takes the model too long to find out here
		c := w.cmds[p]
		_, told := w.told[c.event]
		if seen[p] || told || w.failed(p) { // what came before one that was told was looked at then
			continue
		}
		seen[p] = true
		if c.event != 0 && !c.user {
			w.fault("event %d is reported before event %d, which it came after", event, c.event)
			return
		}
		w.toldBefore(event, p, seen)
	}
}

func (w *world) Reply(request uint64, status int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, twice := w.reply[request]; twice {
		w.fault("request %d is answered twice", request)
	}
	w.reply[request] = status
	p := w.asked[request]
	for _, i := range p.all {
		c := w.cmds[i]
		if !w.over(i) {
			w.fault("request %d is answered before %d has ended", request, i)
		}
		if _, told := w.told[c.event]; c.event != 0 && !told && !c.user {
			w.fault("request %d is answered before the end of event %d is reported", request, c.event)
		}
	}
}

// over says whether nothing of i is still to come. Markers and barriers do
// nothing themselves: what they stand for is listed beside them.
func (w *world) over(i int) bool {
	c := w.cmds[i]
	return c.ended || c.kind == KindMarker || c.kind == KindBarrier || w.failed(i)
}

// failed says whether i is known to fail: one cause is enough, the rest of what
// it waits for need not have ended.
func (w *world) failed(i int) bool {
	c := w.cmds[i]
	if c.known || c.ended && c.own < 0 {
		return w.expected(i) < 0
	}
	for _, p := range c.wait {
		if w.failed(p) {
			return true
		}
	}
	return false
}

func (w *world) HostReady(op uint64, status int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, c := range w.cmds {
		if c.kind != KindHost || c.op != op {
			continue
		}
		for _, p := range w.preceding(i) {
			if status == 0 && !w.over(p) {
				w.fault("host operation %d is ready before %d has ended", i, p)
			}
		}
		want := int32(0)
		for _, p := range c.wait {
			if w.failed(p) {
				want = FailedWaitList
			}
		}
		if status != want {
			w.fault("host operation %d is ready with %d, want %d", i, status, want)
		}
		if status < 0 {
			c.known, c.status, c.ended = true, status, true
			return
		}
		w.due = append(w.due, op)
		return
	}
	w.fault("unknown host operation %d", op)
}

func (w *world) Fault(object, queue uint64, status int32, text string) {}

const modelQueues = 4

// precede lists what must have ended before the next command of queue q runs.
func (w *world) precede(q int, kind Kind, wait []int) (before []int, barrier int) {
	barrier = -1
	for i, c := range w.cmds {
		if c.queue != q || c.user {
			continue
		}
		if q%2 == 0 || len(wait) == 0 && (kind == KindBarrier || kind == KindMarker) {
			before = append(before, i)
		} else if c.kind == KindBarrier {
			barrier = i
		}
	}
	return append(before, wait...), barrier
}

// preceding adds what barriers stand for.
func (w *world) preceding(i int) []int {
	before := w.cmds[i].before
	for b := w.cmds[i].barrier; b >= 0; b = w.cmds[b].barrier {
		if !w.failed(b) {
			return append(before[:len(before):len(before)], w.preceding(b)...)
		}
	}
	return before
}

// act does one random thing.
func (w *world) act() error {
	switch n := w.rnd.IntN(100); {
	case n < 60:
		return w.command(KindTask)
	case n < 64:
		return w.command(KindMarker)
	case n < 68:
		return w.command(KindBarrier)
	case n < 73:
		return w.command(KindHost)
	case n < 78:
		return w.user()
	case n < 84:
		return w.setUser()
	case n < 88:
		return w.hostDone()
	case n < 90:
		return w.finish(uint64(w.rnd.IntN(modelQueues) + 1))
	case n < 92:
		return w.waitSome()
	case n < 94:
		return w.watch()
	case n < 96:
		w.e.Poll()
	case n < 98:
		w.e.Tick()
	default:
		w.e.Park()
		time.Sleep(time.Duration(w.rnd.IntN(100)) * time.Microsecond) // Pause: whatever happens while parked
		w.e.Unpark()
	}
	return nil
}

// events picks up to n commands that have events.
func (w *world) some(n int) (indices []int, ids []uint64) {
	for range w.rnd.IntN(n + 1) {
		if len(w.cmds) == 0 {
			break
		}
		i := w.rnd.IntN(len(w.cmds))
		if back := len(w.cmds) - 20; w.rnd.IntN(3) > 0 && back > 0 {
			i = back + w.rnd.IntN(20)
		}
		if id := w.cmds[i].event; id != 0 {
			indices, ids = append(indices, i), append(ids, id)
		}
	}
	return indices, ids
}

func (w *world) command(kind Kind) error {
	w.mu.Lock()
	q := w.rnd.IntN(modelQueues)
	wait, ids := w.some(3)
	number := len(w.cmds)
	c := &modelCommand{kind: kind, queue: q, wait: wait, barrier: -1}
	c.before, c.barrier = w.precede(q, kind, wait)
	if w.rnd.IntN(3) > 0 || kind == KindHost {
		c.event = uint64(1000 + number)
	}
	if kind == KindTask && w.rnd.IntN(25) == 0 {
		c.own, c.atSubmit = -5, w.rnd.IntN(2) == 0
	}
	if kind == KindHost {
		c.op = uint64(number + 1)
	}
	w.cmds = append(w.cmds, c)
	w.mu.Unlock()
	cmd := Command{Kind: kind, Queue: uint64(q + 1), Event: c.event, Wait: ids, Op: c.op, Quick: number%3 == 0,
		Urgent: number%7 == 0}
	if kind == KindTask {
		t := &task{w: w, c: c, number: number}
		cmd.Task = t
		err := w.e.Enqueue(&cmd)
		t.loose = true
		return err
	}
	return w.e.Enqueue(&cmd)
}

func (w *world) user() error {
	w.mu.Lock()
	id := uint64(1000 + len(w.cmds))
	w.cmds = append(w.cmds, &modelCommand{queue: -1, event: id, user: true})
	w.mu.Unlock()
	return w.e.UserEvent(id)
}

func (w *world) setUser() error {
	w.mu.Lock()
	var open []*modelCommand
	for _, c := range w.cmds {
		if c.user && !c.known {
			open = append(open, c)
		}
	}
	if len(open) == 0 {
		w.mu.Unlock()
		return nil
	}
	c := open[w.rnd.IntN(len(open))]
	c.known, c.ended = true, true
	if w.rnd.IntN(4) == 0 {
		c.status = -9
	}
	w.mu.Unlock()
	return w.e.SetUserEvent(c.event, c.status)
}

func (w *world) hostDone() error {
	w.mu.Lock()
	if len(w.due) == 0 {
		w.mu.Unlock()
		return nil
	}
	op := w.due[0]
	w.due = w.due[1:]
	status := int32(0)
	for _, c := range w.cmds {
		if c.kind == KindHost && c.op == op {
			if w.rnd.IntN(6) == 0 {
				status = -4
			}
			c.known, c.status, c.ended = true, status, true
		}
	}
	w.mu.Unlock()
	w.e.HostDone(op, status)
	return nil
}

func (w *world) request(p promise) uint64 {
	id := uint64(len(w.asked) + 1)
	w.asked[id] = p
	return id
}

func (w *world) finish(queue uint64) error {
	w.mu.Lock()
	var p promise
	for i, c := range w.cmds {
		if c.queue == int(queue)-1 {
			p.all = append(p.all, i)
		}
	}
	id := w.request(p)
	w.mu.Unlock()
	return w.e.Finish(queue, id)
}

// briefly has finishes block in the driver, while somebody else goes on.
func (w *world) briefly() {
	for range 5 {
		w.settle()
		for n := len(w.cmds); n%3 > 0 || n%5 == 0 || n%7 == 0; n = len(w.cmds) { // quick, and nobody follows it
			w.try(w.user())
		}
		await.Until(w.t, "rest", func() bool { // a submitter may still be flushing
			w.e.Tick()
			return w.e.rests(1)
		})
		number := len(w.cmds)
		c := &modelCommand{kind: KindTask, barrier: -1}
		w.locked(func() {
			c.before, _ = w.precede(0, KindTask, nil)
			w.cmds = append(w.cmds, c)
		})
		w.e.expectBrief(1)
		w.try(w.e.Enqueue(&Command{Kind: KindTask, Queue: 1, Quick: true, Task: &task{w: w, c: c, number: number}}))
		w.e.expectBrief(1)
		w.try(w.finish(1))
		if !w.e.Brief() {
			w.t.Error("a finish is not brief")
			return
		}
		var finishing sync.WaitGroup
		finishing.Go(w.e.FinishBrief)
		for range 20 {
			w.try(w.act())
		}
		finishing.Wait()
	}
}

func (w *world) waitSome() error {
	w.mu.Lock()
	all, ids := w.some(4)
	id := w.request(promise{all: all, wait: true})
	w.mu.Unlock()
	return w.e.Wait(ids, id)
}

func (w *world) watch() error {
	w.mu.Lock()
	_, ids := w.some(1)
	w.mu.Unlock()
	if len(ids) == 0 {
		return nil
	}
	return w.e.Watch(ids[0], int32(w.rnd.IntN(3)))
}

// settle lets everything end and checks the books.
func (w *world) settle() {
	for q := range uint64(modelQueues) {
		w.try(w.finish(q + 1))
	}
	deadline := time.Now().Add(5 * time.Minute)
	for round := 0; !w.done(); round++ {
		if time.Now().After(deadline) {
			w.t.Fatalf("stuck: %s", w.missing())
		}
		w.try(w.setUser())
		w.try(w.hostDone())
		switch round % 3 {
		case 0:
			w.e.Poll()
		case 1:
			w.e.Tick()
		default:
			w.e.Park()
			time.Sleep(50 * time.Microsecond)
			w.e.Unpark()
		}
	}
}

func (w *world) try(err error) {
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) done() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.cmds {
		if _, told := w.told[c.event]; c.event != 0 && !c.user && !told || c.user && !c.known {
			return false
		}
	}
	return len(w.reply) == len(w.asked)
}

func (w *world) missing() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := fmt.Sprintf("%d of %d replies;", len(w.reply), len(w.asked))
	for i, c := range w.cmds {
		if _, told := w.told[c.event]; c.event != 0 && !told && !c.user {
			s += fmt.Sprintf(" %d(kind %d, queue %d, waits %v, ended %v)", i, c.kind, c.queue, c.wait, c.ended)
		}
	}
	return s
}

func (w *world) audit() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, c := range w.cmds {
		if c.kind == KindTask && !c.user && w.drops[i] != 1 {
			w.fault("task %d was dropped %d times", i, w.drops[i])
		}
		if w.fins[i] > 1 {
			w.fault("task %d finished %d times", i, w.fins[i])
		}
		if c.event == 0 || c.user {
			continue
		}
		// A driver may refuse a command before it is known that a dependency failed.
		if got, want := w.told[c.event], w.expected(i); got != want && !(c.atSubmit && got == c.own) {
			w.fault("command %d (kind %d) ended with %d, want %d", i, c.kind, got, want)
		}
		if w.times[c.event] != 1 {
			w.fault("the end of event %d was reported %d times", c.event, w.times[c.event])
		}
	}
	for id, p := range w.asked {
		want := int32(0)
		for _, i := range p.all {
			if w.expected(i) < 0 {
				want = FailedWaitList
			}
		}
		if p.wait && w.reply[id] != want {
			w.fault("wait %d was answered %d, want %d", id, w.reply[id], want)
		}
	}
}

func runModel(t *testing.T, seed uint64, submitters bool, steps int) {
	d := newDevice(seed)
	d.slow = submitters
	w := &world{t: t, d: d, rnd: rand.New(rand.NewPCG(seed, 1)), told: map[uint64]int32{}, times: map[uint64]int{},
		reply: map[uint64]int32{},
		level: map[uint64][]int32{}, asked: map[uint64]promise{}, drops: map[int]int{}, fins: map[int]int{}}
	d.begin, d.end = w.begin, w.end
	d.fails = func(i int) int32 {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.cmds[i].own
	}
	w.e = New(d, w, Options{Submitters: submitters, Brief: submitters && seed%2 == 0})
	gone := make(chan uint64, modelQueues)
	for q := range uint64(modelQueues) {
		var clock Native
		if q >= 2 {
			clock = d.newQueue(false)
		}
		w.try(w.e.AddQueue(q+1, d.newQueue(q%2 == 1), q%2 == 1, clock, func() { gone <- q }))
	}
	d.start()
	for range steps {
		w.try(w.act())
	}
	if w.e.opt.Brief {
		w.briefly()
	}
	w.settle()
	for q := range uint64(modelQueues) {
		w.e.DropQueue(q + 1)
	}
	for range modelQueues {
		for ended := false; !ended; {
			select {
			case <-gone:
				ended = true
			case <-time.After(time.Millisecond):
				w.e.Tick()
			}
		}
	}
	for _, c := range w.cmds {
		if c.event != 0 && !w.e.ReleaseEvent(c.event) {
			t.Errorf("event %d is not there", c.event)
		}
	}
	if n := w.e.events.Len(); n != 0 {
		t.Errorf("%d events stay", n)
	}
	w.e.Close()
	d.close()
	w.audit()
	if n := d.held(); n != 0 {
		t.Errorf("%d native events leak", n)
	}
	for i, p := range append(w.bad, d.problems...) {
		if t.Errorf("%s", p); i > 10 {
			break
		}
	}
}

func TestModel(t *testing.T) {
	for _, submitters := range []bool{false, true} {
		for seed := range uint64(40) {
			t.Run(fmt.Sprintf("submitters=%v/seed=%d", submitters, seed),
				func(t *testing.T) { runModel(t, seed, submitters, 400) })
			if t.Failed() {
				return
			}
		}
	}
}
