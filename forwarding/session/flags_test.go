package session

import (
	"testing"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// TestBufferFlags: one row a rule of §5.2.1.
func TestBufferFlags(t *testing.T) {
	r := newRig(t, true)
	host := pattern(64, 0)
	cases := []struct {
		flags uint64
		host  bool
		size  uint64
		want  api.Status
	}{
		{0, false, 64, cl.SUCCESS}, {cl.MEM_READ_ONLY | cl.MEM_HOST_READ_ONLY, false, 64, cl.SUCCESS},
		{cl.MEM_READ_WRITE | cl.MEM_READ_ONLY, false, 64, cl.INVALID_VALUE},
		{cl.MEM_HOST_READ_ONLY | cl.MEM_HOST_NO_ACCESS, false, 64, cl.INVALID_VALUE}, {1 << 20, false, 64,
			cl.INVALID_VALUE}, {cl.MEM_USE_HOST_PTR | cl.MEM_COPY_HOST_PTR, true, 64, cl.INVALID_VALUE},
		{cl.MEM_USE_HOST_PTR | cl.MEM_ALLOC_HOST_PTR, true, 64, cl.INVALID_VALUE},
		{cl.MEM_ALLOC_HOST_PTR | cl.MEM_COPY_HOST_PTR, true, 64, cl.SUCCESS},
		{cl.MEM_USE_HOST_PTR, false, 64, cl.INVALID_HOST_PTR},
		{cl.MEM_COPY_HOST_PTR, false, 64, cl.INVALID_HOST_PTR}, {0, true, 64, cl.INVALID_HOST_PTR},
		{0, false, 0, cl.INVALID_BUFFER_SIZE}, {0, false, 1<<30 + 1, cl.INVALID_BUFFER_SIZE},
	}
	for _, c := range cases {
		var p api.HostPtr
		if c.host {
			p = ptr(host)
		}
		h, got := r.d.CreateBuffer(r.ctx, nil, c.flags, c.size, p)
		if got != c.want {
			t.Errorf("flags %#x, host %v, size %d: %d, want %d", c.flags, c.host, c.size, got, c.want)
		}
		if got == cl.SUCCESS {
			r.ok(r.d.ReleaseMemObject(h))
		}
	}
	_, status := r.d.CreateBuffer(r.ctx, []uint64{1, 2, 0}, 0, 64, api.HostPtr{})
	r.is(status, cl.INVALID_PROPERTY)
	_, status = r.d.CreateBuffer(r.ctx+8, nil, 0, 64, api.HostPtr{})
	r.is(status, cl.INVALID_CONTEXT)
}
