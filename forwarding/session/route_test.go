package session

import (
	"tendril/forwarding/api"
	"testing"
)

// TestCopyNowAllocatesNothing: a blocking transfer in shared memory that waits for nothing is a copy and nothing else.
func TestCopyNowAllocatesNothing(t *testing.T) {
	r := newRig(t, true)
	q, b, bytes := r.queue(0), r.buffer(4096), make([]byte, 4096)
	if n := testing.AllocsPerRun(1000, func() {
		if _, status := r.d.EnqueueWrite(q, b, true, 0, 4096, ptr(bytes), api.Waits{}); status != 0 {
			t.Fatal(status)
		}
		if _, status := r.d.EnqueueRead(q, b, true, 0, 4096, ptr(bytes), api.Waits{}); status != 0 {
			t.Fatal(status)
		}
	}); n != 0 {
		t.Errorf("%v allocations for a write and a read", n)
	}
}
