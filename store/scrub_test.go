package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tendril/store/object"
	"tendril/store/spill"
)

// scrubbed does a whole pass, step by step.
func scrubbed(t *testing.T, c *Conn, all bool) (sum object.ScrubReport) {
	t.Helper()
	for from := ""; ; from = sum.Next {
		step, err := c.Scrub(context.Background(), all, from)
		if err != nil {
			t.Fatal(err)
		}
		sum.Add(step)
		if sum.Next == "" {
			return sum
		}
	}
}

// spoil writes into a sealed object's memory, as its creator can who keeps the mapping.
func spoil(t *testing.T, c *Conn, id object.ID, at uint64) {
	t.Helper()
	c.s.mu.Lock()
	e := c.s.objects[id]
	segment, off := e.seg.id, e.off
	c.s.mu.Unlock()
	m, ok := writers.Load(mappingKey{c, segment})
	if !ok {
		t.Fatal("the creator has no mapping")
	}
	m.(interface{ Bytes() []byte }).Bytes()[off+at] ^= 1
}

// flipOnDisk turns a bit of an object's file.
func flipOnDisk(t *testing.T, dir string, id object.ID, at int64) {
	t.Helper()
	path := filepath.Join(dir, id.String()+".bytes")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

func wantDamage(t *testing.T, r object.ScrubReport, id object.ID, where string) {
	t.Helper()
	if len(r.Damaged) != 1 || r.Damaged[0].ID != id || r.Damaged[0].Where != where ||
		!strings.Contains(r.Damaged[0].Why, id.String()) {
		t.Fatalf("want object %s damaged in %s, got %+v", id, where, r)
	}
}

// What is written into an object after its seal is found where checksums were asked for; nobody gets it after that, and
// it does not go to disk under a checksum that says that all is well.
func TestChecksumAtTheSeal(t *testing.T) {
	s := newStore(t, spillOptions(t.TempDir()))
	c := connect(t, s, "uid:1")
	const size = 3<<20/2 + 5
	spec := named("n", size)
	spec.Checksum = true
	id := filled(t, c, spec, 7)
	if info, err := c.Stat(id, ""); err != nil || !info.Checksum {
		t.Errorf("%+v, %v", info, err)
	}
	if r := scrubbed(t, c, false); r.Objects != 1 || r.MemoryBytes != size || r.New != 0 || r.Damages() != 0 {
		t.Errorf("a sound object: %+v", r)
	}
	wantPattern(t, c, id, size, 7)
	spoil(t, c, id, 1<<20+3)
	if err := c.Update(id, "", Change{Persist: true}); !errors.Is(err, object.ErrStorage) ||
		!strings.Contains(err.Error(), "damaged") {
		t.Errorf("to disk: %v", err)
	}
	if left := filesIn(t, s.opts.SpillDir); len(left) != 0 {
		t.Errorf("on disk there are %v", left)
	}
	wantDamage(t, scrubbed(t, c, false), id, "memory")
	_, err := c.Get(id)
	if !errors.Is(err, object.ErrStorage) || !strings.Contains(err.Error(), id.String()) {
		t.Errorf("a damaged object is given: %v", err)
	}
	if _, err := c.Open(id, ""); !errors.Is(err, object.ErrStorage) {
		t.Errorf("a damaged object is read: %v", err)
	}
}

// An object without checksums gets them with the first scrub.
func TestScrubMakesChecksums(t *testing.T) {
	s := newStore(t, spillOptions(t.TempDir()))
	c, other := connect(t, s, "uid:1"), connect(t, s, "uid:2")
	id := filled(t, c, named("n", 5000), 7)
	foreign := filled(t, other, named("n", 300), 8)
	filled(t, other, named("none", 0), 8)
	if r := scrubbed(t, c, false); r.Objects != 1 || r.New != 1 || r.MemoryBytes != 5000 {
		t.Errorf("one's own: %+v", r)
	}
	if r := scrubbed(t, c, true); r.Objects != 3 || r.New != 1 || r.MemoryBytes != 5300 || r.Damages() != 0 {
		t.Errorf("everybody's: %+v", r)
	}
	spoil(t, c, id, 64)
	spoil(t, other, foreign, 1)
	wantDamage(t, scrubbed(t, other, false), foreign, "memory")
	if r := scrubbed(t, c, true); r.Damages() != 2 {
		t.Errorf("everybody's: %+v", r)
	}
}

// A bad file is found: where the memory is sound it is written anew, else a get says what is wrong.
func TestScrubOnDisk(t *testing.T) {
	opts := spillOptions(t.TempDir())
	s := newStore(t, opts)
	c := connect(t, s, "uid:1")
	const size = 5 << 20 / 4
	spec := named("n", size)
	spec.Class = object.Persisted
	id := filled(t, c, spec, 9)
	if r := scrubbed(t, c, false); r.DiskBytes != size || r.MemoryBytes != size || r.Damages() != 0 {
		t.Errorf("a sound object: %+v", r)
	}
	flipOnDisk(t, opts.SpillDir, id, 1<<20+7)
	wantDamage(t, scrubbed(t, c, false), id, "disk")
	if r := scrubbed(t, c, false); r.DiskBytes != size || r.Damages() != 0 {
		t.Errorf("after it was written anew: %+v", r)
	}
	s.Close()
	s = newStore(t, opts)
	c = connect(t, s, "uid:1")
	flipOnDisk(t, opts.SpillDir, id, 3)
	wantDamage(t, scrubbed(t, c, true), id, "disk")
	if _, err := contents(t, c, id); !errors.Is(err, object.ErrStorage) || !strings.Contains(err.Error(), id.String()) {
		t.Errorf("a get: %v", err)
	}
}

// A file that is sound in itself and another object's is not what was sealed.
func TestRestoreComparesWithTheSeal(t *testing.T) {
	opts := spillOptions(t.TempDir())
	s := newStore(t, opts)
	c := connect(t, s, "uid:1")
	spec := named("n", 5000)
	spec.Class = object.Persisted
	id := filled(t, c, spec, 9)
	s.Close()
	s = newStore(t, opts)
	c = connect(t, s, "uid:1")
	dir, err := spill.Open(opts.SpillDir, 1<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := dir.Read(id.String())
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.Write(r, spill.Source{Bytes: make([]byte, 5000)}, false, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := contents(t, c, id); !errors.Is(err, object.ErrStorage) || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("a get: %v", err)
	}
}

// A pass over more objects than a step has, while some go and come.
func TestScrubGoesOnFromItsPlace(t *testing.T) {
	s := newStore(t, spillOptions(t.TempDir()))
	c := connect(t, s, "uid:1")
	var ids []object.ID
	for range scrubStepObjects + 10 {
		ids = append(ids, filled(t, c, Spec{SizeBytes: 64, Class: object.TTL, TTL: time.Hour}, 1))
	}
	first, err := c.Scrub(context.Background(), true, "")
	if err != nil || first.Objects != scrubStepObjects || first.Next == "" {
		t.Fatalf("the first step: %+v, %v", first, err)
	}
	if err := c.Delete(ids[scrubStepObjects-1], ""); err != nil { // where the next one goes on
		t.Fatal(err)
	}
	second, err := c.Scrub(context.Background(), true, first.Next)
	if err != nil || second.Objects != 10 || second.Next != "" {
		t.Fatalf("the second step: %+v, %v", second, err)
	}
	if _, err := c.Scrub(context.Background(), true, "x@y"); !errors.Is(err, object.ErrInvalid) {
		t.Errorf("a place that is none: %v", err)
	}
	done, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := c.Scrub(done, true, ""); !errors.Is(err, object.ErrTimeout) {
		t.Errorf("a scrub that is given up: %v", err)
	}
}

// The store scrubs by itself where it is told to, and says so.
func TestScrubByItself(t *testing.T) {
	opts := spillOptions(t.TempDir())
	opts.ScrubEvery, opts.ScrubRate = time.Millisecond, 1<<40
	found := make(chan object.Damage, 1)
	opts.OnDamage = func(d object.Damage) {
		select {
		case found <- d:
		default:
		}
	}
	s := newStore(t, opts)
	_, id := spoiled(t, s)
	if d := <-found; d.ID != id || d.Where != "memory" {
		t.Errorf("found %+v", d)
	}
	waitFor(t, func() bool {
		last := s.Status().Scrub.Last
		return last != nil && last.By == "daemon" && last.Objects == 1
	})
}

// spoiled gives a connection with an object that has checksums and whose first byte in memory changed after its seal.
func spoiled(t *testing.T, s *Store) (*Conn, object.ID) {
	t.Helper()
	c := connect(t, s, "uid:1")
	spec := named("n", 5000)
	spec.Checksum = true
	id := filled(t, c, spec, 9)
	spoil(t, c, id, 0)
	return c, id
}

// What a scrub finds that somebody asked for is told of, too.
func TestScrubTellsOfDamage(t *testing.T) {
	opts := spillOptions(t.TempDir())
	var found []object.Damage
	opts.OnDamage = func(d object.Damage) { found = append(found, d) }
	s := newStore(t, opts)
	c, id := spoiled(t, s)
	if r, err := c.Scrub(t.Context(), false, ""); err != nil || len(r.Damaged) != 1 || len(found) != 1 ||
		found[0].ID != id {
		t.Errorf("%+v, %v; told of %+v", r, err, found)
	}
}

// Checksums go with the objects to the store that takes over.
func TestChecksumsAreHandedOver(t *testing.T) {
	s := newStore(t, spillOptions(t.TempDir()))
	c := connect(t, s, "uid:1")
	spec := named("n", 5000)
	spec.Checksum = true
	id := filled(t, c, spec, 9)
	next := handOver(t, s, s.opts)
	info, err := connect(t, next, "uid:1").Stat(id, "")
	if err != nil || !info.Checksum {
		t.Errorf("after the takeover: %+v, %v", info, err)
	}
}

// A seal that fails after the checksums were made leaves an object that its creator may still fill: what counts are the
// bytes at the seal that succeeds.
func TestChecksumAtTheSecondSeal(t *testing.T) {
	opts := spillOptions(t.TempDir())
	opts.TenantSpillBytes = 64 << 10
	s := newStore(t, opts)
	c := connect(t, s, "uid:1")
	const size = 40 << 10
	other := filled(t, c, Spec{SizeBytes: size, Class: object.Persisted, Name: "other"}, 1)
	h, err := c.Create(Spec{SizeBytes: size, Class: object.Persisted, Name: "n", Checksum: true})
	if err != nil {
		t.Fatal(err)
	}
	memory := writable(t, c, h)[h.Ref.Offset:][:size]
	fillPattern(memory, 2)
	if err := c.Seal(h.ID, false); !errors.Is(err, object.ErrQuota) {
		t.Fatalf("the disk is full: %v", err)
	}
	fillPattern(memory, 3)
	if err := c.Delete(other, ""); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return s.Status().DiskBytes == 0 })
	if err := c.Seal(h.ID, false); err != nil {
		t.Fatal(err)
	}
	if r := scrubbed(t, c, false); r.Damages() != 0 {
		t.Errorf("%+v", r)
	}
	wantPattern(t, c, h.ID, size, 3)
}
