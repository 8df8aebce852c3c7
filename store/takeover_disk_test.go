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
			mustAgree(t, next, false)
			for i, name := range []string{"granted", "labelled", "renamed"} {
				wantPattern(t, c, ids[name], 1000, byte(i))
			}
		})
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
