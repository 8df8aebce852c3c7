package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"tendril/cluster/durable"
	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// A cluster that has lost most of its voters for good takes no change any more. One survivor goes on with what its log
// says, as the only member; the others come to it again (leave --anyway, join). All certificates of the nodes that it
// drops are revoked there: should the old voters come back, they are a cluster without it, and nobody here listens to
// them.
//
//	STATE/recovering                       the moment of the recovery; a start that finds it does the rest
//	log: a snapshot, one member            (raftnode.Options.Alone)
//	RemoveNode of each other node          before this node asks another one, or answers it, as the leader
//	STATE/recovering is removed

// RecoverStatus says what a recovery would lose, or has lost.
type RecoverStatus struct {
	Alone       bool          `json:"alone,omitempty"` // the node was a cluster of one: there was nothing to recover
	Done        bool          `json:"done"`
	Term        uint64        `json:"term"` // of the last entry that this node has
	Index       uint64        `json:"index"`
	Nodes       []RecoverNode `json:"nodes"` // the others, which are dropped
	LostObjects int           `json:"lost_objects"`
	Lost        []Conflict    `json:"lost"` // the first of the published objects that only others have
}

// RecoverNode is one node that a recovery drops.
type RecoverNode struct {
	Name      string `json:"name"`
	ID        string `json:"id"`
	Answers   bool   `json:"answers"`
	KnowsMore bool   `json:"knows_more"`    // of the metadata than this node
	Why       string `json:"why,omitempty"` // it does not answer
}

// leaderTime is how long is waited for a leader, without which there is something to recover.
const leaderTime = 5 * time.Second

// RecoverCluster implements frontdoor.Nodes.
func (d *Daemon) RecoverCluster(m wire.RecoverClusterRequest) (raw []byte, err error) {
	alone := false
	if m.Do {
		defer func() {
			if !alone {
				d.auditOf("cluster.recover", "", "", err)
			}
		}()
	}
	if !d.meta.moving.TryLock() {
		return nil, fmt.Errorf("%w: a join or leave of this node is under way", object.ErrBusy)
	}
	defer d.meta.moving.Unlock()
	now := d.meta.now.Load()
	if alone = !now.others(); alone { // perhaps it has recovered before
		return json.Marshal(RecoverStatus{Alone: true, Nodes: []RecoverNode{}, Lost: []Conflict{}})
	}
	if err := d.needsRecovery(now); err != nil {
		return nil, err
	}
	s, err := d.recoverable(now)
	if err != nil || !m.Do {
		return orJSON(s, err)
	}
	for _, n := range s.Nodes {
		if n.KnowsMore {
			return nil, fmt.Errorf("%w: node %s knows more of the cluster than this one: recover it there", object.ErrUnsupported,
				n.Name)
		}
	}
	if err := d.recoverAlone(now); err != nil {
		return nil, err
	}
	s.Done = true
	return json.Marshal(s)
}

