package store

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/store/object"
	"tendril/store/spill"
)

// mortal is the disk of a daemon that is killed at one of its system calls: what it asks for from then on does not
// happen. A write at which it is killed is done by half.
type mortal struct {
	spill.Linux
	left atomic.Int64 // calls that are done still
}

// dies counts a call; true: it is not done.
func (d *mortal) dies() bool { return d.left.Add(-1) < 0 }

func (d *mortal) dead() bool { return d.left.Load() < 0 }

func (d *mortal) Open(path string, flags int) (int, error) {
	if flags&(unix.O_CREAT|unix.O_TRUNC) != 0 && d.dies() || d.dead() {
		return -1, unix.EIO
	}
	return d.Linux.Open(path, flags)
}

func (d *mortal) Pwrite(fd int, b []byte, off int64) (int, error) {
	if d.dead() {
		return 0, unix.EIO
	}
	if d.dies() {
		_, _ = d.Linux.Pwrite(fd, b[:len(b)/2&^(pageOfDisk-1)], off)
		return 0, unix.EIO
	}
	return d.Linux.Pwrite(fd, b, off)
}

// pageOfDisk is of what O_DIRECT writes are a multiple.
const pageOfDisk = 4096

func (d *mortal) Reserve(fd int, n int64) error {
	if d.dies() {
		return unix.EIO
	}
	return d.Linux.Reserve(fd, n)
}

func (d *mortal) Sync(fd int) error {
	if d.dies() {
		return unix.EIO
	}
	return d.Linux.Sync(fd)
}

func (d *mortal) Rename(from, to string) error {
	if d.dies() {
		return unix.EIO
	}
	return d.Linux.Rename(from, to)
}

func (d *mortal) Remove(path string) error {
	if d.dies() {
		return unix.EIO
	}
	return d.Linux.Remove(path)
}

// lifetimes runs a life of a store, which ends after n calls of its disk that change something, for each n until it
// does not end early any more; after each, another store begins with what is on the disk.
func lifetimes(t *testing.T, life func(t *testing.T, s *Store, alive func() bool), after func(t *testing.T, s *Store)) {
	t.Helper()
	for n := int64(0); ; n++ {
		over := false
		t.Run(fmt.Sprint("calls=", n), func(t *testing.T) {
			dir := t.TempDir()
			disk := &mortal{}
			disk.left.Store(n)
			opts := spillOptions(dir)
			opts.SpillSystem = disk
			s, err := New(opts)
			if err != nil {
				t.Fatal(err)
			}
			alive := func() bool { return !disk.dead() }
			func() {
				defer s.Close()
				life(t, s, alive)
				over = alive()
				disk.left.Store(-1) // the daemon is killed now at the latest
			}()
			opts.SpillSystem = nil
			next, err := New(opts)
			if err != nil {
				t.Fatal(err)
			}
			defer next.Close()
			after(t, next)
		})
		if over {
			return
		}
		if n > 1000 {
			t.Fatal("it does not end")
		}
	}
}

// An object that was damaged before it went to disk has no sound record there, whenever the daemon is killed.
func TestNoSoundRecordOfWhatIsDamaged(t *testing.T) {
	var id object.ID
	lifetimes(t, func(t *testing.T, s *Store, alive func() bool) {
		c := connect(t, s, "uid:1")
		spec := named("n", 3<<20/2+5)
		spec.Checksum = true
		id = filled(t, c, spec, 7)
		spoil(t, c, id, 1<<20+3)
		if err := c.Update(id, "", Change{Persist: true}); !errors.Is(err, object.ErrStorage) {
			t.Errorf("to disk: %v", err)
		}
		unmapWriters(c)
	}, func(t *testing.T, s *Store) {
		if st := s.Status(); st.Objects != 0 {
			t.Errorf("after a crash there are %d objects", st.Objects)
		}
	})
}

// What is whole on disk is whole after a crash, and what the daemon said that it keeps is there: persisted objects that
// change, replace each other, are renamed and deleted.
func TestKilledAtEachCallOfTheDisk(t *testing.T) {
	type promise struct{ may, must map[string]byte } // contents by name
	var said promise
	const size = 1<<20 + 4097
	lifetimes(t, func(t *testing.T, s *Store, alive func() bool) {
		said = promise{map[string]byte{}, map[string]byte{}}
		c := connect(t, s, "uid:1")
		defer unmapWriters(c)
		put := func(name string, seed byte) (id object.ID, err error) {
			h, err := c.Create(Spec{SizeBytes: size, Class: object.Persisted, Name: name})
			if err != nil {
				t.Fatal(err)
			}
			fillPattern(writable(t, c, h)[h.Ref.Offset:][:size], seed)
			if err = c.Seal(h.ID, false); err == nil {
				err = c.Release(h.ID)
			}
			return h.ID, err
		}
		_, err := put("a", 1)
		said.may["a"] = 1
		if err == nil && alive() {
			said.must["a"] = 1
		}
		b, err := put("", 2)
		if err == nil && alive() {
			// of two that a name refers to, one is there
			delete(said.must, "a")
			said.may["a"] = 0 // either
			if err = c.Bind(b, "a", true); err == nil && alive() {
				said.must["a"], said.may["a"] = 2, 2
			}
		}
		if err == nil && alive() {
			said.may["c"] = 2
			delete(said.must, "a")
			if err = c.Bind(b, "c", false); err == nil && alive() {
				said.must["c"] = 2
				delete(said.may, "a")
			}
		}
		if err == nil && alive() {
			delete(said.must, "c")
			if err = c.Delete(b, ""); err == nil && alive() {
				delete(said.may, "c")
			}
		}
	}, func(t *testing.T, s *Store) {
		st := s.Status()
		if len(st.Damaged) > 0 {
			t.Errorf("records that cannot be read: %q", st.Damaged)
		}
		c := connect(t, s, "uid:1")
		for _, name := range []string{"a", "c"} {
			info, err := c.Stat(object.ID{}, name)
			seed, may := said.may[name]
			want, must := said.must[name]
			switch {
			case err != nil && must:
				t.Errorf("%s is lost: %v", name, err)
			case err == nil && !may:
				t.Errorf("%s is there again", name)
			case err != nil:
				continue
			}
			if must {
				seed = want
			}
			if seed > 0 {
				wantPattern(t, c, info.ID, size, seed)
			} else if got, err := contents(t, c, info.ID); !isPattern(got, 1) && !isPattern(got, 2) {
				t.Errorf("%s is neither of the two objects: %v", name, err)
			}
		}
	})
}
