package forecast

import (
	"testing"
	"time"
)

// rig is a course and its clock.
type rig struct {
	Course
	t   *testing.T
	now time.Duration
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, now: time.Hour}
	r.clock = func() time.Duration { return r.now }
	return r
}

// step is one round of a program: a command, and the answer after a while.
func (r *rig) step(kind uint64, took time.Duration) (p Plan) {
	r.note(kind, 1)
	r.now += 5 * time.Microsecond
	p = r.Expect()
	r.now += took - 5*time.Microsecond
	r.Ended()
	r.now += 20 * time.Microsecond
	return p
}

func TestSteadyWaitsAreForeseen(t *testing.T) {
	const ms = time.Millisecond
	for _, took := range []time.Duration{ms / 2, ms, 10 * ms, time.Second} {
		r := newRig(t)
		for range leastSeen {
			if p := r.step(7, took); p != (Plan{}) {
				t.Fatalf("%v: foreseen at once: %+v", took, p)
			}
		}
		p := r.step(7, took)
		if wakes := 5*time.Microsecond + p.Sleep; p.Sleep <= 0 || wakes >= took || wakes+p.Poll <= took ||
			took-wakes > 2*leastMargin {
			t.Errorf("%v: %+v", took, p)
		}
	}
}

// TestNapsAreShort: where there are cores enough, a sleep of up to 10 ms is in steps that a virtual machine's host
// waits for awake, and a longer one in few steps.
func TestNapsAreShort(t *testing.T) {
	const hostAwake = 200 * time.Microsecond
	for _, c := range []struct {
		cores       int
		sleep       time.Duration
		least, most time.Duration
	}{
		{leastCores, 300 * time.Microsecond, 50 * time.Microsecond, hostAwake},
		{leastCores, 10 * time.Millisecond, 50 * time.Microsecond, hostAwake},
		{leastCores, time.Second, 10 * time.Millisecond, time.Second},
		{leastCores - 1, time.Millisecond, time.Millisecond, time.Millisecond},
	} {
		if n := nap(c.sleep, c.cores); n < c.least || n >= c.most+1 {
			t.Errorf("%d cores, %v: naps of %v", c.cores, c.sleep, n)
		}
	}
}

// TestShortWaitsArePolled: a sleep would take longer than what is awaited.
func TestShortWaitsArePolled(t *testing.T) {
	r := newRig(t)
	for range 10 {
		r.step(7, 100*time.Microsecond)
	}
	p := r.step(7, 100*time.Microsecond)
	if p.Sleep != 0 || p.Poll < 95*time.Microsecond || p.Poll > 200*time.Microsecond {
		t.Errorf("%+v", p)
	}
}

// TestUnsteadyWaitsAreNot: what varies is not slept through, and what settles is foreseen again.
func TestUnsteadyWaitsAreNot(t *testing.T) {
	r := newRig(t)
	for i := range 50 {
		r.step(7, time.Duration(1+i%2)*time.Millisecond)
	}
	if p := r.step(7, time.Millisecond); p != (Plan{}) {
		t.Errorf("of 1 and 2 ms in turn: %+v", p)
	}
	for range 50 {
		r.step(7, time.Millisecond)
	}
	if p := r.step(7, time.Millisecond); p.Sleep == 0 {
		t.Error("what has settled is not foreseen")
	}
}

// TestOthersCommandsAreOthers: another size, another order, one more.
func TestOthersCommandsAreOthers(t *testing.T) {
	r := newRig(t)
	for range 10 {
		r.step(7, time.Millisecond)
	}
	for _, other := range [][][2]uint64{{{7, 2}}, {{8, 1}}, {{7, 1}, {7, 1}}, {{1, 7}}} {
		for _, n := range other {
			r.note(n[0], n[1])
		}
		if p := r.Expect(); p != (Plan{}) {
			t.Errorf("%v: %+v", other, p)
		}
		r.Forget()
	}
	if p := r.Expect(); p != (Plan{}) {
		t.Errorf("of nothing: %+v", p)
	}
	r.Ended() // of nothing: nothing is learned
	if p := r.step(7, time.Millisecond); p.Sleep == 0 {
		t.Error("it is forgotten")
	}
}

