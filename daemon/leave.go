package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"tendril/cluster/durable"
	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/cluster/placement"
	"tendril/cluster/raftnode"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// A node leaves its cluster in this order, so that a kill at any moment leaves a node that is a member, or one that the
// cluster does not have any more and that finishes its leave at the next start:
//
//	other nodes take replicas of what this one alone has     (drainStep; asked again until it is done)
//	another node leads, and votes                            (yieldFor)
//	STATE/leaving: what is to be published afterwards        (a start that finds it asks what became of the leave)
//	RemoveNode                                               the moment of the leave
//	STATE/moving becomes STATE/moved                         (movefiles.go, as in a join)
//
// The node gets an authority, a log and a certificate of its own; its identifier stays.

// LeaveStatus is the result of a leave, or how far it is.
type LeaveStatus struct {
	Done        bool        `json:"done"`
	Result      *MoveResult `json:"result,omitempty"` // nil where the node was a cluster of one already
	LeftObjects int         `json:"left_objects"`     // that are published, and that no other node has yet
	LeftBytes   uint64      `json:"left_bytes"`
	Stuck       []Conflict  `json:"stuck"` // of them, those that no other node can take
	Told        bool        `json:"told"`  // the cluster knows that the node has left
	Why         string      `json:"why,omitempty"`
}

// Bounds of a leave.
const (
	maxDrained = 64 // replicas that other nodes are asked for at once
	maxStuck   = 64 // objects that are named to who leaves
)

// errLeaving keeps what the metadata asks for waiting.
var errLeaving = fmt.Errorf("%w: this node is leaving its cluster", object.ErrBusy)

// errUndrained says that something was published while the node left.
var errUndrained = fmt.Errorf("%w: something was published meanwhile that no other node has", object.ErrBusy)

// LeaveCluster implements frontdoor.Nodes.
func (d *Daemon) LeaveCluster(m wire.LeaveClusterRequest) (raw []byte, err error) {
	defer func() { d.auditOf("node.leave", "", d.identity.Name, err) }()
	if !d.meta.moving.TryLock() {
		return nil, fmt.Errorf("%w: another join or leave of this node is under way", object.ErrBusy)
	}
	defer d.meta.moving.Unlock()
	s, err := d.leave(m.Anyway)
	if err != nil {
		return nil, err
	}
	return json.Marshal(s)
}

func (d *Daemon) leave(anyway bool) (LeaveStatus, error) {
	now := d.meta.now.Load()
	if !now.others() && !d.wasRemoved(now) {
		return LeaveStatus{Done: true, Told: true, Stuck: []Conflict{}}, nil
	}
	s, err := d.drainStep(now, anyway)
	if err != nil && !anyway {
		return s, err
	}
	if s.LeftObjects > len(s.Stuck) || len(s.Stuck) > 0 && !anyway {
		return s, nil
	}
	next, err := d.stageLeave()
	if err != nil {
		return s, errors.Join(err, abandonMove(d.cfg.StateDir))
	}
	result, err := d.move(next, func(now *membership) (republish, error) {
		left, err := d.takeLeave(now, anyway)
		s.Told = err == nil
		if anyway && err != nil {
			s.Why, err = err.Error(), nil
		}
		return left, err
	})
	now.leaving.Store(false)
	if errors.Is(err, errUndrained) {
		return s, nil
	}
	s.Done, s.Result = err == nil, &result
	return s, err
}

// wasRemoved reports whether the cluster does not have this node any more, as far as the node knows.
func (d *Daemon) wasRemoved(m *membership) bool {
	select {
	case <-m.registered:
	default:
		return m.others()
	}
	member := false
	m.raft.View(func(s *fsm.State) { _, member = s.Node(d.meta.node) })
	return !member
}

