package store

import (
	"fmt"
	"testing"

	"tendril/store/object"
)

// TestWalkGoesOnFromItsPlace lists 100,000 objects in pages, of which some are deleted and some made between two: each
// that is there all the while comes once, and a page looks at no more objects than it was told to.
func TestWalkGoesOnFromItsPlace(t *testing.T) {
	s, err := New(Options{CapacityBytes: 256 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, err := s.Connect(Owner{Tenant: "t"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	make := func(name string) object.ID {
		h, err := c.Create(Spec{Class: object.Named, Name: name})
		if err == nil {
			err = c.Seal(h.ID, false)
		}
		if err == nil {
			err = c.Release(h.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		return h.ID
	}
	const n = 100_000
	number := map[object.ID]int{}
	ids := []object.ID{}
	for i := range n {
		ids = append(ids, make(fmt.Sprintf("%d", i)))
		number[ids[i]] = i
	}
	seen := [n]int{}
	at, page := Cursor{}, 0
	for more := true; more; page++ {
		last, took := -1, 0
		at, more = c.Walk(Query{}, at, 1000, func(o object.Info) bool {
			if took == 900 { // this one is for the next page
				return false
			}
			took++
			i, old := number[o.ID]
			if old {
				if seen[i]++; i <= last {
					t.Fatalf("number %d comes after %d", i, last)
				}
				last = i
			}
			return true
		})
		for _, gone := range []int{page*7 + 3, n - 1 - page*7} { // listed already, and not yet
			if err := c.Delete(ids[gone], ""); err != nil {
				t.Fatal(err)
			}
		}
		make(fmt.Sprintf("new%d", page))
	}
	deleted := map[int]bool{}
	for p := range page {
		deleted[p*7+3], deleted[n-1-p*7] = true, true
	}
	for i, times := range seen {
		if times != 1 && !deleted[i] || times > 1 {
			t.Fatalf("number %d came %d times", i, times)
		}
	}
	if page < n/1000 {
		t.Errorf("%d objects on %d pages of at most 1000", n, page)
	}
}
