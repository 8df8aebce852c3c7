package daemon

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/daemon/frontdoor"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// A program of this machine comes in at the cluster's other nodes without a login of its own: its node, which knows by
// the socket whose it is, has a certificate for the program's tenant. All programs of a tenant share one. Nobody renews
// it: who may have the next one is who may still connect to the socket.

const (
	accessLife    = 24 * time.Hour // of such a certificate
	maxAccessKept = 1024           // tenants of this machine that have one at a time
)

// accesses are the certificates that programs of this machine were given.
type accesses struct {
	mu   sync.Mutex // a leaf
	kept map[string]access
}

// access is one tenant's certificate with its key, of the cluster that m is.
type access struct {
	m    *membership
	cert *x509.Certificate
	key  []byte // PKCS #8, DER
}

// fresh reports whether it is good for long enough to be handed out.
func (a access) fresh(m *membership, now time.Time) bool {
	return a.m == m && now.Before(a.cert.NotAfter.Add(-accessLife/2))
}

// find gives a tenant's certificate, if there is one that is good for long enough and of the present authority.
func (x *accesses) find(m *membership, tenant string) (access, bool) {
	x.mu.Lock()
	a, ok := x.kept[tenant]
	x.mu.Unlock()
	if !ok || !a.fresh(m, time.Now()) {
		return access{}, false
	}
	serial, err := pki.SerialOf(a.cert)
	return a, err == nil && !m.revoked(serial) && a.cert.CheckSignatureFrom(m.authority.Load().Certificate()) == nil
}

// keep remembers a tenant's certificate, and forgets those that are of no use any more.
func (x *accesses) keep(tenant string, a access) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.kept) >= maxAccessKept {
		for name, old := range x.kept {
			if !old.fresh(a.m, time.Now()) {
				delete(x.kept, name)
			}
		}
	}
	if _, there := x.kept[tenant]; !there && len(x.kept) >= maxAccessKept {
		return fmt.Errorf("%w: %d tenants of this machine use other nodes already", object.ErrLimit, maxAccessKept)
	}
	if x.kept == nil {
		x.kept = map[string]access{}
	}
	x.kept[tenant] = a
	return nil
}

// Access implements frontdoor.Nodes.
func (d *Daemon) Access(p frontdoor.Peer) (wire.AccessReply, error) {
	m := d.meta.now.Load()
	reply := wire.AccessReply{Node: object.ID(d.meta.node), Authority: m.authority.Load().Certificate().Raw,
		Nodes: d.othersAnswering(m)}
	if p.Remote != "" || len(reply.Nodes) == 0 {
		return reply, nil
	}
	a, ok := d.accesses.find(m, p.Tenant)
	if !ok {
		var err error
		if a, err = d.makeAccess(m, p); err != nil {
			return wire.AccessReply{}, err
		}
	}
	reply.Certificate, reply.Key = a.cert.Raw, a.key
	return reply, nil
}

// makeAccess has the authority certify a tenant of this machine, and the cluster keep account of that.
func (d *Daemon) makeAccess(m *membership, p frontdoor.Peer) (a access, err error) {
	ctx, cancel := context.WithTimeout(m.ctx, d.changeTime())
	defer cancel()
	key, err := pki.NewKey()
	if err != nil {
		return a, err
	}
	name := clip("programs on " + d.identity.Name)
	request, err := pki.NewRequest(key, name)
	if err != nil {
		return a, err
	}
	a.m = m
	if a.key, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
		return a, err
	}
	subject := pki.Subject{Name: name, Role: p.Role, Tenant: p.Tenant}
	a.cert, err = d.certificateDER(request, subject, accessLife, func(c fsm.Certificate) error {
		var record fsm.Command = &fsm.RecordAccess{Certificate: c, Node: d.meta.node}
		if d.sameRelease() != nil { // some node would not know that command
			record = &fsm.RecordCertificate{Certificate: c}
		}
		_, err := m.propose(ctx, record)
		return err
	})
	if err == nil {
		err = d.accesses.keep(p.Tenant, a)
	}
	return a, err
}

// othersAnswering lists the other nodes that answer and that clients can reach.
func (d *Daemon) othersAnswering(m *membership) (list []wire.NodeAddresses) {
	m.raft.View(func(s *fsm.State) {
		for _, n := range s.Nodes() {
			if n.ID != d.meta.node && len(n.Client) > 0 {
				list = append(list, wire.NodeAddresses{Node: object.ID(n.ID), Name: n.Name,
					Addresses: strings.Join(n.Client, " ")})
			}
		}
	})
	list = slices.DeleteFunc(list, func(n wire.NodeAddresses) bool { return !m.live.alive(fsm.UUID(n.Node)).Answers })
	return list[:min(len(list), wire.MaxAccessNodes)]
}
