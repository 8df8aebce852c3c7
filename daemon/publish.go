package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"tendril/cluster/fsm"
	"tendril/daemon/frontdoor"
	"tendril/store"
	"tendril/store/object"
)

// publications holds a reference to each ephemeral object that this node has published, so that it stays whatever
// becomes of who made it. Others, and replicas, the store holds by itself, and a reference would keep them in memory
// when that is short. Its mutex comes before the store's; nothing waits for the cluster under it.
type publications struct {
	mu      sync.Mutex
	tenants map[string]*held // guarded by mu
	orphans []*store.Conn    // of the daemon before this one, until it is known what is listed; guarded by mu

	follower *store.Follower // set before the front door opens: what is published here
}

// ownReplica is a replica at this run of this node.
func (d *Daemon) ownReplica() fsm.Replica {
	return fsm.Replica{Node: d.meta.node, Incarnation: d.meta.incarnation}
}

// held is what is published of one tenant. The connection is the daemon's own.
type held struct {
	conn    *store.Conn
	objects map[object.ID]int // → publications under way
}

// PublishedStatus is one published object in `tendril ls --published`.
type PublishedStatus struct {
	ID        object.ID `json:"id"`
	Name      string    `json:"name"`
	SizeBytes uint64    `json:"size_bytes"`
	Epoch     uint64    `json:"epoch"`
	Created   time.Time `json:"created"`
	Nodes     []string  `json:"nodes"`  // that hold it
	Wanted    int       `json:"wanted"` // how many are to
	Have      int       `json:"have"`   // of them, those that answer and whose present run has it
	Here      bool      `json:"here"`

	Unsure string `json:"unsure,omitempty"` // why the node may know less of what is published than its cluster
}

// publishedOwner is the name of the connections that publications has, which are no process's.
const publishedOwner = "published"

// inherit keeps the orphans that publications had, and returns the others. A client that took their name for itself
// gains nothing: release is called once the cluster has been asked.
func (p *publications) inherit(orphans []*store.Conn) (others []*store.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range orphans {
		if owner := conn.Owner(); owner.Name == publishedOwner && owner.PID == 0 {
			p.orphans = append(p.orphans, conn)
		} else {
			others = append(others, conn)
		}
	}
	return others
}

// release lets go of what was inherited.
func (p *publications) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.orphans {
		conn.Close()
	}
	p.orphans = nil
}

// hold describes a sealed object of tenant, and takes a reference where it is ephemeral.
func (p *publications) hold(s *store.Store, tenant string, id object.ID) (object.Info, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h, err := p.of(s, tenant)
	if err != nil {
		return object.Info{}, err
	}
	defer p.drop(tenant, h)
	info, err := h.conn.Stat(id, "")
	switch {
	case err != nil:
		return info, err
	case info.State == object.Open:
		return info, fmt.Errorf("%w: object %s is not sealed: seal it before you publish it", object.ErrNotSealed, id)
	case info.Tenant != tenant:
		return info, fmt.Errorf("%w: object %s belongs to tenant %s, which alone can publish it", object.ErrPermission,
			id, info.Tenant)
	case info.Class != object.Ephemeral || s.IsKept(id):
		return info, nil
	}
	if _, known := h.objects[id]; !known {
		got, err := h.conn.GetEither(id, "")
		if err != nil {
			return info, err
		}
		if got.FD >= 0 {
			unix.Close(got.FD) // the daemon has no use for the bytes
		}
	}
	h.objects[id]++
	return info, nil
}

// of gives a tenant's entry. mu is held.
func (p *publications) of(s *store.Store, tenant string) (*held, error) {
	if h := p.tenants[tenant]; h != nil {
		return h, nil
	}
	conn, err := s.Connect(store.Owner{Tenant: tenant, Name: publishedOwner})
	if err != nil {
		return nil, err
	}
	h := &held{conn: conn, objects: map[object.ID]int{}}
	p.tenants[tenant] = h
	return h, nil
}

// settle ends one publication of id, and lets go of it where it is published no longer.
func (p *publications) settle(tenant string, id object.ID, published func(object.ID) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.tenants[tenant]; h != nil {
		if _, known := h.objects[id]; known {
			h.objects[id]--
		}
		p.letGo(tenant, h, id, published)
	}
}

