package fsm

import (
	"cmp"
	"slices"
	"strings"
)

// The lists below are sorted by key and belong to the caller; what their elements point to (lists, byte strings) is the
// state's and must not be altered. An object's replica list stays as it is: Apply makes a new one.

// Nodes lists the members, by id.
func (s *State) Nodes() []Node { return sorted(s.nodes, compareUUID) }

// NodeCount gives how many there are.
func (s *State) NodeCount() int { return len(s.nodes) }

// Devices lists the devices of all nodes, by UUID and driver.
func (s *State) Devices() []Device { return sorted(s.devices, compareKey) }

// Tenants lists the configured tenants, by name.
func (s *State) Tenants() []Tenant { return sorted(s.tenants, cmp.Compare[string]) }

// Tokens lists the tokens, by id.
func (s *State) Tokens() []Token { return sorted(s.tokens, compareUUID) }

// Certificates lists what was issued, by serial number.
func (s *State) Certificates() []Certificate { return sorted(s.certificates, compareUUID) }

// Policies lists the policies, by key.
func (s *State) Policies() []Policy { return sorted(s.policies, cmp.Compare[string]) }

// Objects lists the published objects, by id, also those with Deleted.
func (s *State) Objects() []Object {
	list := make([]Object, 0, s.objects.size())
	for o := range s.objects.all() {
		list = append(list, *o)
	}
	slices.SortFunc(list, func(a, b Object) int { return compareUUID(a.ID, b.ID) })
	return list
}

// ObjectsAfter lists up to n published objects whose names begin with prefix, by tenant and name, behind that of a
// tenant and name ("" and "" is the beginning); with only, that tenant's alone. It looks at those that it lists, and a
// few for each tenant that it passes.
func (s *State) ObjectsAfter(tenant, name, prefix string, only bool, n int) []Object {
	var list []Object
	s.names.ordered.from(tenant, func(t string) bool {
		if only && t != tenant {
			return false
		}
		from, names := prefix, s.names.tenants[t]
		if t == tenant {
			from = max(name, prefix)
		}
		names.ordered.from(from, func(k string) bool {
			if !strings.HasPrefix(k, prefix) {
				return false
			}
			if t != tenant || k != name {
				list = append(list, *s.objects.get(names.ids[k]))
			}
			return len(list) < n
		})
		return len(list) < n
	})
	return list
}

// Node finds a member.
func (s *State) Node(id UUID) (Node, bool) { return find(s.nodes, id) }

// Tenant finds a configured tenant.
func (s *State) Tenant(name string) (Tenant, bool) { return find(s.tenants, name) }

// Token finds a token.
func (s *State) Token(id UUID) (Token, bool) { return find(s.tokens, id) }

// Policy finds a policy.
func (s *State) Policy(key string) (Policy, bool) { return find(s.policies, key) }

// Certificate finds what is recorded of a certificate.
func (s *State) Certificate(serial UUID) (Certificate, bool) { return find(s.certificates, serial) }

// Revoked reports whether a certificate was revoked. One that is not recorded was not.
func (s *State) Revoked(serial UUID) bool {
	c := s.certificates[serial]
	return c != nil && c.Revoked != 0
}

// NodeChanges rises with each change of the list of nodes, in this State's life: whoever keeps something of that list
// looks again when it is another number, or another State.
func (s *State) NodeChanges() uint64 { return s.nodeChanges }

// TenantChanges is NodeChanges for tenants.
func (s *State) TenantChanges() uint64 { return s.tenantChanges }

// Disabled reports whether a tenant's programs are let in nowhere.
func (s *State) Disabled(tenant string) bool {
	t := s.tenants[tenant]
	return t != nil && t.Disabled != 0
}

// QuotaOf gives what bounds a tenant on a node.
func (t *Tenant) QuotaOf(node UUID) (q TenantQuota) {
	for _, x := range t.Quotas {
		if x.Node == node {
			return x
		}
		if x.Node.IsZero() {
			q = x
		}
	}
	return q
}

// Revocations is NodeChanges for certificates that are good no more.
func (s *State) Revocations() uint64 { return s.revocations }

// Losses is NodeChanges for objects that are published no longer, or have a replica less.
func (s *State) Losses() uint64 { return s.losses }

// Object finds a published object.
func (s *State) Object(id UUID) (Object, bool) {
	o := s.objects.get(id)
	if o == nil || o.Deleted {
		return Object{}, false
	}
	return *o, true
}

// Deleted finds an object that was deleted and of which some node may still have a replica.
func (s *State) Deleted(id UUID) (Object, bool) {
	o := s.objects.get(id)
	if o == nil || !o.Deleted {
		return Object{}, false
	}
	return *o, true
}

// Replicated lists the objects of which more than one replica is wanted, by id.
func (s *State) Replicated() []Object {
	list := make([]Object, 0, len(s.wanted))
	for id := range s.wanted {
		o, _ := s.Object(id)
		list = append(list, o)
	}
	slices.SortFunc(list, func(a, b Object) int { return compareUUID(a.ID, b.ID) })
	return list
}

// ObjectByName finds a published object of a tenant.
func (s *State) ObjectByName(tenant, name string) (Object, bool) {
	id, ok := s.names.get(tenant, name)
	if !ok {
		return Object{}, false
	}
	return s.Object(id)
}

// Now is the latest time that a command brought, Unix ns.
func (s *State) Now() int64 { return s.now }

// Counts gives the number of each kind of record, for metrics.
func (s *State) Counts() map[string]int {
	return map[string]int{"nodes": len(s.nodes), "devices": len(s.devices), "tenants": len(s.tenants),
		"tokens":       len(s.tokens),
		"certificates": len(s.certificates), "objects": s.objects.size() - s.deleted, "deleted": s.deleted, "policies": len(s.policies),
		"requests": len(s.requests), "leases": len(s.leases)}
}

func find[K comparable, T any](m map[K]*T, key K) (T, bool) {
	if v := m[key]; v != nil {
		return *v, true
	}
	var zero T
	return zero, false
}
