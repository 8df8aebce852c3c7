package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"tendril/store/index"
	"tendril/store/object"
	"tendril/store/segment"
)

// The world is a store with little memory, a disk, three tenants and their clients, driven beside a naive reference:
// objects of all classes, grants, streams, objects that several fill, composites, times to live, kills, restarts. Which
// objects are in memory and which on disk is the store's affair; all else the reference foretells, and contents are
// read to see.

// thing is the reference's object.
type thing struct {
	id      object.ID
	tenant  int
	size    uint64
	class   object.Class
	name    string // wanted while open, then bound
	sealed  bool
	listed  bool
	held    bool
	shared  bool
	creator *actor
	fillers map[*actor]bool
	fault   bool // somebody ended in the middle of filling it
	refs    map[*actor]int
	frames  int // places in streams
	pinned  int // slots of the index
	grants  map[string]bool
	members []*thing
	in      int // composites
	lost    bool
	due     int // class ttl: which of them ends first
}

func (o *thing) seed() byte { return o.id[0] }

// actor is a client.
type actor struct {
	*Conn
	tenant int
	maps   map[uint64]*segment.Mapping
	ends   map[string]uint64 // streams that it has open, to read and to write
	eyes   *eyes
}

// channel is the reference's stream.
type channel struct {
	frames  []*thing
	limit   int
	drops   bool
	keep    bool
	ends    map[*actor]bool
	writers int
	ended   bool
	broken  bool
}

type world struct {
	t       testing.TB
	rng     *rand.Rand
	opts    Options
	s       *Store
	actors  []*actor
	things  []*thing
	streams [3]map[string]*channel
	log     []string
	refused int
	clock   int
	indexed bool // clients have the index
	lookers []*looker
	pins    int          // objects that were held in slots
	seen    atomic.Int64 // by lookers
}

// later gives the next due.
func (w *world) later() int { w.clock++; return w.clock }

const worldTenants = 3

func tenantName(i int) string { return fmt.Sprintf("uid:%d", i) }

// newWorld makes a world; in those of odd seeds clients have the index.
func newWorld(t testing.TB, seed uint64, dir string) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 11)), indexed: seed%2 == 1, opts: Options{
		CapacityBytes: 2 << 20, SegmentBytes: 256 << 10, LargeBytes: 64 << 10, TenantBytes: 1 << 20, TenantObjects: 40,
		SpillDir: dir, SpillBytes: 64 << 20, HighBytes: 1800 << 10,
	}}
	w.open()
	return w
}

func (w *world) open() {
	var err error
	if w.s, err = New(w.opts); err != nil {
		w.t.Fatal(err)
	}
	w.actors = nil
	for i := range 2 * worldTenants {
		w.actors = append(w.actors, w.join(i%worldTenants))
	}
	for i := range w.streams {
		w.streams[i] = map[string]*channel{}
	}
	w.joinLookers()
}

func (w *world) join(tenant int) *actor {
	c, err := w.s.Connect(Owner{Tenant: tenantName(tenant), PID: os.Getpid(), Principals: []string{tenantName(tenant)}})
	if err != nil {
		w.t.Fatal(err)
	}
	a := &actor{Conn: c, tenant: tenant, maps: map[uint64]*segment.Mapping{}, ends: map[string]uint64{}}
	if w.indexed {
		w.openEyes(a)
	}
	return a
}

// sweep is what clients do by themselves within a second.
func (a *actor) sweep() {
	for _, id := range a.Sweep() {
		if a.eyes != nil && slices.ContainsFunc(a.eyes.held, func(p pinned) bool { return p.segment == id }) {
			panic(fmt.Sprintf("segment %d is to go, and an object in it is held in a slot", id))
		}
		if m := a.maps[id]; m != nil {
			m.Unmap()
			delete(a.maps, id)
		}
		a.Forget(id)
	}
}

func (a *actor) unmapAll() {
	for _, m := range a.maps {
		m.Unmap()
	}
}

func (w *world) actor() *actor { return w.actors[w.rng.IntN(len(w.actors))] }

// thing prefers none: dead ones are asked for, too.
func (w *world) thing() *thing {
	if len(w.things) == 0 || w.rng.IntN(50) == 0 {
		return &thing{id: object.NewID(), tenant: -1, refs: map[*actor]int{}, grants: map[string]bool{}}
	}
	return w.things[w.rng.IntN(len(w.things))]
}

// pair gives a client and an object, mostly of one tenant.
func (w *world) pair() (*actor, *thing) {
	a, o := w.actor(), w.thing()
	for i := 0; i < 20 && a.tenant != o.tenant && w.rng.IntN(5) > 0; i++ {
		a = w.actor()
	}
	return a, o
}

// sweepAll lets everybody give back what is of no use.
func (w *world) sweepAll() {
	for _, a := range w.actors {
		a.sweep()
	}
	for _, l := range w.lookers {
		l.sweep()
	}
}

const worldNames = 8

func worldName(i int) string { return "n" + strconv.Itoa(i) }

func (w *world) name() string { return worldName(w.rng.IntN(worldNames)) }

