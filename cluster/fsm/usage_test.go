package fsm

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"tendril/store/object"
)

// One tenant cannot fill the table of published objects for all.
func TestOneTenantCannotFillTheObjects(t *testing.T) {
	d := &driver{t: t, s: New()}
	d.want(nil, node(1, 10, 0), 1)
	numbered := func(n int) (id UUID) { id[0], id[1], id[2], id[3] = 7, byte(n>>16), byte(n>>8), byte(n); return id }
	n, share := 0, Usage{Objects: 1000, Bytes: MaxUsage.Bytes}
	add := func(tenant string) {
		d.want(nil, &Publish{Object: Object{ID: numbered(n), Tenant: tenant, Name: fmt.Sprint(n),
			Meta: make([]byte, 100), Class: uint8(object.Named), Replicas: []Replica{{uuid(1), uuid(10)}}}}, 2)
		n++
	}
	may := func(tenant string, most Usage) error { return d.s.MayPublish(tenant, "new", uuid(99), 0, most) }
	for d.s.usage["loud"].Objects < share.Objects {
		if err := may("loud", share); err != nil {
			t.Fatal(n, err)
		}
		add("loud")
	}
	if err := may("loud", share); !errors.Is(err, object.ErrQuota) {
		t.Errorf("beyond its share: %v", err)
	}
	if err := errors.Join(may("quiet", MaxUsage), d.s.MayPublish("loud", "0", uuid(99), 0, MaxUsage),
		d.s.MayPublish("loud", "new", numbered(0), 0, MaxUsage)); err != nil {
		t.Errorf("another tenant, a name again, an object again: %v", err)
	}
	if err := may("loud", Usage{Objects: n + 1, Bytes: d.s.usage["loud"].Bytes}); !errors.Is(err, object.ErrQuota) {
		t.Errorf("beyond its bytes: %v", err)
	}
	for d.s.usage["second"].Objects < 1000 {
		add("second")
	}
	// As if there were so many: to make them takes long.
	real, usage := d.s.objects.count, d.s.usage["second"]
	d.s.objects.count, d.s.usage["second"] = MaxObjects-MaxObjects/8, Usage{Objects: MaxObjects / 64}
	if err := may("second", MaxUsage); !errors.Is(err, object.ErrFull) {
		t.Errorf("the last eighth for a tenant that has much: %v", err)
	}
	if err := may("quiet", MaxUsage); err != nil {
		t.Errorf("the last eighth for a tenant that has nothing: %v", err)
	}
	d.s.objects.count, d.s.usage["second"] = real, usage
	snap, err := d.s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Restore(bytes.NewReader(snap))
	if err != nil || !reflect.DeepEqual(again.usage, d.s.usage) {
		t.Errorf("restored: %v, %v, want %v", again.usage, err, d.s.usage)
	}
	for i := range n {
		d.want(nil, &Unpublish{ID: numbered(i), Tenant: map[bool]string{true: "loud", false: "second"}[i < share.Objects]},
			3)
	}
	if len(d.s.usage) != 0 {
		t.Errorf("nothing is published, but counted: %v", d.s.usage)
	}
}
