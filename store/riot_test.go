package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tendril/store/object"
	"tendril/store/segment"
)

// The riot is a store with little memory and a small disk, and clients that all act at once on one set of objects: get,
// hold, read, rename, label, share, persist, replace, delete and make anew, while others fill memory with objects of
// their own. An object's bytes follow from its seed, and whoever sees an object compares all of them, at the get and
// again before the release. Nobody deletes what another one is using, so an object that is not there, or that the disk
// does not give, is lost.

// noise is where objects have their bytes from: an object's begin at a place that its seed says.
var noise = func() []byte {
	b := make([]byte, 4<<20)
	rng := rand.NewChaCha8([32]byte{12})
	rng.Read(b)
	return b
}()

// prize is one of the objects that the riot is about. It stays in the set; what it is changes.
type prize struct {
	mu   sync.RWMutex // held for reading by who uses it, for writing by who makes it anew
	id   object.ID
	name string
	size int
	seed int
}

func (p *prize) bytes() []byte { return noise[p.seed:][:p.size] }

type riot struct {
	t      *testing.T
	s      *Store
	over   atomic.Bool
	prizes []*prize
	seen   atomic.Int64 // objects compared
	fault  atomic.Pointer[string]
}

// say notes the first fault and ends the riot.
func (r *riot) say(format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	r.fault.CompareAndSwap(nil, &what)
	r.over.Store(true)
}

// rioter is one client.
type rioter struct {
	*Conn
	r    *riot
	rng  *rand.Rand
	maps map[uint64]*segment.Mapping
}

func (r *riot) join(tenant string, seed uint64) *rioter {
	c, err := r.s.Connect(Owner{Tenant: tenant, PID: os.Getpid(), Principals: []string{tenant}})
	if err != nil {
		r.say("connect: %v", err)
		return nil
	}
	return &rioter{Conn: c, r: r, rng: rand.New(rand.NewPCG(seed, 12)), maps: map[uint64]*segment.Mapping{}}
}

func (a *rioter) leave() {
	a.Close()
	for _, m := range a.maps {
		m.Unmap()
	}
}

// sweep is what clients do by themselves within a second.
func (a *rioter) sweep() {
	for _, id := range a.Sweep() {
		if m := a.maps[id]; m != nil {
			m.Unmap()
			delete(a.maps, id)
		}
		a.Forget(id)
	}
}

// memory gives an object's bytes as the client has them mapped.
func (a *rioter) memory(h Handle, writable bool) []byte {
	if h.Size == 0 {
		return nil
	}
	if h.FD >= 0 {
		f := os.NewFile(uintptr(h.FD), "segment")
		defer f.Close()
		m, err := segment.Map(f, h.Ref.SegmentBytes, writable)
		if err != nil {
			a.r.say("map: %v", err)
			return nil
		}
		a.maps[h.Ref.Segment] = m
	}
	return a.maps[h.Ref.Segment].Bytes()[h.Ref.Offset:][:h.Size]
}

// crowded reports whether an error says no more than that others are in the way.
func crowded(err error) bool {
	return errors.Is(err, object.ErrFull) || errors.Is(err, object.ErrQuota) || errors.Is(err, object.ErrBusy) ||
		errors.Is(err, object.ErrTimeout)
}

// did reports whether something succeeded; what failed for another reason than the crowd ends the riot.
func (a *rioter) did(err error, what string, p *prize) bool {
	if err != nil && !crowded(err) {
		a.r.say("%s, object %s, %q of %d bytes: %v", what, p.id, p.name, p.size, err)
	}
	return err == nil
}

// riotSizes: below a page, whole pages, some that reach into the page where the next one begins, and large enough to go
// around the page cache.
var riotSizes = []int{0, 1, 64, 3000, 4096, 100_000, 100_000, 100_000, 262_144, 1_048_576, 1_100_000, 1_100_000}

// spec is a new object's, with bytes for what it is.
func (a *rioter) shape(p *prize) {
	p.size = riotSizes[a.rng.IntN(len(riotSizes))]
	p.seed = a.rng.IntN(len(noise)-p.size) &^ 63
}

// make makes p's object, and reports whether there was room.
func (a *rioter) make(p *prize, spec Spec) bool {
	spec.SizeBytes = uint64(p.size)
	h, err := a.Create(spec)
	if !a.did(err, "create", p) {
		return false
	}
	p.id = h.ID
	if p.size > 0 {
		into := a.memory(h, true)
		if into == nil {
			return false
		}
		copy(into, p.bytes())
	}
	if !a.did(a.Seal(h.ID, false), "seal", p) {
		a.did(a.Release(h.ID), "release of an unsealed object", p)
		return false
	}
	return a.did(a.Release(h.ID), "release", p)
}

