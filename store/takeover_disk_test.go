package store

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/store/object"
	"tendril/store/spill"
)

// stuckDisk is a disk that, once it is stuck, alters nothing any more.
type stuckDisk struct {
	spill.Linux
	stuck atomic.Bool
}

func (d *stuckDisk) Rename(from, to string) error {
	if d.stuck.Load() {
		return unix.EROFS
	}
	return d.Linux.Rename(from, to)
}

func (d *stuckDisk) Remove(path string) error {
	if d.stuck.Load() {
		return unix.EROFS
	}
	return d.Linux.Remove(path)
}

// What the disk did not take the next daemon knows from the one before: who may no longer read an object, what it is
// called, and that it was deleted.
func TestTakeoverKnowsWhatTheDiskDoesNot(t *testing.T) {
	for _, where := range []string{"memory and disk", "disk alone"} {
		t.Run(where, func(t *testing.T) {
			disk := &stuckDisk{}
			opts := spillOptions(t.TempDir())
			opts.SpillSystem = disk
			s := newStore(t, opts)
			c := connect(t, s, "uid:1")
			ids := make(map[string]object.ID)
			for i, name := range []string{"granted", "labelled", "renamed", "deleted", "old", "new", "pinned"} {
				spec := named(name, 1000)
				spec.Class, spec.Labels = object.Persisted, map[string]string{"is": "old"}
				ids[name] = filled(t, c, spec, byte(i))
			}
			if err := c.Grant(ids["granted"], "", "uid:2", false); err != nil {
				t.Fatal(err)
			}
			if where == "disk alone" {
				sendToDisk(t, s)
			}
			yes := true
			disk.stuck.Store(true)
			for what, err := range map[string]error{
				"revoke":  c.Grant(ids["granted"], "", "uid:2", true),
				"relabel": c.Update(ids["labelled"], "", Change{Labels: map[string]string{"is": "new"}}),
				"rename":  c.Bind(ids["renamed"], "another", false),
				"pin":     c.Update(ids["pinned"], "", Change{Pinned: &yes}),
				"replace": c.Bind(ids["new"], "old", true),
			} {
				if !errors.Is(err, object.ErrStorage) {
					t.Errorf("%s, with a disk that takes nothing: %v", what, err)
				}
			}
			if err := c.Delete(ids["deleted"], ""); err != nil {
				t.Error(err)
			}
			before := listed(t, c)
			disk.stuck.Store(false)
			unmapWriters(c)
			s.Leave()
			c.Close()
			next := handOver(t, s, opts)
			c, other := connect(t, next, "uid:1"), connect(t, next, "uid:2")
			if _, err := other.Stat(ids["granted"], ""); !errors.Is(err, object.ErrPermission) &&
				!errors.Is(err, object.ErrNotFound) {
				t.Errorf("an object that is shared no more, for who could read it: %v", err)
			}
			after := listed(t, c)
			for id, want := range before {
				if after[id] != want {
					t.Errorf("it was %q, and is %q", want, after[id])
				}
				delete(after, id)
			}
			for _, is := range after {
				t.Errorf("there is %q again", is)
			}
			wantDiskCaughtUp(t, next)
			mustAgree(t, next, false)
			crashed := listed(t, connect(t, newStore(t, afterCrash(t, next)), "uid:1"))
			if !maps.Equal(crashed, before) {
				t.Errorf("after a crash there are\n%v\nwant\n%v", crashed, before)
			}
			for i, name := range []string{"granted", "labelled", "renamed"} {
				wantPattern(t, c, ids[name], 1000, byte(i))
			}
		})
	}
}

// stuckFor is a disk that does not take one object's record.
type stuckFor struct {
	spill.Linux
	digits atomic.Pointer[string]
}

func (d *stuckFor) Rename(from, to string) error {
	if digits := d.digits.Load(); digits != nil && strings.Contains(to, *digits) {
		return unix.EROFS
	}
	return d.Linux.Rename(from, to)
}

