package session

import (
	"fmt"

	"tendril/forwarding/answers"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/trace"
)

// began is the time of a trip's begin, 0 where nobody traces.
func (d *Driver) began() int64 { return d.trace.Began() }

// tripped counts a round trip that the caller has waited for. w is nil for one to the daemon.
func (d *Driver) tripped(began int64, cause trace.Cause, w *worker, detail string) {
	number := uint32(0)
	if w != nil {
		number = w.TraceNumber()
	}
	d.counters.Add(cause)
	d.trace.Trip(began, cause, number, detail)
}

// tracedPush notes that bytes went from worker to worker.
func (d *Driver) tracedPush(began int64, from, to *worker, bytes uint64, status int32, lost bool) {
	if d.trace == nil {
		return
	}
	r := trace.Record{Kind: trace.KindPush, Time: began, X: d.trace.Now(), Aux: to.TraceNumber(),
		Thread: from.TraceNumber(), B: bytes, C: uint64(uint32(status))}
	if lost {
		r.Flags = trace.FlagLost
	}
	d.trace.Append(&r)
}

// tracedLink notes why there is no link between two workers.
func (d *Driver) tracedLink(a, b *worker, why error) {
	if d.trace != nil {
		d.trace.Note(a.TraceNumber(), fmt.Sprintf("no link between workers %d and %d, their data goes through the program: %v",
			a.TraceNumber(), b.TraceNumber(), why))
	}
}

// traced notes a command that was sent. The caller holds q.mu.
func (q *Queue) traced(m clwire.Message) {
	t := q.d.trace
	if t == nil {
		return
	}
	q.tracedSeq++
	r := trace.Record{Kind: trace.KindSent, Time: t.Now(), X: int64(q.tracedSeq), Code: uint16(m.Type()),
		Aux: q.w.TraceNumber(),
		A:   uint64(q.handle), B: q.id}
	switch m := m.(type) {
	case *clwire.NDRange:
		if name, ok := q.d.tracedKernels.Load(m.Kernel); ok {
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
		d.tracedKernels.Store(id, t.Text(trace.TextKernel, 0, name))
	}
}

func (d *Driver) forgetTraced(kernel uint64) {
	if d.trace != nil {
		d.tracedKernels.Delete(kernel)
	}
}

// traceQueue names a queue in the trace.
func (d *Driver) traceQueue(q *Queue) {
	if t := d.trace; t != nil {
		t.Text(trace.TextQueue, q.id, answers.Text(q.device.info[cl.DEVICE_NAME]))
	}
}

// EndTrace fetches what the workers have not yet told, for a second at most. The driver library calls it when the
// program exits; without a trace it does nothing.
func (d *Driver) EndTrace() { d.trace.Fetch() }
