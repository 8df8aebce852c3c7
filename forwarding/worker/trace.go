//go:build cgo

package worker

import (
	"fmt"
	"sync"
	"time"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/opencl"
	"tendril/forwarding/trace"
	"tendril/forwarding/worker/engine"
)

const (
	maxTraced    = 1 << 16               // commands that a tracer keeps; more are counted as lost
	harvestEvery = 10 * time.Millisecond // what ended is told so often
	harvestChunk = 64                    // statuses asked for in one call of the driver
)

// tracer keeps the worker's half of `tendril trace`: when each command came, was given to the driver, ran and was seen
// to have ended. It stands between the engine and the tasks, so that neither knows of it, and keeps events of its own.
type tracer struct {
	s     *session
	clock trace.Clock
	on    clwire.TraceOn
	out   *trace.Writer     // nil: what ended is sent
	seqs  map[uint64]uint32 // commands of each queue; the reader's
	stop  chan struct{}

	telling sync.Mutex // held while what ended is on its way, so that who flushes answers behind it; before mu
	mu      sync.Mutex // leaf
	pending []*tracedTask
	hosts   map[uint64]*clwire.Traced // host operations under way
	told    []clwire.Traced           // ended, not sent
	lost    uint32
}

// startTracer answers TraceOn. A second one ends the session.
func (s *session) startTracer(m *clwire.TraceOn) error {
	if s.tracer != nil {
		return fmt.Errorf("%w: a second TraceOn", errRecord)
	}
	var out *trace.Writer
	if m.Shared {
		f, err := s.link.TakeFD()
		if err != nil {
			return err
		}
		defer f.Close()
		if out, err = trace.OpenFile(f, m.Process); err != nil {
			return err
		}
	}
	t := &tracer{s: s, on: *m, out: out, clock: trace.NewClock(), seqs: map[uint64]uint32{},
		hosts: map[uint64]*clwire.Traced{}, stop: make(chan struct{})}
	s.tracer = t
	s.work.Go(t.tend)
	return nil
}

// end stops the tracer's goroutine, after what the session's last commands left.
func (t *tracer) end() {
	if t != nil {
		t.tell()
		close(t.stop)
	}
}

func (t *tracer) tend() {
	tick := time.NewTicker(harvestEvery)
	defer tick.Stop()
	for {
		select {
		case <-t.stop:
			t.drop()
			return
		case <-tick.C:
			t.tell()
		}
	}
}

// drop lets go of what the driver has not finished.
func (t *tracer) drop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.pending {
		k.event.Release()
	}
	t.pending = nil
}

// nativeProperties is what a native queue is made with.
func (s *session) nativeProperties(properties uint64) uint64 {
	if s.tracer == nil {
		return properties
	}
	return properties | cl.QUEUE_PROFILING_ENABLE
}

// traced puts the tracer before a command's task. It counts every command of a queue, whatever becomes of it.
func (s *session) traced(h clwire.Header, kind engine.Kind, m *clwire.Cmd, task engine.Task, op uint64) engine.Task {
	t := s.tracer
	if t == nil {
		return task
	}
	t.seqs[m.Queue]++
	rec := clwire.Traced{Queue: m.Queue, Seq: t.seqs[m.Queue], Command: h.Type, Taken: t.clock.Now()}
	if q := s.queues[m.Queue]; q != nil {
		rec.DeviceNumber = uint16(q.device)
	}
	switch {
	case task != nil:
		return &tracedTask{Task: task, t: t, rec: rec}
	case kind == engine.KindHost:
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.hasRoomLocked() {
			t.hosts[op] = &rec
		}
	default:
		t.ended(&rec)
	}
	return nil
}

func (t *tracer) hasRoomLocked() bool {
	if len(t.pending)+len(t.told)+len(t.hosts) < maxTraced {
		return true
	}
	t.lost++
	return false
}

// ended books a command that the driver has nothing more to say about.
func (t *tracer) ended(rec *clwire.Traced) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.hasRoomLocked() {
		t.told = append(t.told, *rec)
	}
}

// tracedReady notes that a host operation's turn has come, or never will.
func (s *session) tracedReady(op uint64, status int32) {
	t := s.tracer
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	rec := t.hosts[op]
	if rec == nil {
		return
	}
	if status == 0 {
		rec.Begun = t.clock.Now()
		return
	}
	rec.Status = status
	delete(t.hosts, op)
	t.told = append(t.told, *rec)
}

// hostDone ends a host operation.
func (s *session) hostDone(op uint64, status int32) {
	if t := s.tracer; t != nil {
		t.mu.Lock()
		if rec := t.hosts[op]; rec != nil {
			rec.Seen, rec.Status = t.clock.Now(), min(status, 0)
			delete(t.hosts, op)
			t.told = append(t.told, *rec)
		}
		t.mu.Unlock()
	}
	s.engine.HostDone(op, status)
}

