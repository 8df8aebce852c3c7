package daemon

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
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
	if _, err := parseUUID(after); after != "" && err != nil {
		return noPlace(after)
	}
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

// A cluster gets another authority without a stop (docs/design/authority.md): a policy of the metadata has the new one,
// its key encrypted with the old one's. Each node follows, and notes that it has; until somebody finishes the rotation
// both are believed.
const (
	authorityPolicy = "authority"  // a pki.Succession
	followedPolicy  = "authority/" // and a node's identifier: the fingerprint of the authority that it signs with
)

// RotateStatus is the answer to a rotation's steps.
type RotateStatus struct {
	Authority string   `json:"authority"` // the new one's fingerprint
	Before    string   `json:"before,omitempty"`
	Begun     bool     `json:"begun,omitempty"` // this request began it
	Ended     bool     `json:"ended,omitempty"` // this request finished it
	Waiting   []string `json:"waiting"`         // nodes that do not sign with the new one yet
	Clients   []string `json:"clients"`         // names in good certificates of clients that are of the old one; each once
	Finished  bool     `json:"finished"`
}

// maxOldClients bounds the names in an answer.
const maxOldClients = 256

// succession is what the metadata says of a rotation.
type succession struct {
	pki.Succession
	epoch   uint64
	there   bool
	at      int64        // the metadata's time
	waiting []string     // names of nodes that have not followed
	clients []string     // names of those that have good certificates, and none of the new authority
	notes   []fsm.Policy // of nodes that have
}

// successionIn reads it. ours is the authority that the node signs with.
func successionIn(s *fsm.State, now int64) (x succession, err error) {
	x.at = s.Now()
	p, there := s.Policy(authorityPolicy)
	if !there {
		return x, nil
	}
	x.epoch, x.there = p.Epoch, true
	if x.Succession, err = successionOf(s); err != nil {
		return x, err
	}
	mark, err := fingerprintOf(x.Authority)
	if err != nil {
		return x, err
	}
	for _, n := range s.Nodes() {
		if note, _ := s.Policy(followedPolicy + n.ID.String()); string(note.Value) != mark.String() {
			x.waiting = append(x.waiting, n.Name)
		}
	}
	for _, p := range s.Policies() {
		if strings.HasPrefix(p.Key, followedPolicy) {
			x.notes = append(x.notes, p)
		}
	}
	type client struct { // as a renewal leaves them
		token, node     fsm.UUID
		subject, tenant string
	}
	followed := map[client]bool{}
	for _, c := range s.Certificates() {
		if c.Role != fsm.RoleNode && c.Revoked == 0 && c.Expires > now {
			k := client{c.Token, c.Node, c.Subject, c.Tenant}
			followed[k] = followed[k] || pki.Serial(c.Serial).IssuedBy(mark)
		}
	}
	for k, has := range followed {
		if !has {
			x.clients = append(x.clients, k.subject)
		}
	}
	slices.Sort(x.clients)
	x.clients = slices.Compact(x.clients)
	return x, nil
}

// RotateAuthority implements frontdoor.Nodes: it begins a rotation, or says how far one is, or finishes it.
func (d *Daemon) RotateAuthority(p frontdoor.Peer, m wire.RotateAuthorityRequest) (raw []byte, err error) {
	now := d.meta.now.Load()
	x, err := d.successionNow(now)
	if err != nil {
		return nil, err
	}
	begins, ends := !m.Finish && (!x.there || x.Finished), m.Finish && x.there && !x.Finished
	if begins || ends {
		defer func() {
			d.auditBy(p, map[bool]string{true: "authority.rotate", false: "authority.finish"}[begins], "", "", err)
		}()
		if err := d.sameRelease(); err != nil {
			return nil, err
		}
	}
	switch {
	case m.Finish && !x.there:
		return nil, fmt.Errorf("%w: no rotation of the authority is under way: tendril cluster rotate begins one", object.ErrInvalid)
	case begins:
		err = d.beginRotation(now, x)
	case ends:
		err = d.finishRotation(x, m.Anyway)
	}
	if err != nil {
		return nil, err
	}
	if x, err = d.successionNow(now); err != nil {
		return nil, err
	}
	status := x.status()
	status.Begun, status.Ended = begins, ends
	return json.Marshal(status)
}

