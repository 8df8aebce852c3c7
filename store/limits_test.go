package store

import (
	"testing"

	"tendril/store/object"
)

// A tenant's own bound counts in place of the one for all from the moment on that it is set; what it has stays.
func TestTenantLimits(t *testing.T) {
	s := newStore(t, Options{CapacityBytes: 64 << 20, TenantBytes: 8 << 20})
	c, other := connect(t, s, "ann"), connect(t, s, "bob")
	create := func(c *Conn, mib uint64) (object.ID, error) {
		h, err := c.Create(Spec{SizeBytes: mib << 20, Class: object.Ephemeral})
		if err == nil {
			closeHandle(h)
		}
		return h.ID, err
	}
	_, err := create(c, 16)
	wantErr(t, err, object.ErrQuota)
	s.SetTenantLimits(map[string]TenantLimits{"ann": {Bytes: 24 << 20}, "late": {Bytes: 2 << 20}})
	id, err := create(c, 16)
	if err != nil {
		t.Fatal(err)
	}
	_, err = create(other, 16)
	wantErr(t, err, object.ErrQuota)
	_, err = create(connect(t, s, "late"), 4)
	wantErr(t, err, object.ErrQuota)
	s.SetTenantLimits(nil)
	_, err = create(c, 1)
	wantErr(t, err, object.ErrQuota)
	if _, err := c.Stat(id, ""); err != nil {
		t.Errorf("what it had: %v", err)
	}
}

// A bound beyond the capacity is the capacity, not what others have.
func TestTenantLimitBeyondTheCapacity(t *testing.T) {
	s := newStore(t, Options{CapacityBytes: 64 << 20, TenantBytes: 8 << 20})
	s.SetTenantLimits(map[string]TenantLimits{"ann": {Bytes: 1 << 30}})
	h, err := connect(t, s, "ann").Create(Spec{SizeBytes: 16 << 20, Class: object.Ephemeral})
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(h)
}