// onlyHere lists the published objects that no other node has that answers.
func (d *Daemon) onlyHere(m *membership, answers func(node fsm.UUID) bool) (list []fsm.Object) {
	m.raft.View(func(s *fsm.State) {
		for _, o := range s.Objects() {
			if o.Deleted || !d.isHere(o) {
				continue
			}
			if !slices.ContainsFunc(runningReplicas(s, o), func(r fsm.Replica) bool {
				return r.Node != m.node && answers(r.Node)
			}) {
				list = append(list, o)
			}
		}
	})
	return list
}

// drainStep has other nodes take what this one alone has. It waits for none of them; anyway: nor for a cluster that has
// not answered before.
func (d *Daemon) drainStep(m *membership, anyway bool) (s LeaveStatus, err error) {
	s.Stuck = []Conflict{}
	ctx, cancel := context.WithTimeout(d.ctx, d.changeTime())
	defer cancel()
	if m.removed.Load() || anyway && m.refusal.Load() != nil {
		cancel() // nothing is waited for
	}
	err = d.awaitEntry(ctx)
	if err == nil {
		err = m.awaitClaim(ctx)
	} else if why := m.refusal.Load(); why != nil {
		err = fmt.Errorf("%w: %s", object.ErrTimeout, *why)
	}
	if err != nil {
		return s, fmt.Errorf("%w; to leave without the cluster's knowledge: tendril cluster leave --anyway", err)
	}
	var nodes []fsm.Node
	m.raft.View(func(s *fsm.State) { nodes = s.Nodes() })
	m.live.settle(ctx, nodes) // before it is asked which objects no other node that answers has
	m.raft.View(func(s *fsm.State) { nodes = s.Nodes() })
	known := d.placeable(nodes)
	list := d.onlyHere(m, func(node fsm.UUID) bool { // as in known, also where a node has come back meanwhile
		i := slices.IndexFunc(known, func(n placement.Node) bool { return n.ID == node })
		return i >= 0 && known[i].Away == ""
	})
	known = slices.DeleteFunc(known, func(n placement.Node) bool { return n.ID == m.node })
	for i, o := range list {
		s.LeftObjects++
		s.LeftBytes += o.SizeBytes
		if i >= maxDrained {
			continue
		}
		if err := d.drainOne(ctx, o, nodes, known); err != nil && len(s.Stuck) < maxStuck {
			s.Stuck = append(s.Stuck, Conflict{Tenant: o.Tenant, Name: o.Name, ID: o.ID.String(), Why: err.Error()})
		}
	}
	return s, nil
}

// drainOne asks the best node that can take an object for a replica.
func (d *Daemon) drainOne(ctx context.Context, o fsm.Object, nodes []fsm.Node, known []placement.Node) error {
	list := placement.Targets(placed(o), known, placement.Policy{})
	last := noTarget(o.Name, list)
	for _, c := range list {
		if !c.OK {
			continue
		}
		n := nodes[slices.IndexFunc(nodes, func(n fsm.Node) bool { return n.ID == c.Node })]
		err := d.askToTake(ctx, n, &o)
		if err == nil || errors.Is(err, object.ErrBusy) { // it takes so many already
			return nil
		}
		last = fmt.Errorf("node %s: %w", n.Name, err)
	}
	return last
}

// stageLeave makes all that a cluster of one needs in the folder of a move.
func (d *Daemon) stageLeave() (*membership, error) {
	dir, err := beginMove(d.cfg.StateDir)
	if err != nil {
		return nil, err
	}
	next := d.newMembership()
	own, err := pki.OpenAuthority(dir, time.Now)
	if err != nil {
		return nil, err
	}
	next.authority.Store(own)
	subject := pki.Subject{Name: d.identity.Name, Role: pki.Node, Node: next.node.String()}
	if _, err = pki.OpenKeyring(d.ctx, filepath.Join(dir, pki.NodeFile), d.identity.Name, own.Trust(),
		pki.IssueFrom(own, subject, pki.NodeLife, nil), time.Now); err != nil {
		return nil, err
	}
	book := addressBook{path: filepath.Join(dir, membersFile), nodes: []bookEntry{{}}}
	if err := book.keep([]bookEntry{}); err != nil {
		return nil, err
	}
	return next, durable.Replace(filepath.Join(dir, raftFolder, foundingFile), []byte("\n"))
}

