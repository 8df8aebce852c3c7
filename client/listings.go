package client

import (
	"context"
	"encoding/json"
	"iter"

	"tendril/client/internal/conn"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Objects describes the tenant's objects that q asks for, oldest first. After an error there is nothing more.
func (c *Conn) Objects(ctx context.Context, q Query) iter.Seq2[object.Info, error] {
	where := wire.ListWhereRequest{Prefix: q.Prefix, All: q.All, Shared: q.Shared, Labels: q.Labels}
	if q.AllTenants {
		return conn.Listing[object.Info](ctx, c.Internal(), wire.AllPage, func(cursor string) ipc.Payload {
			return &wire.ListPageRequest{ListWhereRequest: where, Cursor: cursor}
		}, 0, nil)
	}
	return conn.Listing[object.Info](ctx, c.Internal(), wire.ListPage, func(cursor string) ipc.Payload {
		return &wire.ListPageRequest{ListWhereRequest: where, Cursor: cursor}
	}, wire.ListWhere, &where)
}

// EachPublished describes the tenant's published objects whose name begins with prefix, each as JSON. Where the cluster
// does not answer, what comes is what the daemon's node knows of, and behind it object.ErrTimeout.
func (c *Conn) EachPublished(ctx context.Context, prefix string) iter.Seq2[json.RawMessage, error] {
	return conn.Listing[json.RawMessage](ctx, c.Internal(), wire.PublishedPage, conn.Prefixed(prefix), wire.Published,
		&wire.ListRequest{Prefix: prefix})
}

// EachStream describes the tenant's streams whose name begins with prefix.
func (c *Conn) EachStream(ctx context.Context, prefix string) iter.Seq2[object.StreamInfo, error] {
	return conn.Listing[object.StreamInfo](ctx, c.Internal(), wire.StreamPage, conn.Prefixed(prefix), wire.StreamList,
		&wire.WatchRequest{Prefix: prefix})
}
