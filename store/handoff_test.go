package store

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/store/handoff"
	"tendril/store/object"
	"tendril/store/segment"
)

// handOver ends s and makes the next store of what it leaves, by the way that it takes between processes.
func handOver(t testing.TB, s *Store, opts Options) *Store {
	t.Helper()
	l := s.Handoff()
	defer l.Close()
	var wire bytes.Buffer
	var catalog handoff.Catalog
	if err := errors.Join(gob.NewEncoder(&wire).Encode(&l.Catalog),
		gob.NewDecoder(&wire).Decode(&catalog)); err != nil {
		t.Fatal(err)
	}
	var fds []int
	for _, fd := range l.Descriptors() {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, dup)
	}
	var err error
	if opts.Handoff, err = handoff.New(catalog, fds); err != nil {
		t.Fatal(err)
	}
	var gpus []int
	for _, fd := range l.DeviceDescriptors() {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		gpus = append(gpus, dup)
	}
	if err = opts.Handoff.TakeDevices(gpus); err != nil {
		t.Fatal(err)
	}
	if fd := l.WatchDescriptor(); fd >= 0 {
		if fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			err = opts.Handoff.TakeWatch(fd)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	next := newStore(t, opts)
	if fault := next.invariants(true); fault != "" {
		t.Fatal(fault)
	}
	return next
}

// bytesOf reads an object's bytes through a descriptor of its own.
func bytesOf(t testing.TB, s *Store, tenant string, id object.ID) []byte {
	t.Helper()
	c := connect(t, s, tenant)
	defer c.Close()
	h, err := c.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	if h.Size == 0 {
		return nil
	}
	m := mapHandle(t, h, false)
	defer m.Unmap()
	return bytes.Clone(m.Bytes()[h.Ref.Offset:][:h.Size])
}

// A takeover writes no record anew of which the disk has all that matters: there may be a hundred thousand.
func TestTakeoverLeavesRecordsAsTheyAre(t *testing.T) {
	opts := Options{CapacityBytes: 32 << 20, SegmentBytes: 1 << 20, LargeBytes: 256 << 10, WarmBytes: 1 << 20,
		SpillDir: t.TempDir()}
	s := newStore(t, opts)
	c := connect(t, s, "a")
	var paths []string
	for _, name := range []string{"", "named"} {
		id := filled(t, c, Spec{SizeBytes: 70000, Class: object.Persisted, Name: name}, 3)
		paths = append(paths, filepath.Join(opts.SpillDir, id.String()+".record"))
	}
	stat := func() (list []os.FileInfo) {
		for _, path := range paths {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, info)
		}
		return list
	}
	before := stat()
	s.Leave()
	c.Close()
	unmapWriters(c)
	s = handOver(t, s, opts)
	waitFor(t, func() bool { return s.Status().RecordsBehind == 0 })
	for i, now := range stat() {
		if !os.SameFile(before[i], now) {
			t.Errorf("%s was written anew", paths[i])
		}
	}
}

