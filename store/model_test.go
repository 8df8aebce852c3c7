package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
	"time"

	mmap "github.com/edsrzf/mmap-go"
	"golang.org/x/sys/unix"

	"tendril/store/object"
	"tendril/store/segment"
)

// faulty is a kernel that fails the calls that fail chooses, counted from 0.
type faulty struct {
	segment.Linux
	calls atomic.Int64
	fail  func(call int64) bool
}

func (f *faulty) next() error {
	if n := f.calls.Add(1) - 1; f.fail != nil && f.fail(n) {
		return unix.ENOMEM
	}
	return nil
}

func (f *faulty) MemfdCreate(name string) (int, error) {
	if err := f.next(); err != nil {
		return -1, err
	}
	return f.Linux.MemfdCreate(name)
}

func (f *faulty) Ftruncate(fd int, n int64) error {
	if err := f.next(); err != nil {
		return err
	}
	return f.Linux.Ftruncate(fd, n)
}

func (f *faulty) Populate(fd int, off, n int64) error {
	if err := f.next(); err != nil {
		return err
	}
	return f.Linux.Populate(fd, off, min(n, 8192)) // the whole would only take time here
}

func (f *faulty) AddSeals(fd, seals int) error {
	if err := f.next(); err != nil {
		return err
	}
	return f.Linux.AddSeals(fd, seals)
}

func (f *faulty) Dup(fd int) (int, error) {
	if err := f.next(); err != nil {
		return -1, err
	}
	return f.Linux.Dup(fd)
}

func (f *faulty) Map(file *os.File, n, prot int) (mmap.MMap, error) {
	if err := f.next(); err != nil {
		return nil, err
	}
	return f.Linux.Map(file, n, prot)
}

// modelObject is the naive reference of an object.
type modelObject struct {
	id       object.ID
	tenant   int
	size     uint64
	name     string // wanted or bound
	named    bool   // class
	sealed   bool
	listed   bool // in the table
	creator  *modelConn
	refs     map[*modelConn]int
	ref      object.Ref
	nameHold bool
}

type modelConn struct {
	*Conn
	tenant   int
	known    map[uint64]bool // segments whose descriptor came
	sessions map[uint64]uint64
}

// model drives a Store and the reference side by side.
type model struct {
	t       *testing.T
	rng     *rand.Rand
	s       *Store
	conns   []*modelConn
	objects []*modelObject
	faults  bool // a failing kernel is allowed to refuse
}

func (m *model) pickConn() *modelConn { return m.conns[m.rng.IntN(len(m.conns))] }

// pickObject prefers what is alive.
func (m *model) pickObject() *modelObject {
	if len(m.objects) == 0 {
		return &modelObject{id: object.NewID(), refs: map[*modelConn]int{}, tenant: -1}
	}
	return m.objects[m.rng.IntN(len(m.objects))]
}

func (m *model) pickName() string { return fmt.Sprintf("n%d", m.rng.IntN(6)) }

func (m *model) byName(tenant int, name string) *modelObject {
	for _, o := range m.objects {
		if o.listed && o.sealed && o.tenant == tenant && name != "" && o.name == name {
			return o
		}
	}
	return nil
}

// want compares an outcome; refused reports that the kernel or the capacity refused, and nothing may have changed.
func (m *model) want(what string, got, want error) (refused bool) {
	m.t.Helper()
	if want == nil && (errors.Is(got, object.ErrFull) || m.faults && errors.Is(got, unix.ENOMEM)) {
		return true
	}
	if !errors.Is(got, want) || want == nil && got != nil {
		m.t.Fatalf("%s: got %v, want %v", what, got, want)
	}
	return false
}

// receive checks that a descriptor comes exactly with a segment's first mention.
func (m *model) receive(c *modelConn, h Handle) {
	m.t.Helper()
	if h.Ref.Segment == 0 {
		if h.FD != -1 {
			m.t.Fatal("an empty object came with a descriptor")
		}
		return
	}
	if (h.FD >= 0) == c.known[h.Ref.Segment] {
		m.t.Fatalf("segment %d: descriptor %d, known %v", h.Ref.Segment, h.FD, c.known[h.Ref.Segment])
	}
	c.known[h.Ref.Segment] = true
	closeHandle(h)
}

