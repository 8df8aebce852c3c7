package session

import (
	"bytes"
	"testing"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/tools/e2e/await"
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
		go func() {
			_, status := r.d.EnqueueRead(q, b, true, 0, size, ptr(out), api.Waits{N: 1, List: []uintptr{gate}})
			ended <- status
		}()
		await.Until(t, "a read that has its buffer", func() bool { return kept.users() > 0 })
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

// users is how many commands keep the buffer.
func (b *Buffer) users() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.underWay
}

// TestReleasedBetweenTheRecordsOfACall: a blocking call that sends several records of a buffer keeps it meanwhile,
// whatever another thread does. The worker ends of a record with a buffer that it does not have. The test holds the
// queue that the records go through, so that none was sent when the buffer is released.
func TestReleasedBetweenTheRecordsOfACall(t *testing.T) {
	const size = 1 << 20
	rows := api.Rect{Region: [3]uint64{3, size / 4, 1}, BufferRow: 4, HostRow: 4}
	for _, x := range []struct {
		name string
		busy bool // the queue has something to do: the records go through it, and else through the context's own
		call func(r *rig, q, b uintptr, bytes []byte) api.Status
	}{
		{"read", true, func(r *rig, q, b uintptr, bytes []byte) api.Status {
			return statusOf(r.d.EnqueueRead(q, b, true, 0, size, ptr(bytes), api.Waits{}))
		}},
		{"write", true, func(r *rig, q, b uintptr, bytes []byte) api.Status {
			return statusOf(r.d.EnqueueWrite(q, b, true, 0, size, ptr(bytes), api.Waits{}))
		}},
		{"read at once", false, func(r *rig, q, b uintptr, bytes []byte) api.Status {
			return statusOf(r.d.EnqueueRead(q, b, true, 0, size, ptr(bytes), api.Waits{}))
		}},
		{"read of rows", false, func(r *rig, q, b uintptr, bytes []byte) api.Status {
			return statusOf(r.d.EnqueueReadRect(q, b, true, rows, ptr(bytes), api.Waits{}))
		}},
		{"write of rows", false, func(r *rig, q, b uintptr, bytes []byte) api.Status {
			return statusOf(r.d.EnqueueWriteRect(q, b, true, rows, ptr(bytes), api.Waits{}))
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			r := newRig(t, false)
			h, b, bytes, ended := r.queue(0), r.buffer(size), make([]byte, size), make(chan api.Status, 1)
			r.handle(r.d.EnqueueRead(h, b, true, 0, 1, ptr(bytes), api.Waits{})) // the staging memory
			q, kept, w := r.d.queues.Get(h), r.d.buffers.Get(b), r.worker()
			w.turn.Lock()
			if x.busy {
				r.handle(r.d.EnqueueFill(h, r.buffer(8), ptr([]byte{1}), 1, 0, 8, api.Waits{}))
			} else {
				var status api.Status
				q, status = q.ctx.moveQueue(q.device)
				r.ok(status)
			}
			q.mu.Lock()
			go func() { ended <- x.call(r, h, b, bytes) }()
			await.Until(t, "a call that waits for the queue", func() bool {
				return await.Waiting("session.(*Queue).Submit")+await.Waiting("session.(*Queue).Together") > 0
			})
			released := r.d.ReleaseMemObject(b)
			q.mu.Unlock()
			w.turn.Unlock()
			r.ok(released)
			r.ok(<-ended)
			if users := kept.users(); users != 0 {
				t.Errorf("%d keep the buffer", users)
			}
			r.handle(r.d.EnqueueRead(h, r.buffer(8), true, 0, 8, ptr(bytes), api.Waits{})) // the worker is there
		})
	}
}

// TestReleasedWhileItIsPublished: the object is what the buffer held, though another thread has released the buffer.
func TestReleasedWhileItIsPublished(t *testing.T) {
	inAndOutOfPlace(t, func(t *testing.T, inPlace bool) {
		r := newRig(t, inPlace)
		q, b, in := r.queue(0), r.buffer(4096), pattern(4096, 5)
		r.handle(r.d.EnqueueWrite(q, b, true, 0, 4096, ptr(in), api.Waits{}))
		w := r.worker()
		w.turn.Lock() // what is enqueued does not end
		r.handle(r.d.EnqueueFill(q, r.buffer(8), ptr([]byte{1}), 1, 0, 8, api.Waits{}))
		ended := make(chan error, 1)
		go func() {
			_, err := r.d.Publish(b, "result", nil)
			ended <- err
		}()
		await.Until(t, "a Publish that waits", func() bool {
			return await.Waiting("session.(*Context).beginPublishing") > 0
		})
		released := r.d.ReleaseMemObject(b)
		w.turn.Unlock()
		r.ok(released)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(r.object("result"), in) {
			t.Error("the object has other bytes")
		}
	})
}

// TestKeptOnceGone: what another thread has released cannot be kept any more, so that it goes once.
func TestKeptOnceGone(t *testing.T) {
	inAndOutOfPlace(t, func(t *testing.T, inPlace bool) {
		r := newRig(t, inPlace)
		whole := r.buffer(4096)
		part := r.handle(r.d.CreateSubBuffer(whole, 0, cl.BUFFER_CREATE_TYPE_REGION, true, 1024, 1024))
		b, sub := r.d.buffers.Get(whole), r.d.buffers.Get(part)
		done, status := sub.Keep()
		r.ok(status)
		r.ok(r.d.ReleaseMemObject(part))
		r.ok(r.d.ReleaseMemObject(whole))
		again, status := sub.Keep() // by the command under way
		r.ok(status)
		again()
		done()
		for _, x := range []*Buffer{sub, b} {
			if _, status := x.Keep(); status != cl.INVALID_MEM_OBJECT || x.users() != 0 {
				t.Errorf("a buffer that is gone is kept: status %d, by %d", status, x.users())
			}
		}
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
