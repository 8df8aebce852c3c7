package engine

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"tendril/forwarding/clwire"
	"tendril/forwarding/numbered"
	"tendril/forwarding/worker/journal"
)

// Native is a driver's handle; 0 is none.
type Native uintptr

// FailedWaitList is CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST.
const FailedWaitList int32 = -14

// Levels of an event that is not done (cl_int execution status).
const (
	Complete  int32 = 0
	Running   int32 = 1
	Submitted int32 = 2
)

// Driver is what the engine itself asks of a native queue or event. Calls may
// come from several goroutines. Statuses are cl_ints.
type Driver interface {
	// Marker enqueues a marker or barrier (OpenCL 3.0 §5.12) and returns its event if wanted.
	Marker(queue Native, barrier bool, waits []Native, want bool) (Native, int32)
	// Flush makes the driver start what it was given.
	Flush(queue Native)
	// Finish blocks until everything in the queue is done, and says how that went.
	Finish(queue Native) int32
	// Statuses fills status with each event's execution status, without blocking.
	Statuses(events []Native, status []int32)
	// Wait blocks until the event is done.
	Wait(event Native)
	// Profile returns the event's five times in ns; false if there are none.
	Profile(event Native) ([5]uint64, bool)
	// Release drops the engine's reference on each event.
	Release(events []Native)
}

// Task is the driver's part of one command. The engine calls Submit at most
// once and Drop exactly once, after it or instead of it.
type Task interface {
	// Submit hands the command to the driver. It returns an event if wanted, and
	// otherwise 0; text says more about a failure.
	Submit(queue Native, waits []Native, want bool) (event Native, status int32, text string)
	// Keep returns a task that stays valid after Enqueue has returned, and
	// replaces the receiver. It is called once, if the command cannot be submitted yet.
	Keep() Task
	// Drop releases what the task holds.
	Drop()
	// Finished is called when the driver is done with the command, with how it ended (0 or negative), or nil. The
	// engine is locked.
	Finished() func(status int32)
}

// Prompt is a Task that can be done at once, without the driver, where nothing that comes before it is under way.
type Prompt interface {
	Task
	// Now does the command, and reports false if it has to be the driver's. Submit is not called after it was done.
	Now() bool
}

// End tells how an event ended, or (Status > 0) which level a watched one reached.
type End = clwire.EventEnd

// Sink takes what the client is to be told. It is called with the engine's
// lock held, in the order in which the client must see it.
type Sink interface {
	Events(ends []End, urgent bool)
	Reply(request uint64, status int32)
	HostReady(op uint64, status int32)
	Fault(object, queue uint64, status int32, text string)
}

// Errors of a caller that names what is not there. They end the session.
var (
	ErrNoQueue = errors.New("no such queue")
	ErrNoEvent = errors.New("no such event")
	ErrTaken   = errors.New("the id is taken")
	ErrNotUser = errors.New("not a user event that is open")
)

// Options of an engine.
type Options struct {
	// Submitters gives each queue a goroutine that submits, for drivers that may
	// block in clEnqueue…. Without it commands are submitted by whoever frees them.
	Submitters bool
	// Brief says that the caller of Finish calls FinishBrief, where Brief tells it to, as soon as it has nothing else
	// to enqueue; with Submitters.
	Brief bool
	// Reported, if not nil, is called behind the last of the ends and answers that the Sink was given: no more is about
	// to be said. Behind ends that are urgent alone it may be left out. The engine is locked, as for a Sink.
	Reported func()
}

// Engine is the scheduler of one session.
type Engine struct {
	driver Driver  // immutable
	sink   Sink    // immutable
	opt    Options // immutable

	mu       sync.Mutex
	queues   map[uint64]*queue
	open     []*queue // not retired: also those that the client dropped. One that goes leaves a new slice behind
	events   numbered.Table[event]
	hosts    map[uint64]*command // open host operations by op
	dirty    []*queue            // may have something to submit
	ends     []End               // to be reported
	hurry    bool                // one of ends is urgent
	early    bool                // some were sent before their time: see settle
	gathers  bool                // another worker has been told of one of ends, or told of it
	reported time.Time           // when ends were sent last
	fired    []*wait             // to be answered, after ends
	garbage  []Native            // events to release
	urgent   int                 // live events somebody waits for
	awake    int                 // callers that poll: see Park
	pacing   bool                // keepPace runs
	closed   bool
	all      bool           // every command is followed
	brief    *wait          // nil, or the finish that FinishBrief is to do
	alone    *queue         // the queue that was used last
	work     sync.WaitGroup // submitters, waiters and closers

	firstFired [1]*wait // what fired begins in: mostly there is one
	blank      []event  // for anEvent

	listed   []*event // scratch, enqueue
	natives  []Native // scratch, submission
	probes   []Native // scratch, sweep
	picked   []*event // scratch, sweepDisordered
	steps    []step   // done
	swept    []*queue // that done set sweeping of
	statuses []int32
}

