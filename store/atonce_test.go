package store

import (
	"errors"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/store/index"
	"tendril/store/object"
	"tendril/store/segment"
)

// What would wait for memory or for a disk is not begun: others may have filled the store, or put the object on disk,
// since anybody last looked.
func TestAtOnceWaitsForNothing(t *testing.T) {
	opts := spillOptions(t.TempDir())
	s := newStore(t, opts)
	c, other := connect(t, s, "x"), connect(t, s, "y")
	spec := Spec{SizeBytes: 100}
	_, err := c.AtOnce().Create(spec) // it has no memory yet
	wantErr(t, err, ErrWouldWait)
	mine, pushed := sealedObject(t, c, spec), sealedObject(t, c, spec)
	h, err := c.AtOnce().Create(spec)
	if err != nil {
		t.Fatalf("beside another object: %v", err)
	}
	end, err := c.OpenStream(StreamSpec{Name: "s", Writes: true})
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	free := s.opts.CapacityBytes - s.taken()
	s.mu.Unlock()
	filled(t, other, Spec{SizeBytes: free / 2, Own: true, Class: object.Named, Name: "idle"}, 1) // could go to disk
	sweepAll(other)
	s.mu.Lock()
	s.opts.CapacityBytes = s.taken() + 100
	s.mu.Unlock()
	before := s.Status()
	_, err = c.AtOnce().Create(spec)
	wantErr(t, err, ErrWouldWait)
	wantErr(t, c.AtOnce().SealWith(h.ID, make([]byte, 1000)), ErrWouldWait)
	_, err = c.AtOnce().Push(end.ID, pushed, 0, nil)
	wantErr(t, err, ErrWouldWait)
	wantErr(t, c.AtOnce().Delete(mine, ""), ErrWouldWait)
	after := s.Status()
	if after.Objects != before.Objects || after.References != before.References || after.OpenObjects != 1 ||
		after.SpilledObjects != 0 || after.ChargedBytes != before.ChargedBytes {
		t.Errorf("before %+v\nafter %+v", before, after)
	}
	s.mu.Lock()
	s.opts.CapacityBytes = opts.CapacityBytes
	s.mu.Unlock()
	if err := c.AtOnce().SealWith(h.ID, make([]byte, 1000)); err != nil {
		t.Error(err)
	}
	if _, err := c.AtOnce().Push(end.ID, pushed, 0, nil); err != nil {
		t.Error(err)
	}
	persist := sealedObject(t, c, Spec{SizeBytes: 100, Class: object.Persisted, Name: "kept"})
	wantErr(t, c.AtOnce().Release(persist), ErrWouldWait)
	wantErr(t, c.AtOnce().Delete(persist, ""), ErrWouldWait)
	for _, id := range []object.ID{mine, h.ID} {
		if err := c.AtOnce().Release(id); err != nil {
			t.Error(err)
		}
	}
	wantErr(t, c.AtOnce().Release(mine), object.ErrNotFound)
}

// busyKernel does something else while memory is made, once it is told to.
type busyKernel struct {
	segment.Linux
	meanwhile *atomic.Pointer[func()]
}

func (k busyKernel) MemfdCreate(name string) (int, error) {
	if f := k.meanwhile.Swap(nil); f != nil {
		(*f)()
	}
	return k.Linux.MemfdCreate(name)
}

// A tenant's number of objects holds also for those that are made at the same time.
func TestObjectsAtTheSameTime(t *testing.T) {
	meanwhile := new(atomic.Pointer[func()])
	s := newStore(t, Options{TenantObjects: 3, System: busyKernel{meanwhile: meanwhile}})
	c, other := connect(t, s, "x"), connect(t, s, "x")
	spec := Spec{SizeBytes: 4096, Own: true}
	for round := range 3 { // what came to nothing is not counted
		var handles []Handle
		var errs []error
		make2 := func(c *Conn) {
			h, err := c.Create(spec)
			handles, errs = append(handles, h), append(errs, err)
		}
		ids := []object.ID{sealedObject(t, c, spec), sealedObject(t, c, spec)}
		second := func() { make2(other) }
		meanwhile.Store(&second)
		make2(c)
		if len(errs) != 2 || errs[1] != nil {
			t.Fatalf("round %d: %v", round, errs)
		}
		wantErr(t, errs[0], object.ErrQuota)
		if n := s.Status().Objects; n != 3 {
			t.Errorf("round %d: %d objects of 3", round, n)
		}
		closeHandle(handles[1])
		release(t, c, append(ids, handles[1].ID)...)
		sweepAll(c)
	}
}

