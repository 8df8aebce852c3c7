package ways

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/conn"
	"tendril/forwarding/session/memory"
	"tendril/forwarding/session/mirror"
	"tendril/forwarding/session/node"
	"tendril/forwarding/trace"
)

// fakeSource gives segments of the test's own memory, as long as it has any.
type fakeSource struct {
	mu    sync.Mutex
	left  uint64 // bytes
	next  uint64
	alive map[uint64]*node.Segment
}

func (f *fakeSource) AllocSegment(size uint64, _ func()) (*node.Segment, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if size > f.left {
		return nil, errors.New("no more memory")
	}
	f.left -= size
	f.next++
	s := &node.Segment{ID: f.next, Bytes: make([]byte, size)}
	f.alive[s.ID] = s
	return s, nil
}

func (f *fakeSource) FreeSegment(s *node.Segment) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left += uint64(len(s.Bytes))
	delete(f.alive, s.ID)
}

func (f *fakeSource) ForgetSegment(*node.Segment) {}
func (f *fakeSource) Log(string)                  {}

func (f *fakeSource) bytes(t *clwire.Transfer) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.alive[t.Segment].Bytes[t.SegmentOffset:]
}

// fakeBuffer is a buffer, or (element) an image of the given extent, and its device's memory.
type fakeBuffer struct {
	id      uint64
	data    []byte
	mapped  bool
	special bool
	element uint64
	extent  [3]uint64 // x in bytes
	refuse  api.Status
	gone    bool // the program has released it
	kept    atomic.Int32
	pins    atomic.Int32
}

func (b *fakeBuffer) Number() uint64         { return b.id }
func (b *fakeBuffer) Reach(Queue) api.Status { return b.refuse }
func (b *fakeBuffer) Special() bool          { return b.special }
func (b *fakeBuffer) ElementBytes() uint64   { return b.element }
func (b *fakeBuffer) Pin()                   { b.pins.Add(1) }
func (b *fakeBuffer) Unpin()                 { b.pins.Add(-1) }

func (b *fakeBuffer) Mapped() []byte {
	if b.mapped {
		return b.data
	}
	return nil
}

func (b *fakeBuffer) Keep() (done func(), status api.Status) {
	if b.gone {
		return nil, cl.INVALID_MEM_OBJECT
	}
	b.kept.Add(1)
	return func() { b.kept.Add(-1) }, cl.SUCCESS
}

// place is where byte i of a shape's dense range lies.
func (b *fakeBuffer) place(s *clwire.Shape, i uint64) uint64 {
	if !s.Rect {
		return s.Offset + i
	}
	x, y, z := i%s.Region[0], i/s.Region[0]%s.Region[1], i/s.Region[0]/s.Region[1]
	row, slice := s.RowPitch, s.SlicePitch
	if b.element != 0 {
		row, slice = b.extent[0], b.extent[0]*b.extent[1]
	}
	return (s.Origin[2]+z)*slice + (s.Origin[1]+y)*row + s.Origin[0] + x
}

func shapeBytes(s *clwire.Shape) uint64 {
	if s.Rect {
		return s.Region[0] * s.Region[1] * s.Region[2]
	}
	return s.Size
}

// take puts dense bytes into the buffer, give takes them out.
func (b *fakeBuffer) take(s *clwire.Shape, dense []byte) {
	if !s.Rect {
		copy(b.data[s.Offset:], dense[:s.Size])
		return
	}
	for i := range shapeBytes(s) {
		b.data[b.place(s, i)] = dense[i]
	}
}

func (b *fakeBuffer) give(s *clwire.Shape, dense []byte) {
	if !s.Rect {
		copy(dense, b.data[s.Offset:][:s.Size])
		return
	}
	for i := range shapeBytes(s) {
		dense[i] = b.data[b.place(s, i)]
	}
}

// fakeEvent is an event as the session has it.
type fakeEvent struct {
	id     uint64
	status atomic.Int32
	timed  bool
	read   UnfinishedRead
	hosted atomic.Bool
	letGo  atomic.Int32
}

func (e *fakeEvent) Number() uint64           { return e.id }
func (e *fakeEvent) Status() int32            { return e.status.Load() }
func (e *fakeEvent) Timed() bool              { return e.timed }
func (e *fakeEvent) LetGo()                   { e.letGo.Add(1) }
func (e *fakeEvent) Host()                    { e.hosted.Store(true) }
func (e *fakeEvent) SetRead(x UnfinishedRead) { e.read = x }
func (e *fakeEvent) Fail(s api.Status)        { e.report(int32(s)) }

