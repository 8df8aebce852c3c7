package admin

import (
	"context"
	"encoding/json"
	"time"

	"tendril/client/internal/conn"
	"tendril/ipc/wire"
)

// AuditQuery says which events are asked for.
type AuditQuery struct {
	Since  time.Time
	Tenant string // "" = all
	Limit  int    // 0: the daemon's most
	Cursor string // "" is the beginning; else the answer's
}

// Audit gives who did what in the cluster, oldest first, as JSON. Errors: object.ErrPermission.
func (n Node) Audit(ctx context.Context, q AuditQuery) (json.RawMessage, error) {
	m := wire.AuditRequest{Limit: uint32(q.Limit), Tenant: q.Tenant, Cursor: q.Cursor}
	if q.Since.After(time.Unix(0, 0)) {
		m.Since = uint64(q.Since.UnixNano())
	}
	return conn.Raw(ctx, n.c, wire.Audit, &m)
}
