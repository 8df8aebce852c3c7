package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"tendril/store/index"
	"tendril/store/object"
	"tendril/store/segment"
)

// indexClient is a process with an index, as the store sees one, in this process.
type indexClient struct {
	*Conn
	t      testing.TB
	reader *index.Reader
	pins   *index.Pins
	maps   map[uint64]*segmentMaps
	held   []*heldObject
}

type segmentMaps struct{ writable, readable *segment.Mapping }

// heldObject is an object that a client holds, through a slot or (slot −1) over the socket.
type heldObject struct {
	id     object.ID
	seg    uint64
	memory []byte
	slot   int
}

func indexed(t testing.TB, s *Store, tenant string) *indexClient {
	t.Helper()
	c := connect(t, s, tenant)
	slotsFD, levelFD, err := c.OpenIndex()
	if err != nil {
		t.Fatal(err)
	}
	k := &indexClient{Conn: c, t: t, reader: &index.Reader{}, maps: map[uint64]*segmentMaps{}}
	if k.pins, err = index.NewPins(k.mapped(slotsFD, index.SlotsBytes, true)); err != nil {
		t.Fatal(err)
	}
	if err := k.reader.Add(k.mapped(levelFD, index.LevelBytes(0), false)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.end)
	return k
}

func (k *indexClient) mapped(fd int, n uint64, writable bool) *segment.Mapping {
	k.t.Helper()
	f := os.NewFile(uintptr(fd), "test")
	defer f.Close()
	m, err := segment.Map(f, n, writable)
	if err != nil {
		k.t.Fatal(err)
	}
	return m
}

// end is the process's: it clears no slot.
func (k *indexClient) end() {
	if k.pins == nil {
		return
	}
	k.Conn.Close()
	k.reader.Close()
	k.pins.Close()
	k.pins, k.held = nil, nil
	for id := range k.maps {
		k.unmap(id)
	}
}

func (k *indexClient) unmap(id uint64) {
	for _, m := range []*segment.Mapping{k.maps[id].writable, k.maps[id].readable} {
		if m != nil {
			m.Unmap()
		}
	}
	delete(k.maps, id)
}

// adopt maps what a handle brought: a segment of one's own twice, before its first seal.
func (k *indexClient) adopt(h Handle, own bool) *segmentMaps {
	k.t.Helper()
	if h.FD >= 0 {
		maps := &segmentMaps{}
		f := os.NewFile(uintptr(h.FD), "test")
		defer f.Close()
		var err error
		if own {
			maps.writable, err = segment.Map(f, h.Ref.SegmentBytes, true)
		}
		if err == nil {
			maps.readable, err = segment.Map(f, h.Ref.SegmentBytes, false)
		}
		if err != nil {
			k.t.Fatal(err)
		}
		k.maps[h.Ref.Segment] = maps
	}
	return k.maps[h.Ref.Segment]
}

// put makes a sealed object whose every 8 bytes are its id's first ones, and gives the reference back.
func (k *indexClient) put(spec Spec) (object.ID, error) {
	h, err := k.Create(spec)
	if err != nil {
		return object.ID{}, err
	}
	if spec.SizeBytes > 0 {
		b := k.adopt(h, true).writable.Bytes()[h.Ref.Offset:][:spec.SizeBytes]
		for i := 0; i+8 <= len(b); i += 8 {
			copy(b[i:], h.ID[:8])
		}
	}
	return h.ID, k.Seal(h.ID, false)
}

func (k *indexClient) mustPut(spec Spec) object.ID {
	k.t.Helper()
	id, err := k.put(spec)
	if err != nil {
		k.t.Fatal(err)
	}
	return id
}

// socketGet is Get, and the reference is noted.
func (k *indexClient) socketGet(id object.ID) error {
	h, err := k.Conn.Get(id)
	for errors.Is(err, ErrAway) {
		h, err = k.waitFor(id)
	}
	if err != nil {
		return err
	}
	k.held = append(k.held, &heldObject{id: h.ID, seg: h.Ref.Segment, slot: -1,
		memory: k.adopt(h, false).readable.Bytes()[h.Ref.Offset:][:h.Size]})
	return nil
}

