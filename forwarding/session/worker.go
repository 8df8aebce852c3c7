package session

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
	"tendril/forwarding/trace"
)

// completion is something a caller may wait for.
type completion struct{ done atomic.Bool }

// call is a request that wants a Reply.
type call struct {
	completion
	status Status
	data   []byte
	cause  trace.Cause // why it is waited for
	detail string
	then   func(*call) // nil, or runs when done, under the reader's lock: it must not block
}

// hostOp is a command that this side carries out between HostReady and HostDone.
type hostOp struct {
	completion        // HostReady came
	status     Status // negative: a dependency failed
	then       func() // nil, or runs when done, under the reader's lock: it must not block
}

// ready says that HostReady came, or never will.
func (op *hostOp) ready(status Status) {
	op.status = status
	op.done.Store(true)
	if op.then != nil {
		op.then()
	}
}

// worker is one worker process as its client sees it: the link, what is outstanding on it, and its end.
type worker struct {
	d            *Driver
	platform     *Platform
	id           uint64
	link         link.Link // immutable
	bulk         *bulk     // nil: the worker is on this node
	resumer      *resumer  // nil: the worker ends with its connections
	capabilities uint32
	spin         time.Duration // how long a caller polls before it sleeps; immutable

	dead    atomic.Bool   // set once, before what is outstanding is failed
	settled chan struct{} // closed when that has failed
	hosting atomic.Int32  // commands of this side's own that may touch the program's memory, while no call waits for them
	closed  atomic.Bool   // by this side: an end that is no fault

	mu       sync.Mutex // leaf
	events   map[uint64]*Event
	pushed   map[uint64]uint64 // bytes of pushes to it that brought their content alone and have not ended; nil: none; guarded by mu
	calls    map[uint64]*call
	ops      map[uint64]*hostOp
	queues   map[uint64]*Queue
	inARow   []*Queue // the same, for who looks at all of them
	contexts map[*Context]struct{}

	partitions map[*partition]struct{} // made at the worker; guarded by mu

	grant  grant
	riding atomic.Uint64 // see carries

	segMu    sync.Mutex
	segments map[uint64]bool // sent to the worker

	// copied orders what goroutines here copy, and what the program writes before it ends a user event, before what the
	// worker then says of it: through the shared rings and sockets it is ordered too, but neither Go's memory model nor its
	// race detector knows them.
	copied atomic.Uint64

	reader      reader
	traceNumber uint32 // in a trace; immutable
}

var errVersion = errors.New("the worker speaks another protocol version; install one version of tendril for both")

// startWorker asks the daemon for a worker and greets it.
func startWorker(p *Platform) (*worker, error) {
	if p.control == nil {
		return nil, errors.New("no daemon")
	}
	w := &worker{
		d: p.d, platform: p, spin: p.d.cfg.Spin, settled: make(chan struct{}), segments: map[uint64]bool{},
		events: map[uint64]*Event{}, calls: map[uint64]*call{}, ops: map[uint64]*hostOp{},
		queues: map[uint64]*Queue{}, contexts: map[*Context]struct{}{}, partitions: map[*partition]struct{}{},
	}
	open := p.openLocal
	if remote, ok := p.control.(RemoteControl); ok {
		w.spin = p.d.cfg.RemoteSpin
		open = func(w *worker) error { return p.openRemote(remote, w) }
	}
	if err := open(w); err != nil {
		return nil, fmt.Errorf("start a worker for %s: %w", text(p.info[platformName]), err)
	}
	w.prepareTrace()
	if err := w.reader.start(w); err != nil {
		w.link.Close()
		p.control.CloseWorker(w.id)
		return nil, err
	}
	if err := w.greet(); err != nil {
		w.close()
		return nil, err
	}
	w.startTrace()
	if limits := clwire.NewTimeLimits(w.d.cfg.KernelTime, w.d.cfg.BuildTime); limits != (clwire.TimeLimits{}) {
		w.tell(&limits)
	}
	return w, nil
}