// successionNow is successionIn of the metadata as it is now.
func (d *Daemon) successionNow(m *membership) (x succession, err error) {
	ctx, cancel := context.WithTimeout(m.ctx, d.changeTime())
	defer cancel()
	var bad error
	err = m.readAgain(ctx, func(s *fsm.State) { x, bad = successionIn(s, max(s.Now(), d.clock().UnixNano())) })
	return x, errors.Join(err, bad)
}

func (x *succession) status() RotateStatus {
	s := RotateStatus{Waiting: notNil(x.waiting), Clients: notNil(x.clients), Finished: x.Finished}
	if f, err := fingerprintOf(x.Authority); err == nil {
		s.Authority = f.String()
	}
	if f, err := fingerprintOf(x.Before); err == nil {
		s.Before = f.String()
	}
	s.Clients = s.Clients[:min(len(s.Clients), maxOldClients)]
	if x.Finished {
		s.Waiting, s.Clients = []string{}, []string{}
	}
	return s
}

// beginRotation has the cluster know of an authority that succeeds the present one.
func (d *Daemon) beginRotation(m *membership, x succession) error {
	a := m.authority.Load()
	if a.Trust().Before != nil || x.there && string(x.Authority) != string(a.Certificate().Raw) {
		return fmt.Errorf("%w: this node has not finished the last rotation of the authority yet: try again",
			object.ErrBusy)
	}
	next, err := a.Succeed()
	if err != nil {
		return err
	}
	for _, p := range x.notes { // of the last one
		if _, err := d.propose(&fsm.SetPolicy{Policy: fsm.Policy{Key: p.Key, Epoch: p.Epoch}}); err != nil {
			return err
		}
	}
	next.Since, next.Void = x.at, x.Void
	return d.putSuccession(next, x.epoch)
}

// finishRotation ends the old authority.
func (d *Daemon) finishRotation(x succession, anyway bool) error {
	switch {
	case len(x.waiting) > 0 && !anyway:
		return fmt.Errorf("%w: %s not followed the rotation yet. The cluster would refuse what has not: start it and try "+
			"again, or remove it (tendril cluster remove), or repeat with --anyway", object.ErrBusy, some(x.waiting, "has", "have"))
	case len(x.clients) > 0 && !anyway:
		return fmt.Errorf("%w: %s certificates of the old authority, and would have to log in anew. A client gets a new one "+
			"when it connects, and within 10 minutes where it is connected; tendril certificate revoke ends those that are not "+
			"needed. To end them now: --anyway", object.ErrBusy, some(x.clients, "has", "have"))
	}
	return d.putSuccession(pki.Succession{Authority: x.Authority, Finished: true, Void: x.Since}, x.epoch)
}

// signsAnew is object.ErrBusy where a rotation is under way that this node has not followed: what it signs now would be
// taken for the new authority's.
func (d *Daemon) signsAnew() (err error) {
	var x pki.Succession
	d.meta.raft.View(func(s *fsm.State) { x, err = successionOf(s) })
	if err == nil && len(x.Authority) > 0 && string(x.Authority) != string(d.meta.authority.Certificate().Raw) {
		err = fmt.Errorf("%w: the cluster's authority is being rotated, and this node follows in a moment: try again",
			object.ErrBusy)
	}
	return err
}

// successionOf reads the record of the last rotation; zero: there was none.
func successionOf(s *fsm.State) (x pki.Succession, err error) {
	p, there := s.Policy(authorityPolicy)
	if !there {
		return x, nil
	}
	if err := json.Unmarshal(p.Value, &x); err != nil {
		return x, fmt.Errorf("%w: the cluster's record of its authority: %w", object.ErrProtocol, err)
	}
	return x, nil
}

// some names a few of many, with the verb that goes with them.
func some(names []string, one, many string) string {
	const most = 8
	verb := many
	if len(names) == 1 {
		verb = one
	}
	text := strings.Join(names[:min(len(names), most)], ", ")
	if len(names) > most {
		text += " and " + object.Counted(len(names)-most, "other")
	}
	return text + " " + verb
}

