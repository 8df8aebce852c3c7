package session

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
	"tendril/forwarding/session/node"
	"tendril/forwarding/session/peers"
	"tendril/forwarding/session/settings"
	"tendril/forwarding/trace"
	"tendril/tools/e2e/await"
)

// Writes behind a user event are taken in their turn: the program may fill their memory until then.
func TestWritesAreFilledLate(t *testing.T) {
	overTCPAndTLS(t, func(t *testing.T, secure bool) {
		r, far := newFarRig(t, secure)
		q := r.queue(0)
		for _, size := range []uint64{64, 3 << 20} {
			b, gate := r.buffer(size), r.handle(r.d.CreateUserEvent(r.ctx))
			in, out, want := make([]byte, size), make([]byte, size), pattern(int(size), 5)
			r.handle(r.d.EnqueueWrite(q, b, false, 0, size, ptr(in), api.Waits{N: 1, List: []uintptr{gate}}))
			r.ok(r.d.Flush(q))
			copy(in, want)
			r.ok(r.d.SetUserEventStatus(gate, 0))
			r.handle(r.d.EnqueueRead(q, b, true, 0, size, ptr(out), api.Waits{}))
			if !bytes.Equal(out, want) {
				t.Errorf("%d bytes: what was there when the write was enqueued came back", size)
			}
		}
		r.d.Close()
		far.check()
	})
}

// Many writes whose turn has not come: what travels ahead stays within the allowance (the fake checks it), and the rest
// comes once their turn has come, each in its place.
func TestManyGatedWrites(t *testing.T) {
	overTCPAndTLS(t, func(t *testing.T, secure bool) {
		r, far := newFarRig(t, secure)
		q := r.queue(0)
		const n, size = 300, 40 << 10
		b, gate := r.buffer(n*size), r.handle(r.d.CreateUserEvent(r.ctx))
		want, out := pattern(n*size, 5), make([]byte, n*size)
		gates := &r.d.contexts.Get(r.ctx).AsyncWrites
		gates.UserEventEnded() // as if it were a long kernel that they wait for
		first := api.Waits{N: 1, List: []uintptr{gate}, Want: false}
		for i := range n {
			r.handle(r.d.EnqueueWrite(q, b, false, uint64(i*size), size, ptr(want[i*size:]), first))
			first = api.Waits{}
		}
		large, also := r.buffer(6<<20), pattern(6<<20, 9)
		r.handle(r.d.EnqueueWrite(q, large, false, 0, 6<<20, ptr(also), api.Waits{}))
		// else the gate gates nothing
		await.Until(t, "what travels ahead", func() bool { return far.most.Load() >= clwire.StagingBytes/2 })
		gates.UserEventMade()
		r.ok(r.d.SetUserEventStatus(gate, 0))
		r.handle(r.d.EnqueueRead(q, b, true, 0, n*size, ptr(out), api.Waits{}))
		if !bytes.Equal(out, want) {
			t.Error("other bytes came back")
		}
		got := make([]byte, 6<<20)
		r.handle(r.d.EnqueueRead(q, large, true, 0, 6<<20, ptr(got), api.Waits{}))
		if !bytes.Equal(got, also) {
			t.Error("other bytes of the large write")
		}
		r.d.Close()
		far.check()
	})
}

