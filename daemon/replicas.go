package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"tendril/cluster/fsm"
	"tendril/cluster/transfer"
	"tendril/store"
	"tendril/store/object"
)

// Replicas at this node. The metadata says which nodes are to have an object, and a node follows it: one that is asked
// to take a replica pulls it, keeps it, and then has itself listed (take). One that is listed no more, or whose object
// was deleted, deletes it (followReplicas). So a node that was away learns at its return what it is to do.

// Bounds of replicas that a node is asked to take.
const (
	maxTaking  = 64               // under way
	takeMemory = 10 * time.Second // for which a failure is told to who asks again
	busyTries  = 32               // of a change whose epoch was an older one
)

// replicas is what this node has, or is about to have. mu is a leaf.
type replicas struct {
	mu     sync.Mutex
	here   map[object.ID]ownedReplica // that the metadata listed here
	fresh  []object.ID                // of here: not looked at yet
	taking map[object.ID]*taking
	noted  chan struct{} // has one where followReplicas is to look at here again
}

// ownedReplica is an object of which the metadata listed a replica here. taken: it came from another node.
type ownedReplica struct {
	tenant string
	taken  bool
}

// taking is a replica that this node was asked to take.
type taking struct {
	ended time.Time // zero: it is under way
	err   error
}

func newReplicas() replicas {
	return replicas{here: map[object.ID]ownedReplica{}, taking: map[object.ID]*taking{},
		noted: make(chan struct{}, 1)}
}

// note says that the metadata lists a replica here, or may. What it asks of that may have come before: it is looked at
// again.
func (r *replicas) note(id object.ID, tenant string, taken bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, there := r.here[id]; there {
		taken = taken || old.taken
	}
	r.here[id] = ownedReplica{tenant, taken}
	r.fresh = append(r.fresh, id)
	select {
	case r.noted <- struct{}{}:
	default:
	}
}

func (r *replicas) forget(id object.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.here, id)
}

// of gives what is noted of one; zero: nothing.
func (r *replicas) of(id object.ID) ownedReplica {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.here[id]
}

// list gives what is here: all, or what came since the last list.
func (r *replicas) list(all bool) map[object.ID]ownedReplica {
	r.mu.Lock()
	defer r.mu.Unlock()
	fresh := r.fresh
	r.fresh = nil
	if all {
		return maps.Clone(r.here)
	}
	list := make(map[object.ID]ownedReplica, len(fresh))
	for _, id := range fresh {
		if x, there := r.here[id]; there {
			list[id] = x
		}
	}
	return list
}

// begin enters a replica that is to be taken; false: it is under way, or has failed (err) a moment ago.
func (r *replicas) begin(id object.ID) (begun bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	under := 0
	for other, t := range r.taking {
		switch {
		case t.ended.IsZero():
			under++
		case time.Since(t.ended) > takeMemory:
			delete(r.taking, other)
		}
	}
	if t := r.taking[id]; t != nil {
		return false, t.err
	}
	if under >= maxTaking || len(r.taking) >= 4*maxTaking {
		return false, fmt.Errorf("%w: this node takes %d replicas already", object.ErrBusy, under)
	}
	r.taking[id] = &taking{}
	return true, nil
}

// end notes what became of it: a success is in the metadata, and forgotten here.
func (r *replicas) end(id object.ID, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		delete(r.taking, id)
		return
	}
	r.taking[id] = &taking{ended: time.Now(), err: err}
}

// take begins to get a replica. It comes back at once.
func (d *Daemon) take(n transfer.Named) error {
	id := object.ID(n.ID)
	if begun, err := d.replicas.begin(id); !begun {
		return err
	}
	d.joined.Go(func() {
		err := d.takeReplica(n)
		d.replicas.end(id, err)
		if err != nil && d.ctx.Err() == nil {
			d.log.WithError(err).WithField("object", id).Warn("cannot take a replica")
		}
	})
	return nil
}

// takeReplica pulls an object, keeps it, and has the cluster list it here.
func (d *Daemon) takeReplica(n transfer.Named) error {
	id := object.ID(n.ID)
	if err := d.knows(d.ctx, transfer.Request{ID: n.ID, Epoch: n.Epoch, Tenant: n.Tenant}); err != nil {
		return err
	}
	if d.isListedHere(id) {
		return nil
	}
	release, err := d.Bring(d.ctx, n.Tenant, id)
	if err != nil {
		return err
	}
	defer release()
	d.at("pulled a replica")
	if err := d.keep(n.Tenant, id); err != nil {
		return err
	}
	d.at("kept a replica")
	if refused, err := d.addReplica(n.Tenant, id); refused {
		return errors.Join(err, d.dropCopy(n.Tenant, id))
	} else if err != nil {
		d.replicas.note(id, n.Tenant, true) // it may be listed: followReplicas finds out
		return err
	}
	d.at("listed a replica")
	d.replicas.note(id, n.Tenant, true)
	if !d.published.follower.Add(id) {
		return errors.Join(fmt.Errorf("%w: object %s was deleted while its replica was being made", object.ErrNotFound, id),
			d.removeReplica(id, d.ownReplica()))
	}
	return nil
}

