package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	mmap "github.com/edsrzf/mmap-go"
	"golang.org/x/sys/unix"

	"tendril/store/object"
	"tendril/store/segment"
	"tendril/store/spill"
)

// breaker counts the calls of a kernel and a disk together and fails one.
type breaker struct {
	calls atomic.Int64
	bad   int64 // the call that fails, counted from 0; −1: none
	broke atomic.Bool
	quiet atomic.Bool // the test's own calls are on
}

func (b *breaker) next(with unix.Errno) error {
	if b.quiet.Load() || b.calls.Add(1)-1 != b.bad {
		return nil
	}
	b.broke.Store(true)
	return with
}

// brokenKernel is a kernel one of whose calls fails.
type brokenKernel struct {
	segment.Linux
	*breaker
}

func (k brokenKernel) MemfdCreate(name string) (int, error) {
	if err := k.next(unix.ENFILE); err != nil {
		return -1, err
	}
	return k.Linux.MemfdCreate(name)
}

func (k brokenKernel) Ftruncate(fd int, n int64) error {
	if err := k.next(unix.ENOMEM); err != nil {
		return err
	}
	return k.Linux.Ftruncate(fd, n)
}

func (k brokenKernel) Populate(fd int, off, n int64) error {
	if err := k.next(unix.ENOMEM); err != nil {
		return err
	}
	return k.Linux.Populate(fd, off, min(n, 8192)) // the whole would only take time here
}

func (k brokenKernel) AddSeals(fd, seals int) error {
	if err := k.next(unix.EPERM); err != nil {
		return err
	}
	return k.Linux.AddSeals(fd, seals)
}

func (k brokenKernel) Seals(fd int) (int, error) {
	if err := k.next(unix.EINVAL); err != nil {
		return 0, err
	}
	return k.Linux.Seals(fd)
}

func (k brokenKernel) Dup(fd int) (int, error) {
	if err := k.next(unix.EMFILE); err != nil {
		return -1, err
	}
	return k.Linux.Dup(fd)
}

func (k brokenKernel) Map(f *os.File, n, prot int) (mmap.MMap, error) {
	if err := k.next(unix.ENOMEM); err != nil {
		return nil, err
	}
	return k.Linux.Map(f, n, prot)
}

// brokenDisk is a disk one of whose calls fails. A close that fails has closed all the same (close(2)).
type brokenDisk struct {
	spill.Linux
	*breaker
}

func (d brokenDisk) Open(path string, flags int) (int, error) {
	if err := d.next(unix.EMFILE); err != nil {
		return -1, err
	}
	return d.Linux.Open(path, flags)
}

func (d brokenDisk) Pwrite(fd int, b []byte, off int64) (int, error) {
	if err := d.next(unix.EIO); err != nil {
		return 0, err
	}
	return d.Linux.Pwrite(fd, b, off)
}

func (d brokenDisk) Pread(fd int, b []byte, off int64) (int, error) {
	if err := d.next(unix.EIO); err != nil {
		return 0, err
	}
	return d.Linux.Pread(fd, b, off)
}

func (d brokenDisk) Reserve(fd int, n int64) error {
	if err := d.next(unix.ENOSPC); err != nil {
		return err
	}
	return d.Linux.Reserve(fd, n)
}

func (d brokenDisk) Sync(fd int) error {
	if err := d.next(unix.EIO); err != nil {
		return err
	}
	return d.Linux.Sync(fd)
}

func (d brokenDisk) Close(fd int) error {
	return errors.Join(d.Linux.Close(fd), d.next(unix.EIO))
}

func (d brokenDisk) Rename(from, to string) error {
	if err := d.next(unix.EIO); err != nil {
		return err
	}
	return d.Linux.Rename(from, to)
}

// refusal is what a call may answer when something broke below it: an error of the store's own words, whatever the
// kernel said.
func refusal(err error) bool {
	for _, want := range []error{object.ErrFull, object.ErrStorage, object.ErrInternal, object.ErrNotFound} {
		if errors.Is(err, want) {
			return true
		}
	}
	return false
}

// brokenLife is one store's life in which one call may fail: objects beyond memory, restores, a persisted object, a
// strict seal, a grant, a session's segment, a restart. What was said to be sealed must be there with its bytes unless
// the broken call was in the way of that very read; asked again it comes.
type brokenLife struct {
	t    *testing.T
	b    *breaker
	s    *Store
	c    *Conn
	kept map[object.ID]byte // seed of each sealed object
}