// letGo lets go of an object, unless it is published or about to be. mu is held.
func (p *publications) letGo(tenant string, h *held, id object.ID, published func(object.ID) bool) {
	underWay, known := h.objects[id]
	if known && underWay <= 0 && !published(id) {
		delete(h.objects, id)
		_ = h.conn.Release(id)
		for _, segment := range h.conn.Sweep() {
			_ = h.conn.Forget(segment)
		}
	}
	p.drop(tenant, h)
}

// letGoOf is letGo for objects of which somebody has heard that they are published no longer.
func (p *publications) letGoOf(tenant string, published func(object.ID) bool, list ...object.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range list {
		if h := p.tenants[tenant]; h != nil {
			p.letGo(tenant, h, id, published)
		}
	}
}

// review looks at all that a tenant has published, and lets go of what is published no longer. It is long where that is
// much: publications go on meanwhile.
func (p *publications) review(tenant string, published func(object.ID) bool) {
	var list []object.ID
	p.mu.Lock()
	if h := p.tenants[tenant]; h != nil {
		list = slices.Collect(maps.Keys(h.objects))
	}
	p.mu.Unlock()
	p.letGoOf(tenant, published, slices.DeleteFunc(list, published)...)
}

// holdOwn is hold for what the cluster lists here already, and follows it. The caller must call settle.
func (d *Daemon) holdOwn(tenant string, id object.ID) error {
	if _, err := d.published.hold(d.store, tenant, id); err != nil {
		return err
	}
	d.at("held what is published")
	if !d.published.follower.Add(id) {
		d.settle(tenant, id)
		return fmt.Errorf("%w: object %s was deleted meanwhile", object.ErrNotFound, id)
	}
	return nil
}

// drop ends an entry that holds nothing. mu is held.
func (p *publications) drop(tenant string, h *held) {
	if len(h.objects) == 0 {
		h.conn.Close()
		delete(p.tenants, tenant)
	}
}

// settle ends one publication of id, and lets go of it where the cluster does not list it here.
func (d *Daemon) settle(tenant string, id object.ID) { d.published.settle(tenant, id, d.isListedHere) }

// isListedHere reports whether the metadata, as this node has it, lists a replica of this run.
func (d *Daemon) isListedHere(id object.ID) (is bool) {
	if d.meta.now.Load().leaving.Load() { // it is no more, and will be in the cluster that the node goes to
		return true
	}
	d.meta.raft.View(func(s *fsm.State) {
		o, ok := s.Object(fsm.UUID(id))
		is = ok && d.isHere(o)
	})
	return is
}

func (d *Daemon) isPublished(id object.ID) (is bool) {
	d.meta.raft.View(func(s *fsm.State) { _, is = s.Object(fsm.UUID(id)) })
	return is
}

// Publish implements frontdoor.Cluster.
func (d *Daemon) Publish(p frontdoor.Peer, id object.ID, name string, replace bool) (epoch uint64, err error) {
	defer func() { d.auditBy(p, "object.publish", p.Tenant, id.String()+" "+name, err) }()
	if id.IsZero() {
		return 0, fmt.Errorf("%w: publish: the zero id names nothing", object.ErrInvalid)
	}
	if err := checkPublished(name); err != nil {
		return 0, err
	}
	info, err := d.published.hold(d.store, p.Tenant, id)
	if err != nil {
		return 0, err
	}
	defer d.settle(p.Tenant, id)
	if len(info.Members) > 0 {
		return 0, fmt.Errorf("%w: object %s is a composite, which other nodes would have without its members: publish its members",
			object.ErrUnsupported, id)
	}
	if name == "" {
		name = info.Name
	}
	if name == "" {
		return 0, fmt.Errorf("%w: object %s has no name: publish it under one", object.ErrInvalid, id)
	}
	if err := d.mayPublish(p.Tenant, name, id, info.SizeBytes); err != nil {
		return 0, err
	}
	meta, err := d.store.Meta(id)
	if err != nil {
		return 0, err
	}
	if !d.published.follower.Add(id) {
		return 0, fmt.Errorf("%w: object %s was deleted while it was being published", object.ErrNotFound, id)
	}
	var replaced object.ID
	if replace {
		replaced, _ = d.resolvePublished(p.Tenant, name)
	}
	result, err := d.proposeOwn(&fsm.Publish{Replace: replace, Object: fsm.Object{
		ID: fsm.UUID(id), Tenant: p.Tenant, Name: name, Kind: uint8(info.Kind), Class: uint8(info.Class),
		SizeBytes: info.SizeBytes, Meta: meta,
		Replicas: []fsm.Replica{d.ownReplica()},
	}})
	if err == nil {
		d.at("published")
		d.replicas.note(id, p.Tenant, false)
		d.published.letGoOf(p.Tenant, d.isListedHere, replaced)
	}
	if err == nil && !d.published.follower.Has(id) { // it went, and the withdrawal may have been too early
		return 0, errors.Join(fmt.Errorf("%w: object %s was deleted while it was being published", object.ErrNotFound,
			id), d.Unpublish(p.Tenant, id, ""))
	}
	return result.Epoch, err
}

