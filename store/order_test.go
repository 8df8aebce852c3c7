package store

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"tendril/store/object"
)

// TestEntryList does what a sorted slice does, whatever comes and goes, and keeps few chunks for few objects.
func TestEntryList(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var l entryList
	var model []*entry
	now := int64(1000)
	for step := range 20_000 {
		growing := step/4000%2 == 0
		if len(model) == 0 || growing && r.IntN(3) > 0 || !growing && r.IntN(4) == 0 {
			now += int64(r.IntN(3)) // some at the same time
			at := now
			if r.IntN(5) == 0 {
				at = int64(r.IntN(int(now))) // a clock that was set
			}
			e := &entry{id: object.NewID(), created: time.Unix(0, at)}
			i, _ := slices.BinarySearchFunc(model, e, func(a, b *entry) int { return a.cursor().compare(b.cursor()) })
			model = slices.Insert(model, i, e)
			l.insert(e)
		} else {
			i := r.IntN(len(model))
			e := model[i]
			model = slices.Delete(model, i, i+1)
			if !l.remove(e) || l.remove(e) || l.has(e) {
				t.Fatalf("step %d: an object is not removed once", step)
			}
		}
		if step%97 > 0 {
			continue
		}
		at := Cursor{}
		from := 0
		if len(model) > 0 {
			from = r.IntN(len(model))
			at = model[from].cursor()
			from++
		}
		n := 1 + r.IntN(600)
		if got, want := l.after(nil, at, n), model[from:min(from+n, len(model))]; !slices.Equal(got, want) {
			t.Fatalf("step %d: %d objects behind number %d, want %d, or others", step, len(got), from, len(want))
		}
		if got := l.after(nil, Cursor{}, len(model)+1); !slices.Equal(got, model) || l.len() != len(model) {
			t.Fatalf("step %d: the list is not the model's", step)
		}
		if most := 2 + len(model)/(chunkMost/8); len(l.chunks) > most {
			t.Fatalf("step %d: %d chunks for %d objects", step, len(l.chunks), len(model))
		}
	}
}

// TestCursorText reads what it writes, and refuses the rest.
func TestCursorText(t *testing.T) {
	for _, c := range []Cursor{{}, {1, object.ID{1}}, {-5, object.NewID()}} {
		if back, err := ParseCursor(c.String()); err != nil || back != c {
			t.Errorf("%q: %+v, %v", c, back, err)
		}
	}
	for _, s := range []string{"x", "12", "12-", "-00", "12-0011", "12-" + object.ID{}.String() + "00",
		"fffffffffffffffff-" + object.ID{}.String()} {
		if c, err := ParseCursor(s); err == nil {
			t.Errorf("%q is %+v", s, c)
		}
	}
}

// has reports whether an object is there.
func (l *entryList) has(e *entry) bool {
	return l.len() > 0 && slices.Contains(l.chunks[l.chunkOf(e.cursor())].entries, e)
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
