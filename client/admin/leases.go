package admin

import (
	"context"
	"encoding/json"

	"tendril/client/internal/conn"
	"tendril/ipc/wire"
)

// Leases lists who has devices for itself alone, and who waits for some, at all nodes of the cluster that answer, as
// JSON.
func (n Node) Leases(ctx context.Context) (json.RawMessage, error) {
	return conn.Raw(ctx, n.c, wire.Leases, nil)
}

// EndLease ends a lease, and the sessions that use it: by its id or the beginning of that, or NODE/NUMBER for one of a
// single node. Errors: object.ErrNotFound; object.ErrPermission where it is another tenant's.
func (n Node) EndLease(ctx context.Context, name string) error {
	return conn.Do(ctx, n.c, wire.EndLease, &wire.EndLeaseRequest{Name: name})
}
