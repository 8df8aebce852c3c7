//go:build cgo

package worker

import (
	"testing"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/opencl"
)

// native is the same driver without a worker between.
type native struct {
	t       testing.TB
	context opencl.Context
	queues  [2]opencl.Queue
	empty   opencl.Kernel
	rng     opencl.Range
}

func newNative(b testing.TB) *native {
	b.Helper()
	d := testDriver(b)
	n := &native{t: b, rng: opencl.Range{Dims: 1, Global: [3]uintptr{1, 1, 1}}}
	var s opencl.Status
	check := func() {
		if s != cl.SUCCESS {
			b.Fatalf("OpenCL error %d", s)
		}
	}
	n.context, s = d.platform.CreateContext(d.devices[:1])
	check()
	for i := range n.queues {
		n.queues[i], s = n.context.CreateQueue(d.devices[0], 0)
		check()
	}
	prog, s := n.context.CreateProgram([]byte(source))
	check()
	s = prog.Build(nil, "")
	check()
	n.empty, s = prog.CreateKernel("empty")
	check()
	n.launch(n.queues[0], opencl.After{})
	n.queues[0].Finish()
	return n
}

// warm lets the driver finish compiling, which it puts off to the first launch.
func (f *fixture) warm(k uint64) {
	f.send(run1(clwire.Cmd{Queue: f.queue}, k, 1))
	f.call(&clwire.Finish{Queue: f.queue})
}

func (n *native) launch(q opencl.Queue, a opencl.After) opencl.Event {
	e, _, s := q.Launch(n.empty, &n.rng, nil, nil, a)
	if s != cl.SUCCESS {
		n.t.Fatalf("launch: %d", s)
	}
	return e
}

func BenchmarkEmptyFinish(b *testing.B) {
	b.Run("path=native", func(b *testing.B) {
		n := newNative(b)
		for b.Loop() {
			n.launch(n.queues[0], opencl.After{})
			n.queues[0].Finish()
		}
	})
	b.Run("path=worker", func(b *testing.B) {
		f := newFixture(startProcess(b).client, 0)
		k := f.kernel("empty")
		m := run1(clwire.Cmd{Queue: f.queue}, k, 1)
		f.warm(k)
		for b.Loop() {
			f.send(m)
			f.call(&clwire.Finish{Queue: f.queue})
		}
	})
}

func BenchmarkThousandEmpty(b *testing.B) {
	perKernel := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/kernel")
	}
	b.Run("path=native", func(b *testing.B) {
		n := newNative(b)
		for b.Loop() {
			for range 1000 {
				n.launch(n.queues[0], opencl.After{})
			}
			n.queues[0].Finish()
		}
		perKernel(b)
	})
	b.Run("path=worker", func(b *testing.B) {
		f := newFixture(startProcess(b).client, 0)
		k := f.kernel("empty")
		m := run1(clwire.Cmd{Queue: f.queue}, k, 1)
		f.warm(k)
		for b.Loop() {
			for range 1000 {
				f.send(m)
			}
			f.call(&clwire.Finish{Queue: f.queue})
		}
		perKernel(b)
	})
}

func BenchmarkChain(b *testing.B) {
	const length = 100
	perKernel := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/length, "ns/kernel")
	}
	b.Run("path=native", func(b *testing.B) {
		n := newNative(b)
		for b.Loop() {
			events := make([]opencl.Event, 0, length)
			for i := range length {
				a := opencl.After{Want: true}
				if i > 0 {
					a.Wait = events[i-1 : i]
				}
				events = append(events, n.launch(n.queues[i%2], a))
			}
			n.queues[1].Finish()
			opencl.ReleaseEvents(events)
		}
		perKernel(b)
	})
	b.Run("path=worker", func(b *testing.B) {
		f := newFixture(startProcess(b).client, 0)
		queues := [2]uint64{f.queue, f.newQueue(0)}
		k := f.kernel("empty")
		m := run1(clwire.Cmd{}, k, 1)
		f.warm(k)
		for b.Loop() {
			first := f.ids + 1
			for i := range uint64(length) {
				m.Queue, m.Event, m.Wait = queues[i%2], f.id(), m.Wait[:0]
				if i > 0 {
					m.Wait = append(m.Wait, m.Event-1)
				}
				f.send(m)
			}
			f.call(&clwire.Finish{Queue: queues[1]})
			for e := first; e <= f.ids; e++ {
				f.send(&clwire.Release{ID: e})
				delete(f.ends, e)
				delete(f.count, e)
			}
		}
		perKernel(b)
	})
}