// An object that lost its name to another one, which the disk did not take, does not have it again after a takeover, a
// crash and the other one's end.
func TestLostNameIsNotClaimedAgain(t *testing.T) {
	disk := &stuckFor{}
	opts := spillOptions(t.TempDir())
	opts.SpillSystem = disk
	s := newStore(t, opts)
	c := connect(t, s, "uid:1")
	loses := filled(t, c, Spec{Name: "name", SizeBytes: 1000, Class: object.TTL, TTL: time.Hour}, 1)
	gets := filled(t, c, Spec{SizeBytes: 1000, Class: object.TTL, TTL: time.Hour}, 2)
	sendToDisk(t, s)
	digits := loses.String()
	disk.digits.Store(&digits)
	if err := c.Bind(gets, "name", true); !errors.Is(err, object.ErrStorage) {
		t.Fatalf("with a disk that takes one record: %v", err)
	}
	unmapWriters(c)
	s.Leave()
	c.Close()
	next := handOver(t, s, opts)
	disk.digits.Store(nil)
	wantDiskCaughtUp(t, next)
	c = connect(t, next, "uid:1")
	if err := c.Delete(gets, ""); err != nil {
		t.Fatal(err)
	}
	c = connect(t, newStore(t, afterCrash(t, next)), "uid:1")
	if info, err := c.Stat(loses, ""); err != nil || info.Name != "" {
		t.Errorf("the object that lost its name is called %q, %v", info.Name, err)
	}
}

// sendToDisk leaves what may go to disk there alone.
func sendToDisk(t *testing.T, s *Store) {
	t.Helper()
	s.mu.Lock()
	defer s.unlock()
	for s.cold.Len() > 0 {
		victims, _ := s.victims(nil, 1, 0)
		if _, err := s.evict(victims, s.spill.For("uid:1"), nil); err != nil {
			t.Fatal(err)
		}
	}
}

// listed says what a tenant's objects are, for people.
func listed(t *testing.T, c *Conn) map[object.ID]string {
	t.Helper()
	list := make(map[object.ID]string)
	for _, info := range c.List("", false) {
		list[info.ID] = fmt.Sprintf("%s %s, labels %v, grants %v, pinned %v", info.Class, info.Name, info.Labels,
			info.Grants, info.Pinned)
	}
	return list
}

// wantDiskCaughtUp has the janitor try again what the disk refused, and waits until nothing of that is left.
func wantDiskCaughtUp(t *testing.T, s *Store) {
	t.Helper()
	s.mu.Lock()
	s.diskTime = time.Time{} // not in ten seconds
	s.wakeJanitor()
	s.unlock()
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(time.Millisecond) { // Pause: the janitor's
		st := s.Status()
		if st.FilesLeft+st.RecordsBehind == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d files are left, %d records are behind", st.FilesLeft, st.RecordsBehind)
		}
	}
}

// afterCrash gives options of a store that finds what is on disk now.
func afterCrash(t *testing.T, s *Store) Options {
	t.Helper()
	opts := spillOptions(t.TempDir())
	if err := os.CopyFS(opts.SpillDir, os.DirFS(s.opts.SpillDir)); err != nil {
		t.Fatal(err)
	}
	return opts
}

// A change that the disk did not take is answered so, shown, and written when the disk takes it.
func TestRecordsAreWrittenAgain(t *testing.T) {
	disk := &stuckDisk{}
	opts := spillOptions(t.TempDir())
	opts.SpillSystem = disk
	s := newStore(t, opts)
	c := connect(t, s, "uid:1")
	spec := named("shared", 1000)
	spec.Class = object.Persisted
	id := filled(t, c, spec, 1)
	if err := c.Grant(id, "", "uid:2", false); err != nil {
		t.Fatal(err)
	}
	disk.stuck.Store(true)
	if err := c.Grant(id, "", "uid:2", true); !errors.Is(err, object.ErrStorage) {
		t.Fatalf("with a disk that takes nothing: %v", err)
	}
	info, err := c.Stat(id, "")
	if err != nil || info.Fault == "" || s.Status().RecordsBehind != 1 {
		t.Errorf("fault %q, %d records behind, %v", info.Fault, s.Status().RecordsBehind, err)
	}
	disk.stuck.Store(false)
	wantDiskCaughtUp(t, s)
	if info, err = c.Stat(id, ""); err != nil || info.Fault != "" {
		t.Errorf("fault %q, %v", info.Fault, err)
	}
	next := newStore(t, afterCrash(t, s))
	if _, err := connect(t, next, "uid:2").Stat(id, ""); err == nil {
		t.Error("after a crash a grant that was revoked is there again")
	}
}
