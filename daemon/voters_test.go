package daemon

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"tendril/tools/e2e/await"
)

// votersAt counts the voters, as a node knows it.
func (x *clusterOf) votersAt(i int) (n int) {
	for _, member := range x.all[i].meta.raft.Status().Members {
		if member.Voter {
			n++
		}
	}
	return n
}

// votes reports whether a node does, as another one knows it.
func (x *clusterOf) votes(at, node int) bool { return x.nodeOf(at, node).Voter }

// leads gives the node that leads at this moment; below 0: none does.
func (x *clusterOf) leads() int {
	return slices.IndexFunc(x.all, func(d *Daemon) bool { return d.meta.now.Load().raft.Leads() })
}

// leader gives the node of some, or of all, that leads, once all of them say that it does.
func (x *clusterOf) leader(some ...int) (leader int) {
	x.t.Helper()
	if some == nil {
		for i := range x.all {
			some = append(some, i)
		}
	}
	await.Until(x.t, "one of them leads, and all know", func() bool {
		leader = -1
		for _, i := range some {
			if x.all[i].meta.now.Load().raft.Leads() {
				leader = i
			}
		}
		for _, i := range some {
			if leader < 0 || x.all[i].meta.raft.Status().Leader != x.all[leader].meta.node.String() {
				return false
			}
		}
		return true
	})
	return leader
}

// TestVoters: three of four nodes vote. What they were told survives a leader that ends, one that is cut off, and a
// voter that does not come back, whose place the fourth takes.
func TestVoters(t *testing.T) {
	w := newNetwork(t)
	w.voteTime = 200 * time.Millisecond
	x := w.cluster(4)
	for i := range x.all {
		await.Until(t, "three nodes vote", func() bool { return x.votersAt(i) == 3 })
	}
	put := func(i int, name string) {
		t.Helper()
		putPublished(t, x.all[i].cfg, name)
	}
	put(3, "of four")
	lead := x.leader(0, 1, 2, 3)
	var rest []int
	for i := range x.all {
		if i != lead {
			rest = append(rest, i)
		}
	}
	w.cutOff(lead, 4)
	x.leader(rest...) // a put waits 10 s for an election, which takes longer on a machine that is busy enough
	for n, i := range rest {
		put(i, fmt.Sprint("without the leader ", n))
	}
	await.Until(t, "the one that is cut off votes no more", func() bool {
		return !x.votes(rest[0], lead) && x.votersAt(rest[0]) == 3
	})
	w.heal()
	x.leader(0, 1, 2, 3)
	put(lead, "back")
	for i := range x.all { // a follower hears of a name a moment after the node that put it
		await.Until(t, "all know the five names", func() bool { return len(x.all[i].publishedNames()) == 5 })
	}
}

// inEightTries runs a test until it has proved something. A leader that had no processor for half a second leads no
// more, and then it proves nothing.
func inEightTries(t *testing.T, fault string, test func(t *testing.T) (proved bool)) {
	for try := range 8 {
		proved := false
		t.Run(fmt.Sprint("try ", try), func(t *testing.T) { proved = test(t) })
		if proved || t.Failed() {
			return
		}
	}
	t.Error(fault + ", eight times of eight")
}

// TestLeaderThatEndsHandsOver: when a leader has ended, another one leads already. Without the hand-over each try
// fails, for an election takes longer than the look.
func TestLeaderThatEndsHandsOver(t *testing.T) {
	inEightTries(t, "nobody leads when the leader has ended", leaderHandsOver)
}

func leaderHandsOver(t *testing.T) (leads bool) {
	w := newNetwork(t)
	w.voteTime = 200 * time.Millisecond
	x := w.cluster(3)
	for i := range x.all {
		await.Until(t, "three nodes vote", func() bool { return x.votersAt(i) == 3 })
	}
	lead := x.leader(0, 1, 2)
	x.end(lead)
	next := (lead + 1) % 3
	for _, i := range []int{next, (lead + 2) % 3} {
		leads = leads || x.all[i].meta.now.Load().raft.Leads()
	}
	putPublished(t, x.all[next].cfg, "afterwards")
	return leads
}
