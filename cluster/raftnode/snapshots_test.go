package raftnode

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/cluster/fsm"
	"tendril/store/object"
	until "tendril/tools/e2e/await"
)

// begun lists what there is of snapshots that were not finished.
func begun(t *testing.T, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "snapshots", "*"+tmpSuffix))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestDiskFullDuringASnapshot: where the disk has no room for a snapshot the node goes on, its status says so, and
// nothing of the snapshot stays on the disk. As soon as there is room one is taken. Nothing acknowledged is lost.
func TestDiskFullDuringASnapshot(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tendril-test", dir, "tmpfs", 0, "size=1500k"); err != nil {
		t.Skipf("a small file system needs root: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	o := options(filepath.Join(dir, "raft"))
	o.SegmentBytes = 1 << 20 // allocated ahead: there is room for entries, whatever the disk has
	n := open(t, o)
	propose(t, n, 0, 1000) // a snapshot of 130 KB
	filler, err := os.OpenFile(filepath.Join(dir, "filler"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer filler.Close()
	for room := 0; room < 3; room++ { // bytes that are left: none, or for a part
		// Until the disk is full. The node itself may try at this moment, and then removes what it wrote: at most the
		// room of the round before. With this round's room that is less than a snapshot.
		filler.Write(make([]byte, 4<<20))
		info, err := filler.Stat()
		if err != nil {
			t.Fatal(err)
		}
		if err := filler.Truncate(max(info.Size()-int64(room*30<<10), 0)); err != nil {
			t.Fatal(err)
		}
		if err := n.Raft().Snapshot().Error(); err == nil {
			t.Fatalf("room %d: there was room for the snapshot", room)
		}
		for i := range 5 {
			k := 1000 + 5*room + i
			if _, err := n.Propose(t.Context(), request(k), set(k)); err != nil {
				t.Fatalf("a change while there is no room for a snapshot: %v", err)
			}
		}
		until.Until(t, "way for what was begun to go", func() bool { return len(begun(t, o.Dir)) == 0 }) // it is tried again
		if s := n.Status(); !strings.Contains(s.SnapshotFault, "disk space") || s.Fault != "" {
			t.Errorf("room %d: the status says %q and %q", room, s.SnapshotFault, s.Fault)
		}
	}
	filler.Truncate(0)
	until.Until(t, "a snapshot is taken", func() bool {
		s := n.Status()
		return s.SnapshotFault == "" && s.SnapshotIndex >= 1000
	})
	read(t, n, 1015)
	n.Close()
	read(t, open(t, o), 1015)
}

// TestStartOnAFullDisk: a node starts where the disk is full, or says that it is; it starts by itself later, and what
// it had is there.
func TestStartOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tendril-test", dir, "tmpfs", 0, "size=700k"); err != nil {
		t.Skipf("a small file system needs root: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	o := options(filepath.Join(dir, "raft"))
	n := open(t, o)
	propose(t, n, 0, 200)
	if err := n.Raft().Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	propose(t, n, 200, 220)
	n.Close()
	filler := filepath.Join(dir, "filler")
	for range 3 {
		os.WriteFile(filler, make([]byte, 1<<20), 0o600)
		if n, err := Open(t.Context(), o); err == nil {
			n.View(func(s *fsm.State) {
				if got := has(s, 220); got != 220 {
					t.Errorf("%d of 220 are there", got)
				}
			})
			n.Close()
		} else if errors.Is(err, ErrDamaged) || !errors.Is(err, object.ErrFull) && !errors.Is(err, unix.ENOSPC) {
			t.Errorf("on a full disk: %v", err)
		}
		os.Remove(filler)
		n := open(t, o)
		read(t, n, 220)
		n.Close()
	}
}

// TestKilledDuringASnapshot: what is there of a snapshot when a node is killed costs it nothing: the next start removes
// it.
func TestKilledDuringASnapshot(t *testing.T) {
	o := options(t.TempDir())
	n := open(t, o)
	propose(t, n, 0, 100)
	if err := n.Raft().Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	propose(t, n, 100, 120)
	n.Close()
	whole, err := filepath.Glob(filepath.Join(o.Dir, "snapshots", "*"))
	if err != nil || len(whole) != 1 {
		t.Fatal(whole, err)
	}
	for step, keep := range []func(dir string){ // what raft has written, in its order
		func(dir string) {
			os.Remove(filepath.Join(dir, "meta.json"))
			os.Remove(filepath.Join(dir, "state.bin"))
		},
		func(dir string) {
			os.Truncate(filepath.Join(dir, "meta.json"), 5)
			os.Remove(filepath.Join(dir, "state.bin"))
		},
		func(dir string) { os.Remove(filepath.Join(dir, "state.bin")) },
		func(dir string) { os.Truncate(filepath.Join(dir, "state.bin"), 100) },
		func(string) {},
	} {
		half := filepath.Join(o.Dir, "snapshots", fmt.Sprint("9-999-", step, tmpSuffix))
		if err := os.CopyFS(half, os.DirFS(whole[0])); err != nil {
			t.Fatal(err)
		}
		keep(half)
		n := open(t, o)
		read(t, n, 120)
		n.Close()
		if list := begun(t, o.Dir); len(list) > 0 {
			t.Errorf("step %d: %v stays", step, list)
		}
	}
}

// TestKilledAfterASnapshotOfTheLeaders: a follower that was killed between the snapshot that its leader sent and the
// removal of its old log goes on behind the snapshot.
func TestKilledAfterASnapshotOfTheLeaders(t *testing.T) {
	o := options(t.TempDir())
	n := open(t, o)
	propose(t, n, 0, 20)
	n.Close()
	ahead := o
	ahead.Dir = t.TempDir()
	if err := os.CopyFS(ahead.Dir, os.DirFS(o.Dir)); err != nil {
		t.Fatal(err)
	}
	n = open(t, ahead)
	propose(t, n, 20, 60)
	if err := n.Raft().Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	n.Close()
	if err := os.CopyFS(filepath.Join(o.Dir, "snapshots"), os.DirFS(filepath.Join(ahead.Dir, "snapshots"))); err != nil {
		t.Fatal(err)
	}
	n = open(t, o)
	read(t, n, 60)
	propose(t, n, 60, 70)
	if s := n.Status(); s.State != "Leader" {
		t.Errorf("%+v", s)
	}
	n.Close()
	n = open(t, o)
	read(t, n, 70)
	n.Close()
}