// waitFor waits for an object that is on its way back from disk; ErrAway where it went again, ErrNotFound where it
// expired meanwhile.
func (k *indexClient) waitFor(id object.ID) (Handle, error) {
	if err := k.BringBack(context.Background(), id, ""); err != nil {
		return Handle{}, err
	}
	return k.Conn.Get(id)
}

// fastGet finds and holds an object as a client does; false where the socket would be asked.
func (k *indexClient) fastGet(key index.Key) bool {
	var f index.Found
	if !k.reader.Find(key, &f) {
		return false
	}
	maps := k.maps[f.Segment]
	if maps == nil {
		return false
	}
	slot := k.pins.Hold(f.Word)
	if slot < 0 {
		return false
	}
	if !k.reader.Valid(f.Word) {
		k.pins.Drop(slot)
		return false
	}
	k.pins.Tell(f.Word)
	k.held = append(k.held,
		&heldObject{id: f.ID(), seg: f.Segment, slot: slot, memory: maps.readable.Bytes()[f.Offset:][:f.Bytes]})
	return true
}

func (k *indexClient) drop(i int) {
	h := k.held[i]
	k.held[i] = k.held[len(k.held)-1]
	k.held = k.held[:len(k.held)-1]
	if h.slot >= 0 {
		k.pins.Drop(h.slot)
	} else if err := k.Release(h.id); err != nil {
		k.t.Fatal(err)
	}
}

// sweep lets go of what the store has no use for. Something that is held must not be among it.
func (k *indexClient) sweep() {
	for _, id := range k.Sweep() {
		for _, h := range k.held {
			if h.seg == id {
				k.t.Fatalf("segment %d is to go and object %s in it is held (slot %d)", id, h.id, h.slot)
			}
		}
		k.unmap(id)
		if err := k.Forget(id); err != nil {
			k.t.Fatal(err)
		}
	}
}

// check looks at the memory of everything held.
func (k *indexClient) check() {
	k.t.Helper()
	for _, h := range k.held {
		for i := 0; i+8 <= len(h.memory); i += 64 {
			if got := h.memory[i : i+8]; string(got) != string(h.id[:8]) {
				k.t.Fatalf("object %s, held in slot %d: byte %d is another object's: %x", h.id, h.slot, i, got)
			}
		}
	}
}

func TestIndexedGetKeepsTheObject(t *testing.T) {
	s := newStore(t, Options{})
	writer, reader := indexed(t, s, "a"), indexed(t, s, "a")
	id := writer.mustPut(Spec{SizeBytes: 4096, Name: "n", Class: object.Named})
	if reader.fastGet(index.ByID(id)) {
		t.Fatal("the segment is not mapped yet, and the index gave the object")
	}
	if err := reader.socketGet(id); err != nil {
		t.Fatal(err)
	}
	reader.drop(0)
	if err := writer.Release(id); err != nil {
		t.Fatal(err)
	}
	if !reader.fastGet(index.ByName("n")) || !reader.fastGet(index.ByID(id)) {
		t.Fatal("not found in the index")
	}
	before := s.Status().ChargedBytes
	if err := writer.Delete(id, ""); err != nil {
		t.Fatal(err)
	}
	if reader.fastGet(index.ByName("n")) || reader.fastGet(index.ByID(id)) {
		t.Error("a deleted object is found in the index")
	}
	if _, err := reader.Get(id); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("a deleted object over the socket: %v", err)
	}
	for range 20 { // takes its memory, if that were free
		other := writer.mustPut(Spec{SizeBytes: 4096})
		defer writer.Release(other)
	}
	reader.check()
	if after := s.Status().ChargedBytes; after < before {
		t.Errorf("%d bytes are charged after the deletion of a held object, %d before", after, before)
	}
	reader.drop(0)
	reader.drop(0)
	waitFor(t, func() bool { return len(s.lookingNow()) == 0 })
}

