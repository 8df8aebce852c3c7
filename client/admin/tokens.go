package admin

import (
	"context"
	"encoding/json"
	"iter"
	"time"

	"tendril/client/internal/conn"
	"tendril/cluster/pki"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// TokenOptions says what a token is good for.
type TokenOptions struct {
	Role   pki.Role
	Life   time.Duration // 0 = for ever; whole seconds
	Once   bool
	Tenant string // "" = the caller's
}

// CreateToken makes a token. Its text is a secret that is shown this once.
func (n Node) CreateToken(ctx context.Context, o TokenOptions) (string, error) {
	return n.secret(ctx, wire.CreateToken, &wire.CreateTokenRequest{Role: uint8(o.Role),
		LifeSeconds: uint64(o.Life / time.Second), Once: o.Once, Tenant: o.Tenant})
}

// RevokeToken ends a token, and with certificates also what it paid for: those connections end at once.
func (n Node) RevokeToken(ctx context.Context, id object.ID, certificates bool) error {
	return conn.Do(ctx, n.c, wire.RevokeToken, &wire.RevokeTokenRequest{ID: id, Certificates: certificates})
}

// CertificateChoice says which certificates of clients are meant: those that have all that is set. Nodes' own are none.
type CertificateChoice struct {
	Serial object.ID
	Tenant string
	Node   string // the name or identifier of the node whose programs have them
}

// RevokeCertificates ends certificates: their connections end, at all nodes that answer within seconds. It says how
// many were good. Errors: object.ErrNotFound; object.ErrInvalid where nothing is set, or a node's own is meant.
func (n Node) RevokeCertificates(ctx context.Context, x CertificateChoice, reason string) (revoked int, err error) {
	var m wire.Number
	err = conn.AskInto(ctx, n.c, wire.RevokeCertificates, &wire.RevokeCertificatesRequest{
		Serial: x.Serial, Tenant: x.Tenant, Node: x.Node, Reason: reason}, &m)
	return int(m.N), err
}

// secret is a round trip whose reply is a text.
func (n Node) secret(ctx context.Context, kind wire.Type, p ipc.Payload) (string, error) {
	var m wire.TextReply
	err := conn.AskInto(ctx, n.c, kind, p, &m)
	return m.Text, err
}

// EachToken describes the tokens, without their secrets, each as JSON.
func (n Node) EachToken(ctx context.Context) iter.Seq2[json.RawMessage, error] {
	return conn.Listing[json.RawMessage](ctx, n.c, wire.TokenPage, conn.Prefixed(""), wire.Tokens, nil)
}

// EachCertificate describes the certificates that the cluster keeps account of, each as JSON.
func (n Node) EachCertificate(ctx context.Context) iter.Seq2[json.RawMessage, error] {
	return conn.Listing[json.RawMessage](ctx, n.c, wire.CertificatePage, conn.Prefixed(""), 0, nil)
}
