package conn

import (
	"errors"
	"slices"
	"testing"

	"tendril/store/object"
)

// The daemon is asked for 64 MiB at once, for less where there is no more, and is given back what has long been free.
func TestGrant(t *testing.T) {
	d := &fakeDaemon{t: t, counts: true}
	c := New(options(d, newSink(), newSink()))
	for range 1000 {
		if err := c.ReserveDevice(64 << 10); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(d.reserved, []uint64{GrantBytes}) {
		t.Errorf("for 1000 small buffers the daemon was asked for %v", d.reserved)
	}
	d.quota = 2*GrantBytes + 5
	if err := c.ReserveDevice(2*GrantBytes + 5 - 1000*(64<<10)); err != nil {
		t.Error(err)
	}
	if err := c.ReserveDevice(1); !errors.Is(err, object.ErrQuota) {
		t.Errorf("beyond the quota: %v", err)
	}
	want := []uint64{GrantBytes, 2*GrantBytes + 5}
	if !slices.Equal(d.reserved, want) {
		t.Errorf("the daemon was asked for %v", d.reserved)
	}
	c.ReturnDevice(5)
	if !slices.Equal(d.reserved, want) {
		t.Error("a little was given back")
	}
	c.ReturnDevice(1 << 60)
	if want = append(want, GrantBytes); !slices.Equal(d.reserved, want) {
		t.Errorf("the daemon heard %v, want %v", d.reserved, want)
	}
}

// A daemon that does not count allows everything, and hears of nothing.
func TestNoGrant(t *testing.T) {
	d := &fakeDaemon{t: t}
	c := New(options(d, newSink(), newSink()))
	for _, n := range []uint64{1, 1 << 40} {
		if err := c.ReserveDevice(n); err != nil {
			t.Error(err)
		}
	}
	c.ReturnDevice(1 << 40)
	if d.reserved != nil {
		t.Errorf("it was asked for %v", d.reserved)
	}
}