// keep has the store hold a copy.
func (d *Daemon) keep(tenant string, id object.ID) error {
	conn, err := d.store.Connect(store.Owner{Tenant: tenant, Name: "replica"})
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.KeepCopy(id)
}

// addReplica has the cluster list a replica here. After an error that is no refusal the replica may be listed.
func (d *Daemon) addReplica(tenant string, id object.ID) (refused bool, err error) {
	for try := 0; ; try++ {
		o, _, ok := d.publishedAs(tenant, id)
		if !ok {
			return true, fmt.Errorf("%w: object %s is no longer published", object.ErrNotFound, id)
		}
		result, err := d.proposeOwn(&fsm.AddReplica{ID: o.ID, Epoch: o.Epoch, Replica: d.ownReplica()})
		if !errors.Is(err, object.ErrBusy) || try >= busyTries { // another node's came before
			return result.Err() != nil, err
		}
	}
}

// removeReplica has the cluster list a replica no more. One that is not listed is no error.
func (d *Daemon) removeReplica(id object.ID, r fsm.Replica) error {
	for try := 0; ; try++ {
		var o fsm.Object
		d.meta.raft.View(func(s *fsm.State) {
			var ok bool
			if o, ok = s.Object(fsm.UUID(id)); !ok {
				o, _ = s.Deleted(fsm.UUID(id))
			}
		})
		if !slices.Contains(o.Replicas, r) {
			return nil
		}
		_, err := d.propose(&fsm.RemoveReplica{ID: o.ID, Epoch: o.Epoch, Replica: r})
		if !errors.Is(err, object.ErrBusy) || try >= busyTries {
			return ignoreNotFound(err)
		}
	}
}

// dropReplica deletes what this node has of an object, whatever holds it here. Who uses it keeps the memory.
func (d *Daemon) dropReplica(tenant string, id object.ID) error {
	conn, err := d.store.Connect(store.Owner{Tenant: tenant, Name: "replica"})
	if err != nil {
		return err
	}
	defer conn.Close()
	return ignoreNotFound(conn.Delete(id, ""))
}

// lossMark tells one state of the metadata from a later one in which less is published, or has fewer replicas.
type lossMark struct {
	state  *fsm.State
	losses uint64
}

func (x lossMark) differs(s *fsm.State) bool { return x != lossMark{s, s.Losses()} }

func (d *Daemon) lossesNow() (x lossMark) {
	d.meta.raft.View(func(s *fsm.State) { x = lossMark{s, s.Losses()} })
	return x
}

// nodesNow counts how often nodes have come, gone or started anew.
func (d *Daemon) nodesNow() (n uint64) {
	d.meta.raft.View(func(s *fsm.State) { n = s.NodeChanges() })
	return n
}

// followReplicas does what the metadata asks of the replicas here: of all, whenever some object has lost one, else of
// those that came, and of those that were put off. It ends with d.ctx.
func (d *Daemon) followReplicas() {
	var seen lossMark
	var nodes uint64
	later := putOff{}
	for {
		began, now := time.Now(), d.lossesNow()
		list := d.replicas.list(now != seen)
		if n := d.nodesNow(); n != nodes {
			nodes = n
			later.hasten()
		}
		for _, id := range later.due(began) {
			list[id] = d.replicas.of(id)
		}
		seen = now
		var word leaderWord
		faults := map[object.ID]error{}
		for id, x := range list {
			err := d.followReplica(id, x, &word)
			if err == nil {
				later.note(id, began, nil)
				continue
			}
			faults[id] = err
			if d.ctx.Err() == nil {
				d.log.WithError(err).WithField("object", id).Debug("a replica is not yet as the cluster wants it")
			}
		}
		ended := time.Now() // of all of them: they are due together, and share the next question to the leader
		for id, err := range faults {
			later.note(id, ended, err)
		}
		if !d.rest(max(leastRest, 4*time.Since(began))) {
			return
		}
		next := time.NewTimer(later.next(time.Now()))
		known := nodes
		changed, stop := d.meta.raft.When(func(s *fsm.State) bool { return now.differs(s) || s.NodeChanges() != known })
		select {
		case <-d.ctx.Done():
		case <-changed:
		case <-d.replicas.noted:
		case <-next.C:
		}
		stop()
		if next.Stop(); d.ctx.Err() != nil {
			return
		}
	}
}

