package engine

import (
	"fmt"
	"testing"
	"time"
)

// expectBrief has the next finish of a queue expected, and to be brief.
func (e *Engine) expectBrief(id uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if q := e.queues[id]; q != nil {
		e.alone, q.bursts.short, q.bursts.same, q.bursts.was = q, surelyBrief, surelySame, q.bursts.now
	}
}

// rests says whether nothing of a queue is under way, and nobody waits.
func (e *Engine) rests(id uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	q := e.queues[id]
	return len(q.held) == 0 && len(q.live) == 0 && !q.submitting && e.urgent == 0
}

// steps is an engine of two queues, of which the first is expected to have brief finishes, and its driver.
type steps struct {
	t *testing.T
	e *Engine
	d *handDriver
}

func newSteps(t *testing.T) *steps {
	e, d := newAsked(t, false, Options{Submitters: true, Brief: true})
	if err := e.AddQueue(2, 2, false, 0, func() {}); err != nil {
		t.Fatal(err)
	}
	return &steps{t, e, d}
}

// begin is a command, and a finish behind it that is expected to be brief.
func (s *steps) begin() {
	s.t.Helper()
	s.e.mu.Lock()
	q := s.e.queues[1]
	s.e.alone, q.bursts.short, q.bursts.same, q.bursts.was = q, surelyBrief, surelySame, 1
	s.e.mu.Unlock()
	s.d.put(s.t, s.e, Command{})
	if err := s.e.Finish(1, 7); err != nil {
		s.t.Fatal(err)
	}
}

// TestABriefFinishIsTheDriversOwn: without an event, a marker, a flush, or a question.
func TestABriefFinishIsTheDriversOwn(t *testing.T) {
	s := newSteps(t)
	s.begin()
	if !s.e.Brief() || s.e.Awaited() {
		t.Fatal("it is not brief")
	}
	s.e.FinishBrief()
	if d := s.d; d.finished != 1 || d.next != 0 || d.markers != 0 || d.flushed != 0 || d.asked != 0 {
		t.Errorf("%d finishes, %d events, %d markers, %d flushes, %d questions", d.finished, d.next, d.markers, d.flushed,
			d.asked)
	}
	if s.e.Brief() || s.e.queues[1].underWay() != 0 {
		t.Error("somebody still waits")
	}
}

// TestBehindABriefFinishThereIsNothing: who waits again, with nothing new, is answered without the driver. What was
// enqueued while the caller was in the driver is waited for.
func TestBehindABriefFinishThereIsNothing(t *testing.T) {
	var log []string
	e, d := newHeard(t, &log, false, Options{Submitters: true, Brief: true})
	s := &steps{t, e, d}
	s.begin()
	e.FinishBrief()
	_ = e.Finish(1, 8)
	if got, want := fmt.Sprint(log, d.markers, d.finished), "[reply 7: 0 reply 8: 0] 0 1"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	s.begin()
	d.within = func() {
		d.put(t, e, Command{})
		d.put(t, e, Command{}) // one more than foreseen: it gets no event
	}
	e.FinishBrief()
	_ = e.Finish(1, 9)
	if got, want := fmt.Sprint(log[min(len(log), 2):]), "[reply 7: 0]"; got != want {
		t.Errorf("something new runs: %s, want %s", got, want)
	}
	d.endAll()
	e.Poll()
	if got, want := fmt.Sprint(log[min(len(log), 3):]), "[reply 9: 0]"; got != want {
		t.Errorf("something new has ended: %s, want %s", got, want)
	}
}

// TestABriefFinishTellsAFailure: as any other, once.
func TestABriefFinishTellsAFailure(t *testing.T) {
	var log []string
	e, d := newHeard(t, &log, false, Options{Submitters: true, Brief: true})
	d.fails = -5
	s := &steps{t, e, d}
	s.begin()
	e.FinishBrief()
	d.fails = 0
	s.begin()
	e.FinishBrief()
	if got, want := fmt.Sprint(log), "[reply 7: -5 reply 7: 0]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestWhatIsNotBrief: whoever waits or sends beside, or looks first, has the finish waited for as any other.
func TestWhatIsNotBrief(t *testing.T) {
	wait := func(s *steps) {
		s.d.put(t, s.e, Command{Event: 9})
		if err := s.e.Wait([]uint64{9}, 8); err != nil {
			t.Fatal(err)
		}
	}
	for name, beside := range map[string]func(*steps){
		"a command of the queue": func(s *steps) { s.d.put(t, s.e, Command{}) },
		"a wait":                 wait,
		"a look":                 func(s *steps) { s.e.Tick() },
		"a finish of another":    func(s *steps) { _ = s.e.Finish(2, 9) },
		"the queue goes":         func(s *steps) { s.e.DropQueue(1) },
	} {
		s := newSteps(t)
		s.begin()
		beside(s)
		if s.e.Brief() {
			t.Errorf("%s: it is brief", name)
		}
		s.e.FinishBrief()
		if s.d.endAll(); s.e.Poll() || s.d.finished != 0 || s.d.markers == 0 {
			t.Errorf("%s: %d finishes, %d markers", name, s.d.finished, s.d.markers)
		}
	}
	s := newSteps(t)
	s.begin()
	s.e.FinishBrief()
	if err := s.e.Finish(2, 9); err != nil { // of a queue that is used beside
		t.Fatal(err)
	}
	if s.d.put(t, s.e, Command{}); s.e.queues[1].bursts.short != 0 {
		t.Error("a queue that another is used beside has brief finishes")
	}
}

// TestShortWaitsAreCounted: one that takes longer begins anew.
func TestShortWaitsAreCounted(t *testing.T) {
	var b bursts
	for i, took := range []time.Duration{1, briefWait, briefWait + 1, 1} {
		b.answered(took)
		if want := []int{1, 2, 0, 1}[i]; b.short != want {
			t.Errorf("%d: %d short waits, want %d", i, b.short, want)
		}
	}
}