// TestDeletedObjectWithReferences: it is not to be found, though somebody holds it over the socket.
func TestDeletedObjectWithReferences(t *testing.T) {
	s := newStore(t, Options{})
	k := indexed(t, s, "a")
	id := k.mustPut(Spec{SizeBytes: 8})
	if !k.fastGet(index.ByID(id)) {
		t.Fatal("not in the index")
	}
	if err := k.Delete(id, ""); err != nil {
		t.Fatal(err)
	}
	if k.fastGet(index.ByID(id)) {
		t.Error("a deleted object is found in the index")
	}
}

// lookingNow gives the tenants with retired records.
func (s *Store) lookingNow() (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for t := range s.looking {
		list = append(list, t.name)
	}
	return list
}

// TestEphemeralObjectLivesInASlot: the last reference over the socket goes while a slot has the object.
func TestEphemeralObjectLivesInASlot(t *testing.T) {
	s := newStore(t, Options{})
	writer, reader := indexed(t, s, "a"), indexed(t, s, "a")
	id := writer.mustPut(Spec{SizeBytes: 100})
	if err := reader.socketGet(id); err != nil {
		t.Fatal(err)
	}
	if !reader.fastGet(index.ByID(id)) {
		t.Fatal("not found in the index")
	}
	reader.drop(0)
	if err := writer.Release(id); err != nil {
		t.Fatal(err)
	}
	if _, err := writer.Stat(id, ""); err != nil {
		t.Errorf("held through a slot alone: %v", err)
	}
	if err := writer.socketGet(id); err != nil { // and it is back in the index
		t.Error(err)
	}
	writer.drop(0)
	reader.drop(0)
	waitFor(t, func() bool { _, err := writer.Stat(id, ""); return errors.Is(err, object.ErrNotFound) })
	other := writer.mustPut(Spec{SizeBytes: 100})
	if err := writer.Release(other); err != nil {
		t.Fatal(err)
	}
	if _, err := writer.Stat(other, ""); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("nobody holds it: %v", err)
	}
}

// TestDeathFreesSlots: a process ends without a word.
func TestDeathFreesSlots(t *testing.T) {
	s := newStore(t, Options{})
	writer, reader := indexed(t, s, "a"), indexed(t, s, "a")
	id := writer.mustPut(Spec{SizeBytes: 5 << 20, Class: object.Named, Name: "n"})
	if err := reader.socketGet(id); err != nil || !reader.fastGet(index.ByID(id)) {
		t.Fatal("no reference")
	}
	if err := errors.Join(writer.Release(id), writer.Delete(id, "")); err != nil {
		t.Fatal(err)
	}
	if s.Status().SegmentBytes < 5<<20 {
		t.Error("the memory of a held object is gone")
	}
	reader.end()
	writer.sweep()
	if got := s.Status().LeavingBytes; got > 0 {
		t.Errorf("%d bytes are left by a process that ended", got)
	}
	writer.end()
	nothingCharged(t, s)
}

func TestTenantsHaveTheirOwnIndex(t *testing.T) {
	s := newStore(t, Options{})
	a, b := indexed(t, s, "a"), indexed(t, s, "b")
	id := a.mustPut(Spec{SizeBytes: 64, Class: object.Named, Name: "n"})
	if err := a.Grant(id, "", Everybody, false); err != nil {
		t.Fatal(err)
	}
	if err := b.socketGet(id); err != nil { // shared: over the socket
		t.Fatal(err)
	}
	for range 2 {
		if b.fastGet(index.ByID(id)) || b.fastGet(index.ByName("n")) || b.fastGet(index.ByName("a/n")) {
			t.Error("another tenant's object in the index")
		}
	}
	if _, _, err := a.OpenIndex(); !errors.Is(err, object.ErrExists) {
		t.Errorf("a second index: %v", err)
	}
	if _, err := a.IndexLevel(1); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("a level that is not there: %v", err)
	}
	if _, err := connect(t, s, "a").IndexLevel(0); !errors.Is(err, object.ErrInvalid) {
		t.Errorf("a level for a connection without index: %v", err)
	}
	off := newStore(t, Options{NoIndex: true})
	if _, _, err := connect(t, off, "a").OpenIndex(); !errors.Is(err, object.ErrUnsupported) {
		t.Errorf("an index that is switched off: %v", err)
	}
}