func (m *model) step() {
	switch m.rng.IntN(16) {
	case 0, 1, 2, 3:
		m.create()
	case 4, 5, 6:
		m.seal()
	case 7, 8:
		m.get()
	case 9, 10, 11:
		m.release()
	case 12:
		m.deleteOrAbort()
	case 13:
		m.bind()
	case 14:
		m.session()
	case 15:
		m.leave()
	}
	m.check()
}

func (m *model) create() {
	c := m.pickConn()
	sizes := []uint64{0, 1, 63, 64, 65, 4096, 70_000, 300_000, 1 << 20}
	spec := Spec{SizeBytes: sizes[m.rng.IntN(len(sizes))], Own: m.rng.IntN(10) == 0}
	if m.rng.IntN(3) == 0 {
		spec.Name = m.pickName()
		spec.Class = object.Class(m.rng.IntN(2) * int(object.Named))
	}
	h, err := c.Create(spec)
	if m.want("create", err, nil) {
		return
	}
	m.receive(c, h)
	m.objects = append(m.objects, &modelObject{
		id: h.ID, tenant: c.tenant, size: spec.SizeBytes, name: spec.Name, named: spec.Class == object.Named,
		listed: true, creator: c,
		refs: map[*modelConn]int{c: 1}, ref: h.Ref,
	})
}

// lookup is what every call by id answers first.
func (o *modelObject) lookup(c *modelConn) error { return found(o.listed, o.tenant == c.tenant) }

// found says what a call answers by an id first.
func found(listed, own bool) error {
	switch {
	case !listed:
		return object.ErrNotFound
	case !own:
		return object.ErrPermission
	}
	return nil
}

func (m *model) seal() {
	o := m.pickObject()
	c := o.creator
	if c == nil || m.rng.IntN(8) == 0 {
		c = m.pickConn()
	}
	want := o.lookup(c)
	switch {
	case want != nil:
	case o.sealed:
		want = object.ErrSealed
	case o.creator != c:
		want = object.ErrPermission
	case m.byName(o.tenant, o.name) != nil:
		want = object.ErrExists
	}
	if m.want("seal", c.Seal(o.id, false), want) || want != nil {
		return
	}
	o.sealed, o.creator, o.nameHold = true, nil, o.named
}

func (m *model) get() {
	c, o := m.pickConn(), m.pickObject()
	if m.rng.IntN(3) == 0 {
		name := m.pickName()
		h, err := c.GetName(name)
		if o = m.byName(c.tenant, name); o == nil {
			m.want("get by name", err, object.ErrNotFound)
		} else if !m.want("get by name", err, nil) {
			m.got(c, o, h)
		}
		return
	}
	want := o.lookup(c)
	if want == nil && !o.sealed {
		want = object.ErrNotSealed
	}
	h, err := c.Get(o.id)
	if !m.want("get", err, want) && want == nil {
		m.got(c, o, h)
	}
}

func (m *model) got(c *modelConn, o *modelObject, h Handle) {
	m.t.Helper()
	if h.ID != o.id || h.Ref != o.ref || h.Size != o.size {
		m.t.Fatalf("got %+v, want %+v", h, o)
	}
	m.receive(c, h)
	o.refs[c]++
}

func (m *model) release() {
	c, o := m.pickConn(), m.pickObject()
	for holder := range o.refs {
		if m.rng.IntN(4) > 0 {
			c = holder
		}
	}
	var want error
	if o.refs[c] == 0 {
		want = object.ErrNotFound
	}
	m.want("release", c.Release(o.id), want)
	if want == nil {
		m.drop(o, c, 1)
	}
}

// drop takes n references of c's.
func (m *model) drop(o *modelObject, c *modelConn, n int) {
	if o.refs[c] -= n; o.refs[c] == 0 {
		delete(o.refs, c)
	}
	m.collect(o)
}

