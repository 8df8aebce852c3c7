package leases

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril/store/object"
)

type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func rig() (*Table, *clock) {
	c := &clock{time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	return New(0, c.now), c
}

func grant(t *testing.T, table *Table, r Request) *Lease {
	t.Helper()
	l, err := table.Grant(r)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func refused(t *testing.T, err, want error, words ...string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%v, want %v", err, want)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q says nothing of %q", err, word)
		}
	}
}

func TestAloneUntilTheLastSessionEnds(t *testing.T) {
	table, _ := rig()
	both := []string{"a", "b"}
	l := grant(t, table, Request{Tenant: "ann", Holder: "train", Devices: both, Count: 1})
	if !slices.Equal(l.Devices, []string{"a"}) {
		t.Errorf("got %v, and a is the first that would do", l.Devices)
	}
	_, err := table.Grant(Request{Tenant: "bob", Devices: both})
	refused(t, err, object.ErrBusy, "the lease wants 2 devices, and 1 is free: ", "ann has one")
	refused(t, table.Share(7, "bob", []string{"a"}), object.ErrBusy, "ann")
	if err := table.Share(7, "bob", []string{"b"}); err != nil {
		t.Error(err)
	}
	_, err = table.Join(l.Token, "bob")
	refused(t, err, object.ErrNotFound)
	if same, err := table.Join(l.Token, "ann"); err != nil || same != l {
		t.Errorf("%v, %v", same, err)
	}
	table.Drop(l)
	if table.Taken("a") == "" {
		t.Error("it ended while a session uses it")
	}
	table.Drop(l)
	table.Drop(nil)
	if why := table.Taken("a"); why != "" {
		t.Error(why)
	}
	_, err = table.Join(l.Token, "ann")
	refused(t, err, object.ErrNotFound)
	_, err = table.Grant(Request{Tenant: "ann", Devices: both})
	refused(t, err, object.ErrBusy, "session 7 of bob")
	table.Leave(7)
	if l := grant(t, table, Request{Tenant: "ann", Devices: both}); len(l.Devices) != 2 || !l.Has("b") || l.Has("c") {
		t.Errorf("got %v", l.Devices)
	}
}

func TestFewerDevicesThanWanted(t *testing.T) {
	table, _ := rig()
	for _, x := range []struct {
		r    Request
		says string
	}{
		{Request{Devices: nil}, "the lease wants 1 device, and this node has none that matches"},
		{Request{Devices: []string{"a"}, Count: 2, Ticket: "x"}, "wants 2 devices, and this node has 1 that matches"},
		{Request{Devices: []string{"a", "b"}, Count: 3}, "wants 3 devices, and this node has 2 that match"},
	} {
		_, err := table.Grant(x.r)
		refused(t, err, object.ErrNoDevice, x.says)
	}
	if len(table.List()) > 0 {
		t.Error("somebody waits for what never comes")
	}
}

func TestFirstComeFirstServed(t *testing.T) {
	table, c := rig()
	l := grant(t, table, Request{Tenant: "ann", Devices: []string{"a"}})
	first := Request{Tenant: "bob", Devices: []string{"a", "b"}, Ticket: "1"} // wants both
	second := Request{Tenant: "eve", Devices: []string{"a", "b"}, Count: 1, Ticket: "2"}
	_, err := table.Grant(first)
	refused(t, err, object.ErrBusy)
	c.at = c.at.Add(time.Second)
	_, err = table.Grant(second) // b is free, and bob waits for it
	refused(t, err, object.ErrBusy, "bob waits")
	refused(t, table.Share(9, "ann", []string{"b"}), object.ErrBusy, "bob")
	_, err = table.Grant(Request{Tenant: "eve", Devices: []string{"a", "b"}, Count: 1, Ticket: "1"}) // bob's ticket
	refused(t, err, object.ErrBusy)
	if n := len(table.List()); n != 4 {
		t.Errorf("%d in the list", n)
	}
	table.Drop(l)
	got := grant(t, table, first)
	table.Drop(got)
	if l := grant(t, table, second); !slices.Equal(l.Devices, []string{"a"}) {
		t.Errorf("got %v", l.Devices)
	}
}

