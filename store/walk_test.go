package store

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"tendril/store/object"
	"tendril/store/order"
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
	at, page := order.Cursor{}, 0
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

// TestWalkAll lists every tenant's objects once, in order, however little is looked at in one go.
func TestWalkAll(t *testing.T) {
	s := newStore(t, Options{})
	var want []string
	for _, name := range []string{"a", "b", "no objects", "z"} {
		c := connect(t, s, name)
		for i := range 5 {
			if name == "no objects" {
				continue
			}
			key := string(rune('0' + i))
			sealedObject(t, c, Spec{Name: name + "/" + key, Class: object.Named, SizeBytes: 10})
			want = append(want, name+" "+name+"/"+key)
		}
	}
	asks := connect(t, s, "m")
	for _, atMost := range []int{1, 3, 1000} {
		var got []string
		place, turns := "", 0
		for {
			taken := 0
			next, err := asks.WalkAll(Query{}, place, atMost, func(o object.Info, at string) bool {
				if taken == 2 { // a page is full
					return false
				}
				got, taken = append(got, o.Tenant+" "+o.Name), taken+1
				return true
			})
			if turns++; err != nil || turns > 100 {
				t.Fatal(turns, err)
			}
			if place = next; place == "" {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d at a time: %q, want %q", atMost, got, want)
		}
	}
	if _, err := asks.WalkAll(Query{}, "nonsense@a", 1, nil); !errors.Is(err, object.ErrInvalid) {
		t.Error(err)
	}
}