func (w *world) named(tenant int, name string) *thing {
	for _, o := range w.things {
		if o.listed && o.sealed && o.tenant == tenant && name != "" && o.name == name {
			return o
		}
	}
	return nil
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	for _, line := range w.log[max(0, len(w.log)-25):] {
		w.t.Log(line)
	}
	w.t.Fatalf(format, args...)
}

// did notes a step and compares its outcome. It reports whether it succeeded; a refusal for want of room is one where
// nothing happened.
func (w *world) did(got, want error, format string, args ...any) bool {
	w.t.Helper()
	what := fmt.Sprintf(format, args...)
	w.log = append(w.log, fmt.Sprintf("%s: %v", what, got))
	if len(w.log) > 100 {
		w.log = w.log[50:]
	}
	if errors.Is(got, object.ErrFull) || errors.Is(got, object.ErrQuota) { // before another refusal, perhaps
		w.refused++
		return false
	}
	if !errors.Is(got, want) || want == nil && got != nil {
		w.fail("%s: got %v, want %v", what, got, want)
	}
	return want == nil
}

func (w *world) step() {
	steps := [...]func(){
		w.create, w.create, w.create, w.create, w.create, w.put, w.put, w.seal, w.seal, w.seal, w.seal, w.seal, w.get,
		w.get, w.release, w.release, w.release, w.remove, w.rename, w.share,
		w.compose, w.fill, w.push, w.push, w.pop, w.stream, w.read, w.read, w.change,
	}
	if w.indexed {
		w.look(steps[:])
		return
	}
	w.take(steps[:])
	w.compare()
}

// look takes a step of a world whose clients have the index.
func (w *world) look(steps []func()) {
	over := w.onlookers()
	func() {
		defer func() { // also where the step has failed
			if fault := over(); fault != "" && !w.t.Failed() {
				w.fail("%s", fault)
			}
		}()
		w.take(append(steps, w.pin, w.pin, w.pin, w.unpin, w.releasePinned, w.releasePinned))
	}()
	w.compare()
	w.checkPinned()
	w.showLookers()
}

func (w *world) take(steps []func()) {
	switch n := w.rng.IntN(180); {
	case n == 0:
		w.kill()
	case n == 1:
		w.expire()
	case n < 25:
		w.actor().sweep()
	default:
		steps[w.rng.IntN(len(steps))]()
	}
}

func (w *world) create() {
	a := w.actor()
	sizes := []uint64{0, 1, 64, 5000, 30_000, 70_000, 150_000}
	spec := Spec{SizeBytes: sizes[w.rng.IntN(len(sizes))], Own: w.rng.IntN(8) == 0, Shared: w.rng.IntN(6) == 0,
		Class: object.Class(w.rng.IntN(4))}
	if spec.Class == object.TTL {
		spec.TTL = time.Hour
	}
	if spec.Class == object.Named || w.rng.IntN(3) == 0 {
		spec.Name = w.name()
	}
	a.sweep()
	h, err := a.Create(spec)
	if !w.did(err, nil, "%s creates %d bytes, %v, %q, shared %v", a.owner.Tenant, spec.SizeBytes, spec.Class, spec.Name,
		spec.Shared) {
		return
	}
	o := &thing{
		id: h.ID, tenant: a.tenant, size: spec.SizeBytes, class: spec.Class, name: spec.Name, listed: true,
		shared: spec.Shared, creator: a,
		fillers: map[*actor]bool{}, refs: map[*actor]int{a: 1}, grants: map[string]bool{},
	}
	w.things = append(w.things, o)
	w.receive(a, h, true)
	if m := a.maps[h.Ref.Segment]; o.size > 0 {
		if m == nil || !m.Writable() {
			w.fail("object %s: no writable memory", h.ID)
		}
		fillPattern(m.Bytes()[h.Ref.Offset:][:o.size], o.seed())
	}
}

func (w *world) put() {
	a := w.actor()
	sizes := []uint64{0, 1, 64, 5000, MaxPutBytes}
	spec := Spec{ID: object.NewID(), Class: object.Class(w.rng.IntN(3))}
	data, replace := make([]byte, sizes[w.rng.IntN(len(sizes))]), false
	fillPattern(data, spec.ID[0])
	if spec.Class == object.TTL {
		spec.TTL = time.Hour
	}
	if spec.Class == object.Named || w.rng.IntN(3) == 0 {
		spec.Name, replace = w.name(), w.rng.IntN(2) == 0
	}
	a.sweep()
	other := w.named(a.tenant, spec.Name)
	var want error
	if other != nil && !replace {
		want = object.ErrExists
	}
	h, err := a.Put(spec, replace, data)
	if !w.did(err, want, "%s puts %d bytes, %v, %q, replace %v", a.owner.Tenant, len(data), spec.Class, spec.Name,
		replace) {
		return
	}
	if other != nil {
		w.lose(other)
	}
	o := &thing{
		id: h.ID, tenant: a.tenant, size: uint64(len(data)), class: spec.Class, name: spec.Name, listed: true,
		sealed: true, held: spec.Class != object.Ephemeral, due: w.later(),
		fillers: map[*actor]bool{}, refs: map[*actor]int{a: 1}, grants: map[string]bool{},
	}
	w.things = append(w.things, o)
	w.receive(a, h, false)
	w.see(o, a.maps[h.Ref.Segment], h.Ref.Offset)
}

