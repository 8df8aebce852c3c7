package numbered

import (
	"maps"
	"math/rand/v2"
	"testing"
)

// TestTableIsAMap: whatever the numbers, a table holds what a map does.
func TestTableIsAMap(t *testing.T) {
	for name, next := range map[string]func(r *rand.Rand, i uint64) uint64{
		"upwards":  func(_ *rand.Rand, i uint64) uint64 { return i },
		"few":      func(r *rand.Rand, _ uint64) uint64 { return r.Uint64N(300) },
		"any":      func(r *rand.Rand, _ uint64) uint64 { return r.Uint64() },
		"one slot": func(r *rand.Rand, _ uint64) uint64 { return r.Uint64N(500) * most },
	} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			var table Table[int]
			model := map[uint64]*int{}
			for i := range uint64(20_000) {
				id := next(r, i)
				if got := table.Get(id); got != model[id] {
					t.Fatalf("step %d: %d is %v, not %v", i, id, got, model[id])
				}
				if model[id] == nil || i%5 == 0 {
					v := int(i)
					model[id] = &v
					table.Put(id, &v)
				}
				for gone := range model {
					if r.IntN(3) > 0 {
						delete(model, gone)
						table.Delete(gone)
						table.Delete(gone) // it is not there any more
					}
					break
				}
				if table.Len() != len(model) {
					t.Fatalf("step %d: %d values, not %d", i, table.Len(), len(model))
				}
			}
			if got := maps.Collect(table.All()); !maps.Equal(got, model) {
				t.Errorf("%d values, not %d", len(got), len(model))
			}
			for id := range model {
				table.Delete(id)
			}
			if table.Len() != 0 || table.rest != nil || len(table.places) > most {
				t.Errorf("%d values are left, %d of them apart; %d places", table.Len(), len(table.rest), len(table.places))
			}
			for range table.All() {
				t.Error("there is still one")
			}
		})
	}
}

// BenchmarkChain is what each command of a chain asks of a table, and of a map: a number is put, the one before found,
// and one from a hundred before taken out.
func BenchmarkChain(b *testing.B) {
	value := 1
	b.Run("of=table", func(b *testing.B) {
		var t Table[int]
		for i := range uint64(b.N) {
			t.Put(i, &value)
			if t.Get(i) == nil {
				b.Fatal("not there")
			}
			t.Delete(i - 100)
		}
	})
	b.Run("of=map", func(b *testing.B) {
		t := map[uint64]*int{}
		for i := range uint64(b.N) {
			t[i] = &value
			if t[i] == nil {
				b.Fatal("not there")
			}
			delete(t, i-100)
		}
	})
}
