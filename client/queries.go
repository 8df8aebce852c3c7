package client

import (
	"context"
	"fmt"

	"tendril/ipc/wire"
	"tendril/store/object"
)

// Delete takes a sealed object out of the table; its memory goes with the last reference.
func (c *Conn) Delete(ctx context.Context, id object.ID) error {
	if id.IsZero() {
		return fmt.Errorf("%w: the zero id names nothing", object.ErrInvalid)
	}
	return c.simple(ctx, wire.Delete, &wire.NameMessage{ID: id})
}

// DeleteByName is Delete by name.
func (c *Conn) DeleteByName(ctx context.Context, name string) error {
	return c.simple(ctx, wire.Delete, &wire.NameMessage{Name: name})
}

// Bind names a sealed object, which the name then keeps until Delete. A name that is taken is object.ErrExists, unless
// replace takes it from its object.
func (c *Conn) Bind(ctx context.Context, id object.ID, name string, replace bool) error {
	return c.simple(ctx, wire.Bind, &wire.BindRequest{ID: id, Name: name, Replace: replace})
}

// List describes the tenant's objects whose name begins with prefix, oldest first: sealed ones and this connection's
// unsealed ones, with all also other connections'. Objects gives them one by one.
func (c *Conn) List(ctx context.Context, prefix string, all bool) ([]object.Info, error) {
	return c.ListWhere(ctx, Query{Prefix: prefix, All: all})
}