// A write whose dependency fails must not read the program's memory any more, and fails as the specification says.
func TestGatedWriteIsCancelled(t *testing.T) {
	overTCPAndTLS(t, func(t *testing.T, secure bool) {
		r, _ := newFarRig(t, secure)
		q := r.queue(cl.QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE)
		const size = 9 << 20
		b, gate := r.buffer(size), r.handle(r.d.CreateUserEvent(r.ctx))
		r.handle(r.d.EnqueueFill(q, b, ptr([]byte{7}), 1, 0, size, api.Waits{}))
		r.ok(r.d.Finish(q))
		in, out := pattern(size, 1), make([]byte, size)
		wait := api.Waits{N: 1, List: []uintptr{gate}, Want: true}
		wrote := r.handle(r.d.EnqueueWrite(q, b, false, 0, size, ptr(in), wait))
		read := r.handle(r.d.EnqueueRead(q, b, false, 0, size, ptr(out), wait))
		r.ok(r.d.SetUserEventStatus(gate, -5))
		r.is(r.d.WaitForEvents(1, []uintptr{wrote}), cl.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
		r.is(r.d.WaitForEvents(1, []uintptr{read}), cl.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
		clear(in) // the program's own again: the race detector watches
		_, status := r.d.EnqueueWrite(q, b, true, 0, size, ptr(in), api.Waits{N: 1, List: []uintptr{wrote},
			Want: false})
		r.is(status, cl.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
		_, status = r.d.EnqueueRead(q, b, true, 0, size, ptr(out), api.Waits{N: 1, List: []uintptr{wrote}, Want: false})
		r.is(status, cl.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
		if !bytes.Equal(out, make([]byte, size)) {
			t.Error("a failed read changed the program's memory")
		}
		r.handle(r.d.EnqueueRead(q, b, true, 0, size, ptr(out), api.Waits{}))
		if !bytes.Equal(out, bytes.Repeat([]byte{7}, size)) {
			t.Error("a cancelled write reached the buffer")
		}
	})
}

// Two queues and blocking and non-blocking transfers of several threads share the lanes.
func TestTransfersOfManyThreads(t *testing.T) {
	overTCPAndTLS(t, func(t *testing.T, secure bool) {
		r, _ := newFarRig(t, secure)
		var threads sync.WaitGroup
		for i := range 6 {
			threads.Go(func() {
				q := r.queue(0)
				const size = 700_001
				b, in, out := r.buffer(size), pattern(size, byte(i)), make([]byte, size)
				for round := range 6 {
					in[round] ^= 0xff
					blocking := (round+i)%2 == 0
					r.handle(r.d.EnqueueWrite(q, b, blocking, 0, size, ptr(in), api.Waits{}))
					r.handle(r.d.EnqueueRead(q, b, blocking, 0, size, ptr(out), api.Waits{}))
					if r.ok(r.d.Finish(q)); !bytes.Equal(in, out) {
						t.Errorf("thread %d, round %d: other bytes came back", i, round)
					}
				}
			})
		}
		threads.Wait()
	})
}

// midway is a far node whose worker does something in the middle of a read.
func midway(t *testing.T, secure bool, then func(f *fakeFar, l *link.Lane, h *clwire.LaneHeader) bool) (*rig,
	api.Status) {
	t.Helper()
	r, far := newFarRig(t, secure)
	q := r.queue(0)
	const size = 5 << 20
	b, out := r.buffer(size), make([]byte, size)
	sent := 0
	far.mu.Lock()
	far.tamper = func(f *fakeFar, l *link.Lane, h *clwire.LaneHeader) bool {
		if sent++; sent != 20 {
			return true
		}
		return then(f, l, h)
	}
	far.mu.Unlock()
	_, status := r.d.EnqueueRead(q, b, true, 0, size, ptr(out), api.Waits{})
	clear(out) // ours again, whatever came: the race detector watches
	return r, status
}

func TestWorkerDiesInATransfer(t *testing.T) {
	overTCPAndTLS(t, func(t *testing.T, secure bool) {
		r, status := midway(t, secure, func(f *fakeFar, _ *link.Lane, _ *clwire.LaneHeader) bool {
			f.worker.killed.Store(true)
			f.worker.conn.Shutdown()
			return false // its last chunks might be on their way
		})
		r.is(status, cl.OUT_OF_RESOURCES)
		await.Until(t, "word of the end", func() bool { return r.log.contain("killed by the test") })
	})
}

func TestLaneIsCutInATransfer(t *testing.T) {
	overTCPAndTLS(t, func(t *testing.T, secure bool) {
		r, status := midway(t, secure, func(_ *fakeFar, l *link.Lane, _ *clwire.LaneHeader) bool {
			l.Shutdown()
			return true
		})
		r.is(status, cl.OUT_OF_RESOURCES)
		await.Until(t, "word of the end", func() bool { return r.log.contain("ended") })
	})
}

// What a worker says of a chunk is checked before a byte of the program's memory is touched.
func TestHostileChunksEndTheWorker(t *testing.T) {
	for name, change := range map[string]func(h *clwire.LaneHeader){
		"offset behind the end": func(h *clwire.LaneHeader) { h.Offset = 5<<20 + 1 },
		"offset that wraps":     func(h *clwire.LaneHeader) { h.Offset = ^uint64(0) - 10 },
		"length over the end":   func(h *clwire.LaneHeader) { h.Offset = 5<<20 - 1 },
		"length over the limit": func(h *clwire.LaneHeader) { h.Length = clwire.MaxChunk + 1 },
		"no length":             func(h *clwire.LaneHeader) { h.Length = 0 },
		"skipped":               func(h *clwire.LaneHeader) { h.Skipped = true },
	} {
		t.Run(name, func(t *testing.T) {
			r, status := midway(t, false, func(_ *fakeFar, _ *link.Lane, h *clwire.LaneHeader) bool {
				change(h)
				return true
			})
			r.is(status, cl.OUT_OF_RESOURCES)
			await.Until(t, "word of the end", func() bool { return r.log.contain("ended") })
		})
	}
}

// A chunk of an operation that there is not is thrown away: it may have failed meanwhile.
func TestChunkOfNothingIsIgnored(t *testing.T) {
	r, status := midway(t, true, func(_ *fakeFar, l *link.Lane, h *clwire.LaneHeader) bool {
		stray := clwire.LaneHeader{Op: h.Op + 1000, Offset: 1 << 40, Length: 100}
		return l.Send(stray, make([]byte, 100), nil) == nil
	})
	r.ok(status)
}

// Cutting the connection in the middle of writes of every kind ends each with an error, and nothing hangs.
func TestLossInTheMiddleOfWrites(t *testing.T) {
	overTCPAndTLS(t, func(t *testing.T, secure bool) {
		r, _ := newFarRig(t, secure)
		q := r.queue(0)
		const size = 8 << 20
		b, in := r.buffer(size), pattern(size, 1)
		gate := r.handle(r.d.CreateUserEvent(r.ctx))
		e := r.handle(r.d.EnqueueWrite(q, b, false, 0, size, ptr(in), api.Waits{N: 1, List: []uintptr{gate},
			Want: true}))
		ended := make(chan api.Status, 1)
		go func() { // beyond the allowance: waits for its turn
			_, status := r.d.EnqueueWrite(q, b, true, 0, size, ptr(in), api.Waits{})
			ended <- status
		}()
		await.Blocked(t, 1, "session.(*Driver).EnqueueWrite")
		r.node.kill()
		if status := <-ended; status == cl.SUCCESS {
			t.Error("a write to a worker that is gone succeeded")
		}
		r.is(r.d.WaitForEvents(1, []uintptr{e}), cl.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
		clear(in)
	})
}

// Two machines in one list of platforms, each with its own worker.
func TestTwoServers(t *testing.T) {
	var fars []*fakeFar
	server := func(name string, secure bool) settings.Server {
		return settings.Server{Name: name, Dial: func() (node.Control, error) {
			f := newFakeFar(newFakeNode(t, false), secure)
			fars = append(fars, f)
			return f, nil
		}}
	}
	log := &logLines{}
	d, err := New(Config{Servers: []settings.Server{server("one:7433", true), server("two:7433", true)},
		Spin: 20 * time.Microsecond, Log: log.add})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		d.Close()
		for _, f := range fars {
			f.check()
		}
	}()
	platforms := d.Platforms()
	if len(platforms) != 2 {
		t.Fatalf("%d platforms, %v", len(platforms), log.lines)
	}
	var rigs []*rig
	for _, p := range platforms {
		r := &rig{t: t, d: d, log: log}
		devices, status := d.DeviceIDs(p, cl.DEVICE_TYPE_ALL)
		r.ok(status)
		r.dev, r.ctx = devices[0], r.handle(d.CreateContext(nil, devices, nil))
		rigs = append(rigs, r)
	}
	const size = 1 << 20
	queues, buffers, wants := [2]uintptr{}, [2]uintptr{}, [2][]byte{}
	for i, r := range rigs {
		queues[i], buffers[i], wants[i] = r.queue(0), r.buffer(size), pattern(size, byte(i))
		r.handle(d.EnqueueWrite(queues[i], buffers[i], false, 0, size, ptr(wants[i]), api.Waits{}))
	}
	fars[0].kill()
	out := make([]byte, size)
	if _, status := d.EnqueueRead(queues[0], buffers[0], true, 0, size, ptr(out), api.Waits{}); status == cl.SUCCESS {
		t.Error("a read from a machine that is gone succeeded")
	}
	clear(out)
	rigs[1].handle(d.EnqueueRead(queues[1], buffers[1], true, 0, size, ptr(out), api.Waits{}))
	if !bytes.Equal(out, wants[1]) {
		t.Error("the other machine's session was disturbed")
	}
	if _, status := d.EnqueueCopy(queues[0], buffers[0], buffers[1], 0, 0, 16,
		api.Waits{}); status != cl.INVALID_CONTEXT {
		t.Errorf("a copy between contexts: %d", status)
	}
}

// trips is how many round trips the program makes in f.
func (r *rig) trips(f func()) uint64 {
	before := trace.Total(r.d.counters.Counts())
	f()
	return trace.Total(r.d.counters.Counts()) - before
}

// Small blocking writes cost no round trip where nobody can see that they have not ended, and one where somebody can.
func TestAsyncWrites(t *testing.T) {
	overTCPAndTLS(t, func(t *testing.T, secure bool) {
		r, _ := newFarRig(t, secure)
		q := r.queue(0)
		const n, size = 100, 40
		b := r.buffer(n * size)
		want, out := pattern(n*size, 3), make([]byte, n*size)
		writes := func() {
			for i := range n {
				part := append([]byte(nil), want[i*size:(i+1)*size]...)
				r.handle(r.d.EnqueueWrite(q, b, true, uint64(i*size), size, ptr(part), api.Waits{}))
				clear(part) // the program's own again
			}
		}
		read := func(q uintptr) {
			t.Helper()
			clear(out)
			if r.handle(r.d.EnqueueRead(q, b, true, 0, n*size, ptr(out), api.Waits{})); !bytes.Equal(out, want) {
				t.Error("other bytes came back")
			}
		}
		writes() // the first tells the worker of the buffer
		read(q)
		if trips := r.trips(func() { writes(); read(q) }); trips != 1 {
			t.Errorf("%d round trips for blocking writes and a read, want 1", trips)
		}
		want = pattern(n*size, 4)
		writes()
		others := []uintptr{r.queue(0), r.queue(cl.QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE)}
		for i := range 20 {
			want = pattern(n*size, byte(i))
			writes()
			read(others[i%2]) // must not overtake
		}
		if trips := r.trips(func() { writes(); read(others[0]); read(others[1]) }); trips != 2 {
			t.Errorf("%d round trips for writes in one queue and two reads in others, want 2", trips)
		}
		for _, other := range others {
			r.ok(r.d.ReleaseQueue(other))
		}
		gate := r.handle(r.d.CreateUserEvent(r.ctx))
		if trips := r.trips(writes); trips != n {
			t.Errorf("%d round trips for %d writes beside a user event", trips, n)
		}
		r.ok(r.d.SetUserEventStatus(gate, 0))
		r.ok(r.d.ReleaseEvent(gate))
		kept := r.handle(r.d.EnqueueFill(q, b, ptr([]byte{1}), 1, 0, size, api.Waits{Want: true}))
		writes() // in order: after these, the event has ended
		if got, _ := r.d.EventInfo(kept, cl.EVENT_COMMAND_EXECUTION_STATUS); le.Uint32(got) != 0 {
			t.Errorf("an event before a blocking write says %d", got)
		}
		r.ok(r.d.ReleaseEvent(kept))
		writes()
		r.ok(r.d.ReleaseQueue(q))
		q = r.queue(0)
		read(q)
	})
}

// An event that ends by another worker's word may wait for a user event there: beside it writes are waited for, and
// those before it are over once it is made. Else a user event made later would wait for a fence behind what waits for
// the program.
func TestWritesBesideAnotherWorkersEvent(t *testing.T) {
	r, _ := newFarRig(t, false)
	q := r.queue(0)
	const n, size = 10, 40
	b, in := r.buffer(size), pattern(size, 3)
	write := func() {
		for range n {
			r.handle(r.d.EnqueueWrite(q, b, true, 0, size, ptr(in), api.Waits{}))
		}
	}
	trips := func(what string, want uint64, f func()) {
		t.Helper()
		if got := r.trips(f); got != want {
			t.Errorf("%s: %d round trips, want %d", what, got, want)
		}
	}
	write() // the first tells the worker of the buffer
	trips("writes that nobody can tell from ended ones", 0, write)
	ctx := r.d.contexts.Get(r.ctx)
	w := ctx.bound()
	l := &peers.Link{}
	ended := make(chan struct{})
	var e *Event
	trips("another worker's event behind them", 1, func() {
		e = r.d.foreignEvent(l, ctx, func(*Event) {}, func(*Event) { close(ended) })
	})
	trips("writes beside it", n, write)
	w.mu.Lock()
	w.events.Delete(e.id) // as the worker's word of its end does
	w.mu.Unlock()
	e.Advance(0)
	<-ended
	trips("writes behind it", 0, write)
}
