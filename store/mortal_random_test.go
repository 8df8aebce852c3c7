package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"tendril/store/object"
)

// mortalObject is what a test knows of an object in the life of a store that is killed.
type mortalObject struct {
	seed  byte
	size  int
	name  string
	kept  bool // the store has said that it survives
	gone  bool // and that it does not
	doubt bool // it was about to change when the store was killed
}

// mortalWorld does random things to a store, and remembers what that has promised.
type mortalWorld struct {
	t       *testing.T
	rng     *rand.Rand
	objects map[object.ID]*mortalObject
	names   map[string]object.ID
}

// does runs what alters some objects; where the store is killed meanwhile they are in doubt. ok: it was done.
func (w *mortalWorld) does(alive func() bool, f func() error, of ...object.ID) (ok bool) {
	err := f()
	if err == nil && alive() {
		return true
	}
	for _, id := range of {
		if o := w.objects[id]; o != nil {
			o.doubt = true
		}
	}
	if err != nil && alive() && !errors.Is(err, object.ErrNotFound) {
		w.t.Errorf("%v", err)
	}
	return false
}

// step does one random thing.
func (w *mortalWorld) step(s *Store, c *Conn, alive func() bool) {
	name := fmt.Sprint("n", w.rng.IntN(3))
	id, taken := w.names[name]
	switch w.rng.IntN(6) {
	case 0, 1:
		if !taken {
			w.put(c, name, alive)
		}
	case 2:
		other := fmt.Sprint("n", w.rng.IntN(3))
		if displaced := w.names[other]; taken && other != name {
			if w.does(alive, func() error { return c.Bind(id, other, true) }, id, displaced) {
				if o := w.objects[displaced]; o != nil {
					o.gone = true
				}
				delete(w.names, name)
				w.names[other], w.objects[id].name = id, other
			}
		}
	case 3:
		if taken && w.does(alive, func() error { return c.Delete(id, "") }, id) {
			w.objects[id].gone = true
			delete(w.names, name)
		}
	case 4:
		if taken && w.does(alive, func() error { return c.Update(id, "", Change{Persist: true}) }, id) {
			w.objects[id].kept = true
		}
	case 5:
		s.mu.Lock()
		for s.cold.Len() > 0 && alive() {
			victims, _ := s.victims(nil, 1, 0)
			_, _ = s.evict(victims, s.spill.For("uid:1"), nil) // killed meanwhile
		}
		s.unlock()
		if taken && w.rng.IntN(2) == 0 && alive() { // and back
			if b, err := contents(w.t, c, id); alive() && !isPattern(b, w.objects[id].seed) {
				w.t.Errorf("%s: other bytes, %v", name, err)
			}
		}
	}
}

func (w *mortalWorld) put(c *Conn, name string, alive func() bool) {
	o := &mortalObject{seed: byte(len(w.objects) + 1), size: []int{700, 5000, 300 << 10}[w.rng.IntN(3)], name: name}
	spec := Spec{SizeBytes: uint64(o.size), Class: object.Named, Name: name, Checksum: w.rng.IntN(2) == 0}
	o.kept = w.rng.IntN(2) == 0
	if o.kept {
		spec.Class = object.Persisted
	}
	h, err := c.Create(spec)
	if err != nil {
		w.t.Fatal(err)
	}
	w.objects[h.ID] = o
	fillPattern(writable(w.t, c, h)[h.Ref.Offset:][:o.size], o.seed)
	if w.does(alive, func() error { return errors.Join(c.Seal(h.ID, false), c.Release(h.ID)) }, h.ID) {
		w.names[name] = h.ID
	}
}

// check compares what the next store has with what was promised.
func (w *mortalWorld) check(t *testing.T, s *Store) {
	if st := s.Status(); len(st.Damaged) > 0 {
		t.Errorf("records that cannot be read: %q", st.Damaged)
	}
	c := connect(t, s, "uid:1")
	there := make(map[object.ID]object.Info)
	for _, info := range c.List("", false) {
		there[info.ID] = info
		o := w.objects[info.ID]
		switch {
		case o == nil:
			t.Fatalf("an object that there never was: %+v", info)
		case o.gone && !o.doubt:
			t.Errorf("object %d (%s), which was deleted or displaced, is there as %q", o.seed, o.name, info.Name)
		case info.Name != o.name && !o.doubt:
			t.Errorf("object %d is %q, not %q", o.seed, info.Name, o.name)
		}
		wantPattern(t, c, info.ID, o.size, o.seed)
	}
	for id, o := range w.objects {
		if _, is := there[id]; !is && o.kept && !o.gone && !o.doubt {
			t.Errorf("object %d (%s) is lost", o.seed, o.name)
		}
	}
	mustAgree(t, s, false)
}

// Whatever was done to objects in memory and on disk, and whenever the daemon was killed: what is there afterwards is
// whole and has its last name, what was said to survive is there, and nothing comes back that went.
func TestKilledAnywhereOnTheWayToDisk(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			var w *mortalWorld
			lifetimes(t, func(t *testing.T, s *Store, alive func() bool) {
				w = &mortalWorld{t: t, rng: rand.New(rand.NewPCG(seed, 7)), objects: map[object.ID]*mortalObject{},
					names: map[string]object.ID{}}
				c := connect(t, s, "uid:1")
				defer unmapWriters(c)
				for range 24 {
					if w.step(s, c, alive); !alive() {
						break
					}
				}
			}, func(t *testing.T, s *Store) { w.check(t, s) })
		})
	}
}
