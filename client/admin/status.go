package admin

import (
	"context"
	"encoding/json"

	"tendril/client/internal/conn"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Status gives the daemon's status as JSON.
func (n Node) Status(ctx context.Context) (json.RawMessage, error) {
	return conn.Raw(ctx, n.c, wire.Status, nil)
}

// Devices gives the daemon's platforms and devices as JSON (clwire.Snapshot).
func (n Node) Devices(ctx context.Context) (json.RawMessage, error) {
	return conn.Raw(ctx, n.c, wire.Devices, nil)
}

// OpenPage gives the address of the daemon's page with a key to it: a secret.
func (n Node) OpenPage(ctx context.Context) (string, error) {
	return n.secret(ctx, wire.OpenPage, nil)
}

// Place says, as JSON, to which nodes a published object's next replica would go by a policy ("" = spread, pack, near
// NODE), from which it would be got, and why: by name where id is zero. Errors: object.ErrNotFound (object, node),
// ErrInvalid (policy).
func (n Node) Place(ctx context.Context, id object.ID, name, policy string) (json.RawMessage, error) {
	return conn.Raw(ctx, n.c, wire.Place, &wire.PlaceRequest{ID: id, Name: name, Policy: policy})
}
