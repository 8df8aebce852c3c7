package daemon

import (
	"context"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

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

// metadata is this node's part of the cluster: its keys and its copy of the facts. The start-up steps set it; nothing
// but tenants changes afterwards.
type metadata struct {
	authority   *pki.Authority
	keyring     *pki.Keyring
	raft        *raftnode.Node
	node        fsm.UUID
	incarnation fsm.UUID
	tenants     atomic.Pointer[tenancy.Table]
}

func (d *Daemon) openAuthority() (err error) {
	d.meta.authority, err = pki.OpenAuthority(d.cfg.StateDir, time.Now)
	return err
}

func (d *Daemon) openMetadata() (err error) {
	ctx, cancel := context.WithTimeout(d.ctx, raftStart)
	defer cancel()
	d.meta.node, d.meta.incarnation = fsm.UUID(d.identity.Node), fsm.UUID(d.identity.Incarnation)
	d.meta.raft, err = raftnode.Open(ctx, raftnode.Options{
		Dir: filepath.Join(d.cfg.StateDir, raftFolder), ID: d.identity.Node.String(), Known: !d.first &&
			!d.anyway, Log: d.log.WithField("part", "raft"), Level: logrus.WarnLevel,
	})
	return err
}

// propose has the cluster do a command under a fresh request id.
func (d *Daemon) propose(cmd fsm.Command) (fsm.Result, error) {
	ctx, cancel := context.WithTimeout(d.ctx, proposeTime)
	defer cancel()
	return d.meta.raft.Propose(ctx, fsm.UUID(object.NewID()), cmd)
}

// register tells the cluster of this run of the node, and brings the configured tenants in.
func (d *Daemon) register() error {
	var epoch uint64
	d.meta.raft.View(func(s *fsm.State) {
		if n, ok := s.Node(d.meta.node); ok {
			epoch = n.Epoch
		}
	})
	node := fsm.Node{ID: d.meta.node, Name: d.identity.Name, Incarnation: d.meta.incarnation, Version: d.build.Version,
		Epoch: epoch}
	if d.cfg.Listen != "none" {
		node.Client = []string{d.cfg.Listen}
	}
	_, err := d.propose(&fsm.PutNode{Node: node})
	if err == nil {
		err = d.syncTenants()
	}
	return err
}

// syncTenants makes the cluster's tenants those of the configuration, and the table of them.
func (d *Daemon) syncTenants() error {
	table, err := tenancy.NewTable(d.cfg.Tenants)
	if err != nil {
		return err
	}
	d.meta.tenants.Store(table)
	var have []fsm.Tenant
	d.meta.raft.View(func(s *fsm.State) { have = s.Tenants() })
	for _, t := range d.cfg.Tenants {
		want := fsm.Tenant{Name: t.Name, Users: t.Users, Groups: t.Groups, Certificates: t.Certificates}
		if i := slices.IndexFunc(have, func(h fsm.Tenant) bool { return h.Name == t.Name }); i >= 0 {
			old := have[i]
			have = slices.Delete(have, i, i+1)
			if slices.Equal(old.Users, t.Users) && slices.Equal(old.Groups, t.Groups) &&
				slices.Equal(old.Certificates, t.Certificates) {
				continue
			}
			want.Epoch = old.Epoch
		}
		if _, err := d.propose(&fsm.PutTenant{Tenant: want}); err != nil {
			return err
		}
	}
	for _, gone := range have {
		if _, err := d.propose(&fsm.RemoveTenant{Name: gone.Name, Epoch: gone.Epoch}); err != nil {
			return err
		}
	}
	return nil
}

// openKeyring gets the node's certificate and starts what renews it and what forgets expired tokens. Both end with
// d.ctx.
func (d *Daemon) openKeyring() (err error) {
	subject := pki.Subject{Name: d.identity.Name, Role: pki.Node, Node: d.identity.Node.String()}
	issue := pki.IssueFrom(d.meta.authority, subject, pki.NodeLife, func(_ context.Context, i pki.Issued) error {
		_, err := d.propose(&fsm.RecordCertificate{Certificate: certificateOf(i, subject)})
		return err
	})
	path := filepath.Join(d.cfg.StateDir, pki.NodeFile)
	d.meta.keyring, err = pki.OpenKeyring(d.ctx, path, d.identity.Name, d.meta.authority.Certificate(), issue, time.Now)
	if err != nil {
		return err
	}
	d.joined.Go(func() { d.meta.keyring.Run(d.ctx, d.notRenewed) })
	d.joined.Go(d.sweepMetadata)
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
	return fsm.Certificate{
		Serial: fsm.UUID(i.Serial), Subject: s.Name, Role: fsm.Role(s.Role), Tenant: s.Tenant,
		Expires: i.Certificate.NotAfter.UnixNano(),
	}
}

func (d *Daemon) sweepMetadata() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-tick.C:
			if _, err := d.propose(&fsm.Sweep{}); err != nil && d.ctx.Err() == nil {
				d.log.WithError(err).Warn("cannot remove expired tokens and certificates")
			}
		}
	}
}

// verifier believes certificates of this cluster that were not revoked.
func (d *Daemon) verifier() *pki.Verifier {
	return &pki.Verifier{Authority: d.meta.authority.Certificate(), Now: time.Now,
		Revoked: func(s pki.Serial) (revoked bool) {
			d.meta.raft.View(func(st *fsm.State) { revoked = st.Revoked(fsm.UUID(s)) })
			return revoked
		}}
}

// localTenant gives the tenant of a process of this machine.
func (d *Daemon) localTenant(uid, gid uint32) string { return d.meta.tenants.Load().Local(uid, gid) }

// publishDevices tells the cluster what a probe found.
func (d *Daemon) publishDevices() {
	platforms, err := d.pool.Platforms(d.ctx)
	if err != nil {
		return // the daemon is ending
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

// Loopback reports whether an address to listen on is reached from this machine alone.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// explainMetadata adds the way out to what keeps the metadata from being opened.
func explainMetadata(err error) error {
	if errors.Is(err, raftnode.ErrDamaged) || errors.Is(err, cluster.ErrIdentity) || errors.Is(err, pki.ErrDamaged) {
		return fmt.Errorf("%w (nothing was changed; a new node can always start with an empty --state-dir)", err)
	}
	return err
}

// certificateDER signs a request for s and records it with record.
func (d *Daemon) certificateDER(request []byte, s pki.Subject,
	record func(fsm.Certificate) error) (*x509.Certificate, error) {
	issued, err := d.meta.authority.Issue(request, s, pki.ClientLife)
	if err != nil {
		return nil, err
	}
	if err := record(certificateOf(issued, s)); err != nil {
		return nil, err
	}
	return issued.Certificate, nil
}
