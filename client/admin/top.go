package admin

import (
	"context"
	"iter"

	"tendril/client/internal/conn"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Top gives this tenant's largest objects, at most limit, and who holds them.
func (n Node) Top(ctx context.Context, limit int) (list []object.Held, err error) {
	if limit <= 0 {
		return nil, nil
	}
	for held, err := range n.largest(ctx, limit) {
		if err != nil {
			return nil, err
		}
		if list = append(list, held); len(list) >= limit {
			break
		}
	}
	return list, nil
}

// largest describes the objects, the largest first, to who wants so many.
func (n Node) largest(ctx context.Context, limit int) iter.Seq2[object.Held, error] {
	return conn.Listing[object.Held](ctx, n.c, wire.TopPage, func(cursor string) ipc.Payload {
		return &wire.PageRequest{Limit: uint32(min(limit, topAtMost)), Cursor: cursor}
	}, wire.Top, &wire.Number{N: uint64(limit)})
}

// topAtMost is how many objects daemons of earlier releases describe by size.
const topAtMost = 10_000