// TestRenameInTheIndex: nobody finds the old name once the call is back.
func TestRenameInTheIndex(t *testing.T) {
	s := newStore(t, Options{})
	k := indexed(t, s, "a")
	first, second := k.mustPut(Spec{SizeBytes: 64, Class: object.Named, Name: "x"}),
		k.mustPut(Spec{SizeBytes: 64, Class: object.Named, Name: "y"})
	find := func(name string) object.ID {
		if !k.fastGet(index.ByName(name)) {
			return object.ID{}
		}
		id := k.held[0].id
		k.drop(0)
		return id
	}
	if find("x") != first || find("y") != second {
		t.Fatal("not in the index")
	}
	if err := k.Rename("y", "x", true); err != nil {
		t.Fatal(err)
	}
	if find("x") != second || !find("y").IsZero() {
		t.Error("the old names are in the index")
	}
	third := k.mustPut(Spec{SizeBytes: 64})
	if err := k.Bind(third, "fresh", false); err != nil {
		t.Fatal(err)
	}
	if find("fresh") != third {
		t.Error("an object's first name is not in the index")
	}
	if err := k.Bind(first, "z", false); err != nil {
		t.Fatal(err)
	}
	if find("z") != first || find("x") != second {
		t.Error("the new names are not in the index")
	}
}

// TestIndexGrows puts more objects in than the first levels have room for.
func TestIndexGrows(t *testing.T) {
	s := newStore(t, Options{CapacityBytes: 256 << 20})
	k := indexed(t, s, "a")
	const objects = 6000
	var ids []object.ID
	for range objects {
		ids = append(ids, k.mustPut(Spec{SizeBytes: 8}))
	}
	for n := 1; k.reader.Behind() || n == 1; n++ {
		waitFor(t, func() bool { return k.reader.Behind() })
		fd, err := k.IndexLevel(n)
		if err != nil {
			t.Fatal(err)
		}
		if err := k.reader.Add(k.mapped(fd, index.LevelBytes(n), false)); err != nil {
			t.Fatal(err)
		}
	}
	found := 0
	for _, id := range ids {
		if k.fastGet(index.ByID(id)) {
			found++
			k.drop(0)
			continue
		}
		if err := k.socketGet(id); err != nil { // and from now on the index has it, where there is room
			t.Fatal(err)
		}
		k.drop(0)
	}
	if found < 500 { // what level 0 has room for; how many more, depends on when the others were there
		t.Errorf("%d of %d objects are in the index", found, objects)
	}
	waitFor(t, func() bool { // a level may still have been on its way
		for k.reader.Behind() {
			n := k.reader.Levels()
			fd, err := k.IndexLevel(n)
			if err != nil {
				t.Fatal(err)
			}
			if err := k.reader.Add(k.mapped(fd, index.LevelBytes(n), false)); err != nil {
				t.Fatal(err)
			}
		}
		for _, id := range ids {
			if !k.fastGet(index.ByID(id)) {
				if err := k.socketGet(id); err != nil {
					t.Fatal(err)
				}
				k.drop(0)
				return false
			}
			k.drop(0)
		}
		return true
	})
	for _, id := range ids {
		if err := k.Release(id); err != nil {
			t.Fatal(err)
		}
	}
	k.sweep()
	k.end()
	nothingCharged(t, s)
}

// TestSlotsTellOfSegmentsToSweep: a process that asks for nothing over the socket learns that it should let memory go.
func TestSlotsTellOfSegmentsToSweep(t *testing.T) {
	s := newStore(t, Options{CapacityBytes: 64 << 20})
	writer, k := indexed(t, s, "a"), indexed(t, s, "a")
	id := writer.mustPut(Spec{SizeBytes: 8 << 20, Class: object.Named, Name: "n", Own: true})
	if err := k.socketGet(id); err != nil {
		t.Fatal(err)
	}
	k.drop(0)
	if got := k.pins.Leaving(); got != 0 {
		t.Fatalf("%d segments to let go of, and none has gone", got)
	}
	if err := writer.Delete(id, ""); err != nil {
		t.Fatal(err)
	}
	if err := writer.Release(id); err != nil {
		t.Fatal(err)
	}
	if k.pins.Leaving() == 0 || len(k.Sweep()) != 1 {
		t.Errorf("told of %d segments; to sweep: %d", k.pins.Leaving(), len(k.Sweep()))
	}
}

