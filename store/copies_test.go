package store

import (
	"errors"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// copyOf makes a cached copy, as the daemon does: in a mapping of its own, sealed with checksums that came with it.
func copyOf(t *testing.T, s *Store, tenant string, id object.ID, n uint64) error {
	t.Helper()
	c := connect(t, s, tenant)
	defer c.Close()
	h, err := c.Create(Spec{ID: id, SizeBytes: n, Own: true, Cached: true})
	if err != nil {
		return err
	}
	if h.ID != id {
		t.Fatalf("object %s, want %s", h.ID, id)
	}
	m := mapHandle(t, h, true)
	fillPattern(m.Bytes()[h.Ref.Offset:][:n], 7)
	sums := sumsOf(m.Bytes()[h.Ref.Offset:][:n], nil)
	m.Unmap()
	if err := c.SealCopy(id, sums[:len(sums)-8]); !errors.Is(err, object.ErrInvalid) {
		t.Fatalf("too few checksums: %v", err)
	}
	return c.SealCopy(id, sums)
}

// there lists which of some objects are in the table.
func there(c *Conn, ids []object.ID) (list []int) {
	for i, id := range ids {
		if _, err := c.Stat(id, ""); err == nil {
			list = append(list, i)
		}
	}
	return list
}

// TestDropCopy: what is no more than a copy goes, also where it was asked to stay; what somebody made more of it stays.
func TestDropCopy(t *testing.T) {
	s := newStore(t, Options{CapacityBytes: 64 << 20, SpillDir: t.TempDir()})
	c := connect(t, s, "a")
	for name, test := range map[string]struct {
		make  func(id object.ID) error
		stays bool
	}{
		"copy":      {func(object.ID) error { return nil }, false},
		"kept":      {c.KeepCopy, false},
		"named":     {func(id object.ID) error { return c.Bind(id, "mine", false) }, true},
		"persisted": {func(id object.ID) error { return c.Update(id, "", Change{Persist: true}) }, true},
	} {
		id := object.NewID()
		if err := errors.Join(copyOf(t, s, "a", id, 5000), test.make(id)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := connect(t, s, "b").DropCopy(id); !errors.Is(err, object.ErrPermission) {
			t.Errorf("%s: by another tenant: %v", name, err)
		}
		if err := c.DropCopy(id); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if stays := len(there(c, []object.ID{id})) > 0; stays != test.stays {
			t.Errorf("%s: it stays: %v", name, stays)
		}
		if err := c.DropCopy(id); test.stays != (err == nil) {
			t.Errorf("%s: once more: %v", name, err)
		}
	}
}

// TestCachedCopiesMakeWay: they go before anything else does, the one longest without use first, and only where nobody
// uses them; whatever is short: memory, the quota, the number of objects or of segments.
func TestCachedCopiesMakeWay(t *testing.T) {
	for name, opts := range map[string]Options{
		"memory":    {CapacityBytes: 8 << 20},
		"quota":     {CapacityBytes: 64 << 20, TenantBytes: 8 << 20},
		"objects":   {CapacityBytes: 64 << 20, TenantObjects: 4},
		"segments":  {CapacityBytes: 64 << 20, Segments: 100, TenantSegments: 4},
		"with disk": {CapacityBytes: 8 << 20, SpillDir: t.TempDir()},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, opts)
			c := connect(t, s, "a")
			var ids []object.ID
			for range 3 {
				ids = append(ids, object.NewID())
				if err := copyOf(t, s, "a", ids[len(ids)-1], 2<<20); err != nil {
					t.Fatal(err)
				}
			}
			if got := spareOf(s); got != 6<<20 {
				t.Errorf("%d bytes of copies", got)
			}
			st := s.Status()
			if capacity, free := s.Room(); capacity != opts.CapacityBytes || free != capacity-st.ChargedBytes+6<<20 {
				t.Errorf("%d of %d bytes are as good as free, and %d are charged", free, capacity, st.ChargedBytes)
			}
			if err := copyOf(t, s, "a", ids[0], 2<<20); !errors.Is(err, object.ErrExists) {
				t.Errorf("a second copy of one object: %v", err)
			}
			h, err := c.Get(ids[0]) // used, and used last
			if err != nil {
				t.Fatal(err)
			}
			unix.Close(h.FD)
			made, err := c.Create(Spec{SizeBytes: 3 << 20, Own: true})
			for range 2 { // as many objects as there may be
				if err == nil {
					unix.Close(made.FD)
					made, err = c.Create(Spec{SizeBytes: 1 << 19, Own: true})
				}
			}
			if err != nil {
				t.Fatalf("what needs the copies' place: %v", err)
			}
			unix.Close(made.FD)
			if got := there(c, ids); !slices.Contains(got, 0) || slices.Contains(got, 1) {
				t.Errorf("copies %v are left", got)
			}
			if name == "with disk" && s.Status().SpilledObjects != 0 {
				t.Error("a copy went to disk")
			}
		})
	}
}

