package store

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// What is lent is the object's own memory, for somebody else: the lender keeps the reference, and nothing to map.
func TestLendGivesTheObjectsMemoryAndAReference(t *testing.T) {
	s := newStore(t, Options{})
	c, other := connect(t, s, "x"), connect(t, s, "x")
	id := filled(t, other, Spec{SizeBytes: 5000, Class: object.Named, Name: "lent"}, 7)
	h, err := c.Lend(object.ID{}, "lent")
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(h.FD)
	if flags, err := unix.FcntlInt(uintptr(h.FD), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("descriptor flags %#x, %v: it would be inherited", flags, err)
	}
	got := make([]byte, h.Size)
	if n, err := unix.Pread(h.FD, got, int64(h.Ref.Offset)); h.ID != id || n != 5000 || err != nil {
		t.Fatalf("%+v: %d bytes, %v", h, n, err)
	}
	want := make([]byte, 5000)
	fillPattern(want, 7)
	if string(got) != string(want) {
		t.Error("not the object's bytes")
	}
	if info, err := c.Stat(id, ""); err != nil || info.Refs != 1 {
		t.Errorf("%+v, %v: want one reference", info, err)
	}
	// A deleted object lives on for its borrower, and ends with the reference.
	if err := other.Delete(id, ""); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Pread(h.FD, got, int64(h.Ref.Offset)); n != 5000 || err != nil || string(got) != string(want) {
		t.Errorf("after the delete: %d bytes, %v", n, err)
	}
	if err := c.Release(id); err != nil {
		t.Error(err)
	}
	if _, err := c.Lend(id, ""); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("lent again: %v", err)
	}
}

func TestLendRefusesWhatGetRefuses(t *testing.T) {
	s := newStore(t, Options{})
	c, stranger := connect(t, s, "x"), connect(t, s, "y")
	id := sealedObject(t, c, Spec{SizeBytes: 100, Class: object.Named, Name: "mine"})
	open, err := c.Create(Spec{SizeBytes: 100})
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(open)
	empty := sealedObject(t, c, Spec{Class: object.Named, Name: "empty"})
	gone := connect(t, s, "x")
	gone.Close()
	for name, try := range map[string]struct {
		c    *Conn
		id   object.ID
		want error
	}{
		"unsealed": {c, open.ID, object.ErrNotSealed}, "nobody's": {c, object.ID{1}, object.ErrNotFound},
		"another tenant's": {stranger, id, object.ErrPermission}, "of a closed connection": {gone, id, errConnClosed},
	} {
		if h, err := try.c.Lend(try.id, ""); !errors.Is(err, try.want) {
			t.Errorf("%s: %+v, %v, want %v", name, h, err, try.want)
		}
	}
	if h, err := c.Lend(empty, ""); err != nil || h.FD != -1 || h.Size != 0 {
		t.Errorf("empty: %+v, %v", h, err)
	}
	if info, err := c.Stat(id, ""); err != nil || info.Refs != 1 { // its maker's
		t.Errorf("%+v, %v: what failed left references", info, err)
	}
}

// What is on disk is not lent before it is back.
func TestLendOfWhatIsAway(t *testing.T) {
	s := newStore(t, spillOptions(t.TempDir()))
	c := connect(t, s, "x")
	ids := fillBeyond(t, c, 30)
	away := object.ID{}
	for _, id := range ids {
		if info, err := c.Stat(id, ""); err == nil && info.State == object.Spilled {
			away = id
		}
	}
	if away.IsZero() {
		t.Fatal("nothing was spilled")
	}
	if h, err := c.Lend(away, ""); !errors.Is(err, ErrAway) {
		t.Fatalf("%+v, %v", h, err)
	}
	waitFor(t, func() bool { // others leave for it, once their memory is swept
		sweepAll(c)
		err := c.Await(t.Context(), away, "")
		if err != nil && !errors.Is(err, object.ErrFull) {
			t.Fatal(err)
		}
		return err == nil
	})
	h, err := c.Lend(away, "")
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(h)
	if err := c.Release(away); err != nil {
		t.Error(err)
	}
}