func (m *model) collect(o *modelObject) {
	if len(o.refs) == 0 && !o.nameHold {
		m.unlist(o)
	}
}

func (m *model) unlist(o *modelObject) {
	o.listed, o.name, o.creator, o.nameHold = false, "", nil, false
}

func (m *model) deleteOrAbort() {
	c, o := m.pickConn(), m.pickObject()
	if o.creator != nil && m.rng.IntN(2) == 0 {
		c = o.creator
	}
	want := o.lookup(c)
	if m.rng.IntN(2) == 0 {
		switch {
		case want != nil:
		case o.sealed:
			want = object.ErrSealed
		case o.creator != c:
			want = object.ErrPermission
		}
		m.want("abort", c.Abort(o.id), want)
	} else {
		if want == nil && !o.sealed && o.creator != c {
			want = object.ErrNotSealed
		}
		m.want("delete", c.Delete(o.id, ""), want)
	}
	if want == nil {
		if !o.sealed {
			delete(o.refs, c)
		}
		m.unlist(o)
	}
}

func (m *model) bind() {
	c, o, name, replace := m.pickConn(), m.pickObject(), m.pickName(), m.rng.IntN(2) == 0
	want := o.lookup(c)
	other := m.byName(c.tenant, name)
	switch {
	case want != nil:
	case !o.sealed:
		want = object.ErrNotSealed
	case other != nil && other != o && !replace:
		want = object.ErrExists
	}
	m.want("bind", c.Bind(o.id, name, replace), want)
	if want != nil {
		return
	}
	if other != nil && other != o {
		other.name, other.nameHold = "", false
		m.collect(other)
	}
	o.name, o.named, o.nameHold = name, true, true
}

func (m *model) session() {
	c := m.pickConn()
	for id, size := range c.sessions {
		delete(c.sessions, id)
		if m.rng.IntN(2) == 0 {
			m.want("free", c.FreeSegment(id), nil)
			return
		}
		obj, err := c.PublishSegment(Publication{Segment: id, SizeBytes: size})
		if m.want("publish", err, nil) {
			c.sessions[id] = size
			return
		}
		m.objects = append(m.objects, &modelObject{
			id: obj, tenant: c.tenant, size: size, sealed: true, listed: true, refs: map[*modelConn]int{c: 1},
			ref: object.Ref{Segment: id, SegmentBytes: segment.RoundUp(size)},
		})
		return
	}
	size := 1 + m.rng.Uint64N(100_000)
	g, err := c.AllocSegment(size)
	if !m.want("alloc", err, nil) {
		unix.Close(g.FD)
		c.sessions[g.ID] = size
	}
}

// leave is a sweep, a Forget, or the connection's end and another one's beginning.
func (m *model) leave() {
	i := m.rng.IntN(len(m.conns))
	c := m.conns[i]
	switch m.rng.IntN(3) {
	case 0:
		for _, id := range c.Sweep() {
			m.want("forget", c.Forget(id), nil)
			delete(c.known, id)
		}
	case 1:
		for id := range c.known {
			if err := c.Forget(id); err != nil && !errors.Is(err, object.ErrNotFound) {
				m.t.Fatal(err)
			}
			delete(c.known, id)
			break
		}
	case 2:
		c.Close()
		for _, o := range m.objects {
			if o.creator == c {
				delete(o.refs, c)
				m.unlist(o)
			} else if o.refs[c] > 0 {
				m.drop(o, c, o.refs[c])
			}
		}
		m.conns[i] = m.connect(c.tenant)
	}
}

func (m *model) connect(tenant int) *modelConn {
	return &modelConn{Conn: connect(m.t, m.s, fmt.Sprintf("t%d", tenant)), tenant: tenant, known: map[uint64]bool{},
		sessions: map[uint64]uint64{}}
}

