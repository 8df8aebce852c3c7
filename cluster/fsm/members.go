package fsm

import (
	"cmp"
	"slices"

	"tendril/store/object"
)

// Nop changes nothing. The first command of each leader's term is one.
type Nop struct{}

func (*Nop) number() Type               { return TypeNop }
func (*Nop) walk(*codec)                {}
func (*Nop) apply(*State, int64) Result { return done(0) }

// PutNode adds a node (Epoch 0) or changes the one whose epoch is Epoch: a daemon does so at each start, with its new
// incarnation. A new incarnation takes the node's devices away until it reports them; its replicas stay until Withdraw.
type PutNode struct {
	Node Node // Joined is ignored
}

func (*PutNode) number() Type    { return TypePutNode }
func (p *PutNode) walk(c *codec) { p.Node.walk(c) }

func (p *PutNode) apply(s *State, at int64) Result {
	if p.Node.ID.IsZero() || p.Node.Incarnation.IsZero() || p.Node.Name == "" {
		return refuse(object.ErrInvalid, "node %s (%q) with incarnation %s: none of them may be empty", p.Node.ID,
			p.Node.Name, p.Node.Incarnation)
	}
	for _, other := range s.nodes {
		if other.Name == p.Node.Name && other.ID != p.Node.ID {
			return refuse(object.ErrExists, "node %s is called %q already: start this one with another --name",
				other.ID, other.Name)
		}
	}
	n := p.Node
	old, r := put(s.nodes, n.ID, &n, MaxNodes, "node "+n.Name)
	if r.Code != 0 {
		return r
	}
	s.nodeChanges++
	n.Joined = at
	if old != nil {
		n.Joined = old.Joined
		if old.Incarnation != n.Incarnation {
			s.dropDevices(n.ID)
			s.dropLeases(n.ID, n.Incarnation)
		}
	}
	return r
}

// RemoveNode takes a node out for good, with its devices and replicas. Objects that were nowhere else are gone, and its
// certificates are good no more, nor are those of its programs.
type RemoveNode struct {
	Node  UUID
	Epoch uint64
}

func (*RemoveNode) number() Type { return TypeRemoveNode }
func (r *RemoveNode) walk(c *codec) {
	r.Node.walk(c)
	c.u64(&r.Epoch)
}

func (r *RemoveNode) apply(s *State, at int64) Result {
	n := s.nodes[r.Node]
	if n == nil {
		return refuse(object.ErrNotFound, "node %s is no member", r.Node)
	}
	if x := checkEpoch("node "+n.Name, n.Epoch, r.Epoch); x.Code != 0 {
		return x
	}
	s.dropDevices(r.Node)
	s.dropLeases(r.Node, UUID{})
	s.dropReplicas(func(x Replica) bool { return x.Node == r.Node })
	for _, c := range s.certificates {
		own := c.Role == RoleNode && c.Tenant == NodeTenant(r.Node)
		if (own || c.Node == r.Node) && c.Revoked == 0 {
			c.Revoked, c.Reason = at, "its node left the cluster"
		}
	}
	delete(s.nodes, r.Node)
	s.nodeChanges++
	s.revocations++
	return done(0)
}

// PutDevices replaces the devices of a node by those that its running incarnation found.
type PutDevices struct {
	Node        UUID
	Incarnation UUID
	Devices     []Device // Device.Node is ignored
}

func (*PutDevices) number() Type { return TypePutDevices }
func (p *PutDevices) walk(c *codec) {
	p.Node.walk(c)
	p.Incarnation.walk(c)
	list(c, &p.Devices, MaxNodeDevices, (*Device).walk)
}

func (p *PutDevices) apply(s *State, _ int64) Result {
	if r := s.checkIncarnation(p.Node, p.Incarnation); r.Code != 0 {
		return r
	}
	mine := 0
	for _, d := range s.devices {
		if d.Node == p.Node {
			mine++
		}
	}
	if len(s.devices)-mine+len(p.Devices) > MaxDevices {
		return refuse(object.ErrFull, "the cluster would have more than %d devices", MaxDevices)
	}
	seen := map[DeviceKey]bool{}
	for _, d := range p.Devices {
		if other := s.devices[d.Key]; seen[d.Key] || (other != nil && other.Node != p.Node) {
			return refuse(object.ErrExists,
				"device %s (%s) is there already: two devices must not share a UUID and driver", d.Key.UUID,
				d.Key.Driver)
		}
		seen[d.Key] = true
	}
	s.dropDevices(p.Node)
	for _, d := range p.Devices {
		d.Node = p.Node
		s.devices[d.Key] = &d
	}
	return done(0)
}

// PutTenant adds a tenant (Epoch 0) or changes the one whose epoch is Epoch.
type PutTenant struct {
	Tenant Tenant
}

func (*PutTenant) number() Type    { return TypePutTenant }
func (p *PutTenant) walk(c *codec) { p.Tenant.walk(c) }

func (p *PutTenant) apply(s *State, _ int64) Result {
	t := p.Tenant
	if t.Name == "" {
		return refuse(object.ErrInvalid, "a tenant needs a name")
	}
	if old := s.tenants[t.Name]; old != nil {
		t.Managed, t.Disabled = old.Managed, old.Disabled
		t.Members, t.Quotas, t.Whole = old.Members, old.Quotas, old.Whole
	}
	_, r := put(s.tenants, t.Name, &t, MaxTenants, "tenant "+t.Name)
	return s.tenantChange(r)
}

