package raftnode

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/raft"

	"tendril/cluster/fsm"
	"tendril/store/object"
	until "tendril/tools/e2e/await"
)

// holdWrites has a leader's disk take nothing until release is called, and then do what after says.
func holdWrites(n *Node, after func() error) (released *atomic.Bool, release func()) {
	released, open := &atomic.Bool{}, make(chan struct{})
	a := n.engine.log.ahead
	a.mu.Lock()
	defer a.mu.Unlock()
	write := a.write
	a.write = func(ls []*raft.Log) error {
		<-open
		if err := after(); err != nil {
			return err
		}
		return write(ls)
	}
	return released, sync.OnceFunc(func() { released.Store(true); close(open) })
}

func lastOnDisk(t *testing.T, n *Node) uint64 {
	last, err := n.engine.log.WAL.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	return last
}

// TestLeaderWritesBesideItsFollowers: followers have a change on disk before the leader has, but nobody is told that it
// was kept, no state machine does it, and the leader follows nobody else, before it is on the leader's disk, too.
func TestLeaderWritesBesideItsFollowers(t *testing.T) {
	nodes, ids := three(t)
	lead := nodes["n1"]
	released, release := holdWrites(lead, func() error { return nil })
	defer release()
	before := lead.Raft().LastIndex()
	var all sync.WaitGroup
	defer all.Wait()
	saved := func() {
		vote := lead.engine.vote
		term, err := vote.GetUint64([]byte("CurrentTerm"))
		if err == nil {
			err = vote.SetUint64([]byte("CurrentTerm"), term)
		}
		if err != nil || !released.Load() {
			t.Errorf("a term was saved before the entries of the one before it (%v)", err)
		}
	}
	for i := range 2 { // the second brings the followers what the first has made of raft's commit index
		all.Go(func() {
			if _, err := lead.Propose(context.Background(), request(100+i), set(100+i)); err != nil {
				t.Error(err)
			}
			if !released.Load() {
				t.Error("the leader said that a change was kept before it was on its disk")
			}
		})
		until.Until(t, "the followers have a change on disk, and raft takes it for committed", func() bool {
			return lastOnDisk(t, nodes["n2"]) > before+uint64(i) && lastOnDisk(t, nodes["n3"]) > before+uint64(i) &&
				lead.Raft().CommitIndex() > before+uint64(i)
		})
		if i == 0 {
			all.Go(saved)
		}
	}
	if last := lastOnDisk(t, lead); last != before {
		t.Errorf("the leader has entry %d on disk, want %d", last, before)
	}
	for _, id := range ids[1:] {
		if commit := nodes[id].Raft().CommitIndex(); commit > before {
			t.Errorf("follower %s was told that entry %d is committed, which the leader may lose", id, commit)
		}
	}
	var entry raft.Log
	if err := lead.engine.log.GetLog(before+1, &entry); err != nil || entry.Index != before+1 {
		t.Errorf("an entry that is not on disk yet cannot be read: %v", err)
	}
	lead.View(func(s *fsm.State) {
		if n := has(s, 102); n != 5 {
			t.Errorf("the leader has done %d changes, want 5", n)
		}
	})
	release()
	all.Wait()
	for _, id := range ids {
		until.Until(t, "node "+id+" has done both", func() (both bool) {
			nodes[id].View(func(s *fsm.State) { both = has(s, 102) == 7 })
			return both
		})
	}
}

// TestLeaderThatCannotWrite: a change that its followers have and its own disk does not is not confirmed, and the
// others go on with it or without it.
func TestLeaderThatCannotWrite(t *testing.T) {
	nodes, ids := three(t)
	lead := nodes["n1"]
	_, release := holdWrites(lead, func() error {
		lead.engine.fail(errors.New("the disk is gone"))
		return errors.New("the disk is gone")
	})
	before := lead.Raft().LastIndex()
	outcome := make(chan error, 1)
	go func() {
		_, err := lead.Propose(context.Background(), request(100), set(100))
		outcome <- err
	}()
	until.Until(t, "a follower has it on disk", func() bool { return lastOnDisk(t, nodes["n2"]) > before })
	release()
	if err := <-outcome; !errors.Is(err, object.ErrInternal) {
		t.Errorf("a change that the leader could not write: %v", err)
	}
	lead.View(func(s *fsm.State) {
		if n := has(s, 101); n != 5 {
			t.Errorf("the leader has done %d changes, want 5", n)
		}
	})
	until.Until(t, "another node leads and does it", func() bool {
		for _, id := range ids[1:] {
			if _, err := nodes[id].Propose(context.Background(), request(100), set(100)); err == nil {
				return true
			}
		}
		return false
	})
}

// TestAheadIsBounded: a leader whose disk takes nothing appends no more than so much.
func TestAheadIsBounded(t *testing.T) {
	open := make(chan struct{})
	var written []uint64
	a := newAhead(func(ls []*raft.Log) error {
		<-open
		for _, l := range ls {
			written = append(written, l.Index)
		}
		return nil
	})
	const many = 2 * mostAhead
	added := make(chan struct{})
	go func() {
		defer close(added)
		for i := range many {
			a.add([]*raft.Log{{Index: uint64(i + 1)}})
		}
	}()
	waiting := func() int {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.entries)
	}
	until.Until(t, "as many wait as may", func() bool { return waiting() == mostAhead })
	select {
	case <-added:
		t.Error("more were taken than may wait")
	default:
	}
	close(open)
	<-added
	a.written(many)
	a.close()
	for i, index := range written {
		if index != uint64(i+1) {
			t.Fatalf("entry %d was written in the place of %d", index, i+1)
		}
	}
	if len(written) != many {
		t.Errorf("%d were written, want %d", len(written), many)
	}
}
