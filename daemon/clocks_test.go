package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tendril/client"
	"tendril/client/admin"
	"tendril/client/login"
	"tendril/cluster/fsm"
	"tendril/forwarding/clwire"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// TestClocksOffByHours: nodes whose clocks differ by hours, whichever of them leads, publish, lease, and let others in
// with tokens that live for an hour.
func TestClocksOffByHours(t *testing.T) {
	t.Setenv("TENDRIL_CREDENTIALS", t.TempDir())
	w := newNetwork(t)
	w.devices, w.voteTime = 1, 200*time.Millisecond
	offsets := []time.Duration{5 * time.Hour, 0, -5 * time.Hour}
	w.clock = func(node int) func() time.Time {
		return func() time.Time { return time.Now().Add(offsets[node]) }
	}
	x := w.cluster(3)
	answered(t, x)
	for i := range x.all {
		await.Until(t, "all nodes vote", func() bool { return x.votersAt(i) == 3 })
	}
	for lead, d := range x.all {
		await.Until(t, "this node leads", func() bool {
			for _, other := range x.all {
				m := other.meta.now.Load()
				if m.raft.Leads() && other != d {
					_ = m.raft.HandOver(m.ctx, d.meta.node.String()) // it is tried again
				}
			}
			return d.meta.now.Load().raft.Leads()
		})
		for i, at := range x.all {
			what := fmt.Sprintf("node %d, whose clock is off by %v, and the leader's by %v", i, offsets[i], offsets[lead])
			id := x.put(i, fmt.Sprint("o", lead, i), noise(uint64(i), 1000), client.CreateOptions{})
			text := newToken(t, x.conns[i], admin.TokenOptions{Life: time.Hour, Once: true})
			for j, other := range x.all {
				await.Until(t, what+": the object is known everywhere", func() bool { return x.all[j].isPublished(id) })
				_, err := login.Login(context.Background(), other.address(), text, "")
				if (err == nil) != (j == 0) {
					t.Errorf("%s: login %d with a token for one hour and one use: %v", what, j, err)
				}
			}
			l, err := leaseAt(t, at, clwire.LeaseOptions{Nodes: true, Count: 3})
			if err != nil {
				t.Fatalf("%s: a lease: %v", what, err)
			}
			l.close()
			await.Until(t, what+": the lease ends", func() bool { return len(allLeasesAt(t, at)) == 0 })
			for _, other := range x.all { // the next lease finds their devices free
				await.Until(t, what+": its part at "+other.cfg.NodeName+" ends", func() bool {
					all, _ := other.leases.Parts()
					return len(all) == 0
				})
			}
		}
	}
}

// TestTokenReplayedEverywhere: a token for one use that is shown at all nodes at the same time lets one in.
func TestTokenReplayedEverywhere(t *testing.T) {
	t.Setenv("TENDRIL_CREDENTIALS", t.TempDir())
	x := newCluster(t, 3, nil)
	for range 5 {
		text := newToken(t, x.conns[0], admin.TokenOptions{Once: true})
		var in atomic.Int64
		var all sync.WaitGroup
		for i := range 12 {
			all.Go(func() {
				_, err := login.Login(context.Background(), x.all[i%3].address(), text, fmt.Sprint("replay", i))
				if err == nil {
					in.Add(1)
				} else if !errors.Is(err, object.ErrPermission) {
					t.Errorf("a token that was used: %v", err)
				}
			})
		}
		all.Wait()
		if in.Load() != 1 {
			t.Errorf("%d came in by a token for one use", in.Load())
		}
	}
}

// TestNodeBackAfterWeeks: a node comes back after the others have forgotten the entries that it lacks. It takes their
// snapshot, deletes what was deleted, keeps what is published, and its changes of then are refused.
func TestNodeBackAfterWeeks(t *testing.T) {
	w := newNetwork(t)
	w.segmentBytes = 64 << 10 // a log keeps the whole of the segment that it was cut in
	x := w.cluster(3)
	goes := x.put(2, "goes", noise(1, 1000), client.CreateOptions{Class: object.Persisted})
	stays := x.put(2, "stays", noise(2, 1000), client.CreateOptions{Class: object.Persisted})
	x.replicate(0, "goes", client.ReplicateOptions{Wanted: 3})
	x.replicate(0, "stays", client.ReplicateOptions{Wanted: 3})
	x.share()
	tenant := fmt.Sprint("uid:", os.Getuid())
	then, _, _ := x.all[2].publishedAs(tenant, stays)
	last := x.all[2].meta.raft.Status().LastIndex
	x.end(2)
	x.leader(0, 1) // a change waits 10 s for one, which takes longer on a busy machine
	if err := x.conns[0].Delete(context.Background(), goes); err != nil {
		t.Fatal(err)
	}
	if _, err := x.all[0].propose(&fsm.SetReplicas{ID: then.ID, Tenant: tenant, Wanted: 2}); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 64 { // more than a log keeps behind a snapshot
		all.Go(func() {
			for range 40 {
				_, err := x.all[0].propose(&fsm.Nop{})
				for errors.Is(err, object.ErrTimeout) { // a busy machine elects another leader
					_, err = x.all[0].propose(&fsm.Nop{})
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for _, d := range x.all[:2] {
		if err := d.meta.now.Load().raft.Raft().Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
	}
	x.all[2] = x.ns.start(x.all[2].cfg)
	x.conns[2] = dial(t, x.all[2].cfg)
	await.Until(t, "it has entered", func() bool { return clusterInfo(t, x.all[2]).Entered })
	if st := x.all[2].meta.raft.Status(); st.SnapshotIndex <= last {
		t.Errorf("its snapshot is of entry %d, and it had %d: it took none", st.SnapshotIndex, last)
	}
	await.Until(t, "what was deleted is gone there", func() bool { return !x.has(2, goes) })
	x.sameEverywhere()
	_, err := x.all[2].propose(&fsm.RemoveReplica{ID: then.ID, Epoch: then.Epoch, Replica: then.Replicas[0]})
	if !errors.Is(err, object.ErrBusy) {
		t.Errorf("a change under the epoch of then: %v", err)
	}
	await.Until(t, "what is published is at as many nodes as are wanted", func() bool { return len(x.listed(2, stays)) == 2 })
	for i := range x.all {
		if slices.Contains(x.listed(2, stays), fmt.Sprint("n", i)) {
			x.whole(i, stays, noise(2, 1000))
		}
	}
}