// insist makes p's object however full it is.
func (a *rioter) insist(p *prize, spec Spec) {
	deadline := time.Now().Add(5 * time.Minute)
	for !a.make(p, spec) && a.r.fault.Load() == nil { // also when the riot is over: it is there, or lost
		if time.Now().After(deadline) {
			_, err := a.Create(Spec{SizeBytes: uint64(p.size)})
			a.r.say("an object of %d bytes is not to be made within five minutes: %v\n%s", p.size, err, a.r.picture())
		}
		a.sweep()
		time.Sleep(time.Millisecond)
	}
}

func (a *rioter) compare(p *prize, have []byte, when string) {
	a.r.seen.Add(1)
	want := p.bytes()
	if bytes.Equal(have, want) {
		return
	}
	at := 0
	for at < min(len(have), len(want)) && have[at] == want[at] {
		at++
	}
	a.r.say("object %s, %q, %s: byte %d of %d is wrong (%d bytes are here)", p.id, p.name, when, at,
		len(want), len(have))
}

// look gets an object and compares it, now and after a while.
func (a *rioter) look(p *prize) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	h, err := a.Wait(ctx, p.id, "")
	if !a.did(err, "get", p) {
		return
	}
	have := a.memory(h, false)
	a.compare(p, have, "at the get")
	if a.rng.IntN(4) == 0 {
		time.Sleep(time.Duration(a.rng.IntN(2000)) * time.Microsecond) // Pause: what others do meanwhile must not show
		a.compare(p, have, "while it was held")
	}
	a.did(a.Release(p.id), "release", p)
}

// read reads as the daemon does for peers: wherever the object is.
func (a *rioter) read(p *prize) {
	reading, err := a.Open(p.id, "")
	if !a.did(err, "open", p) {
		return
	}
	defer reading.Close()
	have := make([]byte, 0, p.size)
	for part := max(p.size/3, 1); len(have) < p.size; {
		b, err := reading.Range(uint64(len(have)), uint64(min(part, p.size-len(have))))
		if !a.did(err, "read", p) {
			return
		}
		have = append(have, b...)
	}
	a.compare(p, have, "as the daemon reads it")
}

// change does something to an object that leaves its bytes alone.
func (a *rioter) change(p *prize) {
	switch a.rng.IntN(5) {
	case 0:
		a.did(a.Update(p.id, "", Change{Labels: map[string]string{"n": fmt.Sprint(a.rng.IntN(9))}}), "label", p)
	case 1:
		a.did(a.Bind(p.id, p.name, false), "bind", p)
	case 2:
		a.did(a.Grant(p.id, "", "uid:9", false), "grant", p)
	case 3:
		err := a.Grant(p.id, "", "uid:9", true)
		if !errors.Is(err, object.ErrNotFound) {
			a.did(err, "revoke", p)
		}
	case 4:
		if a.rng.IntN(20) == 0 {
			a.did(a.Update(p.id, "", Change{Persist: true}), "persist", p)
		}
	}
}

// renew deletes p's object, or has another one take its name, and makes it anew.
func (a *rioter) renew(p *prize) {
	if !p.mu.TryLock() {
		return
	}
	defer p.mu.Unlock()
	spec := Spec{Class: object.Named, Name: p.name, Own: a.rng.IntN(5) == 0}
	if a.rng.IntN(10) == 0 {
		spec.Class = object.Persisted
	}
	if a.rng.IntN(2) == 0 {
		if a.did(a.Delete(p.id, ""), "delete", p) {
			a.shape(p)
			a.insist(p, spec)
		}
		return
	}
	next := &prize{name: p.name + "'"}
	a.shape(next)
	spec.Name = next.name
	if a.make(next, spec) && a.did(a.Bind(next.id, p.name, true), "replace", next) {
		p.id, p.size, p.seed = next.id, next.size, next.seed
	} else if !next.id.IsZero() {
		if err := a.Delete(next.id, ""); err != nil && !errors.Is(err, object.ErrNotFound) {
			a.did(err, "delete", next)
		}
	}
}

// act is one client's part in the riot.
func (a *rioter) act() {
	defer a.leave()
	mine := &prize{name: fmt.Sprintf("own %p", a)}
	for !a.r.over.Load() {
		a.sweep()
		p := a.r.prizes[a.rng.IntN(len(a.r.prizes))]
		switch n := a.rng.IntN(20); {
		case n == 0:
			a.renew(p)
		case n < 6: // something that is nobody else's, to make memory short
			a.shape(mine)
			if a.make(mine, Spec{Class: object.Named, Name: mine.name}) {
				a.did(a.Delete(mine.id, ""), "delete", mine)
			}
		default:
			if !p.mu.TryRLock() { // who waited would not sweep
				continue
			}
			switch {
			case n < 8:
				a.change(p)
			case n < 10:
				a.read(p)
			default:
				a.look(p)
			}
			p.mu.RUnlock()
		}
	}
}

