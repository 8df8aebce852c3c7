package store

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"tendril/store/object"
)

// leavingStore has 8 MiB, and writes nothing to disk that nobody needs the room of.
func leavingStore(t *testing.T) *Store {
	t.Helper()
	opts := spillOptions(t.TempDir())
	opts.HighBytes = opts.CapacityBytes
	return newStore(t, opts)
}

// keepsMapped makes an object of 1 MiB for each name, which nobody uses and its maker keeps mapped.
func keepsMapped(t *testing.T, c *Conn, names ...string) {
	t.Helper()
	for i, name := range names {
		filled(t, c, named(name, 1<<20), byte(i))
	}
}

// gets has a tenant ask for 1 MiB as its client does, which unmaps what it should in between, and says whether it got
// it.
func gets(t *testing.T, c *Conn, tries int) bool {
	t.Helper()
	for range tries {
		h, err := c.Create(Spec{SizeBytes: 1 << 20, Own: true})
		if err == nil {
			closeHandle(h)
			return true
		}
		wantErr(t, err, object.ErrFull)
		sweepAll(c)
	}
	return false
}

// TestOthersLeavingMemory: memory that another tenant gave up, and keeps mapped, is no reason to refuse what can be had
// from what nobody uses.
func TestOthersLeavingMemory(t *testing.T) {
	s := leavingStore(t)
	hostile, c := connect(t, s, "hostile"), connect(t, s, "x")
	keepsMapped(t, c, "a", "b", "c", "d", "e")
	h, err := hostile.Create(Spec{SizeBytes: 2 << 20, Own: true})
	if err != nil {
		t.Fatal(err)
	}
	mapHandle(t, h, true)
	if err := errors.Join(hostile.Seal(h.ID, false), hostile.Release(h.ID)); err != nil {
		t.Fatal(err)
	}
	if !gets(t, c, 3) {
		t.Errorf("full, though the tenant has 5 MiB that nobody uses: %+v", s.Status())
	}
	mustAgree(t, s, false)
}

// evicted counts the objects that went to disk.
func evicted(s *Store) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts.Evicted
}

// TestPromisedMemory: what others have to let go of for a tenant counts for it, so that no more goes, and for nobody
// else; and for no longer than they may take.
func TestPromisedMemory(t *testing.T) {
	waitFor(t, func() bool { return promisedMemory(t) })
}

// promisedMemory is false where the machine took longer than the time that it counts.
func promisedMemory(t *testing.T) (inTime bool) {
	t.Helper()
	s := leavingStore(t)
	defer s.Close()
	slow, c, other := connect(t, s, "slow"), connect(t, s, "x"), connect(t, s, "y")
	var names []string
	for i := range 6 {
		names = append(names, fmt.Sprint("n", i))
	}
	keepsMapped(t, slow, names...)
	filled(t, c, Spec{SizeBytes: 1600 << 10, Class: object.Named, Name: "full"}, 0)
	unmapWriters(c)
	before, began := evicted(s), time.Now()
	if gets(t, c, 1) {
		t.Fatal("there was room")
	}
	gets(t, c, 1)
	gone := evicted(s) - before
	if time.Since(began) >= leavingTime {
		return false
	}
	if gone != 1 {
		t.Errorf("%d objects went to disk for one", gone)
	}
	after := evicted(s)
	gets(t, other, 1)
	if evicted(s) == after {
		t.Error("what goes for one tenant is counted for another")
	}
	mustAgree(t, s, false)
	// who is refused for long counts on nobody: all goes, what somebody has mapped and what nobody has
	began = time.Now()
	s.mu.Lock()
	c.tenant.refused.since = began.Add(-leavingTime)
	c.tenant.refused.last = began
	s.mu.Unlock()
	got := gets(t, c, 2)
	if !got && time.Since(began) >= leavingTime {
		return false
	}
	if !got {
		t.Errorf("refused for long, though its own object can go, with %d of %d gone: %+v", evicted(s)-before,
			len(names)+1, s.Status())
	}
	mustAgree(t, s, false)
	return true
}