// openLocal asks the node's daemon for a worker and maps its ring.
func (p *Platform) openLocal(w *worker) error {
	began := p.d.began()
	files, err := p.control.OpenWorker(p.index)
	p.d.tripped(began, trace.CauseStartWorker, nil, "")
	if err != nil {
		return err
	}
	conn, err := link.New(link.Client, files.Ring, files.Socket)
	if err = errors.Join(err, files.Ring.Close(), files.Socket.Close()); err != nil {
		p.control.CloseWorker(files.ID)
		return err
	}
	w.id, w.link = files.ID, conn
	return nil
}

func (w *worker) greet() error {
	hello := &clwire.Hello{Version: clwire.Version, SpinMicros: uint32(w.spin / time.Microsecond), Program: w.d.cfg.Program}
	c, err := w.ask(hello)
	if err != nil {
		return fmt.Errorf("the worker does not answer: %w", err)
	}
	if w.dead.Load() {
		return fmt.Errorf("the worker does not answer: %w", errDead)
	}
	var reply clwire.HelloReply
	if c.status != Success {
		return fmt.Errorf("%w (status %d)", errVersion, c.status)
	}
	if err := reply.Decode(c.data); err != nil || reply.Version != clwire.Version {
		return fmt.Errorf("%w: it has %d, this library %d", errVersion, reply.Version, clwire.Version)
	}
	w.capabilities = reply.Capabilities
	w.bulk.allowCompression()
	return nil
}

// errDead is what waiting for a dead worker gives.
var errDead = errors.New("the worker is gone")

// send publishes a one-way record. Its error is for control flow only: the death itself was told already.
func (w *worker) send(m clwire.Message, flags uint16, request uint64) error {
	if w.dead.Load() {
		return errDead
	}
	if err := w.link.Send(m, flags, request); err != nil {
		if !errors.Is(err, link.ErrTooLong) {
			w.die(err)
		}
		return err
	}
	return nil
}

// tell is send for records whose failure shows elsewhere: releases, flushes.
func (w *worker) tell(m clwire.Message) {
	_ = w.send(m, 0, 0) // a dead worker has forgotten the object anyway
}

// mention is tell for what is in no hurry at all, the release of an event that has ended: across a network it goes with whatever is sent next. Sent
// by itself, for each report of a chain's ends, it woke a thread here to send it and the worker's reader for nothing.
func (w *worker) mention(m clwire.Message) {
	_ = w.send(m, clwire.FlagMore, 0)
}

// begin registers a request; the caller sends it with the number.
func (w *worker) begin(then func(*call)) (*call, uint64) {
	c := &call{then: then}
	request := w.d.newID()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls[request] = c
	return c, request
}

// ask sends a request and waits for its Reply.
func (w *worker) ask(m clwire.Message) (*call, error) {
	cause, detail := causeOf(m)
	return w.askFor(cause, detail, m)
}

// askFor is ask, for a cause that the message does not tell.
func (w *worker) askFor(cause trace.Cause, detail string, m clwire.Message) (*call, error) {
	c, request := w.begin(nil)
	c.cause, c.detail = cause, detail
	if err := w.send(m, clwire.FlagUrgent, request); err != nil {
		w.forget(request)
		w.awaitSettled()
		return nil, err
	}
	return c, w.await(c)
}

// awaitSettled makes sure that a call which fails because its worker died is not back before its events have failed, too. It is for a program's
// thread, never for what die calls.
func (w *worker) awaitSettled() {
	if w.dead.Load() {
		<-w.settled
	}
}

// awaitLanded returns once nothing of a dead worker's touches the program's memory any more: the program has the memory back with the
// failure. It is for calls of the program's.
func (w *worker) awaitLanded() {
	w.awaitSettled()
	for w.hosting.Load() > 0 {
		time.Sleep(20 * time.Microsecond) // copies in memory
	}
}

// await waits for a call that was sent.
func (w *worker) await(c *call) error {
	began := w.d.began()
	arrived := w.reader.wait(&c.completion, w.spin)
	w.d.tripped(began, c.cause, w, c.detail)
	if !arrived {
		return errDead
	}
	return nil
}

func (w *worker) addQueue(q *Queue) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queues[q.id] = q
	w.inARow = append(w.inARow, q)
}

func (w *worker) dropQueueLocked(q *Queue) {
	delete(w.queues, q.id)
	if i := slices.Index(w.inARow, q); i >= 0 {
		w.inARow = slices.Delete(w.inARow, i, i+1)
	}
}

func (w *worker) forget(request uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.calls, request)
}

