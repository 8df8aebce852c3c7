package store

import (
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/store/object"
	"tendril/store/segment"
)

// TestMachineAtItsEnd: what the machine cannot give is refused with words, what is kept for nobody goes back, and all
// is well once there is memory again.
func TestMachineAtItsEnd(t *testing.T) {
	var left atomic.Uint64
	left.Store(1 << 40)
	opts := Options{CapacityBytes: 64 << 20, SegmentBytes: 1 << 20, WarmBytes: 8 << 20, LowBytes: 4 << 20,
		SpillDir:  t.TempDir(),
		Available: func() (uint64, bool) { return left.Load(), true }}
	s := newStore(t, opts)
	c := connect(t, s, "x")
	waitFor(t, func() bool { return s.Status().WarmBytes == 8<<20 })
	id := filled(t, c, named("kept", 2<<20), 3)
	left.Store(3 << 20)
	var err error
	waitFor(t, func() bool { // an answer of plenty is good for a moment
		var h Handle
		if h, err = c.Create(Spec{SizeBytes: 16 << 20, Own: true}); err == nil {
			closeHandle(h)
			c.Release(h.ID)
		}
		sweepAll(c)
		return err != nil
	})
	if !errors.Is(err, object.ErrFull) || !strings.Contains(err.Error(), "machine has") {
		t.Fatalf("create on a machine without memory: %v", err)
	}
	waitFor(t, func() bool {
		sweepAll(c)
		st := s.Status()
		return st.WarmBytes == 0 && st.SpilledObjects == 1 && st.MachineShort
	})
	left.Store(1 << 40)
	s.wakeJanitor()
	waitFor(t, func() bool { st := s.Status(); return st.WarmBytes == 8<<20 && !st.MachineShort })
	wantPattern(t, c, id, 2<<20, 3)
	mustAgree(t, s, false)
}

// TestBare: what a bare connection creates has no memory until somebody populates it; another connection's has.
func TestBare(t *testing.T) {
	const size = 8 << 20
	s := newStore(t, Options{CapacityBytes: 64 << 20})
	for _, bare := range []bool{false, true} {
		c := connect(t, s, "x")
		if bare {
			c.Bare()
		}
		h, err := c.Create(Spec{SizeBytes: size, Own: true})
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(h.FD, &st); err != nil || st.Size < size {
			t.Fatalf("%d bytes: %v", st.Size, err)
		}
		if have := st.Blocks * 512; bare && have != 0 || !bare && have < size {
			t.Errorf("bare %v: %d of %d bytes have memory", bare, have, size)
		}
		closeHandle(h)
		c.Close()
	}
}

// TestWhatABareConnectionIsAboutToTake: its pages are made as its bytes come, which may take minutes. Until then nobody
// else is told that the machine has them.
func TestWhatABareConnectionIsAboutToTake(t *testing.T) {
	left := func() (uint64, bool) { return 24 << 20, true } // so little that it is asked for each time
	s := newStore(t, Options{CapacityBytes: 64 << 20, LowBytes: 4 << 20, Available: left})
	bare := connect(t, s, "x")
	bare.Bare()
	h, err := bare.Create(Spec{SizeBytes: 8 << 20, Own: true})
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(h)
	want := func(when string, fits bool) {
		t.Helper()
		other := connect(t, s, "x")
		defer other.Close()
		h, err := other.Create(Spec{SizeBytes: 14 << 20, Own: true})
		if fits != (err == nil) || err != nil && !errors.Is(err, object.ErrFull) {
			t.Errorf("%s: %v", when, err)
		}
		if err == nil {
			closeHandle(h)
		}
	}
	want("before anything came", false)
	bare.Written(1 << 20)
	want("after 1 MiB of 8", false)
	bare.Written(7 << 20)
	want("after 7 MiB", true)
	bare.Written(3 << 20) // told late
	want("after 7 MiB still", true)
	again := connect(t, s, "x")
	again.Bare()
	if h, err = again.Create(Spec{SizeBytes: 8 << 20, Own: true}); err != nil {
		t.Fatal(err)
	}
	closeHandle(h)
	want("while another one takes as much", false)
	again.Close()
	bare.Close()
	want("when they have ended", true)
}

// hugeKernel has so many bytes of reserved pages of 2 MiB; they are ordinary memory here.
type hugeKernel struct {
	segment.Linux
	left  atomic.Int64
	asked atomic.Int64
	huge  atomic.Int64 // its descriptor
}

