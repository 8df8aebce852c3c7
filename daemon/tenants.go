package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"tendril/cluster/fsm"
	"tendril/daemon/frontdoor"
	"tendril/daemon/inspect"
	"tendril/daemon/tenancy"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

// Tenants are records of the cluster's metadata (fsm.SetTenant). Each node makes of them who is who on it, whom it lets
// in, and what bounds whom. Who is in no record is what the node's configuration says, or the tenant of its user.

var memberKinds = map[fsm.MemberKind]string{fsm.MemberUser: "user", fsm.MemberGroup: "group",
	fsm.MemberCertificate: "certificate"}

// EachTenant implements frontdoor.Cluster: by name.
func (d *Daemon) EachTenant(after string, f func(any, string) bool) error {
	var list []inspect.Tenant
	d.meta.raft.View(func(s *fsm.State) {
		names := map[fsm.UUID]string{{}: ""}
		for _, n := range s.Nodes() {
			names[n.ID] = n.Name
		}
		nameOf := func(id fsm.UUID) string {
			if name, known := names[id]; known {
				return name
			}
			return id.String()
		}
		leased := map[string]int{}
		for _, l := range s.Leases() {
			leased[l.Tenant] += len(l.Devices)
		}
		for _, t := range s.Tenants() {
			x := recordOf(&t, nameOf)
			u := s.UsageOf(t.Name)
			x.PublishedObjects, x.PublishedBytes, x.LeasedDevices = u.Objects, u.Data, leased[t.Name]
			list = append(list, x)
		}
	})
	for _, x := range list {
		if x.Name > after && !f(x, x.Name) {
			break
		}
	}
	return nil
}

func recordOf(t *fsm.Tenant, nameOf func(fsm.UUID) string) inspect.Tenant {
	x := inspect.Tenant{Name: t.Name, Managed: t.Managed, State: "enabled", Disabled: at(t.Disabled),
		Members: []inspect.Member{}, Quotas: []inspect.Quota{},
		Cluster: inspect.Quota{Objects: t.Whole.Objects, Bytes: t.Whole.Bytes, Devices: t.Whole.Devices}}
	if t.Disabled != 0 {
		x.State = "disabled"
	}
	for _, m := range t.Members {
		x.Members = append(x.Members, inspect.Member{Kind: memberKinds[m.Kind], Name: m.Name, Node: nameOf(m.Node)})
	}
	for _, n := range t.Users {
		x.Members = append(x.Members, inspect.Member{Kind: "user", Name: fmt.Sprint(n)})
	}
	for _, n := range t.Groups {
		x.Members = append(x.Members, inspect.Member{Kind: "group", Name: fmt.Sprint(n)})
	}
	for _, name := range t.Certificates {
		x.Members = append(x.Members, inspect.Member{Kind: "certificate", Name: name})
	}
	for _, q := range t.Quotas {
		x.Quotas = append(x.Quotas, inspect.Quota{Node: nameOf(q.Node), MemoryBytes: q.MemoryBytes,
			DiskBytes: q.DiskBytes, GPUBytes: q.GPUBytes, Devices: q.Devices})
	}
	return x
}

// ChangeTenant implements frontdoor.Cluster.
func (d *Daemon) ChangeTenant(p frontdoor.Peer, m wire.ChangeTenantRequest) (err error) {
	defer func() {
		d.auditBy(p, "tenant."+changeNames[m.Change], m.Name, strings.TrimSpace(m.Member+" "+m.Node), err)
	}()
	if err := d.sameRelease(); err != nil {
		return err
	}
	node, err := d.nodeNamed(m.Node)
	if err != nil {
		return err
	}
	var t fsm.Tenant
	var known bool
	var usage fsm.Usage
	ctx, cancel := context.WithTimeout(d.ctx, d.changeTime())
	defer cancel()
	err = d.meta.now.Load().readAgain(ctx, func(s *fsm.State) {
		t, known = s.Tenant(m.Name)
		usage = s.UsageOf(m.Name)
	})
	if err != nil {
		return err
	}
	switch {
	case m.Change == wire.TenantCreate && known:
		return fmt.Errorf("%w: tenant %s is there already", object.ErrExists, m.Name)
	case m.Change == wire.TenantCreate:
		if err := tenancy.CheckAny(m.Name); err != nil {
			return fmt.Errorf("%w: %w", object.ErrInvalid, err)
		}
		t = fsm.Tenant{Name: m.Name, Managed: true}
	case !known:
		return fmt.Errorf("%w: the cluster has no record of tenant %.60q: tendril tenant create makes one",
			object.ErrNotFound, m.Name)
	case m.Change == wire.TenantRemove:
		return d.removeTenant(t, usage, m.Anyway)
	}
	if err := alterTenant(&t, &m, node); err != nil {
		return err
	}
	if _, err := d.propose(&fsm.SetTenant{Tenant: t}); err != nil {
		return err
	}
	d.log.WithField("tenant", t.Name).WithField("change", m.Change).Info("tenant changed")
	d.followTenants()
	d.lookups.await()
	return nil
}

