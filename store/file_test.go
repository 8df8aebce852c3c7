package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tendril/store/object"
	"tendril/store/spill"
)

// gate is a disk that stops one call, for a test to do what another client does meanwhile.
type gate struct {
	spill.Linux
	mu      sync.Mutex
	call    string // "" = none; it is stopped once
	stopped chan struct{}
	open    chan struct{}
}

// stop has the next such call wait. The functions wait for it, and let it go on.
func (d *gate) stop(call string) (arrived, goOn func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.call, d.stopped, d.open = call, make(chan struct{}), make(chan struct{})
	stopped, open := d.stopped, d.open
	return func() { <-stopped }, func() { close(open) }
}

func (d *gate) pass(call string) {
	d.mu.Lock()
	stopped, open, here := d.stopped, d.open, d.call == call
	if here {
		d.call = ""
	}
	d.mu.Unlock()
	if here {
		close(stopped)
		<-open
	}
}

func (d *gate) Pwrite(fd int, b []byte, off int64) (int, error) {
	d.pass("write")
	return d.Linux.Pwrite(fd, b, off)
}

func (d *gate) Pread(fd int, b []byte, off int64) (int, error) {
	if len(b) > 64<<10 { // no record
		d.pass("read")
	}
	return d.Linux.Pread(fd, b, off)
}

func (d *gate) Sync(fd int) error {
	d.pass("sync")
	return d.Linux.Sync(fd)
}

func (d *gate) Remove(path string) error {
	d.pass("remove")
	return d.Linux.Remove(path)
}

func gatedStore(t *testing.T, change func(*Options)) (*Store, *gate) {
	t.Helper()
	disk := &gate{}
	opts := Options{
		CapacityBytes: 8 << 20, HighBytes: 8 << 20, SegmentBytes: 1 << 20, LargeBytes: 256 << 10, SpillDir: t.TempDir(),
		SpillSystem: disk,
	}
	if change != nil {
		change(&opts)
	}
	return newStore(t, opts), disk
}

// later does something in a goroutine; the function that comes back waits for its error.
func later(do func() error) (wait func() error) {
	result := make(chan error, 1)
	go func() { result <- do() }()
	return func() error { return <-result }
}

