package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/store/object"
	"tendril/store/segment"
	"tendril/store/spill"
)

// spillOptions is a small store with a directory.
func spillOptions(dir string) Options {
	return Options{CapacityBytes: 8 << 20, SegmentBytes: 1 << 20, LargeBytes: 256 << 10, SpillDir: dir}
}

// filled makes a sealed object with contents of its own, held by its class alone. Where the store is full it does what
// clients do: sweep and try again.
func filled(t testing.TB, c *Conn, spec Spec, seed byte) object.ID {
	t.Helper()
	var h Handle
	waitFor(t, func() (done bool) {
		var err error
		if h, err = c.Create(spec); err != nil && !errors.Is(err, object.ErrFull) {
			t.Fatalf("create %+v: %v", spec, err)
		}
		sweepAll(c)
		return err == nil
	})
	if spec.SizeBytes > 0 {
		fillPattern(writable(t, c, h)[h.Ref.Offset:][:spec.SizeBytes], seed)
	}
	if err := c.Seal(h.ID, false); err != nil {
		t.Fatal(err)
	}
	if err := c.Release(h.ID); err != nil {
		t.Fatal(err)
	}
	return h.ID
}

type mappingKey struct {
	c       *Conn
	segment uint64
}

// writers has the writable mappings of this package's tests: they must be made before the first seal.
var writers sync.Map

func writable(t testing.TB, c *Conn, h Handle) []byte {
	t.Helper()
	key := mappingKey{c, h.Ref.Segment}
	if h.FD >= 0 {
		writers.Store(key, mapHandle(t, h, true))
	}
	m, ok := writers.Load(key)
	if !ok {
		t.Fatalf("segment %d came without a descriptor", h.Ref.Segment)
	}
	return m.(*segment.Mapping).Bytes()
}

func fillPattern(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i>>8) + byte(i)*3 + seed
	}
}

// contents gets an object, however far away, and reads it.
func contents(t testing.TB, c *Conn, id object.ID) ([]byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	h, err := c.Wait(ctx, id, "")
	for errors.Is(err, object.ErrFull) && !errors.Is(err, unix.ENOSPC) && ctx.Err() == nil { // as clients do
		sweepAll(c)
		time.Sleep(time.Millisecond)
		h, err = c.Wait(ctx, id, "")
	}
	if err != nil {
		return nil, err
	}
	defer c.Release(id)
	closeHandle(h)
	if h.Size == 0 {
		return nil, nil
	}
	b := make([]byte, h.Size)
	c.s.mu.Lock()
	fd, err := c.s.segments[h.Ref.Segment].mem.Dup()
	c.s.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	_, err = unix.Pread(fd, b, int64(h.Ref.Offset))
	return b, err
}

func wantPattern(t testing.TB, c *Conn, id object.ID, size int, seed byte) {
	t.Helper()
	want := make([]byte, size)
	fillPattern(want, seed)
	got, err := contents(t, c, id)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("object %s: %d bytes, %v", id, len(got), err)
	}
}

// sweepAll does what clients do within some seconds.
func sweepAll(c *Conn) {
	for _, g := range c.Sweep() {
		unmapWriter(c, g)
		c.Forget(g)
	}
}

func unmapWriter(c *Conn, segmentID uint64) {
	if m, ok := writers.LoadAndDelete(mappingKey{c, segmentID}); ok {
		m.(*segment.Mapping).Unmap()
	}
}

// unmapWriters is the end of a process.
func unmapWriters(c *Conn) {
	writers.Range(func(key, _ any) bool {
		if k := key.(mappingKey); k.c == c {
			unmapWriter(c, k.segment)
		}
		return true
	})
}

func named(name string, size uint64) Spec {
	return Spec{SizeBytes: size, Class: object.Named, Name: name, Own: size >= 256<<10}
}

// fillBeyond makes n named objects of 1 MiB, sweeping where the store is full.
func fillBeyond(t *testing.T, c *Conn, n int) []object.ID {
	t.Helper()
	ids := make([]object.ID, n)
	for i := range ids {
		sweepAll(c)
		ids[i] = filled(t, c, named(fmt.Sprintf("n%d", i), 1<<20), byte(i))
	}
	return ids
}

