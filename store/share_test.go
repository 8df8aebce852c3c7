package store

import (
	"bytes"
	"context"
	"testing"
	"time"

	"tendril/store/events"
	"tendril/store/object"
)

func TestGrants(t *testing.T) {
	s := newStore(t, spillOptions(t.TempDir()))
	a := connect(t, s, "uid:1")
	b, err := s.Connect(Owner{Tenant: "uid:2", Principals: []string{"uid:2", "gid:7"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	secret := filled(t, a, named("secret", 3000), 9)
	id := filled(t, a, named("shown", 3000), 5)
	held, err := a.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(held)
	_, err = b.Get(id)
	wantErr(t, err, object.ErrPermission)
	_, err = b.GetName("uid:1/shown")
	wantErr(t, err, object.ErrNotFound)
	wantErr(t, a.Grant(id, "", "everyone", false), object.ErrInvalid)
	wantErr(t, b.Grant(id, "", "all", false), object.ErrPermission)
	if err := a.Grant(object.ID{}, "shown", "gid:7", false); err != nil {
		t.Fatal(err)
	}
	h, err := b.GetName("uid:1/shown")
	if err != nil {
		t.Fatal(err)
	}
	if h.Ref.Segment == held.Ref.Segment {
		t.Error("the reader got a segment in which other objects lie")
	}
	m := mapHandle(t, h, false)
	all, want, hidden := m.Bytes(), make([]byte, 3000), make([]byte, 3000)
	fillPattern(want, 5)
	fillPattern(hidden, 9)
	if !bytes.Equal(all[h.Ref.Offset:][:3000], want) || bytes.Contains(all, hidden) {
		t.Error("the segment has not the object alone")
	}
	if list := b.ListWhere(Query{Shared: true}); len(list) != 1 || list[0].ID != id {
		t.Errorf("shared: %+v", list)
	}
	wantErr(t, b.Delete(id, ""), object.ErrPermission)
	wantErr(t, b.Bind(id, "mine", false), object.ErrPermission)
	wantErr(t, b.Update(id, "", Change{Persist: true}), object.ErrPermission)
	if err := a.Grant(id, "", "gid:7", true); err != nil {
		t.Fatal(err)
	}
	_, err = b.Get(id)
	wantErr(t, err, object.ErrPermission)
	if len(b.ListWhere(Query{Shared: true})) != 0 {
		t.Error("still listed after it was revoked")
	}
	for c := range map[*Conn]bool{a: true, b: true} {
		if err := c.Release(id); err != nil {
			t.Fatal(err)
		}
	}
	for _, gone := range []object.ID{id, secret} {
		if err := a.Delete(gone, ""); err != nil {
			t.Fatal(err)
		}
	}
	if s.usedRanges() != 0 {
		t.Errorf("%d ranges are still taken", s.usedRanges())
	}
}

func TestRenameIsAtomicAndWatched(t *testing.T) {
	s := newStore(t, Options{})
	c := connect(t, s, "x")
	w := c.Watch("n", nil)
	defer w.Close()
	one, two := filled(t, c, named("n1", 10), 1), filled(t, c, named("n2", 10), 2)
	wantErr(t, c.Rename("n1", "n2", false), object.ErrExists)
	wantErr(t, c.Rename("none", "n3", false), object.ErrNotFound)
	if err := c.Rename("n1", "n2", true); err != nil {
		t.Fatal(err)
	}
	if info, err := c.Stat(object.ID{}, "n2"); err != nil || info.ID != one {
		t.Errorf("%+v, %v", info, err)
	}
	_, err := c.Stat(two, "")
	wantErr(t, err, object.ErrNotFound)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for _, want := range []events.Event{
		{Kind: events.Sealed, ID: one, Name: "n1"}, {Kind: events.Sealed, ID: two, Name: "n2"},
		{Kind: events.Unnamed, ID: two, Name: "n2"}, {Kind: events.Unnamed, ID: one, Name: "n1"},
		{Kind: events.Named, ID: one, Name: "n2"},
	} {
		if ev, err := w.Next(ctx); err != nil || ev.Kind != want.Kind || ev.ID != want.ID || ev.Name != want.Name {
			t.Errorf("event %+v, %v, want %+v", ev, err, want)
		}
	}
	for range events.QueueEvents + 10 {
		filled(t, c, Spec{SizeBytes: 0, Class: object.Named, Name: "nx"}, 0)
		if err := c.Delete(object.ID{}, "nx"); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, func() bool { // or reading would make room for what the attendant has not handed over yet
		s.mu.Lock()
		defer s.mu.Unlock()
		return !c.tenant.attended
	})
	for range events.QueueEvents {
		if ev, err := w.Next(ctx); err != nil || ev.Kind == events.Lost {
			t.Fatalf("%+v, %v", ev, err)
		}
	}
	if ev, err := w.Next(ctx); err != nil || ev.Kind != events.Lost {
		t.Errorf("%+v, %v: a slow watcher must learn that it missed something", ev, err)
	}
}
