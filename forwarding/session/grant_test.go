package session

import (
	"strings"
	"testing"
	"time"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/conn"
)

// TestDeviceQuota: buffers in a device's own memory are paid for with the daemon's grant; beyond the tenant's quota the
// creation fails, and the context's callback hears how much there is and what to do.
func TestDeviceQuota(t *testing.T) {
	r := newRig(t, false)
	r.node.quota = 100 << 20
	said := make(chan string, 4)
	devices := []uintptr{r.dev}
	ctx := r.handle(r.d.CreateContext(nil, devices, func(text string) { said <- text }))
	create := func(size uint64) (uintptr, api.Status) { return r.d.CreateBuffer(ctx, nil, 0, size, api.HostPtr{}) }
	large := r.handle(create(80 << 20))
	if _, status := create(30 << 20); status != cl.MEM_OBJECT_ALLOCATION_FAILURE {
		t.Errorf("beyond the quota: %v", status)
	}
	select {
	case text := <-said:
		if !strings.Contains(text, "31457280 bytes") || !strings.Contains(text, "quota") {
			t.Errorf("the callback heard %q", text)
		}
	case <-time.After(5 * time.Minute):
		t.Error("the callback heard nothing")
	}
	small := r.handle(create(20 << 20)) // exactly the rest
	r.node.mu.Lock()
	asked := r.node.asked
	r.node.mu.Unlock()
	r.ok(r.d.ReleaseMemObject(small))
	for range 50 {
		r.ok(r.d.ReleaseMemObject(r.handle(create(20 << 20))))
	}
	r.ok(r.d.ReleaseMemObject(large))
	r.node.mu.Lock()
	defer r.node.mu.Unlock()
	if r.node.asked > asked+1 {
		t.Errorf("the daemon was asked %d times for memory that the program had", r.node.asked-asked)
	}
	if r.node.reserved > 2*conn.GrantBytes {
		t.Errorf("%d bytes stay reserved for nothing", r.node.reserved)
	}
	r.ok(r.d.ReleaseContext(ctx))
}
