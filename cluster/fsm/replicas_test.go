package fsm

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"testing"

	"tendril/store/object"
)

func replicated(t *testing.T) *driver {
	t.Helper()
	d := &driver{t: t, s: New()}
	d.want(nil, node(1, 10, 0), 1)
	d.want(nil, node(2, 20, 0), 1)
	d.want(nil, &Publish{Object: Object{ID: uuid(5), Tenant: "t", Name: "n", SizeBytes: 1,
		Replicas: []Replica{{uuid(1), uuid(10)}}}}, 2)
	return d
}

func TestSetReplicas(t *testing.T) {
	d := replicated(t)
	d.want(object.ErrNotFound, &SetReplicas{uuid(6), "t", 2}, 3)
	d.want(object.ErrPermission, &SetReplicas{uuid(5), "other", 2}, 3)
	d.want(object.ErrInvalid, &SetReplicas{uuid(5), "t", 0}, 3)
	d.want(object.ErrInvalid, &SetReplicas{uuid(5), "t", MaxReplicas + 1}, 3)
	if n := len(d.s.Replicated()); n != 0 {
		t.Errorf("%d objects want replicas", n)
	}
	d.want(nil, &SetReplicas{uuid(5), "t", MaxReplicas}, 3) // more than there are nodes
	o, _ := d.s.Object(uuid(5))
	if list := d.s.Replicated(); o.Wanted != MaxReplicas || o.Epoch != 2 || len(list) != 1 || list[0].ID != uuid(5) {
		t.Errorf("%+v, %+v", o, list)
	}
	d.want(object.ErrBusy, &AddReplica{uuid(5), 1, Replica{uuid(2), uuid(20)}}, 4)
	d.want(nil, &AddReplica{uuid(5), 2, Replica{uuid(2), uuid(20)}}, 4)
	d.want(object.ErrPermission, &AddReplica{uuid(5), 3, Replica{uuid(2), uuid(21)}}, 4)
}

// TestDeleteWaitsForEveryReplica: the name is free at once, and may be another object's, but the record stays until
// each node that has a replica said that it deleted it.
func TestDeleteWaitsForEveryReplica(t *testing.T) {
	d := replicated(t)
	one, two := Replica{uuid(1), uuid(10)}, Replica{uuid(2), uuid(20)}
	d.want(nil, &AddReplica{uuid(5), 1, two}, 3)
	d.want(object.ErrPermission, &Delete{uuid(5), "other", one}, 3)
	d.want(nil, &Delete{uuid(5), "t", one}, 3)
	d.want(object.ErrNotFound, &Delete{uuid(5), "t", one}, 3)
	d.want(object.ErrNotFound, &Unpublish{ID: uuid(5), Tenant: "t"}, 3)
	d.want(object.ErrNotFound, &SetReplicas{uuid(5), "t", 2}, 3)
	o, gone := d.s.Deleted(uuid(5))
	if _, found := d.s.Object(uuid(5)); found || !gone || len(o.Replicas) != 1 || o.Replicas[0] != two {
		t.Fatalf("found %v, deleted %v: %+v", found, gone, o)
	}
	d.want(object.ErrNotFound, &AddReplica{uuid(5), o.Epoch, one}, 3)
	d.want(object.ErrNotFound, &Publish{Object: Object{ID: uuid(5), Tenant: "t", Name: "m",
		Replicas: []Replica{one}}}, 3)
	d.want(nil, &Publish{Object: Object{ID: uuid(6), Tenant: "t", Name: "n", Replicas: []Replica{one}}}, 3)
	d.want(nil, &RemoveReplica{uuid(5), o.Epoch, two}, 4)
	if _, still := d.s.Deleted(uuid(5)); still {
		t.Error("the object is still there, though no node has it")
	}
	if o, ok := d.s.ObjectByName("t", "n"); !ok || o.ID != uuid(6) {
		t.Errorf("the next object of the name: %+v, %v", o, ok)
	}
	d.want(nil, &Delete{uuid(6), "t", one}, 5) // its only replica: nothing to wait for
	if n := d.s.Counts(); n["objects"] != 0 || n["deleted"] != 0 {
		t.Errorf("%v", n)
	}
}

// TestSnapshotVersion1: a snapshot of a release before replica counts is read.
func TestSnapshotVersion1(t *testing.T) {
	d := replicated(t)
	b := snapshotBody{version: 1, now: d.s.now, nodes: d.s.Nodes(),
		objects: slices.Collect(d.s.objects.all())}
	c := &codec{buf: make([]byte, snapshotHeader)}
	b.walk(c)
	copy(c.buf, snapshotMagic)
	binary.LittleEndian.PutUint64(c.buf[8:], 1)
	binary.LittleEndian.PutUint64(c.buf[16:], uint64(len(c.buf)-snapshotHeader))
	sum := sha256.Sum256(c.buf)
	old := append(c.buf, sum[:]...)
	s, err := Restore(bytes.NewReader(old))
	if err != nil {
		t.Fatal(err)
	}
	if o, ok := s.ObjectByName("t", "n"); !ok || o.Wanted != 0 || o.Deleted || len(o.Replicas) != 1 {
		t.Errorf("%+v, %v", o, ok)
	}
	binary.LittleEndian.PutUint64(old[8:], snapshotVersion+1)
	if _, err := Restore(bytes.NewReader(old)); !errors.Is(err, object.ErrVersion) {
		t.Errorf("a newer version: %v", err)
	}
}

// TestSnapshotAltersNothing: what a snapshot encodes may be read meanwhile (with -race).
func TestSnapshotAltersNothing(t *testing.T) {
	d := replicated(t)
	frozen := d.s.Freeze()
	var all sync.WaitGroup
	all.Go(func() {
		if _, err := frozen.Encode(); err != nil {
			t.Error(err)
		}
	})
	for range 100 {
		if len(d.s.Objects()) == 0 {
			t.Error("there are no objects")
		}
	}
	all.Wait()
}
