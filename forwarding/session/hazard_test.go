package session

import (
	"bytes"
	"testing"
	"time"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// TestWriteOfWhatAMapBrings: a write from the address of a map that has not ended takes what the map brings, though
// both are enqueued before anything runs (§5.2.2 asks only that the write waits for the map).
func TestWriteOfWhatAMapBrings(t *testing.T) {
	r := newRig(t, false)
	q, k := r.queue(0), r.kernel("kernel inc global")
	const size, part = 1 << 20, 4096
	b, to, out := r.buffer(size), r.buffer(part), make([]byte, part)
	at, _, status := r.d.EnqueueMap(q, b, true, cl.MAP_READ, 0, size, api.Waits{}) // the memory that maps show
	r.ok(status)
	r.ok(statusOf(r.d.EnqueueUnmap(q, b, at, api.Waits{})))
	r.handle(r.d.EnqueueRead(q, to, true, 0, 1, ptr(out), api.Waits{})) // the staging memory
	r.setMem(k, 0, b)
	r.launch(q, k, api.Waits{})                // the first one is asked about
	for _, want := range []bool{true, false} { // with the map's event, and without
		r.launch(q, k, api.Waits{})
		r.ok(r.d.Finish(q))
		r.handle(r.d.EnqueueRead(q, b, true, 0, part, ptr(out), api.Waits{}))
		now := bytes.Clone(out)
		w := r.worker()
		w.turn.Lock()
		at, event, status := r.d.EnqueueMap(q, b, false, cl.MAP_READ, 0, size, api.Waits{Want: want})
		r.ok(status)
		waits := api.Waits{}
		if want {
			waits = api.Waits{N: 1, List: []uintptr{event}}
		}
		_, status = r.d.EnqueueWrite(q, to, false, 0, part, at, waits)
		w.turn.Unlock()
		r.ok(status)
		r.handle(r.d.EnqueueRead(q, to, true, 0, part, ptr(out), api.Waits{}))
		if !bytes.Equal(out, now) {
			t.Fatalf("the write took %d, and the map brings %d", out[0], now[0])
		}
		r.ok(statusOf(r.d.EnqueueUnmap(q, b, at, api.Waits{})))
		r.ok(r.d.Finish(q))
		if n := r.d.transfers.Reads.Len(); n != 0 {
			t.Errorf("%d reads are said to be under way", n)
		}
	}
}

// TestReleasedWhileACopyWaits: a buffer in place keeps its memory until the copies have ended that were enqueued.
func TestReleasedWhileACopyWaits(t *testing.T) {
	r := newRig(t, true)
	q := r.queue(0)
	const size = 1 << 20
	in, out := pattern(size, 9), make([]byte, size)
	for _, part := range []uint64{0, size / 2} { // of the buffer itself, and of a sub-buffer
		b := r.buffer(size)
		r.handle(r.d.EnqueueWrite(q, b, true, 0, size, ptr(in), api.Waits{}))
		from := b
		if part != 0 {
			from = r.handle(r.d.CreateSubBuffer(b, 0, cl.BUFFER_CREATE_TYPE_REGION, true, part, size-part))
		}
		gate := r.handle(r.d.CreateUserEvent(r.ctx))
		event := r.handle(r.d.EnqueueRead(q, from, false, 0, size-part, ptr(out),
			api.Waits{N: 1, List: []uintptr{gate}, Want: true}))
		r.ok(r.d.ReleaseMemObject(b))
		if part != 0 {
			r.ok(r.d.ReleaseMemObject(from))
		}
		r.ok(r.d.SetUserEventStatus(gate, 0))
		r.ok(r.d.WaitForEvents(1, []uintptr{event}))
		if !bytes.Equal(out[:size-part], in[part:]) {
			t.Error("a read brought other bytes after its buffer was released")
		}
		clear(out)
		r.ok(r.d.ReleaseEvent(event))
		r.ok(r.d.ReleaseEvent(gate))
	}
	gate, target := r.handle(r.d.CreateUserEvent(r.ctx)), r.buffer(size)
	event := r.handle(r.d.EnqueueWrite(q, target, false, 0, size, ptr(in),
		api.Waits{N: 1, List: []uintptr{gate}, Want: true}))
	r.ok(r.d.ReleaseMemObject(target))
	r.ok(r.d.SetUserEventStatus(gate, 0))
	r.ok(r.d.WaitForEvents(1, []uintptr{event}))
	r.ok(r.d.ReleaseEvent(event))
	r.ok(r.d.ReleaseEvent(gate))
}

// TestReleasedWhileABlockingCopyWaits: the same for a read that another thread waits for.
func TestReleasedWhileABlockingCopyWaits(t *testing.T) {
	inAndOutOfPlace(t, func(t *testing.T, inPlace bool) {
		r := newRig(t, inPlace)
		q := r.queue(0)
		const size = 1 << 20
		in, out := pattern(size, 9), make([]byte, size)
		b := r.buffer(size)
		r.handle(r.d.EnqueueWrite(q, b, true, 0, size, ptr(in), api.Waits{}))
		gate := r.handle(r.d.CreateUserEvent(r.ctx))
		kept, ended := r.d.buffers.Get(b), make(chan api.Status)
		before := r.worker().records.Load()
		go func() {
			_, status := r.d.EnqueueRead(q, b, true, 0, size, ptr(out), api.Waits{N: 1, List: []uintptr{gate}})
			ended <- status
		}()
		for r.worker().records.Load() < before+2 { // the gate and the read
			time.Sleep(time.Millisecond)
		}
		r.ok(r.d.ReleaseMemObject(b))
		r.ok(r.d.SetUserEventStatus(gate, 0))
		r.ok(<-ended)
		if !bytes.Equal(out, in) {
			t.Error("a read brought other bytes after its buffer was released")
		}
		if kept.mu.Lock(); kept.underWay != 0 || kept.place != nil {
			t.Error("the buffer's memory is kept")
		}
		kept.mu.Unlock()
		r.ok(r.d.ReleaseEvent(gate))
	})
}

func statusOf(_ uintptr, status api.Status) api.Status { return status }

// TestAllReleasedWhileACopyWaits: also the queue and the context may be released before the copy's turn comes.
func TestAllReleasedWhileACopyWaits(t *testing.T) {
	inAndOutOfPlace(t, func(t *testing.T, inPlace bool) {
		r := newRig(t, inPlace)
		q := r.queue(0)
		const size = 1 << 20
		in, out := pattern(size, 9), make([]byte, size)
		b := r.buffer(size)
		r.handle(r.d.EnqueueWrite(q, b, true, 0, size, ptr(in), api.Waits{}))
		gate := r.handle(r.d.CreateUserEvent(r.ctx))
		event := r.handle(r.d.EnqueueRead(q, b, false, 0, size, ptr(out),
			api.Waits{N: 1, List: []uintptr{gate}, Want: true}))
		ended := make(chan int32, 1)
		r.ok(r.d.SetEventCallback(event, 0, func(status int32) { ended <- status }))
		for _, status := range []api.Status{r.d.ReleaseMemObject(b), r.d.ReleaseQueue(q), r.d.ReleaseContext(r.ctx),
			r.d.ReleaseEvent(event), r.d.SetUserEventStatus(gate, 0), r.d.ReleaseEvent(gate)} {
			r.ok(status)
		}
		if status := <-ended; status != 0 || !bytes.Equal(out, in) {
			t.Errorf("the read ended with %d", status)
		}
	})
}