// TestCopyThatBecameMore: one that got a name stays, and one that is deleted goes at once.
func TestCopyThatBecameMore(t *testing.T) {
	s := newStore(t, Options{CapacityBytes: 8 << 20})
	c := connect(t, s, "a")
	named, deleted := object.NewID(), object.NewID()
	for _, id := range []object.ID{named, deleted} {
		if err := copyOf(t, s, "a", id, 2<<20); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(c.Bind(named, "mine", false), c.Delete(deleted, "")); err != nil {
		t.Fatal(err)
	}
	if got := spareOf(s); got != 0 {
		t.Errorf("%d bytes of copies", got)
	}
	if _, err := c.Create(Spec{SizeBytes: 7 << 20, Own: true}); !errors.Is(err, object.ErrFull) {
		t.Errorf("an object in the place of one that has a name: %v", err)
	}
	if info, err := c.Stat(named, ""); err != nil || info.Cached || !info.Checksum {
		t.Errorf("%+v, %v", info, err)
	}
	if s.copies.Len() != 0 {
		t.Errorf("%d copies in the list", s.copies.Len())
	}
	if _, err := c.Create(Spec{SizeBytes: 1, Cached: true, Class: object.Named, Name: "x"}); !errors.Is(err,
		object.ErrInvalid) {
		t.Errorf("a copy of another class: %v", err)
	}
}

// TestKeptCopyStays: a copy that was asked to stay outlives shortness of memory and a time to live that was taken back.
func TestKeptCopyStays(t *testing.T) {
	s := newStore(t, Options{CapacityBytes: 8 << 20})
	id := object.NewID()
	if err := copyOf(t, s, "a", id, 3<<20); err != nil {
		t.Fatal(err)
	}
	c, other := connect(t, s, "a"), connect(t, s, "b")
	if err := other.KeepCopy(id); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("another tenant keeps it: %v", err)
	}
	if err := c.KeepCopy(object.NewID()); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("an object that is not here: %v", err)
	}
	if err := c.KeepCopy(id); err != nil {
		t.Fatal(err)
	}
	if n := spareOf(s); n != 0 {
		t.Errorf("%d bytes may go", n)
	}
	if _, err := c.Create(Spec{SizeBytes: 6 << 20, Own: true}); !errors.Is(err, object.ErrFull) {
		t.Errorf("an object that needs its memory: %v", err)
	}
	for _, ttl := range []time.Duration{time.Hour, 0} {
		if err := c.Update(id, "", Change{TTL: &ttl}); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := c.Stat(id, ""); err != nil || info.Cached {
		t.Errorf("%+v, %v", info, err)
	}
	if err := c.Delete(id, ""); err != nil {
		t.Fatal(err)
	}
	if left := there(c, []object.ID{id}); len(left) != 0 {
		t.Error("it was deleted, and is there")
	}
}

// TestKeptCopyOutlivesATakeover: a replica is the cluster's to end, and a copy that may go has no place in a catalog.
func TestKeptCopyOutlivesATakeover(t *testing.T) {
	opts := spillOptions(t.TempDir())
	s := newStore(t, opts)
	ids := map[string]object.ID{"in memory": object.NewID(), "on disk": object.NewID(), "not kept": object.NewID()}
	for where, id := range ids {
		if err := copyOf(t, s, "a", id, 1<<20); err != nil {
			t.Fatal(err)
		}
		c := connect(t, s, "a")
		if where != "not kept" {
			if err := c.KeepCopy(id); err != nil {
				t.Fatal(err)
			}
		}
		if where == "on disk" {
			sendToDisk(t, s)
		}
		c.Close()
	}
	s.Leave()
	next := handOver(t, s, opts)
	for range 2 { // a reference that comes and goes ends nothing
		for where, id := range ids {
			c := connect(t, next, "a")
			if _, err := c.Stat(id, ""); (err != nil) != (where == "not kept") {
				t.Fatalf("%s: %v", where, err)
			}
			if where != "not kept" {
				wantPattern(t, c, id, 1<<20, 7)
			}
			c.Close()
		}
	}
	mustAgree(t, next, false)
}

// TestRemovalMeetsNoNewCopy: the file of a copy that was deleted, which the disk kept, is not there any more when the
// object comes here again. Its removal must not take the new copy's file.
func TestRemovalMeetsNoNewCopy(t *testing.T) {
	disk := &stuckDisk{}
	opts := spillOptions(t.TempDir())
	opts.SpillSystem = disk
	s := newStore(t, opts)
	c := connect(t, s, "a")
	id := object.NewID()
	replica := func() {
		t.Helper()
		if err := copyOf(t, s, "a", id, 1<<20); err != nil {
			t.Fatal(err)
		}
		if err := c.KeepCopy(id); err != nil {
			t.Fatal(err)
		}
		sendToDisk(t, s)
	}
	replica()
	disk.stuck.Store(true)
	if err := c.Delete(id, ""); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return s.Status().FilesLeft == 1 })
	disk.stuck.Store(false)
	replica()
	s.mu.Lock()
	s.diskTime = time.Time{} // not in ten seconds
	s.wakeJanitor()
	s.unlock()
	waitFor(t, func() bool { return s.Status().FilesLeft == 0 })
	wantPattern(t, c, id, 1<<20, 7)
}

func spareOf(s *Store) uint64 {
	capacity, free := s.Room()
	return free - (capacity - s.Status().ChargedBytes)
}

// TestWhatCanGoToDiskIsSpare: as far as there is room on disk, and while nobody uses it.
func TestWhatCanGoToDiskIsSpare(t *testing.T) {
	const size = 2 << 20
	for room, want := range map[uint64]uint64{64 << 20: 3 * size, size: size} {
		s := newStore(t, Options{CapacityBytes: 64 << 20, SpillDir: t.TempDir(), SpillBytes: room})
		c := connect(t, s, "a")
		for _, name := range []string{"1", "2", "3"} {
			filled(t, c, named(name, size), 1)
		}
		if got := spareOf(s); got != want {
			t.Errorf("room for %d on disk: %d bytes, want %d", room, got, want)
		}
		if _, err := c.GetName("1"); err != nil {
			t.Fatal(err)
		}
		if got := spareOf(s); got != min(want, 2*size) {
			t.Errorf("room for %d on disk, and one is in use: %d bytes", room, got)
		}
	}
}
