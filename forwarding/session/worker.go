package session

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/conn"
	"tendril/forwarding/numbered"
	"tendril/forwarding/session/memory"
	"tendril/forwarding/session/node"
	"tendril/forwarding/trace"
)

// worker is one worker process, and what of the program's objects there is at it. It is the connection's Sink: what
// the worker says of a number is looked up here and passed on to the object.
type worker struct {
	*conn.Conn
	d        *Driver
	platform *Platform

	// commands that this side carries out and no call waits for: they may touch the program's memory
	hosting atomic.Int32

	mu         sync.Mutex // leaf
	events     numbered.Table[Event]
	eventful   atomic.Bool       // events may have some; set under mu, and reset there by who finds none
	pushed     map[uint64]uint64 // bytes of pushes to it that brought their content alone and have not ended; nil: none
	queues     map[uint64]*Queue
	queueList  atomic.Pointer[[]*Queue] // the same, for who looks at all of them; changed under mu, by a new list
	contexts   map[*Context]struct{}
	partitions map[*partition]struct{} // made at the worker
}

// startWorker asks the daemon for a worker and greets it.
func startWorker(p *Platform) (*worker, error) {
	if p.control == nil {
		return nil, errors.New("no daemon")
	}
	w := &worker{
		d: p.d, platform: p, queues: map[uint64]*Queue{}, contexts: map[*Context]struct{}{},
		partitions: map[*partition]struct{}{},
	}
	w.Conn = conn.New(p.connOptions(w))
	if err := w.Open(); err != nil {
		return nil, err
	}
	return w, nil
}

// connOptions say how a worker of the platform is connected to.
func (p *Platform) connOptions(sink conn.Sink) conn.Options {
	d, cfg := p.d, &p.d.cfg
	o := conn.Options{
		Control: p.control, Platform: p.index, Name: answers.Text(p.info[cl.PLATFORM_NAME]), Sink: sink, NewID: d.newID,
		Program: cfg.Program,
		Limits:  clwire.NewTimeLimits(cfg.KernelTime, cfg.BuildTime), Spin: cfg.Spin, Lanes: cfg.Lanes,
		Plaintext:  cfg.Plaintext,
		NoCompress: cfg.NoCompress, Resume: cfg.Resume, Silence: cfg.Silence, Log: cfg.Log, Counters: d.counters,
		Tracer: d.trace,
	}
	if _, ok := p.control.(node.Remote); ok {
		o.Spin, o.Resumes = cfg.RemoteSpin, p.keeps
	}
	return o
}

// ask sends a request and waits for its answer; OutOfResources where the worker is gone.
func (w *worker) ask(m clwire.Message) (data []byte, status api.Status) {
	call, err := w.Ask(m)
	if err != nil {
		return nil, cl.OUT_OF_RESOURCES
	}
	return call.Data, api.Status(call.Status)
}

// waitEvents waits until the worker has reported the events: 0, −14 where one failed, −5 when the worker died.
func (w *worker) waitEvents(cause trace.Cause, ids ...uint64) api.Status {
	return api.Status(w.WaitEvents(cause, ids...))
}

// addSegment makes a segment known to the worker before the record that names it.
func (w *worker) addSegment(s *node.Segment) error {
	return w.AddSegment(s.ID, s.File, uint64(len(s.Bytes)))
}

// awaitLanded returns once nothing of a dead worker's touches the program's memory any more: the program has the
// memory back with the failure. It is for calls of the program's.
func (w *worker) awaitLanded() {
	w.AwaitSettled()
	for w.hosting.Load() > 0 {
		time.Sleep(20 * time.Microsecond) // copies in memory
	}
}

// watched says whether the program has an event of a context's command that is not known to have ended.
func (w *worker) watched(ctx *Context) bool {
	if !w.eventful.Load() {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.events.Len() == 0 {
		w.eventful.Store(false)
		return false
	}
	for _, e := range w.events.All() {
		if e.ctx == ctx && e.handle != 0 {
			return true
		}
	}
	return false
}

// addEvent has the worker's word of an event passed on to it.
func (w *worker) addEvent(e *Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events.Put(e.id, e)
	if !w.eventful.Load() {
		w.eventful.Store(true)
	}
}

func (w *worker) addQueue(q *Queue) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queues[q.id] = q
	list := append(slices.Clone(w.listed()), q)
	w.queueList.Store(&list)
}