// receive maps what came with a handle.
func (w *world) receive(a *actor, h Handle, writable bool) {
	if h.FD < 0 {
		return
	}
	f := os.NewFile(uintptr(h.FD), "segment")
	defer f.Close()
	if a.maps[h.Ref.Segment] != nil {
		w.fail("segment %d came with a second descriptor", h.Ref.Segment)
	}
	m, err := segment.Map(f, h.Ref.SegmentBytes, writable)
	if err != nil {
		w.fail("%v", err)
	}
	a.maps[h.Ref.Segment] = m
}

// own says what a call that changes an object answers first.
func (o *thing) own(a *actor) error { return found(o.listed, o.tenant == a.tenant) }

func (o *thing) readable(a *actor) error {
	if o.listed && (o.grants[Everybody] || o.grants[tenantName(a.tenant)]) {
		return nil
	}
	return o.own(a)
}

func (w *world) seal() {
	o := w.thing()
	a := o.creator
	if a == nil || w.rng.IntN(8) == 0 {
		a = w.actor()
	}
	want := o.own(a)
	switch {
	case want != nil:
	case o.sealed:
		want = object.ErrSealed
	case o.creator != a:
		want = object.ErrPermission
	case len(o.fillers) > 0:
		want = object.ErrBusy
	case o.fault && w.rng.IntN(2) == 0:
		w.did(a.Forgive(o.id), nil, "forgive %s", o.id)
		o.fault = false
	case o.fault:
		want = object.ErrAborted
	}
	if want == nil && w.named(o.tenant, o.name) != nil {
		want = object.ErrExists
	}
	if !w.did(a.Seal(o.id, false), want, "seal %s", o.id) {
		return
	}
	o.sealed, o.creator, o.held, o.due = true, nil, o.class != object.Ephemeral, w.later()
}

// get waits where an object is on disk; memory that is short is a refusal.
func (w *world) get() {
	a, o := w.pair()
	id, name := o.id, ""
	if w.rng.IntN(3) == 0 {
		id, name = object.ID{}, w.name()
		o = w.named(a.tenant, name)
	}
	var want error = object.ErrNotFound
	if o != nil {
		want = o.readable(a)
	}
	w.sweepAll()
	var h Handle
	var err error
	if want == nil && o.sealed {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		h, err = a.Wait(ctx, id, name)
	} else {
		if want == nil {
			want = object.ErrNotSealed
		}
		h, err = a.GetEither(id, name)
	}
	if w.did(err, want, "%s gets %s %q", a.owner.Tenant, id, name) {
		if h.ID != o.id || h.Size != o.size {
			w.fail("got %+v, want %+v", h, o)
		}
		w.receive(a, h, false)
		w.see(o, a.maps[h.Ref.Segment], h.Ref.Offset)
		o.refs[a]++
	}
}

func (w *world) see(o *thing, m *segment.Mapping, off uint64) {
	if o.size == 0 {
		return
	}
	want := make([]byte, o.size)
	fillPattern(want, o.seed())
	if m == nil || string(m.Bytes()[off:][:o.size]) != string(want) {
		w.fail("object %s has other bytes", o.id)
	}
}

// read looks at an object where it lies, on disk perhaps.
func (w *world) read() {
	a, o := w.pair()
	want := o.readable(a)
	if want == nil && !o.sealed {
		want = object.ErrNotSealed
	}
	r, err := a.Open(o.id, "")
	if !w.did(err, want, "%s reads %s", a.owner.Tenant, o.id) {
		return
	}
	defer r.Close()
	b, err := r.Range(0, o.size)
	if err != nil && o.lost {
		return
	}
	expect := make([]byte, o.size)
	fillPattern(expect, o.seed())
	if err != nil || string(b) != string(expect) {
		w.fail("object %s reads otherwise: %v", o.id, err)
	}
}

func (w *world) release() {
	a, o := w.pair()
	for holder := range o.refs {
		if w.rng.IntN(4) > 0 {
			a = holder
		}
	}
	var want error
	if o.refs[a] == 0 {
		want = object.ErrNotFound
	}
	if w.did(a.Release(o.id), want, "release %s", o.id) {
		w.drop(o, a, 1)
	}
}

func (w *world) drop(o *thing, a *actor, n int) {
	if o.refs[a] -= n; o.refs[a] == 0 {
		delete(o.refs, a)
	}
	w.collect(o)
}

func (w *world) collect(o *thing) {
	if len(o.refs) > 0 || o.frames > 0 || o.held || o.in > 0 || o.pinned > 0 {
		return
	}
	w.unlist(o)
	members := o.members
	o.members = nil
	for _, m := range members {
		m.in--
		w.collect(m)
	}
}

func (w *world) unlist(o *thing) {
	o.listed, o.name, o.creator, o.held = false, "", nil, false
	o.grants, o.fillers = map[string]bool{}, map[*actor]bool{}
}