// check compares the totals and looks for objects that overlap.
func (m *model) check() {
	m.t.Helper()
	var objects, open, refs int
	var used uint64
	alive := m.objects[:0]
	for _, o := range m.objects {
		for _, n := range o.refs {
			refs += n
		}
		if o.listed {
			objects++
			used += o.size
		}
		if o.listed && !o.sealed {
			open++
		}
		if o.listed || len(o.refs) > 0 {
			alive = append(alive, o)
		}
	}
	m.objects = alive
	st := m.s.Status()
	if st.Objects != objects || st.OpenObjects != open || st.References != refs || st.UsedBytes != used {
		m.t.Fatalf("store has %d objects, %d open, %d references, %d bytes; the model %d, %d, %d, %d",
			st.Objects, st.OpenObjects, st.References, st.UsedBytes, objects, open, refs, used)
	}
	for i, a := range alive {
		for _, b := range alive[:i] {
			if a.ref.Segment == b.ref.Segment && a.size > 0 && b.size > 0 && a.ref.Offset < b.ref.Offset+b.size &&
				b.ref.Offset < a.ref.Offset+a.size {
				m.t.Fatalf("%+v and %+v overlap", a, b)
			}
		}
	}
	m.checkCharges(st)
}

func (m *model) checkCharges(st Status) {
	m.t.Helper()
	if st.ChargedBytes != st.SegmentBytes+st.TableBytes || st.ChargedBytes+st.WarmBytes > st.CapacityBytes {
		m.t.Fatalf("charges do not add up: %+v", st)
	}
	var tenants uint64
	for _, t := range st.Tenants {
		tenants += t.ChargedBytes
	}
	if tenants != st.ChargedBytes {
		m.t.Fatalf("tenants are charged %d of %d bytes", tenants, st.ChargedBytes)
	}
}

// finish ends everything and wants nothing left.
func (m *model) finish() {
	m.t.Helper()
	for _, c := range m.conns {
		c.Close()
	}
	last := connect(m.t, m.s, "t0")
	other := connect(m.t, m.s, "t1")
	for _, c := range []*Conn{last, other} {
		for _, info := range c.List("", true) {
			if err := c.Delete(info.ID, ""); err != nil {
				m.t.Fatal(err)
			}
		}
		c.Close()
	}
	nothing := func() bool {
		st := m.s.Status()
		return st.ChargedBytes == 0 && st.Segments == 0 && st.References == 0 && len(st.Tenants) == 0
	}
	// the kernel tells a moment later what is free
	for end := time.Now().Add(5 * time.Minute); !nothing(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			m.t.Fatalf("left over: %+v", m.s.Status())
		}
	}
}

func runModel(t *testing.T, seed uint64, steps int, sys *faulty) {
	rng := rand.New(rand.NewPCG(seed, 7))
	s := newStore(t, Options{CapacityBytes: 8 << 20, SegmentBytes: 512 << 10, System: sys})
	m := &model{t: t, rng: rng, s: s, faults: sys.fail != nil}
	for i := range 5 {
		m.conns = append(m.conns, m.connect(i%2))
	}
	for range steps {
		m.step()
	}
	m.finish()
}

func TestModel(t *testing.T) {
	for seed := range uint64(25) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runModel(t, seed, 800, &faulty{}) })
	}
}

func TestModelOnAFailingKernel(t *testing.T) {
	before := memfds(t)
	for seed := range uint64(15) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 8))
			runModel(t, seed, 500, &faulty{fail: func(int64) bool { return rng.IntN(4) == 0 }})
		})
	}
	if after := memfds(t); after != before {
		t.Errorf("descriptors of segments: %d before, %d after", before, after)
	}
}

// TestEachSystemCallFails fails the first call, then the second, … until the program meets none that fails.
func TestEachSystemCallFails(t *testing.T) {
	before := memfds(t)
	for bad := int64(0); ; bad++ {
		sys := &faulty{fail: func(call int64) bool { return call == bad }}
		t.Run(fmt.Sprint(bad), func(t *testing.T) { runModel(t, 99, 120, sys) })
		if sys.calls.Load() <= bad {
			break
		}
	}
	if after := memfds(t); after != before {
		t.Errorf("descriptors of segments: %d before, %d after", before, after)
	}
}