// begin makes what the riot is about.
func (r *riot) begin(n int) {
	a := r.join("uid:1", 0)
	defer a.leave()
	for i := range n {
		p := &prize{name: fmt.Sprintf("n%d", i)}
		a.shape(p)
		a.insist(p, Spec{Class: object.Named, Name: p.name})
		r.prizes = append(r.prizes, p)
		a.sweep()
	}
}

// check compares everything, and whether the store agrees with itself.
func (r *riot) check() {
	a := r.join("uid:1", 99)
	defer a.leave()
	for _, p := range r.prizes {
		before := r.seen.Load()
		for deadline := time.Now().Add(5 * time.Minute); r.seen.Load() == before && r.fault.Load() == nil; a.sweep() {
			if a.look(p); time.Now().After(deadline) {
				_, err := a.Wait(context.Background(), p.id, "")
				r.say("object %s of %d bytes is not to be had within five minutes: %v\n%s", p.id, p.size, err, r.picture())
			}
		}
		if got, err := a.GetName(p.name); err == nil && got.ID != p.id {
			r.say("%q is object %s, want %s", p.name, got.ID, p.id)
		} else if err == nil {
			closeFor(a, got)
		}
	}
}

// picture describes what is in the way.
func (r *riot) picture() string {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	var b bytes.Buffer
	fmt.Fprintf(&b, "%d of %d bytes are charged, %d of %d on disk, %d segments are cold\n", r.s.charged,
		r.s.opts.CapacityBytes, r.s.spill.TakenBytes(), r.s.spill.LimitBytes(), r.s.cold.Len())
	for _, g := range r.s.segments {
		fmt.Fprintf(&b, "segment %d of %d bytes, %d of %d objects usable, gone %v, evicting %v, seen by %d, written by one %v\n", g.id, g.bytes, g.usable, g.live, g.mem == nil, g.evicting, len(g.seen), g.writer != nil)
		for e := g.first; e != nil; e = e.next {
			fmt.Fprintf(&b, "  %s of %d bytes, %v, %v, %d references, held %v, on disk %v, claimed %v, %v\n", e.id,
				e.size, e.state, e.class, e.refs, e.held, e.onDisk, r.s.claimed(e), e.fault)
		}
	}
	return b.String()
}

func closeFor(a *rioter, h Handle) {
	a.memory(h, false)
	a.Release(h.ID)
}

// TestRiot is many clients on few objects, all at once. It lasts 8 s, or 2 s with -short.
func TestRiot(t *testing.T) {
	lasts := 8 * time.Second
	if testing.Short() {
		lasts = 2 * time.Second
	}
	opts := Options{
		CapacityBytes: 24 << 20, SegmentBytes: 4 << 20, LargeBytes: 2 << 20, SpillDir: t.TempDir(),
		SpillBytes: 34 << 20, WriterCacheBytes: 1 << 20,
	}
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	r := &riot{t: t, s: s}
	r.begin(80)
	var all sync.WaitGroup
	for i := range 8 {
		if a := r.join("uid:1", uint64(i+1)); a != nil {
			all.Go(a.act)
		}
	}
	for end := time.Now().Add(lasts); time.Now().Before(end) && !r.over.Load(); time.Sleep(time.Millisecond) {
		if fault := s.invariants(false); fault != "" {
			r.say("%s", fault)
		}
	}
	r.over.Store(true)
	all.Wait()
	if r.fault.Load() == nil {
		r.check()
	}
	if r.fault.Load() == nil {
		waitFor(t, func() bool { return s.invariants(true) == "" })
	}
	st := s.Status()
	t.Logf("%d times an object was compared; %d of %d objects are on disk alone", r.seen.Load(),
		st.SpilledObjects, st.Objects)
	s.Close()
	if what := r.fault.Load(); what != nil {
		t.Fatal(*what)
	}
	r.restart(opts)
}

// restart begins the store anew: what was on disk is there, whole, and nothing else is.
func (r *riot) restart(opts Options) {
	r.over.Store(false)
	var err error
	if r.s, err = New(opts); err != nil {
		r.t.Fatal(err)
	}
	defer r.s.Close()
	a := r.join("uid:1", 100)
	defer a.leave()
	infos := a.List("", true)
	for _, info := range infos {
		a.sweep()
		at := slices.IndexFunc(r.prizes, func(p *prize) bool { return p.id == info.ID && p.name == info.Name })
		if at < 0 {
			r.t.Fatalf("%s %q of class %s was not there before", info.ID, info.Name, info.Class)
		}
		if a.look(r.prizes[at]); r.fault.Load() != nil {
			r.t.Fatal("after a restart: ", *r.fault.Load())
		}
	}
	if damaged := r.s.Status().Damaged; len(damaged) > 0 {
		r.t.Fatal(damaged)
	}
	r.t.Logf("%d of %d objects are back after a restart", len(infos), len(r.prizes))
}