func (e *fakeEvent) EndHere(s api.Status) {
	e.id = 0
	e.Advance(int32(s))
}

func (e *fakeEvent) Advance(status int32) {
	for now := e.status.Load(); now > 0 && !e.status.CompareAndSwap(now, status); now = e.status.Load() {
	}
}

func (e *fakeEvent) report(status int32) {
	if e.read != nil {
		status = e.read.End(status)
	}
	e.Advance(status)
}

// fakeCommand is a command that the worker has and has not carried out.
type fakeCommand struct {
	q    *fakeQueue
	m    clwire.Message
	wait []uint64
	e    *fakeEvent
	seq  uint64
	open bool // of a Host command: its gate was opened
}

// fakeWorker carries commands out when somebody waits, one at a time, in the order of each queue and of the events.
type fakeWorker struct {
	t      testing.TB
	source *fakeSource
	inline bool // the control stream has room
	dead   atomic.Bool
	fail   api.Status // how the next command ends
	// whether the next command is carried out before this side hears of the oldest end; nil: never
	late func() bool

	turn sync.Mutex // held while a command is carried out

	mu      sync.Mutex
	pending []*fakeCommand
	ends    []func()            // that this side has not heard of
	over    map[*fakeEvent]bool // at the worker
	sent    []clwire.Message
	buffers map[uint64]*fakeBuffer
	events  map[uint64]*fakeEvent
	gates   map[uint64]*conn.Gate
	done    map[uint64]int32 // HostDone by op
	ops     map[uint64]*fakeOperation
	causes  []trace.Cause
	shares  int
	refuse  bool // Share fails
	hosting atomic.Int32
}

func (w *fakeWorker) Dead() bool      { return w.dead.Load() }
func (w *fakeWorker) Away() bool      { return false }
func (w *fakeWorker) Poll()           {}
func (w *fakeWorker) Kick()           {}
func (w *fakeWorker) MemoryWritten()  {}
func (w *fakeWorker) Began() int64    { return 0 }
func (w *fakeWorker) Hosting(n int32) { w.hosting.Add(n) }

func (w *fakeWorker) FitsInline(size uint64) bool { return w.inline || size <= 32<<10 }
func (w *fakeWorker) ReadPromptly() (done func()) { return func() {} }

func (w *fakeWorker) Share(*node.Segment) error {
	if w.shares++; w.refuse {
		return errors.New("no")
	}
	return nil
}

func (w *fakeWorker) Tripped(_ int64, cause trace.Cause, _ string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.causes = append(w.causes, cause)
}

func (w *fakeWorker) SendOneWay(m clwire.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = append(w.sent, m)
	if done, ok := m.(*clwire.HostDone); ok {
		w.done[done.Op] = done.Status
	}
}

func (w *fakeWorker) AddGate(id uint64, g *conn.Gate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gates[id] = g
}

func (w *fakeWorker) TakeGate(id uint64) *conn.Gate {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.gates[id]
	delete(w.gates, id)
	return g
}

// fakeOperation is a bulk operation whose bytes are there at once.
type fakeOperation struct {
	*conn.BulkOp
	w     *fakeWorker
	owner conn.BulkOwner
	ended atomic.Bool
}

func (o *fakeOperation) Send(bool) {}

func (o *fakeOperation) Register() bool {
	o.w.mu.Lock()
	defer o.w.mu.Unlock()
	o.w.ops[o.ID] = o
	return !o.w.Dead()
}

func (o *fakeOperation) Finish(status int32) {
	if !o.ended.Swap(true) {
		o.Status = status
		o.owner.Ended(status)
		o.Complete()
	}
}

func (w *fakeWorker) Operate(o *conn.BulkOp, owner conn.BulkOwner) Operation {
	o.ID = numbers.Add(1)
	return &fakeOperation{BulkOp: o, w: w, owner: owner}
}

// Wait carries commands out until it has happened.
func (w *fakeWorker) Wait(it *conn.Completion) (arrived bool) {
	for !it.Done() {
		if w.Dead() {
			return false
		}
		if !w.step() {
			runtime.Gosched() // a goroutine of the session's has something to do
		}
	}
	return true
}