// letGo ends a sealed object's own life.
func (w *world) letGo(o *thing) {
	o.held = false
	if o.in == 0 {
		w.unlist(o)
	} else {
		o.name, o.class = "", object.Ephemeral
	}
	w.collect(o)
}

func (w *world) giveUp(o *thing) {
	delete(o.refs, o.creator)
	o.held = false
	w.unlist(o)
	w.collect(o)
}

func (w *world) remove() {
	a, o := w.pair()
	if o.creator != nil && w.rng.IntN(2) == 0 {
		a = o.creator
	}
	want := o.own(a)
	if w.rng.IntN(3) == 0 {
		switch {
		case want != nil:
		case o.sealed:
			want = object.ErrSealed
		case o.creator != a:
			want = object.ErrPermission
		}
		if w.did(a.Abort(o.id), want, "abort %s", o.id) {
			w.giveUp(o)
		}
		return
	}
	if want == nil && !o.sealed && o.creator != a {
		want = object.ErrNotSealed
	}
	if w.did(a.Delete(o.id, ""), want, "delete %s", o.id) {
		if o.sealed {
			w.letGo(o)
		} else {
			w.giveUp(o)
		}
	}
}

func (w *world) rename() {
	a, o := w.pair()
	name, replace := w.name(), w.rng.IntN(2) == 0
	want := o.own(a)
	other := w.named(a.tenant, name)
	switch {
	case want != nil:
	case !o.sealed:
		want = object.ErrNotSealed
	case other != nil && other != o && !replace:
		want = object.ErrExists
	}
	if !w.did(a.Bind(o.id, name, replace), want, "bind %s to %q", o.id, name) {
		return
	}
	o.held = true
	if other != nil && other != o {
		w.lose(other)
	}
	if o.class == object.Ephemeral {
		o.class = object.Named
	}
	o.name = name
}

// lose takes an object's name, which another took.
func (w *world) lose(o *thing) {
	o.name = ""
	if o.class == object.Named || o.class == object.Persisted {
		o.class, o.held = object.Ephemeral, false
	}
	w.collect(o)
}

func (w *world) share() {
	a, o := w.pair()
	who := tenantName(w.rng.IntN(worldTenants))
	if w.rng.IntN(3) == 0 {
		who = Everybody
	}
	revoke := w.rng.IntN(3) == 0
	want := o.own(a)
	switch {
	case want != nil:
	case !o.sealed:
		want = object.ErrNotSealed
	case revoke && !o.grants[who]:
		want = object.ErrNotFound
	}
	w.sweepAll()
	err := a.Grant(o.id, "", who, revoke)
	w.did(err, want, "grant %s to %s, revoke %v", o.id, who, revoke)
	if want != nil && len(o.members) == 0 {
		return
	}
	w.regrant(o) // of a tree a part may have been granted before memory was short
	if err == nil && o.grants[who] == revoke {
		w.fail("grants of %s: %v", o.id, o.grants)
	}
}

// regrant takes over what an object and its members are granted.
func (w *world) regrant(o *thing) {
	w.s.mu.Lock()
	if e := w.s.objects[o.id]; e != nil {
		o.grants = map[string]bool{}
		for _, who := range e.grants {
			o.grants[who] = true
		}
	}
	w.s.mu.Unlock()
	for _, m := range o.members {
		w.regrant(m)
	}
}

func (w *world) compose() {
	a := w.actor()
	spec := Spec{Class: []object.Class{object.Ephemeral, object.Named, object.TTL, object.Persisted}[w.rng.IntN(4)]}
	if spec.Class == object.TTL {
		spec.TTL = time.Hour
	}
	if spec.Class == object.Named || w.rng.IntN(2) == 0 {
		spec.Name = w.name()
	}
	var parts []*thing
	var members []object.Member
	var want error
	for i := range 1 + w.rng.IntN(3) {
		o := w.thing()
		for try := 0; try < 10 && (o.tenant != a.tenant || !o.sealed); try++ {
			o = w.thing()
		}
		parts, members = append(parts, o), append(members, object.Member{Name: strconv.Itoa(i), ID: o.id})
		if want != nil {
			continue
		}
		switch want = o.own(a); {
		case want != nil:
		case !o.sealed:
			want = object.ErrNotSealed
		case spec.Class == object.Persisted && o.class != object.Persisted:
			want = object.ErrInvalid
		case w.depth(o) >= 12: // far below the limit: trees of trees grow fast
			return
		}
	}
	if want == nil && w.named(a.tenant, spec.Name) != nil {
		want = object.ErrExists
	}
	id, err := a.Compose(spec, members)
	if !w.did(err, want, "compose %v %q of %d", spec.Class, spec.Name, len(members)) {
		return
	}
	o := &thing{id: id, tenant: a.tenant, class: spec.Class, name: spec.Name, sealed: true, listed: true,
		held:    spec.Class != object.Ephemeral,
		fillers: map[*actor]bool{}, refs: map[*actor]int{a: 1}, grants: map[string]bool{}, members: parts,
		due: w.later()}
	for _, m := range parts {
		m.in++
	}
	w.things = append(w.things, o)
}

