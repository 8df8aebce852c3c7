package conn

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

// Listing asks for one page after another, and a daemon that knows no pages (old is what it knows, or 0) for the whole.
func Listing[T any](ctx context.Context, c Conn, kind wire.Type, ask func(cursor string) ipc.Payload, old wire.Type,
	whole ipc.Payload) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for cursor, first := "", true; first || cursor != ""; first = false {
			items, next, err := getPage[T](ctx, c, kind, ask(cursor))
			if first && errors.Is(err, object.ErrUnsupported) && old != 0 {
				next, err = "", Query(ctx, c, old, whole, &items)
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

func getPage[T any](ctx context.Context, c Conn, kind wire.Type, p ipc.Payload) (items []T, next string, err error) {
	var m wire.PageReply
	if err := AskInto(ctx, c, kind, p, &m); err != nil {
		return nil, "", err
	}
	if err := json.Unmarshal(m.Items, &items); err != nil {
		return nil, "", fmt.Errorf("%w: %v reply: %w", object.ErrProtocol, kind, err)
	}
	return items, m.Next, nil
}

// Prefixed asks for a page of what has names that begin with prefix.
func Prefixed(prefix string) func(cursor string) ipc.Payload {
	return func(cursor string) ipc.Payload { return &wire.PageRequest{Prefix: prefix, Cursor: cursor} }
}

// Collect gives all of a listing; after an error none.
func Collect[T any](seq iter.Seq2[T, error]) (list []T, err error) {
	for item, err := range seq {
		if err != nil {
			return nil, err
		}
		list = append(list, item)
	}
	return list, nil
}

// CollectJSON gives all of a listing as one JSON array.
func CollectJSON(seq iter.Seq2[json.RawMessage, error]) (json.RawMessage, error) {
	list, err := Collect(seq)
	if err != nil {
		return nil, err
	}
	return json.Marshal(append([]json.RawMessage{}, list...))
}
