package store

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"tendril/store/events"
	"tendril/store/object"
)

// nextEvent gives the next event's kind, name and object.
func nextEvent(t testing.TB, w *events.Watcher) (kind, name string, id object.ID) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	ev, err := w.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return ev.Kind, ev.Name, ev.ID
}

// Whoever watches a prefix hears of an object that leaves it: renamed, bound anew, or when another one takes its name.
func TestWatcherHearsOfLostNames(t *testing.T) {
	s := newStore(t, Options{})
	c := connect(t, s, "x")
	w := c.Watch("in/", nil)
	defer w.Close()
	one := filled(t, c, named("in/1", 10), 1)
	two := filled(t, c, named("in/2", 10), 1)
	held, err := c.Get(two)
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(held)
	three := filled(t, c, named("other", 10), 1)
	if err := errors.Join(c.Rename("in/1", "out/1", false), c.Bind(three, "in/2", true),
		c.Delete(three, "")); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		kind, name string
		id         object.ID
	}{
		{events.Sealed, "in/1", one}, {events.Sealed, "in/2", two}, {events.Unnamed, "in/1", one},
		{events.Unnamed, "in/2", two}, {events.Named, "in/2", three}, {events.Gone, "in/2", three},
	} {
		if kind, name, id := nextEvent(t, w); kind != want.kind || name != want.name || id != want.id {
			t.Errorf("event %s %q %s, want %+v", kind, name, id, want)
		}
	}
}

// An object that was told to be gone is heard of no more: one that a composite has is gone when that is.
func TestGoneIsFinal(t *testing.T) {
	s := newStore(t, Options{})
	c := connect(t, s, "x")
	w := c.Watch("", nil)
	defer w.Close()
	part := filled(t, c, named("part", 10), 1)
	whole := compose(t, c, named("whole", 0), part)
	if err := c.Delete(part, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Stat(part, ""); err != nil {
		t.Fatalf("a member was deleted, and its composite has it: %v", err)
	}
	if err := errors.Join(c.Bind(part, "again", false), c.Delete(part, ""), c.Delete(whole, "")); err != nil {
		t.Fatal(err)
	}
	release(t, c, whole)
	gone, over := map[object.ID]bool{}, func(m map[object.ID]bool) bool { return m[part] && m[whole] }
	for !over(gone) {
		kind, name, id := nextEvent(t, w)
		if gone[id] {
			t.Errorf("%s %q of object %s, which is gone", kind, name, id)
		}
		gone[id] = gone[id] || kind == events.Gone
	}
}

// Waits and watches are records, not goroutines, and all of them end when they should.
func TestManyWaits(t *testing.T) {
	const n = 20_000
	s := newStore(t, Options{})
	c, other := connect(t, s, "x"), connect(t, s, "y")
	before := runtime.NumGoroutine()
	var timedOut, there, last atomic.Int32
	soon, late := time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
	count := func(err error, more bool) {
		if !more {
			last.Add(1)
		}
		switch {
		case err == nil:
			there.Add(1)
		case errors.Is(err, object.ErrTimeout) && errors.Is(err, object.ErrNotFound):
			timedOut.Add(1)
		}
	}
	var brief, cancelled []*Pending
	for i := range n {
		until := soon
		if i%2 == 0 {
			until = late
		}
		p, err := c.Later([]Wanted{{Name: "a"}, {Name: "b/c"}}, until, count)
		if p == nil {
			t.Fatal(err)
		}
		if i%4 == 0 {
			cancelled = append(cancelled, p)
		}
		if i%2 != 0 {
			brief = append(brief, p)
		}
	}
	if more := runtime.NumGoroutine() - before; more > 50 {
		t.Errorf("%d waits hold %d goroutines", n, more)
	}
	for _, p := range cancelled {
		if !p.Cancel() || p.Cancel() {
			t.Fatal("a wait was over before it was cancelled, or twice")
		}
	}
	sealedObject(t, other, Spec{SizeBytes: 1, Name: "a", Class: object.Named}) // another tenant's
	s.mu.Lock()
	for _, p := range brief { // their time is over at one moment, however long it took to make all
		p.until = soon.Add(-time.Hour)
	}
	s.setAlarm(c.tenant)
	s.mu.Unlock()
	waitFor(t, func() bool { return timedOut.Load() == n/2 })
	sealedObject(t, c, Spec{SizeBytes: 1, Name: "a", Class: object.Named})
	sealedObject(t, c, Spec{SizeBytes: 1, Name: "b/c", Class: object.Named})
	waitFor(t, func() bool { return there.Load() == n/4 })
	if got := last.Load(); got > n/8 { // most of 16 that end together are followed by another one
		t.Errorf("%d waits of a connection that end together are to be answered with %d sends", n*3/4, got)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending != 0 || len(s.waits) != 0 || len(c.tenant.deadlines) != 0 {
		t.Errorf("%d waits, %d keys, %d deadlines are left", s.pending, len(s.waits), len(c.tenant.deadlines))
	}
}

// An event finds those whom it concerns, in order, whatever else is watched.
func TestManyWatchers(t *testing.T) {
	s := newStore(t, Options{})
	c, other := connect(t, s, "x"), connect(t, s, "y")
	var all []*events.Watcher
	for i := range 3000 {
		all = append(all, c.Watch(fmt.Sprintf("n%d/", i%1000), nil))
	}
	stranger := other.Watch("", nil)
	id := sealedObject(t, c, Spec{SizeBytes: 1, Name: "n7/x", Class: object.Named})
	if err := c.Delete(id, ""); err != nil {
		t.Fatal(err)
	}
	for i := 7; i < len(all); i += 1000 {
		for _, want := range []string{events.Sealed, events.Gone} {
			if kind, _, got := nextEvent(t, all[i]); kind != want || got != id {
				t.Errorf("watcher %d: %s %s", i, kind, got)
			}
		}
	}
	for i, w := range append(all, stranger) {
		if ev, ok := w.TryNext(); ok {
			t.Errorf("watcher %d got %+v", i, ev)
		}
		w.Close()
	}
	if c.tenant.watching.Any() {
		t.Error("a watcher is left")
	}
}

// whileBusy counts the steps of busy behind which another tenant creates, seals and releases. There is one processor:
// who waits for the lock has the next turn, however much the machine has to do.
func whileBusy(t *testing.T, s *Store, busy func()) (done int) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	c := connect(t, s, "bystander")
	steps := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.pauses
	}
	seen := steps()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		busy()
	}()
	for {
		select {
		case <-ended:
			return done
		default:
		}
		id := sealedObject(t, c, Spec{SizeBytes: 1})
		if err := c.Release(id); err != nil {
			t.Fatal(err)
		}
		if now := steps(); now != seen {
			done, seen = done+1, now
		}
		runtime.Gosched()
	}
}

