package workers

import (
	"errors"
	"strings"
	"testing"

	"tendril/store/object"
)

// TestDeviceMemoryIsTheTenants: what a tenant's workers reserve counts together, for other tenants it does not, and it
// is free with its worker.
func TestDeviceMemoryIsTheTenants(t *testing.T) {
	p, _ := newPool(t, func(o *Options) { o.DeviceBytes = func(string) uint64 { return 1000 } }, "good")
	a, _ := open(t, p, 1, me())
	b, _ := open(t, p, 2, me())
	stranger := "uid:stranger"
	c, _ := open(t, p, 3, stranger)
	reserve := func(session, id, bytes uint64, want error) {
		t.Helper()
		err := p.Reserve(session, id, bytes)
		if !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("%d bytes for session %d: %v, want %v", bytes, session, err, want)
		}
		if want == object.ErrQuota &&
			!(strings.Contains(err.Error(), "1000 bytes") && strings.Contains(err.Error(), "--quota-device")) {
			t.Errorf("the error says neither the quota nor what to do: %v", err)
		}
	}
	reserve(1, a.ID, 700, nil)
	reserve(2, b.ID, 400, object.ErrQuota)
	reserve(2, b.ID, 300, nil)
	reserve(3, c.ID, 1000, nil)
	reserve(1, a.ID, 701, object.ErrQuota)
	reserve(1, a.ID, 1<<64-1, object.ErrQuota)
	reserve(1, a.ID, 100, nil)
	reserve(2, b.ID, 900, nil)
	reserve(2, a.ID, 1, object.ErrNotFound) // another session's
	reserve(1, 999, 1, object.ErrNotFound)
	var sum uint64
	for _, w := range p.Workers() {
		sum += w.DeviceBytes
	}
	if sum != 2000 {
		t.Errorf("%d bytes are shown", sum)
	}
	if err := p.Release(2, b.ID); err != nil {
		t.Fatal(err)
	}
	reserve(1, a.ID, 1000, nil)
}
