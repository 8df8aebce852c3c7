package daemon

import (
	"context"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tendril/cluster"
	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/cluster/raftnode"
	"tendril/daemon/tenancy"
	"tendril/daemon/workers"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/store/object"
)

// Limits of waiting for the metadata.
const (
	raftStart   = 2 * time.Minute  // to read the log, restore it and lead
	proposeTime = 10 * time.Second // for one command
	sweepEvery  = time.Hour        // forgetting what expired
)

// metadata is this node's part of the cluster: its keys and its copy of the facts. authority, keyring and raft are
// those of the membership that holds now.
type metadata struct {
	now       current
	authority authorityNow
	keyring   keyringNow
	raft      raftNow

	node        fsm.UUID
	incarnation fsm.UUID
	tenants     atomic.Pointer[tenancy.Table]
	quotas      atomic.Pointer[map[string]fsm.TenantQuota] // of tenants on this node; never altered
	following   sync.Mutex                                 // one followTenants at a time
	storeOpen   bool                                       // guarded by following

	// gate is held for reading by who proposes, and for writing while another membership takes the place of the
	// present one: so nothing is changed in a cluster that the node has taken its leave of.
	gate   sync.RWMutex
	coming atomic.Pointer[membership] // the one that is about to: it answers the other nodes already
	moving sync.Mutex                 // one join or leave at a time
}

// init makes the views.
func (x *metadata) init() {
	x.authority, x.keyring, x.raft = authorityNow{&x.now}, keyringNow{&x.now}, raftNow{&x.now}
}

func (d *Daemon) openAuthority() error {
	d.meta.node, d.meta.incarnation = fsm.UUID(d.identity.Node), fsm.UUID(d.identity.Incarnation)
	m := d.newMembership()
	if err := m.book.open(); err != nil {
		d.log.WithError(err).Warnf("%s cannot be read: other nodes are found by what the metadata says of them",
			m.book.path)
	}
	a, err := pki.OpenAuthority(d.cfg.StateDir, time.Now)
	m.authority.Store(a)
	d.meta.now.Store(m)
	return err
}

func (d *Daemon) openMetadata() (err error) {
	return d.meta.now.Load().openRaft(d, !d.first && !d.anyway)
}

// closeMetadata waits for a move to another cluster that is under way. What that has opened is to be closed.
func (d *Daemon) closeMetadata() error {
	d.meta.gate.Lock()
	now := d.meta.now.Load()
	d.meta.gate.Unlock() // what close waits for may propose
	return now.close()
}

// changeTime is how long a change of the metadata may take, or a question about it.
func (d *Daemon) changeTime() time.Duration { return proposeTime + d.patience() }

// propose has the cluster do a command under a fresh request id.
func (d *Daemon) propose(cmd fsm.Command) (fsm.Result, error) {
	ctx, cancel := context.WithTimeout(d.ctx, d.changeTime())
	defer cancel()
	if err := d.passGate(ctx); err != nil {
		return fsm.Result{}, err
	}
	defer d.meta.gate.RUnlock()
	return d.meta.now.Load().propose(ctx, cmd)
}

// passGate holds the gate for reading. ErrBusy: another membership takes the place of the present one all the time.
func (d *Daemon) passGate(ctx context.Context) error {
	for !d.meta.gate.TryRLock() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: this node joins, leaves or recovers a cluster: try again when that is done", object.ErrBusy)
		case <-time.After(gateLook):
		}
	}
	return nil
}

// gateLook is how often who waits for the gate looks: a move takes a second or so.
const gateLook = 5 * time.Millisecond

// proposeOwn is propose for a command that names this run of the node. The cluster refuses one of a run that it does
// not know of, so it waits until the node has entered.
func (d *Daemon) proposeOwn(cmd fsm.Command) (fsm.Result, error) {
	ctx, cancel := context.WithTimeout(d.ctx, d.changeTime())
	defer cancel()
	if err := d.awaitEntry(ctx); err != nil {
		return fsm.Result{}, err
	}
	if err := d.passGate(ctx); err != nil {
		return fsm.Result{}, err
	}
	defer d.meta.gate.RUnlock()
	return d.meta.now.Load().propose(ctx, cmd)
}

// awaitEntry waits until the node has entered its cluster: before, its copy of the metadata may be from long ago.
func (d *Daemon) awaitEntry(ctx context.Context) error {
	select {
	case <-d.meta.now.Load().registered:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: this node has started, and has not reached its cluster yet: try again; tendril cluster "+
			"status shows which nodes answer", object.ErrTimeout)
	}
}

