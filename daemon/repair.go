package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"tendril/cluster/fsm"
	"tendril/cluster/placement"
	"tendril/cluster/transfer"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// The leader makes sure that objects have as many replicas as are wanted. It asks nodes to take one (replicas.go), and
// what becomes of that it reads in the metadata: nothing of its own has to survive it.

// Times of repairs.
const (
	repairEvery  = 500 * time.Millisecond // between two looks
	repairAfter  = 15 * time.Second       // without an answer, after which a node's replicas are made again elsewhere
	surplusAfter = 5 * time.Second        // that a surplus has to last: somebody may be moving the object
	takeTime     = 2 * time.Second        // for a node to say that it takes a replica
	takeAgain    = 2 * time.Second        // after which a node is asked again for what it was asked for
	takeFailed   = takeMemory             // for which a node that failed is not asked for the same
	maxAsked     = 256                    // replicas that nodes were asked for, in the cluster
)

// repairer is what the leader keeps of its work; it begins empty.
type repairer struct {
	d       *Daemon
	m       *membership
	silent  map[fsm.UUID]time.Time  // nodes that do not answer, since when
	asked   map[takeKey]time.Time   // replicas that a node was asked for, when last
	failed  map[takeKey]time.Time   // that it could not take, when
	surplus map[fsm.UUID]time.Time  // objects with too many, since when
	objects map[fsm.UUID][]fsm.UUID // → nodes in asked
	nodes   map[fsm.UUID]*fsm.Node  // of the look that is under way
	known   []placement.Node        // of it, too

	mu       sync.Mutex           // a leaf; guards what follows
	asking   map[takeKey]struct{} // nodes that are being asked just now
	refusals []takeKey            // of them, those that said no, or nothing
}

type takeKey struct{ object, node fsm.UUID }

func newRepairer(d *Daemon, m *membership) *repairer {
	return &repairer{d: d, m: m, asked: map[takeKey]time.Time{},
		failed: map[takeKey]time.Time{}, surplus: map[fsm.UUID]time.Time{}, objects: map[fsm.UUID][]fsm.UUID{},
		asking: map[takeKey]struct{}{}}
}

// repair looks after replicas while this node leads. It ends with the membership.
func (d *Daemon) repair(m *membership) {
	select {
	case <-d.holds: // a node may lead before: it would ask its own store, which is not open
	case <-m.ctx.Done():
		return
	}
	r := newRepairer(d, m)
	m.rounds(m.raft.Changed, func() (idle bool) {
		if !m.raft.Leads() {
			r = newRepairer(d, m)
			return false
		}
		return r.look() == 0 // no object has a number
	})
}

// rounds calls look until the membership ends. A long look is followed by a pause of four times as long. Where look
// says that there is nothing to look after, the next one waits for a change, however long that takes.
func (m *membership) rounds(changed func() <-chan struct{}, look func() (idle bool)) {
	for m.ctx.Err() == nil {
		change, began := changed(), time.Now()
		idle := look()
		m.pause(max(repairEvery, 4*time.Since(began)))
		if idle {
			select {
			case <-m.ctx.Done():
			case <-change:
			}
		}
	}
}

// look does what is due, and gives how many objects have a number.
func (r *repairer) look() int {
	var list []fsm.Object
	var nodes []fsm.Node
	r.m.raft.View(func(s *fsm.State) {
		if list = s.Replicated(); len(list) > 0 {
			nodes = s.Nodes()
		}
	})
	if len(list) == 0 {
		return 0
	}
	r.m.live.settle(r.m.ctx, nodes)
	r.known = r.d.placeable(nodes)
	r.nodes = map[fsm.UUID]*fsm.Node{}
	for i := range nodes {
		r.nodes[nodes[i].ID] = &nodes[i]
	}
	r.noteSilent()
	r.noteRefusals()
	r.forgetOld(list)
	for i := range list {
		if r.m.ctx.Err() != nil {
			break
		}
		r.arrange(&list[i])
	}
	return len(list)
}

