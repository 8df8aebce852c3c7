package fsm

import (
	"slices"
	"strconv"

	"tendril/store/object"
)

// Publish makes a sealed object known to the cluster under a name, with its first replica. Where the name is taken by
// another object of the tenant it is ErrExists, unless Replace: then that object is unpublished in the same step.
// Publishing what is published under the same name already adds the replica.
type Publish struct {
	Object  Object // one replica; Created and Epoch are ignored
	Replace bool
}

func (*Publish) number() Type { return TypePublish }
func (p *Publish) walk(c *codec) {
	p.Object.walk(c)
	c.flag(&p.Replace)
}

func (p *Publish) apply(s *State, at int64) Result {
	o := p.Object
	if o.ID.IsZero() || o.Name == "" || o.Tenant == "" || len(o.Replicas) != 1 || !object.Class(o.Class).Valid() ||
		o.Kind > uint8(object.DMABuf) {
		return refuse(object.ErrInvalid,
			"object %s named %q of tenant %q (class %d, kind %d) with %d replicas: want an id, a name, a tenant, a known class and kind, one replica", o.ID, o.Name, o.Tenant, o.Class, o.Kind, len(o.Replicas))
	}
	if r := s.checkIncarnation(o.Replicas[0].Node, o.Replicas[0].Incarnation); r.Code != 0 {
		return r
	}
	if old := s.objects.get(o.ID); old != nil && old.Deleted {
		return refuse(object.ErrNotFound, "object %s was deleted", o.ID)
	} else if old != nil {
		return s.publishAgain(old, &o)
	}
	holder, taken := s.names.get(o.Tenant, o.Name)
	if taken && !p.Replace {
		return refuse(object.ErrExists, "%q is published as object %s: choose another name or replace it", o.Name, holder)
	}
	if !taken && s.objects.size() >= MaxObjects {
		return refuse(object.ErrFull, "the cluster has %d published objects already: unpublish some", MaxObjects)
	}
	if taken {
		old := s.objects.get(holder)
		s.leave(old)
		s.noteName(old, false)
	}
	o.Created, o.Epoch, o.Wanted, o.Deleted = at, 1, 0, false
	s.enter(&o)
	s.names.bind(o.Tenant, o.Name, o.ID)
	s.noteName(&o, true)
	return done(1)
}

func (s *State) publishAgain(old, o *Object) Result {
	if old.Tenant != o.Tenant || old.Name != o.Name || old.SizeBytes != o.SizeBytes {
		return refuse(object.ErrExists, "object %s is published already as %q of tenant %q with %d bytes", o.ID,
			old.Name, old.Tenant, old.SizeBytes)
	}
	return s.addReplica(old, o.Replicas[0])
}

// Unpublish takes an object and its name out, by id, or by tenant and name where the id is zero. Epoch 0 = whatever it
// is.
type Unpublish struct {
	ID     UUID
	Tenant string
	Name   string
	Epoch  uint64
}

func (*Unpublish) number() Type { return TypeUnpublish }
func (u *Unpublish) walk(c *codec) {
	u.ID.walk(c)
	c.str(&u.Tenant, MaxTextBytes)
	c.str(&u.Name, object.MaxNameBytes)
	c.u64(&u.Epoch)
}

func (u *Unpublish) apply(s *State, _ int64) Result {
	id := u.ID
	if id.IsZero() {
		id, _ = s.names.get(u.Tenant, u.Name)
	}
	o := s.objects.get(id)
	if o == nil || o.Deleted {
		what := strconv.Quote(u.Name)
		if !u.ID.IsZero() {
			what = u.ID.String()
		}
		return refuse(object.ErrNotFound, "tenant %q has published no object %s", u.Tenant, what)
	}
	if o.Tenant != u.Tenant {
		return refuse(object.ErrPermission, "object %s belongs to another tenant than %q", id, u.Tenant)
	}
	if u.Epoch != 0 {
		if r := checkEpoch("object "+id.String(), o.Epoch, u.Epoch); r.Code != 0 {
			return r
		}
	}
	s.dropObject(o)
	return done(0)
}

