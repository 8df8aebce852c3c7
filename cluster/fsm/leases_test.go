package fsm

import (
	"bytes"
	"testing"

	"tendril/store/object"
)

// leasing is a driver with the nodes 1 and 2 of incarnation 1.
func leasing(t *testing.T) *driver {
	d := &driver{t: t, s: New()}
	d.want(nil, node(1, 1, 0), 1)
	d.want(nil, node(2, 1, 0), 1)
	return d
}

func wish(id, home int, tenant string) Lease {
	return Lease{ID: uuid(id), Tenant: tenant, Node: uuid(home), Incarnation: uuid(1), Count: 1}
}

func granted(l Lease, keys ...string) *PutLease {
	l.Granted = true
	for _, k := range keys {
		l.Devices = append(l.Devices, LeaseDevice{uuid(2), k})
	}
	return &PutLease{l}
}

// A lease waits in its place, has its devices alone, and ends by itself, with its node, or with a start of that anew.
func TestLeases(t *testing.T) {
	d := leasing(t)
	d.want(object.ErrNotFound, granted(wish(10, 1, "ann"), "x"), 2) // it never asked
	for i, l := range []Lease{wish(10, 1, "ann"), wish(11, 2, "bob"), wish(12, 1, "eve")} {
		if r := d.want(nil, &PutLease{l}, int64(3+i)); r.Epoch != uint64(i+1) {
			t.Errorf("place %d of lease %d", r.Epoch, i)
		}
	}
	d.want(object.ErrExists, &PutLease{wish(10, 2, "ann")}, 6)
	d.want(nil, granted(wish(11, 2, "bob"), "x", "y"), 7)
	d.want(object.ErrBusy, granted(wish(10, 1, "ann"), "y"), 8)
	d.want(nil, granted(wish(10, 1, "ann"), "z"), 9)
	old := wish(13, 1, "ann")
	old.Incarnation = uuid(7)
	d.want(object.ErrPermission, &PutLease{old}, 10)
	if l, ok := d.s.Lease(uuid(10)); !ok || l.Since != 9 || l.Order != 1 || len(l.Devices) != 1 {
		t.Errorf("%+v, %v", l, ok)
	}

	d.want(nil, node(2, 2, 1), 11) // it starts anew: bob's program is gone, and z is free
	if list := d.s.Leases(); len(list) != 2 || list[0].Tenant != "ann" || len(list[0].Devices) != 0 {
		t.Errorf("%+v", list)
	}
	d.want(nil, &EndLeases{uuid(1), uuid(5)}, 12) // another incarnation than that which has them
	if len(d.s.Leases()) != 2 {
		t.Error("a node lost what its present incarnation has")
	}
	d.want(nil, &EndLease{uuid(12)}, 13)
	d.want(object.ErrNotFound, &EndLease{uuid(12)}, 14)
	d.want(nil, &EndLeases{uuid(1), uuid(1)}, 15)
	if list := d.s.Leases(); len(list) > 0 {
		t.Errorf("%+v are left", list)
	}
}

// Several leases end with one command; those that are not there are passed over.
func TestLeasesEndTogether(t *testing.T) {
	d := leasing(t)
	for i := range 3 {
		d.want(nil, &PutLease{wish(10+i, 1, "ann")}, int64(2+i))
	}
	changes, ends := d.s.LeaseChanges(), d.s.LeaseEnds()
	d.want(nil, &EndListedLeases{[]UUID{uuid(10), uuid(99), uuid(12), uuid(10)}}, 5)
	if list := d.s.Leases(); len(list) != 1 || list[0].ID != uuid(11) || d.s.LeaseChanges() != changes+2 ||
		d.s.LeaseEnds() != ends+2 {
		t.Errorf("%+v, %d changes, %d ends", list, d.s.LeaseChanges()-changes, d.s.LeaseEnds()-ends)
	}
}

// A tenant has its part of the table, and no more.
func TestOneTenantCannotFillTheLeases(t *testing.T) {
	d := leasing(t)
	id := func(i int) (u UUID) { u[0], u[1], u[2] = byte(i), byte(i>>8), 1; return u }
	for i := range MaxTenantLeases {
		l := wish(1, 1, "ann")
		l.ID = id(i)
		d.want(nil, &PutLease{l}, 2)
	}
	d.want(object.ErrLimit, &PutLease{wish(200, 1, "ann")}, 3)
	d.want(nil, &PutLease{wish(200, 1, "bob")}, 4)
}

// A snapshot of a release without leases is read.
func TestSnapshotVersion2(t *testing.T) {
	d := leasing(t)
	d.want(nil, &PutLease{wish(10, 1, "ann")}, 2)
	f := d.s.Freeze()
	f.body.version = 2
	raw, err := f.Encode()
	if err != nil {
		t.Fatal(err)
	}
	s, err := Restore(bytes.NewReader(raw))
	if err != nil || len(s.Nodes()) != 2 || len(s.Leases()) != 0 {
		t.Fatalf("%v", err)
	}
}