// TestLateTimers: a sleeper that wakes late sleeps less, and not at all where that is too much.
func TestLateTimers(t *testing.T) {
	r := newRig(t)
	for range 10 {
		r.step(7, time.Millisecond)
	}
	before := r.step(7, time.Millisecond)
	for range 20 {
		r.Late(80 * time.Microsecond)
	}
	after := r.step(7, time.Millisecond)
	if d := before.Sleep - after.Sleep; d < 75*time.Microsecond || d > 85*time.Microsecond {
		t.Errorf("%v less", d)
	}
	if after.Sleep+after.Poll < before.Sleep+before.Poll {
		t.Error("it stops to poll earlier than before")
	}
	// 300 µs are the most that counts, as a mean or as its error.
	r.late = spread{mean: 2 * mostLate}
	if p := r.step(7, time.Millisecond); p != (Plan{}) {
		t.Errorf("timers are late: %+v", p)
	}
	for range 50 {
		r.step(7, time.Millisecond)
	}
	if p := r.step(7, time.Millisecond); p.Sleep == 0 {
		t.Error("it is never tried again")
	}
}

// sleeper is a round of who hears of an end only when he looks: what he lost by his sleep.
func (r *rig) sleeper(took time.Duration) (lost time.Duration) {
	r.note(7, 1)
	began := r.now
	p := r.Expect()
	if p.Sleep > 0 {
		r.now += p.Sleep + 5*time.Microsecond
		r.Late(5 * time.Microsecond)
	}
	r.now = max(r.now, began+took)
	r.Ended()
	return r.now - began - took
}

// TestWhatIsShorterNowIsSeen: who sleeps through an end learns nothing of when it was, and must not go on so.
func TestWhatIsShorterNowIsSeen(t *testing.T) {
	for _, took := range []time.Duration{time.Millisecond, 9 * time.Millisecond} {
		r := newRig(t)
		for range 10 {
			r.sleeper(10 * time.Millisecond)
		}
		late := 0
		for range 50 {
			if r.sleeper(took) > 0 {
				late++
			}
		}
		if late > 2 {
			t.Errorf("%v instead of 10 ms: %d of 50 were slept through", took, late)
		}
		if r.step(7, took); r.Expect() != (Plan{}) {
			t.Error("of nothing")
		}
		if p := r.step(7, took); p.Sleep == 0 || p.Sleep > took {
			t.Errorf("%v is not foreseen: %+v", took, p)
		}
	}
}

// TestWhatIsOtherNowIsLearned: soon, whether it is longer or shorter.
func TestWhatIsOtherNowIsLearned(t *testing.T) {
	for _, took := range []time.Duration{time.Millisecond, 20 * time.Millisecond} {
		r := newRig(t)
		for range 10 {
			r.step(7, 5*time.Millisecond)
		}
		for range leastSeen + 2 {
			r.step(7, took)
		}
		if p := r.step(7, took); p.Sleep < took*9/10 {
			t.Errorf("%v: %+v", took, p)
		}
	}
}

// TestOverdue: what should have come long ago is not polled for.
func TestOverdue(t *testing.T) {
	r := newRig(t)
	for range 10 {
		r.step(7, time.Millisecond)
	}
	r.note(7, 1)
	r.now += 2 * time.Millisecond
	if p := r.Expect(); p != (Plan{}) {
		t.Errorf("%+v", p)
	}
}

func BenchmarkStep(b *testing.B) {
	var c Course
	b.ReportAllocs()
	for b.Loop() {
		c.note(1, 2)
		c.Expect()
		c.Ended()
	}
}

func BenchmarkNote(b *testing.B) {
	var c Course
	for b.Loop() {
		c.note(1, 2)
	}
}