func (s *State) tenantChange(r Result) Result {
	if r.Code == 0 {
		s.tenantChanges++
	}
	return r
}

// SetTenant is PutTenant for the whole record. Errors beside PutTenant's: ErrExists where somebody is another tenant
// already.
type SetTenant struct {
	Tenant Tenant
}

func (*SetTenant) number() Type    { return TypeSetTenant }
func (p *SetTenant) walk(c *codec) { p.Tenant.walkWhole(c) }

func (p *SetTenant) apply(s *State, _ int64) Result {
	t := p.Tenant
	if t.Name == "" {
		return refuse(object.ErrInvalid, "a tenant needs a name")
	}
	for i, m := range t.Members {
		if m.Name == "" || slices.Contains(t.Members[:i], m) {
			return refuse(object.ErrInvalid, "member %q of tenant %s has no name, or is there twice", m.Name, t.Name)
		}
	}
	for _, other := range sorted(s.tenants, cmp.Compare[string]) {
		i := slices.IndexFunc(t.Members, func(m TenantMember) bool { return slices.Contains(other.Members, m) })
		if i >= 0 && other.Name != t.Name {
			return refuse(object.ErrExists, "%q is mapped to tenant %s there already: remove that mapping first",
				t.Members[i].Name, other.Name)
		}
	}
	_, r := put(s.tenants, t.Name, &t, MaxTenants, "tenant "+t.Name)
	return s.tenantChange(r)
}

// RemoveTenant takes a tenant out. Its objects stay and belong to the name.
type RemoveTenant struct {
	Name  string
	Epoch uint64
}

func (*RemoveTenant) number() Type { return TypeRemoveTenant }
func (r *RemoveTenant) walk(c *codec) {
	c.str(&r.Name, MaxTextBytes)
	c.u64(&r.Epoch)
}

func (r *RemoveTenant) apply(s *State, _ int64) Result {
	t := s.tenants[r.Name]
	if t == nil {
		return refuse(object.ErrNotFound, "tenant %q is not configured", r.Name)
	}
	if x := checkEpoch("tenant "+r.Name, t.Epoch, r.Epoch); x.Code != 0 {
		return x
	}
	delete(s.tenants, r.Name)
	return s.tenantChange(done(0))
}

// SetPolicy sets (Epoch 0: for the first time) one policy; an empty value removes it.
type SetPolicy struct {
	Policy Policy
}

func (*SetPolicy) number() Type    { return TypeSetPolicy }
func (p *SetPolicy) walk(c *codec) { p.Policy.walk(c) }

func (p *SetPolicy) apply(s *State, _ int64) Result {
	x := p.Policy
	if x.Key == "" {
		return refuse(object.ErrInvalid, "a policy needs a key")
	}
	if len(x.Value) > 0 {
		_, r := put(s.policies, x.Key, &x, MaxPolicies, "policy "+x.Key)
		return r
	}
	have := uint64(0)
	if old := s.policies[x.Key]; old != nil {
		have = old.Epoch
	}
	r := checkEpoch("policy "+x.Key, have, x.Epoch)
	if r.Code == 0 {
		delete(s.policies, x.Key)
	}
	return r
}

// epochs is a record that carries an epoch.
type epochs[T any] interface {
	*T
	epochField() *uint64
}

func (n *Node) epochField() *uint64   { return &n.Epoch }
func (t *Tenant) epochField() *uint64 { return &t.Epoch }
func (p *Policy) epochField() *uint64 { return &p.Epoch }

// put makes next, whose epoch is the one that its maker saw (0: none was there), the record at key, with the epoch
// after. It gives the old one; nil where there was none. What is refused changes nothing.
func put[K comparable, T any, P epochs[T]](table map[K]P, key K, next P, most int, what string) (P, Result) {
	old, have := table[key], uint64(0)
	if old != nil {
		have = *old.epochField()
	}
	epoch := next.epochField()
	if r := checkEpoch(what, have, *epoch); r.Code != 0 {
		return old, r
	}
	if old == nil && len(table) >= most {
		return old, refuse(object.ErrFull, "%s: the cluster has %d of the kind already", what, most)
	}
	*epoch++
	table[key] = next
	return old, done(*epoch)
}

// checkEpoch refuses a command that was made of another epoch than the record now has, which is the result's.
func checkEpoch(what string, have, want uint64) Result {
	if have == want {
		return Result{}
	}
	r := refuse(object.ErrBusy, "%s is at epoch %d, the command was made for %d: read it again and repeat", what, have,
		want)
	r.Epoch = have
	return r
}

// checkIncarnation refuses what an incarnation that runs no more asks for.
func (s *State) checkIncarnation(node, incarnation UUID) Result {
	n := s.nodes[node]
	if n == nil {
		return refuse(object.ErrNotFound, "node %s is no member", node)
	}
	if n.Incarnation != incarnation {
		return refuse(object.ErrPermission, "node %s runs incarnation %s now, not %s", n.Name,
			n.Incarnation, incarnation)
	}
	return Result{}
}

func (s *State) dropDevices(node UUID) {
	for k, d := range s.devices {
		if d.Node == node {
			delete(s.devices, k)
		}
	}
}