// TestEvictionPassesOverSlots: what a slot has stays in memory, and what was used through the index goes last.
func TestEvictionPassesOverSlots(t *testing.T) {
	opts := spillOptions(t.TempDir())
	opts.HighBytes = opts.CapacityBytes // or the janitor takes more where their memory comes back late
	s := newStore(t, opts)
	k := indexed(t, s, "a")
	var ids []object.ID
	for i := range 6 { // 1 MiB each, of 8
		id := k.mustPut(Spec{SizeBytes: 1 << 20, Class: object.Named, Name: fmt.Sprint(i)})
		if err := k.Release(id); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if !k.fastGet(index.ByID(ids[0])) || !k.fastGet(index.ByID(ids[1])) {
		t.Fatal("not in the index")
	}
	k.drop(1) // used, not held
	for i := range 3 {
		waitFor(t, func() bool {
			k.sweep()
			id, err := k.put(Spec{SizeBytes: 1 << 20, Class: object.Named, Name: fmt.Sprint("more", i)})
			if err != nil && !errors.Is(err, object.ErrFull) {
				t.Fatal(err)
			}
			return err == nil && k.Release(id) == nil
		})
	}
	k.check()
	states := map[object.State]int{}
	for i, id := range ids {
		info, err := k.Stat(id, "")
		if err != nil {
			t.Fatal(err)
		}
		states[info.State]++
		if i < 2 && info.State != object.Sealed {
			t.Errorf("object %d is %v", i, info.State)
		}
	}
	if states[object.Spilled] == 0 {
		t.Error("nothing went to disk: this test shows nothing")
	}
}

// TestHostileSlotsHoldTheirTenantAlone: a client claims everything that could be.
func TestHostileSlotsHoldTheirTenantAlone(t *testing.T) {
	s := newStore(t, Options{CapacityBytes: 32 << 20, TenantBytes: 16 << 20})
	hostile, victim := indexed(t, s, "a"), indexed(t, s, "b")
	word := uint64(1 << 24)
	for hostile.pins.Hold(index.Word(word)) >= 0 {
		if word++; word%7 == 0 {
			word = rand.Uint64()
		}
		hostile.pins.Tell(index.Word(word))
	}
	for range 200 {
		id := victim.mustPut(Spec{SizeBytes: 100_000})
		if err := victim.Release(id); err != nil {
			t.Fatal(err)
		}
	}
	if got := victim.tenantCharge("b"); got > 8<<20 {
		t.Errorf("tenant b is charged %d bytes", got)
	}
	full := false
	for range 400 { // some of these words pin what the hostile client deletes: its own quota ends that
		id, err := hostile.put(Spec{SizeBytes: 100_000})
		if errors.Is(err, object.ErrQuota) {
			full = true
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := hostile.Release(id); err != nil {
			t.Fatal(err)
		}
	}
	if !full {
		t.Log("the words pinned too little to reach the quota")
	}
	if _, err := victim.put(Spec{SizeBytes: 100_000}); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	hostile.end()
	waitFor(t, func() bool { return victim.tenantCharge("a") == 0 })
}

func (k *indexClient) tenantCharge(name string) uint64 {
	for _, t := range k.s.Status().Tenants {
		if t.Name == name {
			return t.ChargedBytes
		}
	}
	return 0
}

// TestIndexModel lets several processes put, get both ways, release, delete, rename, share, update and die at random,
// in a store that is too small for what they make. After each step everything that is held must be whole.
func TestIndexModel(t *testing.T) {
	seeds, steps := uint64(6), 1200
	if testing.Short() {
		seeds, steps = 3, 300
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			o := spillOptions(t.TempDir())
			o.CapacityBytes, o.SegmentBytes, o.LargeBytes = 4<<20, 128<<10, 64<<10
			s := newStore(t, o)
			m := &indexModel{t: t, s: s, rng: rand.New(rand.NewPCG(seed, 99))}
			for range 3 {
				m.clients = append(m.clients, indexed(t, s, "a"))
			}
			for range steps {
				m.step()
			}
			t.Logf("%d gets through the index, %d over the socket, %d objects on disk", m.fast, m.slow,
				s.Status().SpilledObjects)
			if m.fast < steps/50 {
				t.Error("the index was hardly used: this test shows little")
			}
			m.finish()
		})
	}
}

