package transfer

import (
	"testing"
	"testing/synctest"
	"time"
)

// fakeWorker ends a read when it is polled.
type fakeWorker struct {
	dead  bool
	polls int
	ends  func()
	away  func() bool // nil: it never is
}

func (w *fakeWorker) Dead() bool { return w.dead }
func (w *fakeWorker) Away() bool { return w.away != nil && w.away() }

func (w *fakeWorker) Poll() {
	if w.polls++; w.ends != nil {
		w.ends()
	}
}

// A write meets the reads that bring bytes it is to take, and no others.
func TestReadHazards(t *testing.T) {
	var h ReadHazards
	w := &fakeWorker{}
	line := Side{Size: 100}
	rows := Side{Rect: true, Region: [3]uint64{10, 3, 1}, Box: Box{Origin: [3]uint64{5, 0, 0}, Row: 50, Slice: 150}}
	if h.Meeting(1000, &line) != nil {
		t.Error("something meets nothing")
	}
	first, second := h.Add(1000, &line, w), h.Add(2000, &rows, w)
	for _, c := range []struct {
		at   uintptr
		want []*ReadHazard
	}{
		{900, nil}, {901, []*ReadHazard{first}}, {1099, []*ReadHazard{first}}, {1100, nil},
		{1905, nil}, {1906, []*ReadHazard{second}}, {2114, []*ReadHazard{second}}, {2115, nil},
	} {
		if got := h.Meeting(c.at, &line); len(got) != len(c.want) || len(got) == 1 && got[0] != c.want[0] {
			t.Errorf("100 bytes at %d meet %d reads", c.at, len(got))
		}
	}
	third := h.Add(3000, &line, w)
	h.End(second)
	h.End(second)
	h.End(nil)
	if h.Len() != 2 || h.Meeting(2050, &line) != nil {
		t.Error("a read that ended is there")
	}
	h.End(first)
	h.End(third)
	if h.Len() != 0 {
		t.Errorf("%d reads are left", h.Len())
	}
}

// A write waits for the reads of other workers that live, and asks them what they have said.
func TestAwaitOthers(t *testing.T) {
	var h ReadHazards
	line := Side{Size: 100}
	own, dead, other := &fakeWorker{}, &fakeWorker{dead: true}, &fakeWorker{}
	AwaitOthers(nil, own)
	reads := []*ReadHazard{h.Add(0, &line, own), h.Add(0, &line, dead), h.Add(0, &line, other)}
	other.ends = func() {
		if other.polls == 3 {
			h.End(reads[2])
		}
	}
	AwaitOthers(reads, own)
	if own.polls+dead.polls != 0 || other.polls != 3 || h.Len() != 2 {
		t.Errorf("polled %d, %d and %d times, %d reads are left", own.polls, dead.polls, other.polls, h.Len())
	}
}

// A write does not wait for ever for a read that may itself wait for what follows the write.
func TestAwaitOthersGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h ReadHazards
		other, began := &fakeWorker{}, time.Now()
		AwaitOthers([]*ReadHazard{h.Add(0, &Side{Size: 100}, other)}, &fakeWorker{})
		if waited := time.Since(began); waited < hazardPatience || h.Len() != 1 || other.polls == 0 {
			t.Errorf("it waited %v of the bubble's time, %d reads are left, polled %d times", waited, h.Len(), other.polls)
		}
	})
}

// A write waits for longer than its patience while the lost connection of a read's worker is being replaced.
func TestAwaitOthersThatAreAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h ReadHazards
		other, began := &fakeWorker{}, time.Now()
		read := h.Add(0, &Side{Size: 100}, other)
		other.away = func() bool { return time.Since(began) < 2*hazardPatience }
		other.ends = func() {
			if time.Since(began) > 2*hazardPatience+time.Second {
				h.End(read)
			}
		}
		AwaitOthers([]*ReadHazard{read}, &fakeWorker{})
		if h.Len() != 0 {
			t.Errorf("after %v the write did not wait any more for a read whose worker was away", time.Since(began))
		}
	})
}

// A write whose own worker has died waits for nobody: who waits for the end of what it does would wait with it.
func TestAwaitOthersOfADeadWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h ReadHazards
		own, other, began := &fakeWorker{}, &fakeWorker{}, time.Now()
		read := h.Add(0, &Side{Size: 100}, other)
		other.away = func() bool { return time.Since(began) < 2*hazardPatience }
		other.ends = func() { own.dead = true }
		AwaitOthers([]*ReadHazard{read}, own)
		if other.polls != 1 {
			t.Errorf("it looked %d times, for %v, and its own worker was dead after the first", other.polls, time.Since(began))
		}
	})
}

// A write does not wait for ever for a read whose worker loses its connection again and again: the time during which
// it was reached counts together.
func TestAwaitOthersThatFlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h ReadHazards
		other, began := &fakeWorker{}, time.Now()
		const half = hazardPatience * 2 / 3
		other.away = func() bool { return time.Since(began)/half%2 == 1 }
		read := h.Add(0, &Side{Size: 100}, other)
		other.ends = func() {
			if time.Since(began) > 20*hazardPatience {
				h.End(read)
			}
		}
		AwaitOthers([]*ReadHazard{read}, &fakeWorker{})
		if h.Len() == 0 {
			t.Error("the write never stopped waiting")
		}
	})
}

// A read that does not end, of a worker that is reached, takes no patience from one whose worker is away.
func TestAwaitOthersInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h ReadHazards
		stuck, other, began := &fakeWorker{}, &fakeWorker{}, time.Now()
		first, second := h.Add(0, &Side{Size: 100}, stuck), h.Add(0, &Side{Size: 100}, other)
		again := h.Add(0, &Side{Size: 100}, stuck)
		other.away = func() bool { return time.Since(began) < 2*hazardPatience }
		other.ends = func() {
			if !other.Away() {
				h.End(second)
			}
		}
		AwaitOthers([]*ReadHazard{first, second, again}, &fakeWorker{})
		if !second.over.Load() {
			t.Errorf("after %v the write did not wait any more for a read whose worker was away", time.Since(began))
		}
		if waited := time.Since(began); waited > 3*hazardPatience {
			t.Errorf("it waited %v of the bubble's time: twice for a worker whose patience was used up", waited)
		}
	})
}
