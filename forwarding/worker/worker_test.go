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
