package store

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/store/object"
	"tendril/store/segment"
	"tendril/tools/e2e/await"
)

func TestMain(m *testing.M) { await.Main(m) }

func newStore(t testing.TB, opts Options) *Store {
	t.Helper()
	if opts.CapacityBytes == 0 {
		opts.CapacityBytes = 64 << 20
	}
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func connect(t testing.TB, s *Store, tenant string) *Conn {
	t.Helper()
	c, err := s.Connect(Owner{Tenant: tenant, PID: os.Getpid(), Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// sealedObject makes one and closes the descriptors that come with it.
func sealedObject(t testing.TB, c *Conn, spec Spec) object.ID {
	t.Helper()
	h, err := c.Create(spec)
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(h)
	if err := c.Seal(h.ID, false); err != nil {
		t.Fatal(err)
	}
	return h.ID
}

func closeHandle(h Handle) {
	if h.FD >= 0 {
		unix.Close(h.FD)
	}
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

// mapHandle maps what a Create or a first Get brought.
func mapHandle(t testing.TB, h Handle, writable bool) *segment.Mapping {
	t.Helper()
	f := os.NewFile(uintptr(h.FD), "segment")
	defer f.Close()
	m, err := segment.Map(f, h.Ref.SegmentBytes, writable)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Unmap() })
	return m
}

func TestShare(t *testing.T) {
	s := newStore(t, Options{})
	a, b, other := connect(t, s, "x"), connect(t, s, "x"), connect(t, s, "y")
	h, err := a.Create(Spec{SizeBytes: 100, Name: "n", Class: object.Named, Meta: []byte("m")})
	if err != nil {
		t.Fatal(err)
	}
	w := mapHandle(t, h, true)
	_, err = b.Get(h.ID)
	wantErr(t, err, object.ErrNotSealed)
	copy(w.Bytes()[h.Ref.Offset:], "hello")
	if err := a.Seal(h.ID, false); err != nil {
		t.Fatal(err)
	}
	got, err := b.GetName("n")
	if err != nil {
		t.Fatal(err)
	}
	r := mapHandle(t, got, false)
	if string(r.Bytes()[got.Ref.Offset:][:5]) != "hello" || string(got.Meta) != "m" || got.Size != 100 {
		t.Errorf("got %+v", got)
	}
	if again, err := b.Get(h.ID); err != nil || again.FD != -1 {
		t.Errorf("second get: %v, descriptor %d: it must be passed once a segment", err, again.FD)
	}
	_, err = other.Get(h.ID)
	wantErr(t, err, object.ErrPermission)
	_, err = other.GetName("n")
	wantErr(t, err, object.ErrNotFound)
	wantErr(t, other.Delete(h.ID, ""), object.ErrPermission)
	wantErr(t, b.Seal(h.ID, false), object.ErrSealed)

	if err := b.Delete(object.ID{}, "n"); err != nil {
		t.Fatal(err)
	}
	_, err = a.Get(h.ID)
	wantErr(t, err, object.ErrNotFound)
	if s.Status().UsedBytes != 0 || s.usedRanges() == 0 {
		t.Error("a deleted object's memory must wait for its references")
	}
	for range 2 {
		if err := b.Release(h.ID); err != nil {
			t.Fatal(err)
		}
	}
	wantErr(t, b.Release(h.ID), object.ErrNotFound)
	if err := a.Release(h.ID); err != nil || s.usedRanges() != 0 {
		t.Errorf("after the last release: %v, %d bytes of ranges", err, s.usedRanges())
	}
}

func (s *Store) usedRanges() (n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.segments {
		if g.ranges != nil {
			n += g.ranges.Used()
		} else if g.live > 0 {
			n += g.bytes
		}
	}
	return n
}

func TestConnectionEnds(t *testing.T) {
	s := newStore(t, Options{})
	a, b := connect(t, s, "x"), connect(t, s, "x")
	eph := sealedObject(t, a, Spec{SizeBytes: 10})
	named := sealedObject(t, a, Spec{SizeBytes: 10, Name: "kept", Class: object.Named})
	shared := sealedObject(t, a, Spec{SizeBytes: 10})
	h, err := b.Get(shared)
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(h)
	open, err := a.Create(Spec{SizeBytes: 10})
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	for _, gone := range []object.ID{eph, open.ID} {
		_, err := b.Get(gone)
		wantErr(t, err, object.ErrNotFound)
	}
	for _, kept := range []object.ID{named, shared} {
		if _, err := b.Get(kept); err != nil {
			t.Errorf("%v", err)
		}
	}
	_, err = a.Get(named)
	wantErr(t, err, object.ErrInvalid)
	if err := b.Delete(named, ""); err != nil {
		t.Fatal(err)
	}
	b.Close()
	nothingCharged(t, s)
	if st := s.Status(); st.Objects != 0 || st.Segments != 0 || st.References != 0 ||
		len(st.Tenants) != 0 {
		t.Errorf("after everybody left: %+v", st)
	}
}

func TestWriterReusesItsSegment(t *testing.T) {
	s := newStore(t, Options{CapacityBytes: 64 << 20, SegmentBytes: 1 << 20})
	a := connect(t, s, "x")
	first, err := a.Create(Spec{SizeBytes: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(first)
	if err := a.Seal(first.ID, false); err != nil {
		t.Fatal(err)
	}
	if err := a.Release(first.ID); err != nil {
		t.Fatal(err)
	}
	second, err := a.Create(Spec{SizeBytes: 8<<20 - 100})
	if err != nil || second.FD != -1 || second.Ref.Segment != first.Ref.Segment {
		t.Errorf("second: %+v, %v: want the first one's segment", second, err)
	}
	if got := a.Sweep(); len(got) != 0 {
		t.Errorf("Sweep = %v", got)
	}
	if err := a.Forget(first.Ref.Segment); err != nil {
		t.Fatal(err)
	}
	if err := a.Abort(second.ID); err != nil {
		t.Fatal(err)
	}
	nothingCharged(t, s)
	if st := s.Status(); st.Segments != 0 {
		t.Errorf("after Forget: %+v", st)
	}
}

func TestFullAndSweep(t *testing.T) {
	s := newStore(t, Options{CapacityBytes: 10 << 20, SegmentBytes: 1 << 20, WriterCacheBytes: 8 << 20,
		WarmBytes: 2 << 20})
	a, b := connect(t, s, "x"), connect(t, s, "y")
	id := sealedObject(t, a, Spec{SizeBytes: 6 << 20})
	_, err := b.Create(Spec{SizeBytes: 5 << 20})
	wantErr(t, err, object.ErrFull)
	if err := a.Release(id); err != nil {
		t.Fatal(err)
	}
	_, err = b.Create(Spec{SizeBytes: 5 << 20})
	wantErr(t, err, object.ErrFull) // a still has it mapped
	gone := a.Sweep()
	if len(gone) != 1 {
		t.Fatalf("Sweep = %v, want one segment", gone)
	}
	if err := a.Forget(gone[0]); err != nil {
		t.Fatal(err)
	}
	h, err := b.Create(Spec{SizeBytes: 5 << 20})
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(h)
}

// Who meets a shortage takes no more of others' empty segments than it needs.
func TestOthersKeepEmptySegments(t *testing.T) {
	const n = 8
	s := newStore(t, Options{CapacityBytes: 8 << 20, WriterCacheBytes: 8 << 20, HighBytes: 8 << 20})
	a, b := connect(t, s, "x"), connect(t, s, "y")
	var ids []object.ID
	for range n - 1 {
		ids = append(ids, sealedObject(t, a, Spec{SizeBytes: 1 << 20}))
	}
	for _, id := range ids {
		release(t, a, id)
	}
	if idle := s.Status().IdleBytes; idle != (n-1)<<20 {
		t.Fatalf("%d bytes are idle", idle)
	}
	_, err := b.Create(Spec{SizeBytes: 1 << 20})
	wantErr(t, err, object.ErrFull) // a has them mapped
	if idle := s.Status().IdleBytes; idle != (n-2)<<20 {
		t.Errorf("%d bytes are idle, want %d", idle, (n-2)<<20)
	}
	sweepAll(a)
	h, err := b.Create(Spec{SizeBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(h)
}

func TestQuota(t *testing.T) {
	s := newStore(t, Options{CapacityBytes: 16 << 20, SegmentBytes: 1 << 20, TenantBytes: 2 << 20})
	a := connect(t, s, "x")
	_, err := a.Create(Spec{SizeBytes: 3 << 20})
	wantErr(t, err, object.ErrQuota)
	for i := 0; ; i++ {
		if _, err = a.Create(Spec{}); err != nil {
			wantErr(t, err, object.ErrQuota)
			break
		}
		if i > 2<<20/entryBytes {
			t.Fatal("empty objects are free of charge: they could fill the daemon")
		}
	}
}

func TestStrictSeal(t *testing.T) {
	s := newStore(t, Options{})
	a := connect(t, s, "x")
	h, err := a.Create(Spec{SizeBytes: 10, Own: true})
	if err != nil {
		t.Fatal(err)
	}
	w := mapHandle(t, h, true)
	wantErr(t, a.Seal(h.ID, true), object.ErrBusy)
	w.Unmap()
	if err := a.Seal(h.ID, true); err != nil {
		t.Fatal(err)
	}
	info, err := a.Stat(h.ID, "")
	if err != nil || !info.Strict || info.State != object.Sealed {
		t.Errorf("%+v, %v", info, err)
	}
	shared, err := a.Create(Spec{SizeBytes: 10})
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(shared)
	wantErr(t, a.Seal(shared.ID, true), object.ErrInvalid)
}

// refusedKernel tells of each refusal of a seal.
type refusedKernel struct {
	segment.Linux
	refused func()
}

func (k *refusedKernel) AddSeals(fd, seals int) error {
	err := k.Linux.AddSeals(fd, seals)
	if errors.Is(err, unix.EBUSY) {
		k.refused()
	}
	return err
}

// A strict seal waits for what is in the way for a moment: here for a mapping as a child has it until its exec.
func TestStrictSealWaitsForAMoment(t *testing.T) {
	kernel := &refusedKernel{}
	s := newStore(t, Options{System: kernel})
	a := connect(t, s, "x")
	h, err := a.Create(Spec{SizeBytes: 10, Own: true})
	if err != nil {
		t.Fatal(err)
	}
	w := mapHandle(t, h, true)
	kernel.refused = a.Stop
	wantErr(t, a.Seal(h.ID, true), object.ErrBusy) // not for who is on his way out
	b := connect(t, s, "x")
	if h, err = b.Create(Spec{SizeBytes: 10, Own: true}); err != nil {
		t.Fatal(err)
	}
	w.Unmap()
	w = mapHandle(t, h, true)
	refusals := 0
	kernel.refused = func() {
		if refusals++; refusals == 3 {
			w.Unmap()
		}
	}
	if err := b.Seal(h.ID, true); err != nil || refusals < 3 { // the kernel may refuse for moments of its own
		t.Errorf("after %d refusals: %v", refusals, err)
	}
}

func TestNames(t *testing.T) {
	s := newStore(t, Options{})
	a := connect(t, s, "x")
	one, two := sealedObject(t, a, Spec{SizeBytes: 1}), sealedObject(t, a, Spec{SizeBytes: 1})
	if err := a.Bind(one, "n", false); err != nil {
		t.Fatal(err)
	}
	if err := a.Release(one); err != nil { // the name holds it
		t.Fatal(err)
	}
	wantErr(t, a.Bind(two, "n", false), object.ErrExists)
	if err := a.Bind(two, "n", true); err != nil {
		t.Fatal(err)
	}
	_, err := a.Get(one)
	wantErr(t, err, object.ErrNotFound)
	if err := a.Bind(two, "m", false); err != nil {
		t.Fatal(err)
	}
	_, err = a.Stat(object.ID{}, "n")
	wantErr(t, err, object.ErrNotFound)
	h, err := a.Create(Spec{SizeBytes: 1, Name: "m"})
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, a.Seal(h.ID, false), object.ErrExists)
	if err := a.Delete(object.ID{}, "m"); err != nil {
		t.Fatal(err)
	}
	if err := a.Seal(h.ID, false); err != nil {
		t.Errorf("seal after the name came free: %v", err)
	}
	for _, bad := range []string{"a\x00", "\xff", string(make([]byte, 300))} {
		wantErr(t, a.Bind(two, bad, false), object.ErrInvalid)
	}
	for _, spec := range []Spec{{Class: 9}, {Class: object.Named}, {Meta: make([]byte, 5000)}} {
		_, err := a.Create(spec)
		wantErr(t, err, object.ErrInvalid)
	}
	_, err = a.Create(Spec{Class: object.TTL})
	wantErr(t, err, object.ErrInvalid)
}

func TestPublish(t *testing.T) {
	s := newStore(t, Options{})
	a, b := connect(t, s, "x"), connect(t, s, "x")
	g, err := a.AllocSegment(100_000)
	if err != nil || g.Bytes != 25*4096 {
		t.Fatalf("%+v, %v", g, err)
	}
	w := mapHandle(t, Handle{FD: g.FD, Ref: object.Ref{SegmentBytes: g.Bytes}}, true)
	copy(w.Bytes(), "result")
	w.Unmap() // as the session's client and worker do
	_, err = b.PublishSegment(Publication{Segment: g.ID, SizeBytes: 6})
	wantErr(t, err, object.ErrNotFound)
	_, err = a.PublishSegment(Publication{Segment: g.ID, SizeBytes: g.Bytes + 1})
	wantErr(t, err, object.ErrInvalid)
	id, err := a.PublishSegment(Publication{Segment: g.ID, SizeBytes: 6, Class: object.Named, Name: "r"})
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, a.FreeSegment(g.ID), object.ErrNotFound)
	got, err := b.GetName("r")
	if err != nil || got.ID != id || got.Ref.Segment != g.ID {
		t.Fatalf("%+v, %v", got, err)
	}
	if r := mapHandle(t, got, false); string(r.Bytes()[:6]) != "result" {
		t.Error("the published bytes are not the segment's")
	}
	free, err := a.AllocSegment(4096)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(free.FD)
	if err := a.FreeSegment(free.ID); err != nil {
		t.Fatal(err)
	}
	if st := s.Status(); st.SessionBytes != 0 || st.SegmentBytes != g.Bytes {
		t.Errorf("%+v", st)
	}
}

// Where somebody can still write the memory, the object is a copy that nobody can.
func TestPublishHeld(t *testing.T) {
	s := newStore(t, Options{CapacityBytes: 16 << 20, SegmentBytes: 1 << 20})
	a := connect(t, s, "x")
	held := func(n uint64) (SessionSegment, *segment.Mapping) {
		g, err := a.AllocSegment(n)
		if err != nil {
			t.Fatal(err)
		}
		w := mapHandle(t, Handle{FD: g.FD, Ref: object.Ref{SegmentBytes: g.Bytes}}, true)
		copy(w.Bytes(), "result")
		return g, w
	}
	g, w := held(100_000)
	if _, err := a.PublishSegment(Publication{Segment: g.ID, SizeBytes: g.Bytes, Class: object.Named,
		Name: "r"}); err != nil {
		t.Fatal(err)
	}
	got, err := a.GetName("r")
	if err != nil || got.Ref.Segment == g.ID {
		t.Fatalf("%+v, %v", got, err)
	}
	r := mapHandle(t, got, false)
	copy(w.Bytes(), "changed")
	if string(r.Bytes()[:7]) != "result\x00" {
		t.Errorf("the object is %q", r.Bytes()[:7])
	}
	wantErr(t, a.FreeSegment(g.ID), object.ErrNotFound)

	large, _ := held(10 << 20) // no room for it twice
	_, err = a.PublishSegment(Publication{Segment: large.ID, SizeBytes: large.Bytes, Class: object.Named, Name: "l"})
	wantErr(t, err, object.ErrFull)
	if err := a.FreeSegment(large.ID); err != nil {
		t.Errorf("the segment after a publication that failed: %v", err)
	}
}

func TestWarmPool(t *testing.T) {
	s := newStore(t, Options{CapacityBytes: 32 << 20, SegmentBytes: 1 << 20, WarmBytes: 3 << 20})
	waitFor(t, func() bool { return s.Status().WarmBytes == 3<<20 })
	a := connect(t, s, "x")
	for _, size := range []uint64{600 << 10, 1 << 20, 5 << 20} {
		h, err := a.Create(Spec{SizeBytes: size})
		if err != nil || h.Ref.SegmentBytes != segment.RoundUp(size) {
			t.Errorf("%d bytes: %+v, %v", size, h, err)
		}
		closeHandle(h)
	}
	waitFor(t, func() bool { return s.Status().WarmBytes == 3<<20 })
}

func TestOptions(t *testing.T) {
	err := Options{CapacityBytes: 1, SegmentBytes: 5, LargeBytes: 9, WarmBytes: 2, TenantBytes: 3}.Validate()
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 5 {
		t.Errorf("Validate = %v, want five faults", err)
	}
	for _, capacity := range []uint64{1 << 20, 3 << 20, 1 << 30, 1 << 40} {
		if err := (Options{CapacityBytes: capacity}).withDefaults().Validate(); err != nil {
			t.Errorf("defaults for %d: %v", capacity, err)
		}
	}
}

func BenchmarkGetRelease(b *testing.B) {
	s := newStore(b, Options{CapacityBytes: 1 << 30})
	a := connect(b, s, "x")
	ids := make([]object.ID, 10_000)
	for i := range ids {
		ids[i] = sealedObject(b, a, Spec{SizeBytes: 64})
	}
	r := connect(b, s, "x")
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		h, err := r.Get(ids[i%len(ids)])
		if err != nil {
			b.Fatal(err)
		}
		closeHandle(h)
		if err := r.Release(h.ID); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCreateSealRelease(b *testing.B) {
	s := newStore(b, Options{CapacityBytes: 1 << 30})
	a := connect(b, s, "x")
	b.ReportAllocs()
	for b.Loop() {
		id := sealedObject(b, a, Spec{SizeBytes: 4096})
		if err := a.Release(id); err != nil {
			b.Fatal(err)
		}
	}
}

// memfds counts this process's descriptors of segments.
func memfds(t testing.TB) (n int) {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if target, err := os.Readlink("/proc/self/fd/" + name.Name()); err == nil &&
			strings.HasPrefix(target, "/memfd:tendril") {
			n++
		}
	}
	return n
}

// waitFor waits for a state of the store.
func waitFor(t testing.TB, there func() bool) {
	t.Helper()
	await.Until(t, "the state that is waited for here", there)
}

// nothingCharged waits until nobody has memory of the store. Whoever looks through all processes may have some for a
// moment.
func nothingCharged(t testing.TB, s *Store) {
	t.Helper()
	waitFor(t, func() bool { return s.Status().ChargedBytes == 0 })
}