func TestHandoff(t *testing.T) {
	opts := Options{CapacityBytes: 32 << 20, SegmentBytes: 1 << 20, LargeBytes: 256 << 10, WarmBytes: 1 << 20,
		SpillDir: t.TempDir()}
	s := newStore(t, opts)
	a, b, filler := connect(t, s, "a"), connect(t, s, "b"), connect(t, s, "a")
	held := make(map[object.ID]byte)
	put := func(seed byte, spec Spec) object.ID {
		id := filled(t, filler, spec, seed)
		held[id] = seed
		return id
	}
	ephemeral := sealedObject(t, a, Spec{SizeBytes: 5000})
	named := put(2, Spec{SizeBytes: 300 << 10, Class: object.Named, Name: "named", Labels: map[string]string{"k": "v"},
		Meta: []byte("meta")})
	onDisk := put(3, Spec{SizeBytes: 70000, Class: object.Persisted, Name: "disk"})
	timed := put(4, Spec{SizeBytes: 10, Class: object.TTL, TTL: time.Hour})
	dropped := sealedObject(t, a, Spec{SizeBytes: 100})
	tree := compose(t, a, Spec{Class: object.Named, Name: "tree"}, ephemeral, named)
	release(t, a, tree, dropped)
	if err := a.Grant(named, "", "uid:7", false); err != nil {
		t.Fatal(err)
	}
	unsealed, err := a.Create(Spec{SizeBytes: 1000})
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(unsealed)
	for range 2 {
		h, err := a.Get(ephemeral)
		if err != nil {
			t.Fatal(err)
		}
		closeHandle(h)
	}
	in := openStream(t, b, StreamSpec{Name: "frames", Writes: true, Frames: 5})
	frame := pushNow(t, b, in, 2000)
	before := s.Status()

	s.Leave()
	for _, c := range []*Conn{a, b, filler} {
		c.Close()
		unmapWriters(c)
	}
	s = handOver(t, s, opts)
	now := s.Status()
	if now.Objects != before.Objects-1 || now.UsedBytes != before.UsedBytes-1000 || now.References != 3 {
		t.Errorf("before %+v\nafter  %+v", before, now)
	}
	for id, seed := range held {
		if !bytes.Equal(bytesOf(t, s, "a", id), patternOf(seed, len(bytesOf(t, s, "a", id)))) {
			t.Errorf("object %s (%d) has other bytes", id, seed)
		}
	}
	a, b = connect(t, s, "a"), connect(t, s, "b")
	info, err := a.Stat(object.ID{}, "named")
	if err != nil || info.ID != named || info.Labels["k"] != "v" || string(info.Meta) == "" || len(info.Grants) != 1 {
		t.Errorf("named: %+v, %v", info, err)
	}
	if info, err = a.Stat(object.ID{}, "tree"); err != nil || len(info.Members) != 2 {
		t.Errorf("tree: %+v, %v", info, err)
	}
	if info, err = a.Stat(timed, ""); err != nil || info.Expires == nil || time.Until(*info.Expires) < 50*time.Minute {
		t.Errorf("ttl: %+v, %v", info, err)
	}
	if info, err = a.Stat(onDisk, ""); err != nil || !info.OnDisk || info.State != object.Sealed {
		t.Errorf("persisted: %+v, %v", info, err)
	}
	if _, err := a.Get(dropped); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("what was released: %v", err)
	}
	wantPop(t, b, openStream(t, b, StreamSpec{Name: "frames", Reads: true}), frame, 1)
	// the writer comes back for what it held
	where, _ := a.Stat(ephemeral, "")
	if again, here := a.Reclaim(ephemeral, where.Segment); !again || !here {
		t.Errorf("reclaim: %v, %v", again, here)
	}
	h, err := a.Get(ephemeral)
	if err != nil || h.FD != -1 {
		t.Errorf("a segment that is mapped came with descriptor %d, %v", h.FD, err)
	}
	for _, orphan := range s.Orphans() {
		if o := orphan.Owner(); o.PID != os.Getpid() || o.Name != "test" {
			t.Errorf("orphan of %+v", o)
		}
		orphan.Close()
	}
	release(t, a, ephemeral, ephemeral)
	for _, name := range []string{"tree", "named", "disk"} {
		if err := a.Delete(object.ID{}, name); err != nil {
			t.Error(err)
		}
	}
	if err := a.Delete(timed, ""); err != nil {
		t.Error(err)
	}
	release(t, b, frame)
	a.Close()
	b.Close()
	nothingCharged(t, s)
	if now := s.Status(); now.Objects != 0 || now.UsedBytes != 0 || now.References != 0 || now.Segments != 0 {
		t.Errorf("left: %+v", now)
	}
}

func patternOf(seed byte, n int) []byte {
	b := make([]byte, n)
	fillPattern(b, seed)
	return b
}

// Stores follow each other, and nobody comes back: what was held goes with the orphans, and nothing is left open.
func TestHandoffLeavesNothing(t *testing.T) {
	opts := Options{CapacityBytes: 32 << 20, SegmentBytes: 1 << 20, WarmBytes: 2 << 20, SpillDir: t.TempDir()}
	fds := countFDs(t)
	s := newStore(t, opts)
	for round := range 4 {
		c := connect(t, s, "a")
		for i := range 20 {
			sealedObject(t, c, Spec{SizeBytes: uint64(1000 * i)})
		}
		sealedObject(t, c, Spec{SizeBytes: 1 << 20, Class: object.Persisted, Name: fmt.Sprint(round)})
		s.Leave()
		c.Close()
		s = handOver(t, s, opts)
		orphans := s.Orphans()
		if len(orphans) != 1 || s.Status().References != 21 {
			t.Fatalf("round %d: %d orphans with %d references", round, len(orphans), s.Status().References)
		}
		orphans[0].Close()
		if got := s.Status().Objects; got != round+1 {
			t.Fatalf("round %d: %d objects", round, got)
		}
	}
	s.Close()
	if now := countFDs(t); now > fds {
		t.Errorf("%d descriptors before, %d after", fds, now)
	}
}

