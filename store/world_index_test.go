package store

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"tendril/store/index"
	"tendril/store/object"
	"tendril/store/segment"
)

// In some worlds clients have the index in shared memory. What they find there is what the reference foretells, or
// nothing; what they hold in a slot keeps its bytes whatever happens, looked at after each step. And for each tenant
// somebody looks on while a step is taken: it never sees another object than it looked for, or other bytes.

// eyes are a client's side of the index. nil: it has none.
type eyes struct {
	reader index.Reader
	pins   *index.Pins
	held   []pinned
}

// pinned is an object that a client holds in a slot.
type pinned struct {
	o       *thing
	slot    int
	segment uint64
	memory  []byte
}

// openEyes has an actor ask for the index. Where memory is short it goes without.
func (w *world) openEyes(a *actor) {
	slotsFD, levelFD, err := a.OpenIndex()
	if err != nil {
		if !object.IsShort(err) {
			w.fail("open the index: %v", err)
		}
		return
	}
	a.eyes = &eyes{}
	slots := w.mapIndex(slotsFD, index.SlotsBytes, true)
	if a.eyes.pins, err = index.NewPins(slots); err != nil {
		w.fail("%v", err)
	}
	if err := a.eyes.reader.Add(w.mapIndex(levelFD, index.LevelBytes(0), false)); err != nil {
		w.fail("%v", err)
	}
}

func (w *world) mapIndex(fd int, n uint64, writable bool) *segment.Mapping {
	f := os.NewFile(uintptr(fd), "index")
	defer f.Close()
	m, err := segment.Map(f, n, writable)
	if err != nil {
		w.fail("%v", err)
	}
	return m
}

// shut ends an actor's side of the index, as its process's end does: it clears no slot.
func (a *actor) shut() {
	if a.eyes != nil {
		a.eyes.reader.Close()
		a.eyes.pins.Close()
		a.eyes = nil
	}
}

// find finds and holds an object as a client does; slot −1: it is to be asked for over the socket.
func (a *actor) find(key index.Key, f *index.Found) (slot int, memory []byte) {
	if !a.eyes.reader.Find(key, f) {
		return -1, nil
	}
	m := a.maps[f.Segment]
	if m == nil && f.Segment != 0 {
		return -1, nil
	}
	if slot = a.eyes.pins.Hold(f.Word); slot < 0 {
		return -1, nil
	}
	if !a.eyes.reader.Valid(f.Word) || a.eyes.pins.Ended() {
		a.eyes.pins.Drop(slot)
		return -1, nil
	}
	a.eyes.pins.Tell(f.Word)
	if m != nil {
		memory = m.Bytes()[f.Offset:][:f.Bytes]
	}
	return slot, memory
}

// isPattern reports whether memory is what fillPattern made.
func isPattern(b []byte, seed byte) bool {
	want := make([]byte, len(b))
	fillPattern(want, seed)
	return string(b) == string(want)
}

const mostPinned = 3 // by one client: who holds all can have nothing more

// pin finds an object in the index and goes on holding it.
func (w *world) pin() {
	a, o := w.pair()
	for try := 0; try < 20 && (!o.sealed || !o.listed || a.tenant != o.tenant || a.maps[w.segmentOf(o)] == nil); try++ {
		a, o = w.pair()
	}
	if a.eyes == nil || len(a.eyes.held) >= mostPinned {
		return
	}
	key, what := index.ByID(o.id), o.id.String()
	if name := o.name; w.rng.IntN(2) == 0 && name != "" || w.rng.IntN(8) == 0 {
		if name == "" {
			name = w.name()
		}
		key, what, o = index.ByName(name), name, w.named(a.tenant, name)
	}
	var f index.Found
	slot, memory := a.find(key, &f)
	w.log = append(w.log, fmt.Sprintf("%s looks for %s in the index: slot %d", a.owner.Tenant, what, slot))
	if slot < 0 {
		return
	}
	if o == nil || !o.listed || !o.sealed || o.tenant != a.tenant || f.ID() != o.id || f.Bytes != o.size ||
		f.Class != o.class || f.Name() != o.name {
		w.fail("the index has %s as %s %q, %d bytes, %v; the reference: %+v", what, f.ID(), f.Name(), f.Bytes, f.Class, o)
	}
	a.eyes.held = append(a.eyes.held, pinned{o, slot, f.Segment, memory})
	o.pinned++
	w.pins++
}

// unpin lets one of those go.
func (w *world) unpin() {
	a := w.actor()
	if a.eyes == nil || len(a.eyes.held) == 0 {
		return
	}
	i := w.rng.IntN(len(a.eyes.held))
	p := a.eyes.held[i]
	a.eyes.held = append(a.eyes.held[:i], a.eyes.held[i+1:]...)
	w.log = append(w.log, fmt.Sprintf("%s lets %s go from a slot", a.owner.Tenant, p.o.id))
	a.eyes.pins.Drop(p.slot)
	p.o.pinned--
	w.collect(p.o)
}