// What one tenant has much of is gone through a little at a time: others are served meanwhile.
func TestOthersHaveTheLockInBetween(t *testing.T) {
	const n = 30_000
	s := newStore(t, Options{CapacityBytes: 256 << 20})
	holder, maker := connect(t, s, "x"), connect(t, s, "x")
	for i := range n {
		spec := Spec{Name: fmt.Sprint(i), Class: object.Named}
		if i%2 == 0 {
			spec.Class, spec.TTL = object.TTL, time.Hour
		}
		id := sealedObject(t, maker, spec)
		if _, err := holder.Get(id); err != nil {
			t.Fatal(err)
		}
	}
	for what, busy := range map[string]func(){
		"the end of a connection": func() { maker.Close() },
		"Top":                     func() { holder.Top(1000, TopCursor{}) },
		"objects that expire": func() {
			s.mu.Lock()
			s.expire(time.Now().Add(2 * time.Hour))
			s.unlock()
		},
	} {
		if done := whileBusy(t, s, busy); done < 10 {
			t.Errorf("during %s others were served behind %d steps", what, done)
		} else {
			t.Logf("during %s others were served behind %d steps", what, done)
		}
	}
}

// A stream with many frames, and a large tree, are taken apart by the attendant.
func TestLargeThingsGoApart(t *testing.T) {
	s := newStore(t, Options{})
	c := connect(t, s, "x")
	end, err := c.OpenStream(StreamSpec{Name: "s", Writes: true, Frames: 1000})
	if err != nil {
		t.Fatal(err)
	}
	var members []object.Member
	for i := range 1000 {
		if _, err := c.Push(end.ID, sealedObject(t, c, Spec{}), 0, nil); err != nil {
			t.Fatal(err)
		}
		id := sealedObject(t, c, Spec{})
		members = append(members, object.Member{Name: fmt.Sprint(i), ID: id})
	}
	whole, err := c.Compose(Spec{}, members)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		release(t, c, m.ID)
	}
	release(t, c, whole)
	if err := c.RemoveStream("s"); err != nil {
		t.Fatal(err)
	}
	mustAgree(t, s, false)
	waitFor(t, func() bool { return s.Status().Objects == 0 })
	mustAgree(t, s, true)
}
