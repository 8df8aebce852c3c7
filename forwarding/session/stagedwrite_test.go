package session

import (
	"bytes"
	"testing"

	"tendril/forwarding/api"
	"tendril/forwarding/session/memory"
	"tendril/forwarding/session/transfer"
)

// TestWritesThatDoNotBlock: out of place such writes are commands among others, also more of them than there is memory
// for, and the program's memory is its own again when they have ended.
func TestWritesThatDoNotBlock(t *testing.T) {
	r := newRig(t, false)
	q, k := r.queue(0), r.kernel("kernel inc global")
	const size, count = transfer.StagedDeviceBytes, memory.LentBytes/transfer.StagedDeviceBytes + 5
	b, out := r.buffer(size), make([]byte, size)
	r.setMem(k, 0, b)
	r.handle(r.d.EnqueueRead(q, b, true, 0, 1, ptr(out), api.Waits{})) // the staging pool
	kept := make([]uintptr, count)
	for i := range kept {
		kept[i] = r.buffer(size)
	}
	r.launch(q, k, api.Waits{}) // the first one is asked about
	in := make([][]byte, count)
	before := trips(r.d)
	for i := range in {
		in[i] = pattern(size, byte(i))
		r.handle(r.d.EnqueueWrite(q, b, false, 0, size, ptr(in[i]), api.Waits{}))
		r.launch(q, k, api.Waits{})
		r.handle(r.d.EnqueueCopy(q, b, kept[i], 0, 0, size, api.Waits{}))
		if i == memory.LentBytes/transfer.StagedDeviceBytes/4 && trips(r.d) != before {
			t.Errorf("%d round trips for writes that nobody waits for", trips(r.d)-before)
		}
	}
	r.ok(r.d.Finish(q))
	for i := range in {
		clear(in[i])
		r.handle(r.d.EnqueueRead(q, kept[i], true, 0, size, ptr(out), api.Waits{}))
		want := pattern(size, byte(i))
		for j := range want {
			want[j]++
		}
		if !bytes.Equal(out, want) {
			t.Fatalf("write %d: other bytes", i)
		}
	}
	// A program may let everything go at once.
	r.handle(r.d.EnqueueWrite(q, b, false, 0, size, ptr(in[0]), api.Waits{}))
	r.ok(r.d.ReleaseMemObject(b))
}