func TestEvictionIsLeastRecentlyUsed(t *testing.T) {
	opts := spillOptions(t.TempDir())
	opts.HighBytes = opts.CapacityBytes // or the janitor takes more where their memory comes back late
	s := newStore(t, opts)
	c := connect(t, s, "x")
	ids := fillBeyond(t, c, 5)
	if _, err := contents(t, c, ids[0]); err != nil { // used: no longer the coldest
		t.Fatal(err)
	}
	yes := true
	if err := c.Update(ids[1], "", Change{Pinned: &yes}); err != nil {
		t.Fatal(err)
	}
	h, err := c.Get(ids[2])
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(h)
	for i := range 3 {
		sweepAll(c)
		filled(t, c, named(fmt.Sprintf("m%d", i), 1<<20), 0)
	}
	waitFor(t, func() bool { sweepAll(c); info, _ := c.Stat(ids[3], ""); return info.State == object.Spilled })
	for i, want := range []object.State{object.Sealed, object.Sealed, object.Sealed, object.Spilled} {
		if info, err := c.Stat(ids[i], ""); err != nil || info.State != want {
			t.Errorf("object %d: %v, %v, want %v", i, info.State, err, want)
		}
	}
	if err := c.Release(ids[2]); err != nil {
		t.Fatal(err)
	}
}

func TestSpilledObjectsComeBack(t *testing.T) {
	dir := t.TempDir()
	s, err := New(spillOptions(dir))
	if err != nil {
		t.Fatal(err)
	}
	c := connect(t, s, "x")
	ids := fillBeyond(t, c, 30)
	small := make([]object.ID, 100)
	for i := range small {
		small[i] = filled(t, c, named(fmt.Sprintf("s%d", i), 3000), byte(i))
	}
	for range 2 {
		for i, id := range ids {
			sweepAll(c)
			wantPattern(t, c, id, 1<<20, byte(i))
		}
		for i, id := range small {
			sweepAll(c)
			wantPattern(t, c, id, 3000, byte(i))
		}
	}
	var st Status
	var n Counts
	waitFor(t, func() bool { // of one moment: the janitor may send more to disk
		n, st = s.Counts(), s.Status()
		again := s.Counts()
		return again.Evicted == n.Evicted && again.Restored == n.Restored
	})
	if st.ChargedBytes > st.CapacityBytes || st.SpilledObjects == 0 {
		t.Errorf("%+v", st)
	}
	if n.Evicted-n.Restored != uint64(st.SpilledObjects) || n.EvictedBytes-n.RestoredBytes != st.SpilledBytes ||
		n.Restored == 0 || n.Reads.Number() != n.Restored || n.Writes.Number() < uint64(st.SpilledObjects) {
		t.Errorf("%+v, where %d objects of %d bytes are on disk", n, st.SpilledObjects, st.SpilledBytes)
	}
	spilled := map[object.ID]bool{}
	for _, info := range c.List("", false) {
		spilled[info.ID] = info.OnDisk
	}
	s.Close()

	s = newStore(t, spillOptions(dir))
	c = connect(t, s, "x")
	back := 0
	for i, id := range ids {
		if spilled[id] {
			back++
			sweepAll(c)
			wantPattern(t, c, id, 1<<20, byte(i))
		}
	}
	if back < 20 {
		t.Errorf("%d objects are back after the restart", back)
	}
	for _, info := range c.List("", false) {
		if err := c.Delete(info.ID, ""); err != nil {
			t.Fatal(err)
		}
	}
	mustAgree(t, s, true) // what the janitor was about to write when it was deleted has gone, too
	if left := filesIn(t, dir); len(left) != 0 {
		t.Errorf("%d files are left after everything was deleted", len(left))
	}
	if s.Status().DiskBytes != 0 {
		t.Errorf("%d bytes on disk are charged", s.Status().DiskBytes)
	}
}