// addSegment makes a segment known to the worker before the record that names it.
func (w *worker) addSegment(s *Segment) error {
	w.segMu.Lock()
	defer w.segMu.Unlock()
	if w.segments[s.ID] {
		return nil
	}
	if w.dead.Load() {
		return errDead
	}
	if err := w.link.SendFD(s.File); err != nil {
		w.die(err)
		return err
	}
	if err := w.send(&clwire.AddSegment{ID: s.ID, Bytes: uint64(len(s.Bytes))}, 0, 0); err != nil {
		return err
	}
	w.segments[s.ID] = true
	return nil
}

func (w *worker) dropSegment(id uint64) {
	w.segMu.Lock()
	defer w.segMu.Unlock()
	if w.segments[id] {
		delete(w.segments, id)
		w.tell(&clwire.DropSegment{ID: id})
	}
}

// dispatch handles one record of the worker. It runs under the reader's lock.
func (w *worker) dispatch(h clwire.Header, payload []byte) error {
	w.traceRecord(h.Type, len(payload), trace.FlagFromWorker)
	w.riding.Store(0)
	switch h.Type {
	case clwire.TypeReply:
		return w.onReply(h, payload)
	case clwire.TypeEvents:
		return w.onEvents(payload)
	case clwire.TypeHostReady:
		return w.onHostReady(payload)
	case clwire.TypeFault:
		return w.onFault(payload)
	case clwire.TypeBulkLength:
		w.reader.progress = true
		return w.onLength(payload)
	case clwire.TypeBulkData, clwire.TypeBulkDone:
		return w.onBulk(h, payload)
	case clwire.TypeTraceData:
		return w.onTraceData(payload)
	case clwire.TypePeerState:
		return w.onPeerState(payload)
	case clwire.TypePrint:
		w.d.cfg.Print(append([]byte(nil), payload...))
		return nil
	}
	return fmt.Errorf("%w: unexpected %v", clwire.ErrRecord, h.Type)
}

func (w *worker) onBulk(h clwire.Header, payload []byte) error {
	switch {
	case w.bulk == nil:
		return fmt.Errorf("%w: unexpected %v", clwire.ErrRecord, h.Type)
	case h.Type == clwire.TypeBulkData:
		return w.bulk.onData(payload)
	}
	w.reader.progress = true
	return w.bulk.onDone(payload)
}

// maxReplyBytes bounds what a worker may make this process keep for one answer.
const maxReplyBytes = clwire.MaxBlob

func (w *worker) onReply(h clwire.Header, payload []byte) error {
	var m clwire.Reply
	if err := m.Decode(payload); err != nil {
		return err
	}
	w.mu.Lock()
	c := w.calls[h.Request]
	if c != nil && h.Flags&clwire.FlagMore == 0 {
		delete(w.calls, h.Request)
	}
	w.mu.Unlock()
	if c == nil {
		return nil // nobody waits any more
	}
	if len(c.data)+len(m.Data) > maxReplyBytes {
		return fmt.Errorf("%w: an answer of more than %d bytes", clwire.ErrRecord, maxReplyBytes)
	}
	c.data = append(c.data, m.Data...)
	c.status = Status(m.Status)
	if h.Flags&clwire.FlagMore == 0 {
		w.complete(c)
	}
	return nil
}

func (w *worker) complete(c *call) {
	if c.then != nil {
		c.then(c)
	}
	c.done.Store(true)
	w.reader.progress = true
}

func (w *worker) onEvents(payload []byte) error {
	m := &w.reader.ends
	if err := m.Decode(payload); err != nil {
		return err
	}
	for i := range m.Ends {
		end := &m.Ends[i]
		w.mu.Lock()
		e := w.events[end.Event]
		if e != nil && end.Status <= 0 {
			delete(w.events, end.Event)
		}
		w.mu.Unlock()
		if e != nil {
			e.report(end)
			w.reader.progress = true
		}
	}
	return nil
}

func (w *worker) onHostReady(payload []byte) error {
	_ = w.copied.Load()
	var m clwire.HostReady
	if err := m.Decode(payload); err != nil {
		return err
	}
	if w.bulk != nil && w.bulk.onReady(m.Op, Status(m.Status)) {
		w.reader.progress = true
		return nil
	}
	if op := w.takeOp(m.Op); op != nil {
		op.ready(Status(m.Status))
		w.reader.progress = true
	}
	return nil
}