func (l *brokenLife) allow(what string, err error) bool {
	l.t.Helper()
	if err == nil {
		return true
	}
	if !l.b.broke.Load() || !refusal(err) {
		l.t.Fatalf("call %d broke (%v); %s: %v", l.b.bad, l.b.broke.Load(), what, err)
	}
	return false
}

// put makes an object of 128 KiB; whatever fails, the store is as before.
func (l *brokenLife) put(spec Spec, seed byte, strict bool) {
	sweepAll(l.c)
	h, err := l.create(spec)
	if !l.allow("create", err) {
		return
	}
	m := mapQuietly(h)
	if m == nil {
		l.t.Fatal("no mapping")
	}
	fillPattern(m.Bytes()[h.Ref.Offset:][:h.Size], seed)
	m.Unmap()
	if l.allow("seal", l.c.Seal(h.ID, strict)) {
		l.kept[h.ID] = seed
		if err := l.c.Release(h.ID); err != nil {
			l.t.Fatal(err)
		}
		return
	}
	if err := l.c.Abort(h.ID); err != nil {
		l.t.Fatalf("an object whose seal failed must stay its creator's: %v", err)
	}
}

// create waits, as clients do, while memory is on its way back; not for long where a call broke: it may be refused.
func (l *brokenLife) create(spec Spec) (h Handle, err error) {
	for n, began := 0, time.Now(); n < 2000 || !l.b.broke.Load() && time.Since(began) < 5*time.Minute; n++ {
		if h, err = l.c.Create(spec); !errors.Is(err, object.ErrFull) || l.b.broke.Load() &&
			!strings.Contains(err.Error(), "are in use") {
			return h, err
		}
		sweepAll(l.c)
		time.Sleep(100 * time.Microsecond)
	}
	return h, err
}

func mapQuietly(h Handle) *segment.Mapping {
	f := os.NewFile(uintptr(h.FD), "segment")
	if f == nil {
		return nil
	}
	defer f.Close()
	m, err := segment.Map(f, h.Ref.SegmentBytes, true)
	if err != nil {
		return nil
	}
	return m
}

func (l *brokenLife) run(dir string) {
	opts := Options{
		CapacityBytes: 1 << 20, SegmentBytes: 256 << 10, LargeBytes: 64 << 10, HighBytes: 1 << 20, WriterCacheBytes: 1,
		SpillDir: dir, System: brokenKernel{breaker: l.b}, SpillSystem: brokenDisk{breaker: l.b},
	}
	l.kept = make(map[object.ID]byte)
	if !l.open(opts) {
		return
	}
	for i := range byte(10) { // 1.25 MiB in a store of 1
		l.put(Spec{SizeBytes: 128 << 10, Class: object.Named, Name: fmt.Sprint(i), Own: true}, i, i == 3)
	}
	l.put(Spec{SizeBytes: 70 << 10, Class: object.Persisted, Name: "p", Own: true}, 77, false)
	l.readAll()
	for _, name := range []string{"6", "7", "8", "9"} { // room for a copy
		if info, err := l.c.Stat(object.ID{}, name); err == nil {
			l.allow("delete", l.c.Delete(info.ID, ""))
			delete(l.kept, info.ID)
		}
	}
	sweepAll(l.c)
	l.session()
	l.allow("grant", l.c.Grant(object.ID{}, "0", Everybody, false))
	l.allow("rename", l.c.Rename("1", "one", false))
	l.close()
	if !l.open(opts) { // what was persisted or spilled is there again
		return
	}
	l.readAll()
	for _, info := range l.c.List("", true) {
		l.allow("delete", l.c.Delete(info.ID, ""))
	}
	l.close()
}

func (l *brokenLife) open(opts Options) bool {
	s, err := New(opts)
	if err != nil {
		l.allow("New", err)
		return false
	}
	l.s = s
	if l.c, err = s.Connect(Owner{Tenant: "x"}); err != nil {
		l.t.Fatal(err)
	}
	for id := range l.kept {
		if _, err := l.c.Stat(id, ""); err != nil {
			delete(l.kept, id) // was in memory alone, or its record could not be read
		}
	}
	return true
}