type indexModel struct {
	t          *testing.T
	s          *Store
	rng        *rand.Rand
	clients    []*indexClient
	ids        []object.ID
	fast, slow int
}

func (m *indexModel) step() {
	n := m.rng.IntN(len(m.clients))
	k := m.clients[n]
	switch m.rng.IntN(20) {
	case 0, 1, 2, 3:
		m.put(k)
	case 4, 5, 6, 7, 8, 9:
		m.get(k)
	case 10, 11, 12, 13:
		if len(k.held) > 0 {
			k.drop(m.rng.IntN(len(k.held)))
		}
	case 14:
		if m.rng.IntN(2) > 0 {
			break
		}
		m.allow(k.Delete(m.pick(), ""), object.ErrNotFound)
	case 15:
		m.allow(k.Bind(m.pick(), fmt.Sprint("n", m.rng.IntN(8)), true), object.ErrNotFound, object.ErrFull)
	case 16:
		m.allow(k.Grant(m.pick(), "", Everybody, false), object.ErrNotFound, object.ErrFull, object.ErrInvalid,
			object.ErrBusy)
	case 17:
		ttl := []time.Duration{0, time.Millisecond, time.Minute, time.Hour}[m.rng.IntN(4)]
		m.allow(k.Update(m.pick(), "", Change{TTL: &ttl}), object.ErrNotFound)
	case 18:
		k.sweep()
	case 19:
		if m.rng.IntN(5) == 0 { // killed
			k.end()
			m.clients[n] = indexed(m.t, m.s, "a")
		}
	}
	for _, k := range m.clients {
		k.check()
	}
}