// takeOp takes an operation that waits for HostReady, for the one who is to end it; nil: somebody else has.
func (w *worker) takeOp(id uint64) *hostOp {
	w.mu.Lock()
	defer w.mu.Unlock()
	op := w.ops[id]
	delete(w.ops, id)
	return op
}

func (w *worker) onFault(payload []byte) error {
	var m clwire.Fault
	if err := m.Decode(payload); err != nil {
		return err
	}
	w.mu.Lock()
	q := w.queues[m.Queue]
	contexts := make([]*Context, 0, len(w.contexts))
	for c := range w.contexts {
		contexts = append(contexts, c)
	}
	w.mu.Unlock()
	if q != nil {
		q.latch(Status(m.Status))
		contexts = []*Context{q.ctx}
	}
	for _, c := range contexts {
		c.notify(m.Text)
	}
	return nil
}

// die ends the worker's life for this client: everything outstanding fails, the contexts are told. Only the first
// call has an effect. It takes leaf locks only.
func (w *worker) die(cause error) {
	if w.dead.Swap(true) {
		return
	}
	w.link.Shutdown()
	if w.bulk != nil {
		w.bulk.end()
	}
	if w.resumer != nil {
		w.resumer.noteLoss() // it ends
	}
	w.mu.Lock()
	events, calls, ops, contexts := w.events, w.calls, w.ops, w.contexts
	w.events, w.calls, w.ops = map[uint64]*Event{}, map[uint64]*call{}, map[uint64]*hostOp{}
	w.contexts = map[*Context]struct{}{}
	w.mu.Unlock()
	for _, c := range calls {
		c.status, c.data = OutOfResources, nil
		if c.then != nil {
			c.then(c)
		}
		c.done.Store(true)
	}
	for _, op := range ops {
		op.ready(OutOfResources)
	}
	for _, e := range events {
		if !e.hosted.Load() {
			e.fail(OutOfResources)
		}
	}
	close(w.settled)
	w.reader.wakeAll()
	if !w.closed.Load() {
		w.d.telling.Add(1)
		go w.tellFate(cause, contexts)
	}
}

// tellFate says on standard error and through the contexts' callbacks how the worker ended.
func (w *worker) tellFate(cause error, contexts map[*Context]struct{}) {
	fate := cause.Error()
	if how := w.fate(); how != "" {
		fate = how
	}
	line := fmt.Sprintf("tendril: the worker of %s ended: %s; its contexts answer CL_OUT_OF_RESOURCES, a new context gets a new worker",
		text(w.platform.info[platformName]), fate)
	w.d.cfg.Log(line)
	w.d.telling.Add(-1) // before the callbacks: one of them may end the program
	for c := range contexts {
		c.notify(line)
	}
}

// fatePatience bounds how long a context's callback waits for the daemon's word on a dead worker: a daemon that cannot be
// reached answers only when its connection is given up.
const fatePatience = 3 * time.Second

// fate asks the daemon how the worker ended: "" when it does not know, or does not say in time.
func (w *worker) fate() string {
	answer := make(chan string, 1)
	go func() {
		alive, how, err := w.platform.control.WorkerFate(w.id)
		if err != nil || alive {
			how = ""
		}
		answer <- how
	}()
	select {
	case how := <-answer:
		return how
	case <-time.After(fatePatience):
		return ""
	}
}

// close ends the worker from this side and joins the background reader.
func (w *worker) close() {
	w.closed.Store(true)
	w.die(errDead)
	w.resumer.close()
	if w.bulk != nil {
		w.bulk.close()
	}
	w.reader.stop()
	w.platform.control.CloseWorker(w.id)
}

// eventFD makes a descriptor for wake-ups above the standard ones, which a program may close and reuse.
func eventFD() (int, error) {
	low, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, fmt.Errorf("eventfd: %w", err)
	}
	defer unix.Close(low)
	fd, err := unix.FcntlInt(uintptr(low), unix.F_DUPFD_CLOEXEC, 10)
	if err != nil {
		return -1, fmt.Errorf("duplicate an eventfd: %w", err)
	}
	return fd, nil
}
