package admin

import (
	"context"
	"encoding/json"

	"tendril/client/internal/conn"
	"tendril/client/internal/front"
	"tendril/ipc/wire"
)

// JoinCluster makes the daemon's node a member of the cluster that has a node at address (HOST or HOST:PORT), with a
// token of role pki.Node made there. The node keeps its objects and sessions; its clients on other machines must
// log in again. It returns the result as JSON. It may take some seconds. Errors: object.ErrExists for a node that
// is in a cluster already, or whose name is taken there; object.ErrPermission for a token that is not good;
// object.ErrVersion. The node then is what it was.
func (n Node) JoinCluster(ctx context.Context, address, token string) (json.RawMessage, error) {
	full, err := front.WithPort(address)
	if err != nil {
		return nil, err
	}
	return conn.Raw(ctx, n.c, wire.JoinCluster, &wire.JoinClusterRequest{Address: full, Token: token})
}

// LeaveCluster takes the daemon's node out of its cluster, or begins what has to be done before: other nodes take
// replicas of what this one alone has. It waits for no transfer: who wants the node out asks again until the answer,
// JSON, says that it is done. With anyway the node leaves although other nodes cannot take everything, or the cluster
// cannot be told. Errors: object.ErrTimeout, the cluster does not answer; object.ErrBusy.
func (n Node) LeaveCluster(ctx context.Context, anyway bool) (json.RawMessage, error) {
	return conn.Raw(ctx, n.c, wire.LeaveCluster, &wire.LeaveClusterRequest{Anyway: anyway})
}

// RemoveNode takes another node, which is dead, out of the daemon's cluster. It returns the result as JSON. With
// anyway also one that answers, or that alone has objects. Errors: object.ErrNotFound; object.ErrInvalid for this node,
// and for what anyway is needed; object.ErrTimeout.
func (n Node) RemoveNode(ctx context.Context, node string, anyway bool) (json.RawMessage, error) {
	return conn.Raw(ctx, n.c, wire.RemoveNode, &wire.RemoveNodeRequest{Node: node, Anyway: anyway})
}

// RecoverCluster makes the daemon's node a cluster of one of what it knows of its cluster, which has lost most of its
// voters for good. Without do it says what would be lost, as JSON, and does nothing. Errors: object.ErrInvalid where
// there is nothing to recover, or another node knows more.
func (n Node) RecoverCluster(ctx context.Context, do bool) (json.RawMessage, error) {
	return conn.Raw(ctx, n.c, wire.RecoverCluster, &wire.RecoverClusterRequest{Do: do})
}

// RotateAuthority begins a rotation of the cluster's authority; where one is under way, it says how far that is. With
// finish it ends the old authority: object.ErrBusy where nodes or clients still have nothing else, unless anyway. The
// answer is JSON.
func (n Node) RotateAuthority(ctx context.Context, finish, anyway bool) (json.RawMessage, error) {
	return conn.Raw(ctx, n.c, wire.RotateAuthority, &wire.RotateAuthorityRequest{Finish: finish, Anyway: anyway})
}

// BackupCluster gives the cluster's metadata and its authority's key, as JSON: a secret that lets anybody in. Errors:
// object.ErrTimeout where the cluster does not answer; object.ErrPermission.
func (n Node) BackupCluster(ctx context.Context) (json.RawMessage, error) {
	return conn.Raw(ctx, n.c, wire.BackupCluster, nil)
}

// ClusterStatus describes the daemon's cluster, as its node knows it, as JSON.
func (n Node) ClusterStatus(ctx context.Context) (json.RawMessage, error) {
	return conn.Raw(ctx, n.c, wire.ClusterStatus, nil)
}
