package client

import (
	"context"
	"encoding/json"

	"tendril/client/internal/conn"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Publish makes a sealed object known to the cluster under a name ("" = its own), for every process of the tenant; it
// stays until Unpublish or Delete. A name that is taken is object.ErrExists, unless replace takes it from its object.
// A composite is object.ErrUnsupported: its members are published. It returns once the cluster has it on disk.
func (c *Conn) Publish(ctx context.Context, id object.ID, name string, replace bool) (epoch uint64, err error) {
	k, err := c.roundTrip(ctx, wire.Publish, &wire.BindRequest{ID: id, Name: name, Replace: replace})
	if err != nil {
		return 0, err
	}
	defer k.recycle()
	var m wire.Number
	err = m.Decode(k.payload)
	return m.N, err
}

// Unpublish takes a published name back; the object stays where it is held otherwise.
func (c *Conn) Unpublish(ctx context.Context, name string) error {
	return c.simple(ctx, wire.Unpublish, &wire.NameMessage{Name: name})
}

// Published describes the tenant's published objects whose name begins with prefix, as JSON. Errors: object.ErrTimeout
// where the cluster does not answer; EachPublished gives what the daemon's node knows then.
func (c *Conn) Published(ctx context.Context, prefix string) (json.RawMessage, error) {
	return conn.CollectJSON(c.EachPublished(ctx, prefix))
}

// UnpublishObject is Unpublish by id.
func (c *Conn) UnpublishObject(ctx context.Context, id object.ID) error {
	return c.simple(ctx, wire.Unpublish, &wire.NameMessage{ID: id})
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
