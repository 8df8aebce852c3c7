package fsm

import (
	"cmp"
	"slices"

	"tendril/store/object"
)

// Limits of leases.
const (
	MaxLeases       = 1 << 14 // with those that wait
	MaxTenantLeases = 1024    // of one tenant
	MaxLeaseDevices = 1024    // of one
	MaxEndedLeases  = 4096    // in one EndListedLeases
)

// LeaseDevice is a device of a lease. Who has it is decided by its node, which gives it to one lease at a time.
type LeaseDevice struct {
	Node UUID
	Key  string // what the node calls it
}

func (d *LeaseDevice) walk(c *codec) {
	d.Node.walk(c)
	c.str(&d.Key, MaxTextBytes)
}

// Lease is devices of one or more nodes that one program has for itself alone, or waits for. Order is its place: a
// smaller number came first.
type Lease struct {
	ID          UUID
	Tenant      string
	Holder      string // the program, for its own tenant's eyes
	Node        UUID   // where the program runs, or is connected to
	Incarnation UUID   // of that node: the lease ends with it
	Count       uint32 // devices that it wants; 0: all that match
	Whole       bool   // all devices of one node
	Granted     bool   // false: it waits
	Order       uint64 // set by the state machine
	Since       int64  // Unix ns: it waits, or has its devices; set by the state machine
	Devices     []LeaseDevice
}

func (l *Lease) walk(c *codec) {
	l.ID.walk(c)
	c.str(&l.Tenant, MaxTextBytes)
	c.str(&l.Holder, MaxTextBytes)
	l.Node.walk(c)
	l.Incarnation.walk(c)
	c.u32(&l.Count)
	c.flag(&l.Whole)
	c.flag(&l.Granted)
	c.u64(&l.Order)
	c.i64(&l.Since)
	list(c, &l.Devices, MaxLeaseDevices, (*LeaseDevice).walk)
}

// PutLease enters a lease, which then waits in its place, or (Granted) gives one that waits its devices.
type PutLease struct {
	Lease Lease // Order and Since are ignored
}

func (*PutLease) number() Type    { return TypePutLease }
func (p *PutLease) walk(c *codec) { p.Lease.walk(c) }

func (p *PutLease) apply(s *State, at int64) Result {
	l := p.Lease
	if l.ID.IsZero() || l.Tenant == "" {
		return refuse(object.ErrInvalid, "a lease needs an id and a tenant")
	}
	if r := s.checkIncarnation(l.Node, l.Incarnation); r.Code != 0 {
		return r
	}
	old := s.leases[l.ID]
	switch {
	case old == nil && l.Granted:
		return refuse(object.ErrNotFound, "lease %s has ended", l.ID)
	case old != nil && (old.Node != l.Node || old.Tenant != l.Tenant || old.Granted):
		return refuse(object.ErrExists, "lease %s is there already", l.ID)
	case old == nil:
		if r := s.roomForLease(l.Tenant); r.Code != 0 {
			return r
		}
		l.Order, l.Since, l.Devices = s.lastOrder()+1, at, nil
	default:
		if r := s.withinQuota(&l); r.Code != 0 {
			return r
		}
		if r := s.freeFor(&l); r.Code != 0 {
			return r
		}
		if l.Order = old.Order; !l.Granted {
			l.Since, l.Devices = old.Since, nil
		} else {
			l.Since = at
		}
	}
	s.leases[l.ID] = &l
	s.leaseChanges++
	return done(l.Order)
}

// roomForLease bounds the table, and each tenant's part of it.
func (s *State) roomForLease(tenant string) Result {
	mine := 0
	for _, l := range s.leases {
		if l.Tenant == tenant {
			mine++
		}
	}
	if mine >= MaxTenantLeases {
		return refuse(object.ErrLimit, "tenant %s has %d leases over nodes, waiting ones included, which is its limit", tenant,
			mine)
	}
	if len(s.leases) >= MaxLeases {
		return refuse(object.ErrFull, "the cluster has %d leases already", len(s.leases))
	}
	return Result{}
}

func (s *State) lastOrder() (last uint64) {
	for _, l := range s.leases {
		last = max(last, l.Order)
	}
	return last
}