func (d *Daemon) putSuccession(s pki.Succession, epoch uint64) error {
	raw, err := json.Marshal(s)
	if err != nil {
		return err
	}
	_, err = d.propose(&fsm.SetPolicy{Policy: fsm.Policy{Key: authorityPolicy, Value: raw, Epoch: epoch}})
	return err
}

func fingerprintOf(der []byte) (f pki.Fingerprint, err error) {
	cert, err := x509.ParseCertificate(der)
	if err == nil {
		f = pki.FingerprintOf(cert)
	}
	return f, err
}

// keepAuthority follows rotations of the cluster's authority until the membership ends.
func (d *Daemon) keepAuthority(m *membership) {
	var seen uint64
	said := ""
	for m.ctx.Err() == nil {
		epoch := uint64(0)
		m.raft.View(func(s *fsm.State) { epoch = authorityEpoch(s) })
		if epoch != seen {
			err := d.followAuthority(m)
			if err == nil {
				seen, said = epoch, ""
				continue
			}
			if why := err.Error(); why != said && m.ctx.Err() == nil {
				said = why
				d.log.WithError(err).Warn("this node cannot follow the rotation of the cluster's authority yet; trying again")
			}
			m.pause(enterAgain)
			continue
		}
		changed, stop := m.raft.When(func(s *fsm.State) bool { return authorityEpoch(s) != epoch })
		select {
		case <-m.ctx.Done():
		case <-changed:
		}
		stop()
	}
}

func authorityEpoch(s *fsm.State) uint64 {
	p, _ := s.Policy(authorityPolicy)
	return p.Epoch
}

// followAuthority does what the metadata says of the authority.
func (d *Daemon) followAuthority(m *membership) error {
	var x succession
	var err error
	m.raft.View(func(s *fsm.State) { x, err = successionIn(s, s.Now()) })
	if err != nil || !x.there || m.ctx.Err() != nil {
		return err
	}
	own := m.authority.Load()
	same := string(own.Certificate().Raw) == string(x.Authority)
	switch {
	case x.Finished && same:
		return d.endBefore(m)
	case x.Finished:
		return fmt.Errorf("%w: the cluster has another authority, and this node was away while it was rotated: tendril "+
			"cluster leave --anyway, then tendril cluster join", object.ErrPermission)
	case !same:
		if own, err = own.Successor(x.Succession); err != nil {
			return err
		}
		if err := m.believe(d, own); err != nil {
			return err
		}
		d.log.WithField("authority", pki.FingerprintOf(own.Certificate())).Info(
			"the cluster's authority is rotated: this node signs with the new one, and believes both")
	}
	if m.keyring.Outdated() {
		if err := m.keyring.Renew(m.ctx); err != nil {
			return err
		}
	}
	key, mark := followedPolicy+m.node.String(), pki.FingerprintOf(own.Certificate()).String()
	var note fsm.Policy
	m.raft.View(func(s *fsm.State) { note, _ = s.Policy(key) })
	if string(note.Value) == mark {
		return nil
	}
	_, err = d.proposeIn(m, &fsm.SetPolicy{Policy: fsm.Policy{Key: key, Value: []byte(mark), Epoch: note.Epoch}})
	return err
}

// believe has the node sign with an authority, and believe it and its predecessor.
func (m *membership) believe(d *Daemon, a *pki.Authority) error {
	if err := a.Save(d.cfg.StateDir); err != nil {
		return err
	}
	m.authority.Store(a)
	m.keyring.SetTrust(a.Trust())
	return nil
}

// errRotated is why the sessions of certificates end that an authority of before has signed.
var errRotated = errors.New("the authority that signed its certificate is no longer accepted")

// endBefore has the node believe nobody but its authority, and ends the connections of the predecessor.
func (d *Daemon) endBefore(m *membership) error {
	a := m.authority.Load()
	if a.Trust().Before == nil {
		return nil
	}
	if m.keyring.Outdated() {
		if err := m.keyring.Renew(m.ctx); err != nil {
			return err
		}
	}
	if err := m.believe(d, a.Alone()); err != nil {
		return err
	}
	d.endIf(m, errRotated, m.void)
	d.log.WithField("authority", pki.FingerprintOf(a.Certificate())).Info(
		"the rotation of the cluster's authority is finished: what the old one has signed is no longer accepted")
	return nil
}
