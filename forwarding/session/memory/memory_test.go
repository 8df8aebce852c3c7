package memory

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/session/node"
	"tendril/store/object"
)

// fakeSource is a daemon with a bound of memory. It shares one piece of memory between all segments: nothing is
// written there.
type fakeSource struct {
	bytes     []byte
	left      uint64
	live      map[*node.Segment]bool
	forgotten []uint64
	lines     []string
	err       error
}

func newFakeSource(left uint64) *fakeSource {
	return &fakeSource{bytes: make([]byte, lastSlabBytes), left: left, live: map[*node.Segment]bool{}}
}

func (f *fakeSource) AllocSegment(size uint64, spare func()) (*node.Segment, error) {
	if size > f.left && f.err == nil { // what was kept counts, before anybody is waited for
		spare()
	}
	switch {
	case f.err != nil:
		return nil, f.err
	case size > f.left:
		return nil, fmt.Errorf("%w: %d bytes", object.ErrFull, size)
	}
	f.left -= size
	s := &node.Segment{ID: uint64(len(f.live) + 1), Bytes: f.bytes[:size]}
	f.live[s] = true
	return s, nil
}

func (f *fakeSource) FreeSegment(s *node.Segment) {
	if !f.live[s] {
		panic("a segment is freed twice")
	}
	f.live[s] = false
	f.left += uint64(len(s.Bytes))
}

func (f *fakeSource) ForgetSegment(s *node.Segment) { f.forgotten = append(f.forgotten, s.ID) }
func (f *fakeSource) Log(line string)               { f.lines = append(f.lines, line) }

func (f *fakeSource) count() (n int) {
	for _, live := range f.live {
		if live {
			n++
		}
	}
	return n
}

type fakeQueue struct {
	done  uint64
	asked int
}

func (q *fakeQueue) Passed(seq uint64) bool { return q.done >= seq }
func (q *fakeQueue) RequestCompletionMark() { q.asked++ }

func allocate(t *testing.T, s *Slabs, size, align uint64, own bool) *Place {
	t.Helper()
	p, status := s.Alloc(size, align, own)
	if status != cl.SUCCESS {
		t.Fatalf("%d bytes: %d", size, status)
	}
	if p.Offset%align != 0 || uint64(len(p.Bytes(size))) != size {
		t.Fatalf("%d bytes aligned to %d lie at %d", size, align, p.Offset)
	}
	return p
}

// TestPlacesDoNotMeet: whatever is taken and given back, and however late its queue passes, no byte has two owners.
func TestPlacesDoNotMeet(t *testing.T) {
	f := newFakeSource(1 << 40)
	s, q, rng := New(f), &fakeQueue{}, rand.New(rand.NewPCG(1, 2))
	type owned struct {
		p   *Place
		seq uint64 // not 0: given back, until the queue is there
	}
	var all []owned
	for seq := uint64(1); seq < 4000; seq++ {
		all = slices.DeleteFunc(all, func(x owned) bool { return x.seq != 0 && q.Passed(x.seq) })
		p := allocate(t, s, 1+rng.Uint64N(64<<10), 64, false)
		for _, x := range all {
			if x.p.Segment == p.Segment && x.p.Offset < p.Offset+p.Size && p.Offset < x.p.Offset+x.p.Size {
				t.Fatalf("[%d, +%d) and [%d, +%d) meet", x.p.Offset, x.p.Size, p.Offset, p.Size)
			}
		}
		all = append(all, owned{p: p})
		if i := rng.IntN(len(all)); all[i].seq == 0 && len(all) > 100 {
			all[i].seq = seq
			s.FreeAfter(all[i].p, Marks{{Queue: q, Seq: seq}})
		}
		if rng.IntN(200) == 0 {
			q.done = seq
		}
	}
	if q.asked == 0 {
		t.Error("the queue was never asked for its progress")
	}
}

// TestKeptSegmentsAreReused: an empty segment serves the next of its size, and goes back when memory is short.
func TestKeptSegmentsAreReused(t *testing.T) {
	f := newFakeSource(8 << 20)
	s := New(f)
	a := allocate(t, s, 4<<20, 1, false)
	if a.Shared() {
		t.Error("a large place shares its segment")
	}
	s.FreeNow(a)
	if b := allocate(t, s, 4<<20-100, 1, true); b.Segment != a.Segment {
		t.Error("a new segment though one is kept")
	} else {
		s.FreeAfter(b, nil)
	}
	c := allocate(t, s, 8<<20, 1, true) // there is room only without the kept one
	if f.count() != 1 || !slices.Equal(f.forgotten, []uint64{a.Segment.ID}) {
		t.Errorf("%d segments, forgotten %v", f.count(), f.forgotten)
	}
	if _, status := s.Alloc(1<<20, 1, true); status != cl.MEM_OBJECT_ALLOCATION_FAILURE {
		t.Errorf("beyond what there is: %d", status)
	}
	if len(f.lines) != 0 {
		t.Errorf("a full store is told of: %q", f.lines)
	}
	f.err = errors.New("no daemon")
	if _, status := s.Alloc(1<<20, 1, true); status != cl.MEM_OBJECT_ALLOCATION_FAILURE || !slices.Equal(f.lines,
		[]string{"tendril: a buffer of 1048576 bytes was not made: no daemon"}) { // not for want of memory
		t.Errorf("without a daemon: %d, %q", status, f.lines)
	}
	s.Disown(c.Segment)
	s.Forget(c.Segment)
	s.Close()
	if f.count() != 1 {
		t.Errorf("%d segments are left, and one is an object of the store", f.count())
	}
}

