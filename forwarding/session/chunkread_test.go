package session

import (
	"bytes"
	"testing"
	"time"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/session/memory"
	"tendril/tools/e2e/await"
)

// trips is how many round trips the driver has made.
func trips(d *Driver) (n uint64) {
	for _, count := range d.counters.Counts() {
		n += count
	}
	return n
}

// TestReadBehindCommandsIsOneTrip: out of place a small blocking read is the worker's to carry out in the queue's
// order.
func TestReadBehindCommandsIsOneTrip(t *testing.T) {
	r := newRig(t, false)
	q, k := r.queue(0), r.kernel("kernel inc global")
	const size = 64 << 10
	b, in, out := r.buffer(size), pattern(size, 3), make([]byte, size-8)
	r.setMem(k, 0, b)
	r.handle(r.d.EnqueueWrite(q, b, true, 0, size, ptr(in), api.Waits{}))
	for round := range 3 {
		r.launch(q, k, api.Waits{})
		before := trips(r.d)
		r.handle(r.d.EnqueueRead(q, b, true, 8, size-8, ptr(out), api.Waits{}))
		if n := trips(r.d) - before; n != 1 {
			t.Errorf("round %d: %d round trips", round, n)
		}
		for i := range in {
			in[i]++
		}
		if !bytes.Equal(out, in[8:]) {
			t.Fatalf("round %d: not what the kernel left", round)
		}
	}
}

// TestReadBehindFailureLeavesTheProgramsMemory: the call says why, and the queue keeps no second word of it.
func TestReadBehindFailureLeavesTheProgramsMemory(t *testing.T) {
	r := newRig(t, false)
	q, k := r.queue(0), r.kernel("kernel fail")
	b, out, was := r.buffer(4096), pattern(4096, 7), pattern(4096, 7)
	warm := make([]byte, 1)
	r.handle(r.d.EnqueueRead(q, b, true, 0, 1, ptr(warm), api.Waits{}))
	bad := r.launch(q, k, api.Waits{Want: true})
	_, status := r.d.EnqueueRead(q, b, true, 0, 4096, ptr(out), api.Waits{N: 1, List: []uintptr{bad}, Want: false})
	r.is(status, cl.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
	if !bytes.Equal(out, was) {
		t.Error("a read that failed wrote into the program's memory")
	}
	r.is(r.d.Finish(q), cl.SUCCESS)
}

// TestMapsInSharedMemory: a large buffer's maps show memory that the worker moves bytes to and from by itself; the
// program may release the buffer while its unmap waits.
func TestMapsInSharedMemory(t *testing.T) {
	r := newRig(t, false)
	q := r.queue(0)
	const size = 1 << 20
	b, copied, out := r.buffer(size), r.buffer(size), make([]byte, size)
	at, _, status := r.d.EnqueueMap(q, b, true, cl.MAP_READ|cl.MAP_WRITE, 0, size, api.Waits{})
	r.ok(status)
	if r.d.buffers.Get(b).maps.Segment() == nil {
		t.Fatal("the map shows memory of this side's alone")
	}
	copy(at.Bytes(0, size), pattern(size, 5))
	gate := r.handle(r.d.CreateUserEvent(r.ctx))
	before := trips(r.d)
	r.handle(r.d.EnqueueUnmap(q, b, at, api.Waits{N: 1, List: []uintptr{gate}, Want: false}))
	r.handle(r.d.EnqueueCopy(q, b, copied, 0, 0, size, api.Waits{}))
	if n := trips(r.d) - before; n != 0 {
		t.Errorf("%d round trips for an unmap", n)
	}
	r.ok(r.d.ReleaseMemObject(b))
	r.ok(r.d.SetUserEventStatus(gate, 0))
	r.handle(r.d.EnqueueRead(q, copied, true, 0, size, ptr(out), api.Waits{}))
	if !bytes.Equal(out, pattern(size, 5)) {
		t.Fatal("what was written through the map did not arrive")
	}
}

// TestMapsWithoutSharedMemory: a full store costs speed alone.
func TestMapsWithoutSharedMemory(t *testing.T) {
	r := newRig(t, false)
	q := r.queue(0)
	const size = 1 << 20
	b, out := r.buffer(size), make([]byte, size)
	r.handle(r.d.EnqueueRead(q, b, true, 0, 1, ptr(out), api.Waits{})) // the staging pool
	r.node.capacity = memory.PoolBytes
	at, _, status := r.d.EnqueueMap(q, b, true, cl.MAP_WRITE_INVALIDATE_REGION, 0, size, api.Waits{})
	r.ok(status)
	copy(at.Bytes(0, size), pattern(size, 6))
	r.handle(r.d.EnqueueUnmap(q, b, at, api.Waits{}))
	r.handle(r.d.EnqueueRead(q, b, true, 0, size, ptr(out), api.Waits{}))
	if !bytes.Equal(out, pattern(size, 6)) {
		t.Fatal("what was written through the map did not arrive")
	}
}

// TestReadsThatWaitLeaveRoomForOthers: blocking reads may wait for the program itself; what it does first must not wait
// for their memory.
func TestReadsThatWaitLeaveRoomForOthers(t *testing.T) {
	r := newRig(t, false)
	q := r.queue(0)
	const size = 1 << 20
	b, other, in, out := r.buffer(size), r.buffer(size), pattern(size, 3), make([]byte, size)
	r.handle(r.d.EnqueueWrite(q, b, true, 0, size, ptr(in), api.Waits{}))
	gate := r.handle(r.d.CreateUserEvent(r.ctx))
	statuses := make(chan api.Status, 2*memory.ChunkCount)
	for range cap(statuses) {
		own, to := r.queue(0), make([]byte, 100)
		go func() {
			_, status := r.d.EnqueueRead(own, b, true, 0, uint64(len(to)), ptr(to), api.Waits{N: 1,
				List: []uintptr{gate}})
			statuses <- status
		}()
	}
	pool := &r.d.contexts.Get(r.ctx).Staging
	await.Until(t, "reads that hold what they may", func() bool { return pool.Held() >= memory.MaxHeld })
	written := make(chan api.Status, 1)
	go func() {
		_, status := r.d.EnqueueWrite(q, other, true, 0, size, ptr(in), api.Waits{})
		written <- status
	}()
	select {
	case status := <-written:
		r.ok(status)
	case <-time.After(5 * time.Minute):
		t.Error("a write waits for reads that wait for the program")
	}
	r.ok(r.d.SetUserEventStatus(gate, 0))
	for range cap(statuses) {
		r.ok(<-statuses)
	}
	r.handle(r.d.EnqueueRead(q, other, true, 0, size, ptr(out), api.Waits{}))
	if !bytes.Equal(out, in) {
		t.Error("other bytes came back")
	}
}
