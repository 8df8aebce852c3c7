package raftnode

import (
	"testing"

	"github.com/hashicorp/raft"

	until "tendril/tools/e2e/await"
)

// openConnections counts what a node's transport has open.
func openConnections(n *Node) int {
	e, err := n.current()
	if err != nil {
		return 0
	}
	e.stream.mu.Lock()
	defer e.stream.mu.Unlock()
	return len(e.stream.open)
}

// TestLeaderChangesLeaveNoConnections: however often the leader changes, a node has no more connections to another one
// than raft keeps for later, three in each direction; both ends are counted here.
func TestLeaderChangesLeaveNoConnections(t *testing.T) {
	nodes, ids := three(t)
	count := func() (n int) {
		for _, id := range ids {
			n += openConnections(nodes[id])
		}
		return n
	}
	change := func(i int) {
		to := ids[(i+1)%3]
		until.Until(t, "the next one leads", func() bool {
			for _, id := range ids { // where a hand-over took too long any of them may lead
				if from := nodes[id]; id != to && from.Leads() {
					_ = from.Raft().LeadershipTransferToServer(raft.ServerID(to),
						raft.ServerAddress(nodes[to].opts.Address)).Error()
				}
			}
			return nodes[to].Leads()
		})
		until.Until(t, "all follow", func() bool {
			_, err := nodes[to].Propose(t.Context(), request(100+i), set(100+i))
			return err == nil
		})
	}
	for i := range 20 {
		change(i)
	}
	const pairs, directions, ends, kept = 3, 2, 2, 3
	until.Until(t, "few connections after 20 leader changes", func() bool { // one end may hear of the last ones later
		n := count()
		return n > 0 && n <= pairs*directions*ends*kept
	})
}
