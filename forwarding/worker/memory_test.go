//go:build cgo

package worker

import (
	"testing"
	"time"

	"tendril/forwarding/cl"
	"tendril/forwarding/opencl"
	"tendril/tools/e2e/await"
)

// TestDeviceLimit: a worker holds its client to what the daemon allowed, whatever the client says; a limit that is on
// its way is waited for.
func TestDeviceLimit(t *testing.T) {
	m := newDeviceMemory()
	a, b, c := &buffer{}, &buffer{}, &buffer{}
	if s := m.take(a, 1<<40); s != cl.SUCCESS {
		t.Fatalf("without a limit: %v", s)
	}
	m.give(a.charged)
	m.bound(true)
	m.setLimit(100)
	if s := m.take(a, 60); s != cl.SUCCESS {
		t.Fatalf("within the limit: %v", s)
	}
	taken := make(chan opencl.Status, 1)
	m.wait = 5 * time.Minute
	go func() { taken <- m.take(b, 60) }()
	await.Blocked(t, 1, "worker.(*deviceMemory).waitFor")
	m.setLimit(150)
	if s := <-taken; s != cl.SUCCESS {
		t.Errorf("with a higher limit on its way: %v", s)
	}
	m.wait = time.Millisecond
	if s := m.take(c, 60); s != cl.MEM_OBJECT_ALLOCATION_FAILURE || c.charged != 0 {
		t.Errorf("beyond the limit: %v, %d bytes booked", s, c.charged)
	}
	m.give(a.charged)
	if s := m.take(c, 60); s != cl.SUCCESS {
		t.Errorf("after something was released: %v", s)
	}
	if s := m.take(a, 1<<64-1); s != cl.MEM_OBJECT_ALLOCATION_FAILURE {
		t.Errorf("a size that overflows: %v", s)
	}
}