func TestPersisted(t *testing.T) {
	dir := t.TempDir()
	s, err := New(spillOptions(dir))
	if err != nil {
		t.Fatal(err)
	}
	c := connect(t, s, "x")
	spec := Spec{SizeBytes: 5000, Class: object.Persisted, Name: "p", Meta: []byte(`{"a":1}`),
		Labels: map[string]string{"k": "v"}}
	id := filled(t, c, spec, 7)
	plain := filled(t, c, named("volatile", 100), 1)
	empty := filled(t, c, Spec{Class: object.Persisted}, 0)
	late := filled(t, c, named("late", 70_000), 3)
	if err := c.Update(late, "", Change{Persist: true}); err != nil {
		t.Fatal(err)
	}
	if err := c.Bind(id, "renamed", false); err != nil {
		t.Fatal(err)
	}
	s.Close()

	s = newStore(t, spillOptions(dir))
	c = connect(t, s, "x")
	wantPattern(t, c, id, 5000, 7)
	wantPattern(t, c, late, 70_000, 3)
	wantPattern(t, c, empty, 0, 0)
	info, err := c.Stat(object.ID{}, "renamed")
	if err != nil || info.ID != id || info.Class != object.Persisted || string(info.Meta) != `{"a":1}` ||
		info.Labels["k"] != "v" {
		t.Errorf("%+v, %v", info, err)
	}
	_, err = c.Stat(plain, "")
	wantErr(t, err, object.ErrNotFound)
	for _, gone := range []object.ID{id, late, empty} {
		if err := c.Delete(gone, ""); err != nil {
			t.Fatal(err)
		}
	}
	if left := filesIn(t, dir); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if st := s.Status(); st.DiskBytes != 0 || st.TableBytes != 0 {
		t.Errorf("left: %+v", st)
	}
}

func TestTTL(t *testing.T) {
	s := newStore(t, Options{})
	c := connect(t, s, "x")
	spec := Spec{SizeBytes: 10, Class: object.TTL, TTL: 30 * time.Millisecond, Name: "brief"}
	id := filled(t, c, spec, 1)
	spec.TTL, spec.Name = time.Hour, "long"
	long := filled(t, c, spec, 1)
	h, err := c.Get(long)
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(h)
	waitFor(t, func() bool { _, err := c.Stat(id, ""); return errors.Is(err, object.ErrNotFound) })
	soon := time.Millisecond
	if err := c.Update(object.ID{}, "long", Change{TTL: &soon}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { _, err := c.Stat(long, ""); return errors.Is(err, object.ErrNotFound) })
	if s.usedRanges() == 0 {
		t.Error("memory of an expired object went before its last reference")
	}
	if err := c.Release(long); err != nil {
		t.Fatal(err)
	}
	forever := filled(t, c, spec, 1)
	none := time.Duration(0)
	if err := c.Update(forever, "", Change{TTL: &none}); err != nil {
		t.Fatal(err)
	}
	if info, err := c.Stat(forever, ""); err != nil || info.Class != object.Named || info.Expires != nil {
		t.Errorf("%+v, %v", info, err)
	}
	_, err = c.Create(Spec{Class: object.Named, Name: "z", TTL: time.Second})
	wantErr(t, err, object.ErrInvalid)
}

// illDisk fails writes while told to.
type illDisk struct {
	spill.Linux
	fault atomic.Pointer[unix.Errno]
}

func (d *illDisk) Pwrite(fd int, b []byte, off int64) (int, error) {
	if why := d.fault.Load(); why != nil {
		return 0, *why
	}
	return d.Linux.Pwrite(fd, b, off)
}

func TestFullDiskIsTheObjectsError(t *testing.T) {
	sys := &illDisk{}
	opts := spillOptions(t.TempDir())
	opts.SpillSystem, opts.HighBytes = sys, opts.CapacityBytes
	s := newStore(t, opts)
	c := connect(t, s, "x")
	full := unix.ENOSPC
	sys.fault.Store(&full)
	var ids []object.ID
	for i := 0; ; i++ {
		h, err := c.Create(named(fmt.Sprint(i), 1<<20))
		if err != nil {
			if !errors.Is(err, object.ErrFull) || !strings.Contains(err.Error(), "no space") {
				t.Fatalf("create in a full store over a full disk: %v", err)
			}
			break
		}
		w := mapHandle(t, h, true)
		fillPattern(w.Bytes()[:1<<20], byte(i))
		w.Unmap()
		if err := errors.Join(c.Seal(h.ID, false), c.Release(h.ID)); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, h.ID)
	}
	if len(ids) < 6 {
		t.Fatalf("%d objects fit", len(ids))
	}
	h, err := c.Create(Spec{SizeBytes: 100, Class: object.Persisted})
	if err == nil {
		closeHandle(h)
		wantErr(t, c.Seal(h.ID, false), object.ErrFull)
		if err := c.Abort(h.ID); err != nil {
			t.Error("an object that could not be persisted must stay its creator's: ", err)
		}
	} else {
		wantErr(t, err, object.ErrFull)
	}
	for i, id := range ids {
		wantPattern(t, c, id, 1<<20, byte(i))
	}
	sys.fault.Store(nil)
	waitFor(t, func() bool {
		sweepAll(c)
		h, err := c.Create(named("fits", 1<<20))
		closeHandle(h)
		return err == nil
	})
}