// checkPublished says why nothing can be published under a name: another tenant's objects cannot, so that what is
// before a slash counts.
func checkPublished(name string) error {
	if len(name) > object.MaxNameBytes || !utf8.ValidString(name) {
		return fmt.Errorf("%w: a name of %d bytes (%.40q…) to publish under: want UTF-8, at most %d", object.ErrInvalid,
			len(name), name, object.MaxNameBytes)
	}
	return nil
}

// mayPublish says why a tenant may not publish an object, as far as this node knows.
func (d *Daemon) mayPublish(tenant, name string, id object.ID, size uint64) (err error) {
	d.meta.raft.View(func(s *fsm.State) {
		err = s.MayPublish(tenant, name, fsm.UUID(id), size, orDefault(d.publishMost, fsm.MaxUsage))
	})
	return err
}

// followPublished withdraws what is published of objects that are gone: deleted in another way, expired, or renamed
// away. It ends with d.ctx; what is not withdrawn by then is by the next start.
func (d *Daemon) followPublished() {
	for {
		gone, err := d.published.follower.Next(d.ctx)
		if err != nil {
			return
		}
		for _, id := range gone {
			d.withdraw(id)
		}
	}
}

// withdraw tells the cluster that an object is gone here, and tries until it is told, or refuses. Those that go
// meanwhile wait: what cannot be told of one cannot be of another.
func (d *Daemon) withdraw(id object.ID) {
	for said := false; ; said = true {
		var o fsm.Object
		var published bool
		d.meta.raft.View(func(s *fsm.State) { o, published = s.Object(fsm.UUID(id)) })
		if !published || !d.isHere(o) { // this node was told to have it no more
			return
		}
		result, err := d.propose(&fsm.Delete{ID: o.ID, Tenant: o.Tenant, Gone: d.ownReplica()})
		if err == nil || errors.Is(err, object.ErrNotFound) || d.ctx.Err() != nil {
			return
		}
		log := d.log.WithError(err).WithField("name", o.Name)
		if result.Err() != nil {
			log.Warn("a published object is gone, but the cluster still lists it; the next start will report it again")
			return
		}
		if !said {
			log.Warn("a published object is gone, and the cluster cannot be told yet; trying again")
		}
		if !d.rest(enterAgain) {
			return
		}
	}
}

// Unpublish implements frontdoor.Cluster.
func (d *Daemon) Unpublish(tenant string, id object.ID, name string) (err error) {
	defer func() {
		of := id.String() + " " + name
		if id.IsZero() { // none has the name
			of = name
		}
		d.auditOf("object.unpublish", tenant, of, err)
	}()
	if err := checkPublished(name); err != nil {
		return err
	}
	known := id
	if id.IsZero() {
		known, _ = d.resolvePublished(tenant, name)
	}
	_, err = d.propose(&fsm.Unpublish{ID: fsm.UUID(id), Tenant: tenant, Name: name})
	d.published.letGoOf(tenant, d.isListedHere, known)
	return err
}

// Concerns implements frontdoor.Cluster: before the node has entered, any object may be published.
func (d *Daemon) Concerns(id object.ID) bool {
	select {
	case <-d.meta.now.Load().registered:
		return d.isPublished(id)
	default:
		return true
	}
}