// releasePinned gives back a reference to an object that is held in a slot, too: then the slot may be its last hold.
func (w *world) releasePinned() {
	a := w.actor()
	if a.eyes == nil || len(a.eyes.held) == 0 {
		return
	}
	o := a.eyes.held[w.rng.IntN(len(a.eyes.held))].o
	for holder := range o.refs {
		if w.did(holder.Release(o.id), nil, "release %s, which is in a slot", o.id) {
			w.drop(o, holder, 1)
		}
		return
	}
}

// unpinAll is what an actor's end does to what it holds in slots. With over it then has a reference to each instead.
func (w *world) unpinAll(a *actor, over bool) {
	if a.eyes == nil {
		return
	}
	held := a.eyes.held
	a.eyes.held = nil
	for _, p := range held {
		p.o.pinned--
		if over {
			p.o.refs[a]++
		}
	}
	for _, p := range held {
		w.collect(p.o)
	}
}

// checkPinned looks at the bytes of all that is held in slots.
func (w *world) checkPinned() {
	for _, a := range w.actors {
		if a.eyes == nil {
			continue
		}
		for _, p := range a.eyes.held {
			if !isPattern(p.memory, p.o.seed()) {
				w.fail("object %s, which %s holds in slot %d, has other bytes", p.o.id, a.owner.Tenant, p.slot)
			}
		}
	}
}

// looker looks on, in a goroutine of its own while a step is taken.
type looker struct {
	*actor
	seen *atomic.Int64
	mu   sync.Mutex // over one look, and over what changes the maps
}

// sweep is actor's, between two looks.
func (l *looker) sweep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.actor.sweep()
}

// end ends one, between steps.
func (l *looker) end() {
	l.Conn.Close()
	l.unmapAll()
	l.shut()
}

// joinLookers gives each tenant one, where it gets an index.
func (w *world) joinLookers() {
	w.lookers = nil
	for tenant := range worldTenants {
		a := w.join(tenant)
		if a.eyes == nil {
			a.Conn.Close()
			continue
		}
		w.lookers = append(w.lookers, &looker{actor: a, seen: &w.seen})
	}
}

func (w *world) endLookers() {
	for _, l := range w.lookers {
		l.end()
	}
	w.lookers = nil
}

// showLookers maps the segment of some object in each looker, over the socket.
func (w *world) showLookers() {
	for _, l := range w.lookers {
		l.sweep()
		o := w.thing()
		if o.tenant != l.tenant || !o.sealed || !o.listed {
			continue
		}
		h, err := l.GetEither(o.id, "")
		if err != nil {
			continue // on disk
		}
		w.receive(l.actor, h, false)
		if err := l.Release(h.ID); err != nil {
			w.fail("%v", err)
		}
	}
}

// onlookers has the lookers look at what they know, and by all names, until the answer is called, which gives what was
// wrong.
func (w *world) onlookers() (over func() (fault string)) {
	stop := make(chan struct{})
	faults := make(chan string, len(w.lookers))
	var all sync.WaitGroup
	for _, l := range w.lookers {
		var ids []object.ID
		for _, o := range w.things {
			if o.tenant == l.tenant {
				ids = append(ids, o.id)
			}
		}
		all.Go(func() {
			for {
				for _, id := range ids {
					if fault := l.look(index.ByID(id), func(f *index.Found) bool { return f.ID() == id }); fault != "" {
						faults <- fault
						return
					}
				}
				for i := range worldNames {
					name := worldName(i)
					is := func(f *index.Found) bool { return f.Name() == name }
					if fault := l.look(index.ByName(name), is); fault != "" {
						faults <- fault
						return
					}
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	return func() string {
		close(stop)
		all.Wait()
		close(faults)
		return <-faults
	}
}

// look looks for one key, and holds what it finds for as long as it compares its bytes.
func (l *looker) look(key index.Key, is func(*index.Found) bool) (fault string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var f index.Found
	slot, memory := l.find(key, &f)
	if slot < 0 {
		return ""
	}
	defer l.eyes.pins.Drop(slot)
	l.seen.Add(1)
	switch id := f.ID(); {
	case !is(&f):
		return fmt.Sprintf("somebody of %s found %s %q where he looked for another", l.owner.Tenant, id, f.Name())
	case !isPattern(memory, id[0]):
		return fmt.Sprintf("somebody of %s found %s %q with other bytes", l.owner.Tenant, id, f.Name())
	}
	return ""
}