func TestCorruptedFileIsTheObjectsError(t *testing.T) {
	dir := t.TempDir()
	s := newStore(t, spillOptions(dir))
	c := connect(t, s, "x")
	ids := fillBeyond(t, c, 16)
	var bad object.ID
	for _, id := range ids {
		if info, _ := c.Stat(id, ""); info.State == object.Spilled {
			bad = id
			break
		}
	}
	path := filepath.Join(dir, bad.String()+".bytes")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	content[777] ^= 4
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = contents(t, c, bad)
	wantErr(t, err, object.ErrStorage)
	if info, err := c.Stat(bad, ""); err != nil || info.Fault == "" || info.State != object.Spilled {
		t.Errorf("%+v, %v", info, err)
	}
	for i, id := range ids {
		if id != bad {
			sweepAll(c)
			wantPattern(t, c, id, 1<<20, byte(i))
		}
	}
	if err := c.Delete(bad, ""); err != nil {
		t.Error(err)
	}
}

// TestManyAtOnce gets, deletes, renames and makes objects that are going to disk and coming back.
func TestManyAtOnce(t *testing.T) {
	s := newStore(t, spillOptions(t.TempDir()))
	var running sync.WaitGroup
	var over atomic.Bool
	looked := make(chan int)
	go func() {
		n := 0
		for ; !over.Load(); n++ {
			if fault := s.invariants(false); fault != "" {
				t.Error(fault)
				break
			}
			time.Sleep(200 * time.Microsecond)
		}
		looked <- n
	}()
	for w := range 4 {
		c := connect(t, s, fmt.Sprintf("t%d", w%2))
		running.Go(func() {
			ids := make([]object.ID, 6)
			for round := range 30 {
				i := round % len(ids)
				sweepAll(c)
				if !ids[i].IsZero() {
					if err := c.Delete(ids[i], ""); err != nil {
						t.Error(err)
						return
					}
				}
				h, err := c.Create(Spec{SizeBytes: 300 << 10, Class: object.Named,
					Name: fmt.Sprintf("%d/%d/%d", w, i, round), Own: true})
				if err != nil {
					ids[i] = object.ID{}
					if !errors.Is(err, object.ErrFull) {
						t.Error(err)
						return
					}
					time.Sleep(time.Millisecond)
					continue
				}
				closeHandle(h)
				if err := errors.Join(c.Seal(h.ID, false), c.Bind(h.ID, fmt.Sprintf("%d/%d", w, i), true),
					c.Release(h.ID)); err != nil {
					t.Error(err)
					return
				}
				ids[i] = h.ID
				other := ids[(i+round)%len(ids)]
				if other.IsZero() {
					continue
				}
				if _, err := contents(t, c, other); err != nil && !errors.Is(err, object.ErrNotFound) && !errors.Is(err,
					object.ErrInvalid) && !errors.Is(err, object.ErrFull) && !errors.Is(err, object.ErrTimeout) {
					t.Error(err)
					return
				}
			}
			for _, id := range ids {
				if !id.IsZero() {
					if err := c.Delete(id, ""); err != nil {
						t.Error(err)
					}
				}
			}
			c.Close()
		})
	}
	running.Wait()
	over.Store(true)
	t.Logf("looked %d times", <-looked)
	waitFor(t, func() bool { st := s.Status(); return st.ChargedBytes == 0 && st.DiskBytes == 0 })
	mustAgree(t, s, true)
	if left := filesIn(t, s.opts.SpillDir); len(left) != 0 {
		t.Errorf("left on disk: %v", left)
	}
}

func TestQuotasOfDiskAndCount(t *testing.T) {
	opts := spillOptions(t.TempDir())
	opts.TenantObjects, opts.TenantSpillBytes, opts.TenantBytes = 6, 20_000, 6<<20
	s := newStore(t, opts)
	c, other := connect(t, s, "x"), connect(t, s, "y")
	filled(t, c, Spec{SizeBytes: 10_000, Class: object.Persisted}, 1)
	h, err := c.Create(Spec{SizeBytes: 10_000, Class: object.Persisted})
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(h)
	wantErr(t, c.Seal(h.ID, false), object.ErrQuota)
	for i := range 4 {
		filled(t, c, named(fmt.Sprint(i), 10), 1)
	}
	_, err = c.Create(Spec{SizeBytes: 1})
	wantErr(t, err, object.ErrQuota)
	filled(t, other, Spec{SizeBytes: 10_000, Class: object.Persisted}, 1)
}