// soon waits for something that need not happen.
func soon(happened func() bool) {
	for end := time.Now().Add(200 * time.Millisecond); !happened() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// TestRemovalMeetsNoNewFile has an object come into memory, which removes its file as the disk is half full, and go to
// disk again before the file is gone.
func TestRemovalMeetsNoNewFile(t *testing.T) {
	const size = 100_000
	s, disk := gatedStore(t, func(o *Options) { o.SpillBytes = 16 << 20 })
	c, other := connect(t, s, "x"), connect(t, s, "x")
	ids := spilled(t, c, size)
	for i := 0; s.spill.TakenBytes() <= s.spill.LimitBytes()/2; i++ {
		filled(t, c, Spec{SizeBytes: 1 << 20, Class: object.Named, Name: fmt.Sprintf("half %d", i), Own: true}, 0)
		sweepAll(c)
	}
	arrived, goOn := disk.stop("remove")
	back := later(func() error { _, err := contents(t, other, ids[0]); return err })
	arrived()
	var again atomic.Bool
	evicted := later(func() error {
		defer again.Store(true)
		s.mu.Lock()
		defer s.unlock()
		g := s.objects[ids[0]].seg
		g.evicting = true // as victims does
		s.rank(g)
		_, err := s.evict([]*segmentState{g}, s.spill.For("x"), nil)
		return err
	})
	soon(again.Load)
	goOn()
	if err := errors.Join(back(), evicted()); err != nil {
		t.Fatal(err)
	}
	sweepAll(other)
	wantPattern(t, c, ids[0], size, 0)
}

// TestSealLosesItsName: an object whose name was taken while it went to disk is unsealed as before. It can be sealed
// when the name is free, or given up, and leaves nothing.
func TestSealLosesItsName(t *testing.T) {
	for _, strict := range []bool{false, true} {
		s, disk := gatedStore(t, nil)
		c, other := connect(t, s, "x"), connect(t, s, "x")
		make := func() object.ID {
			h, err := c.Create(Spec{SizeBytes: 5000, Class: object.Persisted, Name: "n", Own: true})
			if err != nil {
				t.Fatal(err)
			}
			m := mapHandle(t, h, true)
			fillPattern(m.Bytes()[h.Ref.Offset:][:5000], 9)
			m.Unmap()
			arrived, goOn := disk.stop("sync")
			sealed := later(func() error { return c.Seal(h.ID, strict) })
			arrived()
			rival := filled(t, other, named("n", 10), 1)
			goOn()
			wantErr(t, sealed(), object.ErrExists)
			if err := other.Delete(rival, ""); err != nil {
				t.Fatal(err)
			}
			return h.ID
		}
		id := make()
		if err := c.Abort(id); err != nil {
			t.Errorf("strict %v: abort: %v", strict, err)
		}
		if files := filesIn(t, s.opts.SpillDir); len(files) > 0 {
			t.Errorf("strict %v: left on disk: %v", strict, files)
		}
		id = make()
		if err := errors.Join(c.Seal(id, strict), c.Release(id)); err != nil {
			t.Fatalf("strict %v: the second seal: %v", strict, err)
		}
		wantPattern(t, c, id, 5000, 9)
		mustAgree(t, s, true)
	}
}

// TestReplacedPersisted: what another object takes the name of goes, also where it was persisted, and not before the
// other one has the name on disk.
func TestReplacedPersisted(t *testing.T) {
	s, disk := gatedStore(t, nil)
	c := connect(t, s, "x")
	var last object.ID
	for i := range 4 {
		id := filled(t, c, Spec{SizeBytes: 3000, Class: object.Persisted}, byte(i))
		arrived, goOn := disk.stop("sync")
		bound := later(func() error { return c.Bind(id, "n", true) })
		arrived()
		if _, err := os.Stat(filepath.Join(s.opts.SpillDir, last.String()+".record")); err != nil && i > 0 {
			t.Error("the object that has the name on disk is gone: ", err)
		}
		goOn()
		if err := bound(); err != nil {
			t.Fatal(err)
		}
		last = id
	}
	wantPattern(t, c, last, 3000, 3)
	if st := s.Status(); st.Objects != 1 || st.DiskBytes != spill.RoomFor(3000) {
		t.Errorf("%d objects and %d bytes on disk are left of four that replaced each other", st.Objects, st.DiskBytes)
	}
	h, err := c.Get(last)
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(h)
	next := filled(t, c, Spec{SizeBytes: 10, Class: object.Persisted}, 7)
	if err := c.Bind(next, "n", true); err != nil {
		t.Fatal(err)
	}
	if info, err := c.Stat(last, ""); err != nil || info.Class != object.Ephemeral {
		t.Errorf("a replaced object that somebody holds: %+v, %v", info, err)
	}
	if err := c.Release(last); err != nil {
		t.Fatal(err)
	}
	_, err = c.Stat(last, "")
	wantErr(t, err, object.ErrNotFound)
	mustAgree(t, s, true)
}

// TestGrantOfWhatComesBack: an object that is shared while it comes from disk has all of its bytes, and stands alone.
func TestGrantOfWhatComesBack(t *testing.T) {
	const size = 100_000
	s, disk := gatedStore(t, nil)
	c, other := connect(t, s, "x"), connect(t, s, "x")
	ids := spilled(t, c, size)
	arrived, goOn := disk.stop("read")
	back := later(func() error { _, err := contents(t, other, ids[0]); return err })
	arrived()
	granted := later(func() error { return c.Grant(ids[0], "", "uid:7", false) })
	soon(func() bool { return s.grants(ids[0]) > 0 || s.Status().Segments > 20 })
	goOn()
	if err := errors.Join(back(), granted()); err != nil {
		t.Fatal(err)
	}
	wantPattern(t, c, ids[0], size, 0)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.objects[ids[0]]; e.seg != nil && !e.seg.once {
		t.Error("a shared object lies among others")
	}
}

func (s *Store) grants(id object.ID) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.objects[id].grants)
}