// lateIndex is a tenant with an index, so many connections that looks through it are an attendant's, and an object of n
// bytes that nobody has: with mu held, all that its quota has room for is that object's, once it is deleted.
func lateIndex(t *testing.T, n uint64) (c *Conn, id object.ID) {
	t.Helper()
	s := newStore(t, Options{TenantBytes: 48 << 20, SegmentBytes: 64 << 10})
	for range indexEagerConns + 1 {
		c = connect(t, s, "x")
		slots, level, err := c.OpenIndex()
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(slots)
		unix.Close(level)
	}
	h, err := c.Create(Spec{SizeBytes: n, Own: true, Class: object.Named, Name: "large"})
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(h)
	if err := c.Seal(h.ID, false); err != nil {
		t.Fatal(err)
	}
	release(t, c, h.ID)
	if err := c.Forget(h.Ref.Segment); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.opts.TenantBytes = c.tenant.charged + 10
	charged := c.tenant.charged
	if err := c.delete(h.ID, ""); err != nil {
		t.Error(err)
	}
	if c.tenant.charged < charged || len(c.tenant.index.fresh) != 1 {
		t.Errorf("%d bytes of %d are charged, %d records are retired", c.tenant.charged, charged,
			len(c.tenant.index.fresh))
	}
	return c, h.ID
}

// A stream is opened where memory is short for what is retired in the index.
func TestOpenStreamBesideRetiredRecords(t *testing.T) {
	c, _ := lateIndex(t, 1<<20)
	_, err := c.streamFor(StreamSpec{Name: "s", Reads: true})
	c.s.unlock()
	if err != nil {
		t.Error(err)
	}
	mustAgree(t, c.s, false)
}

// So does the index grow.
func TestIndexGrowsBesideRetiredRecords(t *testing.T) {
	c, _ := lateIndex(t, index.LevelBytes(1)+1<<20)
	ix := c.tenant.index
	// its attendant might look first, and close what goes a moment after it has let go of the lock
	c.tenant.attended = true
	c.s.growIndex(c.tenant)
	c.s.unlock()
	waitFor(t, func() bool {
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		return !ix.growing
	})
	c.s.mu.Lock()
	levels := ix.table.Levels()
	c.s.mu.Unlock()
	if levels != 2 {
		t.Errorf("%d levels", levels)
	}
	mustAgree(t, c.s, false)
}

// Streams of one name that are opened while memory is short are one stream, and what came to nothing is not charged.
func TestOpenStreamTwiceWhileMemoryIsShort(t *testing.T) {
	c, _ := lateIndex(t, 1<<20)
	s := c.s
	first, err := c.streamFor(StreamSpec{Name: "s", Reads: true})
	if err != nil {
		s.unlock()
		t.Fatal(err)
	}
	charged := c.tenant.charged
	for _, spec := range []StreamSpec{{Name: "s", Reads: true}, {Name: "s", Reads: true, New: true}} {
		st, err := c.newStream(spec) // as if the first had come while mu was let go
		switch {
		case spec.New:
			wantErr(t, err, object.ErrExists)
		case err != nil || st != first:
			t.Errorf("%v, another stream: %v", err, st != first)
		}
	}
	if c.tenant.charged != charged {
		t.Errorf("%d bytes are charged, %d before", c.tenant.charged, charged)
	}
	s.unlock()
	mustAgree(t, s, false)
}

// TestDropOldestFreesNothingOnThePoller: a push that drops a frame whose writer has gone frees that frame's memory,
// which takes long where it is much: that is not for who may not wait.
func TestDropOldestFreesNothingOnThePoller(t *testing.T) {
	for name, test := range map[string]struct {
		size     uint64
		stays    bool // the writer
		held     bool // by somebody else
		wouldNot error
	}{
		"much, its writer is gone":          {releaseAtOnce + 1<<20, false, false, ErrWouldWait},
		"much, its writer uses it again":    {releaseAtOnce + 1<<20, true, false, nil},
		"much, and somebody has it":         {releaseAtOnce + 1<<20, false, true, nil},
		"little, though its writer is gone": {1 << 20, false, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, Options{CapacityBytes: 64 << 20})
			first, c := connect(t, s, "x"), connect(t, s, "x")
			spec := StreamSpec{Name: "s", Reads: true, Writes: true, Frames: 1, DropOldest: true}
			mine, err := c.OpenStream(spec)
			if err != nil {
				t.Fatal(err)
			}
			theirs, err := first.OpenStream(spec)
			if err != nil {
				t.Fatal(err)
			}
			large := sealedObject(t, first, Spec{SizeBytes: test.size})
			if test.held {
				h, err := connect(t, s, "x").Get(large)
				if err != nil {
					t.Fatal(err)
				}
				closeHandle(h)
			}
			if _, err := first.Push(theirs.ID, large, 0, nil); err != nil {
				t.Fatal(err)
			}
			if !test.stays {
				first.Close()
			}
			small := sealedObject(t, c, Spec{SizeBytes: 100})
			_, err = c.AtOnce().Push(mine.ID, small, 0, nil)
			if !errors.Is(err, test.wouldNot) || test.wouldNot == nil && err != nil {
				t.Errorf("at once: %v, want %v", err, test.wouldNot)
			}
			if err != nil {
				if _, err = c.Push(mine.ID, small, 0, nil); err != nil {
					t.Error(err)
				}
			}
			p, _, err := c.Pop(mine.ID, 0, nil)
			if err != nil || p.ID != small {
				t.Errorf("popped %v, %v", p.ID, err)
			}
			closeHandle(p.Handle)
		})
	}
}