func (w *world) depth(o *thing) (n int) {
	for _, m := range o.members {
		n = max(n, w.depth(m))
	}
	return n + 1
}

// fill joins in filling an object, or ends that.
func (w *world) fill() {
	o := w.thing()
	if w.rng.IntN(2) == 0 {
		for _, other := range w.things { // one that is for several, where there is any
			if other.shared && other.listed && !other.sealed {
				o = other
			}
		}
	}
	for a := range o.fillers {
		if w.rng.IntN(2) == 0 {
			w.did(a.Filled(o.id), nil, "filled %s", o.id)
			delete(o.fillers, a)
			return
		}
	}
	a := w.actor()
	want := o.own(a)
	switch {
	case want != nil:
	case o.sealed:
		want = object.ErrSealed
	case !o.shared:
		want = object.ErrPermission
	case o.creator == a || o.fillers[a]:
		want = object.ErrExists
	}
	h, err := a.Fill(o.id, "")
	if w.did(err, want, "fill %s", o.id) {
		w.receive(a, h, true)
		o.fillers[a] = true
	}
}

// stream opens, ends, removes or closes one.
func (w *world) stream() {
	a, name := w.actor(), "s"+strconv.Itoa(w.rng.IntN(2))
	st := w.streams[a.tenant][name]
	id, has := a.ends[name]
	switch n := w.rng.IntN(8); {
	case has && n < 2:
		w.did(a.CloseStream(id), nil, "close stream %s", name)
		w.leave(a, name, false)
	case has && n == 2:
		var want error
		w.did(a.EndStream(id, false), want, "end stream %s", name)
		if st != nil && st.ends[a] {
			st.ended = true
		}
	case n == 3:
		var want error
		if st == nil {
			want = object.ErrNotFound
		}
		if w.did(a.RemoveStream(name), want, "remove stream %s", name) {
			w.gone(a.tenant, name)
		}
	case !has:
		w.openStream(a, name, st)
	}
}

func (w *world) openStream(a *actor, name string, st *channel) {
	spec := StreamSpec{Name: name, Reads: true, Writes: true, Frames: 1 + w.rng.IntN(4), DropOldest: w.rng.IntN(5) == 0,
		Keep: w.rng.IntN(5) == 0}
	var want error
	if st != nil && st.ended {
		want = object.ErrEnded
	}
	end, err := a.OpenStream(spec)
	if !w.did(err, want, "%s opens stream %s", a.owner.Tenant, name) {
		return
	}
	if st == nil {
		st = &channel{ends: map[*actor]bool{}}
		w.streams[a.tenant][name] = st
	}
	st.limit, st.drops, st.keep, st.broken = spec.Frames, st.drops || spec.DropOldest, st.keep || spec.Keep, false
	st.ends[a] = true
	st.writers++
	a.ends[name] = end.ID
}

// leave takes an actor's end away; of a stream that was removed there is nothing more to take.
func (w *world) leave(a *actor, name string, died bool) {
	delete(a.ends, name)
	st := w.streams[a.tenant][name]
	if st == nil || !st.ends[a] {
		return
	}
	delete(st.ends, a)
	if st.writers--; st.writers == 0 && died && !st.ended {
		st.broken = true
	}
	if len(st.ends) == 0 && len(st.frames) == 0 && !st.keep {
		w.gone(a.tenant, name)
	}
}

func (w *world) gone(tenant int, name string) {
	st := w.streams[tenant][name]
	delete(w.streams[tenant], name)
	for _, o := range st.frames {
		o.frames--
		w.collect(o)
	}
}

// openEnd gives an actor with a stream open; has is false where there is none.
func (w *world) openEnd() (a *actor, name string, id uint64, st *channel, has bool) {
	a = w.actor()
	for name, id = range a.ends {
		st = w.streams[a.tenant][name]
		if st != nil && !st.ends[a] { // removed, and another is called so now
			st = nil
		}
		return a, name, id, st, true
	}
	return nil, "", 0, nil, false
}

func (w *world) push() {
	a, name, id, st, has := w.openEnd()
	if !has {
		return
	}
	o := w.thing()
	for _, other := range w.things {
		if other.refs[a] > 0 && other.sealed && w.rng.IntN(3) == 0 {
			o = other
		}
	}
	var want error
	switch {
	case o.refs[a] == 0:
		want = object.ErrNotFound
	case o.tenant != a.tenant:
		want = object.ErrPermission
	case !o.sealed:
		want = object.ErrNotSealed
	case st == nil:
		want = object.ErrAborted
	case st.ended:
		want = object.ErrEnded
	case len(st.frames) >= st.limit && !st.drops:
		want = object.ErrTimeout
	}
	_, err := a.Push(id, o.id, 0, nil)
	if !w.did(err, want, "push %s into %s", o.id, name) {
		return
	}
	for len(st.frames) >= st.limit {
		first := st.frames[0]
		st.frames = st.frames[1:]
		first.frames--
		w.collect(first)
	}
	st.frames = append(st.frames, o)
	o.frames++
	w.drop(o, a, 1)
}