// dropQueue forgets a queue that was released and has ended.
func (w *worker) dropQueue(q *Queue) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.queues, q.id)
	if list := w.listed(); slices.Contains(list, q) {
		list = slices.DeleteFunc(slices.Clone(list), func(x *Queue) bool { return x == q })
		w.queueList.Store(&list)
	}
}

// listed is all queues. Nobody changes it.
func (w *worker) listed() []*Queue {
	if list := w.queueList.Load(); list != nil {
		return *list
	}
	return nil
}

// busyQueues returns the queues with commands under way. A nil worker has none.
func (w *worker) busyQueues() (busy []*Queue) {
	if w == nil || w.Dead() {
		return nil
	}
	for _, q := range slices.Backward(w.listed()) {
		if !q.idle() {
			busy = append(busy, q)
		} else if q.released.Load() {
			w.dropQueue(q)
		}
	}
	return busy
}

// sent is how far the queues have to be for all that was sent so far to have ended.
func (w *worker) sent() (all memory.Marks) {
	for _, q := range w.busyQueues() {
		all = append(all, memory.Mark{Queue: q, Seq: q.sentSeq.Load()})
	}
	return all
}

// freeMemory gives shared memory back once the commands sent so far cannot use it any more. The worker may be nil.
func (w *worker) freeMemory(d *Driver, p *memory.Place) { d.slabs.FreeAfter(p, w.sent()) }

// Ended implements conn.Sink.
func (w *worker) Ended(end *clwire.EventEnd) (known bool) {
	w.mu.Lock()
	e := w.events.Get(end.Event)
	if e != nil && end.Status <= 0 {
		w.events.Delete(end.Event)
	}
	w.mu.Unlock()
	if e != nil {
		e.report(end)
	}
	return e != nil
}

// Fault implements conn.Sink.
func (w *worker) Fault(m *clwire.Fault) {
	w.mu.Lock()
	q := w.queues[m.Queue]
	contexts := w.contextsLocked()
	w.mu.Unlock()
	if q != nil {
		q.latch(api.Status(m.Status))
		contexts = []*Context{q.ctx}
	}
	notifyAll(contexts, m.Text)
}

// Print implements conn.Sink.
func (w *worker) Print(data []byte) { w.d.cfg.Print(slices.Clone(data)) }

// Notice implements conn.Sink.
func (w *worker) Notice(line string) {
	w.mu.Lock()
	contexts := w.contextsLocked()
	w.mu.Unlock()
	notifyAll(contexts, line)
}

func (w *worker) contextsLocked() []*Context { return slices.Collect(maps.Keys(w.contexts)) }

func notifyAll(contexts []*Context, text string) {
	for _, c := range contexts {
		c.notify(text)
	}
}

// Lost implements conn.Sink: the worker's events fail, but those that this side ends, and the contexts are told.
func (w *worker) Lost(cause error, closed bool) {
	w.mu.Lock()
	events, contexts := w.events, w.contextsLocked()
	w.events, w.contexts = numbered.Table[Event]{}, map[*Context]struct{}{}
	w.mu.Unlock()
	w.d.peers.Forget(w)
	for _, e := range events.All() {
		if !e.hosted.Load() {
			e.Fail(cl.OUT_OF_RESOURCES)
		}
	}
	if !closed {
		w.d.reporting.Add(1)
		go w.reportExit(cause, contexts)
	}
}

// reportExit says on standard error and through the contexts' callbacks how the worker ended.
func (w *worker) reportExit(cause error, contexts []*Context) {
	how, over := w.Exit(w.d.closing)
	if how == "" {
		how = cause.Error()
	}
	then := "its contexts return CL_OUT_OF_RESOURCES, and a new context gets a new worker"
	if over {
		then = "from now on this program's contexts return CL_OUT_OF_RESOURCES; start it again for a new session"
	}
	line := fmt.Sprintf("tendril: the worker of %s ended: %s; %s", answers.Text(w.platform.info[cl.PLATFORM_NAME]), how,
		then)
	w.d.cfg.Log(line)
	w.d.reporting.Add(-1) // before the callbacks: one of them may end the program
	notifyAll(contexts, line)
}
