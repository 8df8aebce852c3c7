package daemon

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/daemon/frontdoor"
	"tendril/daemon/inspect"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// EachCertificate implements frontdoor.Cluster: by serial number.
func (d *Daemon) EachCertificate(after string, f func(any, string) bool) error {
	var list []fsm.Certificate
	names := map[fsm.UUID]string{}
	now := time.Now().UnixNano()
	d.meta.raft.View(func(s *fsm.State) {
		list, now = s.Certificates(), max(s.Now(), now)
		for _, n := range s.Nodes() {
			names[n.ID] = n.Name
		}
	})
	for _, c := range list {
		x := inspect.Certificate{Serial: c.Serial.String(), Name: c.Subject, Role: pki.Role(c.Role).String(),
			Tenant: c.Tenant, Expires: at(c.Expires), Revoked: at(c.Revoked), Reason: c.Reason, State: "good"}
		switch {
		case c.Revoked != 0:
			x.State = "revoked"
		case now >= c.Expires:
			x.State = "expired"
		}
		if !c.Token.IsZero() {
			x.Token = c.Token.String()
		}
		if !c.Node.IsZero() {
			x.Node = cmp.Or(names[c.Node], c.Node.String())
		}
		if x.Serial > after && !f(x, x.Serial) {
			break
		}
	}
	return nil
}

// maxReason bounds what a person writes, in bytes.
const maxReason = 200

// RevokeCertificates implements frontdoor.Cluster. Connections that use one of them end, here at once, and at the other
// nodes as soon as they hear of it.
func (d *Daemon) RevokeCertificates(p frontdoor.Peer, m wire.RevokeCertificatesRequest) (revoked uint64,
	err error) {
	defer func() {
		of := m.Node
		if m.Serial != (object.ID{}) {
			of = strings.TrimSpace(m.Serial.String() + " " + of)
		}
		d.auditBy(p, "certificate.revoke", m.Tenant, of, err)
	}()
	if err := d.sameRelease(); err != nil {
		return 0, err
	}
	if len(m.Reason) > maxReason {
		return 0, fmt.Errorf("%w: a reason of %d bytes, at most %d", object.ErrInvalid, len(m.Reason), maxReason)
	}
	cmd := fsm.RevokeCertificates{Serial: fsm.UUID(m.Serial), Tenant: m.Tenant,
		Reason: cmp.Or(m.Reason, "revoked by the administrator")}
	if cmd.Node, err = d.nodeNamed(m.Node); err != nil {
		return 0, err
	}
	result, err := d.propose(&cmd)
	if err != nil {
		return 0, err
	}
	d.log.WithField("serial", m.Serial).WithField("tenant", m.Tenant).WithField("node", m.Node).WithField("revoked",
		result.Epoch).Info("certificates revoked")
	d.endRevoked()
	return result.Epoch, nil
}

// nodeNamed finds a member by its name or identifier; "" is none.
func (d *Daemon) nodeNamed(name string) (id fsm.UUID, err error) {
	if name == "" {
		return id, nil
	}
	d.meta.raft.View(func(s *fsm.State) {
		list := s.Nodes()
		i := slices.IndexFunc(list, func(n fsm.Node) bool { return n.Name == name || n.ID.String() == name })
		if i < 0 {
			err = fmt.Errorf("%w: no node of this cluster is called %.60q", object.ErrNotFound, name)
			return
		}
		id = list[i].ID
	})
	return id, err
}