// enter makes this run of the node known to its cluster. A cluster of one does so at once; otherwise the others may not
// be there, and the node serves without them.
func (d *Daemon) enter() error {
	m := d.meta.now.Load()
	if err := d.loadTenants(); err != nil {
		return err
	}
	if m.raft.Leads() && !m.others() {
		if err := d.register(m); err != nil {
			return err
		}
		d.entered(m)
		return d.syncTenants(m)
	}
	m.running.Go(func() { d.enterLate(m) })
	return nil
}

// enterAgain is the pause before a node that could not tell its cluster of itself tries again.
const enterAgain = time.Second

// enterLate is enter for a node whose cluster may not answer yet.
func (d *Daemon) enterLate(m *membership) {
	said := false
	d.at("entering")
	for err := d.register(m); err != nil; err = d.register(m) {
		if m.ctx.Err() != nil {
			return
		}
		err = m.explainEntry(err)
		why := err.Error()
		m.refusal.Store(&why)
		m.removed.Store(errors.Is(err, errRemoved))
		if m.removed.Load() && d.wasLeaving() {
			d.joined.Go(d.finishLeave) // the membership ends in it, and waits for this goroutine
			return
		}
		if !said {
			said = true
			d.log.WithError(err).Warn("the cluster does not know of this node's start yet; trying again")
		}
		m.pause(enterAgain)
	}
	d.entered(m)
	if err := d.syncTenants(m); err != nil && m.ctx.Err() == nil {
		d.log.WithError(err).Warn("cannot tell the cluster of this node's tenants")
	}
}

// explainEntry adds the way out to why a node that has joined has not heard from its cluster: it knows those members
// alone that the join named, and if they are gone for good nobody else tells it of others.
func (m *membership) explainEntry(err error) error {
	if !m.joining.Load() || !errors.Is(err, object.ErrTimeout) && !errors.Is(err, errNoAnswer) {
		return err
	}
	var names []string
	for _, e := range m.book.list() {
		if e.ID != m.node.String() {
			names = append(names, strings.TrimSpace(e.Name+" "+strings.Join(e.Addresses, " ")))
		}
	}
	if len(names) == 0 {
		return err
	}
	const most = 4
	list := strings.Join(names[:min(len(names), most)], ", ")
	if len(names) > most {
		list += " and " + object.Counted(len(names)-most, "other")
	}
	return fmt.Errorf("%w; since it joined this node has heard of no other members than %s: if none of them comes back: "+
		"tendril cluster leave --anyway, then join again at a member that is there", err, list)
}

// entered notes that the cluster knows of this run of the node: if it was about to leave, it has not.
func (d *Daemon) entered(m *membership) {
	if err := removeDurably(filepath.Join(d.cfg.StateDir, leavingFile)); err != nil {
		d.log.WithError(err).Warn("cannot note that the node has not left its cluster")
	}
	close(m.registered)
	d.noteNodes(m)
}

// pause waits, and ends early with the membership.
func (m *membership) pause(t time.Duration) {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-m.ctx.Done():
	case <-timer.C:
	}
}

// whenEntered calls f once the cluster knows of this run of the node: now, where it does, and its error counts; else
// later, and its error is logged. what says what f does.
func (d *Daemon) whenEntered(what string, f func() error) error {
	m := d.meta.now.Load()
	select {
	case <-m.registered:
		return f()
	default:
	}
	d.onceEntered(m, what, f)
	return nil
}

// onceEntered calls f beside, once the cluster knows of this run of the node, until it succeeds.
func (d *Daemon) onceEntered(m *membership, what string, f func() error) {
	m.late.Go(func() {
		select {
		case <-m.lateCtx.Done():
			return
		case <-m.registered:
		}
		d.at("entered late")
		for m.lateCtx.Err() == nil {
			err := f()
			if err == nil {
				return
			}
			d.log.WithError(err).Warnf("cannot %s yet; trying again", what)
			select {
			case <-m.lateCtx.Done():
			case <-time.After(enterAgain):
			}
		}
	})
}

// proposeIn is propose in a membership that is not yet, or may not be any more, the present one.
func (d *Daemon) proposeIn(m *membership, cmd fsm.Command) (fsm.Result, error) {
	ctx, cancel := context.WithTimeout(m.ctx, d.changeTime())
	defer cancel()
	return m.propose(ctx, cmd)
}

// recordOwn has the cluster keep account of the certificate that the node shows, where it does not yet.
func (d *Daemon) recordOwn(m *membership) error {
	leaf := m.keyring.Certificate().Leaf
	subject, err := pki.SubjectOf(leaf)
	if err != nil {
		return err
	}
	serial, err := pki.SerialOf(leaf)
	if err != nil {
		return err
	}
	known := false
	m.raft.View(func(s *fsm.State) { _, known = s.Certificate(fsm.UUID(serial)) })
	if known {
		return nil
	}
	ctx, cancel := context.WithTimeout(m.ctx, d.changeTime())
	defer cancel()
	result, _, err := m.send(ctx, &fsm.RecordCertificate{ // it does not show here before the node is a member
		Certificate: certificateOf(pki.Issued{Certificate: leaf, Serial: serial}, subject)})
	if err != nil || errors.Is(result.Err(), object.ErrExists) { // this node's copy of the metadata is behind
		return err
	}
	return result.Err()
}