// TestRestoreAtTheQuotasEdge: a small object comes back where it fits, though a segment of the usual size would not.
func TestRestoreAtTheQuotasEdge(t *testing.T) {
	for what, opts := range map[string]Options{"quota": {TenantBytes: 1 << 20}, "capacity": {CapacityBytes: 1 << 20}} {
		opts.SpillDir = t.TempDir()
		s := newStore(t, opts)
		c := connect(t, s, "x")
		small := filled(t, c, Spec{SizeBytes: 1000, Class: object.Named, Name: "small"}, 1)
		var h Handle
		waitFor(t, func() (done bool) {
			sweepAll(c)
			var err error
			h, err = c.Create(Spec{SizeBytes: 900 << 10, Own: true})
			return err == nil
		})
		closeHandle(h)
		if info, err := c.Stat(small, ""); err != nil || info.State != object.Spilled {
			t.Fatalf("%s: %+v, %v", what, info, err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		h, err := c.Wait(ctx, small, "")
		closeHandle(h)
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestFullStoreSaysFull: who has no quota of his own met the store's end.
func TestFullStoreSaysFull(t *testing.T) {
	s := newStore(t, Options{CapacityBytes: 4 << 20, TenantBytes: 4 << 20})
	_, err := connect(t, s, "x").Create(Spec{SizeBytes: 4 << 20, Own: true})
	if !errors.Is(err, object.ErrFull) || strings.Contains(err.Error(), "tenant") {
		t.Error(err)
	}
}

// gatedDisk lets an object's record be there when the test says so.
type gatedDisk struct {
	spill.Linux
	gate chan struct{}

	mu   sync.Mutex
	came []string // the names of what came to the gate, in order; guarded by mu
}

func (d *gatedDisk) Rename(from, to string) error {
	d.mu.Lock()
	d.came = append(d.came, filepath.Base(to))
	d.mu.Unlock()
	<-d.gate
	return d.Linux.Rename(from, to)
}

// atMost gives the names of the first that came, so many at most.
func (d *gatedDisk) atMost(n int) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.came[:min(n, len(d.came))])
}

// TestDiskIsShared: a tenant that persists without end does not make another one wait for all of it.
func TestDiskIsShared(t *testing.T) {
	const many = 60
	disk := &gatedDisk{gate: make(chan struct{})}
	open := sync.OnceFunc(func() { close(disk.gate) })
	opts := spillOptions(t.TempDir())
	opts.SpillSystem = disk
	s := newStore(t, opts)
	greedy, other := connect(t, s, "greedy"), connect(t, s, "other")
	t.Cleanup(open) // the store's end waits for transfers
	create := func(c *Conn) object.ID {
		h, err := c.Create(Spec{SizeBytes: 100, Class: object.Persisted})
		if closeHandle(h); err != nil {
			t.Fatal(err)
		}
		return h.ID
	}
	var all sync.WaitGroup
	for range many {
		id := create(greedy)
		all.Go(func() {
			if err := greedy.Seal(id, false); err != nil {
				t.Error(err)
			}
		})
	}
	one := create(other)
	waitFor(t, func() bool { return s.Status().DiskWaiting == many-spill.Parallel })
	all.Go(func() {
		if err := other.Seal(one, false); err != nil {
			t.Error(err)
		}
	})
	waitFor(t, func() bool { return s.Status().DiskWaiting == many-spill.Parallel+1 })
	for range spill.Parallel { // of those that are at the disk each makes room for one
		disk.gate <- struct{}{}
	}
	waitFor(t, func() bool { return len(disk.atMost(2*spill.Parallel)) == 2*spill.Parallel })
	if first := disk.atMost(2 * spill.Parallel); !slices.ContainsFunc(first, func(name string) bool {
		return strings.Contains(name, one.String())
	}) {
		t.Errorf("the other tenant's object %v is not among the first at the disk: %v", one, first)
	}
	open()
	all.Wait()
}
