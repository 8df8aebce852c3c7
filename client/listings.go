package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Listings come from the daemon page by page: neither side holds more of one at a time, and the daemon serves others
// between two. What is there all the while comes once, also over the end of a daemon; what comes or goes meanwhile may
// be in it or not.

// Objects describes the tenant's objects that q asks for, oldest first. After an error there is nothing more.
func (c *Conn) Objects(ctx context.Context, q Query) iter.Seq2[object.Info, error] {
	where := wire.ListWhereRequest{Prefix: q.Prefix, All: q.All, Shared: q.Shared, Labels: q.Labels}
	if q.AllTenants {
		return listing[object.Info](ctx, c, wire.AllPage, func(cursor string) ipc.Payload {
			return &wire.ListPageRequest{ListWhereRequest: where, Cursor: cursor}
		}, 0, nil)
	}
	return listing[object.Info](ctx, c, wire.ListPage, func(cursor string) ipc.Payload {
		return &wire.ListPageRequest{ListWhereRequest: where, Cursor: cursor}
	}, wire.ListWhere, &where)
}

// EachPublished describes the tenant's published objects whose name begins with prefix, each as JSON.
func (c *Conn) EachPublished(ctx context.Context, prefix string) iter.Seq2[json.RawMessage, error] {
	return listing[json.RawMessage](ctx, c, wire.PublishedPage, prefixed(prefix), wire.Published,
		&wire.ListRequest{Prefix: prefix})
}

// EachToken describes the tokens, without their secrets, each as JSON.
func (c *Conn) EachToken(ctx context.Context) iter.Seq2[json.RawMessage, error] {
	return listing[json.RawMessage](ctx, c, wire.TokenPage, prefixed(""), wire.Tokens, nil)
}

// EachCertificate describes the certificates that the cluster keeps account of, each as JSON.
func (c *Conn) EachCertificate(ctx context.Context) iter.Seq2[json.RawMessage, error] {
	return listing[json.RawMessage](ctx, c, wire.CertificatePage, prefixed(""), 0, nil)
}

// EachTenant describes the tenants that the cluster keeps records of, each as JSON.
func (c *Conn) EachTenant(ctx context.Context) iter.Seq2[json.RawMessage, error] {
	return listing[json.RawMessage](ctx, c, wire.TenantPage, prefixed(""), 0, nil)
}

// EachSession describes the sessions of the tenant's programs, each as JSON; the daemon's owner sees all.
// object.ErrUnsupported: the daemon is of an earlier release, and lists them in Status alone.
func (c *Conn) EachSession(ctx context.Context) iter.Seq2[json.RawMessage, error] {
	return listing[json.RawMessage](ctx, c, wire.SessionPage, prefixed(""), 0, nil)
}

// EachStream describes the tenant's streams whose name begins with prefix.
func (c *Conn) EachStream(ctx context.Context, prefix string) iter.Seq2[object.StreamInfo, error] {
	return listing[object.StreamInfo](ctx, c, wire.StreamPage, prefixed(prefix), wire.StreamList,
		&wire.WatchRequest{Prefix: prefix})
}

// EachLargest describes this tenant's objects, the largest first, and who holds them.
func (c *Conn) EachLargest(ctx context.Context) iter.Seq2[Held, error] {
	return c.largest(ctx, topAtMost)
}

// largest is EachLargest for who wants so many.
func (c *Conn) largest(ctx context.Context, limit int) iter.Seq2[Held, error] {
	return listing[Held](ctx, c, wire.TopPage, func(cursor string) ipc.Payload {
		return &wire.PageRequest{Limit: uint32(min(limit, topAtMost)), Cursor: cursor}
	}, wire.Top, &wire.Number{N: uint64(limit)})
}

// topAtMost is how many objects daemons of earlier releases describe by size.
const topAtMost = 10_000

func prefixed(prefix string) func(cursor string) ipc.Payload {
	return func(cursor string) ipc.Payload { return &wire.PageRequest{Prefix: prefix, Cursor: cursor} }
}

// listing asks for one page after another, and a daemon that knows no pages (old is what it knows, or 0) for the whole.
func listing[T any](ctx context.Context, c *Conn, kind wire.Type, ask func(cursor string) ipc.Payload, old wire.Type,
	whole ipc.Payload) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for cursor, first := "", true; first || cursor != ""; first = false {
			items, next, err := getPage[T](ctx, c, kind, ask(cursor))
			if first && errors.Is(err, object.ErrUnsupported) && old != 0 {
				next, err = "", c.query(ctx, old, whole, &items)
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if err == nil && next == cursor && next != "" {
				err = fmt.Errorf("%w: %v: the page ends where it begins", object.ErrProtocol, kind)
			}
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			cursor = next
		}
	}
}

func getPage[T any](ctx context.Context, c *Conn, kind wire.Type, p ipc.Payload) (items []T, next string, err error) {
	k, err := c.roundTrip(ctx, kind, p)
	if err != nil {
		return nil, "", err
	}
	defer k.recycle()
	var m wire.PageReply
	if err := m.Decode(k.payload); err != nil {
		return nil, "", err
	}
	if err := json.Unmarshal(m.Items, &items); err != nil {
		return nil, "", fmt.Errorf("%w: %v reply: %w", object.ErrProtocol, kind, err)
	}
	return items, m.Next, nil
}

// collect gives all of a listing; after an error none.
func collect[T any](seq iter.Seq2[T, error]) (list []T, err error) {
	for item, err := range seq {
		if err != nil {
			return nil, err
		}
		list = append(list, item)
	}
	return list, nil
}

// collectJSON gives all of a listing as one JSON array.
func collectJSON(seq iter.Seq2[json.RawMessage, error]) (json.RawMessage, error) {
	list, err := collect(seq)
	if err != nil {
		return nil, err
	}
	return json.Marshal(append([]json.RawMessage{}, list...))
}