// takeLeave tells the cluster that this node is a member no more, and gives what it has published. Nothing is proposed
// meanwhile but by it.
func (d *Daemon) takeLeave(m *membership, anyway bool) (republish, error) {
	left := d.exportLeft(m)
	if len(d.onlyHere(m, d.answers)) > 0 && !anyway {
		return left, errUndrained
	}
	m.leaving.Store(true)
	ctx, cancel := context.WithTimeout(m.ctx, d.changeTime())
	defer cancel()
	if err := m.yieldFor(ctx); err != nil {
		return left, err
	}
	d.at("yielded")
	marker := filepath.Join(d.cfg.StateDir, leavingFile)
	if err := left.keep(marker); err != nil {
		return left, err
	}
	d.at("leaving")
	err := m.removeMember(ctx, m.node)
	if errors.Is(err, object.ErrNotFound) || errors.Is(err, errRemoved) { // it has been removed before
		err = nil
	}
	if err != nil {
		return left, fmt.Errorf("the cluster cannot be told that this node leaves: %w; try again, or leave without telling: "+
			"tendril cluster leave --anyway, and then on another node: tendril cluster remove %s", err, d.identity.Name)
	}
	d.at("removed")
	return left, nil
}

// exportLeft lists what this node has published: what it noted when it began to leave, else what the metadata says.
func (d *Daemon) exportLeft(m *membership) (left republish) {
	select {
	case <-m.registered:
		left = d.exportPublished(m)
	default:
		left = d.exportEarlier(m)
	}
	// What it noted when it began to leave, and what it could not publish yet in the cluster that it joined.
	for _, file := range []string{leavingFile, republishFile} {
		noted, err := readRepublish(filepath.Join(d.cfg.StateDir, file))
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				d.log.WithError(err).WithField("file", file).Warn("what this node had published cannot be read")
			}
			continue
		}
		left.Earlier = true
		for _, o := range noted.Objects {
			if !slices.ContainsFunc(left.Objects, func(x fsm.Object) bool { return x.ID == o.ID }) {
				left.Objects = append(left.Objects, o)
			}
		}
	}
	return left
}

// exportEarlier lists what an earlier run of this node has published, as far as it can tell without the cluster.
func (d *Daemon) exportEarlier(m *membership) republish {
	left := republish{Earlier: true}
	state, err := m.raft.Written()
	if err != nil {
		d.log.WithError(err).Warn("what this node had published in its cluster cannot be read")
		return left
	}
	for _, o := range state.Objects() {
		at := func(r fsm.Replica) bool { return r.Node == d.meta.node }
		if !o.Deleted && slices.ContainsFunc(o.Replicas, at) {
			left.Objects = append(left.Objects, o)
		}
	}
	return left
}

// yieldFor has another node lead, and vote where nobody else does.
func (m *membership) yieldFor(ctx context.Context) error {
	for m.raft.Leads() {
		err := m.handOver(ctx)
		if err == nil && m.raft.Leads() { // nobody else votes
			err = m.giveVote(ctx)
		}
		if !m.raft.Leads() {
			return nil
		}
		pause := time.NewTimer(proposeAgain)
		select {
		case <-ctx.Done():
			pause.Stop()
			return fmt.Errorf("%w: this node leads the cluster, and no other one can take over: %w", object.ErrTimeout,
				errors.Join(err, ctx.Err()))
		case <-pause.C:
		}
	}
	return nil
}

// giveVote gives a node that answers a vote: the one that knows most.
func (m *membership) giveVote(ctx context.Context) error {
	best, last := "", uint64(0)
	for _, x := range m.raft.Status().Members {
		id, err := parseUUID(x.ID)
		if err != nil || id == m.node || x.Voter {
			continue
		}
		state := m.live.alive(id)
		if state.Answers && !state.LogFailed && (best == "" || state.LastIndex > last) {
			best, last = x.ID, state.LastIndex
		}
	}
	if best == "" {
		return fmt.Errorf("%w: no other node answers that could vote", object.ErrBusy)
	}
	return m.raft.GiveVote(ctx, best)
}