// Dropped implements frontdoor.Cluster: what is deleted at one node is deleted at all.
func (d *Daemon) Dropped(tenant string, id object.ID) (was bool, err error) {
	defer func() {
		if was {
			d.auditOf("object.delete", tenant, id.String(), err)
		}
	}()
	if !d.Concerns(id) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(d.ctx, d.changeTime())
	defer cancel()
	if err := d.awaitEntry(ctx); err != nil { // before, nobody here knows what is published
		return false, fmt.Errorf("the object is deleted here, but perhaps not on other nodes: %w", err)
	}
	if _, _, mine := d.publishedAs(tenant, id); !mine {
		return false, nil
	}
	d.at("tells the cluster of a delete")
	_, err = d.propose(&fsm.Delete{ID: fsm.UUID(id), Tenant: tenant, Gone: d.ownReplica()})
	d.published.letGoOf(tenant, d.isListedHere, id)
	if err != nil && !errors.Is(err, object.ErrNotFound) {
		return true, fmt.Errorf("the object is deleted here, but the cluster could not be told: %w", err)
	}
	return true, nil
}

// Resolve implements frontdoor.Cluster: a published name gives an object, of this node or of others. It answers by this
// node's copy of the metadata.
func (d *Daemon) Resolve(tenant, name string) (id object.ID, err error) {
	if err := object.CheckKey(name); err != nil {
		return id, err
	}
	err = fmt.Errorf("%w: no object is named %q: neither on this node nor published", object.ErrNotFound, name)
	d.meta.raft.View(func(s *fsm.State) {
		if o, ok := s.ObjectByName(tenant, name); ok {
			id, err = object.ID(o.ID), nil
		}
	})
	return id, err
}

// resolvePublished is Resolve for those who need a published object: one that is only here does not help them.
func (d *Daemon) resolvePublished(tenant, name string) (object.ID, error) {
	id, err := d.Resolve(tenant, name)
	if errors.Is(err, object.ErrNotFound) {
		return id, fmt.Errorf("%w: no published object has the name %q", object.ErrNotFound, name)
	}
	return id, err
}

// publishedUnder finds a published object of a tenant by ID, or where that is zero by name, as this node's metadata has
// it, with the cluster's nodes.
func (d *Daemon) publishedUnder(tenant string, id object.ID, name string) (o fsm.Object, nodes []fsm.Node, err error) {
	if id.IsZero() {
		if id, err = d.resolvePublished(tenant, name); err != nil {
			return o, nil, err
		}
	}
	o, nodes, ok := d.publishedAs(tenant, id)
	if !ok {
		return o, nil, fmt.Errorf("%w: no published object has the ID %s", object.ErrNotFound, id)
	}
	return o, nodes, nil
}

// publishedNow is publishedUnder with what the cluster knows where this node knows of nothing.
func (d *Daemon) publishedNow(ctx context.Context, tenant string, id object.ID, name string) (fsm.Object, []fsm.Node,
	error) {
	o, nodes, err := d.publishedUnder(tenant, id, name)
	if !errors.Is(err, object.ErrNotFound) {
		return o, nodes, err
	}
	unsure := d.meta.now.Load().learn(ctx)
	o, nodes, err = d.publishedUnder(tenant, id, name)
	return o, nodes, frontdoor.LessSure(err, unsure)
}

// Entered implements frontdoor.Cluster.
func (d *Daemon) Entered() <-chan struct{} { return d.meta.now.Load().registered }

// Changed implements frontdoor.Cluster.
func (d *Daemon) Changed() <-chan struct{} { return d.meta.raft.Changed() }

// publishedStep is how many published objects are described in one look at the metadata.
const publishedStep = 1024

// EachPublished implements frontdoor.Cluster: by name.
func (d *Daemon) EachPublished(tenant, prefix, after string, unsure error, f func(any, string) bool) error {
	for {
		var list []PublishedStatus
		d.meta.raft.View(func(s *fsm.State) {
			for _, o := range s.ObjectsAfter(tenant, after, prefix, true, publishedStep) {
				x := d.publishedStatus(s, o)
				if unsure != nil {
					x.Unsure = unsure.Error()
				}
				list = append(list, x)
			}
		})
		for _, o := range list {
			if after = o.Name; !f(o, after) {
				return nil
			}
		}
		if len(list) < publishedStep {
			return nil
		}
	}
}

