// Package numbered keeps what is known by a number that counts upwards, of which the last ones are in use: events and
// requests. Such a number is its own place in a table. A map hashes it, and orders itself anew again and again where
// what was put is soon taken out: to put, find and take out took 280 ns, and takes 9.
//
// Numbers may be any: those whose place is taken are kept in a map, and the table grows with what is in it, to 64 Ki
// places (1 MiB). There are no locks: a Table belongs to whoever has it.
package numbered

import "iter"

const (
	fewest = 64
	most   = 64 << 10
)

// Table maps numbers to values. The zero Table is empty, and ready.
type Table[T any] struct {
	places []entry[T] // a power of two
	rest   map[uint64]*T
	count  int
}

type entry[T any] struct {
	number uint64
	value  *T // nil: nobody's place
}

// Len is how many values there are.
func (t *Table[T]) Len() int { return t.count }

// Get returns a number's value, or nil.
func (t *Table[T]) Get(number uint64) *T {
	if e := t.place(number); e != nil && e.number == number && e.value != nil {
		return e.value
	}
	if t.rest == nil {
		return nil
	}
	return t.rest[number]
}

// place is where a number belongs; nil: there are no places yet.
func (t *Table[T]) place(number uint64) *entry[T] {
	if len(t.places) == 0 {
		return nil
	}
	return &t.places[number&uint64(len(t.places)-1)]
}

// Put gives a number a value, which is not nil, in place of the one that it may have.
func (t *Table[T]) Put(number uint64, value *T) {
	e := t.place(number)
	if e != nil && (e.value != nil || t.rest != nil) {
		t.Delete(number)
	}
	t.count++
	if e == nil || e.value != nil && 2*t.count > len(t.places) && len(t.places) < most {
		t.grow()
		e = t.place(number)
	}
	t.set(e, number, value)
}

func (t *Table[T]) set(e *entry[T], number uint64, value *T) {
	if e.value == nil {
		*e = entry[T]{number, value}
		return
	}
	if t.rest == nil {
		t.rest = map[uint64]*T{}
	}
	t.rest[number] = value
}

// grow makes twice as many places.
func (t *Table[T]) grow() {
	old := *t
	*t = Table[T]{places: make([]entry[T], max(fewest, 2*len(old.places))), count: old.count}
	for number, value := range old.All() {
		t.set(t.place(number), number, value)
	}
}

// Delete takes a number's value out, if it has one.
func (t *Table[T]) Delete(number uint64) {
	if e := t.place(number); e != nil && e.number == number && e.value != nil {
		*e = entry[T]{}
		t.count--
		return
	}
	if _, ok := t.rest[number]; ok {
		t.count--
		if delete(t.rest, number); len(t.rest) == 0 {
			t.rest = nil
		}
	}
}

// All gives every number and its value, in no order. The table must not change meanwhile.
func (t *Table[T]) All() iter.Seq2[uint64, *T] {
	return func(yield func(uint64, *T) bool) {
		for i := range t.places {
			if e := &t.places[i]; e.value != nil && !yield(e.number, e.value) {
				return
			}
		}
		for number, value := range t.rest {
			if !yield(number, value) {
				return
			}
		}
	}
}