func orJSON(v any, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

// needsRecovery says why there is nothing to recover in a cluster of several nodes.
func (d *Daemon) needsRecovery(m *membership) error {
	ctx, cancel := context.WithTimeout(m.ctx, leaderTime)
	defer cancel()
	if err := m.readAgain(ctx, func(*fsm.State) {}); err != nil {
		return nil
	}
	return fmt.Errorf("%w: the cluster takes changes (its leader is %s): there is nothing to recover; a dead node is "+
		"removed with: tendril cluster remove NODE", object.ErrUnsupported, m.nodeName(m.raft.Status().Leader))
}

// nodeName gives a node's name, or its identifier where the name is not known.
func (m *membership) nodeName(id string) string {
	m.raft.View(func(s *fsm.State) {
		for _, n := range s.Nodes() {
			if n.ID.String() == id {
				id = n.Name
			}
		}
	})
	return id
}

// recoverable says what a recovery at this node would lose.
func (d *Daemon) recoverable(m *membership) (s RecoverStatus, err error) {
	s.Nodes, s.Lost = []RecoverNode{}, []Conflict{}
	s.Term, s.Index = m.raft.LogEnd()
	state, err := m.raft.Written()
	if err != nil {
		return s, err
	}
	for _, n := range state.Nodes() {
		if n.ID == m.node {
			continue
		}
		x := RecoverNode{Name: n.Name, ID: n.ID.String()}
		end, err := m.logEnd(n.ID)
		if x.Answers = err == nil; !x.Answers {
			x.Why = err.Error()
		}
		x.KnowsMore = x.Answers && (end.Term > s.Term || end.Term == s.Term && end.Index > s.Index)
		s.Nodes = append(s.Nodes, x)
	}
	for _, o := range state.Objects() {
		at := func(r fsm.Replica) bool { return r.Node == m.node }
		if o.Deleted || slices.ContainsFunc(o.Replicas, at) {
			continue
		}
		if s.LostObjects++; len(s.Lost) < maxStuck {
			s.Lost = append(s.Lost, Conflict{Tenant: o.Tenant, Name: o.Name, ID: o.ID.String(),
				Why: "this node has no replica"})
		}
	}
	return s, nil
}

// logEnd asks a node for the end of its log.
func (m *membership) logEnd(node fsm.UUID) (end wire.LogEndReply, err error) {
	ctx, cancel := context.WithTimeout(m.ctx, pulseTime)
	defer cancel()
	b, err := m.links.ask(ctx, node, wire.LogEnd, nil)
	if err == nil {
		err = end.Decode(b)
	}
	return end, err
}

// LogEnd implements frontdoor.Nodes.
func (d *Daemon) LogEnd() wire.LogEndReply {
	term, index := d.meta.now.Load().raft.LogEnd()
	return wire.LogEndReply{Term: term, Index: index}
}

// recoverAlone makes this node the only member of its cluster.
func (d *Daemon) recoverAlone(now *membership) error {
	now.endLate()
	defer d.followTenants() // at the end: follow(next) passes over what comes before next is the present one
	d.meta.gate.Lock()
	defer d.meta.gate.Unlock()
	if err := durable.Replace(filepath.Join(d.cfg.StateDir, recoveringFile), []byte("\n")); err != nil {
		return err
	}
	d.at("recovering")
	next := d.newMembership()
	next.authority.Store(now.authority.Load())
	if err := d.openNext(now, next); err != nil {
		next.cancel()
		return fmt.Errorf("the cluster is not recovered yet: start this node's daemon again, which goes on with it: %w", err)
	}
	result := d.enterNext(next, republish{Earlier: true}) // what a join before could not publish yet
	d.meta.now.Store(next)
	d.meta.coming.Store(nil)
	now.raft.Wake()
	if now.hasClaimed() {
		close(next.claimed)
	} else {
		d.onceEntered(next, claiming, d.holdPublished)
	}
	d.log.WithField("authority", pki.FingerprintOf(next.authority.Load().Certificate())).WithField("entered",
		result.Entered).Warn("this node has recovered its cluster, and is its only member")
	return nil
}

// dropOthers takes all other nodes out of the metadata of a cluster that this node has recovered.
func (m *membership) dropOthers(ctx context.Context, d *Daemon) error {
	d.at("alone")
	var others []fsm.Node
	m.raft.View(func(s *fsm.State) {
		others = slices.DeleteFunc(s.Nodes(), func(n fsm.Node) bool { return n.ID == m.node })
	})
	for _, n := range others {
		if _, err := m.propose(ctx, &fsm.RemoveNode{Node: n.ID, Epoch: n.Epoch}); err != nil {
			return err
		}
		d.at("dropped another node")
	}
	if err := m.book.keep([]bookEntry{}); err != nil {
		return err
	}
	return removeDurably(filepath.Join(d.cfg.StateDir, recoveringFile))
}
