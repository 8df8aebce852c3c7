package daemon

import (
	"context"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/daemon/frontdoor"
	"tendril/daemon/inspect"
	"tendril/daemon/tenancy"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// maxTokenLife bounds what a person types; 0 is for ever.
const maxTokenLife = 10 * 365 * 24 * time.Hour

// CreateToken implements frontdoor.Cluster. A token without a tenant is for the tenant of who made it; one that root
// makes is for a tenant of its own.
func (d *Daemon) CreateToken(p frontdoor.Peer, m wire.CreateTokenRequest) (text string, err error) {
	of := ""
	defer func() { d.auditBy(p, "token.create", m.Tenant, of, err) }()
	life := time.Duration(m.LifeSeconds) * time.Second
	if m.LifeSeconds > uint64(maxTokenLife/time.Second) {
		return "", fmt.Errorf("%w: a token for %d s, at most %v", object.ErrInvalid, m.LifeSeconds, maxTokenLife)
	}
	if !pki.Role(m.Role).Valid() {
		return "", fmt.Errorf("%w: %v", object.ErrInvalid, pki.Role(m.Role))
	}
	if pki.Role(m.Role) == pki.Metrics && m.Once {
		return "", fmt.Errorf("%w: a token of role metrics is shown with every scrape: make it without --once",
			object.ErrInvalid)
	}
	if err := d.everybodyKnows(fsm.Role(m.Role)); err != nil {
		return "", err
	}
	if m.Tenant != "" && m.Tenant != p.Tenant {
		check := tenancy.CheckName
		if p.UID == 0 { // who may become anybody here anyway
			check = tenancy.CheckAny
		}
		if err := check(m.Tenant); err != nil {
			return "", fmt.Errorf("%w: %w", object.ErrInvalid, err)
		}
	}
	if err := d.signsAnew(); err != nil {
		return "", err
	}
	secret, err := d.meta.authority.NewToken()
	if err != nil {
		return "", err
	}
	of = fsm.UUID(secret.ID()).String()
	t := fsm.Token{ID: secret.ID(), SecretHash: secret.SecretHash(), Role: fsm.Role(m.Role), Tenant: m.Tenant,
		Once: m.Once}
	switch {
	case t.Role == fsm.RoleNode:
		t.Tenant = ""
	case t.Role == fsm.RoleMetrics: // "" = the samples of all tenants: who makes tokens may see them
	case t.Tenant == "" && p.UID != 0:
		t.Tenant = p.Tenant
	case t.Tenant == "":
		t.Tenant = "token:" + hex.EncodeToString(t.ID[:6])
	}
	if life > 0 {
		t.Expires = d.clusterTime().Add(life).UnixNano()
	}
	d.at("a token is drawn")
	if _, err := d.propose(&fsm.CreateToken{Token: t}); err != nil {
		return "", err
	}
	if err := d.isOfTheLast(secret); err != nil {
		_, revoked := d.propose(&fsm.RevokeToken{ID: t.ID})
		return "", errors.Join(err, revoked)
	}
	d.log.WithField("token", t.ID).WithField("role", pki.Role(m.Role)).WithField("tenant",
		t.Tenant).Info("token created")
	d.openTCP() // which may have waited for it
	return secret.Text(), nil
}

// isOfTheLast refuses a token that names an authority whose rotation has begun before the cluster knew the token: it
// would be of no use at the end, and no list would say so.
func (d *Daemon) isOfTheLast(secret pki.Token) (err error) {
	var x pki.Succession
	d.meta.raft.View(func(s *fsm.State) { x, err = successionOf(s) })
	if err != nil || len(x.Authority) == 0 {
		return err
	}
	last, err := x509.ParseCertificate(x.Authority)
	if err == nil && !secret.Matches(pki.FingerprintOf(last)) {
		err = fmt.Errorf("%w: the cluster's authority began to be rotated while the token was made: make another",
			object.ErrBusy)
	}
	return err
}

// clusterTime is the latest time that some node has brought to the metadata, or this one knows: what expires is judged
// by it. A node whose clock was ahead while it led leaves it ahead.
func (d *Daemon) clusterTime() time.Time {
	var latest int64
	d.meta.raft.View(func(s *fsm.State) { latest = max(s.Now(), d.clock().UnixNano()) })
	return time.Unix(0, latest)
}

// everybodyKnows refuses a role that nodes of earlier releases take for a damaged record.
func (d *Daemon) everybodyKnows(role fsm.Role) error {
	if role <= fsm.RoleNode {
		return nil
	}
	if err := d.sameRelease(); err != nil {
		return fmt.Errorf("tokens of role %v: %w", pki.Role(role), err)
	}
	return nil
}

// sameRelease is object.ErrUnsupported where another node runs another release: it may not know this one's commands.
func (d *Daemon) sameRelease() (err error) {
	d.meta.raft.View(func(s *fsm.State) {
		for _, n := range s.Nodes() {
			if n.Version != clip(d.build.Version) {
				err = fmt.Errorf("%w: node %.60q runs release %.60q, this one %s: install the same release everywhere first",
					object.ErrUnsupported, n.Name, n.Version, d.build.Version)
			}
		}
	})
	return err
}

// EachToken implements frontdoor.Cluster: oldest first.
func (d *Daemon) EachToken(after string, f func(any, string) bool) error {
	place := func(t fsm.Token) string { return fmt.Sprintf("%016x-%s", uint64(t.Created), t.ID) }
	if created, id, ok := strings.Cut(after, "-"); after != "" {
		_, bad := strconv.ParseUint(created, 16, 64)
		if _, err := parseUUID(id); !ok || len(created) != 16 || bad != nil || err != nil {
			return noPlace(after)
		}
	}
	var list []fsm.Token
	var void int64
	clients := make(map[fsm.UUID][]string)
	var now int64
	d.meta.raft.View(func(s *fsm.State) {
		now = max(s.Now(), time.Now().UnixNano())
		list, void = s.Tokens(), voidTokens(s)
		for _, c := range s.Certificates() {
			if c.Revoked == 0 && c.Expires > now {
				clients[c.Token] = append(clients[c.Token], c.Subject)
			}
		}
	})
	list = slices.DeleteFunc(list, func(t fsm.Token) bool { return place(t) <= after })
	slices.SortFunc(list, func(a, b fsm.Token) int { return strings.Compare(place(a), place(b)) })
	for _, t := range list {
		names := append([]string{}, clients[t.ID]...)
		slices.Sort(names)
		x := inspect.Token{
			ID: t.ID.String(), Role: pki.Role(t.Role).String(), Tenant: t.Tenant, Created: at(t.Created),
			Expires: at(t.Expires), Once: t.Once,
			Uses: t.Uses, Revoked: at(t.Revoked), State: tokenState(t, now, void), Certificates: len(names),
			Clients: slices.Compact(names),
		}
		if !f(x, place(t)) {
			break
		}
	}
	return nil
}

// noPlace refuses what no listing has given as the place of an item.
func noPlace(after string) error {
	return fmt.Errorf("%w: after %.60q: want next of the last answer", object.ErrInvalid, after)
}

// voidTokens is the time of the last token of an authority that has ended; 0: none has.
func voidTokens(s *fsm.State) int64 {
	x, _ := successionOf(s) // one that cannot be read is reported by who follows it
	return x.Void
}

// checkToken is the state machine's CheckToken, for who shows a token to this cluster's authority.
func checkToken(s *fsm.State, id fsm.UUID, secretHash [32]byte, at int64) fsm.Result {
	check := s.CheckToken(id, secretHash, at)
	if t, _ := s.Token(id); check.Code == 0 && t.Created <= voidTokens(s) {
		return fsm.Result{Code: object.ErrPermission.Code(), Text: object.ErrPermission.Error() + ": the token is of an " +
			"authority that the cluster has no more: ask for another"}
	}
	return check
}

// tokenState says what a token is good for: "void" is one of an authority that the cluster has no more.
func tokenState(t fsm.Token, now, void int64) string {
	switch {
	case t.Revoked != 0:
		return "revoked"
	case t.Created <= void:
		return "void"
	case t.Expires != 0 && now >= t.Expires:
		return "expired"
	case t.Once && t.Uses > 0:
		return "used"
	}
	return "good"
}

// at gives a time of the metadata; 0 is none.
func at(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

// anyoneMayCome reports whether some token or certificate lets a stranger in, or other nodes have to reach this one:
// before that nobody needs to reach the front door.
func (d *Daemon) anyoneMayCome() (may bool) {
	if d.meta.now.Load().others() || d.meta.coming.Load() != nil || d.wantsNodes.Load() {
		return true
	}
	d.meta.raft.View(func(s *fsm.State) {
		now, void := max(s.Now(), time.Now().UnixNano()), voidTokens(s)
		for _, t := range s.Tokens() {
			may = may || t.Role != fsm.RoleMetrics && tokenState(t, now, void) == "good"
		}
		for _, c := range s.Certificates() {
			may = may || c.Role != fsm.RoleNode && c.Revoked == 0 && c.Expires > now
		}
	})
	return may
}

// RevokeToken implements frontdoor.Cluster. Connections of revoked certificates end at once.
func (d *Daemon) RevokeToken(p frontdoor.Peer, m wire.RevokeTokenRequest) (err error) {
	defer func() { d.auditBy(p, "token.revoke", "", m.ID.String(), err) }()
	if _, err := d.propose(&fsm.RevokeToken{ID: fsm.UUID(m.ID), Certificates: m.Certificates}); err != nil {
		return err
	}
	d.log.WithField("token", m.ID).WithField("certificates", m.Certificates).Info("token revoked")
	if m.Certificates {
		d.endRevoked()
	}
	return nil
}

// endRevoked ends the connections of certificates that were revoked.
func (d *Daemon) endRevoked() {
	m := d.meta.now.Load()
	d.endIf(m, frontdoor.ErrRevoked, func(leaf *x509.Certificate) bool {
		serial, err := pki.SerialOf(leaf)
		return err != nil || m.revoked(serial)
	})
}

// endIf ends the connections of some certificates, for why: those of other machines' programs and nodes, and this
// node's to others.
func (d *Daemon) endIf(m *membership, why error, which func(*x509.Certificate) bool) {
	if door := d.door.Load(); door != nil && d.meta.now.Load() == m { // else nobody came in yet
		door.EndIf(func(p frontdoor.Peer) bool { return p.Leaf != nil && which(p.Leaf) }, why)
	}
	m.raftConns.endIf(which)
	m.links.endIf(which)
}

// currentTime is how long a stranger waits for what the cluster knows of its token.
const currentTime = 3 * time.Second

// goodToken gives a token that may be used. One that this node does not know, or knows to be no good, may have been
// made at another node a moment ago: the leader is asked then.
func (d *Daemon) goodToken(id object.ID, secretHash [32]byte) (token fsm.Token, err error) {
	var check fsm.Result
	look := func(s *fsm.State) {
		token, _ = s.Token(fsm.UUID(id))
		check = checkToken(s, fsm.UUID(id), secretHash, max(s.Now(), time.Now().UnixNano()))
	}
	m := d.meta.now.Load()
	m.raft.View(look)
	if check.Code != 0 && m.others() && !m.raft.Leads() {
		ctx, cancel := context.WithTimeout(m.ctx, currentTime+d.patience())
		defer cancel()
		if err := m.readAgain(ctx, look); err != nil {
			d.log.WithError(err).Debug("the cluster cannot be asked for a token: it is judged by what this node knows")
		}
	}
	return token, check.Err()
}

// Enroll implements frontdoor.Cluster: the token pays for a certificate, in one command.
func (d *Daemon) Enroll(remote string, m wire.EnrollRequest) (der []byte, err error) {
	tenant := ""
	defer func() { d.auditStranger(remote, "token.use", m.Name, tenant, m.Token.String(), err) }()
	token, err := d.goodToken(m.Token, m.SecretHash)
	if err != nil { // before anything is signed or written: anybody can come as far as this
		return nil, err
	}
	tenant = token.Tenant
	subject := pki.Subject{Name: m.Name, Role: pki.Role(token.Role), Tenant: token.Tenant}
	if subject.Role == pki.Node {
		return nil, fmt.Errorf("%w: this token is for nodes (tendril cluster join): make one with --role user",
			object.ErrPermission)
	}
	if subject.Role == pki.Metrics {
		return nil, fmt.Errorf("%w: this token is for /metrics over HTTP: make one with --role user", object.ErrPermission)
	}
	if d.meta.tenants.Load().Disabled(token.Tenant) {
		return nil, fmt.Errorf("%w: the token's tenant is disabled", object.ErrPermission)
	}
	if owner := d.meta.tenants.Load().Reserved(m.Name); owner != "" && owner != token.Tenant {
		return nil, fmt.Errorf("%w: the name %.60q is reserved for a tenant: use another --name, or a token made with --tenant", object.ErrPermission, m.Name)
	}
	cert, err := d.certificateDER(m.Request, subject, pki.ClientLife, func(c fsm.Certificate) error {
		_, err := d.propose(&fsm.SpendToken{ID: fsm.UUID(m.Token), SecretHash: m.SecretHash, Certificate: c})
		return err
	})
	if err != nil {
		return nil, err // the front door logs it, so many a minute
	}
	d.log.WithField("remote", remote).WithField("name", subject.Name).WithField("tenant",
		subject.Tenant).WithField("token", m.Token).Info("a client logged in")
	return cert.Raw, nil
}

// Renew implements frontdoor.Cluster: who has a good certificate gets the next one, for a new key. The new one hangs on
// the same token, so that revoking that ends both. One of programs that come in from another node hangs on none.
func (d *Daemon) Renew(p frontdoor.Peer, request []byte) ([]byte, error) {
	if err := d.mayRenew(p); err != nil {
		return nil, err
	}
	cert, err := d.certificateDER(request, pki.Subject{Name: p.Subject, Role: p.Role, Tenant: p.Tenant},
		pki.ClientLife, func(c fsm.Certificate) error {
			_, err := d.propose(&fsm.RenewCertificate{Old: fsm.UUID(p.Serial), Certificate: c})
			return err
		})
	if err != nil {
		return nil, err
	}
	return cert.Raw, nil
}

// mayRenew refuses who was let in by its own node and not by a token. A certificate that this node does not know yet
// was made a moment ago: the leader is asked then.
func (d *Daemon) mayRenew(p frontdoor.Peer) error {
	var old fsm.Certificate
	var known bool
	look := func(s *fsm.State) { old, known = s.Certificate(fsm.UUID(p.Serial)) }
	m := d.meta.now.Load()
	if m.raft.View(look); !known {
		ctx, cancel := context.WithTimeout(m.ctx, currentTime+d.patience())
		defer cancel()
		if err := m.readAgain(ctx, look); err != nil {
			return err
		}
	}
	if known && old.Token.IsZero() && old.Role != fsm.RoleNode {
		return fmt.Errorf("%w: certificate %s is for programs of one node, which gives them the next one over its socket",
			object.ErrPermission, p.Serial)
	}
	return nil
}
