package raftnode

import (
	"context"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"tendril/cluster/fsm"
	until "tendril/tools/e2e/await"
)

// TestFollowersAreTold: a follower that waits for a change knows of it without the message that raft sends so much
// later; here it sends none.
func TestFollowersAreTold(t *testing.T) {
	nodes, ids := three(t, func(o *Options) { o.commitTimeout = 10 * time.Hour })
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for i := range 20 {
		raw, err := fsm.Encode(request(100+i), set(100+i))
		if err != nil {
			t.Fatal(err)
		}
		_, index, err := nodes["n1"].ProposeEncoded(ctx, raw)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids[1:] { // who gets the entry too late for the last of the messages hears no other one here
			until.Until(t, "node "+id+" has the entry", func() bool { return lastOnDisk(t, nodes[id]) >= index })
			nodes["n1"].Tell(id, index)
		}
		for _, id := range ids[1:] {
			if err := nodes[id].Await(ctx, index); err != nil {
				t.Fatalf("node %s, change %d: %v", id, i, err)
			}
		}
	}
	nodes["n2"].Tell("n3", 1) // it does not lead
	nodes["n1"].Tell("n4", 1) // nobody
}

// TestToldUntilTheEntryIsThere: a follower that has not got the entry yet is told again, some times at most.
func TestToldUntilTheEntryIsThere(t *testing.T) {
	for _, x := range []struct{ refusals, sent int }{{0, 1}, {3, 4}, {tellTimes - 1, tellTimes}, {1000, tellTimes}} {
		sent := 0
		tell := &teller{over: make(chan struct{}), told: map[raft.ServerID]uint64{},
			send: func(raft.ServerID, uint64) bool { sent++; return sent > x.refusals }}
		tell.tell("n2", 7)
		tell.running.Wait()
		if sent != x.sent || len(tell.told) > 0 {
			t.Errorf("after %d refusals it was told %d times, want %d; %v stay", x.refusals, sent, x.sent, tell.told)
		}
	}
}