// register tells the cluster of this run of the node.
func (d *Daemon) register(m *membership) error {
	err := d.recordOwn(m)
	if err == nil {
		err = d.putNode(m)
	}
	return err
}

// putNode tells the cluster where this node is reached, and in which run. The node's own copy of the metadata may be
// behind, and the cluster may not be able to reach the node before it knows this: so the record's epoch is what the
// cluster answers, where it is another one.
func (d *Daemon) putNode(m *membership) error {
	var epoch uint64
	m.raft.View(func(s *fsm.State) {
		if n, ok := s.Node(d.meta.node); ok {
			epoch = n.Epoch
		}
	})
	addresses := d.advertised()
	put := &fsm.PutNode{Node: fsm.Node{ID: d.meta.node, Name: d.identity.Name, Incarnation: d.meta.incarnation,
		Version: clip(d.build.Version), Epoch: epoch, Client: addresses, Peer: addresses}}
	ctx, cancel := context.WithTimeout(m.ctx, d.changeTime())
	defer cancel()
	result, index, err := m.send(ctx, put)
	if err == nil && errors.Is(result.Err(), object.ErrBusy) {
		put.Node.Epoch = result.Epoch
		result, index, err = m.send(ctx, put)
	}
	if err == nil {
		err = result.Err()
	}
	if err != nil {
		return err
	}
	if err := m.raft.Await(ctx, index); err != nil {
		return fmt.Errorf("%w: the cluster has admitted this node, but the node has not heard from it yet: %w", object.ErrTimeout, err)
	}
	return nil
}

// loadTenants makes the table of the tenants, with those that are configured.
func (d *Daemon) loadTenants() error {
	if _, err := tenancy.NewTable(d.cfg.Tenants); err != nil {
		return err
	}
	d.followTenants()
	d.lookups.await()
	return nil
}

// syncTenants makes the cluster's tenants those of the configuration. In a cluster of several, each node has a
// configuration: what one of them has defined stays, and what differs here is reported.
func (d *Daemon) syncTenants(m *membership) error {
	var have []fsm.Tenant
	m.raft.View(func(s *fsm.State) { have = s.Tenants() })
	alone := !m.others()
	for _, t := range d.cfg.Tenants {
		want := fsm.Tenant{Name: t.Name, Users: t.Users, Groups: t.Groups, Certificates: t.Certificates}
		if i := slices.IndexFunc(have, func(h fsm.Tenant) bool { return h.Name == t.Name }); i >= 0 {
			old := have[i]
			have = slices.Delete(have, i, i+1)
			if old.Managed {
				d.log.WithField("tenant", t.Name).Warn("the cluster has its own record of this tenant (tendril tenant ls): " +
					"what the configuration says of it holds on this node alone")
				continue
			}
			if slices.Equal(old.Users, t.Users) && slices.Equal(old.Groups, t.Groups) &&
				slices.Equal(old.Certificates, t.Certificates) {
				continue
			}
			if !alone {
				d.log.WithField("tenant", t.Name).Warn("another node of the cluster defines this tenant differently: " +
					"the cluster keeps the first definition; make the configurations equal")
				continue
			}
			want.Epoch = old.Epoch
		}
		if _, err := d.proposeIn(m, &fsm.PutTenant{Tenant: want}); err != nil {
			return err
		}
	}
	if !alone {
		return nil // the others' are not for this node to remove
	}
	for _, gone := range have {
		if gone.Managed {
			continue
		}
		if _, err := d.proposeIn(m, &fsm.RemoveTenant{Name: gone.Name, Epoch: gone.Epoch}); err != nil {
			return err
		}
	}
	return nil
}

// openKeyring gets the node's certificate and starts what renews it, what forgets expired tokens and what follows the
// cluster. They end with d.ctx, or the membership.
func (d *Daemon) openKeyring() error {
	m := d.meta.now.Load()
	if err := m.openKeyring(d); err != nil {
		return err
	}
	d.joined.Go(d.sweepMetadata)
	d.serveCluster(m)
	return nil
}

func (d *Daemon) notRenewed(err error) {
	d.log.WithError(err).Warn("cannot renew the node's certificate yet")
}

