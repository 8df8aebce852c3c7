package raftnode

import (
	"context"
	"fmt"

	"github.com/hashicorp/raft"

	"tendril/store/object"
)

// SetMembers makes raft's configuration follow the wanted one, one change a call, as the leader: who is missing is
// added without a vote, who is not wanted is removed, then votes are given and taken. It reports whether something was
// changed: then another call may be needed. This node is never removed by itself while it leads: it hands over first.
// A member votes where wanted says true.
func (n *Node) SetMembers(ctx context.Context, wanted map[string]bool) (changed bool, err error) {
	e, err := n.current()
	if err != nil {
		return false, err
	}
	return await(ctx, n, func() (bool, error) { return e.setMembers(wanted) })
}

func (e *engine) setMembers(wanted map[string]bool) (bool, error) {
	conf := e.raft.GetConfiguration()
	if err := conf.Error(); err != nil {
		return false, e.proposalError(err)
	}
	f := e.change(conf.Configuration().Servers, conf.Index(), wanted)
	if f == nil {
		return false, nil
	}
	if err := e.outcome(f); err != nil {
		return false, fmt.Errorf("change the cluster's members: %w", e.proposalError(err))
	}
	return true, nil
}

// change begins the first change that is due; nil: there is none.
func (e *engine) change(have []raft.Server, index uint64, wanted map[string]bool) raft.IndexFuture {
	votes := map[string]bool{} // of the members that there are
	for _, s := range have {
		votes[string(s.ID)] = s.Suffrage == raft.Voter
	}
	for id := range wanted {
		if _, there := votes[id]; !there {
			return e.raft.AddNonvoter(raft.ServerID(id), raft.ServerAddress(id), index, 0)
		}
	}
	for id, vote := range wanted { // more votes before fewer
		if vote && !votes[id] {
			return e.raft.AddVoter(raft.ServerID(id), raft.ServerAddress(id), index, 0)
		}
	}
	for id, voted := range votes {
		vote, stays := wanted[id]
		switch {
		case id == e.id:
		case !stays:
			return e.raft.RemoveServer(raft.ServerID(id), index, 0)
		case voted && !vote:
			return e.raft.DemoteVoter(raft.ServerID(id), index, 0)
		}
	}
	return nil
}

// GiveVote has a member vote, as the leader.
func (n *Node) GiveVote(ctx context.Context, to string) error {
	e, err := n.current()
	if err != nil {
		return err
	}
	_, err = await(ctx, n, func() (struct{}, error) {
		return struct{}{}, e.outcome(e.raft.AddVoter(raft.ServerID(to), raft.ServerAddress(to), 0, 0))
	})
	if err != nil {
		return fmt.Errorf("%w: node %s cannot vote: %w", object.ErrBusy, to, err)
	}
	return nil
}

// TakeVote has a member that is not this node vote no more, as the leader. It waits until that holds at a majority of
// the voters that are left.
func (n *Node) TakeVote(ctx context.Context, from string) error {
	e, err := n.current()
	if err != nil {
		return err
	}
	_, err = await(ctx, n, func() (struct{}, error) {
		if err := e.outcome(e.raft.DemoteVoter(raft.ServerID(from), 0, 0)); err != nil {
			return struct{}{}, fmt.Errorf("take the vote of node %s: %w", from, e.proposalError(err))
		}
		return struct{}{}, nil
	})
	return err
}

// HandOver has another member lead, which must be a voter. ErrBusy: it cannot.
func (n *Node) HandOver(ctx context.Context, to string) error {
	e, err := n.current()
	if err != nil {
		return err
	}
	_, err = await(ctx, n, func() (struct{}, error) {
		return struct{}{}, e.outcome(e.raft.LeadershipTransferToServer(raft.ServerID(to), raft.ServerAddress(to)))
	})
	if err != nil {
		return fmt.Errorf("%w: node %s cannot lead the cluster: %w", object.ErrBusy, to, err)
	}
	return nil
}
