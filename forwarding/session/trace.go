package session

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
	"tendril/forwarding/trace"
)

// tracer is the session's half of `tendril trace`; nil where nobody traces. The calls themselves are appended by the C
// half of the driver library, which knows their threads.
type tracer struct {
	*trace.Writer
	numbers atomic.Uint32 // of workers
	kernels sync.Map      // kernel number → number of its name's text

	mu      sync.Mutex // leaf
	workers []*worker
	started bool // tend runs, or ran
	ended   bool
	stop    chan struct{}
	tending sync.WaitGroup
}

const (
	tendEvery    = 20 * time.Millisecond // what the worker told is taken off its ring so often at least
	compareEvery = time.Second           // and the clocks are compared, with a worker on another machine
	firstRounds  = 8                     // comparisons at the start
	laterRounds  = 3
	flushPause   = time.Second // a program's end waits no longer for what a worker has not yet told
)

func newTracer(w *trace.Writer) *tracer {
	if w == nil {
		return nil
	}
	return &tracer{Writer: w, stop: make(chan struct{})}
}

// began is the time of a trip's begin, 0 where nobody traces.
func (d *Driver) began() int64 {
	if d.trace == nil {
		return 0
	}
	return d.trace.Now()
}

// tripped counts a round trip that the caller has waited for. w is nil for one to the daemon.
func (d *Driver) tripped(began int64, cause trace.Cause, w *worker, detail string) {
	d.counters.Add(cause)
	t := d.trace
	if t == nil {
		return
	}
	r := trace.Record{Kind: trace.KindTrip, Time: began, X: t.Now(), Code: uint16(cause), Thread: uint32(unix.Gettid()), B: 1}
	if w != nil {
		r.Aux = w.traceNumber
	}
	if detail != "" {
		r.A = uint64(t.Text(trace.TextDetail, 0, detail))
	}
	t.Append(&r)
}

// tracedPush notes that bytes went from worker to worker.
func (d *Driver) tracedPush(began int64, from, to *worker, bytes uint64, status int32, lost bool) {
	if d.trace == nil {
		return
	}
	r := trace.Record{Kind: trace.KindPush, Time: began, X: d.trace.Now(), Aux: to.traceNumber, Thread: from.traceNumber, B: bytes, C: uint64(uint32(status))}
	if lost {
		r.Flags = trace.FlagLost
	}
	d.trace.Append(&r)
}

// tracedLink notes why there is no link between two workers.
func (d *Driver) tracedLink(ends [2]*worker, why error) {
	if d.trace != nil && why != nil {
		d.trace.Note(ends[0].traceNumber, fmt.Sprintf("no link between workers %d and %d, what goes between them passes the program: %v", ends[0].traceNumber, ends[1].traceNumber, why))
	}
}

// causeOf names why a request is waited for.
func causeOf(m clwire.Message) (trace.Cause, string) {
	switch m := m.(type) {
	case *clwire.Hello:
		return trace.CauseHello, ""
	case *clwire.BuildProgram:
		return trace.CauseBuild, string(m.Options)
	case *clwire.SetArg:
		return trace.CauseArgument, ""
	case *clwire.Query, *clwire.ImageFormats:
		return trace.CauseQuery, ""
	case *clwire.CreateProgram, *clwire.CreateImage, *clwire.CreateSubDevices, *clwire.SpecConstant:
		return trace.CauseCreate, m.Type().String()
	case *clwire.CompileProgram, *clwire.LinkProgram:
		return trace.CauseBuild, m.Type().String()
	case *clwire.Files:
		return trace.CauseFiles, ""
	case *clwire.Finish:
		return trace.CauseFinish, ""
	case *clwire.ClockSync:
		return trace.CauseClock, ""
	case *clwire.TraceFlush:
		return trace.CauseFlush, ""
	}
	return trace.CauseOther, m.Type().String()
}

// causeOfCommand names why a blocking command of this kind waits.
func causeOfCommand(kind uint32) trace.Cause {
	switch kind {
	case cmdRead, cmdReadRect, cmdReadImage:
		return trace.CauseRead
	case cmdWrite, cmdWriteRect, cmdWriteImage:
		return trace.CauseWrite
	case cmdMap, cmdMapImage:
		return trace.CauseMap
	}
	return trace.CauseOther
}