func (w *world) pop() {
	a, name, id, st, has := w.openEnd()
	if !has {
		return
	}
	var want error
	switch {
	case st == nil:
		want = object.ErrAborted
	case len(st.frames) > 0:
	case st.ended:
		want = object.ErrEnded
	case st.broken:
		want = object.ErrAborted
	default:
		want = object.ErrTimeout
	}
	p, _, err := a.Pop(id, 0, nil)
	if !w.did(err, want, "pop from %s", name) {
		return
	}
	o := st.frames[0]
	st.frames = st.frames[1:]
	if p.ID != o.id {
		w.fail("popped %s, want %s", p.ID, o.id)
	}
	w.receive(a, p.Handle, false)
	if m := a.maps[p.Ref.Segment]; m != nil {
		w.see(o, m, p.Ref.Offset)
	}
	o.frames--
	o.refs[a]++
}

// change pins, persists or gives a time to live.
func (w *world) change() {
	a, o := w.pair()
	want := o.own(a)
	if want == nil && !o.sealed {
		want = object.ErrNotSealed
	}
	var change Change
	after := func() {}
	switch w.rng.IntN(4) {
	case 0:
		pin := w.rng.IntN(3) == 0
		change.Pinned = &pin
	case 1:
		change.Persist = true
		after = func() { o.class, o.held = object.Persisted, true }
	case 2:
		hour := time.Hour
		change.TTL = &hour
		if want == nil && o.class == object.Persisted {
			want = object.ErrInvalid
		}
		after = func() { o.class, o.held, o.due = object.TTL, true, w.later() }
	case 3:
		change.Labels = map[string]string{"k": strconv.Itoa(w.rng.IntN(3))}
	}
	if change.Persist && want == nil && len(o.members) > 0 {
		return // of a composite all members would have to be
	}
	err := a.Update(o.id, "", change)
	if change.Persist && want == nil && errors.Is(err, object.ErrBusy) {
		return // it is on its way to disk: to be tried again
	}
	if w.did(err, want, "change %s: %+v", o.id, change) {
		after()
	}
}

// kill ends a client; a new one comes in its place.
func (w *world) kill() {
	i := w.rng.IntN(len(w.actors))
	a := w.actors[i]
	w.log = append(w.log, "kill a client of "+a.owner.Tenant)
	a.Conn.Close()
	a.unmapAll()
	w.unpinAll(a, false)
	a.shut()
	for name := range a.ends {
		w.leave(a, name, true)
	}
	for _, o := range w.things {
		if o.fillers[a] {
			delete(o.fillers, a)
			o.fault = true
		}
	}
	for _, o := range w.things {
		if o.creator == a {
			w.giveUp(o)
		}
	}
	for _, o := range w.things {
		if o.refs[a] > 0 {
			w.drop(o, a, o.refs[a])
		}
	}
	w.actors[i] = w.join(a.tenant)
}

// expire lets two hours pass. Each end is complete before the next: of a large tree the attendant lets the members go,
// and what ends meanwhile is still one of them.
func (w *world) expire() {
	w.log = append(w.log, "two hours pass")
	for end := time.Now().Add(2 * time.Hour); ; settled(w.t, w.s) {
		w.s.mu.Lock()
		more := len(w.s.expiries) > 0 && !w.s.expiries[0].expires.After(end)
		if more {
			w.s.expire(w.s.expiries[0].expires)
		}
		w.s.unlock()
		if !more {
			break
		}
	}
	// In the order of their ends: what a composite has when its time is over stays for it, what it had before goes.
	list := slices.Clone(w.things)
	slices.SortFunc(list, func(a, b *thing) int { return a.due - b.due })
	for _, o := range list {
		if o.listed && o.sealed && o.class == object.TTL {
			w.letGo(o)
		}
	}
}

// compare forgets what is dead and wants reference and store to agree.
func (w *world) compare() {
	w.t.Helper()
	w.things = slices.DeleteFunc(w.things, func(o *thing) bool {
		return !o.listed && len(o.refs) == 0 && o.frames == 0 && o.in == 0 && o.pinned == 0
	})
	objects, open, refs := 0, 0, 0
	for _, o := range w.things {
		for _, n := range o.refs {
			refs += n
		}
		refs += o.pinned
		if o.listed {
			objects++
		}
		if o.listed && !o.sealed {
			open++
		}
	}
	settled(w.t, w.s)
	if st := w.s.Status(); st.Objects != objects || st.OpenObjects != open || st.References != refs {
		w.fail("the store has %d objects, %d open, %d references; the reference %d, %d, %d: %s", st.Objects,
			st.OpenObjects, st.References, objects, open, refs, w.differ())
	}
	if fault := w.s.invariants(false); fault != "" {
		w.fail("%s", fault)
	}
	if text := w.differ(); text != "" {
		w.fail("%s", text)
	}
}

// settled waits for what the store does a moment later: what is left to attendants, and looks through the index for
// records that nobody holds.
func settled(t testing.TB, s *Store) {
	t.Helper()
	var busy string
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(time.Millisecond) {
		if busy = s.unsettled(); busy == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the store does not do within five minutes what it is to do: tenant %s", busy)
		}
	}
}

