package mapped

import (
	"testing"

	"tendril/forwarding/cl"
	"tendril/forwarding/session/memory"
	"tendril/forwarding/session/node"
)

// TestMapsAreTakenLatestFirst: two maps may have one address, and each unmap ends one.
func TestMapsAreTakenLatestFirst(t *testing.T) {
	var s Maps
	s.Add(Map{Address: 8, N: 1, Flags: cl.MAP_READ})
	s.Add(Map{Address: 16, N: 2, Flags: cl.MAP_READ})
	if s.Writable() {
		t.Error("a map for reading is writable")
	}
	s.Add(Map{Address: 8, N: 3, Flags: cl.MAP_WRITE})
	if !s.Writable() || s.Count() != 3 {
		t.Errorf("%d maps, writable %v", s.Count(), s.Writable())
	}
	for _, want := range []uint64{3, 1} {
		if m, ok := s.Take(8); !ok || m.N != want {
			t.Errorf("took %+v, %v", m, ok)
		}
	}
	if m, ok := s.Take(8); ok || s.Count() != 1 {
		t.Errorf("took %+v of nothing", m)
	}
}

func none(t *testing.T) func(*memory.Place) {
	return func(*memory.Place) { t.Error("shared memory is given back") }
}

// TestReleaseUnused: what nothing was ever mapped of is released without more, and shows nothing afterwards.
func TestReleaseUnused(t *testing.T) {
	var fresh, used Maps
	if !fresh.ReleaseUnused() || fresh.ReleaseUnused() {
		t.Error("an unused object is not released, or twice")
	}
	if fresh.Show(place(5000), 5000) || fresh.Shown() != nil {
		t.Error("a released object shows memory")
	}
	used.Add(Map{Address: 8, N: 1})
	used.Take(8)
	if used.ReleaseUnused() {
		t.Error("a used object is released as if it were not")
	}
	if used.Show(place(5000), 5000); used.Shown() == nil {
		t.Error("what was not released shows nothing")
	}
}

// TestShadow: it is made once, and stays as long as it is pinned.
func TestShadow(t *testing.T) {
	var s Maps
	if s.Shown() != nil || s.Segment() != nil {
		t.Error("a shadow that nobody asked for")
	}
	a, status := s.Shadow(5000)
	b, again := s.Shadow(5000)
	if status != cl.SUCCESS || again != cl.SUCCESS || len(a) != 5000 || &a[0] != &b[0] || &s.Shown()[0] != &a[0] {
		t.Fatalf("a shadow of %d bytes, status %d", len(a), status)
	}
	if s.Show(place(5000), 5000) {
		t.Error("a shadow is replaced")
	}
	s.Pin()
	s.Pin()
	s.Release().Free(none(t))
	s.Unpin().Free(none(t))
	if a[4999] = 1; s.Shown() == nil {
		t.Error("a pinned shadow is gone")
	}
	s.Unpin().Free(none(t))
	if s.Shown() != nil {
		t.Error("the shadow outlives its last pin")
	}
	if _, status := s.Shadow(1 << 62); status != cl.MAP_FAILURE {
		t.Errorf("more than any address space: %d", status)
	}
}

func place(size uint64) *memory.Place {
	return &memory.Place{Segment: &node.Segment{ID: 3, Bytes: make([]byte, size)}, Size: size}
}

// TestSharedShadow: shared memory is given back as such, unless a map shows it still.
func TestSharedShadow(t *testing.T) {
	for _, left := range []bool{false, true} {
		var s Maps
		p, freed := place(5000), 0
		if !s.Show(p, 5000) || s.Segment() != p.Segment {
			t.Fatal("the place is no shadow")
		}
		if left {
			s.Add(Map{Address: 8})
		}
		s.Release().Free(func(x *memory.Place) {
			if freed++; x != p {
				t.Error("another place is given back")
			}
		})
		if freed == 1 == left || s.Shown() != nil {
			t.Errorf("a map is left %v: given back %d times", left, freed)
		}
		if s.Show(p, 5000) {
			t.Error("a released object gets a shadow")
		}
	}
}
