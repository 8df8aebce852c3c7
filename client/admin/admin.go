// Package admin is what runs a node and its cluster: status, tokens, tenants, certificates, members, leases, other
// programs' sessions. tendril's verbs are made of it. What a program needs of the store itself is package client.
//
// The daemon decides who may what: much of this is for root and the daemon's own user, and is object.ErrPermission for
// others. What is described as JSON is so in the shape that docs/design and daemon/inspect/PROTOCOL.md give, and
// `tendril --json` shows.
package admin

import (
	"context"

	"tendril/client"
	"tendril/client/internal/conn"
)

// Node is the daemon of a node, as who runs it sees it.
type Node struct{ c conn.Conn }

// Of gives the daemon at the other end of a connection.
func Of(c *client.Conn) Node { return Node{c.Internal()} }

// IndexState says whether the connection uses the index in shared memory: nil if so, otherwise why not. It opens it
// where it is wanted and no Get has done so yet.
func (n Node) IndexState(ctx context.Context) error { return n.c.IndexState(ctx) }