// noteSilent keeps since when nodes do not answer.
func (r *repairer) noteSilent() {
	r.silent = map[fsm.UUID]time.Time{}
	for id := range r.nodes {
		if x := r.m.live.alive(id); !x.Answers {
			r.silent[id] = x.Since
		}
	}
}

// forgetOld drops what is over: nodes that have what they were asked for, failures that were long ago, objects that are
// no more.
func (r *repairer) forgetOld(list []fsm.Object) {
	now := map[fsm.UUID]*fsm.Object{}
	for i := range list {
		now[list[i].ID] = &list[i]
	}
	for key := range r.asked {
		o := now[key.object]
		_, silent := r.silent[key.node]
		if o == nil || r.nodes[key.node] == nil || silent || r.isAt(o, key.node) {
			delete(r.asked, key)
		}
	}
	for key, at := range r.failed {
		if time.Since(at) > takeFailed {
			delete(r.failed, key)
		}
	}
	for id := range r.surplus {
		if now[id] == nil {
			delete(r.surplus, id)
		}
	}
	r.objects = map[fsm.UUID][]fsm.UUID{}
	for key := range r.asked {
		r.objects[key.object] = append(r.objects[key.object], key.node)
	}
}

// isAt reports whether a node's present run has a replica.
func (r *repairer) isAt(o *fsm.Object, node fsm.UUID) bool {
	n := r.nodes[node]
	return n != nil && slices.Contains(o.Replicas, fsm.Replica{Node: node, Incarnation: n.Incarnation})
}

// count is what there is of an object.
func (r *repairer) count(o *fsm.Object) placement.Count {
	c := placement.Count{Wanted: int(o.Wanted)}
	for _, x := range o.Replicas {
		if !r.isAt(o, x.Node) {
			continue
		}
		c.Have = append(c.Have, x.Node)
		since, silent := r.silent[x.Node]
		switch {
		case silent && time.Since(since) >= r.d.repairAfter():
			c.Gone = append(c.Gone, x.Node)
		case silent:
			c.Silent = append(c.Silent, x.Node)
		}
	}
	for _, node := range r.objects[o.ID] {
		c.Pending = append(c.Pending, node)
	}
	return c
}

// arrange does what is due for one object.
func (r *repairer) arrange(o *fsm.Object) {
	c := r.count(o)
	if len(c.Have) == len(c.Gone)+len(c.Silent) { // nobody can give it
		return
	}
	for _, node := range r.objects[o.ID] {
		if key := (takeKey{o.ID, node}); time.Since(r.asked[key]) > takeAgain {
			r.ask(o, key)
		}
	}
	for range c.Missing() {
		if !r.askBest(o) {
			break
		}
	}
	id, some := c.Surplus()
	since, lasts := r.surplus[o.ID]
	switch {
	case !some:
		delete(r.surplus, o.ID)
	case !lasts:
		r.surplus[o.ID] = time.Now()
	case time.Since(since) >= surplusAfter:
		delete(r.surplus, o.ID)
		r.giveUp(o, id)
	}
}

// askBest asks the best node for a replica; false: there is none.
func (r *repairer) askBest(o *fsm.Object) bool {
	if len(r.asked) >= maxAsked {
		return false
	}
	x := placed(*o)
	for _, node := range r.objects[o.ID] {
		x.Replicas = append(x.Replicas, node)
	}
	for _, c := range placement.Targets(x, r.known, placement.Policy{}) {
		key := takeKey{o.ID, c.Node}
		if _, bad := r.failed[key]; c.OK && !bad {
			r.objects[o.ID] = append(r.objects[o.ID], c.Node)
			r.ask(o, key)
			return true
		}
	}
	return false
}

