package session

import (
	"bytes"
	"testing"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// quiet checks that nothing is left of reads that end late.
func (r *rig) quiet() {
	r.t.Helper()
	if n, bytes := r.d.transfers.Reads.Len(), r.d.transfers.StagedBytes(); n != 0 || bytes != 0 {
		r.t.Errorf("%d reads of %d bytes are still under way", n, bytes)
	}
}

// Reads behind a command that has not ended bring what it leaves, each to its place, with and without an event.
func TestStagedReads(t *testing.T) { inAndOutOfPlace(t, stagedReads) }

func stagedReads(t *testing.T, inPlace bool) {
	r := newRig(t, inPlace)
	q := r.queue(0)
	const n, size = 40, 5000
	r.warm(q)
	b, gate := r.buffer(n*size), r.handle(r.d.CreateUserEvent(r.ctx))
	out, want := make([]byte, n*size), bytes.Repeat([]byte{7}, n*size)
	r.handle(r.d.EnqueueFill(q, b, ptr([]byte{7}), 1, 0, n*size, api.Waits{N: 1, List: []uintptr{gate}}))
	var seen []uintptr
	for i := range uint64(n) {
		e, status := r.d.EnqueueRead(q, b, false, i*size, size, ptr(out[i*size:]), api.Waits{Want: i%2 == 0})
		r.ok(status)
		if i%4 == 0 {
			r.ok(r.d.ReleaseEvent(e)) // its bytes come all the same
		} else if e != 0 {
			seen = append(seen, e)
		}
	}
	if r.d.transfers.StagedBytes() != n*size {
		t.Errorf("%d bytes are on their way, not %d: another way is tested", r.d.transfers.StagedBytes(), n*size)
	}
	if !isZero(out) {
		t.Error("bytes came before their turn")
	}
	r.ok(r.d.SetUserEventStatus(gate, 0))
	r.ok(r.d.WaitForEvents(uint32(len(seen)), seen))
	r.ok(r.d.Finish(q))
	if !bytes.Equal(out, want) {
		t.Error("other bytes came")
	}
	r.quiet()
	if r.d.contexts.Get(r.ctx).Staging.Lending(r.d.slabs) {
		t.Error("a piece of memory did not come back")
	}
}

// isZero looks at memory that is written once a gate opens. That this comes later goes through the worker and memory
// that the race detector does not see.
//
//go:norace
func isZero(b []byte) bool {
	for _, v := range b {
		if v != 0 {
			return false
		}
	}
	return true
}

// warm opens the staging pool, if the context has one.
func (r *rig) warm(q uintptr) {
	r.t.Helper()
	r.handle(r.d.EnqueueRead(q, r.buffer(1), true, 0, 1, ptr(make([]byte, 1)), api.Waits{}))
}

// A read that fails, and one whose worker dies, leave the program's memory alone, and nothing stays behind.
func TestStagedReadsFail(t *testing.T) { inAndOutOfPlace(t, stagedReadsFail) }

func stagedReadsFail(t *testing.T, inPlace bool) {
	r := newRig(t, inPlace)
	q := r.queue(0)
	r.warm(q)
	b, gate := r.buffer(4096), r.handle(r.d.CreateUserEvent(r.ctx))
	r.handle(r.d.EnqueueFill(q, b, ptr([]byte{7}), 1, 0, 4096, api.Waits{}))
	out := make([]byte, 4096)
	failing := r.handle(r.d.EnqueueRead(q, b, false, 0, 4096, ptr(out), api.Waits{N: 1, List: []uintptr{gate},
		Want: true}))
	r.ok(r.d.SetUserEventStatus(gate, -5))
	r.is(r.d.WaitForEvents(1, []uintptr{failing}), cl.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
	r.quiet()
	never := r.handle(r.d.CreateUserEvent(r.ctx))
	cut := r.handle(r.d.EnqueueRead(q, b, false, 0, 4096, ptr(out), api.Waits{N: 1, List: []uintptr{never},
		Want: true}))
	r.node.kill()
	r.is(r.d.WaitForEvents(1, []uintptr{cut}), cl.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
	clear(out) // the program's own again: the race detector watches
	r.quiet()
}

// What a write is to take may still be on its way from a read: with an event between them, or the queue's order.
func TestWritesOfWhatLands(t *testing.T) {
	for _, inPlace := range []bool{true, false} {
		for _, size := range []uint64{64, 16 << 10, 100 << 10} {
			r := newRig(t, inPlace)
			q, other := r.queue(0), r.queue(0)
			from, to, via := r.buffer(size), r.buffer(size), make([]byte, size)
			for i := range byte(6) {
				q2 := []uintptr{q, other}[i%2]
				gate := r.handle(r.d.CreateUserEvent(r.ctx))
				r.handle(r.d.EnqueueFill(q, from, ptr([]byte{i + 1}), 1, 0, size, api.Waits{N: 1,
					List: []uintptr{gate}}))
				read := r.handle(r.d.EnqueueRead(q, from, false, 0, size, ptr(via), api.Waits{Want: true}))
				r.d.contexts.Get(r.ctx).AsyncWrites.UserEventEnded() // the read alone tells
				wrote := r.handle(r.d.EnqueueWrite(q2, to, false, 0, size, ptr(via),
					api.Waits{N: 1, List: []uintptr{read}, Want: true}))
				r.d.contexts.Get(r.ctx).AsyncWrites.UserEventMade()
				r.ok(r.d.SetUserEventStatus(gate, 0))
				r.ok(r.d.WaitForEvents(1, []uintptr{wrote}))
				got := make([]byte, size)
				r.handle(r.d.EnqueueRead(q2, to, true, 0, size, ptr(got), api.Waits{}))
				if !bytes.Equal(got, bytes.Repeat([]byte{i + 1}, int(size))) {
					t.Errorf("in place %v, %d bytes, round %d: what was there before came", inPlace, size, i)
				}
			}
			r.quiet()
		}
	}
}