// New makes an engine without queues.
func New(d Driver, s Sink, o Options) *Engine {
	return &Engine{driver: d, sink: s, opt: o, awake: 1,
		queues: map[uint64]*queue{}, hosts: map[uint64]*command{}}
}

// queue is one command queue. Guarded by Engine.mu; id, native and the flags are immutable.
type queue struct {
	id         uint64
	native     Native
	outOfOrder bool
	clock      Native         // for times; 0: not a profiling queue
	gone       func()         // releases the native queue; called once
	log        *journal.Queue // nil: nobody notes what it does

	held      []*command // in order: fifo. Out of order: not submitted yet
	ready     []*command // out of order: free to be submitted
	submitter chan struct{}

	live       []*event // natively submitted and followed, oldest first
	ended      int      // in order: so many of live, and maybe more, have ended
	sweeping   bool     // somebody goes through live, and takes out what has ended
	behind     []*event // of other queues: what commands that are not followed waited for, for the next one that is
	manyBehind int      // how many of behind are looked through for what has ended
	urgent     int      // of live
	given      uint64   // number in log of the last command that the driver was given
	tail       Native   // event of the last command, if the engine has one and follows it not
	tailEvent  *event   // event of the last command, if followed
	barrier    *event   // out of order: the last barrier
	sent       int      // commands submitted; out of order: those that nobody follows
	seen       int      // how many of sent have been seen to end
	unflushed  bool     // with Submitters: the caller submitted past the submitter
	bursts     bursts   // with Submitters, in order: how many commands come between two finishes
	fresh      bool     // something was submitted since tail, tailEvent
	running    int      // live events watched for Running
	latched    int32    // first failure since the last Finish
	submitting bool     // a submitter is in the driver
	finishing  bool     // FinishBrief is
	waiting    bool     // a waiter goroutine runs
	isDirty    bool
	dropped    bool
}

// Kind says what a Command is.
type Kind uint8

// Kinds of command.
const (
	KindTask Kind = iota
	KindMarker
	KindBarrier
	KindHost
	kindFinish
)

// Command is one enqueued command. The engine reads it during Enqueue only.
type Command struct {
	Kind    Kind
	Queue   uint64
	Event   uint64 // 0: the client wants none
	Wait    []uint64
	Request uint64 // ≠ 0: reply as soon as it is accepted or refused
	Gate    *Gate  // nil, or what must open first
	Task    Task   // KindTask
	Op      uint64 // KindHost
	Quick   bool   // with Submitters: the driver takes it without blocking while it has few others
	Urgent  bool   // somebody waits for its end
	Label   journal.Label
}

// AddQueue takes over a native queue; gone releases it, after its last command,
// in a goroutine of its own. clock ≠ 0 says that it is a profiling one, and is another
// in-order profiling queue of the device, for the engine's use alone; gone releases that too.
func (e *Engine) AddQueue(id uint64, native Native, outOfOrder bool, clock Native, gone func()) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.queues[id] != nil || id == 0 {
		return fmt.Errorf("queue %d: %w", id, ErrTaken)
	}
	q := &queue{id: id, native: native, outOfOrder: outOfOrder, clock: clock, gone: gone}
	e.queues[id] = q
	e.open = append(e.open, q)
	if e.opt.Submitters {
		q.submitter = make(chan struct{}, 1)
		submitter := q.submitter
		e.work.Go(func() { e.runSubmitter(q, submitter) })
	}
	return nil
}

// Note has every command of a queue noted in log from now on.
func (e *Engine) Note(id uint64, log *journal.Queue) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if q := e.queues[id]; q != nil {
		q.log = log
	}
}

// DropQueue releases a queue; what was enqueued still runs. It reports whether there was one.
func (e *Engine) DropQueue(id uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	q := e.queues[id]
	if q == nil {
		return false
	}
	delete(e.queues, id)
	q.dropped = true
	e.longhand()
	e.retire(q)
	e.pump()
	return true
}