// SetReplicas says how many nodes are to have an object. It may be more than there are: nodes that join get replicas.
type SetReplicas struct {
	ID     UUID
	Tenant string
	Wanted uint16 // 1 to MaxReplicas
}

func (*SetReplicas) number() Type { return TypeSetReplicas }
func (x *SetReplicas) walk(c *codec) {
	x.ID.walk(c)
	c.str(&x.Tenant, MaxTextBytes)
	c.u16(&x.Wanted)
}

func (x *SetReplicas) apply(s *State, _ int64) Result {
	o, r := s.ownObject(x.ID, x.Tenant)
	if r.Code != 0 {
		return r
	}
	if x.Wanted < 1 || x.Wanted > MaxReplicas {
		return refuse(object.ErrInvalid, "%d replicas of object %s: want 1 to %d", x.Wanted, x.ID, MaxReplicas)
	}
	if o.Wanted != x.Wanted {
		o = s.edit(o)
		o.Wanted = x.Wanted
		s.noteWanted(o)
	}
	return done(o.Epoch)
}

// noteWanted keeps the derived set of objects of which several replicas are wanted.
func (s *State) noteWanted(o *Object) {
	if o.Wanted > 1 && !o.Deleted {
		s.wanted[o.ID] = struct{}{}
	} else {
		delete(s.wanted, o.ID)
	}
}

// ownObject finds a tenant's object that was not deleted.
func (s *State) ownObject(id UUID, tenant string) (*Object, Result) {
	o := s.objects.get(id)
	switch {
	case o == nil || o.Deleted:
		return nil, refuse(object.ErrNotFound, "object %s is not published", id)
	case o.Tenant != tenant:
		return nil, refuse(object.ErrPermission, "object %s belongs to another tenant than %q", id, tenant)
	}
	return o, Result{}
}

// Delete takes an object's name away and has every node delete its replica (RemoveReplica says that it did). Gone is
// the replica that its node deleted before it said so; zero: none.
type Delete struct {
	ID     UUID
	Tenant string
	Gone   Replica
}

func (*Delete) number() Type { return TypeDelete }
func (d *Delete) walk(c *codec) {
	d.ID.walk(c)
	c.str(&d.Tenant, MaxTextBytes)
	d.Gone.walk(c)
}

func (d *Delete) apply(s *State, _ int64) Result {
	o, r := s.ownObject(d.ID, d.Tenant)
	if r.Code != 0 {
		return r
	}
	s.names.unbind(o.Tenant, o.Name)
	s.noteName(o, false)
	o = s.edit(o)
	o.Deleted = true
	s.losses++
	s.deleted++
	s.noteWanted(o)
	return done(s.filterReplicas(o, func(x Replica) bool { return x == d.Gone }))
}

// AddReplica says that a node holds a copy now. Epoch is the object's that was copied.
type AddReplica struct {
	ID      UUID
	Epoch   uint64
	Replica Replica
}

func (*AddReplica) number() Type { return TypeAddReplica }
func (a *AddReplica) walk(c *codec) {
	a.ID.walk(c)
	c.u64(&a.Epoch)
	a.Replica.walk(c)
}

func (a *AddReplica) apply(s *State, _ int64) Result {
	o, r := s.objectAt(a.ID, a.Epoch)
	if r.Code != 0 {
		return r
	}
	if o.Deleted {
		return refuse(object.ErrNotFound, "object %s was deleted", a.ID)
	}
	if r := s.checkIncarnation(a.Replica.Node, a.Replica.Incarnation); r.Code != 0 {
		return r
	}
	return s.addReplica(o, a.Replica)
}

// edit puts a copy of an object in its place, with the next epoch, which the caller alters. It is only called for a
// change: what was there may be in a snapshot that is being written.
func (s *State) edit(o *Object) *Object {
	changed := *o
	changed.Replicas = slices.Clone(o.Replicas)
	changed.Epoch++
	s.objects.put(&changed)
	return &changed
}