func (d *Daemon) publishedStatus(s *fsm.State, o fsm.Object) PublishedStatus {
	x := PublishedStatus{ID: object.ID(o.ID), Name: o.Name, SizeBytes: o.SizeBytes, Epoch: o.Epoch,
		Created: at(o.Created), Nodes: nodeNames(s, o), Wanted: max(1, int(o.Wanted)),
		Have: len(d.answering(runningReplicas(s, o)))}
	for _, r := range o.Replicas {
		x.Here = x.Here || r.Node == d.meta.node && r.Incarnation == d.meta.incarnation
	}
	return x
}

func nodeNames(s *fsm.State, o fsm.Object) []string {
	names := []string{}
	for _, r := range o.Replicas {
		if n, ok := s.Node(r.Node); ok {
			names = append(names, n.Name)
		}
	}
	return names
}

// resumePublishing takes hold of what an earlier run of this node published and the store still has (persisted
// objects), and withdraws the rest: host memory does not outlive its daemon.
func (d *Daemon) resumePublishing() error {
	d.orphans = d.published.inherit(d.store.Orphans())
	d.published.follower = d.store.Follow()
	d.bringing.follower = d.store.Follow()
	close(d.holds)
	d.joined.Go(d.followPublished)
	d.joined.Go(d.followCopies)
	d.joined.Go(d.dropUnpublished)
	d.joined.Go(d.followReplicas)
	d.joined.Go(d.followDamage)
	return d.whenEntered(claiming, d.holdPublished)
}

// claiming says what holdPublished does.
const claiming = "tell the cluster what is still published here"

func (d *Daemon) holdPublished() error {
	m := d.meta.now.Load()
	var mine, held, lost []fsm.Object
	d.meta.raft.View(func(s *fsm.State) {
		for _, o := range s.Objects() {
			for _, r := range o.Replicas {
				if r.Node == d.meta.node {
					mine = append(mine, o)
				}
			}
		}
	})
	kept := d.store.KeptCopies() // of a daemon that handed over
	for id, tenant := range kept {
		d.replicas.note(id, tenant, true) // what is listed no more goes
	}
	withdraw := &fsm.Withdraw{Node: d.meta.node, Incarnation: d.meta.incarnation}
	for _, o := range mine {
		if o.Deleted { // while this node was away: Withdraw says that it is gone here
			if err := d.dropReplica(o.Tenant, object.ID(o.ID)); err != nil {
				return err
			}
			lost = append(lost, o)
			continue
		}
		if err := d.holdOwn(o.Tenant, object.ID(o.ID)); err == nil {
			withdraw.Keep, held = append(withdraw.Keep, o.ID), append(held, o)
			defer d.settle(o.Tenant, object.ID(o.ID))
		} else {
			lost = append(lost, o)
			d.log.WithError(err).WithField("object", o.ID).Debug("a published object is no longer here")
		}
	}
	d.at("claims what it still has")
	_, err := d.propose(withdraw)
	for _, o := range lost {
		if err == nil && d.isHere(o) { // a daemon that took over from another has its incarnation
			err = d.removeReplica(object.ID(o.ID), d.ownReplica())
		}
	}
	if err == nil {
		for _, o := range held { // not before: until then they are listed at other nodes only, and would be given up
			d.replicas.note(object.ID(o.ID), o.Tenant, false)
		}
		d.published.release()
		close(m.claimed)
	}
	return err
}

// awaitClaim waits until holdPublished is done: before, what this node has published is listed under an earlier run of
// it, and is not seen to be here.
func (m *membership) awaitClaim(ctx context.Context) error {
	select {
	case <-m.claimed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: this node has started, and has not told its cluster yet what is still published here: try "+
			"again", object.ErrTimeout)
	}
}

// hasClaimed reports whether awaitClaim has nothing to wait for.
func (m *membership) hasClaimed() bool {
	select {
	case <-m.claimed:
		return true
	default:
		return false
	}
}

// stopPublishing ends the daemon's own connections to the store.
func (d *Daemon) stopPublishing() error {
	d.published.follower.Close()
	d.bringing.follower.Close()
	d.published.release()
	d.published.mu.Lock()
	defer d.published.mu.Unlock()
	for tenant, h := range d.published.tenants {
		h.conn.Close()
		delete(d.published.tenants, tenant)
	}
	return nil
}
