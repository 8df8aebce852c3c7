package session

import (
	"bytes"
	"testing"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// TestContentSizeOverANetwork: reads and maps bring what the size buffer says, and leave the program's memory beyond it
// alone.
func TestContentSizeOverANetwork(t *testing.T) {
	overTCPAndTLS(t, func(t *testing.T, secure bool) {
		r, far := newFarRig(t, secure)
		q := r.queue(0)
		const size = 1 << 20
		b, count, data := r.buffer(size), r.buffer(8), pattern(size, 3)
		r.handle(r.d.EnqueueWrite(q, b, true, 0, size, ptr(data), api.Waits{}))
		r.ok(r.d.SetContentSizeBuffer(b, count))
		says := func(n uint64) {
			r.handle(r.d.EnqueueWrite(q, count, true, 0, 8, ptr(le.AppendUint64(nil, n)), api.Waits{}))
		}
		for _, c := range []struct{ says, off, n, brings uint64 }{
			{700_000, 0, size, 700_000}, {0, 0, size, 0}, {1 << 50, 0, size, size}, {1000, 0, 2000, 1000},
			{0, 0, 2000, 0}, {100_000, 90_000, 200_000, 10_000},
		} {
			says(c.says)
			want := bytes.Repeat([]byte{0xAA}, int(c.n))
			copy(want, data[c.off:c.off+c.brings])
			for _, blocking := range []bool{true, false} {
				out := bytes.Repeat([]byte{0xAA}, int(c.n))
				e := r.handle(r.d.EnqueueRead(q, b, blocking, c.off, c.n, ptr(out), api.Waits{Want: true}))
				r.ok(r.d.WaitForEvents(1, []uintptr{e}))
				if !bytes.Equal(out, want) {
					t.Errorf("%+v, blocking %v: other bytes", c, blocking)
				}
			}
		}
		says(5000)
		at, _, status := r.d.EnqueueMap(q, b, true, cl.MAP_READ, 0, size, api.Waits{})
		r.ok(status)
		if !bytes.Equal(at.Bytes(0, 5000), data[:5000]) {
			t.Error("other bytes in a map")
		}
		r.handle(r.d.EnqueueUnmap(q, b, at, api.Waits{}))
		r.ok(r.d.SetContentSizeBuffer(b, 0))
		out := make([]byte, size)
		r.handle(r.d.EnqueueRead(q, b, true, 0, size, ptr(out), api.Waits{}))
		if !bytes.Equal(out, data) {
			t.Error("the hint was taken back and still counts")
		}
		r.d.Close()
		far.check()
		if want := uint64(2*(700_000+1000+10_000) + 5000); far.brought != want {
			t.Errorf("trimmed reads brought %d bytes, want %d", far.brought, want)
		}
	})
}

func TestContentSizeArguments(t *testing.T) {
	everyWay(t, func(t *testing.T, newRig rigMaker) {
		r := newRig()
		b, count, short := r.buffer(64), r.buffer(8), r.buffer(7)
		other := r.handle(r.d.CreateContext(nil, []uintptr{r.dev}, nil))
		foreign := r.handle(r.d.CreateBuffer(other, nil, cl.MEM_READ_WRITE, 8, api.HostPtr{}))
		gone := r.buffer(8)
		r.ok(r.d.ReleaseMemObject(gone))
		for _, c := range []struct {
			buffer, size uintptr
			want         api.Status
		}{{b, count, cl.SUCCESS}, {b, 0, cl.SUCCESS}, {0, count, cl.INVALID_MEM_OBJECT},
			{b, short, cl.INVALID_MEM_OBJECT}, {b, foreign, cl.INVALID_CONTEXT},
			{gone, count, cl.INVALID_MEM_OBJECT}, {b, gone, cl.INVALID_MEM_OBJECT}, {b, 1, cl.INVALID_MEM_OBJECT},
			{r.ctx, count, cl.INVALID_MEM_OBJECT}} {
			r.is(r.d.SetContentSizeBuffer(c.buffer, c.size), c.want)
		}
	})
}