// causeOfTransfer is the same for a transfer, which may be one of the library's own: a new buffer's contents.
func causeOfTransfer(kind uint32, write bool) trace.Cause {
	if cause := causeOfCommand(kind); cause != trace.CauseOther {
		return cause
	}
	if write {
		return trace.CauseWrite
	}
	return trace.CauseRead
}

// traced notes a command that was sent. The caller holds q.mu.
func (q *Queue) traced(m clwire.Message) {
	t := q.d.trace
	if t == nil {
		return
	}
	q.tracedSeq++
	r := trace.Record{Kind: trace.KindSent, Time: t.Now(), X: int64(q.tracedSeq), Code: uint16(m.Type()), Aux: q.w.traceNumber,
		A: uint64(q.handle), B: q.id}
	switch m := m.(type) {
	case *clwire.NDRange:
		if name, ok := t.kernels.Load(m.Kernel); ok {
			r.Thread = name.(uint32)
		}
	case *clwire.WriteInline:
		r.C = uint64(len(m.Data))
	case *clwire.WriteImageInline:
		r.C = uint64(len(m.Data))
	case *clwire.Copy:
		r.C = m.Size
	case *clwire.CopyRect:
		r.C = m.Region[0] * m.Region[1] * m.Region[2]
	case *clwire.Fill:
		r.C = m.Size
	case *clwire.Transfer:
		r.C = m.Size
		if m.Rect {
			r.C = m.Region[0] * m.Region[1] * m.Region[2]
		}
	case *clwire.BulkWrite:
		r.C = shapeBytes(&m.Shape)
	case *clwire.BulkRead:
		r.C = shapeBytes(&m.Shape)
	}
	t.Append(&r)
}

func shapeBytes(s *clwire.Shape) uint64 {
	if s.Rect {
		return s.Region[0] * s.Region[1] * s.Region[2]
	}
	return s.Size
}

// traceKernel makes a kernel's launches carry its name.
func (d *Driver) traceKernel(id uint64, name string) {
	if t := d.trace; t != nil {
		t.kernels.Store(id, t.Text(trace.TextKernel, 0, name))
	}
}

func (d *Driver) forgetTraced(kernel uint64) {
	if t := d.trace; t != nil {
		t.kernels.Delete(kernel)
	}
}

// traceQueue names a queue in the trace.
func (d *Driver) traceQueue(q *Queue) {
	if t := d.trace; t != nil {
		t.Text(trace.TextQueue, q.id, text(q.device.info[devName]))
	}
}

// traceRecord notes a record of the control stream.
func (w *worker) traceRecord(typ clwire.Type, n int, flags uint8) {
	if t := w.d.trace; t != nil {
		t.Append(&trace.Record{Kind: trace.KindWire, Flags: flags, Time: t.Now(), Code: uint16(typ), Aux: w.traceNumber, B: uint64(clwire.HeaderBytes + n)})
	}
}

// traceChunk notes a chunk of n bytes that took its time on a lane, from began on, and wire bytes of it.
func (w *worker) traceChunk(began int64, lane int, op uint64, n, wire uint32, flags uint8) {
	if t := w.d.trace; t != nil {
		t.Append(&trace.Record{Kind: trace.KindWire, Flags: flags, Time: began, X: t.Now() - began, Aux: w.traceNumber,
			A: uint64(lane) + 1, B: uint64(clwire.LaneHeaderBytes) + uint64(wire), C: op, Thread: n})
	}
}

// prepareTrace numbers a worker before its first record.
func (w *worker) prepareTrace() {
	t := w.d.trace
	if t == nil {
		return
	}
	w.traceNumber = t.numbers.Add(1)
	name := text(w.platform.info[platformName])
	if w.bulk != nil {
		name += ", another machine"
	}
	t.Text(trace.TextWorker, uint64(w.traceNumber), name)
	w.link.SetTap(func(typ clwire.Type, n int) { w.traceRecord(typ, n, 0) })
}