// ask asks a node for a replica, the first time or once more. It waits for no answer: a node that is slow to say
// something holds no other up.
func (r *repairer) ask(o *fsm.Object, key takeKey) {
	r.mu.Lock()
	_, already := r.asking[key]
	r.asking[key] = struct{}{}
	r.mu.Unlock()
	if already {
		return
	}
	r.asked[key] = time.Now()
	node, wanted := *r.nodes[key.node], *o
	r.m.running.Go(func() {
		err := r.d.askToTake(r.m.ctx, node, &wanted)
		r.mu.Lock()
		delete(r.asking, key)
		if err != nil {
			r.refusals = append(r.refusals, key)
		}
		r.mu.Unlock()
		if err != nil && r.m.ctx.Err() == nil {
			r.d.log.WithError(err).WithField("object", wanted.ID).WithField("node",
				node.Name).Debug("a node does not take a replica")
		}
	})
}

// noteRefusals keeps which nodes are not to be asked again for a while.
func (r *repairer) noteRefusals() {
	r.mu.Lock()
	refusals := r.refusals
	r.refusals = nil
	r.mu.Unlock()
	for _, key := range refusals {
		delete(r.asked, key)
		r.failed[key] = time.Now()
	}
}

// giveUp has a node give up its replica, unless the object changed meanwhile.
func (r *repairer) giveUp(o *fsm.Object, node fsm.UUID) {
	ctx, cancel := context.WithTimeout(r.m.ctx, proposeTime)
	defer cancel()
	_, err := r.m.propose(ctx, &fsm.RemoveReplica{ID: o.ID, Epoch: o.Epoch,
		Replica: fsm.Replica{Node: node, Incarnation: r.nodes[node].Incarnation}})
	if err != nil && r.m.ctx.Err() == nil {
		r.d.log.WithError(err).WithField("object", o.ID).Debug("a surplus replica stays for now")
	}
}

// repairAfter is the time without an answer after which a node's replicas count no more.
func (d *Daemon) repairAfter() time.Duration {
	if t := d.repairTime.Load(); t > 0 {
		return time.Duration(t)
	}
	return repairAfter
}

// askToTake has a node begin to take a replica.
func (d *Daemon) askToTake(ctx context.Context, n fsm.Node, o *fsm.Object) error {
	named := transfer.Named{ID: o.ID, Epoch: o.Epoch, Tenant: o.Tenant}
	if n.ID == d.meta.node {
		return d.take(named)
	}
	ctx, cancel := context.WithTimeout(ctx, takeTime+d.patience())
	defer cancel()
	conn, err := d.dialTransfer(ctx, sourceOf(n))
	if err != nil {
		return err
	}
	defer conn.Close()
	err = transfer.Take(ctx, conn, named)
	if isCut(err) {
		err = fmt.Errorf("%w: %w: %w", object.ErrBusy, errNoAnswer, err)
	}
	return err
}

// isCut reports whether a connection ended, or was ended by who waited, before there was an answer.
func isCut(err error) bool {
	var fault net.Error
	return errors.As(err, &fault) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF)
}

// ReplicateStatus is what `tendril replicate` shows.
type ReplicateStatus struct {
	ID        object.ID `json:"id"`
	Name      string    `json:"name"`
	SizeBytes uint64    `json:"size_bytes"`
	Wanted    int       `json:"wanted"`
	Have      int       `json:"have"`
	Nodes     []string  `json:"nodes"`          // that have it
	Possible  int       `json:"possible"`       // replicas, as the nodes are now
	To        string    `json:"to,omitempty"`   // the node that was asked to take it
	From      string    `json:"from,omitempty"` // the node that is to give it up: who asks again names it
	Done      bool      `json:"done"`           // it is as was asked for, or as far as can be
	Why       string    `json:"why,omitempty"`
}

