package engine

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"tendril/tools/e2e/await"
)

// waitGone counts what the collector has freed, until it is want; or for five minutes.
func waitGone(gone *atomic.Int64, want int64) int64 {
	for began := time.Now(); gone.Load() < want && time.Since(began) < 5*time.Minute; await.Rest(began) {
		runtime.GC()
	}
	return gone.Load()
}

// TestAKeptEventKeepsNoQueue: a program keeps an event of its first queue and goes on with others, one after another.
// Nothing of those stays: events lie beside events of the next queue, and each of them knows its queue.
func TestAKeptEventKeepsNoQueue(t *testing.T) {
	for name, outOfOrder := range map[string]bool{"in order": false, "out of order": true} {
		t.Run(name, func(t *testing.T) {
			e, d := newAsked(t, outOfOrder, Options{})
			const queues, each = 200, 3 * atOnce
			var gone atomic.Int64
			d.put(t, e, Command{Event: 1}) // it is kept
			for i := range uint64(queues) {
				at := 2 + i
				if err := e.AddQueue(at, Native(at), outOfOrder, 0, func() {}); err != nil {
					t.Fatal(err)
				}
				runtime.AddCleanup(e.queues[at], func(int) { gone.Add(1) }, 0)
				for n := range uint64(each) {
					c := Command{Kind: KindBarrier, Queue: at, Event: at*each + n}
					if err := e.Enqueue(&c); err != nil {
						t.Fatal(err)
					}
					e.ReleaseEvent(c.Event)
				}
				d.endAll()
				e.Tick()
				e.DropQueue(at)
			}
			if n := e.events.Len(); n != 1 {
				t.Errorf("%d events are known", n)
			}
			e.work.Wait()
			if n := waitGone(&gone, queues-2); n < queues-2 { // of the last one something may be in use
				t.Errorf("%d of %d queues are still in memory", queues-n, queues)
			}
			runtime.KeepAlive(e)
		})
	}
}

// TestFailedBarriersKeepNothing: of barriers that fail, on a queue out of order, only those stay that something still
// waits behind; also where others between them go well.
func TestFailedBarriersKeepNothing(t *testing.T) {
	for name, everyFails := range map[string]uint64{"all": 1, "every other": 2} {
		t.Run(name, func(t *testing.T) {
			e, d := newAsked(t, true, Options{})
			const count, few = 100 * atOnce, 3 * atOnce
			if err := e.UserEvent(1); err != nil {
				t.Fatal(err)
			}
			if err := e.SetUserEvent(1, -5); err != nil {
				t.Fatal(err)
			}
			var gone atomic.Int64
			for i := range uint64(count) {
				c := Command{Kind: KindBarrier, Queue: 1, Event: 2 + i}
				if i%everyFails == 0 {
					c.Wait = []uint64{1}
				}
				if err := e.Enqueue(&c); err != nil {
					t.Fatal(err)
				}
				runtime.AddCleanup(e.events.Get(c.Event), func(int) { gone.Add(1) }, 0)
				e.ReleaseEvent(c.Event)
				d.endAll()
				e.Tick()
			}
			if n := waitGone(&gone, count-few); n < count-few {
				t.Errorf("%d of %d events are still in memory", count-n, count)
			}
			runtime.KeepAlive(e)
		})
	}
}
