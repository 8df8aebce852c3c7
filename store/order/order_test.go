package order

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"tendril/store/object"
)

// thing is made at a time.
type thing struct{ at Cursor }

func (t *thing) Cursor() Cursor { return t.at }

// TestList does what a sorted slice does, whatever comes and goes, and keeps few chunks for few objects.
func TestList(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var l List[*thing]
	var model []*thing
	now := int64(1000)
	for step := range 20_000 {
		growing := step/4000%2 == 0
		if len(model) == 0 || growing && r.IntN(3) > 0 || !growing && r.IntN(4) == 0 {
			now += int64(r.IntN(3)) // some at the same time
			at := now
			if r.IntN(5) == 0 {
				at = int64(r.IntN(int(now))) // a clock that was set
			}
			e := &thing{At(time.Unix(0, at), object.NewID())}
			i, _ := slices.BinarySearchFunc(model, e, func(a, b *thing) int { return a.Cursor().Compare(b.Cursor()) })
			model = slices.Insert(model, i, e)
			l.Insert(e)
		} else {
			i := r.IntN(len(model))
			e := model[i]
			model = slices.Delete(model, i, i+1)
			if !l.Remove(e) || l.Remove(e) || l.has(e) {
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
			at = model[from].Cursor()
			from++
		}
		n := 1 + r.IntN(600)
		if got, want := l.After(nil, at, n), model[from:min(from+n, len(model))]; !slices.Equal(got, want) {
			t.Fatalf("step %d: %d objects behind number %d, want %d, or others", step, len(got), from, len(want))
		}
		if got := l.After(nil, Cursor{}, len(model)+1); !slices.Equal(got, model) || l.Len() != len(model) {
			t.Fatalf("step %d: the list is not the model's", step)
		}
		whole := 0
		l.All(func(e *thing) {
			if whole < len(model) && model[whole] == e {
				whole++
			}
		})
		if whole != len(model) {
			t.Fatalf("step %d: All gives %d of %d in order", step, whole, len(model))
		}
		if most := 2 + len(model)/(chunkMost/8); len(l.chunks) > most {
			t.Fatalf("step %d: %d chunks for %d objects", step, len(l.chunks), len(model))
		}
	}
}

// TestCursorText reads what it writes, and refuses the rest.
func TestCursorText(t *testing.T) {
	for _, c := range []Cursor{{}, {1, object.ID{1}}, {-5, object.NewID()}} {
		if back, err := Parse(c.String()); err != nil || back != c {
			t.Errorf("%q: %+v, %v", c, back, err)
		}
	}
	for _, s := range []string{"x", "12", "12-", "-00", "12-0011", "12-" + object.ID{}.String() + "00",
		"fffffffffffffffff-" + object.ID{}.String()} {
		if c, err := Parse(s); err == nil {
			t.Errorf("%q is %+v", s, c)
		}
	}
}

// has reports whether an object is there.
func (l *List[T]) has(e T) bool {
	return l.Len() > 0 && slices.Contains(l.chunks[l.chunkOf(e.Cursor())].entries, e)
}