func (k *hugeKernel) MemfdHuge(name string) (int, int64, error) {
	k.asked.Add(1)
	fd, err := k.Linux.MemfdCreate(name)
	k.huge.Store(int64(fd))
	return fd, 2 << 20, err
}

func (k *hugeKernel) MemfdCreate(name string) (int, error) {
	fd, err := k.Linux.MemfdCreate(name)
	k.huge.CompareAndSwap(int64(fd), -1) // the number of one that was closed
	return fd, err
}

func (k *hugeKernel) Populate(fd int, off, n int64) error {
	if int64(fd) == k.huge.Load() {
		if k.left.Add(-n) < 0 {
			k.left.Add(n)
			return unix.ENOMEM
		}
	}
	return k.Linux.Populate(fd, off, n)
}

// TestHugePages: large objects take reserved huge pages while there are some, and ordinary ones otherwise; what is
// charged is what is taken, rounded up to whole pages.
func TestHugePages(t *testing.T) {
	k := &hugeKernel{}
	k.left.Store(6 << 20)
	s := newStore(t, Options{CapacityBytes: 64 << 20, SegmentBytes: 1 << 20, HugeFromBytes: 3 << 20,
		TenantBytes: 16 << 20, System: k})
	c := connect(t, s, "x")
	first := sealedObject(t, c, Spec{SizeBytes: 3<<20 + 1})
	if st := s.Status(); st.HugeBytes != 4<<20 || st.SegmentBytes != 4<<20 {
		t.Errorf("after the first: %+v", st)
	}
	sealedObject(t, c, Spec{SizeBytes: 3 << 20}) // 2 MiB are left: not enough
	sealedObject(t, c, Spec{SizeBytes: 1 << 20}) // too small to ask
	if st := s.Status(); st.HugeBytes != 4<<20 || st.SegmentBytes != 8<<20 || k.asked.Load() != 2 {
		t.Errorf("after three, %d asked: %+v", k.asked.Load(), st)
	}
	k.left.Store(64 << 20)
	sealedObject(t, c, Spec{SizeBytes: 7<<20 + 5}) // 8 MiB would be the quota's last byte, and the table has some
	if st := s.Status(); st.HugeBytes != 4<<20 {
		t.Errorf("at the quota's edge: %+v", st)
	}
	if err := c.Release(first); err != nil {
		t.Fatal(err)
	}
	mustAgree(t, s, true)
}

// TestReservedHugePages uses the machine's own, where it has some: what a reader may do with them is what it may do
// with others.
func TestReservedHugePages(t *testing.T) {
	m, err := segment.CreateHuge(segment.Linux{}, 3<<20, nil)
	if err != nil {
		t.Skipf("skipped: no reserved huge pages are free here (vm.nr_hugepages): %v", err)
	}
	m.Close()
	s := newStore(t, Options{CapacityBytes: 64 << 20, HugeFromBytes: 2 << 20, SpillDir: t.TempDir(),
		HighBytes: 64 << 20})
	c := connect(t, s, "x")
	h, err := c.Create(Spec{SizeBytes: 3 << 20, Own: true, Class: object.Persisted})
	if err != nil {
		t.Fatal(err)
	}
	if s.Status().HugeBytes != 4<<20 {
		t.Fatalf("%+v", s.Status())
	}
	f := os.NewFile(uintptr(h.FD), "segment")
	defer f.Close()
	w, err := segment.Map(f, h.Ref.SegmentBytes, true)
	if err != nil {
		t.Fatal(err)
	}
	fillPattern(w.Bytes()[:h.Size], 9)
	if err := w.Unmap(); err != nil {
		t.Fatal(err)
	}
	if err := c.Seal(h.ID, false); err != nil {
		t.Fatal(err)
	}
	if _, err := segment.Map(f, h.Ref.SegmentBytes, true); !errors.Is(err, object.ErrPermission) {
		t.Errorf("a writable mapping after the seal: %v", err)
	}
	r, err := segment.Map(f, h.Ref.SegmentBytes, false)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Unmap()
	r.Populate(0, h.Size)
	want := make([]byte, h.Size)
	fillPattern(want, 9)
	if string(r.Bytes()[:h.Size]) != string(want) {
		t.Error("other bytes")
	}
}