// putOff are replicas that are looked at again later, and when.
type putOff map[object.ID]putOffOne

type putOffOne struct {
	at    time.Time
	pause time.Duration
}

// Pauses of what was put off.
const (
	mostPutOff = 30 * time.Second // between two looks at one that the leader says otherwise of
	noPutOff   = time.Hour        // where none is
)

// note puts one off, longer each time where the leader says otherwise: nothing may change for days. nil: it is done.
func (p putOff) note(id object.ID, now time.Time, err error) {
	switch x := p[id]; {
	case err == nil:
		delete(p, id)
	case errors.Is(err, errUnsure):
		x.pause = min(max(2*x.pause, enterAgain), mostPutOff)
		p[id] = putOffOne{now.Add(x.pause), x.pause}
	default:
		p[id] = putOffOne{now.Add(enterAgain), 0}
	}
}

// due lists those whose time has come.
func (p putOff) due(now time.Time) (list []object.ID) {
	for id, x := range p {
		if !now.Before(x.at) {
			list = append(list, id)
		}
	}
	return list
}

// hasten makes all due: nodes have come or gone.
func (p putOff) hasten() {
	for id := range p {
		p[id] = putOffOne{}
	}
}

// next is how long until the first is due.
func (p putOff) next(now time.Time) time.Duration {
	next := noPutOff
	for _, x := range p {
		next = min(next, x.at.Sub(now))
	}
	return next
}

// wordLasts is of how many objects one answer of the leader is believed.
const wordLasts = 64

// leaderWord is one look's question to the leader how far its metadata goes. Where it does not answer, all that is left
// waits for the next look.
type leaderWord struct {
	uses int
	err  error
}

// ask waits until this node's copy of the metadata shows what the leader's did a moment ago.
func (w *leaderWord) ask(d *Daemon) error {
	if w.err == nil && w.uses%wordLasts == 0 {
		ctx, cancel := context.WithTimeout(d.ctx, d.changeTime())
		defer cancel()
		d.at("asks how far the leader is")
		w.err = d.meta.now.Load().read(ctx, func(*fsm.State) {})
	}
	w.uses++
	return w.err
}

// rest waits; false: the daemon ends.
func (d *Daemon) rest(t time.Duration) bool {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-d.ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// followReplica does what the metadata asks of one.
func (d *Daemon) followReplica(id object.ID, x ownedReplica, word *leaderWord) error {
	if d.meta.now.Load().leaving.Load() {
		return errLeaving
	}
	d.at("looks at a replica")
	listed, published, deleted := d.replicaState(id)
	switch {
	case published && listed:
		d.at("finds a replica listed")
		return nil
	case deleted && listed:
		if err := d.dropReplica(x.tenant, id); err != nil {
			return err
		}
		if err := d.removeReplica(id, d.ownReplica()); err != nil {
			return err
		}
	case published: // it is to be on other nodes only: nothing is deleted on the word of metadata that may be behind
		if err := word.ask(d); err != nil {
			return err
		}
		if !d.isUnlisted(id) {
			return errUnsure
		}
		if err := d.dropReplica(x.tenant, id); err != nil {
			return err
		}
	case x.taken:
		if err := d.dropCopy(x.tenant, id); err != nil {
			return err
		}
	}
	d.replicas.forget(id)
	return nil
}

// errUnsure says that this node's copy of the metadata lists a replica no more, and the leader does not bear it out.
var errUnsure = errors.New("the leader's metadata differs from this node's copy")

func (d *Daemon) replicaState(id object.ID) (listed, published, deleted bool) {
	d.meta.raft.View(func(s *fsm.State) {
		var o fsm.Object
		if o, published = s.Object(fsm.UUID(id)); !published {
			o, deleted = s.Deleted(fsm.UUID(id))
		}
		listed = d.isHere(o)
	})
	return listed, published, deleted
}

// isUnlisted reports whether an object is published, has a replica elsewhere, and none here.
func (d *Daemon) isUnlisted(id object.ID) (is bool) {
	d.meta.raft.View(func(s *fsm.State) {
		o, ok := s.Object(fsm.UUID(id))
		n, member := s.Node(d.meta.node)
		is = ok && member && n.Incarnation == d.meta.incarnation && !d.isHere(o) && len(runningReplicas(s, o)) > 0
	})
	return is
}

// runningReplicas gives those whose nodes run the incarnation that made them, as far as the cluster knows.
func runningReplicas(s *fsm.State, o fsm.Object) (list []fsm.Replica) {
	for _, r := range o.Replicas {
		if n, ok := s.Node(r.Node); ok && n.Incarnation == r.Incarnation {
			list = append(list, r)
		}
	}
	return list
}