// unsettled says for which tenant there is something to do, and what; "" for none.
func (s *Store) unsettled() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tenants {
		if t.attended || t.hasWork() {
			return t.name + ": the attendant's"
		}
		ix := t.index
		if ix == nil {
			continue
		}
		var held []index.Word
		for _, slots := range ix.slots {
			held = slots.Held(held)
		}
		if len(ix.fresh) > 0 || ix.looking != nil || slices.ContainsFunc(ix.kept, func(r retirement) bool {
			return !slices.Contains(held, r.word)
		}) {
			return fmt.Sprintf("%s: a look for %d and %d records", t.name, len(ix.fresh), len(ix.kept))
		}
	}
	return ""
}

// differ compares object by object.
func (w *world) differ() string {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	listed := map[object.ID]bool{}
	for _, o := range w.things {
		listed[o.id] = o.listed
	}
	for id, e := range w.s.objects {
		if !listed[id] {
			return fmt.Sprintf("object %s is there: %q, %v, %v, %d bytes, held %v, %d references, in %d, %d members, grants %v, on disk %v",
				id, e.name, e.class, e.state, e.size, e.held, e.refs, e.memberOf, len(e.members), e.grants, e.onDisk)
		}
	}
	for _, o := range w.things {
		if e := w.s.objects[o.id]; o.listed && (e == nil || e.name != o.name || e.class != o.class || o.sealed &&
			e.held != o.held || e.memberOf != o.in) {
			if e == nil {
				return fmt.Sprintf("object %s is gone", o.id)
			}
			return fmt.Sprintf("object %s is %q, %v, held %v, in %d; the reference has %q, %v, %v, %d", o.id, e.name,
				e.class, e.held, e.memberOf, o.name, o.class, o.held, o.in)
		}
	}
	return ""
}

// restart ends the store and opens another on its directory. Persisted objects are all there again, with names and
// bytes; what had gone to disk may be, and then is whole.
func (w *world) restart() {
	w.log = append(w.log, "restart")
	w.endLookers()
	for _, a := range w.actors {
		a.unmapAll()
		a.shut()
	}
	w.s.Close()
	old := w.things
	w.open()
	w.things = nil
	found := map[object.ID]*thing{}
	w.s.mu.Lock()
	for _, o := range old {
		e := w.s.objects[o.id]
		must := o.listed && o.sealed && o.class == object.Persisted
		switch {
		case e == nil && must:
			w.s.mu.Unlock()
			w.fail("persisted object %s is lost", o.id)
		case e == nil:
			continue
		case !o.listed || !o.sealed:
			w.s.mu.Unlock()
			w.fail("object %s, which was gone or never sealed, is there again", o.id)
		case must && e.name != o.name:
			w.s.mu.Unlock()
			w.fail("persisted object %s was named %q, now %q", o.id, o.name, e.name)
		case e.class != o.class:
			w.s.mu.Unlock()
			w.fail("object %s was of class %v, now %v", o.id, o.class, e.class)
		}
		o.name, o.held, o.in, o.frames, o.creator, o.lost = e.name, e.held, e.memberOf, 0, nil, e.fault != nil
		o.pinned = 0
		o.refs, o.fillers = map[*actor]int{}, map[*actor]bool{}
		w.things = append(w.things, o)
		found[o.id] = o
	}
	for _, o := range w.things {
		o.members = nil
		for _, m := range w.s.objects[o.id].members {
			o.members = append(o.members, found[m.e.id])
		}
	}
	unknown := len(w.s.objects) - len(w.things)
	w.s.mu.Unlock()
	if unknown != 0 {
		w.fail("%d objects are there that nobody made", unknown)
	}
	for _, o := range w.things {
		w.regrant(o)
	}
	w.compare()
}

// handOver leaves the store to a next one while the clients live on, and claim what they hold. What was being filled
// ends; so does what was deleted and had references alone.
func (w *world) handOver() {
	w.log = append(w.log, "handover")
	w.endLookers()
	w.s.Leave()
	old := w.actors
	for _, a := range old {
		a.Conn.Close()
		w.unpinAll(a, true)
		a.shut()
		for name := range a.ends {
			w.leave(a, name, false)
		}
	}
	for _, o := range w.things {
		if o.creator != nil {
			w.giveUp(o)
		}
		for a, n := range o.refs {
			if !o.listed {
				w.drop(o, a, n)
			}
		}
	}
	for tenant := range w.streams {
		for name := range w.streams[tenant] {
			w.thin(tenant, name)
		}
	}
	opts := w.opts
	opts.Handoff = w.s.Handoff()
	var err error
	if w.s, err = New(opts); err != nil {
		w.t.Fatal(err)
	}
	w.actors = nil
	for _, a := range old {
		w.actors = append(w.actors, w.comeBack(a))
	}
	for _, orphan := range w.s.Orphans() {
		orphan.Close()
	}
	for _, o := range w.things {
		w.collect(o)
	}
	w.joinLookers()
	w.compare()
}

