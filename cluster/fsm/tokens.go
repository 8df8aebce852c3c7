package fsm

import (
	"crypto/subtle"
	"time"

	"tendril/store/object"
)

// CreateToken adds a token. Uses, Created and Revoked are ignored.
type CreateToken struct {
	Token Token
}

func (*CreateToken) number() Type    { return TypeCreateToken }
func (t *CreateToken) walk(c *codec) { t.Token.walk(c) }

func (t *CreateToken) apply(s *State, at int64) Result {
	x := t.Token
	if x.ID.IsZero() || x.SecretHash == [32]byte{} {
		return refuse(object.ErrInvalid, "a token needs an id and the hash of its secret")
	}
	if s.tokens[x.ID] != nil {
		return refuse(object.ErrExists, "token %s is there already", x.ID)
	}
	if x.Expires != 0 && x.Expires <= at {
		return refuse(object.ErrInvalid, "the token would expire at %s, the cluster's clock says %s",
			clock(x.Expires), clock(at))
	}
	if len(s.tokens) >= MaxTokens {
		return refuse(object.ErrFull, "the cluster has %d tokens already: revoke some", MaxTokens)
	}
	x.Created, x.Uses, x.Revoked = at, 0, 0
	s.tokens[x.ID] = &x
	return done(0)
}

// SpendToken checks a token and records the certificate that it pays for, in one step: a token that may be used once
// cannot be used twice, wherever in the cluster it is shown. Role and Tenant of the record are the token's, but for a
// node's: that has NodeTenant.
type SpendToken struct {
	ID          UUID
	SecretHash  [32]byte
	Certificate Certificate
}

func (*SpendToken) number() Type { return TypeSpendToken }
func (t *SpendToken) walk(c *codec) {
	t.ID.walk(c)
	c.fixed(t.SecretHash[:])
	t.Certificate.walk(c)
}

func (t *SpendToken) apply(s *State, at int64) Result {
	if r := s.CheckToken(t.ID, t.SecretHash, at); r.Code != 0 {
		return r
	}
	x, c := s.tokens[t.ID], t.Certificate
	if x.Role != RoleNode {
		c.Tenant = x.Tenant
	}
	c.Role, c.Token, c.Revoked, c.Reason = x.Role, x.ID, 0, ""
	if r := s.record(&c, at); r.Code != 0 {
		return r
	}
	x.Uses++
	return done(0)
}

// CheckToken says what SpendToken would come to at the time at (Unix ns), but for the certificate: so that a stranger's
// guess costs no entry in the log.
func (s *State) CheckToken(id UUID, secretHash [32]byte, at int64) Result {
	x := s.tokens[id]
	var want [32]byte
	if x != nil {
		want = x.SecretHash
	}
	// One answer for an unknown id and a wrong secret: whoever tries learns nothing of which ids there are.
	if subtle.ConstantTimeCompare(want[:], secretHash[:]) != 1 || x == nil {
		return refuse(object.ErrPermission,
			"no such token here: was it made by this cluster, and copied whole? make one with: tendril token create")
	}
	return x.check(at)
}

// check says whether a token may be used at the time at.
func (t *Token) check(at int64) Result {
	switch {
	case t.Revoked != 0:
		return refuse(object.ErrPermission, "the token was revoked at %s: ask for another", clock(t.Revoked))
	case t.Expires != 0 && at >= t.Expires:
		return refuse(object.ErrPermission, "the token expired at %s, the server's clock says %s: ask for another",
			clock(t.Expires), clock(at))
	case t.Once && t.Uses > 0:
		return refuse(object.ErrPermission,
			"the token was good for one use and has been used: ask for another; if it was not you who used it, have its certificate revoked")
	}
	return Result{}
}

// RevokeToken ends a token. Certificates that it paid for stay good unless Certificates is set.
type RevokeToken struct {
	ID           UUID
	Certificates bool
}

func (*RevokeToken) number() Type { return TypeRevokeToken }
func (t *RevokeToken) walk(c *codec) {
	t.ID.walk(c)
	c.flag(&t.Certificates)
}