// startTrace asks a worker that was greeted for its half, and compares the clocks.
func (w *worker) startTrace() {
	t := w.d.trace
	if t == nil {
		return
	}
	w.tell(w.traceOn())
	for range firstRounds {
		if w.compareClocks() {
			break
		}
	}
	switch {
	case w.bulk != nil && w.d.cfg.Plaintext:
		t.Note(w.traceNumber, "encryption: the data connections are in the clear, as --plaintext asks")
	case w.bulk == nil && w.capabilities&clwire.CapInPlace == 0:
		t.Note(w.traceNumber, "memory in place: the device has its own; what is written and read is copied through pinned shared memory")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.workers = append(t.workers, w)
	if !t.started && !t.ended {
		t.started = true
		t.tending.Go(t.tend)
	}
}

// traceOn passes a worker on this node the buffer itself; what it appends outlives this process.
func (w *worker) traceOn() *clwire.TraceOn {
	t := w.d.trace
	m := &clwire.TraceOn{Process: t.PID(), Worker: w.traceNumber}
	if w.bulk != nil {
		return m
	}
	f, err := t.Share()
	if err != nil {
		return m
	}
	defer f.Close()
	m.Shared = w.link.SendFD(f) == nil
	return m
}

// compareClocks notes one round trip, and reports whether it showed that the worker reads the same clock, as it does on
// one node (unless one of them is in a time namespace).
func (w *worker) compareClocks() (same bool) {
	t := w.d.trace
	c, request := w.begin(nil)
	sent := t.Now()
	if w.send(&clwire.ClockSync{}, clwire.FlagUrgent, request) != nil {
		w.forget(request)
		return false
	}
	arrived := w.reader.wait(&c.completion, w.spin)
	answered := t.Now()
	w.d.counters.Add(trace.CauseClock)
	var m clwire.ClockReply
	if !arrived || c.status != Success || m.Decode(c.data) != nil {
		return false
	}
	r := trace.Record{Kind: trace.KindClock, Time: sent, X: answered, Aux: w.traceNumber, A: uint64(m.Taken), B: uint64(m.Answered)}
	if same = w.bulk == nil && sent <= m.Taken && m.Answered <= answered; same {
		r.Flags = trace.FlagSameClock
		t.Text(trace.TextClock, uint64(w.traceNumber), "same")
	}
	t.Append(&r)
	return same
}

// onTraceData appends what a worker tells. It runs under the reader's lock.
func (w *worker) onTraceData(payload []byte) error {
	var m clwire.TraceData
	if err := m.Decode(payload); err != nil {
		return err
	}
	t := w.d.trace
	if t == nil {
		return nil
	}
	for i := range m.Commands {
		c := &m.Commands[i]
		half := trace.WorkerHalf{
			Worker: w.traceNumber, Queue: c.Queue, Seq: c.Seq, Type: uint16(c.Command), Device: c.DeviceNumber, Status: c.Status,
			Profiled: c.Profiled, Taken: c.Taken, Begun: c.Begun, Given: c.Given, Seen: c.Seen, Times: c.Device,
		}
		half.AppendTo(t.Writer)
	}
	if m.Lost > 0 {
		t.Note(w.traceNumber, trace.LostNote)
	}
	return nil
}

// tend takes what workers tell while the program does not wait, so that little is lost when it is killed, and compares
// the clocks now and then: they drift.
func (t *tracer) tend() {
	tick := time.NewTicker(tendEvery)
	defer tick.Stop()
	compared := time.Now()
	for {
		select {
		case <-t.stop:
			return
		case <-tick.C:
		}
		compare := time.Since(compared) > compareEvery
		for _, w := range t.alive() {
			w.reader.poll()
			for i := 0; compare && w.bulk != nil && i < laterRounds; i++ {
				w.compareClocks()
			}
		}
		if compare {
			compared = time.Now()
		}
	}
}

// alive returns the workers there are, and forgets those that died.
func (t *tracer) alive() []*worker {
	t.mu.Lock()
	defer t.mu.Unlock()
	kept := make([]*worker, 0, len(t.workers))
	for _, w := range t.workers {
		if !w.dead.Load() {
			kept = append(kept, w)
		}
	}
	t.workers = kept
	return kept
}

// EndTrace fetches what the workers have not yet told, for a second at most. The driver library calls it when the
// program exits; without a trace it does nothing.
func (d *Driver) EndTrace() {
	t := d.trace
	if t == nil {
		return
	}
	var asked sync.WaitGroup
	for _, w := range t.alive() {
		asked.Go(func() {
			if c, request := w.begin(nil); w.send(&clwire.TraceFlush{}, clwire.FlagUrgent, request) == nil {
				d.counters.Add(trace.CauseFlush)
				w.reader.wait(&c.completion, 0)
			}
		})
	}
	done := make(chan struct{})
	go func() { asked.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(flushPause):
	}
}

// close joins tend. The workers are closed afterwards.
func (t *tracer) close() {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	close(t.stop)
	t.tending.Wait()
}