// retire lets go of a dropped queue that has nothing left to do.
func (e *Engine) retire(q *queue) {
	if !q.dropped || q.gone == nil || len(q.held) > 0 || len(q.live) > 0 || q.submitting || q.finishing {
		return
	}
	if q.tail != 0 {
		e.garbage = append(e.garbage, q.tail)
		q.tail = 0
	}
	gone := q.gone
	q.gone = nil
	q.tailEvent, q.barrier, q.behind = nil, nil, nil // an event may be kept, and keeps its queue
	q.held, q.ready, q.live = nil, nil, nil
	q.log.Drop()
	at := slices.Index(e.open, q)
	e.open = slices.Concat(e.open[:at], e.open[at+1:]) // somebody may be going through the old one
	if q.submitter != nil {
		close(q.submitter)
	}
	e.work.Go(gone)
}

// Enqueue takes one command. An error means that the record is bad (an id that
// is not there, or taken); a failure of the command goes to its event, to Reply
// if Request asks, and otherwise to Fault. The task is dropped in any case.
func (e *Engine) Enqueue(c *Command) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.enqueue(c)
	if err != nil && c.Task != nil {
		c.Task.Drop()
	}
	e.pump()
	return err
}

func (e *Engine) enqueue(c *Command) error {
	q := e.queues[c.Queue]
	if q == nil {
		return fmt.Errorf("queue %d: %w", c.Queue, ErrNoQueue)
	}
	e.longhand()
	e.usedAlone(q)
	after := e.listed[:0]
	for _, id := range c.Wait {
		d := e.events.Get(id)
		if d == nil {
			return fmt.Errorf("event %d in a wait list: %w", id, ErrNoEvent)
		}
		after = append(after, d)
	}
	e.listed = after
	defer clear(after)
	if c.Kind == KindHost && e.hosts[c.Op] != nil {
		return fmt.Errorf("host operation %d: %w", c.Op, ErrTaken)
	}
	ev, err := e.newEvent(c.Event, q, c.Kind)
	if err != nil {
		return err
	}
	if c.Urgent {
		if ev == nil {
			ev = e.anEvent(q, 0)
		}
		ev.urgent, ev.hurry = true, true
	}
	if c.Kind == KindTask && (!e.opt.Submitters || q.hasRoom(c)) && q.free(c, after) {
		e.submitNow(q, c, after, ev)
		return nil
	}
	e.hold(q, c, after, ev)
	return nil
}

// newEvent makes the event of a command or nil if the client wants none.
func (e *Engine) newEvent(id uint64, q *queue, kind Kind) (*event, error) {
	if id == 0 {
		return nil, nil
	}
	if e.events.Get(id) != nil {
		return nil, fmt.Errorf("event %d: %w", id, ErrTaken)
	}
	var ev *event
	if kind == KindBarrier && q.outOfOrder {
		ev = &event{queue: q} // it may keep an earlier one, whose neighbours would keep others
	} else {
		ev = e.anEvent(q, 0)
	}
	ev.id = id
	e.events.Put(id, ev)
	return ev, nil
}

// atOnce is how many events are made at a time.
const atOnce = 16

// anEvent makes an event of the command with a number in the queue's log; 0: it has none. They are made many at a time:
// one that is kept keeps the memory of its neighbours, which is little.
func (e *Engine) anEvent(q *queue, number uint64) *event {
	if len(e.blank) == 0 {
		e.blank = make([]event, atOnce)
	}
	ev := &e.blank[0]
	e.blank = e.blank[1:]
	ev.queue, ev.number = q, number
	return ev
}

// quickRoom is how many commands a driver takes before it may block: far fewer than drivers have room for. Of a burst
// of commands that nobody follows one in markEvery is followed, so that the driver is known to have room again.
const (
	quickRoom = 128
	markEvery = quickRoom / 4
)

// hasRoom says whether a submitter can be spared: waking it costs more than the command.
func (q *queue) hasRoom(c *Command) bool {
	return c.Quick && q.underWay() < quickRoom && len(q.held) == 0 && !q.submitting
}

// underWay is how many commands the driver may still have.
func (q *queue) underWay() int {
	if q.outOfOrder {
		return len(q.live) + q.sent - q.seen
	}
	return q.sent - q.seen
}

// free says whether a task may go straight to the driver: nothing is held
// before it and everything it waits for (after) is submitted or done well.
func (q *queue) free(c *Command, after []*event) bool {
	if c.Gate != nil && !(c.Gate.ev.state == stateDone && c.Gate.ev.status == 0) {
		return false
	}
	if len(q.held) > 0 && (!q.outOfOrder || q.barrier != nil && q.barrier.state == stateHeld) {
		return false
	}
	for _, d := range after {
		if d.state == stateHeld || d.status < 0 {
			return false
		}
	}
	return true
}

