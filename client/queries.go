package client

import (
	"context"
	"encoding/json"
	"fmt"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// Delete takes a sealed object out of the table; its memory goes with the last reference.
func (c *Conn) Delete(id object.ID) error {
	if id.IsZero() {
		return fmt.Errorf("%w: the zero id names nothing", object.ErrInvalid)
	}
	return c.simple(wire.Delete, &wire.NameMessage{ID: id})
}

// DeleteByName is Delete by name.
func (c *Conn) DeleteByName(name string) error {
	return c.simple(wire.Delete, &wire.NameMessage{Name: name})
}

// Bind names a sealed object, which the name then keeps until Delete. A name that is taken is object.ErrExists, unless
// replace takes it from its object.
func (c *Conn) Bind(id object.ID, name string, replace bool) error {
	return c.simple(wire.Bind, &wire.BindRequest{ID: id, Name: name, Replace: replace})
}

// List describes the tenant's objects whose name begins with prefix, oldest first: sealed ones and this connection's
// unsealed ones, with all also other connections'. Objects gives them one by one.
func (c *Conn) List(prefix string, all bool) ([]object.Info, error) {
	return c.ListWhere(Query{Prefix: prefix, All: all})
}

// Stat describes one object.
func (c *Conn) Stat(id object.ID) (object.Info, error) {
	if id.IsZero() {
		return object.Info{}, fmt.Errorf("%w: the zero id names nothing", object.ErrInvalid)
	}
	var info object.Info
	err := c.query(wire.Stat, &wire.NameMessage{ID: id}, &info)
	return info, err
}

// StatByName is Stat by name.
func (c *Conn) StatByName(name string) (object.Info, error) {
	var info object.Info
	err := c.query(wire.Stat, &wire.NameMessage{Name: name}, &info)
	return info, err
}

// Status gives the daemon's status as JSON.
func (c *Conn) Status() (json.RawMessage, error) {
	var raw json.RawMessage
	err := c.query(wire.Status, nil, &raw)
	return raw, err
}

// Devices gives the daemon's platforms and devices as JSON (clwire.Snapshot).
func (c *Conn) Devices() (json.RawMessage, error) {
	var raw json.RawMessage
	err := c.query(wire.Devices, nil, &raw)
	return raw, err
}

// query is a round trip whose reply is JSON.
func (c *Conn) query(kind wire.Type, p ipc.Payload, into any) error {
	k, err := c.roundTrip(context.Background(), kind, p)
	if err != nil {
		return err
	}
	defer k.recycle()
	if err := json.Unmarshal(k.payload, into); err != nil {
		return fmt.Errorf("%w: %v reply: %w", object.ErrProtocol, kind, err)
	}
	return nil
}
