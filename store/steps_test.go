package store

import (
	"fmt"
	"math"
	"testing"
	"time"

	"tendril/store/index"
	"tendril/store/object"
	"tendril/store/order"
)

// pausesOf counts how often what do does lets others have the lock.
func pausesOf(s *Store, do func()) int {
	s.mu.Lock()
	before := s.pauses
	s.mu.Unlock()
	do()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pauses - before
}

// Work in proportion to what one tenant made lets others have the lock after each lockSteps of it.
func TestLongWorkLetsTheLockGo(t *testing.T) {
	for what, test := range map[string]func(t *testing.T, n int) (pauses, want int){
		"a segment of tiny objects goes to disk": evictTiny,
		"a look through many slots":              lookThroughMany,
		"the rings of many connections are read": readManyRings,
		"who kept memory is looked for":          keptByMany,
		"a listing that finds nothing":           listMany,
		"a listing of many objects":              describeMany,
		"the largest of many objects":            topOfMany,
		"records that the disk did not take":     behindMany,
	} {
		t.Run(what, func(t *testing.T) {
			for _, n := range []int{2 * lockSteps, 8 * lockSteps} {
				if pauses, want := test(t, n); pauses < want {
					t.Errorf("%d: the lock was let go %d times, want %d", n, pauses, want)
				}
			}
		})
	}
}

// evictTiny goes through the objects four times: out of the index, to be written, written, gone.
func evictTiny(t *testing.T, n int) (pauses, want int) {
	s := newStore(t, Options{CapacityBytes: 64 << 20, SpillDir: t.TempDir()})
	k := indexed(t, s, "x")
	for i := range n {
		release(t, k.Conn, k.mustPut(named(fmt.Sprint(i), 16)))
	}
	waitFor(t, func() bool {
		s.mu.Lock()
		defer s.unlock()
		return s.cold.Len() > 0
	})
	pauses = pausesOf(s, func() {
		s.mu.Lock()
		defer s.unlock()
		victims, _ := s.victims(nil, math.MaxInt, 0)
		if _, err := s.evict(victims, s.spill.For("x"), nil); err != nil {
			t.Error(err)
		}
	})
	if st := s.Status(); st.SpilledObjects != n {
		t.Errorf("%d of %d objects are on disk", st.SpilledObjects, n)
	}
	mustAgree(t, s, false)
	return pauses, 4 * n / lockSteps
}

// manyObjects gives a connection whose tenant has n objects.
func manyObjects(t *testing.T, n int) *Conn {
	c := connect(t, newStore(t, Options{CapacityBytes: 64 << 20}), "x")
	for i := range n {
		release(t, c, sealedObject(t, c, named(fmt.Sprint(i), 0)))
	}
	return c
}

// listMany asks for objects of which there are none: no answer keeps the look at the others short.
func listMany(t *testing.T, n int) (pauses, want int) {
	c := manyObjects(t, n)
	return pausesOf(c.s, func() {
		c.Walk(Query{Labels: map[string]string{"none": ""}}, order.Cursor{}, n, func(object.Info) bool { return true })
	}), n / walkStep
}

func describeMany(t *testing.T, n int) (pauses, want int) {
	c := manyObjects(t, n)
	return pausesOf(c.s, func() { c.List("", false) }), n / lookStep
}

// topOfMany goes through the objects to choose, and through those chosen.
func topOfMany(t *testing.T, n int) (pauses, want int) {
	c := manyObjects(t, n)
	return pausesOf(c.s, func() { c.Top(n, TopCursor{}) }), n/walkStep + n/lookStep
}

// behindMany goes through records that have been written since.
func behindMany(t *testing.T, n int) (pauses, want int) {
	s := manyObjects(t, n).s
	return pausesOf(s, func() {
		s.mu.Lock()
		defer s.unlock()
		for _, e := range s.objects {
			s.behind[e] = nil
		}
		s.writeAgain()
		if len(s.behind) > 0 {
			t.Errorf("%d records are behind still", len(s.behind))
		}
	}), n / lockSteps
}

// putIndexed makes an object that is in the index. By chance one has no place there (its two buckets are full, and the
// table has room): then it makes another.
func putIndexed(t *testing.T, s *Store, k *indexClient, name string) object.ID {
	t.Helper()
	for {
		id := k.mustPut(named(name, 0))
		release(t, k.Conn, id)
		placed := false
		waitFor(t, func() bool { // the table may be about to grow
			s.mu.Lock()
			defer s.unlock()
			e, ix := s.objects[id], k.tenant.index
			s.enindex(e)
			placed = e.indexed()
			return placed || !ix.growing && !ix.table.Short()
		})
		if placed {
			return id
		}
		if err := k.Conn.Delete(id, ""); err != nil {
			t.Fatal(err)
		}
	}
}