func countFDs(t testing.TB) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// What a successor is told is checked, though its teller is trusted: a fault there must not become one here.
func TestHandoffIsChecked(t *testing.T) {
	memory := func() int {
		m, err := segment.Create(segment.Linux{}, 4096)
		if err == nil {
			err = m.Fix()
		}
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		fd, err := m.Dup()
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	good := func() (handoff.Catalog, *handoff.Object) {
		o := &handoff.Object{Segment: 3, Offset: 64}
		o.Record.ID, o.Record.SizeBytes, o.Record.Tenant, o.Record.Class = object.NewID(), 4000, "a", object.Named
		return handoff.Catalog{NextSegment: 3, Segments: []handoff.Segment{{ID: 3, Bytes: 4096, Tenant: "a"}}}, o
	}
	fds := countFDs(t)
	one := func() []int { return []int{memory()} }
	for what, spoil := range map[string]func(*handoff.Catalog, *handoff.Object) []int{
		"nothing":           func(*handoff.Catalog, *handoff.Object) []int { return one() },
		"no descriptor":     func(*handoff.Catalog, *handoff.Object) []int { return nil },
		"one too many":      func(*handoff.Catalog, *handoff.Object) []int { return append(one(), memory()) },
		"another size":      func(c *handoff.Catalog, _ *handoff.Object) []int { c.Segments[0].Bytes = 8192; return one() },
		"not given yet":     func(c *handoff.Catalog, _ *handoff.Object) []int { c.NextSegment = 2; return one() },
		"beyond the end":    func(_ *handoff.Catalog, o *handoff.Object) []int { o.Offset = 128; return one() },
		"offset overflows":  func(_ *handoff.Catalog, o *handoff.Object) []int { o.Offset = 1<<64 - 64; return one() },
		"no such segment":   func(_ *handoff.Catalog, o *handoff.Object) []int { o.Segment = 2; return one() },
		"another tenant's":  func(_ *handoff.Catalog, o *handoff.Object) []int { o.Record.Tenant = "b"; return one() },
		"no such class":     func(_ *handoff.Catalog, o *handoff.Object) []int { o.Record.Class = 9; return one() },
		"the zero id":       func(_ *handoff.Catalog, o *handoff.Object) []int { o.Record.ID = object.ID{}; return one() },
		"an empty one's":    func(_ *handoff.Catalog, o *handoff.Object) []int { o.Record.SizeBytes = 0; return one() },
		"an object of none": func(_ *handoff.Catalog, o *handoff.Object) []int { o.Segment = 0; return one() },
		"twice":             func(c *handoff.Catalog, o *handoff.Object) []int { c.Objects = o.AppendTo(nil); return one() },
		"cut short": func(c *handoff.Catalog,
			_ *handoff.Object) []int {
			c.Objects = []byte{9, 0, 0, 0, 1}
			return one()
		},
		"a segment twice": func(c *handoff.Catalog, _ *handoff.Object) []int {
			c.Segments = append(c.Segments, c.Segments[0])
			return append(one(), memory())
		},
		"segment number 0":    func(c *handoff.Catalog, _ *handoff.Object) []int { c.Segments[0].ID = 0; return one() },
		"a closed descriptor": func(*handoff.Catalog, *handoff.Object) []int { return []int{-1} },
		"no memfd": func(*handoff.Catalog, *handoff.Object) []int {
			fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			return []int{fd}
		},
	} {
		catalog, o := good()
		came := spoil(&catalog, o)
		catalog.Objects = o.AppendTo(catalog.Objects)
		l, err := handoff.New(catalog, came)
		if err == nil {
			var s *Store
			if s, err = New(Options{CapacityBytes: 1 << 20, Handoff: l}); err == nil {
				s.Close()
			}
		}
		if (err == nil) != (what == "nothing") || err != nil && !errors.Is(err, object.ErrProtocol) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if now := countFDs(t); now > fds {
		t.Errorf("%d descriptors before, %d after", fds, now)
	}
}

// What an object is shared with is charged after a handover as before it, and given back once.
func TestGrantsAreChargedAfterHandover(t *testing.T) {
	opts := Options{CapacityBytes: 32 << 20, SegmentBytes: 1 << 20}
	s := newStore(t, opts)
	c := connect(t, s, "a")
	id := filled(t, c, Spec{SizeBytes: 1000, Class: object.Named, Name: "shared"}, 1)
	others := []string{"uid:1", "uid:2", "uid:3", "uid:4", "uid:5", "uid:6"}
	for _, who := range others {
		if err := c.Grant(id, "", who, false); err != nil {
			t.Fatal(err)
		}
	}
	s.Leave()
	c.Close()
	unmapWriters(c)
	s = handOver(t, s, opts)
	charge := func() uint64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.objects[id].charge
	}
	if e := (&entry{}); charge() != e.recordBytes("shared", nil)+uint64(len(others)*grantBytes) {
		t.Errorf("the record is charged %d bytes with %d grants", charge(), len(others))
	}
	c = connect(t, s, "a")
	for _, who := range others {
		if err := c.Grant(id, "", who, true); err != nil {
			t.Fatal(err)
		}
	}
	if e := (&entry{}); charge() != e.recordBytes("shared", nil) {
		t.Errorf("the record is charged %d bytes without grants", charge())
	}
}