// removeMember takes a node out of the metadata. It does not wait until that shows here: of this one it may never.
// ErrNotFound: it is no member.
func (m *membership) removeMember(ctx context.Context, node fsm.UUID) error {
	for {
		var n fsm.Node
		if err := m.read(ctx, func(s *fsm.State) { n, _ = s.Node(node) }); err != nil && !worthAnother(err) {
			return err
		}
		if n.ID.IsZero() { // not known: perhaps this node's copy is behind
			m.raft.View(func(s *fsm.State) { n, _ = s.Node(node) })
		}
		result, _, err := m.send(ctx, &fsm.RemoveNode{Node: node, Epoch: n.Epoch})
		if err == nil {
			err = result.Err()
		}
		if !errors.Is(err, object.ErrBusy) || ctx.Err() != nil {
			return err
		}
	}
}

// errTooFew says that without a node's vote no majority of the voters would answer.
var errTooFew = fmt.Errorf("%w: too few of the other voters answer to go on without the node's vote", object.ErrBusy)

// proposeHere proposes at this node. raw belongs to raft afterwards.
func (m *membership) proposeHere(ctx context.Context, raw []byte) (fsm.Result, uint64, error) {
	if fsm.TypeOf(raw) != fsm.TypeRemoveNode {
		return m.raft.ProposeEncoded(ctx, raw)
	}
	e, err := fsm.Decode(raw)
	if err != nil {
		return fsm.Result{}, 0, err
	}
	if err := m.beginGoverning(ctx); err != nil { // else the node might have its vote back at once
		return fsm.Result{}, 0, err
	}
	defer m.endGoverning()
	if err := m.takeVote(ctx, e.Command.(*fsm.RemoveNode).Node); err != nil {
		return fsm.Result{}, 0, err
	}
	return m.raft.ProposeEncoded(ctx, raw)
}

// takeVote takes the vote of a node that is about to be taken out. Once it is, nobody has its address, and it may end:
// if it were a voter still, a leader that needs its answer could neither lead on nor take it off the voters, and nobody
// else could be elected. So of two voters none may go with its vote. A node that leads hands over first.
func (m *membership) takeVote(ctx context.Context, node fsm.UUID) error {
	if node == m.node {
		return m.yieldFor(ctx)
	}
	st := m.raft.Status()
	if !m.raft.Leads() {
		return &raftnode.NotLeaderError{LeaderID: st.Leader}
	}
	voted, left, answer := false, 0, 0
	for _, x := range st.Members {
		switch {
		case !x.Voter:
		case x.ID == node.String():
			voted = true
		default:
			left++
			if id, err := parseUUID(x.ID); err == nil && (id == m.node || m.live.alive(id).Answers) {
				answer++
			}
		}
	}
	switch {
	case !voted:
		return nil
	case 2*answer <= left:
		return errTooFew
	}
	return m.raft.TakeVote(ctx, node.String())
}

// readAgain is read, tried again until ctx ends where nobody leads.
func (m *membership) readAgain(ctx context.Context, f func(*fsm.State)) error {
	for {
		err := m.read(ctx, f)
		if err == nil || !worthAnother(err) {
			return err
		}
		pause := time.NewTimer(proposeAgain)
		select {
		case <-ctx.Done():
			pause.Stop()
			return fmt.Errorf("%w: the cluster did not answer in time: %w", object.ErrTimeout, err)
		case <-pause.C:
		}
	}
}

// wasLeaving reports whether the node had begun to tell its cluster that it leaves.
func (d *Daemon) wasLeaving() bool {
	is, err := hasState(filepath.Join(d.cfg.StateDir, leavingFile))
	return is && err == nil
}