func (m *indexModel) allow(err error, allowed ...error) {
	m.t.Helper()
	for _, a := range allowed {
		if errors.Is(err, a) {
			return
		}
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *indexModel) pick() object.ID {
	if len(m.ids) == 0 {
		return object.NewID()
	}
	return m.ids[max(0, len(m.ids)-1-m.rng.IntN(12))]
}

func (m *indexModel) put(k *indexClient) {
	spec := Spec{SizeBytes: []uint64{0, 8, 4096, 40_000, 100_000, 500_000}[m.rng.IntN(6)]}
	if m.rng.IntN(2) == 0 {
		spec.Class, spec.Name = object.Named, fmt.Sprintf("own-%d", m.rng.Uint64())
	}
	id, err := k.put(spec)
	if errors.Is(err, object.ErrFull) {
		for _, k := range m.clients {
			k.sweep()
		}
		return
	}
	if err != nil {
		m.t.Fatal(err)
	}
	m.ids = append(m.ids, id)
	if spec.SizeBytes == 0 || spec.Class == object.Named {
		m.allow(k.Release(id))
		return
	}
	h := &heldObject{id: id, slot: -1}
	info, err := k.Stat(id, "")
	if err != nil {
		m.t.Fatal(err)
	}
	h.seg, h.memory = info.Segment, k.maps[info.Segment].readable.Bytes()[info.Offset:][:info.SizeBytes]
	k.held = append(k.held, h)
}

func (m *indexModel) get(k *indexClient) {
	id := m.pick()
	key := index.ByID(id)
	if m.rng.IntN(4) == 0 {
		key = index.ByName(fmt.Sprint("n", m.rng.IntN(8)))
	}
	if k.fastGet(key) {
		m.fast++
		return
	}
	info, err := k.Stat(id, "")
	if err != nil || info.SizeBytes == 0 {
		return
	}
	switch err := k.socketGet(id); {
	case err == nil:
		m.slow++
	case errors.Is(err, object.ErrFull), errors.Is(err, object.ErrNotFound):
	default:
		m.t.Fatal(err)
	}
}

// finish lets everything go: nothing may be left.
func (m *indexModel) finish() {
	for _, k := range m.clients {
		for len(k.held) > 0 {
			k.drop(0)
		}
	}
	for _, id := range m.ids {
		m.allow(m.clients[0].Delete(id, ""), object.ErrNotFound)
	}
	waitFor(m.t, func() bool { return len(m.s.lookingNow()) == 0 })
	for _, k := range m.clients {
		k.sweep()
		k.end()
	}
	var st Status
	defer func() {
		if m.t.Failed() {
			m.t.Logf("left over: %+v", st)
		}
	}()
	waitFor(m.t, func() bool { // a process that is being started has copies of our descriptors for a moment
		st = m.s.Status()
		return st.Objects == 0 && st.References == 0 && st.ChargedBytes == 0 && st.Segments <= 1 && st.DiskBytes == 0
	})
}

// BenchmarkIndexCost is what the index adds to create, seal, release at the store, with so many objects and readers.
func BenchmarkIndexCost(b *testing.B) {
	for _, readers := range []int{0, 1, 4, 16, 200} {
		b.Run(fmt.Sprintf("readers=%d", readers), func(b *testing.B) {
			s := newStore(b, Options{CapacityBytes: 256 << 20})
			c := connect(b, s, "a")
			for range readers {
				k := indexed(b, s, "a")
				for i := range 8 {
					k.pins.Hold(index.Word(binary.LittleEndian.Uint64([]byte{byte(i), 1, 2, 3, 4, 5, 6, 7})))
				}
			}
			for b.Loop() {
				h, err := c.Create(Spec{SizeBytes: 64})
				if err == nil {
					closeHandle(h)
					err = errors.Join(c.Seal(h.ID, false), c.Release(h.ID))
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestReferencesInSlotsAreTold: what processes hold in slots is counted and named like any other reference.
func TestReferencesInSlotsAreTold(t *testing.T) {
	s := newStore(t, Options{CapacityBytes: 64 << 20})
	k, other := indexed(t, s, "a"), indexed(t, s, "a")
	id := k.mustPut(Spec{SizeBytes: 100, Class: object.Named, Name: "n"})
	if err := k.Release(id); err != nil {
		t.Fatal(err)
	}
	if err := other.socketGet(id); err != nil {
		t.Fatal(err)
	}
	for _, k := range []*indexClient{k, other, other} {
		if !k.fastGet(index.ByID(id)) {
			t.Fatal("not through the index")
		}
	}
	check := func(refs, slots int, holders ...int) {
		t.Helper()
		info, err := k.Stat(id, "")
		if err != nil || info.Refs != refs || k.List("", false)[0].Refs != refs {
			t.Errorf("%d references, %v; want %d", info.Refs, err, refs)
		}
		st := s.Status()
		if st.References != refs || st.Index.References != slots || st.Index.Connections != 2 || st.Index.Objects != 1 {
			t.Errorf("%d references, index %+v; want %d and %d", st.References, st.Index, refs, slots)
		}
		top, _ := k.Top(5, TopCursor{})
		got := []int{}
		for _, h := range top[0].Holders {
			got = append(got, h.Refs)
			if h.Since.IsZero() {
				t.Errorf("%+v", h)
			}
		}
		slices.Sort(got)
		if len(top) != 1 || !slices.Equal(got, holders) {
			t.Errorf("holders %v, want %v", got, holders)
		}
	}
	check(4, 3, 1, 3)
	other.drop(0) // over the socket
	check(3, 3, 1, 2)
	if err := k.Rename("n", "m", false); err != nil { // its record is retired, and still held
		t.Fatal(err)
	}
	if info, err := k.Stat(id, ""); err != nil || info.Refs != 3 {
		t.Errorf("after a rename: %d references, %v", info.Refs, err)
	}
	other.drop(0)
	other.drop(0)
	k.drop(0)
	if info, err := k.Stat(id, ""); err != nil || info.Refs != 0 {
		t.Errorf("%d references at the end, %v", info.Refs, err)
	}
}