// alterTenant makes the change in t.
func alterTenant(t *fsm.Tenant, m *wire.ChangeTenantRequest, node fsm.UUID) error {
	who := fsm.TenantMember{Kind: fsm.MemberKind(m.Kind), Node: node, Name: m.Member}
	t.Members, t.Quotas = slices.Clone(t.Members), slices.Clone(t.Quotas)
	switch m.Change {
	case wire.TenantCreate:
	case wire.TenantDisable:
		t.Disabled = time.Now().UnixNano()
	case wire.TenantEnable:
		t.Disabled = 0
	case wire.TenantMap:
		if memberKinds[who.Kind] == "" || who.Name == "" || who.Kind == fsm.MemberCertificate && !node.IsZero() {
			return fmt.Errorf("%w: want a user or a group, or the name in a certificate without a node", object.ErrInvalid)
		}
		if !slices.Contains(t.Members, who) {
			t.Members = append(t.Members, who)
		}
	case wire.TenantUnmap:
		i := slices.Index(t.Members, who)
		if i < 0 {
			return fmt.Errorf("%w: %q is not mapped to tenant %s there", object.ErrNotFound, who.Name, t.Name)
		}
		t.Members = slices.Delete(t.Members, i, i+1)
	case wire.TenantQuota:
		return alterQuota(t, m, node)
	default:
		return fmt.Errorf("%w: change %d of a tenant", object.ErrInvalid, m.Change)
	}
	return nil
}

func alterQuota(t *fsm.Tenant, m *wire.ChangeTenantRequest, node fsm.UUID) error {
	const ofNode, ofCluster = wire.QuotaMemory | wire.QuotaDisk | wire.QuotaGPU | wire.QuotaDevices,
		wire.QuotaMemory | wire.QuotaDevices | wire.QuotaObjects
	switch {
	case m.Fields == 0, !m.Whole && m.Fields&^ofNode != 0, m.Whole && (m.Fields&^ofCluster != 0 || !node.IsZero()):
		return fmt.Errorf("%w: a node's quota is of memory, disk, GPUs and devices, the cluster's of published bytes, "+
			"published objects and devices", object.ErrInvalid)
	case m.Whole:
		t.Whole.Bytes = pick(m.Fields&wire.QuotaMemory, m.Memory, t.Whole.Bytes)
		t.Whole.Objects = pick(m.Fields&wire.QuotaObjects, m.Objects, t.Whole.Objects)
		t.Whole.Devices = pick(m.Fields&wire.QuotaDevices, m.Devices, t.Whole.Devices)
		return nil
	}
	i := slices.IndexFunc(t.Quotas, func(q fsm.TenantQuota) bool { return q.Node == node })
	if i < 0 {
		i = len(t.Quotas)
		t.Quotas = append(t.Quotas, fsm.TenantQuota{Node: node})
	}
	q := &t.Quotas[i]
	q.MemoryBytes = pick(m.Fields&wire.QuotaMemory, m.Memory, q.MemoryBytes)
	q.DiskBytes = pick(m.Fields&wire.QuotaDisk, m.Disk, q.DiskBytes)
	q.GPUBytes = pick(m.Fields&wire.QuotaGPU, m.GPU, q.GPUBytes)
	q.Devices = pick(m.Fields&wire.QuotaDevices, m.Devices, q.Devices)
	if *q == (fsm.TenantQuota{Node: node}) {
		t.Quotas = slices.Delete(t.Quotas, i, i+1)
	}
	return nil
}

// pick is next where a bound is set, else what it was.
func pick[T any](set uint8, next, was T) T {
	if set != 0 {
		return next
	}
	return was
}

// removeTenant takes a tenant's record out, and what lets its clients in from other machines.
func (d *Daemon) removeTenant(t fsm.Tenant, usage fsm.Usage, anyway bool) error {
	if usage.Objects > 0 && !anyway {
		return fmt.Errorf("%w: tenant %s has %d published objects, which would stay and belong to the name: remove them, "+
			"disable the tenant, or repeat with --anyway", object.ErrBusy, t.Name, usage.Objects)
	}
	var tokens []fsm.UUID
	d.meta.raft.View(func(s *fsm.State) {
		for _, x := range s.Tokens() {
			if x.Tenant == t.Name && x.Revoked == 0 {
				tokens = append(tokens, x.ID)
			}
		}
	})
	for _, id := range tokens {
		if _, err := d.propose(&fsm.RevokeToken{ID: id, Certificates: true}); err != nil {
			return err
		}
	}
	_, err := d.propose(&fsm.RevokeCertificates{Tenant: t.Name, Reason: "its tenant was removed"})
	if err != nil && !errors.Is(err, object.ErrNotFound) {
		return err
	}
	if _, err := d.propose(&fsm.RemoveTenant{Name: t.Name, Epoch: t.Epoch}); err != nil {
		return err
	}
	d.log.WithField("tenant", t.Name).Info("tenant removed")
	d.endRevoked()
	d.followTenants()
	return nil
}

