package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"tendril/store/object"
)

// takeSegments makes objects with memory of their own until the store refuses, and gives them and the refusal.
func takeSegments(t *testing.T, c *Conn, spec Spec) (ids []object.ID, refusal error) {
	t.Helper()
	for i := range 1000 {
		spec.Name = fmt.Sprint(c.tenant.name, i)
		h, err := c.Create(spec)
		if err != nil {
			return ids, err
		}
		closeHandle(h)
		if err := c.Seal(h.ID, true); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, h.ID)
	}
	t.Fatal("nothing is refused")
	return nil, nil
}

// Each segment with memory is a descriptor of the daemon's: one tenant takes all it can, and another still works.
func TestSegmentsAreBounded(t *testing.T) {
	const all = 64
	for try, spill := range []bool{false, true} {
		opts := Options{CapacityBytes: 64 << 20, Segments: all}
		if spill {
			opts.SpillDir = t.TempDir()
		}
		s := newStore(t, opts)
		before := memfds(t)
		own := Spec{SizeBytes: 4096, Class: object.Named, Own: true}
		loud, louder, quiet := connect(t, s, "loud"), connect(t, s, "louder"), connect(t, s, "quiet")
		ids, err := takeSegments(t, loud, own)
		wantErr(t, err, object.ErrQuota)
		if len(ids) != all/2 || !strings.Contains(err.Error(), "--quota-segments") {
			t.Errorf("try %d: %d segments, then %v", try, len(ids), err)
		}
		more, err := takeSegments(t, louder, own)
		wantErr(t, err, object.ErrLimit)
		if len(ids)+len(more) != all-all/8 || !strings.Contains(err.Error(), "ulimit") || object.IsShort(err) {
			t.Errorf("try %d: %d and %d segments, then %v", try, len(ids), len(more), err)
		}
		if has := memfds(t) - before; has > all {
			t.Errorf("try %d: %d descriptors of memory, at most %d may be", try, has, all)
		}
		st := s.Status()
		if st.OpenSegments != all-all/8 || st.SegmentLimit != all || st.TenantSegmentLimit != all/2 {
			t.Errorf("try %d: status %d of %d, %d of a tenant", try, st.OpenSegments, st.SegmentLimit,
				st.TenantSegmentLimit)
		}
		filled(t, quiet, Spec{SizeBytes: 100}, 1)
		if !spill {
			continue
		}
		// what nobody uses makes way on disk
		for _, id := range ids {
			release(t, loud, id)
		}
		sweepAll(loud)
		own.Name = "one more"
		h, err := loud.Create(own)
		if err != nil {
			t.Fatal(err)
		}
		closeHandle(h)
		if st := s.Status(); st.SpilledObjects == 0 {
			t.Error("no object went to disk for another's memory")
		}
		mustAgree(t, s, false)
	}
}

// Segments that come to nothing are not counted.
func TestRefusedSegmentsAreNotCounted(t *testing.T) {
	s := newStore(t, Options{CapacityBytes: 1 << 20, Segments: 8})
	c := connect(t, s, "x")
	for range 20 {
		if _, err := c.Create(Spec{SizeBytes: 1 << 20, Own: true}); !errors.Is(err, object.ErrFull) {
			t.Fatal(err)
		}
	}
	for range 20 {
		release(t, c, sealedObject(t, c, Spec{SizeBytes: 4096, Own: true}))
	}
	if st := s.Status(); st.OpenSegments != 0 {
		t.Errorf("%d segments are open, and nobody has any", st.OpenSegments)
	}
}