func (w *fakeWorker) AskEvent(id uint64) (await func() int32) {
	return func() int32 { return w.WaitEvents(trace.CauseWait, id) }
}

func (w *fakeWorker) WaitEvents(cause trace.Cause, ids ...uint64) int32 {
	w.Tripped(0, cause, "")
	for _, id := range ids {
		w.mu.Lock()
		e := w.events[id]
		w.mu.Unlock()
		for e.Status() > 0 {
			if w.Dead() {
				return cl.OUT_OF_RESOURCES
			}
			if !w.step() {
				runtime.Gosched()
			}
		}
		if e.Status() < 0 {
			return cl.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST
		}
	}
	return 0
}

// finish carries everything out.
func (w *fakeWorker) finish() {
	for w.left() > 0 {
		if !w.step() {
			runtime.Gosched()
		}
	}
}

func (w *fakeWorker) left() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.pending) + len(w.ends)
}

// step carries out one command that may run; false: there is none now.
func (w *fakeWorker) step() bool {
	w.turn.Lock()
	defer w.turn.Unlock()
	c := w.next()
	if c == nil || w.unheard() && !w.late() {
		return w.tell()
	}
	status, over := w.run(c)
	if !over {
		return true
	}
	w.mu.Lock()
	w.pending = slices.DeleteFunc(w.pending, func(x *fakeCommand) bool { return x == c })
	w.over[c.e] = true
	w.ends = append(w.ends, func() {
		if c.e != nil {
			c.e.report(status)
		}
		if status == 0 {
			c.q.Ended(c.seq)
		}
	})
	w.mu.Unlock()
	if w.late == nil {
		w.tell()
	}
	return true
}

func (w *fakeWorker) unheard() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.ends) > 0
}

// tell has this side hear of the oldest end; false: of all.
func (w *fakeWorker) tell() bool {
	w.mu.Lock()
	if len(w.ends) == 0 {
		w.mu.Unlock()
		return false
	}
	end := w.ends[0]
	w.ends = w.ends[1:]
	w.mu.Unlock()
	end()
	return true
}

// next is a command whose turn has come and that has something to do.
func (w *fakeWorker) next() *fakeCommand {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := map[*fakeQueue]bool{}
	for _, c := range w.pending {
		before := seen[c.q]
		if seen[c.q] = true; before && !c.q.state.OutOfOrder || !w.readyLocked(c) {
			continue
		}
		if host, ok := c.m.(*clwire.Host); ok && c.open {
			if _, done := w.done[host.Op]; !done {
				continue
			}
		}
		return c
	}
	return nil
}

func (w *fakeWorker) readyLocked(c *fakeCommand) bool {
	return !slices.ContainsFunc(c.wait, func(id uint64) bool {
		e := w.events[id]
		return e.Status() > 0 && !w.over[e]
	})
}

// run carries a command out. over false: it is not over yet.
func (w *fakeWorker) run(c *fakeCommand) (status int32, over bool) {
	if w.fail != 0 {
		status, w.fail = int32(w.fail), 0
		if m, ok := c.m.(*clwire.BulkRead); ok {
			w.ops[m.Op].Finish(status)
		}
		return status, true
	}
	switch m := c.m.(type) {
	case *clwire.Marker:
	case *clwire.WriteInline:
		w.buffers[m.Buffer].take(&clwire.Shape{Offset: m.Offset, Size: uint64(len(m.Data))}, m.Data)
	case *clwire.WriteImageInline:
		w.buffers[m.Image].take(&clwire.Shape{Rect: true, Origin: m.Origin, Region: m.Region}, m.Data)
	case *clwire.Transfer:
		shape := clwire.Shape{Rect: m.Rect, Offset: m.Offset, Size: m.Size, Origin: m.Origin, Region: m.Region,
			RowPitch: m.RowPitch, SlicePitch: m.SlicePitch}
		if m.Direction == clwire.ToBuffer {
			w.buffers[m.Buffer].take(&shape, w.source.bytes(m))
		} else {
			w.buffers[m.Buffer].give(&shape, w.source.bytes(m))
		}
	case *clwire.Host:
		return w.host(c, m)
	case *clwire.BulkWrite:
		o := w.ops[m.Op]
		if o.Before != nil {
			o.Before()
		}
		w.buffers[m.Buffer].take(&m.Shape, o.owner.Append(nil, 0, o.Size))
		o.Finish(0)
	case *clwire.BulkRead:
		w.read(w.ops[m.Op], m)
	default:
		w.t.Errorf("a command of type %T", m)
	}
	return 0, true
}