// followTenants makes of the records who is who on this node, ends the connections of tenants that are disabled, and
// gives each tenant its bounds.
func (d *Daemon) followTenants() {
	d.meta.following.Lock()
	defer d.meta.following.Unlock()
	var list []fsm.Tenant
	d.meta.raft.View(func(s *fsm.State) { list = s.Tenants() })
	own, err := tenancy.NewTable(d.cfg.Tenants)
	if err != nil {
		return // checked at the start
	}
	disabled, quotas, limits := map[string]bool{}, map[string]fsm.TenantQuota{}, map[string]store.TenantLimits{}
	for _, t := range list {
		if t.Disabled != 0 {
			disabled[t.Name] = true
		}
		if q := t.QuotaOf(d.meta.node); q != (fsm.TenantQuota{}) {
			quotas[t.Name] = q
			limits[t.Name] = store.TenantLimits{Bytes: q.MemoryBytes, SpillBytes: q.DiskBytes, DeviceBytes: q.GPUBytes}
		}
	}
	found := d.lookups.numbers(d.ctx, namesIn(list, d.meta.node), d.joined.Go)
	members := append(membersAt(list, d.meta.node, found), membersAt(list, fsm.UUID{}, found)...)
	table, taken := own.With(members, disabled)
	for _, text := range taken {
		d.log.Warnf("the cluster maps somebody to another tenant than this node's configuration, which applies here: %s", text)
	}
	d.meta.tenants.Store(table)
	d.meta.quotas.Store(&quotas)
	if d.meta.storeOpen {
		d.store.SetTenantLimits(limits)
	}
	if door := d.door.Load(); door != nil && len(disabled) > 0 {
		door.EndIf(d.refuses, errDisabled)
	}
}

// errDisabled is why the sessions of a disabled tenant end.
var errDisabled = errors.New("its tenant was disabled")

// boundTenants is followTenants once the store is open.
func (d *Daemon) boundTenants() {
	d.meta.following.Lock()
	d.meta.storeOpen = true
	d.meta.following.Unlock()
	d.followTenants()
}

// namesIn lists the names of users and groups that are mapped at a node, or at all of them; each once.
func namesIn(list []fsm.Tenant, node fsm.UUID) (names []lookup) {
	for _, t := range list {
		for _, m := range t.Members {
			x := lookup{m.Kind, m.Name}
			if m.Kind == fsm.MemberCertificate || m.Node != node && !m.Node.IsZero() || slices.Contains(names, x) {
				continue
			}
			if _, err := strconv.ParseUint(m.Name, 10, 32); err != nil {
				names = append(names, x)
			}
		}
	}
	return names
}

// membersAt gives the members that are mapped at a node, or with the zero UUID at all of them, as numbers of this one.
// Names that nobody has here, or that have not been found yet, are left out.
func membersAt(list []fsm.Tenant, node fsm.UUID, found map[lookup][]uint32) (at []tenancy.Tenant) {
	for _, t := range list {
		x := tenancy.Tenant{Name: t.Name}
		for _, m := range t.Members {
			if m.Node != node {
				continue
			}
			numbers := found[lookup{m.Kind, m.Name}]
			if n, err := strconv.ParseUint(m.Name, 10, 32); err == nil {
				numbers = []uint32{uint32(n)}
			}
			switch m.Kind {
			case fsm.MemberCertificate:
				x.Certificates = append(x.Certificates, m.Name)
			case fsm.MemberUser:
				x.Users = append(x.Users, numbers...)
			case fsm.MemberGroup:
				x.Groups = append(x.Groups, numbers...)
			}
		}
		at = append(at, x)
	}
	return at
}

// refuses reports whether a peer's tenant is disabled: the one that it came in as, or the one that its user is by now,
// whose number may have been found later. Who administers the daemon can always enable it.
func (d *Daemon) refuses(p frontdoor.Peer) bool {
	table := d.meta.tenants.Load()
	return !p.Admin && (table.Disabled(p.Tenant) || p.Remote == "" && table.Disabled(table.Local(p.UID, p.GID)))
}

// quotaOf gives what bounds a tenant on this node.
func (d *Daemon) quotaOf(tenant string) fsm.TenantQuota {
	if q := d.meta.quotas.Load(); q != nil {
		return (*q)[tenant]
	}
	return fsm.TenantQuota{}
}

// deviceBytesOf is what a tenant's workers may take of devices' own memory; 0: all there is.
func (d *Daemon) deviceBytesOf(tenant string) uint64 {
	return cmp.Or(d.quotaOf(tenant).GPUBytes, d.cfg.QuotaDevice)
}
