//go:build cgo

package worker

import (
	"testing"

	"tendril/forwarding/clwire"
)

func forms(t *testing.T, test func(t *testing.T, c *client)) {
	for _, lanes := range []bool{false, true} {
		name := "inline"
		if lanes {
			name = "lanes"
		}
		t.Run(name, func(t *testing.T) { test(t, inProcess(t, lanes)) })
	}
}

func TestKernelComputesInTheSegment(t *testing.T) {
	forms(t, func(t *testing.T, c *client) {
		f := newFixture(c, 0)
		b, bytes := f.buffer(64)
		k := f.kernel("add")
		for i := range 10 {
			f.send(run1(clwire.Cmd{Queue: f.queue}, k, 16, argMem(0, b), argInt(1, int32(i))))
		}
		if r := f.call(&clwire.Finish{Queue: f.queue}); r.Status != 0 {
			t.Fatalf("finish: %d, faults %v", r.Status, f.faults)
		}
		for i, v := range ints(bytes) {
			if v != 45 {
				t.Fatalf("item %d is %d, want 45", i, v)
			}
		}
	})
}

func BenchmarkEmptyFinish(b *testing.B) {
	f := newFixture(inProcess(b, false), 0)
	k := f.kernel("empty")
	f.call(&clwire.Finish{Queue: f.queue})
	n := run1(clwire.Cmd{Queue: f.queue}, k, 1)
	for b.Loop() {
		f.send(n)
		f.call(&clwire.Finish{Queue: f.queue})
	}
}

func BenchmarkThousandEmpty(b *testing.B) {
	f := newFixture(inProcess(b, false), 0)
	k := f.kernel("empty")
	f.call(&clwire.Finish{Queue: f.queue})
	n := run1(clwire.Cmd{Queue: f.queue}, k, 1)
	for b.Loop() {
		for range 1000 {
			f.send(n)
		}
		f.call(&clwire.Finish{Queue: f.queue})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/kernel")
}