// TestOldPlaceIsKeptWhileItIsWritten: an object that is set apart while it goes to disk is written whole from its old
// place, and that is nobody's next meanwhile.
func TestOldPlaceIsKeptWhileItIsWritten(t *testing.T) {
	const size = 100_000
	s, disk := gatedStore(t, nil)
	c := connect(t, s, "x")
	h, err := c.Create(Spec{SizeBytes: size, Class: object.Named, Name: "n"})
	if err != nil {
		t.Fatal(err)
	}
	memory := writable(t, c, h)
	fillPattern(memory[h.Ref.Offset:][:size], 1)
	if err := errors.Join(c.Seal(h.ID, false), c.Release(h.ID)); err != nil {
		t.Fatal(err)
	}
	arrived, goOn := disk.stop("write")
	evicted := later(func() error {
		s.mu.Lock()
		defer s.unlock()
		victims, _ := s.victims(nil, 1, 0)
		_, err := s.evict(victims, s.spill.For("x"), nil)
		return err
	})
	arrived()
	if err := c.Grant(h.ID, "", "uid:7", false); err != nil {
		t.Fatal(err)
	}
	next, err := c.Create(Spec{SizeBytes: size})
	if err != nil {
		t.Fatal(err)
	}
	if next.Ref == h.Ref {
		t.Error("the place is another object's while it is written to disk")
		fillPattern(memory[next.Ref.Offset:][:size], 2)
	}
	goOn()
	if err := evicted(); err != nil {
		t.Fatal(err)
	}
	got, err := s.spill.ReadRange(h.ID, 0, size)
	want := make([]byte, size)
	if fillPattern(want, 1); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the object's file has other bytes: %v", err)
	}
	closeHandle(next)
	if err := c.Release(next.ID); err != nil {
		t.Fatal(err)
	}
	mustAgree(t, s, true)
}

// TestReadingFollows reads an object that was on disk when it was opened, and is in memory now, its file gone.
func TestReadingFollows(t *testing.T) {
	const size = 100_000
	s, _ := gatedStore(t, func(o *Options) { o.SpillBytes = 6 << 20 })
	c := connect(t, s, "x")
	ids := spilled(t, c, size)
	r, err := c.Open(ids[0], "")
	if err != nil {
		t.Fatal(err)
	}
	bringBack(t, c, ids[0])
	s.mu.Lock()
	s.dropFile(s.objects[ids[0]])
	s.unlock()
	want := make([]byte, size)
	fillPattern(want, 0)
	if got, err := r.Range(1, size-1); err != nil || !bytes.Equal(got, want[1:]) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	r.Close()
	if err := c.Release(ids[0]); err != nil {
		t.Fatal(err)
	}
	if r, err = c.Open(ids[0], ""); err != nil {
		t.Fatal(err)
	}
	r.Close()
	mustAgree(t, s, true)
}

// whileMemoryIsShort does something that has to send objects to disk first, and something else before it goes on.
func whileMemoryIsShort(t *testing.T, s *Store, disk *gate, do func() error, meanwhile func()) error {
	t.Helper()
	c := connect(t, s, "x")
	for _, size := range []uint64{64 << 10, 4 << 10, 0} {
		for s.hasRoomFor(size + 1<<10) {
			filled(t, c, Spec{SizeBytes: size, Class: object.TTL, TTL: time.Hour, Own: size > 0}, 0)
		}
	}
	unmapWriters(c)
	c.Close()
	arrived, goOn := disk.stop("write")
	done := later(func() error {
		err := do()
		disk.pass("write") // where nothing had to go
		return err
	})
	arrived()
	meanwhile()
	goOn()
	return done()
}