// Replicate implements frontdoor.Elsewhere.
func (d *Daemon) Replicate(ctx context.Context, tenant string, m wire.ReplicateRequest) ([]byte, error) {
	entry, cancel := context.WithTimeout(ctx, d.changeTime())
	defer cancel()
	if err := d.awaitEntry(entry); err != nil {
		return nil, err
	}
	o, nodes, err := d.publishedNow(ctx, tenant, m.ID, m.Name)
	id := object.ID(o.ID)
	switch {
	case err != nil:
		return nil, err
	case m.From != "" && !m.Move:
		return nil, fmt.Errorf("%w: a replica is moved from a node, or added", object.ErrInvalid)
	}
	if m.Wanted > 0 && o.Wanted != m.Wanted {
		if _, err := d.propose(&fsm.SetReplicas{ID: o.ID, Tenant: tenant, Wanted: m.Wanted}); err != nil {
			return nil, err
		}
	}
	d.meta.now.Load().live.settle(ctx, nodes)
	var from fsm.Replica
	if m.Move {
		if from, err = d.movedFrom(m, o, nodes); err != nil {
			return nil, err
		}
	}
	done, to := true, ""
	if m.Move || m.To != "" {
		if done, to, err = d.placeAt(ctx, m, o, nodes, from); err != nil {
			return nil, err
		}
	}
	var refused map[fsm.UUID]error
	if m.Wanted > 0 && !m.Move && m.To == "" {
		refused = d.askMissing(ctx, tenant, id)
	}
	s := d.replicateStatus(tenant, id, done, refused)
	s.To, s.From = to, m.From
	if i := slices.IndexFunc(nodes, func(n fsm.Node) bool { return n.ID == from.Node }); i >= 0 {
		s.From = nodes[i].Name
	}
	return json.Marshal(s)
}

// refusals are what nodes said lately that were asked for replicas by who waits for them. The lock is a leaf.
type refusals struct {
	mu  sync.Mutex
	all map[takeKey]nodeRefusal
}

type nodeRefusal struct {
	at  time.Time
	err error // nil: it takes one
}

// Bounds of them.
const (
	refusalAge  = time.Second // for which an answer counts
	maxRefusals = 1024
)

// of gives what a node said, and asks it where that is old.
func (r *refusals) of(key takeKey, ask func() error) error {
	r.mu.Lock()
	x, known := r.all[key]
	r.mu.Unlock()
	if known && time.Since(x.at) < refusalAge {
		return x.err
	}
	x = nodeRefusal{time.Now(), ask()}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.all) >= maxRefusals || r.all == nil {
		r.all = map[takeKey]nodeRefusal{}
	}
	r.all[key] = x
	return x.err
}

// askMissing asks nodes for the replicas that are missing, as the leader does, and gives why some cannot take one:
// placement does not know what a tenant has there, and who waits for a replica would wait for ever.
func (d *Daemon) askMissing(ctx context.Context, tenant string, id object.ID) map[fsm.UUID]error {
	o, nodes, ok := d.publishedAs(tenant, id)
	known := d.placeable(nodes)
	missing, refused := int(o.Wanted), map[fsm.UUID]error{}
	for i, n := range nodes {
		if known[i].Away == "" && slices.Contains(o.Replicas, fsm.Replica{Node: n.ID, Incarnation: n.Incarnation}) {
			missing--
		}
	}
	for _, c := range placement.Targets(placed(o), known, placement.Policy{}) {
		if !ok || !c.OK || missing <= 0 {
			break
		}
		n := nodes[slices.IndexFunc(nodes, func(n fsm.Node) bool { return n.ID == c.Node })]
		err := d.refusals.of(takeKey{o.ID, n.ID}, func() error { return d.askToTake(ctx, n, &o) })
		if err == nil || errors.Is(err, object.ErrBusy) || errors.Is(err, object.ErrTimeout) { // it may yet
			missing--
			continue
		}
		refused[n.ID] = err
	}
	return refused
}

// placeAt has a node take a replica and, where it is to be moved, another one give up its own after that. It says
// whether that is done, and which node it is.
func (d *Daemon) placeAt(ctx context.Context, m wire.ReplicateRequest, o fsm.Object, nodes []fsm.Node,
	from fsm.Replica) (done bool, name string, err error) {
	if m.Move && from.Node.IsZero() { // it was moved already
		return true, m.To, nil
	}
	targets, err := d.movedTo(m, o, nodes, from)
	if err != nil {
		return false, "", err
	}
	to := targets[0]
	switch {
	case to.ID == from.Node:
		return true, to.Name, nil
	case !slices.Contains(o.Replicas, fsm.Replica{Node: to.ID, Incarnation: to.Incarnation}):
		to, err := d.askFirst(ctx, targets, &o)
		return false, to.Name, err
	case m.Move:
		if err := d.canSpare(o, nodes, from); err != nil {
			return false, to.Name, err
		}
		return true, to.Name, d.removeReplica(object.ID(o.ID), from)
	case m.Wanted == 0 && int(o.Wanted) > 0 && int(o.Wanted) < len(o.Replicas): // else the leader gives one up
		_, err := d.propose(&fsm.SetReplicas{ID: o.ID, Tenant: o.Tenant, Wanted: uint16(len(o.Replicas))})
		return true, to.Name, err
	}
	return true, to.Name, nil
}

