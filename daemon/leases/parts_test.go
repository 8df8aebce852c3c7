package leases

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// part asks for devices of a lease over nodes; those of this node that would do are a and b.
func part(id string, order uint64, count int) Request {
	return Request{ID: id, Token: "token of " + id, Order: order, Tenant: "ann", Devices: []string{"a", "b"}, Count: count}
}

// wantTake takes, and compares what is given and that the reason has these words; none: there must be no reason.
func wantTake(t *testing.T, table *Table, r Request, wait bool, devices []string, words ...string) {
	t.Helper()
	got, why, err := table.Take(r, wait)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, devices) {
		t.Errorf("%s got %v, want %v", r.ID, got, devices)
	}
	if len(words) == 0 && why != "" {
		t.Errorf("%s got all that it wanted, and hears: %s", r.ID, why)
	}
	for _, word := range words {
		if !strings.Contains(why, word) {
			t.Errorf("%s hears %q, nothing of %q", r.ID, why, word)
		}
	}
}

func wantParts(t *testing.T, table *Table, all, abandoned []string) {
	t.Helper()
	gotAll, gotAbandoned := table.Parts()
	if !slices.Equal(gotAll, all) || !slices.Equal(gotAbandoned, abandoned) {
		t.Errorf("parts %v, abandoned %v; want %v and %v", gotAll, gotAbandoned, all, abandoned)
	}
}

func TestAPartTakesWhatIsFree(t *testing.T) {
	table, _ := rig()
	mine := grant(t, table, Request{Tenant: "bob", Devices: []string{"a"}})
	wantTake(t, table, part("x", 1, 0), false, nil, "bob has one") // all of them, or none
	wantParts(t, table, nil, nil)
	wantTake(t, table, part("x", 1, 2), false, []string{"b"}, "bob has one")
	wantTake(t, table, part("x", 1, 2), false, []string{"b"}, "bob has one") // its own device is not busy for it
	wantTake(t, table, part("y", 2, 1), false, nil, "bob has one", "ann has one")
	table.Drop(mine)
	wantTake(t, table, part("x", 1, 2), false, []string{"a", "b"})
	wantParts(t, table, []string{"x"}, nil)
	if n := table.List()[0].Sessions; n != 0 {
		t.Errorf("%d sessions use a part that none has joined", n)
	}
	wantTake(t, table, part("x", 1, 1), false, []string{"a"}) // what is over goes back
	wantTake(t, table, part("y", 2, 1), false, []string{"b"})
}

func TestKeepGivesBackWhatWasNotGranted(t *testing.T) {
	table, _ := rig()
	wantTake(t, table, part("x", 1, 2), false, []string{"a", "b"})
	before := table.Freed()
	table.Keep("x", []string{"b", "c"})
	table.Keep("unknown", nil)
	if table.Taken("a") != "" || table.Taken("b") == "" {
		t.Errorf("a: %q, b: %q; b alone is to be kept", table.Taken("a"), table.Taken("b"))
	}
	table.Keep("x", nil)
	wantParts(t, table, nil, nil)
	if table.Freed() != before {
		t.Error("who was refused is told to look again, for what had only just been taken")
	}
}

func TestPartsWaitInOneOrder(t *testing.T) {
	table, c := rig()
	mine := grant(t, table, Request{Tenant: "bob", Devices: []string{"a", "b"}})
	wantTake(t, table, part("late", 8, 1), true, nil, "bob has one")
	wantTake(t, table, part("early", 5, 1), true, nil, "bob has one")
	wantParts(t, table, []string{"early", "late"}, nil)
	table.Drop(mine)
	wantTake(t, table, part("late", 8, 1), true, nil, "ann waits") // the lesser order goes before it, though it came later
	wantTake(t, table, part("early", 5, 1), true, []string{"a"})
	if table.Taken("b") == "" {
		t.Error("early left the line before it was settled")
	}
	before := table.Freed()
	table.Settle("early", []string{"a"})
	if table.Freed() == before {
		t.Error("a place in the line became free, and nobody is told")
	}
	wantTake(t, table, part("late", 8, 1), true, []string{"b"})
	table.Settle("late", nil)
	wantParts(t, table, []string{"early"}, nil)
	c.at = c.at.Add(Patience + 1)
	wantParts(t, table, []string{"early"}, nil) // a part lives as long as its record
}