// read brings a read's bytes in the chunks that its owner asks for.
func (w *fakeWorker) read(o *fakeOperation, m *clwire.BulkRead) {
	dense := make([]byte, o.Size)
	w.buffers[m.Buffer].give(&m.Shape, dense)
	for at := uint64(0); at < o.Size; {
		n := o.owner.Chunk(at)
		if o.OnePiece {
			copy(o.owner.Bytes(at, n), dense[at:])
		} else {
			o.owner.Scatter(at, dense[at:at+n])
		}
		at += n
	}
	o.Finish(0)
}

// host opens the gate of a command of this side's, and ends it once this side has said so.
func (w *fakeWorker) host(c *fakeCommand, m *clwire.Host) (status int32, over bool) {
	if c.open {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.done[m.Op], true
	}
	g := w.TakeGate(m.Op)
	if c.open = true; g == nil {
		w.t.Error("a command of this side's has no gate")
		return 0, true
	}
	w.mu.Lock()
	w.ends = append(w.ends, func() {
		g.Complete()
		if g.Then != nil {
			g.Then()
		}
	})
	w.mu.Unlock()
	if w.late == nil {
		w.tell()
	}
	return 0, false
}

// die ends the worker: nothing more is carried out, and who waits is told.
func (w *fakeWorker) die() {
	w.dead.Store(true)
	w.mu.Lock()
	events, ops, gates := w.events, w.ops, w.gates
	w.pending, w.gates = nil, map[uint64]*conn.Gate{}
	w.mu.Unlock()
	for _, o := range ops {
		o.Finish(cl.OUT_OF_RESOURCES)
	}
	for _, g := range gates {
		g.Status = cl.OUT_OF_RESOURCES
		g.Complete()
		if g.Then != nil {
			g.Then()
		}
	}
	for _, e := range events {
		if !e.hosted.Load() {
			e.report(cl.OUT_OF_RESOURCES)
		}
	}
}

// numbers are those of events, operations and all else that has one.
var numbers atomic.Uint64

// fakeQueue is a queue of one worker's.
type fakeQueue struct {
	w       *fakeWorker
	state   State
	watched bool

	mu   sync.Mutex
	sent uint64
	over atomic.Uint64
}

func (q *fakeQueue) Worker() Worker         { return q.w }
func (q *fakeQueue) Watched() bool          { return q.watched }
func (q *fakeQueue) Passed(seq uint64) bool { return q.over.Load() >= seq || q.w.Dead() }
func (q *fakeQueue) RequestCompletionMark() {}

func (q *fakeQueue) Together(do func(Submitter)) { do(q) }

func (q *fakeQueue) Sent() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.sent
}

func (q *fakeQueue) State() State {
	s := q.state
	s.Idle = q.over.Load() == q.Sent()
	return s
}

func (q *fakeQueue) NewEvent(uint32) Event { return newFakeEvent(q.state.Timed) }

func newFakeEvent(timed bool) *fakeEvent {
	e := &fakeEvent{id: numbers.Add(1), timed: timed}
	e.status.Store(cl.QUEUED)
	return e
}

func (q *fakeQueue) Ended(seq uint64) {
	for now := q.over.Load(); now < seq && !q.over.CompareAndSwap(now, seq); now = q.over.Load() {
	}
}

func (q *fakeQueue) Submit(m clwire.Message, _ *clwire.Cmd, e Event, wait []uint64, first Positioned) (uint64,
	api.Status) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if first != nil && !first.At(q.sent+1) || q.w.Dead() {
		return q.sent + 1, cl.OUT_OF_RESOURCES
	}
	q.sent++
	c := &fakeCommand{q: q, m: m, wait: wait, seq: q.sent}
	w := q.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if e != nil {
		c.e = e.(*fakeEvent)
		w.events[c.e.id] = c.e
	}
	w.pending, w.sent = append(w.pending, c), append(w.sent, m)
	return c.seq, cl.SUCCESS
}