// canSpare says why a replica cannot be given up, with ErrBusy where that may pass by itself: the others that can be
// reached would be too few, and the leader would have one made again, at the same node perhaps.
func (d *Daemon) canSpare(o fsm.Object, nodes []fsm.Node, from fsm.Replica) error {
	there, others := 0, 0
	var away []string // nodes of other replicas that do not answer
	for i, x := range d.placeable(nodes) {
		r := fsm.Replica{Node: nodes[i].ID, Incarnation: nodes[i].Incarnation}
		has := r.Node != from.Node && slices.Contains(o.Replicas, r)
		switch {
		case x.Away == "":
			there++
			others += btoi(has)
		case has:
			away = append(away, nodes[i].Name)
		}
	}
	wanted := max(1, int(o.Wanted))
	if others < min(wanted, there) && others+len(away) >= min(wanted, there+len(away)) {
		return fmt.Errorf("%w: %q is at that node now, and stays where it was while nodes with replicas do not answer: "+
			"%s; without them there would be %d of the %d replicas that it is to have: try again, or remove a node that is "+
			"gone for good with: tendril cluster remove NODE", object.ErrBusy, o.Name, strings.Join(away, ", "), others,
			wanted)
	}
	if others < min(wanted, there) {
		return fmt.Errorf("%w: that node has a replica of %q already, and a move would leave %d of the %d it is to have: "+
			"name a node without one, or lower the number with tendril replicate --replicas",
			object.ErrInvalid, o.Name, others, wanted)
	}
	return nil
}

func nodeNamed(nodes []fsm.Node, name string) (fsm.Node, error) {
	i := slices.IndexFunc(nodes, func(n fsm.Node) bool { return n.Name == name })
	if i < 0 {
		return fsm.Node{}, fmt.Errorf("%w: the cluster has no node %.60q", object.ErrNotFound, name)
	}
	return nodes[i], nil
}

// movedFrom gives the replica that is to be given up; the zero one: the node has none.
func (d *Daemon) movedFrom(m wire.ReplicateRequest, o fsm.Object, nodes []fsm.Node) (r fsm.Replica, err error) {
	if !m.Move {
		return r, nil
	}
	if m.From == "" && d.isHere(o) {
		return d.ownReplica(), nil
	}
	if m.From == "" {
		return o.Replicas[0], nil
	}
	n, err := nodeNamed(nodes, m.From)
	if i := slices.IndexFunc(o.Replicas, func(x fsm.Replica) bool { return x.Node == n.ID }); err == nil && i >= 0 {
		r = o.Replicas[i]
	}
	return r, err
}

// maxTargets is how many nodes are asked for one replica before somebody is told that none takes it.
const maxTargets = 8

// askFirst asks nodes, the best first, until one begins to take a replica, or is at it. Placement does not know whether
// the tenant has room there, nor why a node could not take the object a moment ago.
// Those that were too slow are asked again, for as long as they count as nodes that answer.
func (d *Daemon) askFirst(ctx context.Context, targets []fsm.Node, o *fsm.Object) (fsm.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, d.changeTime())
	defer cancel()
	targets = targets[:min(len(targets), maxTargets)]
	faults := make([]error, len(targets))
	for due := true; due; {
		due = false
		for i, n := range targets {
			if faults[i] != nil && !errors.Is(faults[i], errNoAnswer) {
				continue
			}
			err := d.askToTake(ctx, n, o)
			if err == nil {
				return n, nil
			}
			faults[i] = fmt.Errorf("node %s: %w", n.Name, err)
			due = due || errors.Is(err, errNoAnswer) && d.answers(n.ID) && ctx.Err() == nil
		}
		if due {
			d.rest(proposeAgain)
		}
	}
	slices.SortStableFunc(faults, func(a, b error) int { // what may pass counts
		return btoi(errors.Is(b, object.ErrBusy)) - btoi(errors.Is(a, object.ErrBusy))
	})
	return targets[0], errors.Join(faults...)
}