func TestWhoAsksNoMoreLosesThePlace(t *testing.T) {
	table, c := rig()
	l := grant(t, table, Request{Tenant: "ann", Devices: []string{"a"}})
	_, err := table.Grant(Request{Tenant: "bob", Devices: []string{"a"}, Ticket: "1"})
	refused(t, err, object.ErrBusy)
	table.Drop(l)
	if table.Taken("a") == "" {
		t.Error("bob's turn was given away")
	}
	c.at = c.at.Add(Patience)
	if table.Taken("a") == "" {
		t.Error("bob's turn was given away too soon")
	}
	c.at = c.at.Add(1)
	if why := table.Taken("a"); why != "" {
		t.Error(why)
	}
}

func TestLongestTime(t *testing.T) {
	c := &clock{time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	table := New(time.Minute, c.now)
	l := grant(t, table, Request{Tenant: "ann", Devices: []string{"a"}})
	c.at = c.at.Add(time.Minute - 1)
	if list := table.Over(); len(list) > 0 {
		t.Errorf("over too soon: %v", list)
	}
	if _, err := table.Join(l.Token, "ann"); err != nil {
		t.Error(err)
	}
	c.at = c.at.Add(1)
	if list := table.Over(); !slices.Equal(list, []*Lease{l}) || table.List()[0].Until != c.at {
		t.Errorf("%v are over at %v: %+v", list, c.at, table.List())
	}
	_, err := table.Join(l.Token, "ann")
	refused(t, err, object.ErrNotFound)
	if table.Taken("a") == "" {
		t.Error("it is given away while its sessions use it")
	}
}

func TestATenantsPlacesAreBounded(t *testing.T) {
	table, _ := rig()
	grant(t, table, Request{Tenant: "ann", Devices: []string{"a"}})
	ask := func(tenant string, i int) error {
		_, err := table.Grant(Request{Tenant: tenant, Devices: []string{"a"}, Ticket: fmt.Sprint(i)})
		return err
	}
	for i := range MaxWaiters {
		refused(t, ask("bob", i), object.ErrBusy)
	}
	refused(t, ask("bob", MaxWaiters), object.ErrLimit, "bob")
	refused(t, ask("bob", 3), object.ErrBusy) // has its place
	refused(t, ask("eve", 1), object.ErrBusy)
}

// Whatever is asked in whatever order, no device has two users one of whom is alone.
func TestNoDeviceIsLeasedTwice(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		table, c := rig()
		devices := []string{"a", "b", "c", "d"}
		var held []*Lease
		shares := map[uint64][]string{}
		some := func() []string {
			random.Shuffle(len(devices), func(i, k int) { devices[i], devices[k] = devices[k], devices[i] })
			return slices.Clone(devices[:1+random.IntN(len(devices))])
		}
		for step := range 300 {
			c.at = c.at.Add(time.Duration(random.IntN(3000)) * time.Millisecond)
			switch random.IntN(5) {
			case 0, 1:
				r := Request{Tenant: fmt.Sprint(random.IntN(3)), Devices: some(), Ticket: fmt.Sprint(random.IntN(6))}
				r.Count = random.IntN(len(r.Devices) + 1)
				if l, err := table.Grant(r); err == nil {
					held = append(held, l)
				}
			case 2:
				if s, list := uint64(step), some(); table.Share(s, "x", list) == nil {
					shares[s] = list
				}
			case 3:
				if len(held) > 0 {
					i := random.IntN(len(held))
					table.Drop(held[i])
					held = slices.Delete(held, i, i+1)
				}
			case 4:
				for s := range shares {
					table.Leave(s)
					delete(shares, s)
					break
				}
			}
			alone := map[string]int{}
			for _, l := range held {
				for _, d := range l.Devices {
					alone[d]++
				}
			}
			for _, list := range shares {
				for _, d := range list {
					if alone[d] > 0 {
						t.Fatalf("seed %d, step %d: %s is leased and shared", seed, step, d)
					}
				}
			}
			for d, n := range alone {
				if n > 1 {
					t.Fatalf("seed %d, step %d: %s is leased %d times", seed, step, d, n)
				}
			}
		}
	}
}
