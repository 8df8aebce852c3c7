//go:build cgo

package worker

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
	"tendril/forwarding/opencl/nullcl"
)

// BenchmarkReader is what a command costs the worker's reader, from the ring to a driver that does nothing and, with
// its end, back to the ring: processor time of the one thread that does it all. A finish comes behind a hundred
// commands; behind each in op=finish, where a command is a launch and its finish. The lowest of several runs is the
// least disturbed one.
func BenchmarkReader(b *testing.B) {
	const batch = 100
	for name, send := range map[string]func(r *readerRig){
		"launch": func(r *readerRig) { r.client.send(run1(clwire.Cmd{Queue: r.ordered}, r.kernel, 1)) },
		"write": func(r *readerRig) {
			cmd := clwire.Cmd{Queue: r.ordered}
			r.client.send(&clwire.WriteInline{Cmd: cmd, Buffer: r.buffer, Data: make([]byte, 64)})
		},
		"chain": func(r *readerRig) { r.chain() },
		"finish": func(r *readerRig) {
			r.client.send(run1(clwire.Cmd{Queue: r.ordered}, r.kernel, 1))
			r.ask(&clwire.Finish{Queue: r.ordered})
		},
	} {
		b.Run("op="+name, func(b *testing.B) {
			r := newReaderRig(b)
			var spent int64
			batches := (b.N + batch - 1) / batch
			for range batches {
				for range batch {
					send(r)
				}
				r.ask(&clwire.Finish{Queue: r.ordered})
				r.ask(&clwire.Finish{Queue: r.disordered})
				began := threadTime(b)
				r.read()
				spent += threadTime(b) - began
				r.release()
			}
			b.ReportMetric(float64(spent)/float64(batches*batch), "cpu-ns/command")
		})
	}
}

// threadTime is the processor time of this thread, in ns.
func threadTime(b testing.TB) int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return t.Nano()
}

// readerRig is a session whose reader is the benchmark's own thread, and its client.
type readerRig struct {
	*client
	s                                   *session
	ordered, disordered, kernel, buffer uint64
	made                                []uint64 // events that were not released
}

func newReaderRig(b testing.TB) *readerRig {
	runtime.LockOSThread()
	b.Cleanup(runtime.UnlockOSThread)
	d, err := load(Options{ICD: nullcl.Build(b)})
	if err != nil {
		b.Fatal(err)
	}
	ring, sockets := linkEnds(b)
	l, err := link.New(link.Worker, ring, sockets[1])
	if err != nil {
		b.Fatal(err)
	}
	r := &readerRig{client: newClient(b, ring, sockets[0]), s: newSession(l, d.platform, d.devices, false, true, nil)}
	b.Cleanup(func() {
		r.s.engine.Close()
		r.s.work.Wait()
		l.Close()
	})
	context, program, blob := r.id(), r.id(), r.id()
	r.ordered, r.disordered, r.kernel, r.buffer = r.id(), r.id(), r.id(), r.id()
	r.ask(&clwire.Hello{Version: clwire.Version, Program: "benchmark"})
	for _, m := range []clwire.Message{
		&clwire.CreateContext{ID: context, Devices: []uint32{0}},
		&clwire.CreateQueue{ID: r.ordered, Context: context},
		&clwire.CreateQueue{ID: r.disordered, Context: context, Properties: cl.QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE},
		&clwire.CreateBuffer{ID: r.buffer, Context: context, Flags: cl.MEM_READ_WRITE, Size: 1 << 20},
		&clwire.Blob{ID: blob, Total: uint64(len(source)), Data: []byte(source)},
		&clwire.CreateProgram{ID: program, Context: context, Kind: clwire.ProgramSource, Blob: blob},
	} {
		r.client.send(m)
	}
	r.ask(&clwire.BuildProgram{Program: program})
	r.read()
	r.client.send(&clwire.CreateKernel{ID: r.kernel, Program: program, Name: "empty"})
	r.read()
	return r
}

// read does what the reader does until it has nothing to do.
func (r *readerRig) read() {
	if err := r.s.takeAll(); err != nil {
		r.t.Fatal(err)
	}
	if r.s.engine.Brief() {
		r.s.engine.FinishBrief()
	}
	for r.s.engine.Poll() {
	}
	r.s.engine.Poll() // lets go
	r.s.work.Wait()
}

// chain sends a launch behind the last one.
func (r *readerRig) chain() {
	m := run1(clwire.Cmd{Queue: r.disordered, Event: r.id()}, r.kernel, 1)
	if n := len(r.made); n > 0 {
		m.Wait = []uint64{r.made[n-1]}
	}
	r.made = append(r.made, m.Event)
	r.client.send(m)
}

// release takes what the session said, and lets go of the chain.
func (r *readerRig) release() {
	for {
		_, _, ok, err := r.link.Next()
		if err != nil {
			r.t.Fatal(err)
		}
		if !ok {
			break
		}
	}
	for _, id := range r.made {
		r.client.send(&clwire.Release{ID: id})
	}
	r.made = r.made[:0]
	r.read()
}
