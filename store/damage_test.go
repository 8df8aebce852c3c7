package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// wantRefused wants that nobody gets a damaged object, by any way.
func wantRefused(t *testing.T, c *Conn, id object.ID) {
	t.Helper()
	get, err := c.Get(id)
	if !errors.Is(err, object.ErrStorage) {
		closeHandle(get)
		t.Errorf("a damaged object is given: %v", err)
	}
	if _, err := c.Open(id, ""); !errors.Is(err, object.ErrStorage) {
		t.Errorf("a damaged object is read: %v", err)
	}
	lent, err := c.Lend(id, "")
	if !errors.Is(err, object.ErrStorage) {
		closeHandle(lent)
		t.Errorf("a damaged object is lent to a worker: %v", err)
	}
}

// What a scrub found damaged in memory is given to nobody: not to a worker, and not by the store that takes over.
func TestDamagedIsGivenToNobody(t *testing.T) {
	s := newStore(t, spillOptions(t.TempDir()))
	c, id := spoiled(t, s)
	wantDamage(t, scrubbed(t, c, false), id, "memory")
	wantRefused(t, c, id)
	s.Leave()
	next := handOver(t, s, s.opts)
	wantRefused(t, connect(t, next, "uid:1"), id)
}

// A damaged object that gets another name is not found in the index either.
func TestDamagedIsNotInTheIndexAgain(t *testing.T) {
	s := newStore(t, spillOptions(t.TempDir()))
	c, id := spoiled(t, s)
	slots, level, err := c.OpenIndex()
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(slots)
	unix.Close(level)
	wantDamage(t, scrubbed(t, c, false), id, "memory")
	if err := c.Bind(id, "another", false); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects[id].indexed() {
		t.Error("it is")
	}
}

// Damage that is found on the way to disk is as damage that a scrub finds.
func TestDamageFoundOnTheWayToDisk(t *testing.T) {
	s := newStore(t, spillOptions(t.TempDir()))
	c, id := spoiled(t, s)
	if err := c.Update(id, "", Change{Persist: true}); !errors.Is(err, object.ErrStorage) {
		t.Errorf("to disk: %v", err)
	}
	wantRefused(t, c, id)
}

// Of what goes to disk with a damaged object nothing says that it is damaged: each fault names the object that has it.
func TestFaultsNameTheirObject(t *testing.T) {
	opts := spillOptions(t.TempDir())
	opts.HighBytes = opts.CapacityBytes
	s := newStore(t, opts)
	c := connect(t, s, "uid:1")
	ids := make([]object.ID, 3)
	for i := range ids {
		spec := named(fmt.Sprint("n", i), 5000)
		spec.Checksum = true
		ids[i] = filled(t, c, spec, byte(i))
	}
	spoil(t, c, ids[1], 7)
	s.mu.Lock()
	victims, _ := s.victims(nil, 1, 0)
	_, err := s.evict(victims, s.spill.For("uid:1"), nil)
	s.unlock()
	if len(victims) != 1 || !errors.Is(err, object.ErrStorage) {
		t.Fatalf("%d segments, %v", len(victims), err)
	}
	damaged := 0
	for i, id := range ids {
		info, err := c.Stat(id, "")
		if err != nil {
			t.Fatal(err)
		}
		if i == 1 && strings.Contains(info.Fault, id.String()) {
			damaged++
		} else if info.Fault != "" {
			t.Errorf("object %d, %s: fault %q", i, id, info.Fault)
		}
	}
	if damaged != 1 {
		t.Error("the damaged object has no fault")
	}
}

// A frame that was found damaged is given to no reader, and holds up no other frame.
func TestDamagedFrame(t *testing.T) {
	s := newStore(t, spillOptions(t.TempDir()))
	c := connect(t, s, "uid:1")
	st, err := c.OpenStream(StreamSpec{Name: "frames", Reads: true, Writes: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		h, err := c.Create(Spec{SizeBytes: 5000, Checksum: true})
		if err != nil {
			t.Fatal(err)
		}
		memory := writable(t, c, h)[h.Ref.Offset:][:5000]
		fillPattern(memory, byte(i))
		if err := c.Seal(h.ID, false); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Push(st.ID, h.ID, 0, nil); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			memory[7] ^= 1
		}
	}
	if r := scrubbed(t, c, false); r.Damages() != 1 {
		t.Fatalf("%+v", r)
	}
	if _, _, err := c.Pop(st.ID, 0, nil); !errors.Is(err, object.ErrStorage) {
		t.Errorf("a damaged frame: %v", err)
	}
	p, _, err := c.Pop(st.ID, 0, nil)
	if err != nil || p.Number != 2 {
		t.Fatalf("the next frame: %+v, %v", p, err)
	}
	closeHandle(p.Handle)
	if err := c.Release(p.Handle.ID); err != nil {
		t.Error(err)
	}
	waitFor(t, func() bool { return s.Status().Objects == 0 })
}

// What cannot go to disk because of its own tenant keeps another tenant's objects from no memory.
func TestOthersNeedNotWaitForWhatCannotGo(t *testing.T) {
	for _, why := range []string{"damaged", "no room on disk"} {
		t.Run(why, func(t *testing.T) {
			opts := spillOptions(t.TempDir())
			opts.TenantSpillBytes = 3 << 20
			opts.HighBytes = opts.CapacityBytes // janitor takes nothing to disk meanwhile
			s := newStore(t, opts)
			bad, good := connect(t, s, "uid:1"), connect(t, s, "uid:2")
			if why == "damaged" {
				for i := range 4 {
					spec := named(fmt.Sprintf("n%d", i), 1<<20)
					spec.Checksum = true
					spoil(t, bad, filled(t, bad, spec, 1), 5)
				}
			} else {
				p := filled(t, bad, Spec{SizeBytes: 5 << 19, Class: object.Persisted, Name: "p"}, 1)
				h, err := connect(t, s, "uid:1").Get(p) // it stays in memory
				if err != nil {
					t.Fatal(err)
				}
				closeHandle(h)
				for i := range 3 {
					filled(t, bad, named(fmt.Sprintf("n%d", i), 1<<19), 1)
				}
			}
			gone := connect(t, s, "uid:2")
			for i := range 2 {
				filled(t, gone, named(fmt.Sprintf("n%d", i), 1<<20), byte(i))
			}
			for _, c := range []*Conn{bad, gone} { // so that what goes to disk is free at once
				unmapWriters(c)
				c.Close()
			}
			for i := range 3 {
				spec := named("more", 1<<20)
				spec.Class, spec.Name = object.Ephemeral, ""
				h, err := good.Create(spec)
				if err != nil {
					t.Fatalf("object %d: %v", i, err)
				}
				closeHandle(h)
			}
			_, err := good.Create(named("much", 3<<20)) // there is no room for that
			if !errors.Is(err, object.ErrFull) || strings.Contains(err.Error(), "uid:1") {
				t.Errorf("a refusal: %v", err)
			}
		})
	}
}
