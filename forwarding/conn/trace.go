package conn

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/trace"
)

// Tracer is what a process's connections write of `tendril trace`; nil where nobody traces. The program's calls are
// appended by the C half of the driver library, which knows their threads.
type Tracer struct {
	*trace.Writer
	numbers atomic.Uint32 // of workers

	mu      sync.Mutex // leaf
	conns   []*Conn
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

// NewTracer makes a Tracer; nil where w is.
func NewTracer(w *trace.Writer) *Tracer {
	if w == nil {
		return nil
	}
	return &Tracer{Writer: w, stop: make(chan struct{})}
}

// Began is the time of a trip's begin, 0 where nobody traces.
func (t *Tracer) Began() int64 {
	if t == nil {
		return 0
	}
	return t.Now()
}

// Trip notes a round trip that the caller has waited for. worker is the number in the trace, 0 for a trip to the
// daemon.
func (t *Tracer) Trip(began int64, cause trace.Cause, worker uint32, detail string) {
	if t == nil {
		return
	}
	r := trace.Record{Kind: trace.KindTrip, Time: began, X: t.Now(), Code: uint16(cause), Thread: uint32(unix.Gettid()),
		Aux: worker, B: 1}
	if detail != "" {
		r.A = uint64(t.Text(trace.TextDetail, 0, detail))
	}
	t.Append(&r)
}

// tripped counts and notes a round trip.
func (c *Conn) tripped(began int64, cause trace.Cause, detail string) {
	c.opt.Counters.Add(cause)
	c.opt.Tracer.Trip(began, cause, c.traceNumber, detail)
}

// TraceNumber is the worker's number in the trace.
func (c *Conn) TraceNumber() uint32 { return c.traceNumber }

// causeOf names why a request is waited for.
func causeOf(m clwire.Message) (trace.Cause, string) {
	switch m := m.(type) {
	case *clwire.Hello:
		return trace.CauseHello, ""
	case *clwire.BuildProgram:
		return trace.CauseBuild, string(m.Options)
	case *clwire.SetArg:
		return trace.CauseArgument, ""
	case *clwire.Query:
		return trace.CauseQuery, queried(m)
	case *clwire.ImageFormats:
		return trace.CauseQuery, "clGetSupportedImageFormats"
	case *clwire.CreateProgram, *clwire.CreateImage, *clwire.CreateSVM, *clwire.CreateSubDevices, *clwire.SpecConstant:
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

// queried names what a query asks: the call that OpenCL has for it, and what of it costs time.
func queried(m *clwire.Query) string {
	switch m.Kind {
	case clwire.QueryProgram:
		switch m.Param {
		case cl.PROGRAM_BINARY_SIZES:
			return "clGetProgramInfo CL_PROGRAM_BINARY_SIZES"
		case cl.PROGRAM_BINARIES:
			return "clGetProgramInfo CL_PROGRAM_BINARIES"
		case cl.PROGRAM_KERNEL_NAMES:
			return "clGetProgramInfo CL_PROGRAM_KERNEL_NAMES"
		}
		return "clGetProgramInfo"
	case clwire.QueryProgramBuild:
		return "clGetProgramBuildInfo"
	case clwire.QueryKernelFacts:
		return "clCreateKernel " + string(m.Input)
	case clwire.QueryKernel:
		return "clGetKernelInfo"
	case clwire.QueryKernelArg:
		return "clGetKernelArgInfo"
	case clwire.QueryKernelWorkGroup:
		return "clGetKernelWorkGroupInfo"
	case clwire.QueryKernelSubGroup:
		return "clGetKernelSubGroupInfo"
	case clwire.QueryDeviceTimer:
		return "clGetDeviceAndHostTimer"
	}
	return ""
}

// traceRecord notes a record of the control stream.
func (c *Conn) traceRecord(typ clwire.Type, n int, flags uint8) {
	if t := c.opt.Tracer; t != nil {
		t.Append(&trace.Record{Kind: trace.KindWire, Flags: flags, Time: t.Now(), Code: uint16(typ), Aux: c.traceNumber,
			B: uint64(clwire.HeaderBytes + n)})
	}
}

// traceChunk notes a chunk of n bytes that took its time on a lane, from began on, and wire bytes of it.
func (c *Conn) traceChunk(began int64, lane int, op uint64, n, wire uint32, flags uint8) {
	if t := c.opt.Tracer; t != nil {
		t.Append(&trace.Record{Kind: trace.KindWire, Flags: flags, Time: began, X: t.Now() - began, Aux: c.traceNumber,
			A: uint64(lane) + 1, B: uint64(clwire.LaneHeaderBytes) + uint64(wire), C: op, Thread: n})
	}
}

// prepareTrace numbers a worker before its first record.
func (c *Conn) prepareTrace() {
	t := c.opt.Tracer
	if t == nil {
		return
	}
	c.traceNumber = t.numbers.Add(1)
	name := c.opt.Name
	if c.bulk != nil {
		name += ", another machine"
	}
	t.Text(trace.TextWorker, uint64(c.traceNumber), name)
	c.link.SetTap(func(typ clwire.Type, n int) { c.traceRecord(typ, n, 0) })
}

// startTrace asks a worker that was greeted for its half, and compares the clocks.
func (c *Conn) startTrace() {
	t := c.opt.Tracer
	if t == nil {
		return
	}
	c.SendOneWay(c.traceOn())
	for range firstRounds {
		if c.compareClocks() {
			break
		}
	}
	switch {
	case c.bulk != nil && c.opt.Plaintext:
		t.Note(c.traceNumber, "encryption: the data connections are in the clear, as --plaintext asks")
	case c.bulk == nil && c.capabilities&clwire.CapInPlace == 0:
		t.Note(c.traceNumber,
			"memory in place: the device has its own; what is written and read is copied through pinned shared memory")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conns = append(t.conns, c)
	if !t.started && !t.ended {
		t.started = true
		t.tending.Go(t.tend)
	}
}

// traceOn passes a worker on this node the buffer itself; what it appends outlives this process.
func (c *Conn) traceOn() *clwire.TraceOn {
	t := c.opt.Tracer
	m := &clwire.TraceOn{Process: t.PID(), Worker: c.traceNumber}
	if c.bulk != nil {
		return m
	}
	f, err := t.Share()
	if err != nil {
		return m
	}
	defer f.Close()
	m.Shared = c.link.SendFD(f) == nil
	return m
}

// compareClocks notes one round trip, and reports whether it showed that the worker reads the same clock, as it does
// on one node (unless one of them is in a time namespace).
func (c *Conn) compareClocks() (same bool) {
	t := c.opt.Tracer
	call, request := c.Begin(nil)
	sent := t.Now()
	if c.Send(&clwire.ClockSync{}, clwire.FlagUrgent, request) != nil {
		c.Forget(request)
		return false
	}
	arrived := c.Wait(&call.Completion)
	answered := t.Now()
	c.opt.Counters.Add(trace.CauseClock)
	var m clwire.ClockReply
	if !arrived || call.Status != cl.SUCCESS || m.Decode(call.Data) != nil {
		return false
	}
	r := trace.Record{Kind: trace.KindClock, Time: sent, X: answered, Aux: c.traceNumber, A: uint64(m.Taken),
		B: uint64(m.Answered)}
	if same = c.bulk == nil && sent <= m.Taken && m.Answered <= answered; same {
		r.Flags = trace.FlagSameClock
		t.Text(trace.TextClock, uint64(c.traceNumber), "same")
	}
	t.Append(&r)
	return same
}

// onTraceData appends what a worker tells. It runs under the reader's lock.
func (c *Conn) onTraceData(payload []byte) error {
	var m clwire.TraceData
	if err := m.Decode(payload); err != nil {
		return err
	}
	t := c.opt.Tracer
	if t == nil {
		return nil
	}
	for i := range m.Commands {
		m := &m.Commands[i]
		half := trace.WorkerHalf{
			Worker: c.traceNumber, Queue: m.Queue, Seq: m.Seq, Type: uint16(m.Command), Device: m.DeviceNumber,
			Status:   m.Status,
			Profiled: m.Profiled, Taken: m.Taken, Begun: m.Begun, Given: m.Given, Seen: m.Seen, Times: m.Device,
		}
		half.AppendTo(t.Writer)
	}
	if m.Lost > 0 {
		t.Note(c.traceNumber, trace.LostNote)
	}
	return nil
}

// tend takes what workers tell while the program does not wait, so that little is lost when it is killed, and
// compares the clocks now and then: they drift.
func (t *Tracer) tend() {
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
		for _, c := range t.alive() {
			c.Poll()
			for i := 0; compare && c.bulk != nil && i < laterRounds; i++ {
				c.compareClocks()
			}
		}
		if compare {
			compared = time.Now()
		}
	}
}

// alive returns the workers there are, and forgets those that died.
func (t *Tracer) alive() []*Conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	kept := make([]*Conn, 0, len(t.conns))
	for _, c := range t.conns {
		if !c.Dead() {
			kept = append(kept, c)
		}
	}
	t.conns = kept
	return kept
}

// Fetch fetches what the workers have not yet told, for a second at most.
func (t *Tracer) Fetch() {
	if t == nil {
		return
	}
	var asked sync.WaitGroup
	for _, c := range t.alive() {
		asked.Go(func() {
			if call, request := c.Begin(nil); c.Send(&clwire.TraceFlush{}, clwire.FlagUrgent, request) == nil {
				c.opt.Counters.Add(trace.CauseFlush)
				c.reader.wait(&call.Completion, 0)
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

// Close joins tend. The connections are closed afterwards.
func (t *Tracer) Close() {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	close(t.stop)
	t.tending.Wait()
}
