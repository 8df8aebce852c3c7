//go:build cgo

package worker

import (
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/fixed"
	"tendril/forwarding/opencl"
	"tendril/forwarding/worker/engine"
)

// inlineWrite is a write whose bytes came in its record. The reader keeps one and reuses it, as it does launch: Keep
// makes the copy that waits.
type inlineWrite struct {
	buffer   *buffer
	offset   uint64
	data     []byte        // a copy that stays until the driver has read it; nil: refused
	status   opencl.Status // ≠ 0: refused before the driver was asked
	finished func(status int32)

	submitted bool
	kept      bool // it has a reference of the buffer
}

func (s *session) writeInline(h clwire.Header, m *clwire.WriteInline) error {
	b, err := lookup[*buffer](s, m.Buffer)
	if err != nil {
		return err
	}
	if s.gathers(h, m, b) {
		if s.small.extend(m) {
			s.course.Command(uint16(h.Type)) // as if it had been enqueued
			return nil
		}
		if err := s.sendGathered(); err != nil {
			return err
		}
		s.small.begin(h, m, b)
		return nil
	}
	if err := s.sendGathered(); err != nil {
		return err
	}
	return s.submitWrite(h, m, b)
}

func (s *session) submitWrite(h clwire.Header, m *clwire.WriteInline, b *buffer) error {
	s.write = inlineWrite{buffer: b, offset: m.Offset, status: b.inside(m.Offset, uint64(len(m.Data)))}
	if s.write.status == cl.SUCCESS {
		s.write.data, s.write.finished = s.keepBytes(m.Queue, m.Data, len(m.Wait) > 0)
	}
	return s.enqueue(h, engine.KindTask, &m.Cmd, &s.write, nil, 0)
}

// gatheredBytes is the largest write that is gathered.
const gatheredBytes = 1 << 10

// smallWrites are writes one behind the other in a buffer of a driver's own memory that become one command: a GPU's
// driver takes microseconds for each, however small. They are with the reader only as long as it has the next record at
// hand. Nobody can tell: they are commands of a queue in order that nothing comes between, without events. Whoever
// looks at the session sees one command.
type smallWrites struct {
	header  clwire.Header // of the first
	message clwire.WriteInline
	buffer  *buffer // nil: there are none
}

// gathers says whether a write may be gathered with others.
func (s *session) gathers(h clwire.Header, m *clwire.WriteInline, b *buffer) bool {
	if h.Request != 0 || m.Event != 0 || len(m.Wait) > 0 || len(m.Data) == 0 || len(m.Data) > gatheredBytes ||
		b.seg != nil || s.tracer != nil { // a trace shows what the program did
		return false
	}
	q := s.queues[m.Queue]
	return q != nil && q.writes != nil && firstOf(b.status, b.inside(m.Offset, uint64(len(m.Data)))) == cl.SUCCESS
}

// extend takes a write that comes behind those there are.
func (g *smallWrites) extend(m *clwire.WriteInline) bool {
	all := &g.message
	if g.buffer == nil || m.Queue != all.Queue || m.Buffer != all.Buffer ||
		m.Offset != all.Offset+uint64(len(all.Data)) || len(all.Data)+len(m.Data) > inBlock {
		return false
	}
	all.Data = append(all.Data, m.Data...)
	return true
}

// begin takes the first write.
func (g *smallWrites) begin(h clwire.Header, m *clwire.WriteInline, b *buffer) {
	g.header, g.buffer = h, b
	g.message.Queue, g.message.Buffer, g.message.Offset = m.Queue, m.Buffer, m.Offset
	g.message.Data = append(g.message.Data[:0], m.Data...)
}

// sendGathered enqueues what was gathered. It comes before whatever else the reader does.
func (s *session) sendGathered() error {
	g := &s.small
	b := g.buffer
	if b == nil {
		return nil
	}
	g.buffer = nil
	return s.submitWrite(g.header, &g.message, b)
}

// Keep implements engine.Task.
func (t *inlineWrite) Keep() engine.Task {
	c := *t
	c.kept = true
	c.buffer.refs.Add(1)
	return &c
}

// Drop implements engine.Task.
func (t *inlineWrite) Drop() {
	if t.kept {
		t.buffer.unref()
	}
	if !t.submitted && t.finished != nil {
		t.finished(engine.FailedWaitList)
	}
}

// Finished implements engine.Task.
func (t *inlineWrite) Finished() func(int32) { return t.finished }

// refused is why the driver is not asked.
func (t *inlineWrite) refused() opencl.Status { return firstOf(t.status, t.buffer.status) }

// Now implements engine.Prompt, where a driver's thread would have to wake for a copy that takes less.
func (t *inlineWrite) Now() bool {
	if t.buffer.seg == nil || t.refused() != cl.SUCCESS {
		return false
	}
	copy(t.buffer.bytes()[t.offset:], t.data)
	t.submitted = true
	if t.finished != nil {
		t.finished(0)
	}
	return true
}

// Submit implements engine.Task.
func (t *inlineWrite) Submit(q engine.Native, waits []engine.Native, want bool) (engine.Native, int32, string) {
	const what = "clEnqueueWriteBuffer"
	t.submitted = true
	s := t.refused()
	var e opencl.Event
	if s == cl.SUCCESS {
		e, s = opencl.Queue(q).Transfer(false, t.buffer.native, t.offset, uint64(len(t.data)), fixed.Address(t.data),
			after(waits, want || t.finished != nil))
	}
	if s != cl.SUCCESS {
		return 0, int32(s), what
	}
	return engine.Native(e), 0, ""
}
