package admin

import (
	"context"
	"encoding/json"
	"iter"

	"tendril/client/internal/conn"
	"tendril/ipc/wire"
)

// ChangeTenant creates, changes or removes a tenant of the cluster. Errors: object.ErrExists for one that is there, or
// a member of another one; object.ErrNotFound; object.ErrBusy where it is changed elsewhere at the same time, or is in
// use.
func (n Node) ChangeTenant(ctx context.Context, m wire.ChangeTenantRequest) error {
	return conn.Do(ctx, n.c, wire.ChangeTenant, &m)
}

// EachTenant describes the tenants that the cluster keeps records of, each as JSON.
func (n Node) EachTenant(ctx context.Context) iter.Seq2[json.RawMessage, error] {
	return conn.Listing[json.RawMessage](ctx, n.c, wire.TenantPage, conn.Prefixed(""), 0, nil)
}