// thin takes frames out of a stream that were deleted while they waited.
func (w *world) thin(tenant int, name string) {
	st := w.streams[tenant][name]
	st.frames = slices.DeleteFunc(st.frames, func(o *thing) bool {
		if o.listed {
			return false
		}
		o.frames--
		w.collect(o)
		return true
	})
	if len(st.frames) == 0 && !st.keep {
		w.gone(tenant, name)
	}
}

// comeBack is a client's next connection.
func (w *world) comeBack(a *actor) *actor {
	next := w.join(a.tenant)
	for _, o := range w.things {
		n := o.refs[a]
		delete(o.refs, a)
		for range n {
			mapped := w.segmentOf(o)
			if a.maps[mapped] == nil {
				mapped = 0
			}
			again, here := next.Reclaim(o.id, mapped)
			if o.readable(a) != nil { // a grant was revoked meanwhile: what is mapped stays readable, and no more
				if again {
					w.fail("%s claims %s, which it may not read", a.owner.Tenant, o.id)
				}
				continue
			}
			if !again || here != (mapped != 0) {
				w.fail("%s claims %s in segment %d: %v, %v", a.owner.Tenant, o.id, mapped, again, here)
			}
			if here {
				next.maps[mapped] = a.maps[mapped]
			}
			o.refs[next]++
		}
	}
	for id := range next.maps {
		delete(a.maps, id)
	}
	a.unmapAll()
	return next
}

func (w *world) segmentOf(o *thing) uint64 {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if e := w.s.objects[o.id]; e != nil && e.seg != nil {
		return e.seg.id
	}
	return 0
}

// finish deletes all and wants nothing left, in memory or on disk.
func (w *world) finish() {
	w.t.Helper()
	w.endLookers()
	for range w.actors {
		w.kill()
	}
	for i := range w.actors {
		a := w.actors[i]
		a.unmapAll()
		for _, info := range a.Streams("") {
			if err := a.RemoveStream(info.Name); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	for _, a := range w.actors {
		for name := range w.streams[a.tenant] {
			delete(w.streams[a.tenant], name)
		}
		for _, info := range a.List("", true) {
			if err := a.Delete(info.ID, ""); err != nil && !errors.Is(err, object.ErrNotFound) &&
				!errors.Is(err, object.ErrNotSealed) {
				w.t.Fatal(err)
			}
		}
	}
	for _, a := range w.actors {
		a.Conn.Close()
		a.unmapAll()
		a.shut()
	}
	waitFor(w.t, func() bool {
		st := w.s.Status()
		return st.ChargedBytes == 0 && st.Segments == 0 && st.References == 0 && len(st.Tenants) == 0 &&
			st.DiskBytes == 0
	})
	if fault := w.s.invariants(true); fault != "" {
		w.fail("%s", fault)
	}
	w.s.Close()
}

// runWorld takes steps, with a restart or a handover now and then.
func runWorld(t testing.TB, seed uint64, steps int, dir string) *world {
	w := newWorld(t, seed, dir)
	defer func() {
		if t.Failed() {
			w.s.Close()
		}
	}()
	away, living := 0, 0
	for range steps {
		w.step()
		switch w.rng.IntN(300) {
		case 0, 1:
			w.restart()
		case 2, 3:
			w.handOver()
		}
		if st := w.s.Status(); st.SpilledObjects > 0 {
			away++
		}
		living += len(w.things)
	}
	w.finish()
	t.Logf("%d objects on average; some were on disk alone in %d of %d steps; %d steps refused for want of room",
		living/steps, away, steps, w.refused)
	if w.indexed {
		t.Logf("%d objects held in slots of the index, %d seen there meanwhile", w.pins, w.seen.Load())
	}
	return w
}

// worldLasts says how long TestWorld goes on with new seeds: TENDRIL_SOAK, a duration; make soak sets it.
func worldLasts(t testing.TB) time.Duration {
	text := os.Getenv("TENDRIL_SOAK")
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("TENDRIL_SOAK=%s: %v", text, err)
	}
	return d
}

func TestWorld(t *testing.T) {
	first, seeds, steps := uint64(0), uint64(12), 800
	if testing.Short() {
		seeds, steps = 4, 400
	}
	lasts := worldLasts(t)
	if lasts > 0 {
		first, steps = uint64(time.Now().UnixNano()), 4000
	}
	if text := os.Getenv("TENDRIL_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		first, seeds = n, 1
	}
	runWorld(t, first, 200, t.TempDir())
	before := resources(t)
	end := time.Now().Add(lasts)
	refused, ran, pins, seen := 0, 0, 0, int64(0)
	for seed := first; seed < first+seeds || time.Now().Before(end); seed++ {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := runWorld(t, seed, steps, dir)
			refused, pins, seen = refused+w.refused, pins+w.pins, seen+w.seen.Load()
		}) {
			t.Fatalf("again: TENDRIL_SEED=%d (steps as in this run)", seed)
		}
		os.RemoveAll(dir)
		ran++
	}
	t.Logf("%d worlds of %d steps; %d refused for want of room", ran, steps, refused)
	if ran > 1 && (pins == 0 || seen == 0) {
		t.Errorf("%d objects held in slots of the index, %d seen there meanwhile", pins, seen)
	}
	wantNoMoreThan(t, before)
}