func TestPlacesOfPartsAreBounded(t *testing.T) {
	table, _ := rig()
	grant(t, table, Request{Tenant: "bob", Devices: []string{"a", "b"}})
	for i := range uint64(MaxWaiters) {
		wantTake(t, table, part(strings.Repeat("x", int(i)+1), i+1, 1), true, nil, "bob has one")
	}
	if _, _, err := table.Take(part("one more", MaxWaiters+1, 1), true); err == nil {
		t.Error("a tenant has more places than MaxWaiters")
	}
}

func TestTheProgramOfALeaseOverNodes(t *testing.T) {
	c := &clock{time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	table := New(time.Minute, c.now)
	wantTake(t, table, part("x", 1, 1), true, []string{"a"})
	if table.IsHome("x") {
		t.Error("home before its program has it")
	}
	home := table.Open(part("x", 1, 1))
	if !table.IsHome("x") || home.Until != c.at.Add(time.Minute) || !slices.Equal(home.Devices, []string{"a"}) {
		t.Errorf("home %v, until %v, devices %v", table.IsHome("x"), home.Until, home.Devices)
	}
	if table.Taken("b") != "" {
		t.Errorf("it has what it wants and waits still: %s", table.Taken("b"))
	}
	table.Keep("x", nil) // sessions use it: it stays as it is
	wantTake(t, table, part("x", 1, 2), false, []string{"a"})
	if joined, err := table.Join("token of x", "ann"); err != nil || joined != home {
		t.Errorf("%v, %v", joined, err)
	}
	if n := table.List()[0].Sessions; n != 2 {
		t.Errorf("%d sessions, want 2", n)
	}
	table.Drop(home)
	wantParts(t, table, []string{"x"}, nil)
	table.Drop(home)
	wantParts(t, table, []string{"x"}, []string{"x"})
	if table.Taken("a") == "" {
		t.Error("its devices are free before its record is gone")
	}
	if l := table.End("x"); l != nil || table.Taken("a") != "" {
		t.Errorf("%v; a: %q", l, table.Taken("a"))
	}
	nowhere := table.Open(part("y", 2, 1)) // its devices are all of other nodes
	if len(nowhere.Devices) != 0 || !table.IsHome("y") {
		t.Errorf("devices %v, home %v", nowhere.Devices, table.IsHome("y"))
	}
}

func TestAnEndedPartWaitsForItsSessions(t *testing.T) {
	table, _ := rig()
	wantTake(t, table, part("x", 1, 1), false, []string{"a"})
	l := table.Open(part("x", 1, 1))
	if first, again := table.End("x"), table.End("x"); first != l || again != l {
		t.Error("it has ended while a session uses it")
	}
	if table.IsHome("x") || table.Taken("a") == "" {
		t.Errorf("home %v; a: %q", table.IsHome("x"), table.Taken("a"))
	}
	if _, err := table.Join("token of x", "ann"); err == nil {
		t.Error("a session joins what has ended")
	}
	wantTake(t, table, part("x", 1, 2), false, []string{"a"}) // nothing is added to it
	if n := table.List()[0].Sessions; n != 1 {
		t.Errorf("%d sessions, want 1", n)
	}
	before := table.Freed()
	table.Drop(l)
	if table.Taken("a") != "" || table.Freed() == before {
		t.Errorf("a: %q, freed %d times, %d before", table.Taken("a"), table.Freed(), before)
	}
	wantParts(t, table, nil, nil)
	if table.End("x") != nil {
		t.Error("there is none to end")
	}
}