// lookThroughMany looks for n records in the slots of n/16 connections: the lock is held for 16 of these at most.
func lookThroughMany(t *testing.T, n int) (pauses, want int) {
	s := newStore(t, Options{CapacityBytes: 256 << 20})
	maker, readers := indexed(t, s, "x"), make([]*indexClient, n/16)
	for i := range readers {
		readers[i] = indexed(t, s, "x")
	}
	var words []retirement
	for i := range n {
		id := putIndexed(t, s, maker, fmt.Sprint(i))
		s.mu.Lock()
		words = append(words, retirement{s.objects[id].word, s.objects[id]})
		s.mu.Unlock()
	}
	for i, r := range words[:n/2] {
		readers[i%len(readers)].pins.Hold(r.word)
	}
	pauses = pausesOf(s, func() {
		s.mu.Lock()
		defer s.unlock()
		for _, r := range words { // as a Delete each, but before any look
			s.removeFromTable(r.e)
			r.e.held = false
			s.collect(r.e)
		}
		s.look(maker.tenant)
		if kept := len(maker.tenant.index.kept); kept != n/2 {
			t.Errorf("%d records are kept, want the %d that are held", kept, n/2)
		}
	})
	// whatever is held stays, and goes with the connections
	for _, r := range readers {
		r.end()
	}
	waitFor(t, func() bool {
		s.mu.Lock()
		defer s.unlock()
		return len(s.looking) == 0 && maker.tenant.entries.Len() == 0 && maker.tenant.index.table.Live() == 0
	})
	mustAgree(t, s, false)
	return pauses, n/lockSteps + n/16/slotStep
}

// readManyRings reads the rings of n/16 connections, each of them full.
func readManyRings(t *testing.T, n int) (pauses, want int) {
	s := newStore(t, Options{CapacityBytes: 64 << 20, SpillDir: t.TempDir()})
	all := make([]*indexClient, n/16)
	for i := range all {
		all[i] = indexed(t, s, "x")
		for w := range 200 {
			all[i].pins.Tell(index.Word(w))
		}
	}
	pauses = pausesOf(s, func() {
		s.mu.Lock()
		defer s.unlock()
		s.freshenUsed(nil)
	})
	return pauses, len(all)
}

// keptByMany looks through n pieces of memory that were given up just now.
func keptByMany(t *testing.T, n int) (pauses, want int) {
	s := newStore(t, Options{CapacityBytes: 64 << 20})
	s.mu.Lock()
	for i := range n {
		s.remnants[int32(i+1_000_000)] = &remnant{tenant: s.tenantOf("x"), since: time.Now().Add(time.Hour)}
	}
	s.mu.Unlock()
	pauses = pausesOf(s, func() { s.keptInodes() })
	return pauses, n / lockSteps
}

// Whoever waits for a stream that ends is told in steps, and so is what was dropped from one with lower bounds.
func TestStreamsEndInSteps(t *testing.T) {
	const n = 10 * maxStreamWaits
	s := newStore(t, Options{})
	writer := connect(t, s, "x")
	stream := openStream(t, writer, StreamSpec{Name: "s", Writes: true, Frames: 2 * n})
	woken := make(chan *Waiter, n)
	for range n / maxStreamWaits {
		c := connect(t, s, "x")
		end := openStream(t, c, StreamSpec{Name: "s", Reads: true})
		for range maxStreamWaits {
			if _, w, err := c.Pop(end, -1, func(w *Waiter) { woken <- w }); err != nil || w == nil {
				t.Fatal(w, err)
			}
		}
	}
	s.mu.Lock()
	s.removeStream(writer.streams[stream].st)
	told := len(s.wakes)
	s.unlock()
	if told > lockSteps {
		t.Errorf("%d of those who wait were told in one hold of the lock, want at most %d", told, lockSteps)
	}
	for range n {
		if _, err := (<-woken).Result(); err == nil {
			t.Fatal("a pop from a stream that is gone succeeded")
		}
	}

	stream = openStream(t, writer, StreamSpec{Name: "l", Writes: true, Frames: n})
	for range n {
		pushNow(t, writer, stream, 0)
	}
	openStream(t, connect(t, s, "x"), StreamSpec{Name: "l", Writes: true, Frames: 1, DropOldest: true})
	last := sealedObject(t, writer, Spec{})
	if _, err := writer.Push(stream, last, 0, nil); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return s.Status().Objects == 1 })
	mustAgree(t, s, false)
	if infos := writer.Streams("l"); len(infos) != 1 || infos[0].Frames != 1 || infos[0].Dropped != n {
		t.Errorf("%+v", infos)
	}
}

// What a composite that could not be settled is for others who have found it meanwhile: an object that was deleted.
func TestForgottenCompositeIsOthersToRelease(t *testing.T) {
	s := newStore(t, Options{})
	c, other := connect(t, s, "x"), connect(t, s, "x")
	part := filled(t, c, named("part", 10), 1)
	whole := compose(t, c, Spec{}, part)
	if _, err := other.Get(whole); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	c.forgetComposite(s.objects[whole])
	s.unlock()
	if _, err := c.Stat(whole, ""); err == nil {
		t.Error("the composite is still there")
	}
	wantErr(t, c.Release(whole), object.ErrNotFound)
	if err := other.Release(whole); err != nil {
		t.Error(err)
	}
	mustAgree(t, s, false)
}

// TestPagesAreDescribedAlone: of what a listing has found, it describes little more than its caller takes.
func TestPagesAreDescribedAlone(t *testing.T) {
	c := manyObjects(t, 4*walkStep)
	const page = 3 * lookStep
	seen := 0
	pauses := pausesOf(c.s, func() {
		c.Walk(Query{}, order.Cursor{}, 4*walkStep, func(object.Info) bool { seen++; return seen <= page })
	})
	if most := 1 + page/lookStep + 1; pauses > most || seen != page+1 {
		t.Errorf("%d objects were looked at in %d steps, want %d at most", seen, pauses, most)
	}
}
