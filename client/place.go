package client

import (
	"context"
	"encoding/json"

	"tendril/ipc/wire"
	"tendril/store/object"
)

// Place says, as JSON, to which nodes a published object's next replica would go by a policy ("" = spread, pack, near
// NODE), from which it would be got, and why: by name where id is zero. Errors: object.ErrNotFound (object, node),
// ErrInvalid (policy).
func (c *Conn) Place(ctx context.Context, id object.ID, name, policy string) (json.RawMessage, error) {
	k, err := c.roundTrip(ctx, wire.Place, &wire.PlaceRequest{ID: id, Name: name, Policy: policy})
	if err != nil {
		return nil, err
	}
	defer k.recycle()
	return append(json.RawMessage(nil), k.payload...), nil
}

// ReplicateOptions says how many nodes are to have a published object, or which.
type ReplicateOptions struct {
	Wanted uint16 // nodes; 0 = as many as before
	To     string // a node that is to have it; "" = whichever is best
	Move   bool   // then From is to have it no more
	From   string // "" = the daemon's node, or the one that has had it longest
}

// Replicate says how many nodes are to have a published object, or which, by name where id is zero, and gives as JSON
// how far that is. It does not wait for a transfer: ask again until it is as wanted. Errors: object.ErrNotFound
// (object, node); object.ErrInvalid; object.ErrFull (no node has room); what the node that was to get it says.
func (c *Conn) Replicate(ctx context.Context, id object.ID, name string, o ReplicateOptions) (json.RawMessage, error) {
	k, err := c.roundTrip(ctx, wire.Replicate, &wire.ReplicateRequest{ID: id, Name: name, Wanted: o.Wanted, To: o.To,
		From: o.From, Move: o.Move})
	if err != nil {
		return nil, err
	}
	defer k.recycle()
	return append(json.RawMessage(nil), k.payload...), nil
}

// UnpublishObject is Unpublish by id.
func (c *Conn) UnpublishObject(ctx context.Context, id object.ID) error {
	return c.simple(ctx, wire.Unpublish, &wire.NameMessage{ID: id})
}
