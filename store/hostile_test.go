package store

import (
	"errors"
	"testing"
	"time"

	"tendril/store/object"
)

// TestSetClockMovesNoTTL: an object's end is a reading of the monotonic clock, which setting the machine's clock leaves
// alone. On disk it is the wall's, the only one that a restart shares; that one is honoured as it reads.
func TestSetClockMovesNoTTL(t *testing.T) {
	s := newStore(t, Options{SpillDir: t.TempDir()})
	c := connect(t, s, "x")
	id := filled(t, c, Spec{SizeBytes: 10, Class: object.TTL, TTL: time.Hour, Name: "hour"}, 1)
	brief := 30 * time.Minute
	other := filled(t, c, Spec{SizeBytes: 10, Class: object.Named, Name: "changed"}, 1)
	if err := c.Update(other, "", Change{TTL: &brief}); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.unlock()
	for _, id := range []object.ID{id, other} {
		// Round(0) strips the monotonic reading, Time.String shows it
		if at := s.objects[id].expires; at == at.Round(0) {
			t.Errorf("the end of object %s is the wall clock's: %v", id, at)
		}
	}
	jumped := time.Now().Add(48 * time.Hour).Round(0) // what the wall would say; the janitor never asks it
	s.expire(time.Now())
	if len(s.expiries) != 2 || s.expiries[0].expires.After(jumped) {
		t.Errorf("%d objects wait for their end", len(s.expiries))
	}
}

// TestTwoCreatorsOfOneName: both may fill, the first to seal has the name, the other keeps its object and may seal it
// under another.
func TestTwoCreatorsOfOneName(t *testing.T) {
	s := newStore(t, Options{})
	a, b := connect(t, s, "x"), connect(t, s, "x")
	var handles [2]Handle
	for i, c := range []*Conn{a, b} {
		h, err := c.Create(Spec{SizeBytes: 10, Name: "n", Class: object.Named})
		if err != nil {
			t.Fatal(err)
		}
		closeHandle(h)
		handles[i] = h
	}
	wantErr(t, a.Seal(handles[1].ID, false), object.ErrPermission)
	if err := b.Seal(handles[1].ID, false); err != nil {
		t.Fatal(err)
	}
	wantErr(t, a.Seal(handles[0].ID, false), object.ErrExists)
	wantErr(t, b.Seal(handles[1].ID, false), object.ErrSealed)
	if h, err := a.GetName("n"); err != nil || h.ID != handles[1].ID {
		t.Errorf("the name is %v's, %v", h.ID, err)
	} else {
		closeHandle(h)
	}
	if err := a.Abort(handles[0].ID); err != nil {
		t.Errorf("who lost the name keeps its object: %v", err)
	}
}

// TestDeletingWhatOthersHold: the name and the place in the table go at once, the memory with the last reference; what
// is deleted twice is not found.
func TestDeletingWhatOthersHold(t *testing.T) {
	s := newStore(t, Options{SpillDir: t.TempDir()})
	maker, holder := connect(t, s, "x"), connect(t, s, "x")
	h, err := maker.Create(named("n", 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	m := mapHandle(t, h, true)
	fillPattern(m.Bytes()[:1<<20], 5)
	if err := errors.Join(maker.Seal(h.ID, false), maker.Release(h.ID)); err != nil {
		t.Fatal(err)
	}
	got, err := holder.Get(h.ID)
	if err != nil {
		t.Fatal(err)
	}
	view := mapHandle(t, got, false)
	if err := maker.Delete(h.ID, ""); err != nil {
		t.Fatal(err)
	}
	wantErr(t, maker.Delete(h.ID, ""), object.ErrNotFound)
	wantErr(t, holder.Bind(h.ID, "again", false), object.ErrNotFound)
	_, err = holder.GetName("n")
	wantErr(t, err, object.ErrNotFound)
	filled(t, maker, named("n", 1<<20), 9) // the name is free; the memory is not
	want := make([]byte, 1<<20)
	fillPattern(want, 5)
	if string(view.Bytes()[:1<<20]) != string(want) {
		t.Error("what a connection holds was altered after its deletion")
	}
	if err := holder.Release(h.ID); err != nil {
		t.Fatal(err)
	}
	wantErr(t, holder.Release(h.ID), object.ErrNotFound)
}