// readAll wants every object's bytes; one call may fail, the next try may not.
func (l *brokenLife) readAll() {
	for id, seed := range l.kept {
		sweepAll(l.c)
		h, err := l.get(id)
		if !l.allow("get", err) {
			h, err = l.get(id)
		}
		if err != nil {
			l.t.Fatalf("call %d: object %s is lost: %v", l.b.bad, id, err)
		}
		closeHandle(h)
		l.b.quiet.Store(true)
		b, err := contents(l.t, l.c, id)
		l.b.quiet.Store(false)
		if err != nil {
			l.t.Fatal(err)
		}
		l.allow("release", l.c.Release(id))
		want := make([]byte, len(b))
		fillPattern(want, seed)
		if string(b) != string(want) {
			l.t.Fatalf("call %d: object %s has other bytes", l.b.bad, id)
		}
	}
}

// get waits for an object, and for memory to bring it back into, as clients do.
func (l *brokenLife) get(id object.ID) (h Handle, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		sweepAll(l.c)
		if h, err = l.c.Wait(ctx, id, ""); !errors.Is(err, object.ErrFull) ||
			!strings.Contains(err.Error(), "are in use") {
			break
		}
		time.Sleep(100 * time.Microsecond)
	}
	return h, err
}

func (l *brokenLife) session() {
	sweepAll(l.c)
	g, err := l.c.AllocSegment(64 << 10)
	if !l.allow("alloc", err) {
		return
	}
	unix.Close(g.FD)
	id, err := l.c.PublishSegment(Publication{Segment: g.ID, SizeBytes: 1000})
	if !l.allow("publish", err) {
		l.allow("free", l.c.FreeSegment(g.ID))
		return
	}
	l.allow("release", l.c.Release(id))
}

// close ends the store and wants its accounts to balance before.
func (l *brokenLife) close() {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for {
		sweepAll(l.c)
		st := l.s.Status()
		if st.References == 0 && st.OpenObjects == 0 && st.ChargedBytes == st.SegmentBytes+st.TableBytes &&
			st.LeavingBytes == 0 {
			break
		}
		if ctx.Err() != nil {
			l.t.Fatalf("call %d: not at rest: %+v", l.b.bad, st)
		}
		time.Sleep(time.Millisecond)
	}
	l.c.Close()
	l.s.Close()
	if n := len(l.s.segments); n != 0 {
		l.t.Fatalf("call %d: %d segments after Close", l.b.bad, n)
	}
}

// resources counts what a process could lose: descriptors, mappings of segments, goroutines.
func resources(t testing.TB) [3]int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return [3]int{len(names), strings.Count(string(maps), "memfd:tendril"), runtime.NumGoroutine()}
}

// wantNoMoreThan waits until a process has no more of them than before. It may have had a goroutine more at that
// moment, which was about to end.
func wantNoMoreThan(t testing.TB, before [3]int) {
	t.Helper()
	waitFor(t, func() bool {
		now := resources(t)
		return now[0] <= before[0] && now[1] <= before[1] && now[2] <= before[2]
	})
}

// brokenLifeOf runs one life in a directory of its own and reports whether it met the call that was to fail.
func brokenLifeOf(t *testing.T, root string, bad int64) bool {
	dir, err := os.MkdirTemp(root, "")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l := &brokenLife{t: t, b: &breaker{bad: bad}}
	l.run(dir)
	if left := filesIn(t, dir); bad < 0 && len(left) > 0 {
		t.Fatalf("left on disk: %v", left)
	}
	return l.b.broke.Load()
}

// TestEachCallOfAStoresLifeFails fails the first system call of a store that spills, restores and restarts, then the
// second, … until a life meets none that fails. There are no more descriptors, mappings and goroutines afterwards.
func TestEachCallOfAStoresLifeFails(t *testing.T) {
	const lanes = 4 // lives wait for the disk most of their time
	root := t.TempDir()
	brokenLifeOf(t, root, -1)
	before := resources(t)
	step := int64(lanes)
	if testing.Short() {
		step *= 7 // the race detector's turn: a sample
	}
	var failed atomic.Int64
	t.Run("lanes", func(t *testing.T) {
		for lane := range int64(lanes) {
			t.Run(fmt.Sprint(lane), func(t *testing.T) {
				t.Parallel()
				for bad := lane; brokenLifeOf(t, root, bad); bad += step {
					failed.Add(1)
				}
			})
		}
	})
	if t.Logf("%d calls failed, a life each", failed.Load()); failed.Load() < 20 {
		t.Error("hardly any call was failed: this test shows nothing")
	}
	wantNoMoreThan(t, before)
}
