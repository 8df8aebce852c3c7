package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"tendril/store/object"
)

// spilled makes objects of these sizes and as many others as it takes for those to be on disk alone.
func spilled(t *testing.T, c *Conn, sizes ...uint64) []object.ID {
	t.Helper()
	ids := make([]object.ID, len(sizes))
	for i, size := range sizes {
		ids[i] = filled(t, c, Spec{SizeBytes: size, Class: object.Named, Name: fmt.Sprintf("spilled %d", i)}, byte(i))
	}
	waitFor(t, func() bool {
		filled(t, c, Spec{SizeBytes: 1 << 20, Class: object.TTL, TTL: time.Hour, Own: true}, 0)
		sweepAll(c)
		return allAway(t, c, ids)
	})
	return ids
}

func allAway(t *testing.T, c *Conn, ids []object.ID) bool {
	t.Helper()
	for _, id := range ids {
		if info, err := c.Stat(id, ""); err != nil {
			t.Fatal(err)
		} else if info.State != object.Spilled {
			return false
		}
	}
	return true
}

// bringBack gets an object from disk as a client does that sweeps; it stays referenced.
func bringBack(t *testing.T, c *Conn, id object.ID) (h Handle) {
	t.Helper()
	waitFor(t, func() bool {
		var err error
		if h, err = c.Wait(context.Background(), id, ""); err != nil && !errors.Is(err, object.ErrFull) {
			t.Fatal(err)
		}
		sweepAll(c)
		return err == nil
	})
	closeHandle(h)
	return h
}

// TestRestoreLeavesNeighbours brings an object that ends in the middle of a page back into a place that another one
// had, beside one that a client holds: in the same page, as long as the store placed them so.
func TestRestoreLeavesNeighbours(t *testing.T) {
	const large, small = 1_100_000, 1000
	s := newStore(t, Options{CapacityBytes: 24 << 20, SegmentBytes: 4 << 20, LargeBytes: 2 << 20,
		SpillDir: t.TempDir()})
	c := connect(t, s, "x")
	ids := spilled(t, c, large, small, large)
	first := bringBack(t, c, ids[0])
	bringBack(t, c, ids[1])
	if err := errors.Join(c.Delete(ids[0], ""), c.Release(ids[0])); err != nil { // its place is free again
		t.Fatal(err)
	}
	last := bringBack(t, c, ids[2])
	if last.Ref.Offset != first.Ref.Offset || last.Ref.SegmentBytes != first.Ref.SegmentBytes {
		t.Fatalf("the objects came back to %+v and %+v, which are not alike", first.Ref, last.Ref)
	}
	for i, id := range ids[1:] {
		want := make([]byte, []int{small, large}[i])
		fillPattern(want, byte(i+1))
		if got := bytesOf(t, s, "x", id); !bytes.Equal(got, want) {
			t.Errorf("object %d of %d bytes begins with % x, want % x", i+1, len(want), got[:8], want[:8])
		}
	}
}
