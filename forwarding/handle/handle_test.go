package handle

import (
	"math/rand/v2"
	"sync"
	"testing"
)

type thing struct{ n int }

func newTable(t testing.TB, slots uint32) *Table[thing] {
	t.Helper()
	table, err := New[thing](0x1234, slots)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func TestHandleLives(t *testing.T) {
	table := newTable(t, 10)
	v := &thing{7}
	h, err := table.Put(v)
	if err != nil {
		t.Fatal(err)
	}
	if table.Get(h) != v {
		t.Fatal("a live handle is not found")
	}
	for _, bad := range []uintptr{0, 1, h + 1, h + 8, h + slotBytes, h - slotBytes, ^uintptr(0), ^uintptr(15)} {
		if table.Get(bad) != nil {
			t.Errorf("%#x taken for a handle", bad)
		}
		if table.Remove(bad) {
			t.Errorf("%#x removed", bad)
		}
	}
	if !table.Remove(h) || table.Get(h) != nil || table.Remove(h) {
		t.Fatal("a handle is removed once and is gone then")
	}
}

func TestAddressIsNotReusedSoon(t *testing.T) {
	table := newTable(t, 3*quarantineSlots)
	h, _ := table.Put(&thing{})
	table.Remove(h)
	for i := range quarantineSlots {
		g, err := table.Put(&thing{})
		if err != nil {
			t.Fatal(err)
		}
		if g == h {
			t.Fatalf("address reused after %d releases", i)
		}
		table.Remove(g)
	}
}

func TestRangeIsExhaustedAndComesBack(t *testing.T) {
	table := newTable(t, 1)
	var all []uintptr
	for {
		h, err := table.Put(&thing{})
		if err != nil {
			break
		}
		all = append(all, h)
	}
	if len(all) != chunkSlots {
		t.Fatalf("%d slots, want %d", len(all), chunkSlots)
	}
	table.Remove(all[5])
	h, err := table.Put(&thing{})
	if err != nil || h != all[5] {
		t.Fatalf("Put after Remove: %#x, %v", h, err)
	}
}

// TestModel compares a table with a map under random use.
func TestModel(t *testing.T) {
	table := newTable(t, 2*chunkSlots)
	rng := rand.New(rand.NewPCG(1, 2))
	live := map[uintptr]*thing{}
	var order []uintptr
	for i := range 50000 {
		if rng.IntN(2) == 0 || len(order) == 0 {
			v := &thing{i}
			h, err := table.Put(v)
			if err != nil {
				continue
			}
			if live[h] != nil {
				t.Fatalf("live address %#x given again", h)
			}
			live[h] = v
			order = append(order, h)
			continue
		}
		j := rng.IntN(len(order))
		h := order[j]
		if table.Get(h) != live[h] {
			t.Fatalf("%#x: wrong object", h)
		}
		if !table.Remove(h) {
			t.Fatalf("%#x: not removed", h)
		}
		delete(live, h)
		order[j] = order[len(order)-1]
		order = order[:len(order)-1]
	}
}

func TestConcurrent(t *testing.T) {
	table := newTable(t, 8*chunkSlots)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 2000 {
				v := &thing{i}
				h, err := table.Put(v)
				if err != nil || table.Get(h) != v || !table.Remove(h) {
					t.Errorf("Put %#x: %v", h, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func FuzzGet(f *testing.F) {
	table := newTable(f, 64)
	live := map[uintptr]*thing{}
	for i := range 40 {
		v := &thing{i}
		h, err := table.Put(v)
		if err != nil {
			f.Fatal(err)
		}
		live[h] = v
	}
	base := uint64(table.base)
	for _, seed := range []uint64{0, 1, base, base + 8, base + 16*64, base - 1, 1 << 63} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, h uint64) {
		for _, candidate := range []uint64{h, base + h%(1<<17)} {
			if got := table.Get(uintptr(candidate)); got != live[uintptr(candidate)] {
				t.Fatalf("%#x: got %v, want %v", candidate, got, live[uintptr(candidate)])
			}
		}
	})
}

func BenchmarkGet(b *testing.B) {
	table := newTable(b, 64)
	h, _ := table.Put(&thing{})
	for b.Loop() {
		if table.Get(h) == nil {
			b.Fatal("gone")
		}
	}
}