func (t *RevokeToken) apply(s *State, at int64) Result {
	x := s.tokens[t.ID]
	if x == nil {
		return refuse(object.ErrNotFound, "token %s is not known", t.ID)
	}
	if x.Revoked == 0 {
		x.Revoked = at
	}
	s.revocations++
	for _, c := range s.certificates {
		if t.Certificates && c.Token == t.ID && c.Revoked == 0 {
			c.Revoked, c.Reason = at, "its token was revoked"
		}
	}
	return done(0)
}

// RecordCertificate keeps account of a certificate that no token paid for: a node's own, or one of a tenant's programs.
type RecordCertificate struct {
	Certificate Certificate // Revoked and Reason are ignored
}

func (*RecordCertificate) number() Type    { return TypeRecordCertificate }
func (r *RecordCertificate) walk(c *codec) { r.Certificate.walk(c) }

func (r *RecordCertificate) apply(s *State, at int64) Result {
	c := r.Certificate
	c.Revoked, c.Reason = 0, ""
	return s.record(&c, at)
}

// RecordAccess keeps account of a certificate with which the programs that a tenant runs on one node come in at the
// other nodes. No token pays for it and it is not renewed: the node, which knows the programs, gives them the next one.
type RecordAccess struct {
	Certificate Certificate // Revoked, Reason and Token are ignored; Role is that of clients
	Node        UUID
}

func (*RecordAccess) number() Type { return TypeRecordAccess }
func (r *RecordAccess) walk(c *codec) {
	r.Certificate.walk(c)
	r.Node.walk(c)
}

func (r *RecordAccess) apply(s *State, at int64) Result {
	c := r.Certificate
	switch {
	case s.nodes[r.Node] == nil:
		return refuse(object.ErrNotFound, "node %s is no member", r.Node)
	case c.Role == RoleNode || c.Tenant == "":
		return refuse(object.ErrInvalid, "a certificate for programs needs a tenant, and is no node's")
	}
	c.Revoked, c.Reason, c.Token, c.Node = 0, "", UUID{}, r.Node
	return s.record(&c, at)
}

func (s *State) record(c *Certificate, at int64) Result {
	if c.Serial.IsZero() || c.Expires <= at {
		return refuse(object.ErrInvalid,
			"certificate %s expires at %s, the cluster's clock says %s: want a serial number and a time to come",
			c.Serial, clock(c.Expires), clock(at))
	}
	if s.certificates[c.Serial] != nil {
		return refuse(object.ErrExists, "certificate %s is recorded already", c.Serial)
	}
	if len(s.certificates) >= MaxCertificates {
		return refuse(object.ErrFull, "the cluster has %d certificates on record already, which is the limit", MaxCertificates)
	}
	if (!c.Token.IsZero() || c.Role != RoleNode) && s.paid(c) >= MaxTokenCertificates {
		if c.Token.IsZero() {
			return refuse(object.ErrFull, "programs of tenant %q have %d certificates for other nodes: wait until some expire",
				c.Tenant, MaxTokenCertificates)
		}
		return refuse(object.ErrFull,
			"token %s has paid for %d certificates, its own and renewed ones: ask for another token", c.Token,
			MaxTokenCertificates)
	}
	s.certificates[c.Serial] = c
	return done(0)
}

// paid counts the certificates that hang on the same token as one does: without a token those of its tenant, nodes' own
// left out.
func (s *State) paid(of *Certificate) (n int) {
	for _, c := range s.certificates {
		if c.Token == of.Token && (!c.Token.IsZero() || c.Role != RoleNode && c.Tenant == of.Tenant) {
			n++
		}
	}
	return n
}

// RenewCertificate records the next certificate of who holds a good one, in one step: a revocation comes before it, and
// then there is no next one, or after it, and then it ends both. Of the record only Serial and Expires count; the rest
// is the old one's.
type RenewCertificate struct {
	Old         UUID // serial
	Certificate Certificate
}

func (*RenewCertificate) number() Type { return TypeRenewCertificate }
func (r *RenewCertificate) walk(c *codec) {
	r.Old.walk(c)
	r.Certificate.walk(c)
}

