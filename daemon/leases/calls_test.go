package leases

import (
	"errors"
	"slices"
	"testing"
	"time"

	"tendril/store/object"
)

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestWhoWaitsIsTold: when devices become free the first in the line for whom they suffice are told, and nobody else.
func TestWhoWaitsIsTold(t *testing.T) {
	x := New(0, time.Now)
	both := []string{"a", "b"}
	lease := func(ticket string, n int, devices ...string) *Lease {
		t.Helper()
		l, err := x.Grant(Request{Tenant: "t", Ticket: ticket, Count: n, Devices: devices})
		if err != nil && !errors.Is(err, object.ErrBusy) {
			t.Fatal(err)
		}
		return l
	}
	a, b := lease("", 1, "a"), lease("", 1, "b")
	if lease("two", 2, both...) != nil || lease("one", 1, both...) != nil || lease("c", 1, "c") == nil ||
		lease("also c", 1, "c") != nil {
		t.Fatal("who waits, and who does not")
	}
	two, one, c := x.Worth("two", "t"), x.Worth("one", "t"), x.Worth("also c", "t")
	x.Drop(a)
	if closed(two) || closed(one) {
		t.Error("told too early, or out of order")
	}
	x.Drop(b)
	if !closed(two) || closed(one) || closed(c) {
		t.Error("the first in the line is not told, or others are")
	}
	if !closed(x.Worth("two", "t")) {
		t.Error("not told of what became free before")
	}
	if l := lease("two", 2, both...); l == nil {
		t.Fatal("not served")
	} else {
		x.Drop(l)
	}
	if !closed(one) {
		t.Error("the next one is not told")
	}
	if !closed(x.Worth("nobody", "t")) {
		t.Error("who is in no line waits")
	}

	if err := x.Share(7, "u", []string{"d"}); err != nil {
		t.Fatal(err)
	}
	over := Request{ID: "o", Tenant: "t", Count: 2, Devices: []string{"d", "e"}, Order: 1}
	if _, _, err := x.Take(over, true); err != nil {
		t.Fatal(err)
	}
	x.Keep("o", nil)
	if ids := x.Calls(); len(ids) > 0 {
		t.Errorf("%q: what it gives back itself", ids)
	}
	x.Leave(7)
	<-x.Called()
	if ids := x.Calls(); !slices.Equal(ids, []string{"o"}) {
		t.Errorf("%q", ids)
	}
	x.End("o")
	if ids := x.Calls(); len(ids) > 0 {
		t.Errorf("%q: it waits no more", ids)
	}
}

// TestToldAtTheEndOfPatience: whoever has been forgotten is told, and begins anew.
func TestToldAtTheEndOfPatience(t *testing.T) {
	now := time.Unix(1, 0)
	x := New(0, func() time.Time { return now })
	if _, err := x.Grant(Request{Tenant: "t", Devices: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Grant(Request{Tenant: "t", Ticket: "w", Devices: []string{"a"}}); !errors.Is(err, object.ErrBusy) {
		t.Fatal(err)
	}
	worth := x.Worth("w", "t")
	now = now.Add(Patience + 1)
	x.Freed()
	if !closed(worth) {
		t.Error("it waits in no line")
	}
}