// doNow does a command without the driver, if that can be. The queue is in order and has seen its last command end, or
// none: whoever waits for the queue has nothing new to wait for.
func (e *Engine) doNow(q *queue, c *Command, after []*event, ev *event) bool {
	if q.outOfOrder || q.clock != 0 || q.underWay() > 0 || c.Request != 0 {
		return false
	}
	for _, d := range after {
		if d.state != stateDone {
			return false
		}
	}
	p, ok := c.Task.(Prompt)
	if !ok || !p.Now() {
		return false
	}
	c.Task.Drop()
	if ev != nil {
		e.done(ev, 0)
	}
	return true
}

// submitNow is the short way: no command object, no copy of the wait list.
func (e *Engine) submitNow(q *queue, c *Command, after []*event, ev *event) {
	if e.doNow(q, c, after, ev) {
		q.log.Done(c.Label)
		return
	}
	number := q.log.Begin(c.Label)
	if ev != nil {
		ev.number = number
	}
	waits := e.natives[:0]
	for _, d := range after {
		if d.state == stateSubmitted {
			waits = append(waits, d.native)
			if ev != nil {
				ev.comesAfter(d)
			} else {
				q.comesAfter(d)
			}
		}
	}
	e.natives = waits
	// The last has an event for who waits for the queue next. A driver behind submitters makes a marker for him as
	// quickly, and each event costs it more than a microsecond (NVIDIA).
	last := !e.opt.Submitters
	foreseen := false
	if e.opt.Submitters && !q.outOfOrder {
		foreseen = q.bursts.command()
		if ev == nil && q.sent%markEvery == 0 && q.underWay() > 0 {
			ev = e.anEvent(q, number)
		}
	}
	brief := foreseen && ev == nil && e.mayBeBrief(q)
	want := ev != nil || e.all || (last || foreseen && !brief) && !q.outOfOrder
	q.unflushed = e.opt.Submitters
	native, status, text := c.Task.Submit(q.native, waits, want)
	q.log.Given()
	if foreseen && !brief { // the finish is on its way
		e.start(q)
	}
	finished := c.Task.Finished()
	c.Task.Drop()
	if status != 0 && ev == nil {
		q.log.Fail(number, status)
	}
	e.submitted(q, number, ev, native, status, text, finished, c.Request)
}

// submitted books what the driver answered. ev is nil if nobody follows the command.
func (e *Engine) submitted(q *queue, number uint64, ev *event, native Native, status int32, text string,
	after func(int32), request uint64) {
	if status != 0 {
		if after != nil {
			after(status)
		}
		e.refused(q, ev, status, text, request)
		return
	}
	if request != 0 {
		e.sink.Reply(request, 0)
	}
	if ev == nil && (after != nil || e.all) {
		ev = e.anEvent(q, number)
	}
	q.given = max(q.given, number)
	q.fresh = true
	if !q.outOfOrder || ev == nil {
		q.sent++
	}
	if q.tail != 0 {
		e.garbage = append(e.garbage, q.tail)
	}
	q.tail, q.tailEvent = 0, nil
	switch {
	case native == 0 && ev == nil:
	case native == 0:
		ev.after = after
		e.doneNow(ev)
	case ev != nil:
		ev.after = after
		e.follow(q, ev, native)
	case q.outOfOrder:
		e.garbage = append(e.garbage, native)
	default:
		q.tail, q.fresh = native, false
	}
}

// doneNow ends an event for which the driver made none.
func (e *Engine) doneNow(ev *event) {
	if ev.after != nil {
		ev.after(0)
		ev.after = nil
	}
	e.done(ev, 0)
}

// follow puts a natively submitted event under watch until it ends.
func (e *Engine) follow(q *queue, ev *event, native Native) {
	q.tailEvent = ev
	if !q.outOfOrder {
		q.fresh = false
	}
	ev.queue, ev.native, ev.state = q, native, stateSubmitted
	if !q.outOfOrder || ev.all {
		ev.seq = q.sent
	}
	q.putBehind(ev)
	q.live = append(q.live, ev)
	if ev.urgent {
		q.urgent++
		e.urgent++
	}
	if ev.watchRunning {
		q.running++
	}
	if ev.watchSubmitted {
		ev.watchSubmitted = false
		e.tell(End{Event: ev.id, Status: Submitted}, true)
	}
	e.unblock(ev)
}

// refused ends a command that the driver would not take.
func (e *Engine) refused(q *queue, ev *event, status int32, text string, request uint64) {
	var id uint64
	if ev != nil {
		id = ev.id
		ev.released = ev.released || request != 0 // a refused call gives its program no event
		e.done(ev, status)
	}
	if request != 0 {
		e.sink.Reply(request, status)
		return
	}
	if q.latched == 0 {
		q.latched = status
	}
	e.sink.Fault(id, q.id, status, text)
}
