package raftnode

import (
	"context"
	"testing"
	"time"

	"tendril/cluster/fsm"
)

// TestFollowersAreTold: a follower that waits for a change knows of it without the message that raft sends so much
// later; here it sends none.
func TestFollowersAreTold(t *testing.T) {
	nodes, ids := three(t, func(o *Options) { o.commitTimeout = 10 * time.Hour })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
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
		for _, id := range ids[1:] {
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