// TestManySegmentsAreNotKept: more than keptBytes go back to the daemon.
func TestManySegmentsAreNotKept(t *testing.T) {
	f := newFakeSource(1 << 40)
	s := New(f)
	var all []*Place
	for range keptBytes/lastSlabBytes + 2 {
		all = append(all, allocate(t, s, lastSlabBytes, 1, true))
	}
	for _, p := range all {
		s.FreeAfter(p, nil)
	}
	if n := f.count(); n != keptBytes/lastSlabBytes {
		t.Errorf("%d segments are kept", n)
	}
}

// TestSlabsEnd: slabs that are empty are kept for other uses, but for the last.
func TestSlabsEnd(t *testing.T) {
	f := newFakeSource(1 << 40)
	s := New(f)
	var all []*Place
	for f.count() < 3 {
		all = append(all, allocate(t, s, ownSegmentBytes-1, 1, false))
	}
	for _, p := range all {
		s.FreeNow(p)
	}
	if len(s.list) != 1 || len(s.kept) != 2 {
		t.Errorf("%d slabs and %d kept segments", len(s.list), len(s.kept))
	}
}

// TestSlabThatDoesNotFit: memory that was got for a buffer, and cannot hold it, is not lost.
func TestSlabThatDoesNotFit(t *testing.T) {
	f := newFakeSource(1 << 40)
	s := New(f)
	for range 4 {
		if p, status := s.Alloc(64, 3, false); status != cl.OUT_OF_HOST_MEMORY || p != nil {
			t.Fatalf("%v, status %d: 3 is no alignment", p, status)
		}
	}
	if f.count() != 1 || len(s.kept) != 1 {
		t.Errorf("%d segments, of which %d are kept for others", f.count(), len(s.kept))
	}
}

// TestStaging: the chunks and what is lent, from the first use to the end.
func TestStaging(t *testing.T) {
	f := newFakeSource(PoolBytes)
	s := New(f)
	var p Staging
	if p.Lend(s, 64, 64) != nil {
		t.Error("memory before the pool is open")
	}
	open := func() api.Status {
		return p.Open(s, func() api.Status {
			i, ok := p.Take()
			if _, more := p.Take(); i != 0 || !ok || more {
				t.Error("prepare has more than chunk 0")
			}
			p.Put(i)
			return cl.SUCCESS
		})
	}
	for range 2 {
		if status := open(); status != cl.SUCCESS {
			t.Fatal(status)
		}
	}
	var held []int
	for i, ok := p.Acquire(); ok; i, ok = p.Acquire() {
		held = append(held, i)
	}
	if len(held) != MaxHeld || p.Held() != MaxHeld {
		t.Errorf("commands have %d chunks", len(held))
	}
	for range ChunkCount - MaxHeld {
		held = append(held, p.Wait())
	}
	slices.Sort(held)
	if !slices.Equal(held, []int{0, 1, 2, 3, 4, 5}) {
		t.Errorf("chunks %v", held)
	}
	for _, i := range held[:MaxHeld] {
		p.Release(i)
	}
	if len(p.Chunk(5)) != ChunkBytes || p.Offset(5) != 5*ChunkBytes {
		t.Error("chunk 5 lies elsewhere")
	}
	lent, q := p.Lend(s, LentBytes, 64), &fakeQueue{}
	if lent == nil || lent.Offset != ChunkCount*ChunkBytes || p.Lend(s, 1, 1) != nil || !p.Lending(s) {
		t.Fatalf("what is lent: %+v", lent)
	}
	s.FreeAfter(lent, Marks{{Queue: q, Seq: 1}})
	p.Close(s, func() Marks { return Marks{{Queue: q, Seq: 1}} })
	if f.count() != 1 {
		t.Error("the segment went back though a command lies in it")
	}
	q.done = 1
	if s.Spare(); f.count() != 0 {
		t.Error("the segment did not go back")
	}
}

// TestStagingThatFails: without memory, and where the driver cannot pin it, the pool stays shut.
func TestStagingThatFails(t *testing.T) {
	for _, left := range []uint64{0, PoolBytes} {
		f := newFakeSource(left)
		s := New(f)
		var p Staging
		for range 2 {
			if status := p.Open(s, func() api.Status { return cl.OUT_OF_RESOURCES }); status == cl.SUCCESS {
				t.Error("open")
			}
		}
		if p.Lend(s, 1, 1) != nil {
			t.Error("lent")
		}
		if p.Close(s, func() Marks { return nil }); f.count() != 0 {
			t.Error("a segment is left")
		}
	}
}

// TestViews: a range is found where all of it lies in one place, and not once the place was taken out.
func TestViews(t *testing.T) {
	var views Views
	memory := make([]byte, 1000)
	seg := &node.Segment{ID: 1, Bytes: memory}
	first, second := &Place{Segment: seg, Offset: 100, Size: 200}, &Place{Segment: seg, Offset: 300, Size: 100}
	base := api.HostBytes(memory).Address()
	look := func(at, size uint64, want *Place) {
		t.Helper()
		p, offset := views.Find(base+uintptr(at), size)
		if p != want || p != nil && offset != at {
			t.Errorf("%d bytes at %d: in %v at %d, want %v", size, at, p, offset, want)
		}
	}
	look(100, 1, nil)
	views.Add(second, 100)
	views.Add(first, 200)
	look(99, 1, nil)
	look(100, 200, first)
	look(299, 1, first)
	look(299, 2, nil)
	look(300, 100, second)
	look(399, 1, second)
	look(400, 1, nil)
	look(150, math.MaxUint64, nil)
	views.Remove(first)
	look(100, 1, nil)
	look(300, 1, second)
	views.Remove(second)
	look(300, 1, nil)
}
