package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"tendril/client"
	"tendril/cluster/fsm"
	"tendril/ipc/wire"
	"tendril/tools/e2e/await"
)

// nodeOf gives one node as cluster status at another one shows it.
func (x *clusterOf) nodeOf(at, node int) ClusterNode {
	x.t.Helper()
	for _, n := range clusterInfo(x.t, x.all[at]).Nodes {
		if n.ID == x.all[node].meta.node.String() {
			return n
		}
	}
	return ClusterNode{}
}

// TestLiveness: each node knows which others answer, and since when.
func TestLiveness(t *testing.T) {
	x := newCluster(t, 3, nil)
	id := x.put(0, "dear", noise(1, 1000), client.CreateOptions{})
	x.replicate(0, "dear", client.ReplicateOptions{Wanted: 3})
	x.share()
	for i := range x.all {
		for j, other := range x.all {
			await.Until(t, "every node knows how every other one is", func() bool {
				n, s := x.nodeOf(i, j), x.all[i].alive(other.meta.node)
				return n.Answers && !n.Since.IsZero() && s.CapacityBytes > 0
			})
		}
	}
	have := func() int {
		o, _, _ := x.all[0].publishedAs(fmt.Sprint("uid:", os.Getuid()), id)
		var p PublishedStatus
		x.all[0].meta.raft.View(func(s *fsm.State) { p = x.all[0].publishedStatus(s, o) })
		return p.Have
	}
	if n := have(); n != 3 {
		t.Errorf("%d nodes have it", n)
	}
	ended, c := time.Now(), x.all[2].cfg
	var answered [2]time.Time // last, before the end
	for i := range answered {
		live := &x.all[i].meta.now.Load().live
		live.mu.Lock()
		answered[i] = live.nodes[x.all[2].meta.node].answered
		live.mu.Unlock()
	}
	x.end(2)
	for i := range 2 {
		await.Until(t, "the others know that it is silent", func() bool {
			n := x.nodeOf(i, 2)
			return !n.Answers && n.Why != "" && !n.Since.Before(answered[i].Truncate(time.Second))
		})
	}
	// a slow node is silent for a moment now, too
	await.Until(t, "two nodes have it, for one of three is silent", func() bool { return have() == 2 })
	x.all[2] = x.ns.start(c)
	for i := range 2 {
		await.Until(t, "the others know that it is back", func() bool {
			n := x.nodeOf(i, 2)
			return n.Answers && n.Since.After(ended)
		})
	}
}

// TestSilentNodeHoldsNobodyUp: who waits for an answer of a node that is cut off gets an error, long before its own
// time is over.
func TestSilentNodeHoldsNobodyUp(t *testing.T) {
	net := newNetwork(t)
	x := net.cluster(2)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	links := &x.all[0].meta.now.Load().links
	node := x.all[1].meta.node
	if _, err := links.ask(ctx, node, wire.Pulse, nil); err != nil {
		t.Fatal(err)
	}
	net.cut(0, 1)
	net.cut(1, 0)
	if _, err := links.ask(ctx, node, wire.Pulse, nil); !errors.Is(err, errNoAnswer) {
		t.Errorf("a node that is cut off: %v", err)
	}
	net.heal()
	await.Until(t, "the node answers again", func() bool { return x.all[0].answers(node) })
}

// TestSlowNodeOnceNodesMayBeGone: once nodes of a test may be gone, the product's own times hold. One whose answers
// take 2.2 s is silent, and who asks it for a replica hears that it does not answer.
func TestSlowNodeOnceNodesMayBeGone(t *testing.T) {
	net := newNetwork(t)
	x := net.cluster(2)
	id := x.put(0, "dear", noise(2, 1000), client.CreateOptions{})
	x.share()
	o, nodes, ok := x.all[0].publishedAs(fmt.Sprint("uid:", os.Getuid()), id)
	other := slices.IndexFunc(nodes, func(n fsm.Node) bool { return n.ID == x.all[1].meta.node })
	if !ok || other < 0 {
		t.Fatalf("n0 knows the object: %v, and the nodes %v", ok, nodes)
	}
	node := nodes[other]
	net.ns.gone.Store(true)
	net.change(func() { net.late = 1100 * time.Millisecond })
	if err := x.all[0].askToTake(t.Context(), node, &o); !errors.Is(err, errNoAnswer) {
		t.Errorf("a slow node that is asked for a replica: %v", err)
	}
	await.Until(t, "the slow node is silent", func() bool { return !x.all[0].answers(node.ID) })
	net.heal()
	await.Until(t, "the node answers again", func() bool { return x.all[0].answers(node.ID) })
}

// TestWhoStoodStillSilencesNobody: where this node itself was paused, the others have their full time to answer.
func TestWhoStoodStillSilencesNobody(t *testing.T) {
	healthy, now := fsm.UUID{1}, time.Now()
	l := liveness{m: &membership{}, patience: func() time.Duration { return 0 },
		nodes: map[fsm.UUID]*pulse{healthy: {answered: now}}}
	silentAt := func(after time.Duration) bool {
		l.noteSilent(now.Add(after), time.Second)
		return l.nodes[healthy].silent
	}
	for after := time.Second; after <= 2*time.Second; after += time.Second {
		if silentAt(after) {
			t.Fatalf("silent after %v", after)
		}
	}
	for _, after := range []time.Duration{20 * time.Second, 21 * time.Second, 23 * time.Second} { // it slept for 18 s
		if silentAt(after) {
			t.Errorf("silent %v after it was heard, of which this node slept 18 s", after)
		}
	}
	if !silentAt(24 * time.Second) {
		t.Error("a node that does not answer for 4 s of this node's being awake is not silent")
	}
	if since := l.nodes[healthy].since; !since.Equal(now.Add(20 * time.Second)) { // its vote and replicas stay for 15 s
		t.Errorf("it is silent since %v, and this node has been awake for 4 s", now.Add(24*time.Second).Sub(since))
	}
}
