package session

import (
	"bytes"
	"testing"

	"tendril/forwarding/api"
)

// TestLargeTransfersGoInPieces: a blocking read of 1 MiB is four commands and one round trip, a write four commands
// and none. Where somebody could tell, it is one command.
func TestLargeTransfersGoInPieces(t *testing.T) {
	r := newRig(t, false)
	const size = 1 << 20
	b, in, out := r.buffer(size+3), pattern(size, 3), make([]byte, size)
	for _, x := range []struct {
		what     string
		w        api.Waits
		commands uint64
	}{
		{"without an event", api.Waits{}, 4},
		{"with an event", api.Waits{Want: true}, 1},
	} {
		h, k := r.queue(0), r.kernel("kernel inc global")
		q := r.d.queues.Get(h)
		r.setMem(k, 0, r.buffer(4))
		r.handle(r.d.EnqueueRead(h, b, true, 0, 1, ptr(out), api.Waits{})) // the staging pool
		r.launch(h, k, api.Waits{})                                        // something to come behind
		sent, before := q.Sent(), trips(r.d)
		r.handle(r.d.EnqueueWrite(h, b, true, 3, size, ptr(in), x.w))
		if got := q.Sent() - sent; got != x.commands {
			t.Errorf("%s: a write of %d commands, expected %d", x.what, got, x.commands)
		}
		if n := trips(r.d) - before; x.commands > 1 && n != 0 {
			t.Errorf("%s: %d round trips for a write", x.what, n)
		}
		clear(out)
		r.launch(h, k, api.Waits{})
		sent, before = q.Sent(), trips(r.d)
		r.handle(r.d.EnqueueRead(h, b, true, 3, size, ptr(out), x.w))
		if got := q.Sent() - sent; got != x.commands {
			t.Errorf("%s: a read of %d commands, expected %d", x.what, got, x.commands)
		}
		if n := trips(r.d) - before; n != 1 {
			t.Errorf("%s: %d round trips for a read", x.what, n)
		}
		if !bytes.Equal(out, in) {
			t.Fatalf("%s: other bytes came back", x.what)
		}
	}
}

// TestNothingComesBetweenPieces: another thread's commands of the same queue come before a read or write, or after it.
func TestNothingComesBetweenPieces(t *testing.T) {
	r := newRig(t, false)
	h, k := r.queue(0), r.kernel("kernel inc global")
	const size, rounds = 1 << 20, 30
	b, in, out := r.buffer(size), make([]byte, size), make([]byte, size)
	r.setMem(k, 0, b)
	r.launch(h, k, api.Waits{})
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				r.launch(h, k, api.Waits{})
				r.ok(r.d.Finish(h))
			}
		}
	}()
	for i := range rounds {
		if i%2 == 0 {
			r.handle(r.d.EnqueueWrite(h, b, true, 0, size, ptr(in), api.Waits{}))
		}
		r.handle(r.d.EnqueueRead(h, b, true, 0, size, ptr(out), api.Waits{}))
		if !bytes.Equal(out, bytes.Repeat(out[:1], size)) {
			t.Errorf("round %d: a kernel came between the pieces", i)
			break
		}
	}
	close(stop)
	<-done
}