// tracedTask is a task that is watched.
type tracedTask struct {
	engine.Task
	t         *tracer
	rec       clwire.Traced
	event     opencl.Event // held until it is told
	submitted bool
}

// Keep implements engine.Task.
func (k *tracedTask) Keep() engine.Task {
	return &tracedTask{Task: k.Task.Keep(), t: k.t, rec: k.rec}
}

// Drop implements engine.Task.
func (k *tracedTask) Drop() {
	if !k.submitted {
		k.rec.Status = engine.FailedWaitList
		k.t.ended(&k.rec)
	}
	k.Task.Drop()
}

// Submit implements engine.Task. The tracer always wants an event; the engine gets it if it asked.
func (k *tracedTask) Submit(q engine.Native, waits []engine.Native, want bool) (engine.Native, int32, string) {
	k.submitted = true
	k.rec.Begun = k.t.clock.Now()
	native, status, text := k.Task.Submit(q, waits, true)
	k.rec.Given = k.t.clock.Now()
	k.rec.Status = status
	if status != 0 || native == 0 {
		k.t.ended(&k.rec)
		return native, status, text
	}
	k.event = opencl.Event(native)
	if want || k.Task.Finished() != nil {
		k.event.Retain()
	} else {
		native = 0
	}
	k.t.follow(k)
	return native, status, text
}

func (t *tracer) follow(k *tracedTask) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.hasRoomLocked() {
		k.event.Release()
		return
	}
	t.pending = append(t.pending, k)
}

// tell sends what has ended. What ended before the call has been sent when it returns, also what another goroutine
// took.
func (t *tracer) tell() {
	t.telling.Lock()
	defer t.telling.Unlock()
	t.mu.Lock()
	t.harvestLocked()
	told, lost := t.told, t.lost
	t.told, t.lost = nil, 0
	t.mu.Unlock()
	if t.out != nil {
		t.append(told, lost)
		return
	}
	for len(told) > 0 || lost > 0 {
		n := min(len(told), clwire.MaxTraced)
		t.s.send(&clwire.TraceData{Lost: lost, Commands: told[:n]}, 0, 0)
		told, lost = told[n:], 0
	}
}

// append writes what has ended into the buffer that the client shares.
func (t *tracer) append(told []clwire.Traced, lost uint32) {
	for i := range told {
		c := &told[i]
		half := trace.WorkerHalf{
			Worker: t.on.Worker, Queue: c.Queue, Seq: c.Seq, Type: uint16(c.Command), Device: c.DeviceNumber,
			Status:   c.Status,
			Profiled: c.Profiled, Taken: c.Taken, Begun: c.Begun, Given: c.Given, Seen: c.Seen, Times: c.Device,
		}
		half.AppendTo(t.out)
	}
	if lost > 0 {
		t.out.Note(t.on.Worker, trace.LostNote)
	}
}

// harvestLocked takes over what the driver has finished. Commands end nearly in the order of their submission: a chunk
// in which none has ended is where it stops.
func (t *tracer) harvestLocked() {
	events, status := make([]opencl.Event, 0, harvestChunk), [harvestChunk]int32{}
	kept := t.pending[:0]
	at := 0
	for at < len(t.pending) {
		chunk := t.pending[at:min(at+harvestChunk, len(t.pending))]
		at += len(chunk)
		events = events[:0]
		for _, k := range chunk {
			events = append(events, k.event)
		}
		opencl.Statuses(events, status[:])
		ended := events[:0]
		for i, k := range chunk {
			if status[i] > 0 {
				kept = append(kept, k)
				continue
			}
			t.finishLocked(k, status[i])
			ended = append(ended, k.event)
		}
		opencl.ReleaseEvents(ended)
		if len(ended) == 0 {
			break
		}
	}
	kept = append(kept, t.pending[at:]...)
	clear(t.pending[len(kept):])
	t.pending = kept
}

func (t *tracer) finishLocked(k *tracedTask, status int32) {
	k.rec.Seen, k.rec.Status = t.clock.Now(), status
	if times, s := k.event.Profile(); status == 0 && s == cl.SUCCESS {
		k.rec.Profiled = true
		for i := range k.rec.Device {
			k.rec.Device[i] = int64(times[i])
		}
	}
	t.told = append(t.told, k.rec)
}

func (s *session) clockSync(h clwire.Header, _ *clwire.ClockSync) error {
	clock := s.clock()
	answer := clwire.ClockReply{Taken: clock.Now()}
	answer.Answered = clock.Now()
	s.reply(h.Request, cl.SUCCESS, answer.Append(nil))
	return nil
}

func (s *session) traceFlush(h clwire.Header, _ *clwire.TraceFlush) error {
	if s.tracer != nil {
		s.tracer.tell()
	}
	s.reply(h.Request, cl.SUCCESS, nil)
	return nil
}

func (s *session) clock() trace.Clock {
	if s.tracer != nil {
		return s.tracer.clock
	}
	return trace.NewClock()
}