func (s *Store) hasRoomFor(n uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hasRoom(n)
}

// big is metadata that does not fit into what is left.
var big = bytes.Repeat([]byte("m"), object.MaxMetaBytes)

// TestPublishLosesItsName: a name that is taken while memory for the record is looked for is an error, not the daemon's
// end.
func TestPublishLosesItsName(t *testing.T) {
	s, disk := gatedStore(t, nil)
	c, other := connect(t, s, "x"), connect(t, s, "x")
	g, err := c.AllocSegment(100_000)
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(Handle{FD: g.FD})
	rival := filled(t, other, Spec{Class: object.Named, Name: "rival"}, 1)
	err = whileMemoryIsShort(t, s, disk, func() error {
		_, err := c.PublishSegment(Publication{Segment: g.ID, SizeBytes: 100, Class: object.Named,
			Name: "n", Meta: big})
		return err
	}, func() {
		if err := other.Bind(rival, "n", false); err != nil {
			t.Error(err)
		}
	})
	wantErr(t, err, object.ErrExists)
	if err := c.FreeSegment(g.ID); err != nil {
		t.Error(err)
	}
	mustAgree(t, s, true)
}

// TestCreateAfterTheEnd: a connection that ends while memory is looked for has no object afterwards.
func TestCreateAfterTheEnd(t *testing.T) {
	s, disk := gatedStore(t, nil)
	c := connect(t, s, "x")
	err := whileMemoryIsShort(t, s, disk, func() error {
		_, err := c.Create(Spec{Meta: big})
		return err
	}, c.Close)
	if err == nil {
		t.Error("a connection that has ended made an object")
	}
	if st := s.Status(); st.OpenObjects != 0 {
		t.Errorf("%d objects are nobody's to seal", st.OpenObjects)
	}
	mustAgree(t, s, true)
}

// TestUpdateOfWhatIsDeleted: an object that is deleted while memory for its labels is looked for stays so.
func TestUpdateOfWhatIsDeleted(t *testing.T) {
	s, disk := gatedStore(t, nil)
	c := connect(t, s, "x")
	id := filled(t, c, named("n", 10), 1)
	h, err := c.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(h)
	labels := map[string]string{}
	for i := range object.MaxLabels {
		labels[fmt.Sprint(i)] = string(big[:object.MaxLabelBytes])
	}
	ttl := time.Hour
	err = whileMemoryIsShort(t, s, disk,
		func() error { return c.Update(id, "", Change{Labels: labels, TTL: &ttl}) }, func() {
			if err := c.Delete(id, ""); err != nil {
				t.Error(err)
			}
		})
	wantErr(t, err, object.ErrNotFound)
	if err := c.Release(id); err != nil {
		t.Error(err)
	}
	mustAgree(t, s, true)
}

// TestCompositeDeletedOnItsWay: a composite that is deleted while it goes to disk has neither a name nor a file
// afterwards.
func TestCompositeDeletedOnItsWay(t *testing.T) {
	s, disk := gatedStore(t, nil)
	c, other := connect(t, s, "x"), connect(t, s, "x")
	part := filled(t, c, Spec{SizeBytes: 10, Class: object.Persisted}, 1)
	arrived, goOn := disk.stop("sync")
	composed := later(func() error {
		_, err := c.Compose(Spec{Class: object.Persisted, Name: "n"}, []object.Member{{Name: "part", ID: part}})
		return err
	})
	arrived()
	for _, info := range other.List("", true) {
		if len(info.Members) > 0 {
			if err := other.Delete(info.ID, ""); err != nil {
				t.Error(err)
			}
		}
	}
	goOn()
	wantErr(t, composed(), object.ErrAborted)
	_, err := c.Stat(object.ID{}, "n")
	wantErr(t, err, object.ErrNotFound)
	waitFor(t, func() bool { return s.Status().DiskBytes == spill.RoomFor(10) })
	mustAgree(t, s, true)
}