func (s *State) addReplica(o *Object, r Replica) Result {
	i := slices.IndexFunc(o.Replicas, func(x Replica) bool { return x.Node == r.Node })
	switch {
	case i >= 0 && o.Replicas[i] == r:
		return done(o.Epoch)
	case i >= 0: // of an earlier run of its node
		o = s.edit(o)
		s.losses++
		o.Replicas[i] = r
	case len(o.Replicas) >= MaxReplicas:
		return refuse(object.ErrFull, "object %s has %d replicas already", o.ID, MaxReplicas)
	default:
		o = s.edit(o)
		o.Replicas = append(o.Replicas, r)
	}
	return done(o.Epoch)
}

// RemoveReplica says that a node holds a copy no longer. With the last replica the object is gone.
type RemoveReplica struct {
	ID      UUID
	Epoch   uint64
	Replica Replica
}

func (*RemoveReplica) number() Type { return TypeRemoveReplica }
func (a *RemoveReplica) walk(c *codec) {
	a.ID.walk(c)
	c.u64(&a.Epoch)
	a.Replica.walk(c)
}

func (a *RemoveReplica) apply(s *State, _ int64) Result {
	o, r := s.objectAt(a.ID, a.Epoch)
	if r.Code != 0 {
		return r
	}
	if !slices.Contains(o.Replicas, a.Replica) {
		return refuse(object.ErrNotFound, "object %s has no replica on node %s of incarnation %s", a.ID, a.Replica.Node,
			a.Replica.Incarnation)
	}
	return done(s.filterReplicas(o, func(x Replica) bool { return x == a.Replica }))
}

// Withdraw drops a node's replicas of every other incarnation than the one that runs: host memory does not survive a
// restart. Keep lists objects that this incarnation holds all the same (persisted ones): their replicas are renewed.
type Withdraw struct {
	Node        UUID
	Incarnation UUID
	Keep        []UUID
}

func (*Withdraw) number() Type { return TypeWithdraw }
func (w *Withdraw) walk(c *codec) {
	w.Node.walk(c)
	w.Incarnation.walk(c)
	list(c, &w.Keep, MaxCommandBytes/16, (*UUID).walk)
}

func (w *Withdraw) apply(s *State, _ int64) Result {
	if r := s.checkIncarnation(w.Node, w.Incarnation); r.Code != 0 {
		return r
	}
	for _, id := range w.Keep {
		o := s.objects.get(id)
		if o == nil {
			continue
		}
		if slices.ContainsFunc(o.Replicas, func(x Replica) bool { return x.Node == w.Node }) {
			s.addReplica(o, Replica{w.Node, w.Incarnation})
		}
	}
	s.dropReplicas(func(x Replica) bool { return x.Node == w.Node && x.Incarnation != w.Incarnation })
	return done(0)
}

// objectAt finds an object whose epoch must be epoch.
func (s *State) objectAt(id UUID, epoch uint64) (*Object, Result) {
	o := s.objects.get(id)
	if o == nil {
		return nil, refuse(object.ErrNotFound, "object %s is not published", id)
	}
	return o, checkEpoch("object "+id.String(), o.Epoch, epoch)
}

func (s *State) dropReplicas(gone func(Replica) bool) {
	for o := range s.objects.all() {
		s.filterReplicas(o, gone)
	}
}

// filterReplicas takes replicas off an object, which goes with the last one. It gives the object's epoch.
func (s *State) filterReplicas(o *Object, gone func(Replica) bool) uint64 {
	if !slices.ContainsFunc(o.Replicas, gone) {
		return o.Epoch
	}
	o = s.edit(o)
	s.losses++
	o.Replicas = slices.DeleteFunc(o.Replicas, gone)
	if len(o.Replicas) == 0 {
		s.dropObject(o)
	}
	return o.Epoch
}

func (s *State) dropObject(o *Object) {
	s.leave(o)
	if o.Deleted {
		s.deleted--
	} else {
		s.names.unbind(o.Tenant, o.Name) // another object may have a deleted one's
		s.noteName(o, false)
	}
}