// freeFor refuses a grant of a device that another lease has. Its node refuses it before; this is the second lock.
func (s *State) freeFor(l *Lease) Result {
	for _, other := range s.leases {
		if other.ID == l.ID || !other.Granted {
			continue
		}
		for _, d := range l.Devices {
			if slices.Contains(other.Devices, d) {
				return refuse(object.ErrBusy, "device %s is leased to %s", d.Key, other.Tenant)
			}
		}
	}
	return Result{}
}

// withinQuota holds to what a tenant may lease in the whole cluster (SetTenant).
func (s *State) withinQuota(l *Lease) Result {
	t := s.tenants[l.Tenant]
	if t == nil || t.Whole.Devices == 0 {
		return Result{}
	}
	has := 0
	for _, other := range s.leases {
		if other.Tenant == l.Tenant && other.ID != l.ID {
			has += len(other.Devices)
		}
	}
	if has+len(l.Devices) > int(t.Whole.Devices) {
		return refuse(object.ErrQuota, "tenant %s has %d of %d devices leased over nodes, and this lease has %d", l.Tenant,
			has, t.Whole.Devices, len(l.Devices))
	}
	return Result{}
}

// EndLease ends a lease, or takes one that waits out of the line.
type EndLease struct {
	ID UUID
}

func (*EndLease) number() Type    { return TypeEndLease }
func (e *EndLease) walk(c *codec) { e.ID.walk(c) }

func (e *EndLease) apply(s *State, _ int64) Result {
	if s.leases[e.ID] == nil {
		return refuse(object.ErrNotFound, "there is no lease %s", e.ID)
	}
	s.endLease(e.ID)
	return done(0)
}

// endLease drops a lease that is there.
func (s *State) endLease(id UUID) {
	delete(s.leases, id)
	s.leaseChanges++
	s.leaseEnds++
}

// EndListedLeases is EndLease of several; those that are not there are passed over.
type EndListedLeases struct {
	IDs []UUID
}

func (*EndListedLeases) number() Type    { return TypeEndListedLeases }
func (e *EndListedLeases) walk(c *codec) { list(c, &e.IDs, MaxEndedLeases, (*UUID).walk) }

func (e *EndListedLeases) apply(s *State, _ int64) Result {
	for _, id := range e.IDs {
		if s.leases[id] != nil {
			s.endLease(id)
		}
	}
	return done(0)
}

// EndLeases ends the leases of a node's programs: the leader proposes it for a node that does not answer. One that has
// started anew meanwhile keeps those of its new incarnation.
type EndLeases struct {
	Node        UUID
	Incarnation UUID
}

func (*EndLeases) number() Type { return TypeEndLeases }
func (e *EndLeases) walk(c *codec) {
	e.Node.walk(c)
	e.Incarnation.walk(c)
}

func (e *EndLeases) apply(s *State, _ int64) Result {
	for id, l := range s.leases {
		if l.Node == e.Node && l.Incarnation == e.Incarnation {
			s.endLease(id)
		}
	}
	return done(0)
}

// dropLeases ends what a node's earlier incarnations had: leases of its programs, and its devices in others' leases.
// now is the incarnation that runs; zero: none.
func (s *State) dropLeases(node, now UUID) {
	for id, l := range s.leases {
		if l.Node == node && l.Incarnation != now {
			s.endLease(id)
			continue
		}
		of := func(d LeaseDevice) bool { return d.Node == node }
		if slices.ContainsFunc(l.Devices, of) {
			changed := *l // what was there may be in a snapshot that is being written
			changed.Devices = slices.DeleteFunc(slices.Clone(l.Devices), of)
			s.leases[id] = &changed
			s.leaseChanges++
			s.leaseEnds++
		}
	}
}

// Leases lists the leases over nodes, and those that wait, by their places.
func (s *State) Leases() []Lease {
	list := sorted(s.leases, compareUUID)
	slices.SortFunc(list, func(a, b Lease) int { return cmp.Compare(a.Order, b.Order) })
	return list
}

// Lease finds one of them.
func (s *State) Lease(id UUID) (Lease, bool) { return find(s.leases, id) }

// LeaseChanges is NodeChanges for leases.
func (s *State) LeaseChanges() uint64 { return s.leaseChanges }

// LeaseEnds counts the changes that may have made devices free, or places in the line.
func (s *State) LeaseEnds() uint64 { return s.leaseEnds }