// TestEndLetsGoOfAllAtOnce: what a connection held is not taken apart at the end, and nothing is left nevertheless.
func TestEndLetsGoOfAllAtOnce(t *testing.T) {
	s := newStore(t, Options{})
	c := connect(t, s, "x")
	for range 100 {
		sealedObject(t, c, Spec{SizeBytes: 1000})
	}
	s.Ending()
	c.Close()
	if st := s.Status(); st.Objects != 100 || st.Connections != 0 {
		t.Errorf("%d objects, %d connections: each object was let go of by itself", st.Objects, st.Connections)
	}
	s.Close()
	if st := s.Status(); st.Objects != 0 || st.ChargedBytes != 0 || st.Segments != 0 {
		t.Errorf("left: %+v", st)
	}
}

// TestFileCutShortIsDamaged: an object whose bytes are not all there is told of at the start, and is not in the table.
func TestFileCutShortIsDamaged(t *testing.T) {
	dir := t.TempDir()
	s, err := New(spillOptions(dir))
	if err != nil {
		t.Fatal(err)
	}
	c := connect(t, s, "x")
	cut := filled(t, c, Spec{SizeBytes: 5000, Class: object.Persisted, Name: "cut"}, 1)
	gone := filled(t, c, Spec{SizeBytes: 5000, Class: object.Persisted, Name: "gone"}, 1)
	whole := filled(t, c, Spec{SizeBytes: 5000, Class: object.Persisted, Name: "whole"}, 1)
	s.Close()
	path := func(id object.ID) string { return filepath.Join(dir, id.String()+".bytes") }
	if err := errors.Join(os.Truncate(path(cut), 4999), os.Remove(path(gone))); err != nil {
		t.Fatal(err)
	}
	s = newStore(t, spillOptions(dir))
	c = connect(t, s, "x")
	if st := s.Status(); len(st.Damaged) != 2 || st.Objects != 1 {
		t.Errorf("damaged: %v; %d objects", st.Damaged, st.Objects)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := c.Await(ctx, whole, ""); err != nil {
		t.Error(err)
	}
}

// TestRemovalIsTriedAgain deletes what the disk keeps: that is seen in the status, and mended with the disk.
func TestRemovalIsTriedAgain(t *testing.T) {
	disk := &stuckDisk{}
	s := newStore(t, Options{CapacityBytes: 8 << 20, SegmentBytes: 1 << 20, SpillDir: t.TempDir(), SpillSystem: disk})
	c := connect(t, s, "x")
	id := filled(t, c, Spec{SizeBytes: 10_000, Class: object.Persisted, Name: "kept"}, 0)
	disk.stuck.Store(true)
	if err := c.Delete(id, ""); err != nil {
		t.Fatal(err)
	}
	left := func() int { return s.Status().FilesLeft }
	for end := time.Now().Add(5 * time.Minute); left() != 1; time.Sleep(time.Millisecond) { // Pause: the janitor's
		if time.Now().After(end) {
			t.Fatalf("%d files are left", left())
		}
	}
	disk.stuck.Store(false)
	s.mu.Lock()
	s.diskTime = time.Time{} // not in ten seconds
	s.wakeJanitor()
	s.unlock()
	for end := time.Now().Add(5 * time.Minute); left() != 0; time.Sleep(time.Millisecond) { // Pause: the janitor's
		if time.Now().After(end) {
			t.Fatalf("%d files are left", left())
		}
	}
	files, err := os.ReadDir(s.opts.SpillDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if strings.Contains(f.Name(), id.String()) {
			t.Errorf("%s is left", f.Name())
		}
	}
}
