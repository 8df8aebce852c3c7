package admin

import (
	"context"
	"encoding/json"

	"tendril/client/internal/conn"
	"tendril/ipc/wire"
)

// Peers describes the nodes that this one's workers may be connected to, and its own authority, as JSON.
func (n Node) Peers(ctx context.Context) (json.RawMessage, error) {
	return conn.Raw(ctx, n.c, wire.Peers, nil)
}

// SetPeer names a node that this one's workers may be connected to, HOST:PORT and its authority; the zero authority
// ends that.
func (n Node) SetPeer(ctx context.Context, address string, authority [32]byte) error {
	return conn.Do(ctx, n.c, wire.SetPeer, &wire.SetPeerRequest{Authority: authority, Address: address})
}
