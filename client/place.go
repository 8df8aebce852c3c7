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

// UnpublishObject is Unpublish by id.
func (c *Conn) UnpublishObject(id object.ID) error {
	return c.simple(wire.Unpublish, &wire.NameMessage{ID: id})
}