func (r *RenewCertificate) apply(s *State, at int64) Result {
	old := s.certificates[r.Old]
	if old == nil || old.Revoked != 0 {
		return refuse(object.ErrPermission,
			"certificate %s was revoked or is not known (any more): log in again with a new token", r.Old)
	}
	if !old.Node.IsZero() {
		return refuse(object.ErrPermission, "certificate %s is of programs on one node: they ask that node for the next",
			r.Old)
	}
	if old.Expires <= at {
		return refuse(object.ErrPermission, "certificate %s expired at %s: log in again with a new token", r.Old,
			clock(old.Expires))
	}
	c := *old
	c.Serial, c.Expires = r.Certificate.Serial, r.Certificate.Expires
	return s.record(&c, at)
}

// RevokeCertificate ends a certificate. One that is not recorded is ErrNotFound.
type RevokeCertificate struct {
	Serial UUID
	Reason string
}

func (*RevokeCertificate) number() Type { return TypeRevokeCertificate }
func (r *RevokeCertificate) walk(c *codec) {
	r.Serial.walk(c)
	c.str(&r.Reason, MaxTextBytes)
}

func (r *RevokeCertificate) apply(s *State, at int64) Result {
	c := s.certificates[r.Serial]
	if c == nil {
		return refuse(object.ErrNotFound, "certificate %s is not recorded", r.Serial)
	}
	if c.Revoked == 0 {
		c.Revoked, c.Reason = at, r.Reason
		s.revocations++
	}
	return done(0)
}

// RevokeCertificates ends the certificates of clients that have what is set here: this serial number, this tenant, and
// that programs on this node have. The result's Epoch is how many were good. Errors: ErrInvalid where nothing is set,
// or the serial number is of a node's own; ErrNotFound where nothing has all that.
type RevokeCertificates struct {
	Serial UUID
	Tenant string
	Node   UUID
	Reason string
}

func (*RevokeCertificates) number() Type { return TypeRevokeCertificates }
func (r *RevokeCertificates) walk(c *codec) {
	r.Serial.walk(c)
	c.str(&r.Tenant, MaxTextBytes)
	r.Node.walk(c)
	c.str(&r.Reason, MaxTextBytes)
}

func (r *RevokeCertificates) apply(s *State, at int64) Result {
	if r.Serial.IsZero() && r.Tenant == "" && r.Node.IsZero() {
		return refuse(object.ErrInvalid, "name a certificate, a tenant or a node")
	}
	if c := s.certificates[r.Serial]; c != nil && c.Role == RoleNode {
		return refuse(object.ErrInvalid, "certificate %s is a node's own: tendril cluster remove revokes it", r.Serial)
	}
	found, ended := 0, uint64(0)
	for _, c := range s.certificates {
		if c.Role == RoleNode || !r.Serial.IsZero() && c.Serial != r.Serial || r.Tenant != "" && c.Tenant != r.Tenant ||
			!r.Node.IsZero() && c.Node != r.Node {
			continue
		}
		if found++; c.Revoked == 0 {
			c.Revoked, c.Reason = at, r.Reason
			ended++
		}
	}
	if found == 0 {
		return refuse(object.ErrNotFound, "no such certificate is recorded")
	}
	s.revocations++
	return done(ended)
}

// keepAfterExpiry is how long an expired token or certificate is still shown, in ns; it also covers clocks that differ.
const keepAfterExpiry = int64(24 * time.Hour)

// Sweep forgets certificates that expired a day ago or longer, and tokens that expired or were revoked as long ago; but
// not a token whose certificates are good, for it is by the token that they are revoked. The leader proposes it now and
// then.
type Sweep struct{}

func (*Sweep) number() Type { return TypeSweep }
func (*Sweep) walk(*codec)  {}

func (*Sweep) apply(s *State, at int64) Result {
	old := func(t int64) bool { return t != 0 && at-keepAfterExpiry >= t }
	needed := map[UUID]bool{}
	for id, c := range s.certificates {
		if old(c.Expires) {
			delete(s.certificates, id)
		} else if c.Revoked == 0 {
			needed[c.Token] = true
		}
	}
	for id, t := range s.tokens {
		if (old(t.Expires) || old(t.Revoked)) && !needed[id] {
			delete(s.tokens, id)
		}
	}
	return done(0)
}

func clock(ns int64) string { return time.Unix(0, ns).UTC().Format(time.RFC3339) }
