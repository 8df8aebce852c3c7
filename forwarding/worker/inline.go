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
	size := uint64(len(m.Data))
	s.write = inlineWrite{buffer: b, offset: m.Offset, status: b.inside(m.Offset, size)}
	if s.write.status == cl.SUCCESS {
		s.write.data, s.write.finished = s.keepBytes(m.Queue, m.Data, len(m.Wait) > 0)
	}
	return s.enqueue(h, engine.KindTask, &m.Cmd, &s.write, nil, 0)
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
