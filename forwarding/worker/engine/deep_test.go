package engine

import (
	"runtime"
	"testing"
)

// deepDriver has ended whatever it is asked about, and looks how deep the stack is at an end.
type deepDriver struct {
	promptDriver
	ends, deepest int
}

func (d *deepDriver) Keep() Task { return d }
func (d *deepDriver) Finished() func(int32) {
	return func(int32) {
		if d.ends++; d.ends == 1 { // of the oldest: all others were about to end
			var callers [256]uintptr
			d.deepest = runtime.Callers(0, callers[:])
		}
	}
}

// TestALongChainEndsInALoop: a chain of any length that is seen to end from its newest, on a queue out of order or over
// two in order, takes no more stack than a short one.
func TestALongChainEndsInALoop(t *testing.T) {
	const length = 200_000
	for _, outOfOrder := range []bool{true, false} {
		d := &deepDriver{}
		e := New(d, &deafSink{}, Options{})
		for id := range uint64(2) {
			if err := e.AddQueue(1+id, 1, outOfOrder, 0, func() {}); err != nil {
				t.Fatal(err)
			}
		}
		c := Command{Kind: KindTask, Task: d}
		for i := range length {
			c.Queue, c.Event = 1, uint64(i+1)
			if !outOfOrder {
				c.Queue = uint64(1 + i%2)
			}
			if err := e.Enqueue(&c); err != nil {
				t.Fatal(err)
			}
			e.ReleaseEvent(uint64(i))
			c.Wait = append(c.Wait[:0], uint64(i+1))
		}
		e.ReleaseEvent(uint64(length))
		e.mu.Lock()
		newest := e.queues[c.Queue].live
		e.done(newest[len(newest)-1], 0)
		left := 0
		for _, q := range e.open {
			e.takeEnded(q)
			left += len(q.live)
		}
		e.mu.Unlock()
		e.Close()
		if d.ends != length || left > 0 || d.deepest > 64 {
			t.Errorf("out of order %v: %d of %d ended, %d are left, a stack of %d calls", outOfOrder, d.ends, length, left,
				d.deepest)
		}
	}
}
