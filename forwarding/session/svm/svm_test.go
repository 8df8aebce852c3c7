package svm

import (
	"math/rand/v2"
	"testing"

	"tendril/forwarding/clwire"
)

func TestFind(t *testing.T) {
	var table Table[string]
	table.Add(0x5000, 0xF00, "b")
	table.Add(0x1800, 0x800, "a")
	table.Add(0x6000, 0x10, "c")
	for _, c := range []struct {
		at   uintptr
		what string
		off  uint64
	}{
		{0, "", 0}, {0x17FF, "", 0}, {0x1800, "a", 0}, {0x1FFF, "a", 0x7FF}, {0x2000, "a", 0x800}, {0x2001, "", 0},
		{0x4FFF, "", 0}, {0x5EFF, "b", 0xEFF}, {0x5F00, "b", 0xF00}, {0x5F01, "", 0}, {0x6000, "c", 0},
		{0x6010, "c", 0x10}, {^uintptr(0), "", 0},
	} {
		what, off, ok := table.Find(c.at)
		if what != c.what || off != c.off || ok != (c.what != "") {
			t.Errorf("%#x: %q, %d, %v", c.at, what, off, ok)
		}
	}
	all := func(string) bool { return true }
	if _, ok := table.Remove(0x5001, all); ok {
		t.Error("removed by an address inside")
	}
	if _, ok := table.Remove(0x5000, func(s string) bool { return s != "b" }); ok {
		t.Error("removed though it is not wanted")
	}
	if what, ok := table.Remove(0x5000, all); !ok || what != "b" {
		t.Errorf("%q, %v", what, ok)
	}
	if _, _, ok := table.Find(0x5800); ok {
		t.Error("found after it was removed")
	}
	if what, _, _ := table.Find(0x6001); what != "c" {
		t.Errorf("its neighbour: %q", what)
	}
}

// TestRandomRanges compares the table with a map.
func TestRandomRanges(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var table Table[uintptr]
	model := map[uintptr]bool{}
	for range 20000 {
		at := uintptr(1+rng.IntN(200)) << 12
		switch {
		case !model[at]:
			table.Add(at, 4000, at)
			model[at] = true
		case rng.IntN(2) == 0:
			if _, ok := table.Remove(at, func(uintptr) bool { return true }); !ok {
				t.Fatalf("%#x is not there", at)
			}
			delete(model, at)
		}
		probe := uintptr(rng.IntN(210 << 12))
		base := probe >> 12 << 12
		what, off, ok := table.Find(probe)
		if want := model[base] && probe-base <= 4000; ok != want || ok && (what != base || off != uint64(probe-base)) {
			t.Fatalf("%#x: %#x + %d, %v", probe, what, off, ok)
		}
	}
}

func TestArenas(t *testing.T) {
	var a Arenas[string]
	if _, _, ok := a.Take(1, 10); ok {
		t.Fatal("a part of nothing")
	}
	a.Add(1, "one", 100)
	if _, _, ok := a.Take(2, 10); ok {
		t.Error("a part of another kind")
	}
	type part struct{ off, n uint64 }
	taken := []part{{0, 100}}
	for {
		what, off, ok := a.Take(1, SmallBytes-1)
		if !ok {
			break
		}
		if what != "one" || off%clwire.SVMTypeAlign != 0 || off+SmallBytes-1 > ArenaBytes {
			t.Fatalf("%q at %d", what, off)
		}
		for _, p := range taken {
			if off < p.off+p.n && p.off < off+SmallBytes-1 {
				t.Fatalf("%d meets %d", off, p.off)
			}
		}
		taken = append(taken, part{off, SmallBytes - 1})
	}
	if len(taken) != 1+7 {
		t.Errorf("%d parts", len(taken))
	}
	a.Add(1, "two", 5)
	if what, _, ok := a.Take(1, SmallBytes-1); !ok || what != "two" {
		t.Errorf("%q, %v", what, ok)
	}
	for i, p := range taken {
		if last := a.Give("one", p.off); last != (i == len(taken)-1) {
			t.Errorf("part %d: last %v", i, last)
		}
	}
	if what, _, ok := a.Take(1, 1); !ok || what != "two" {
		t.Errorf("%q, %v: an arena that has ended", what, ok)
	}
	if !a.Give("large", 0) {
		t.Error("what is no arena has but one part")
	}
}