// reloadCertificate takes the certificate that is on disk, or gets a new one where there is none or it is time: new
// connections see it at once.
func (d *Daemon) reloadCertificate() {
	if err := d.meta.keyring.Reload(d.ctx); err != nil && d.ctx.Err() == nil {
		d.notRenewed(err)
	}
}

func certificateOf(i pki.Issued, s pki.Subject) fsm.Certificate {
	c := fsm.Certificate{
		Serial: fsm.UUID(i.Serial), Subject: s.Name, Role: fsm.Role(s.Role), Tenant: s.Tenant,
		Expires: i.Certificate.NotAfter.UnixNano(),
	}
	if id, err := parseUUID(s.Node); err == nil {
		c.Tenant = fsm.NodeTenant(id)
	}
	return c
}

func (d *Daemon) sweepMetadata() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-tick.C:
			if !d.meta.now.Load().raft.Leads() {
				continue
			}
			if _, err := d.propose(&fsm.Sweep{}); err != nil && d.ctx.Err() == nil {
				d.log.WithError(err).Warn("cannot remove expired tokens and certificates")
			}
		}
	}
}

// void is the present membership's.
func (d *Daemon) void(leaf *x509.Certificate) bool { return d.meta.now.Load().void(leaf) }

// localTenant gives the tenant of a process of this machine.
func (d *Daemon) localTenant(uid, gid uint32) string { return d.meta.tenants.Load().Local(uid, gid) }

// publishDevices tells the cluster what a probe found.
func (d *Daemon) publishDevices() {
	platforms, err := d.pool.Platforms(d.ctx)
	if err != nil {
		return // the daemon is ending
	}
	for entered := false; !entered; {
		m := d.meta.now.Load()
		select {
		case <-m.registered:
			entered = true
		case <-m.ctx.Done(): // the node goes to another cluster
			if !d.rest(enterAgain) {
				return
			}
		case <-d.ctx.Done():
			return
		}
	}
	cmd := &fsm.PutDevices{Node: d.meta.node, Incarnation: d.meta.incarnation}
	seen := map[fsm.DeviceKey]bool{}
	for _, p := range platforms {
		for _, dev := range p.Snapshot.Devices {
			x := deviceOf(p, dev)
			if seen[x.Key] || len(cmd.Devices) == fsm.MaxNodeDevices {
				d.log.WithField("device",
					x.Name).Warn("a device is left out of the cluster's list: another one has its UUID, or there are too many")
				continue
			}
			seen[x.Key] = true
			cmd.Devices = append(cmd.Devices, x)
		}
	}
	if _, err := d.propose(cmd); err != nil && d.ctx.Err() == nil {
		d.log.WithError(err).Warn("cannot tell the cluster of this node's devices")
	}
	d.at("has told of its devices")
}

func deviceOf(p *workers.Platform, dev clwire.DeviceSnapshot) fsm.Device {
	x := fsm.Device{
		Key:  fsm.DeviceKey{Driver: clip(p.Name + " " + clText(p.Snapshot.Info[cl.PLATFORM_VERSION]))},
		Name: clip(clText(dev.Info[cl.DEVICE_NAME])), Vendor: clip(clText(dev.Info[cl.DEVICE_VENDOR])),
		Version: clip(clText(dev.Info[cl.DEVICE_VERSION])),
		Type:    clNumber(dev.Info[cl.DEVICE_TYPE]), MemoryBytes: clNumber(dev.Info[cl.DEVICE_GLOBAL_MEM_SIZE]),
		Units:    uint32(clNumber(dev.Info[cl.DEVICE_MAX_COMPUTE_UNITS])),
		ClockMHz: uint32(clNumber(dev.Info[cl.DEVICE_MAX_CLOCK_FREQUENCY])),
	}
	raw, _ := hex.DecodeString(dev.UUID) // of another form: the zero UUID, which the driver's name tells apart
	copy(x.Key.UUID[:], raw)
	return x
}

// explainMetadata adds the way out to what keeps the metadata from being opened.
func explainMetadata(err error) error {
	if errors.Is(err, raftnode.ErrDamaged) || errors.Is(err, cluster.ErrIdentity) || errors.Is(err, pki.ErrDamaged) {
		return fmt.Errorf("%w (nothing was changed; a new node can always start with an empty --state-dir)", err)
	}
	return err
}

// certificateDER signs a request for s and records it with record.
func (d *Daemon) certificateDER(request []byte, s pki.Subject, life time.Duration,
	record func(fsm.Certificate) error) (*x509.Certificate, error) {
	issued, err := d.meta.authority.Issue(request, s, life)
	if err != nil {
		return nil, err
	}
	if err := record(certificateOf(issued, s)); err != nil {
		return nil, err
	}
	return issued.Certificate, nil
}