// finishLeave takes a node that its cluster does not have any more out of it.
func (d *Daemon) finishLeave() {
	select {
	case <-d.holds: // what was published is looked for in the store
	case <-d.ctx.Done():
		return
	}
	for {
		d.meta.moving.Lock()
		var err error
		if d.wasLeaving() {
			_, err = d.leave(true)
		}
		d.meta.moving.Unlock()
		if err == nil {
			return
		}
		d.log.WithError(err).Warn("this node has left its cluster, and cannot go on as a cluster of one yet; trying again")
		if !d.rest(enterAgain) {
			return
		}
	}
}

// RemoveResult is the result of the removal of a node.
type RemoveResult struct {
	Node        string     `json:"node"`
	LostObjects int        `json:"lost_objects"` // published ones that no other node has
	Lost        []Conflict `json:"lost"`         // the first of them
}

// RemoveNode implements frontdoor.Nodes.
func (d *Daemon) RemoveNode(m wire.RemoveNodeRequest) (raw []byte, err error) {
	defer func() { d.auditOf("node.remove", "", m.Node, err) }()
	ctx, cancel := context.WithTimeout(d.ctx, d.changeTime())
	defer cancel()
	if err := d.awaitEntry(ctx); err != nil {
		return nil, err
	}
	now := d.meta.now.Load()
	n, lost, err := now.lostWith(ctx, m.Node)
	if err != nil {
		return nil, err
	}
	now.live.settle(ctx, []fsm.Node{n})
	switch {
	case n.ID == d.meta.node:
		return nil, fmt.Errorf("%w: %s is this node: tendril cluster leave", object.ErrInvalid, n.Name)
	case m.Anyway:
	case now.live.alive(n.ID).Answers:
		return nil, fmt.Errorf("%w: node %s answers: on it, tendril cluster leave; or, here, --anyway", object.ErrInvalid,
			n.Name)
	case len(lost) > 0:
		return nil, fmt.Errorf("%w: %d published objects are on node %s alone, %q among them: without it they are gone; if "+
			"that is meant: --anyway", object.ErrInvalid, len(lost), n.Name, lost[0].Name)
	}
	d.meta.gate.RLock()
	defer d.meta.gate.RUnlock()
	if err := now.removeMember(ctx, n.ID); err != nil {
		return nil, fmt.Errorf("%w; where most of the voters are gone for good: tendril cluster recover", err)
	}
	r := RemoveResult{Node: n.Name, LostObjects: len(lost), Lost: []Conflict{}}
	for _, o := range lost[:min(len(lost), maxStuck)] {
		r.Lost = append(r.Lost, Conflict{Tenant: o.Tenant, Name: o.Name, ID: o.ID.String(),
			Why: "no other node had it"})
	}
	d.log.WithField("removed", n.Name).WithField("node", n.ID).WithField("lost", len(lost)).Info(
		"a node was removed from the cluster")
	return json.Marshal(r)
}

// lostWith finds a node by its name or identifier, and what is published that no other node has.
func (m *membership) lostWith(ctx context.Context, name string) (n fsm.Node, lost []fsm.Object, err error) {
	if err := m.readAgain(ctx, func(s *fsm.State) {
		nodes := s.Nodes()
		i := slices.IndexFunc(nodes, func(n fsm.Node) bool { return n.Name == name || n.ID.String() == name })
		if i < 0 {
			return
		}
		n = nodes[i]
		for _, o := range s.Objects() {
			at := func(r fsm.Replica) bool { return r.Node == n.ID }
			others := slices.DeleteFunc(runningReplicas(s, o), at)
			if !o.Deleted && len(others) == 0 && slices.ContainsFunc(o.Replicas, at) {
				lost = append(lost, o)
			}
		}
	}); err != nil {
		return n, nil, fmt.Errorf("%w; where most of the voters are gone for good: tendril cluster recover", err)
	}
	if n.ID.IsZero() {
		return n, nil, fmt.Errorf("%w: the cluster has no node %.60q", object.ErrNotFound, name)
	}
	return n, lost, nil
}