func (q *fakeQueue) SubmitHost(op uint64, e Event, wait []uint64) (uint64, api.Status) {
	m := &clwire.Host{Op: op}
	return q.Submit(m, &m.Cmd, e, wait, nil)
}

func (q *fakeQueue) SubmitInline(buffer, offset uint64, data []byte, e Event, wait []uint64) api.Status {
	m := &clwire.WriteInline{Buffer: buffer, Offset: offset, Data: slices.Clone(data)}
	_, status := q.Submit(m, &m.Cmd, e, wait, nil)
	return status
}

func (q *fakeQueue) AskFinish() (await func(), status api.Status) {
	if q.w.Dead() {
		return nil, cl.OUT_OF_RESOURCES
	}
	return func() { q.w.finish() }, cl.SUCCESS
}

// rig is a context of one queue, over fakes.
type rig struct {
	*Context
	t          *testing.T
	source     *fakeSource
	w          *fakeWorker
	q, own     *fakeQueue
	background sync.WaitGroup
	mirrors    mirror.List
}

// newRig makes a context whose bytes lie in shared memory (inPlace), on another machine (remote), or in a driver's
// memory. The test fails for what is left when it is over.
func newRig(t *testing.T, inPlace, remote bool) *rig {
	source := &fakeSource{left: 256 << 20, alive: map[uint64]*node.Segment{}}
	w := &fakeWorker{t: t, source: source, buffers: map[uint64]*fakeBuffer{}, events: map[uint64]*fakeEvent{},
		gates: map[uint64]*conn.Gate{}, done: map[uint64]int32{}, ops: map[uint64]*fakeOperation{},
		over: map[*fakeEvent]bool{}}
	r := &rig{t: t, source: source, w: w, q: &fakeQueue{w: w}, own: &fakeQueue{w: w}}
	s := &Session{Slabs: memory.New(source), NewID: func() uint64 { return numbers.Add(1) }, Background: &r.background}
	r.Context = &Context{Session: s, InPlace: inPlace, Remote: remote, Mirrors: &r.mirrors,
		MoveQueue: func() (Queue, api.Status) { return r.own, cl.SUCCESS }}
	t.Cleanup(r.check)
	return r
}

func (r *rig) check() {
	if !r.w.Dead() {
		r.w.finish()
	}
	r.background.Wait()
	if n, bytes := r.Reads.Len(), r.StagedBytes(); n != 0 || bytes != 0 {
		r.t.Errorf("%d reads of %d bytes are still under way", n, bytes)
	}
	for _, b := range r.w.buffers {
		if kept, pins := b.kept.Load(), b.pins.Load(); kept != 0 || pins != 0 {
			r.t.Errorf("a buffer is kept by %d and pinned by %d", kept, pins)
		}
	}
	if n := r.w.hosting.Load(); n != 0 {
		r.t.Errorf("%d commands may touch the program's memory", n)
	}
	if n := r.Staging.Held(); n != 0 {
		r.t.Errorf("commands have %d chunks", n)
	}
}

// buffer makes a buffer of size bytes, which the test fills.
func (r *rig) buffer(size int) *fakeBuffer {
	b := &fakeBuffer{id: numbers.Add(1), data: make([]byte, size), mapped: r.InPlace}
	r.w.buffers[b.id] = b
	return b
}

// image makes an image of elements of 4 bytes.
func (r *rig) image(x, y, z uint64) *fakeBuffer {
	b := r.buffer(int(4 * x * y * z))
	b.element, b.extent, b.mapped = 4, [3]uint64{4 * x, y, z}, false
	return b
}

// command makes a command of the queue.
func (r *rig) command(kind uint32) *Command {
	return &Command{Context: r.Context, Queue: r.q, Kind: kind}
}

func (r *rig) ok(status api.Status) {
	r.t.Helper()
	if status != cl.SUCCESS {
		r.t.Fatalf("status %d", status)
	}
}

// busy gives the queue a command that is carried out when somebody waits.
func (r *rig) busy() {
	m := &clwire.Marker{}
	_, status := r.q.Submit(m, &m.Cmd, nil, nil, nil)
	r.ok(status)
}

// sentSince are the commands sent, each by its type's name, from a place on.
func (r *rig) sentSince(from int) []clwire.Message {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	return slices.Clone(r.w.sent[from:])
}
