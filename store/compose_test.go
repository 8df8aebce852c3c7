package store

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"tendril/store/object"
)

func compose(t testing.TB, c *Conn, spec Spec, parts ...object.ID) object.ID {
	t.Helper()
	var members []object.Member
	for i, id := range parts {
		members = append(members, object.Member{Name: fmt.Sprint("part", i), ID: id})
	}
	id, err := c.Compose(spec, members)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func release(t testing.TB, c *Conn, ids ...object.ID) {
	t.Helper()
	for _, id := range ids {
		if err := c.Release(id); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCompositeKeepsItsMembers(t *testing.T) {
	s := newStore(t, Options{})
	c := connect(t, s, "a")
	a, b := sealedObject(t, c, Spec{SizeBytes: 10}),
		sealedObject(t, c, Spec{SizeBytes: 20, Class: object.Named, Name: "b"})
	inner := compose(t, c, Spec{}, a, b)
	outer := compose(t, c, Spec{Class: object.Named, Name: "tree", Meta: []byte(`{"kind":"pair"}`)}, inner, a)
	release(t, c, a, b, inner, outer)
	if err := c.Delete(b, ""); err != nil {
		t.Fatal(err)
	}
	info, err := c.Stat(b, "")
	if err != nil || info.Name != "" || info.Class != object.Ephemeral {
		t.Fatalf("a deleted member: %+v, %v", info, err)
	}
	if _, err := c.GetName("b"); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("its name: %v", err)
	}
	h, err := c.Get(b)
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(h)
	release(t, c, b)
	if info, err = c.Stat(object.ID{}, "tree"); err != nil || len(info.Members) != 2 ||
		info.Members[0] != (object.Member{Name: "part0", ID: inner}) {
		t.Errorf("%+v, %v", info.Members, err)
	}
	if err := c.Delete(outer, ""); err != nil {
		t.Fatal(err)
	}
	if st := s.Status(); st.Objects != 0 || st.UsedBytes != 0 || st.TableBytes != 0 {
		t.Errorf("left: %+v", st)
	}
}

func TestCompositeReferencesKeepMembersAfterDelete(t *testing.T) {
	s := newStore(t, Options{})
	c, other := connect(t, s, "a"), connect(t, s, "a")
	a := sealedObject(t, c, Spec{SizeBytes: 10})
	tree := compose(t, c, Spec{Class: object.Named, Name: "tree"}, a)
	release(t, c, a, tree)
	if _, err := other.Get(tree); err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(tree, ""); err != nil {
		t.Fatal(err)
	}
	h, err := other.Get(a)
	if err != nil {
		t.Fatalf("a member of a composite that is held: %v", err)
	}
	closeHandle(h)
	other.Close()
	if st := s.Status(); st.Objects != 0 {
		t.Errorf("left: %+v", st)
	}
}

func TestCompositeRefusals(t *testing.T) {
	s := newStore(t, Options{})
	c, stranger := connect(t, s, "a"), connect(t, s, "b")
	a, theirs := sealedObject(t, c, Spec{SizeBytes: 1}), sealedObject(t, stranger, Spec{SizeBytes: 1})
	h, err := c.Create(Spec{SizeBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(h)
	one := func(id object.ID) []object.Member { return []object.Member{{Name: "x", ID: id}} }
	for what, bad := range map[string]struct {
		spec    Spec
		members []object.Member
		want    error
	}{
		"no member":     {Spec{}, nil, object.ErrInvalid},
		"too many":      {Spec{}, make([]object.Member, object.MaxMembers+1), object.ErrInvalid},
		"bytes":         {Spec{SizeBytes: 1}, one(a), object.ErrInvalid},
		"no name":       {Spec{}, []object.Member{{ID: a}}, object.ErrInvalid},
		"a name twice":  {Spec{}, append(one(a), one(a)...), object.ErrInvalid},
		"not there":     {Spec{}, one(object.NewID()), object.ErrNotFound},
		"unsealed":      {Spec{}, one(h.ID), object.ErrNotSealed},
		"somebody's":    {Spec{}, one(theirs), object.ErrPermission},
		"no directory":  {Spec{Class: object.Persisted}, one(a), object.ErrUnsupported},
		"a nameless":    {Spec{Class: object.Named}, one(a), object.ErrInvalid},
		"ttl of no end": {Spec{Class: object.TTL}, one(a), object.ErrInvalid},
	} {
		if _, err := c.Compose(bad.spec, bad.members); !errors.Is(err, bad.want) {
			t.Errorf("%s: %v, want %v", what, err, bad.want)
		}
	}
	before := s.Status()
	tree := a
	for depth := 0; ; depth++ {
		next, err := c.Compose(Spec{}, one(tree))
		if err != nil {
			if !errors.Is(err, object.ErrUnsupported) || depth != object.MaxDepth {
				t.Errorf("at depth %d: %v", depth, err)
			}
			break
		}
		tree = next
	}
	wide, all := a, 1
	for {
		var members []object.Member
		for i := range 100 {
			members = append(members, object.Member{Name: fmt.Sprint(i), ID: wide})
		}
		next, err := c.Compose(Spec{}, members)
		if err != nil {
			if !errors.Is(err, object.ErrUnsupported) {
				t.Error(err)
			}
			break
		}
		if wide, all = next, all*100+1; all > object.MaxTree {
			t.Fatalf("a tree of %d objects", all)
		}
	}
	c.Close()
	stranger.Close()
	waitFor(t, func() bool { return s.Status().Objects == 0 }) // large trees are taken apart afterwards
	if before.Objects != 3 {
		t.Errorf("before %+v", before)
	}
}

func TestCompositeIsSharedAsAWhole(t *testing.T) {
	s := newStore(t, Options{})
	c, reader := connect(t, s, "uid:1"), connect(t, s, "uid:2")
	a := sealedObject(t, c, Spec{SizeBytes: 10})
	tree := compose(t, c, Spec{}, compose(t, c, Spec{}, a))
	if err := c.Grant(tree, "", "uid:2", false); err != nil {
		t.Fatal(err)
	}
	h, err := reader.Get(a)
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(h)
	if err := c.Grant(tree, "", "uid:2", true); err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Get(a); !errors.Is(err, object.ErrPermission) {
		t.Errorf("after the grant's end: %v", err)
	}
}

func TestPersistedComposite(t *testing.T) {
	dir := t.TempDir()
	s := newStore(t, Options{SpillDir: dir})
	c := connect(t, s, "a")
	loose := sealedObject(t, c, Spec{SizeBytes: 3})
	if _, err := c.Compose(Spec{Class: object.Persisted, Name: "t"},
		[]object.Member{{Name: "x", ID: loose}}); !errors.Is(err, object.ErrInvalid) {
		t.Errorf("a member that is not persisted: %v", err)
	}
	kept := sealedObject(t, c, Spec{SizeBytes: 9, Class: object.Persisted, Name: "kept"})
	gone := sealedObject(t, c, Spec{SizeBytes: 8, Class: object.Persisted, Name: "gone"})
	inner := compose(t, c, Spec{Class: object.Persisted}, gone)
	compose(t, c, Spec{Class: object.Persisted, Name: "t"}, inner, kept)
	if err := c.Delete(gone, ""); err != nil {
		t.Fatal(err)
	}
	c.Close()
	s.Close()

	s = newStore(t, Options{SpillDir: dir})
	c = connect(t, s, "a")
	info, err := c.Stat(object.ID{}, "t")
	if err != nil || len(info.Members) != 2 || info.Fault != "" {
		t.Fatalf("after a restart: %+v, %v", info, err)
	}
	h, err := c.Wait(context.Background(), gone, "")
	if err != nil {
		t.Fatalf("a deleted member after a restart: %v", err)
	}
	closeHandle(h)
	release(t, c, gone)
	if err := c.Delete(object.ID{}, "t"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Stat(gone, ""); err != nil { // inner has it
		t.Error(err)
	}
	if err := c.Delete(inner, ""); err != nil {
		t.Fatal(err)
	}
	if list := c.List("", true); len(list) != 1 || list[0].ID != kept {
		t.Errorf("left: %+v", list)
	}
	c.Close()
	s.Close()
	s = newStore(t, Options{SpillDir: dir})
	if st := s.Status(); st.Objects != 1 || len(st.Damaged) > 0 {
		t.Errorf("after another restart: %+v", st)
	}
}

func TestFilledBySeveral(t *testing.T) {
	s := newStore(t, Options{})
	creator, a, b := connect(t, s, "a"), connect(t, s, "a"), connect(t, s, "a")
	h, err := creator.Create(Spec{SizeBytes: 8192, Shared: true, Class: object.Named, Name: "whole"})
	if err != nil {
		t.Fatal(err)
	}
	defer closeHandle(h)
	for i, c := range []*Conn{a, b} {
		id, name := h.ID, ""
		if i == 1 {
			id, name = object.ID{}, "whole"
		}
		part, err := c.Fill(id, name)
		if err != nil || part.ID != h.ID || part.Size != 8192 || part.FD < 0 {
			t.Fatalf("%+v, %v", part, err)
		}
		closeHandle(part)
		if _, err := c.Fill(id, name); !errors.Is(err, object.ErrExists) {
			t.Errorf("joined twice: %v", err)
		}
	}
	if err := creator.Seal(h.ID, false); !errors.Is(err, object.ErrBusy) {
		t.Errorf("sealed while others fill: %v", err)
	}
	if err := a.Filled(h.ID); err != nil {
		t.Error(err)
	}
	if err := a.Filled(h.ID); !errors.Is(err, object.ErrNotFound) {
		t.Error(err)
	}
	soon, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if err := creator.AwaitFilled(soon, h.ID); !errors.Is(err, object.ErrTimeout) {
		t.Error(err)
	}
	b.Close() // in the middle of it
	if err := creator.AwaitFilled(context.Background(), h.ID); err != nil {
		t.Error(err)
	}
	if err := creator.Seal(h.ID, false); !errors.Is(err, object.ErrAborted) {
		t.Errorf("sealed what was half filled: %v", err)
	}
	if err := creator.Forgive(h.ID); err != nil {
		t.Error(err)
	}
	if err := creator.Seal(h.ID, false); err != nil {
		t.Error(err)
	}
	if _, err := a.Fill(h.ID, ""); !errors.Is(err, object.ErrSealed) {
		t.Errorf("joined after the seal: %v", err)
	}
	if _, err := a.Fill(object.ID{}, "whole"); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("joined by name after the seal: %v", err)
	}
}

func TestFillRefusals(t *testing.T) {
	s := newStore(t, Options{})
	creator, other, stranger := connect(t, s, "a"), connect(t, s, "a"), connect(t, s, "b")
	alone, err := creator.Create(Spec{SizeBytes: 10})
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(alone)
	if _, err := other.Fill(alone.ID, ""); !errors.Is(err, object.ErrPermission) {
		t.Errorf("joined one that is not shared: %v", err)
	}
	h, err := creator.Create(Spec{SizeBytes: 10, Shared: true, Name: "n"})
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(h)
	if _, err := stranger.Fill(h.ID, ""); !errors.Is(err, object.ErrPermission) {
		t.Errorf("another tenant: %v", err)
	}
	if _, err := stranger.Fill(object.ID{}, "n"); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("another tenant, by name: %v", err)
	}
	if _, err := creator.Fill(h.ID, ""); !errors.Is(err, object.ErrExists) {
		t.Errorf("the creator: %v", err)
	}
	part, err := other.Fill(h.ID, "")
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(part)
	creator.Close() // takes the object along
	if err := other.Filled(h.ID); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("an object that is gone: %v", err)
	}
	if err := other.Forget(part.Ref.Segment); err != nil {
		t.Error(err)
	}
	nothingCharged(t, s)
	if st := s.Status(); st.Objects != 0 {
		t.Errorf("left: %+v", st)
	}
}