// movedTo gives the nodes that may have a replica, the best first: one that has it already alone.
func (d *Daemon) movedTo(m wire.ReplicateRequest, o fsm.Object, nodes []fsm.Node,
	from fsm.Replica) (targets []fsm.Node, err error) {
	if m.To != "" {
		n, err := nodeNamed(nodes, m.To)
		return []fsm.Node{n}, err
	}
	if len(o.Replicas) > max(1, int(o.Wanted)) { // enough without that one, or one that came for this
		for _, n := range nodes {
			if n.ID != from.Node && slices.Contains(o.Replicas, fsm.Replica{Node: n.ID, Incarnation: n.Incarnation}) {
				return []fsm.Node{n}, nil
			}
		}
	}
	list := placement.Targets(placed(o), d.placeable(nodes), placement.Policy{})
	for _, c := range list {
		if c.OK {
			targets = append(targets, nodes[slices.IndexFunc(nodes, func(n fsm.Node) bool { return n.ID == c.Node })])
		}
	}
	if len(targets) > 0 {
		return targets, nil
	}
	list = slices.DeleteFunc(list, func(c placement.Choice) bool { return c.Node == from.Node })
	return nil, noTarget(o.Name, list)
}

// noTarget says why no node can take a replica. Only where a node has too little room, the store is full.
func noTarget(name string, list []placement.Choice) error {
	switch {
	case len(list) == 0:
		return fmt.Errorf("%w: no other node can take %q: the cluster has one node", object.ErrUnsupported, name)
	case slices.ContainsFunc(list, func(c placement.Choice) bool { return c.Full }):
		return fmt.Errorf("%w: no other node can take %q: %s", object.ErrFull, name, whyNot(list))
	}
	return fmt.Errorf("%w: no other node can take %q: %s", object.ErrUnsupported, name, whyNot(list))
}

// whyNot says of each node why it cannot take a replica.
func whyNot(list []placement.Choice) string {
	var all []string
	for _, c := range list {
		if !c.OK {
			all = append(all, c.Name+": "+c.Why)
		}
	}
	return strings.Join(all, "; ")
}

// replicateStatus describes how far a published object's replicas are. refused are nodes that cannot take one, and why.
func (d *Daemon) replicateStatus(tenant string, id object.ID, moved bool, refused map[fsm.UUID]error) ReplicateStatus {
	o, nodes, _ := d.publishedAs(tenant, id)
	x := ReplicateStatus{ID: id, Name: o.Name, SizeBytes: o.SizeBytes, Wanted: max(1, int(o.Wanted)), Nodes: []string{}}
	known := d.placeable(nodes)
	for i, n := range nodes {
		if slices.Contains(o.Replicas, fsm.Replica{Node: n.ID, Incarnation: n.Incarnation}) {
			x.Nodes = append(x.Nodes, n.Name)
			if known[i].Away == "" {
				x.Have++
			}
		}
	}
	targets := placement.Targets(placed(o), known, placement.Policy{})
	x.Possible = x.Have
	for i := range targets {
		if err := refused[targets[i].Node]; err != nil && targets[i].OK {
			targets[i].OK, targets[i].Why = false, err.Error()
		}
		if targets[i].OK {
			x.Possible++
		}
	}
	x.Done = moved && x.Have >= min(x.Wanted, x.Possible)
	if x.Possible < x.Wanted {
		x.Why = whyNot(targets)
	}
	return x
}
