package client

import (
	"context"
	"encoding/json"
	"time"

	"tendril/cluster/pki"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Publish makes a sealed object known to the cluster under a name ("" = its own), for every process of the tenant; it
// stays until Unpublish or Delete. A name that is taken is object.ErrExists, unless replace takes it from its object.
// It returns once the cluster has it on disk.
func (c *Conn) Publish(ctx context.Context, id object.ID, name string, replace bool) (epoch uint64, err error) {
	k, err := c.roundTrip(ctx, wire.Publish, &wire.BindRequest{ID: id, Name: name, Replace: replace})
	if err != nil {
		return 0, err
	}
	defer k.recycle()
	var m wire.Number
	err = m.Decode(k.payload)
	return m.N, err
}

// Unpublish takes a published name back; the object stays where it is held otherwise.
func (c *Conn) Unpublish(ctx context.Context, name string) error {
	return c.simple(ctx, wire.Unpublish, &wire.NameMessage{Name: name})
}

// Published describes the tenant's published objects whose name begins with prefix, as JSON.
func (c *Conn) Published(ctx context.Context, prefix string) (json.RawMessage, error) {
	return collectJSON(c.EachPublished(ctx, prefix))
}

// TokenOptions says what a token is good for.
type TokenOptions struct {
	Role   pki.Role
	Life   time.Duration // 0 = for ever; whole seconds
	Once   bool
	Tenant string // "" = the caller's
}

// CreateToken makes a token. Its text is a secret that is shown this once.
func (c *Conn) CreateToken(ctx context.Context, o TokenOptions) (string, error) {
	return c.secret(ctx, wire.CreateToken, &wire.CreateTokenRequest{Role: uint8(o.Role),
		LifeSeconds: uint64(o.Life / time.Second), Once: o.Once, Tenant: o.Tenant})
}

// Tokens describes the tokens, without their secrets, as JSON.
func (c *Conn) Tokens(ctx context.Context) (json.RawMessage, error) {
	return collectJSON(c.EachToken(ctx))
}

// RevokeToken ends a token, and with certificates also what it paid for: those connections end at once.
func (c *Conn) RevokeToken(ctx context.Context, id object.ID, certificates bool) error {
	return c.simple(ctx, wire.RevokeToken, &wire.RevokeTokenRequest{ID: id, Certificates: certificates})
}

// CertificateChoice says which certificates of clients are meant: those that have all that is set. Nodes' own are none.
type CertificateChoice struct {
	Serial object.ID
	Tenant string
	Node   string // the name or identifier of the node whose programs have them
}

// RevokeCertificates ends certificates: their connections end, at all nodes that answer within seconds. It says how
// many were good. Errors: object.ErrNotFound; object.ErrInvalid where nothing is set, or a node's own is meant.
func (c *Conn) RevokeCertificates(ctx context.Context, x CertificateChoice, reason string) (revoked int, err error) {
	k, err := c.roundTrip(ctx, wire.RevokeCertificates, &wire.RevokeCertificatesRequest{
		Serial: x.Serial, Tenant: x.Tenant, Node: x.Node, Reason: reason})
	if err != nil {
		return 0, err
	}
	defer k.recycle()
	var m wire.Number
	err = m.Decode(k.payload)
	return int(m.N), err
}

// ChangeTenant creates, changes or removes a tenant of the cluster. Errors: object.ErrExists for one that is there, or
// a member of another one; object.ErrNotFound; object.ErrBusy where it is changed elsewhere at the same time, or is in
// use.
func (c *Conn) ChangeTenant(ctx context.Context, m wire.ChangeTenantRequest) error {
	return c.simple(ctx, wire.ChangeTenant, &m)
}

// OpenPage gives the address of the daemon's page with a key to it: a secret.
func (c *Conn) OpenPage(ctx context.Context) (string, error) {
	return c.secret(ctx, wire.OpenPage, nil)
}

// secret is a round trip whose reply is a text.
func (c *Conn) secret(ctx context.Context, kind wire.Type, p ipc.Payload) (string, error) {
	k, err := c.roundTrip(ctx, kind, p)
	if err != nil {
		return "", err
	}
	defer k.recycle()
	var m wire.TextReply
	err = m.Decode(k.payload)
	return m.Text, err
}

// RemoteWorker is a worker that is reached through its daemon's front door: ticket i, shown by DialLane within 30 s,
// opens lane i.
type RemoteWorker struct {
	ID           uint64
	WorkerSHA256 [32]byte   // of the worker's certificate (DER): what to pin; zero without TLS
	Tickets      [][32]byte // secrets
}

// OpenRemoteWorker starts a worker on a platform of the session's snapshot, for a client that descriptors do not reach.
// clientSHA256 is the hash of the certificate (DER) that this client will show on each lane; plaintext does without
// TLS, where the daemon allows that; with resume the connections can be replaced (ResumeWorker), and greet each other.
// It may take seconds.
func (c *Conn) OpenRemoteWorker(ctx context.Context, platform uint32, clientSHA256 [32]byte, lanes int, plaintext,
	resume bool) (RemoteWorker, error) {
	k, err := c.roundTrip(ctx, wire.OpenRemoteWorker, &wire.OpenRemoteWorkerRequest{
		Platform: platform, ClientSHA256: clientSHA256, Lanes: uint8(min(max(lanes, 0), 255)), Plaintext: plaintext,
		Resume: resume,
	})
	if err != nil {
		return RemoteWorker{}, err
	}
	defer k.recycle()
	var m wire.OpenRemoteWorkerReply
	if err := m.Decode(k.payload); err != nil {
		return RemoteWorker{}, err
	}
	return RemoteWorker{ID: m.Worker, WorkerSHA256: m.WorkerSHA256, Tickets: m.Tickets}, nil
}

// JoinCluster makes the daemon's node a member of the cluster that has a node at address (HOST or HOST:PORT), with a
// token of role pki.Node made there. The node keeps its objects and sessions; its clients on other machines must
// log in again. It returns the result as JSON. It may take some seconds. Errors: object.ErrExists for a node that
// is in a cluster already, or whose name is taken there; object.ErrPermission for a token that is not good;
// object.ErrVersion. The node then is what it was.
func (c *Conn) JoinCluster(ctx context.Context, address, token string) (json.RawMessage, error) {
	full, err := withPort(address)
	if err != nil {
		return nil, err
	}
	var raw json.RawMessage
	err = c.query(ctx, wire.JoinCluster, &wire.JoinClusterRequest{Address: full, Token: token}, &raw)
	return raw, err
}

// LeaveCluster takes the daemon's node out of its cluster, or begins what has to be done before: other nodes take
// replicas of what this one alone has. It waits for no transfer: who wants the node out asks again until the answer,
// JSON, says that it is done. With anyway the node leaves although other nodes cannot take everything, or the cluster
// cannot be told. Errors: object.ErrTimeout, the cluster does not answer; object.ErrBusy.
func (c *Conn) LeaveCluster(ctx context.Context, anyway bool) (json.RawMessage, error) {
	var raw json.RawMessage
	err := c.query(ctx, wire.LeaveCluster, &wire.LeaveClusterRequest{Anyway: anyway}, &raw)
	return raw, err
}

// RemoveNode takes another node, which is dead, out of the daemon's cluster. It returns the result as JSON. With
// anyway also one that answers, or that alone has objects. Errors: object.ErrNotFound; object.ErrInvalid for this node,
// and for what anyway is needed; object.ErrTimeout.
func (c *Conn) RemoveNode(ctx context.Context, node string, anyway bool) (json.RawMessage, error) {
	var raw json.RawMessage
	err := c.query(ctx, wire.RemoveNode, &wire.RemoveNodeRequest{Node: node, Anyway: anyway}, &raw)
	return raw, err
}

// RecoverCluster makes the daemon's node a cluster of one of what it knows of its cluster, which has lost most of its
// voters for good. Without do it says what would be lost, as JSON, and does nothing. Errors: object.ErrInvalid where
// there is nothing to recover, or another node knows more.
func (c *Conn) RecoverCluster(ctx context.Context, do bool) (json.RawMessage, error) {
	var raw json.RawMessage
	err := c.query(ctx, wire.RecoverCluster, &wire.RecoverClusterRequest{Do: do}, &raw)
	return raw, err
}

// RotateAuthority begins a rotation of the cluster's authority; where one is under way, it says how far that is. With
// finish it ends the old authority: object.ErrBusy where nodes or clients still have nothing else, unless anyway. The
// answer is JSON.
func (c *Conn) RotateAuthority(ctx context.Context, finish, anyway bool) (json.RawMessage, error) {
	var raw json.RawMessage
	err := c.query(ctx, wire.RotateAuthority, &wire.RotateAuthorityRequest{Finish: finish, Anyway: anyway}, &raw)
	return raw, err
}

// BackupCluster gives the cluster's metadata and its authority's key, as JSON: a secret that lets anybody in. Errors:
// object.ErrTimeout where the cluster does not answer; object.ErrPermission.
func (c *Conn) BackupCluster(ctx context.Context) (json.RawMessage, error) {
	var raw json.RawMessage
	err := c.query(ctx, wire.BackupCluster, nil, &raw)
	return raw, err
}

// ClusterStatus describes the daemon's cluster, as its node knows it, as JSON.
func (c *Conn) ClusterStatus(ctx context.Context) (json.RawMessage, error) {
	var raw json.RawMessage
	err := c.query(ctx, wire.ClusterStatus, nil, &raw)
	return raw, err
}
