package session

import (
	"testing"
	"testing/synctest"
	"time"

	"tendril/forwarding/cl"
)

// TestWorkersEndIsToldAtExit: a program that exits at its first error is told that its worker ended, though why is not
// known yet.
func TestWorkersEndIsToldAtExit(t *testing.T) {
	r := newRig(t, true)
	r.queue(0)
	known := make(chan struct{})
	defer close(known)
	r.node.mu.Lock()
	r.node.fateKnown = known
	r.node.mu.Unlock()
	r.node.kill()
	for r.d.reporting.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	for r.d.WaitReports(time.Millisecond); r.d.reporting.Load() > 0; time.Sleep(time.Millisecond) {
		r.d.WaitReports(time.Millisecond)
	}
	if !r.log.contain("the worker of") {
		t.Errorf("nobody was told: %q", r.log.lines)
	}
}

// TestWaitReportsHasOneLimit: a program's exit waits once for an end that stays unknown, by a clock that the test has.
func TestWaitReportsHasOneLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Driver{closing: make(chan struct{})}
		d.reporting.Store(1) // and nobody says more
		began := time.Now()
		d.WaitReports(time.Second)
		if waited := time.Since(began); waited != time.Second {
			t.Errorf("waited for %v", waited)
		}
		select {
		case <-d.closing:
		default:
			t.Error("those who ask for the reason were not told to hurry")
		}
	})
}

// TestWaitReportsLeavesTimeToHurry: who is told to hurry has time to, also where the wait before ended late.
func TestWaitReportsLeavesTimeToHurry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Driver{closing: make(chan struct{})}
		d.reporting.Store(1)
		go func() {
			<-d.closing
			time.Sleep(100 * time.Microsecond) // Pause: on the bubble's clock
			d.reporting.Add(-1)
		}()
		d.WaitReports(time.Millisecond) // a look each millisecond: the second comes after four fifths, and at the end
		if d.reporting.Load() != 0 {
			t.Error("a program ends before it is said that its worker did")
		}
		time.Sleep(time.Second) // Pause: until nobody is left, on the bubble's clock
	})
}

// TestNoWorkerIsMadeWhileClosing: neither a callback nor a build in the background, each the first to use its context,
// starts a worker that nobody would end.
func TestNoWorkerIsMadeWhileClosing(t *testing.T) {
	left := func(t *testing.T, r *rig) {
		t.Helper()
		for _, p := range r.d.connectedPlatforms() {
			if w := p.current.Load(); w != nil {
				t.Errorf("Close has returned, and worker %d is open", w.ID())
				w.Close()
			}
		}
	}
	t.Run("callback", func(t *testing.T) {
		r := newRig(t, true)
		r.queue(0)
		second := r.handle(r.d.CreateContext(nil, []uintptr{r.dev}, nil))
		began, status := make(chan struct{}), cl.SUCCESS
		r.d.callbacks.Run(func() {
			close(began)
			for p := r.d.connectedPlatforms()[0]; p.current.Load() != nil; {
				time.Sleep(time.Millisecond)
			}
			_, answer := r.d.CreateQueue(second, r.dev, 0)
			status = int(answer)
		})
		<-began
		r.d.Close()
		if left(t, r); status != cl.OUT_OF_RESOURCES {
			t.Errorf("a queue made while closing: %d", status)
		}
	})
	t.Run("build", func(t *testing.T) {
		for range 30 {
			r := newRig(t, true)
			p := r.handle(r.d.CreateProgramWithSource(r.ctx, []string{"kernel k(int)"}))
			r.ok(r.d.Build(p, false, nil, "", func() {}))
			r.d.Close()
			left(t, r)
		}
	})
}
